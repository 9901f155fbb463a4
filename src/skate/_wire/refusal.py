"""A frame that is larger than a frame may be: what can be told of it by its first bytes, without keeping the rest.

Every message is a msgpack array that begins with its tag and, soon after that, the id of what it is about. So the first
plain values say which message it was, and for which task, object or request. The process that waits for that can be
told.
"""

from __future__ import annotations

from typing import Any

from skate._wire.messages.message import Refusal

#: Bytes of a frame that are looked at, and plain values that are taken from them.
HEAD_BYTES = 512
VALUES_MAX = 6


class NotOurs(ValueError):
    """It does not begin as our messages do."""


def read_refusal(begin: memoryview, size: int, limit: int) -> Refusal | None:
    """By the first bytes of a frame; None if there are too few to tell."""
    head = bytes(begin[:HEAD_BYTES])
    values: list[Any] = []
    #: Lengths of the arrays around the first bytes: the message, then perhaps a list of things, then the first thing.
    around: list[int] = []
    at = 0
    try:
        while len(values) < VALUES_MAX:
            value, is_array, at = _read(head, at)
            if not is_array:
                values.append(value)
            elif not any(isinstance(value, bytes) for value in values):
                around.append(value)
            if not around or (values and type(values[0]) is not int):
                raise NotOurs
    except IndexError:
        if len(head) < min(HEAD_BYTES, size):
            return None
    if not values:
        raise NotOurs
    return Refusal(values, around[1] if len(around) > 2 else 1, size, limit)


def _read(data: bytes, at: int) -> tuple[Any, bool, int]:
    """A plain value, or the length of an array; which of them; and where the next one begins. Raises IndexError."""
    first = data[at]
    at += 1
    if first < 0x80:
        return first, False, at
    if first >= 0xE0:
        return first - 0x100, False, at
    if 0x90 <= first < 0xA0:
        return first - 0x90, True, at
    if 0xA0 <= first < 0xC0:
        return *_text(data, at, first - 0xA0), at + first - 0xA0
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], False, at
    if first in _LENGTHS:
        kind, width = _LENGTHS[first]
        number = int.from_bytes(_part(data, at, width), "big", signed=kind == "signed")
        at += width
        if kind in ("unsigned", "signed"):
            return number, False, at
        if kind == "array":
            return number, True, at
        if kind == "bytes":
            return _part(data, at, number), False, at + number
        return *_text(data, at, number), at + number
    raise NotOurs


def _part(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError
    return data[at : at + size]


def _text(data: bytes, at: int, size: int) -> tuple[str, bool]:
    return _part(data, at, size).decode("utf-8", "replace"), False


#: What the first byte of a longer value announces: its kind, and the bytes that its length (or it) takes.
_LENGTHS = {
    0xCC: ("unsigned", 1), 0xCD: ("unsigned", 2), 0xCE: ("unsigned", 4), 0xCF: ("unsigned", 8),
    0xD0: ("signed", 1), 0xD1: ("signed", 2), 0xD2: ("signed", 4), 0xD3: ("signed", 8),
    0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4),
    0xD9: ("text", 1), 0xDA: ("text", 2), 0xDB: ("text", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4),
}  # fmt: skip
