"""`@skate.remote`, and what it makes of functions; for classes see `_actor.py`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from skate._actor import ActorClass
from skate._object_ref import ObjectRef
from skate._options import TaskOptions, actor_options, merge, task_options
from skate._streaming import ObjectRefGenerator
from skate._worker import interrupt
from skate._worker.current import get_runtime
from skate._worker.surroundings import late_ray_version

if TYPE_CHECKING:
    from skate._remote_class import Decorated
    from skate._worker.calls import Call
    from skate._worker.functions import Function

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
C = TypeVar("C")


class RemoteFunction(Generic[P, R]):
    """A function that runs as a task: `f.remote(...)` starts it elsewhere and returns a reference at once."""

    def __init__(self, function: Callable[P, Any], options: TaskOptions) -> None:
        self._function = function
        self._options = options
        qualified = getattr(function, "__qualname__", None) or type(function).__name__
        self._name = qualified.rpartition("<locals>.")[2]
        self._signature = _signature(function)
        #: Positional arguments that need no closer look.
        self._least, self._most = positional(self._signature)
        self._generator = _generator_kind(function, options)
        self._call: Call | None = None
        #: Shared by all that `.options()` makes of it, so that the function is pickled once.
        self._exported: dict[tuple[int, str], Function] = {}
        functools.update_wrapper(self, function, updated=())

    if TYPE_CHECKING:
        # Arguments are checked against the function's own parameters, unless one of the first of them is a reference,
        # which stands for a value of any type.
        @overload
        def remote(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        def remote(self, a: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> R: ...
        @overload
        def remote(self, a: Any, b: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> R: ...
        @overload
        def remote(self, a: Any, b: Any, c: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> R: ...
        @overload
        def remote(self, a: Any, b: Any, c: Any, d: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> R: ...
        def remote(self, *args: Any, **kwargs: Any) -> Any: ...
    else:

        def remote(self, /, *args, **kwargs):
            """Start a task. Arguments that are references are replaced by their values."""
            if interrupt.pending:
                interrupt.raise_pending()
            call = self._call
            if call is None or call.runtime.closed:
                call = self._prepare()
            if kwargs or not self._least <= len(args) <= self._most:
                self._check(args, kwargs)
            return call.runtime.submit(call, args, kwargs)

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise the TypeError that a direct call would raise, at the call and not in the task."""
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self._name}.remote(): {error}; its signature is {self._signature}") from None

    @overload
    def options(self, *, num_returns: int | str, **options: Any) -> RemoteFunction[P, Any]: ...
    @overload
    def options(self, **options: Any) -> RemoteFunction[P, R]: ...
    def options(self, **options: Any) -> RemoteFunction[P, R]:
        """The same function with other options for the calls made through it: `f.options(num_cpus=2).remote(x)`."""
        other: RemoteFunction[P, R] = RemoteFunction(self._function, merge(self._options, **options))
        other._exported = self._exported
        return other

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """`options(**options).remote(*args, **kwargs)` in one call, for libraries that call Ray so."""
        function: Any = self.options(**options) if options else self
        return function.remote(*(args or ()), **(kwargs or {}))

    def _prepare(self) -> Call:
        runtime = get_runtime()
        sent_to = id(runtime), late_ray_version()
        exported = self._exported.get(sent_to)
        if exported is None:
            exported = runtime.export(self._function, self._name)
            self._exported.clear()
            self._exported[sent_to] = exported
        call = runtime.new_call(exported, self._options, generator=self._generator)
        strategy = self._options.scheduling_strategy
        if isinstance(strategy, str) or not strategy.is_inherited:  # the next task here may be in another group
            self._call = call
            runtime.prepared.add(self)
        return call

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(
            f"{self._name}.bind(): lazy call graphs are not part of Skate. Call {self._name}.remote(...) and pass the "
            "reference on: tasks wait for their arguments by themselves."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a remote function and cannot be called directly.\n"
            f"  next: {self._name}.remote(...) runs it as a task and returns a reference; skate.get(reference) gives "
            f"the value. To run it here and now, call the function itself: {self._name}._function(...)."
        )

    def __repr__(self) -> str:
        return f"RemoteFunction({self._name})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._function, self._options)


def _rebuild(function: Callable[..., Any], options: TaskOptions) -> RemoteFunction[Any, Any]:
    return RemoteFunction(function, options)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return None


def positional(signature: inspect.Signature | None) -> tuple[int, int]:
    """The least and the most positional arguments of a call without keywords."""
    if signature is None:
        return 0, 1 << 30
    least = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = 1 << 30
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            most += 1
            least += parameter.default is parameter.empty
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return 1, 0  # it needs keywords: every call is looked at closely
    return least, most


def _generator_kind(function: Callable[..., Any], options: TaskOptions) -> str:
    """ "" for a function that returns, "streaming" or "dynamic" for one that yields."""
    if isinstance(options.num_returns, str):
        return options.num_returns
    if options.num_returns is None and inspect.isgeneratorfunction(function):
        return "streaming"
    return ""


class _Decorator:
    """What `@skate.remote(...)` with options returns. Typed so that checkers see through it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: type[C]) -> Decorated[C]: ...  # type: ignore[overload-overlap]  # it is callable too
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a generator function is also a function
        self, function: Callable[P, Generator[T, Any, Any]]
    ) -> RemoteFunction[P, ObjectRefGenerator[T]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Iterator[T]]
    ) -> RemoteFunction[P, ObjectRefGenerator[T]]: ...
    @overload
    def __call__(self, function: Callable[P, T]) -> RemoteFunction[P, ObjectRef[T]]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return make_remote(function, self._options)


def make_remote(function: Callable[..., Any], options: Mapping[str, Any]) -> RemoteFunction[Any, Any] | ActorClass[Any]:
    if isinstance(function, (RemoteFunction, ActorClass)):
        raise TypeError(f"{function!r} is remote already; change its options with .options(...).")
    if inspect.isclass(function):
        return ActorClass(function, actor_options(**options))
    if not callable(function):
        raise TypeError(f"@skate.remote makes functions and classes remote, and {function!r} is neither.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is async, and a task is a plain function: run it with asyncio.run(...) inside a "
            "plain function."
        )
    return RemoteFunction(function, task_options(**options))


@overload
def remote(cls: type[C], /) -> Decorated[C]: ...  # type: ignore[overload-overlap]  # a class is callable too
@overload
def remote(  # type: ignore[overload-overlap]  # a generator function is also a function
    function: Callable[P, Generator[T, Any, Any]], /
) -> RemoteFunction[P, ObjectRefGenerator[T]]: ...
@overload
def remote(  # type: ignore[overload-overlap]
    function: Callable[P, Iterator[T]], /
) -> RemoteFunction[P, ObjectRefGenerator[T]]: ...
@overload
def remote(function: Callable[P, T], /) -> RemoteFunction[P, ObjectRef[T]]: ...
@overload
def remote(*, num_returns: int | str, **options: Any) -> Callable[[Callable[P, Any]], RemoteFunction[P, Any]]: ...
@overload
def remote(**options: Any) -> _Decorator: ...
def remote(*args: Any, **options: Any) -> Any:
    """Make a function or a class remote: with `.remote(...)` a function runs as a task in another process, and of a
    class an actor is made there, an instance with a process of its own.

        @skate.remote
        def add(a, b):
            return a + b

        @skate.remote
        class Counter:
            def __init__(self): self.n = 0
            def add(self, k): self.n += k; return self.n

        @skate.remote(num_cpus=2, max_retries=0)
        def train(): ...

        skate.get(add.remote(1, 2))     # 3
        counter = Counter.remote()
        skate.get(counter.add.remote(5))     # 5

    Options: see the pages on tasks and actors in the documentation, or call it with a wrong one.
    """
    if args:
        if options or len(args) > 1:
            raise TypeError(
                "@skate.remote takes options by keyword only, and then no function: @skate.remote(num_cpus=2)."
            )
        return make_remote(args[0], {})
    return _Decorator(options)  # whose they are, and whether there are such, is known when it is called
