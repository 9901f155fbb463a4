"""Values as text that is never much longer than asked for, however large they are.

Problem:   `repr` of a list with one value of 300 MB makes a gigabyte of text, in some ten seconds, only to be cut.
Idea:      built-in values say how large they are before they are printed. Those that are too large are printed in part,
           by the same rules; all others, and whatever prints itself, by `repr`. This module imports nothing of Skate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

#: Characters that are left to a part of a value, when the rest has used up what there was.
ROOM_LEAST = 40
#: How deep values are looked into, and printed.
DEPTH_MAX = 20

_TEXTS = (str, bytes, bytearray)
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    dict: ("{", "}"),
}


def is_large(value: object, most: int) -> bool:
    """Whether the texts and built-in collections in a value alone are longer than that. Stops as soon as it knows."""
    size, seen = 0, set()
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, _TEXTS):
            size += len(each)
        elif isinstance(each, int):
            size += each.bit_length() // 3
        elif id(each) not in seen:
            seen.add(id(each))
            inside = _inside(each)
            size += 2 * len(inside)
            if size <= most:
                waiting += inside
        if size > most:
            return True
    return False


def _inside(value: Any) -> list[Any]:
    """What a value's `repr` shows beside its name, as far as that is known."""
    if isinstance(value, dict):
        return list(chain(value, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, BaseException):
        return list(value.args)
    if hasattr(type(value), "__dataclass_fields__"):
        return list(getattr(value, "__dict__", {}).values())
    return []


def bounded_repr(value: object, most: int) -> str:
    """`repr(value)`; of what is longer than `most`, its beginning and how much there is. Raises what `repr` raises."""
    if is_large(value, most):
        return _in_part(value, most, 0)
    return cut(repr(value), most)


def cut(text: str, most: int) -> str:
    """Both ends of a text, and how long it was."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … ({len(text):,} characters in all) … {text[-half:]}"


def _in_part(value: Any, room: int, depth: int) -> str:
    kind, room = type(value), max(room, ROOM_LEAST)
    if isinstance(value, _TEXTS):
        what = "characters" if isinstance(value, str) else "bytes"
        part = repr(value[:room])
        if len(part) > 2 * room:  # a byte may take four characters
            room //= 4
            part = repr(value[:room])
        return part if len(value) <= room else f"{part}… ({len(value):,} {what} in all)"
    if depth < DEPTH_MAX and kind in _BRACKETS:
        begin, end = _BRACKETS[kind]
        shown = ", ".join(_items(value, room, depth + 1))
        return f"{begin}{shown}{',' if kind is tuple and len(value) == 1 else ''}{end}"
    if is_large(value, room):
        return f"<{kind.__module__}.{kind.__qualname__} object, too large to be shown>"
    return cut(repr(value), room)


def _items(value: Any, room: int, depth: int) -> Iterator[str]:
    items: Iterable[Any] = value.items() if isinstance(value, dict) else value
    shown = 0
    for each in islice(items, room):
        if isinstance(value, dict):
            name, content = each
            text = f"{_in_part(name, room, depth)}: "
            text += _in_part(content, room - len(text), depth)
        else:
            text = _in_part(each, room, depth)
        yield text
        shown += 1
        room -= len(text) + 2
        if room <= 0:
            break
    if shown < len(value):
        yield f"… ({len(value):,} in all)"
