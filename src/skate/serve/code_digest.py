"""A digest of what a pickle says, which is the same whenever it says the same.

Two pickles of one class differ in ways that mean nothing, and `serve.run` would replace all replicas for them:

- What occurs twice is written once if both are one object. A class that comes back from a replica gets equal strings,
  code and globals that are other objects.
- `copyreg` keeps a note in a class when an instance of it is pickled for the first time.

Idea:      run the pickle without making anything. A constant, or a tuple of constants, becomes a digest, and every
           other object a node with what went into it. A node gets a colour from its kind and its constants, and then,
           in rounds, from the colours of its parts too, until no round tells more nodes apart (the algorithm of
           Weisfeiler and Leman).
Invariant: pickles with one digest make objects that differ at most in which of their parts are one object. What is not
           understood here, or is very long, is taken as it is written.
"""

from __future__ import annotations

import hashlib
import pickletools
from collections.abc import Sequence
from typing import Any

__all__ = ["code_digest"]

#: A pickle with more instructions is taken as it is written: these take a tenth of a second.
INSTRUCTIONS_MAX = 20_000
#: One that is nested more deeply is, too.
ROUNDS_MAX = 100

IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
CONSTANTS = {
    **{name: name for name in ("NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE")},
    **dict.fromkeys(["BININT", "BININT1", "BININT2", "LONG1", "LONG4"], "int"),
    **dict.fromkeys(["SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"], "str"),
    **dict.fromkeys(["SHORT_BINBYTES", "BINBYTES", "BINBYTES8"], "bytes"),
    "BINFLOAT": "float",
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
#: By instruction that makes an object of the topmost values of the stack: how many it takes.
MAKERS = {"EMPTY_LIST": 0, "EMPTY_DICT": 0, "EMPTY_SET": 0, "REDUCE": 2, "NEWOBJ": 2, "NEWOBJ_EX": 3}
#: By instruction that puts the topmost values of the stack into the object below them: how many; None: all down to the
#: mark.
CHANGES = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": None, "SETITEMS": None, "ADDITEMS": None}


class NotUnderstood(Exception):
    """An instruction that is not written here."""


class Node:
    """An object that is no constant: how it was made, and what was put into it."""

    __slots__ = ("colour", "kind", "parts")

    def __init__(self, kind: str, parts: Sequence[Any]) -> None:
        self.kind = kind
        self.parts = list(parts)
        self.colour = b""


#: A constant as its digest, or another object.
Value = bytes | Node


def code_digest(pickled: bytes) -> bytes:
    """The digest of a pickle."""
    try:
        return _told_apart(_nodes(pickled))
    except (NotUnderstood, IndexError, ValueError):
        return _hash(b"exact", pickled)


def _hash(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for each in parts:
        state.update(len(each).to_bytes(8, "little"))
        state.update(each)
    return state.digest()


SLOT_NAMES = _hash(b"str", b"__slotnames__")


def _nodes(pickled: bytes) -> list[Node]:
    """All objects that the pickle makes; the last one has what it returns, and what it makes for its effect alone."""
    stack: list[Value] = []
    marks: list[int] = []
    memo: list[Value] = []
    effects: list[Value] = []
    nodes: list[Node] = []

    def taken(count: int | None) -> list[Value]:
        start = marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise NotUnderstood
        values = stack[start:]
        del stack[start:]
        return values

    def node(kind: str, parts: list[Value]) -> Node:
        nodes.append(Node(kind, parts))
        return nodes[-1]

    for number, (code, argument, _) in enumerate(pickletools.genops(pickled)):
        name = code.name
        if number > INSTRUCTIONS_MAX:
            raise NotUnderstood
        if name in IGNORED:
            continue
        if name in CONSTANTS:
            stack.append(_constant(CONSTANTS[name], argument))
        elif name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument or 0])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in TUPLES or name in ("TUPLE", "FROZENSET", "STACK_GLOBAL"):
            parts = taken(2 if name == "STACK_GLOBAL" else TUPLES.get(name))
            kind = "TUPLE" if name in TUPLES else name
            constants = [each for each in parts if isinstance(each, bytes)]
            if len(constants) < len(parts):
                stack.append(node(kind, parts))
            else:
                stack.append(_hash(kind.encode(), *(sorted(constants) if kind == "FROZENSET" else constants)))
        elif name in MAKERS:
            stack.append(node(name, taken(MAKERS[name])))
        elif name in CHANGES:
            parts = taken(CHANGES[name])
            changed = stack[-1]
            if not isinstance(changed, Node):
                raise NotUnderstood
            changed.parts += _pairs(parts) if name.startswith("SETITEM") else [_hash(name.encode()), *parts]
        elif name == "POP":
            effects.append(stack.pop())
        else:
            raise NotUnderstood
    node("pickle", [*effects, *stack])
    return nodes


def _constant(kind: str, argument: Any) -> bytes:
    if isinstance(argument, bytes):
        return _hash(kind.encode(), argument)
    text = argument if isinstance(argument, str) else repr(argument)
    return _hash(kind.encode(), text.encode("utf-8", "surrogatepass"))


def _pairs(parts: list[Value]) -> list[Value]:
    """Keys and values, without the note of copyreg."""
    kept: list[Value] = []
    for key, value in zip(parts[::2], parts[1::2]):
        kept += [] if key == SLOT_NAMES else [key, value]
    return kept


def _told_apart(nodes: list[Node]) -> bytes:
    count, before, rounds = 0, -1, 0
    while count > before:
        before, rounds = count, rounds + 1
        if rounds > ROUNDS_MAX:
            raise NotUnderstood
        colours = [
            _hash(each.kind.encode(), *(part if isinstance(part, bytes) else part.colour for part in each.parts))
            for each in nodes
        ]
        for each, colour in zip(nodes, colours):
            each.colour = colour
        count = len(set(colours))
    return _hash(rounds.to_bytes(8, "little"), nodes[-1].colour, *sorted({each.colour for each in nodes}))
