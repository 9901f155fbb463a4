"""Marks for the authors of libraries: who may use an API, and how long it will last.

    @PublicAPI(stability="beta")
    def train(): ...

    @Deprecated(message="Use train().", warning=True)
    def fit(): ...

A mark adds a note to the docstring and attributes that tools can read. Only `Deprecated(warning=True)` changes what
happens when the marked function is called, or the marked class instantiated: it warns.
"""

from __future__ import annotations

import enum
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

__all__ = ["AnnotationType", "Deprecated", "DeveloperAPI", "PublicAPI", "RayDeprecationWarning"]

F = TypeVar("F", bound=Callable[..., Any])

STABILITIES = ("stable", "beta", "alpha")


class AnnotationType(enum.Enum):
    PUBLIC_API = "PublicAPI"
    DEVELOPER_API = "DeveloperAPI"
    DEPRECATED = "Deprecated"
    UNKNOWN = "Unknown"


class RayDeprecationWarning(DeprecationWarning):
    """The program uses what `Deprecated` marks. Unlike other such warnings it is shown by default."""


warnings.simplefilter("default", category=RayDeprecationWarning, append=True)


@overload
def PublicAPI(marked: F, /) -> F: ...
@overload
def PublicAPI(*, stability: str = "stable", api_group: str = "Others") -> Callable[[F], F]: ...
def PublicAPI(marked: Any = None, /, *, stability: str = "stable", api_group: str = "Others") -> Any:  # noqa: N802
    """An API for users. stability: "stable", or "beta" and "alpha" for what may still change."""
    if stability not in STABILITIES:
        raise ValueError(f"PublicAPI(stability={stability!r}): it may be one of {', '.join(STABILITIES)}.")
    note = "" if stability == "stable" else f"**PublicAPI ({stability}):** this may change before it is stable."

    def mark(it: F) -> F:
        _mark(it, AnnotationType.PUBLIC_API, note, api_group)
        return it

    return mark if marked is None else mark(marked)


@overload
def DeveloperAPI(marked: F, /) -> F: ...
@overload
def DeveloperAPI(*, api_group: str = "Others") -> Callable[[F], F]: ...
def DeveloperAPI(marked: Any = None, /, *, api_group: str = "Others") -> Any:  # noqa: N802
    """An API for the authors of libraries, which may change from one release to the next."""

    def mark(it: F) -> F:
        note = "**DeveloperAPI:** this may change from one release to the next."
        _mark(it, AnnotationType.DEVELOPER_API, note, api_group)
        return it

    return mark if marked is None else mark(marked)


@overload
def Deprecated(marked: F, /) -> F: ...
@overload
def Deprecated(*, message: str = "", warning: bool = False) -> Callable[[F], F]: ...
def Deprecated(marked: Any = None, /, *, message: str = "", warning: bool = False) -> Any:  # noqa: N802
    """An API that will be removed. message: what to use instead. warning: also say so when it is used."""

    def mark(it: Any) -> Any:
        note = f"**Deprecated:** this will be removed. {message}".rstrip()
        it = _warning(it, message) if warning else it
        _mark(it, AnnotationType.DEPRECATED, note, "Others")
        return it

    return mark if marked is None else mark(marked)


def _warning(marked: Any, message: str) -> Any:
    """The same function or class; it warns when it is called."""
    text = f"{marked.__name__} is deprecated and will be removed. {message}".rstrip()
    inner = marked.__init__ if inspect.isclass(marked) else marked

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(text, RayDeprecationWarning, stacklevel=2)
        return inner(*args, **kwargs)

    if inspect.isclass(marked):
        setattr(marked, "__init__", outer)  # noqa: B010 - mypy knows that it is a method
        return marked
    return outer


def _mark(marked: Any, kind: AnnotationType, note: str, api_group: str) -> None:
    if note:
        doc = inspect.cleandoc(marked.__doc__ or "")
        marked.__doc__ = f"{doc}\n\n{note}\n" if doc else f"{note}\n"
    # A subclass has these attributes too, and is not marked: the name tells.
    marked._annotated = marked.__name__
    marked._annotated_type = kind
    marked._annotated_api_group = api_group
