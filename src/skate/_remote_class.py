"""What type checkers are told about a class behind `@skate.remote`. Nothing in here exists while a program runs.

The truth, that `Counter` is an `ActorClass[Counter]`, would make errors of right programs: what is no class cannot
stand in an annotation, `Actor[Counter]`, nor among bases, `class Better(Counter)`. So checkers keep a class, with
`.remote(...)` and `.options(...)` added to it:

    mypy     does not look at what a class decorator returns. `skate.mypy_plugin` gives the class the metaclass below,
             and fills in the types of its two attributes, and those of the methods of handles.
    others   see `type[Remote[Counter]]`, a class as well. Handles are `Actor[Counter]` by `Counter.remote()` and
             `Actor[Remote[Counter]]` where that is annotated; the first fits the second because `Remote[Counter]` is a
             protocol that is met by whatever has the `__class__` of a `Counter`. As a base class it has every
             attribute, since it cannot have those of `Counter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abc import ABCMeta
    from collections.abc import Callable
    from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

    from skate import _actor
    from skate._actor import Actor

    C = TypeVar("C")
    MYPY = False  # but mypy takes it for true

    if MYPY:
        Decorated: TypeAlias = _actor.ActorClass[C]

        class RemoteMeta(_actor.ActorClass[Any], ABCMeta):
            """The metaclass of a class behind `@skate.remote`."""

            remote: Any
            options: Any
    else:
        P = ParamSpec("P")
        T = TypeVar("T", covariant=True)

        class _Made(Protocol[P, T]):
            @property
            def _cls(self) -> Callable[P, T]: ...

        class _Remote(Generic[T]):
            """`Counter.remote`. Editors show the parameters of the class; arguments are not held to them, since any of
            them may be a reference."""

            _cls: type[T]

            @overload
            def __call__(self: _Made[P, C], *args: P.args, **kwargs: P.kwargs) -> Actor[C]: ...
            @overload
            def __call__(self, *args: Any, **kwargs: Any) -> Actor[T]: ...
            def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

        class Verbs(Generic[T]):
            """What an `ActorClass[T]` can do."""

            @property
            def remote(self) -> _Remote[T]: ...
            def options(self, **options: Any) -> _actor.ActorClass[T]: ...
            def __getattr__(self, name: str) -> Any: ...

        class _RemoteVerb:
            @overload
            def __get__(self, instance: None, owner: type[Remote[C]]) -> _Remote[C]: ...
            @overload
            def __get__(self, instance: object, owner: Any) -> Any: ...
            def __get__(self, instance: Any, owner: Any) -> Any: ...
            def __set__(self, instance: Any, value: Any) -> None: ...

        class _OptionsVerb:
            @overload
            def __get__(self, instance: None, owner: type[Remote[C]]) -> Callable[..., _actor.ActorClass[C]]: ...
            @overload
            def __get__(self, instance: object, owner: Any) -> Any: ...
            def __get__(self, instance: Any, owner: Any) -> Any: ...
            def __set__(self, instance: Any, value: Any) -> None: ...

        class _Base(Any):
            remote: _RemoteVerb
            options: _OptionsVerb

            def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        class Remote(_Base, Protocol[C]):
            @property
            def __class__(self) -> type[C]:
                raise AttributeError  # a body, so that classes that inherit from it are not abstract

        Decorated: TypeAlias = type[Remote[C]]
