"""The base of all errors of Skate. Users import it from `skate.exceptions`, which has the whole tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _rebuild(kind: type[SkateError], args: tuple[Any, ...]) -> SkateError:
    """Make an error without its __init__, which takes facts and would compose the text a second time."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class SkateError(Exception):
    """The base of all errors of Skate: catch it to catch every failure of a remote call."""

    __module__ = "skate.exceptions"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Callable[..., SkateError], tuple[Any, ...], dict[str, Any]]:
        return _rebuild, (type(self), self.args), self.__dict__
