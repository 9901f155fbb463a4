"""Explains why something cannot be pickled, and what made a pickle large, by naming the variable.

Only runs after something went wrong, so it may be slow: it pickles the parts one by one.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from skate._object_ref import collecting_refs
from skate.exceptions import SerializationError, SkateError

#: How deep the search for the culprit goes, and how many parts of one thing are looked at.
DEPTH_MAX = 4
PARTS_MAX = 200


def _size(value: object) -> int:
    try:
        return _pickled_size(value)
    except Exception:  # noqa: BLE001 - whatever a user's __reduce__ raises
        return -1


def _pickled_size(value: object) -> int:
    from skate._serialize.code import CodePickler

    with collecting_refs(), io.BytesIO() as file:  # references are not sent anywhere: nothing has to keep their objects
        CodePickler(file, protocol=5).dump(value)
        return file.tell()


def why_unpicklable(value: object) -> str | None:
    """What pickling raises, as text; None if the value can be pickled."""
    try:
        _pickled_size(value)
    except Exception as error:  # noqa: BLE001 - whatever a user's __reduce__ raises
        return f"{type(error).__name__}: {error}"
    return None


def is_picklable(value: object) -> bool:
    return _size(value) >= 0


def _captures(function: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that a pickled function takes along."""
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, FunctionType):
        return
    try:
        captured = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    for name, value in captured.nonlocals.items():
        yield f"the closure variable {name!r}", value
    if function.__module__ == "__main__" or captured.nonlocals or "<locals>" in function.__qualname__:
        for name, value in captured.globals.items():
            if not inspect.ismodule(value):
                yield f"the global variable {name!r}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"the default of {name!r}", value
    defaults = function.__defaults__ or ()
    parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
    for name, value in zip(parameters[len(parameters) - len(defaults) :], defaults):
        yield f"the default of {name!r}", value


def _captures_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """The same of a class: what its methods capture, once if several do, and its attributes."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__ != cls.__module__:
            continue  # most likely imported where it arrives
        for name, attribute in vars(base).items():
            function = getattr(attribute, "fget", getattr(attribute, "__func__", attribute))
            if isinstance(function, FunctionType):
                captures = list(_captures(function))
            elif name.startswith("__") or hasattr(attribute, "__get__"):
                continue  # of every class, or written in C
            else:
                captures = [(f"the attribute {name!r}", attribute)]
            for named, value in captures:
                # A method that calls super() has its class in a cell.
                if (named, id(value)) not in seen and not any(value is base for base in cls.__mro__):
                    seen.add((named, id(value)))
                    yield named, value


def largest_captures(function: Any, count: int = 3) -> str:
    """The largest things that a function or a class captures, with names and sizes."""
    captures = _captures_of_class(function) if isinstance(function, type) else _captures(function)
    sizes = sorted(((_size(value), name, value) for name, value in captures), key=lambda row: -row[0])
    named = [
        f"{name} ({type(value).__name__}, {size / 2**20:.1f} MB)" for size, name, value in sizes[:count] if size > 0
    ]
    return ", ".join(named) if named else "large data"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in list(value.items())[:PARTS_MAX]:
            yield f"the item {key!r}", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(list(value)[:PARTS_MAX]):
            yield f"the element {index}", item
    elif isinstance(value, FunctionType):
        yield from _captures(value)
    elif isinstance(value, type):
        for name, item in list(vars(value).items())[:PARTS_MAX]:
            if name not in ("__dict__", "__weakref__"):  # of every class, and made anew with it
                yield f"the attribute {name!r}", item
    elif hasattr(value, "__dict__"):
        for name, item in list(vars(value).items())[:PARTS_MAX]:
            yield f"the attribute {name!r}", item


class Part(NamedTuple):
    """A part of something that cannot be pickled."""

    #: In words ("the attribute 'lock'"), and as the program calls it ("lock").
    phrase: str
    name: str
    value: Any
    #: What it is a part of.
    parent: Any


def culprits(whole: Part, depth: int, above: tuple[Any, ...] = ()) -> list[list[Part]]:
    """The ways to the innermost parts that cannot be pickled, each from `whole` on, at most `depth` steps further.

    above: what `whole` is in. A part is no reason if it only contains one of these again.
    """
    if depth > 0:
        bad = [
            Part(phrase, _plain(phrase), part, whole.value)
            for phrase, part in _parts(whole.value)
            if not is_picklable(part)
        ]
        inside = (*above, whole.value)
        others = [part for part in bad if not _is_one_of(part.value, inside)]
        ways = [[whole, *way] for part in others for way in culprits(part, depth - 1, inside)]
        if ways or (bad and above):
            return ways
    return [[whole]]


def _is_one_of(value: object, values: Sequence[object]) -> bool:
    return any(value is one for one in values)


def _plain(phrase: str) -> str:
    """The name of a part, of its phrase: lock, of the attribute 'lock'."""
    *_, last = phrase.split(" ", 2 if phrase.startswith(("the item", "the attribute", "the element")) else 3)
    return last[1:-1] if last[:1] == last[-1:] == "'" else last


def find_culprit(value: Any) -> list[str]:
    """The path to the innermost part that cannot be pickled."""
    path: list[str] = []
    above = []
    for _ in range(DEPTH_MAX):
        above.append(value)
        for name, part in _parts(value):
            if not _is_one_of(part, above) and not is_picklable(part):
                path.append(f"{name} of type {type(part).__module__}.{type(part).__qualname__}")
                value = part
                break
        else:
            break
    return path


def explain_unpicklable(value: Any, error: Exception, *, what: str) -> SerializationError:
    """An error that names the variable."""
    path = find_culprit(value)
    culprit = (
        ", in it ".join(path) if path else f"an object of type {type(value).__module__}.{type(value).__qualname__}"
    )
    if isinstance(error, SkateError):  # its text says what to do
        return SerializationError(f"{what} cannot be sent to another process.\n  what: {culprit}: {error}")
    return SerializationError(
        f"{what} cannot be sent to another process.\n"
        f"  what: {culprit} cannot be pickled.\n"
        f"  why:  {type(error).__name__}: {error}\n"
        "  next: create it inside the task (files, locks, sockets and connections belong to one process), pass "
        "the data from which it is made, or give its class a __reduce__ method."
    )
