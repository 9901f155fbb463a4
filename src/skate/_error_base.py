"""The base of all errors of Skate, and TaskError. Users import them from `skate.exceptions`, which has all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skate import _error_text as _words


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


class Fallback:
    """An attribute that is computed where an error has none of that name. Subclasses may set one, unlike a property."""

    def __init__(self, read: Callable[[Any], str]) -> None:
        self._read = read

    def __get__(self, error: SkateError | None, kind: type) -> Any:
        return self if error is None else self._read(error)


class TaskError(SkateError):
    """A function that ran as a task raised. `get` raises it, and `await`.

    What arrives is an instance of TaskError *and* of the class that the function raised, so `except ValueError` works
    as if the call had been local; its text is the remote traceback, which ends with the message. When the class must
    not be raised here (a SystemExit would end the driver, a StopIteration a loop) or cannot be subclassed, it
    is a TaskError only, and `cause` tells.

    `cause` is the original exception, `function_name`, `pid` and `node` say where it was raised, `remote_traceback` is
    the traceback as text, of each task that it passed through. An attribute of the original with one of these names
    hides ours, except `cause`.
    """

    __module__ = "skate.exceptions"

    function_name: str
    pid: int
    node: str
    remote_traceback: str

    def __init__(
        self,
        message: str = "",
        traceback_str: str | None = None,
        cause: BaseException | None = None,
        proctitle: str | None = None,
        pid: int | None = 0,
        ip: str | None = None,
        actor_repr: str | None = None,
        actor_id: str | None = None,
        *,
        function_name: str = "",
        node: str = "",
        remote_traceback: str = "",
    ) -> None:
        if traceback_str is not None:  # Ray's form: RayTaskError(function_name, traceback_str, cause, …)
            message, function_name = "", function_name or message
            remote_traceback = traceback_str
        super().__init__(message)
        if cause is not None:
            self.args = cause.args
        self._skate_cause = cause
        raised = "an exception" if cause is None else repr(cause)
        self._skate_text = message or remote_traceback or f"{_words.task(function_name)} raised {raised}"
        self.function_name = function_name
        self.pid = pid or 0
        self.node = node
        self.remote_traceback = remote_traceback
        given = {"proctitle": proctitle, "ip": ip, "actor_repr": actor_repr, "actor_id": actor_id}
        self.__dict__.update({name: value for name, value in given.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        """What Ray has besides: `traceback_str`, and None for what Skate does not note, unless the original has it."""
        of_the_original = getattr(super(), "__getattr__", None)
        try:
            if of_the_original is not None:
                return of_the_original(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        except AttributeError:
            if name == "traceback_str":
                return self.remote_traceback
            if name in ("proctitle", "ip", "actor_repr", "actor_id"):
                return None
            raise

    # A property rather than an attribute: it must win over a property of that name in the user's class.
    @property
    def cause(self) -> BaseException | None:
        """The exception that the function raised."""
        cause: BaseException | None = self.__dict__.get("_skate_cause")
        return cause

    def as_instanceof_cause(self) -> TaskError:
        """The error itself: it is an instance of the class of its cause already, where that is possible."""
        return self

    def __str__(self) -> str:
        return str(self.__dict__.get("_skate_text", ""))
