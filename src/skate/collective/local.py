"""Collective operations, send and recv between ranks of one node: plans carried out on boards.

Arrays come as lists of one-dimensional, contiguous numpy arrays of one dtype. Those that are only moved come as bytes
(uint8). A header says in words what a rank calls; it stands beside the first slot of the operation, and every rank
compares it with its own before it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skate.collective.board import Board
from skate.collective.errors import MismatchError, compose
from skate.collective.layout import CALLS, CHUNK_BYTES, DONE, HEADER_BYTES, WRITTEN, sent, taken
from skate.collective.plan import LAG, SLOTS, Step, steps

Array = NDArray[Any]

_BYTES = np.dtype(np.uint8)

#: Combine two arrays into the third, element by element.
Combine = Callable[[Array, Array, Array], object]


class Local:
    """The operations of one rank with the other ranks of its node, by their numbers on the node."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._me = board.me
        self._world = len(board.members)
        self._step = 0
        self._sent = [0] * self._world
        self._taken = [0] * self._world
        #: The slots of all ranks, as arrays of a dtype: made when a dtype is first used.
        self._slots: dict[np.dtype[Any], list[list[Array]]] = {}

    def run(
        self,
        kind: str,
        header: bytes,
        sources: Sequence[Array],
        targets: Sequence[Array],
        *,
        root: int = 0,
        combine: Combine | None = None,
    ) -> None:
        """Carry out an operation; `plan.steps` says how many sources and targets each has."""
        some = sources or targets
        size, dtype = (some[0].size, some[0].dtype) if some else (0, _BYTES)
        slots = self._slots_of(dtype)
        room = slots[0][0].size
        self._board.begin(header)
        call = _Call(self._board, slots, self._step, sources, targets, combine)
        self._await_slot(self._step)
        self._write_header(header, self._step % SLOTS, None)
        waiting: list[Step] = []
        for number, step in enumerate(steps(kind, self._me, self._world, root, size, room)):
            self._await_slot(self._step + number)
            call.write(number, step)
            waiting.append(step)
            if number >= LAG:
                self._read(call, number - LAG, waiting.pop(0), header)
        for left, step in enumerate(waiting):
            self._read(call, number + 1 - len(waiting) + left, step, header)
        self._step += number + 1
        self._board.calls += 1
        self._board.publish(CALLS, self._board.calls)

    def send(self, to: int, header: bytes, data: Array) -> None:
        """Send bytes; returns when all but the last SLOTS chunks were received."""
        ring, board = self._pair_slots(self._me, to), self._board
        board.begin(b"send%s to %s" % (_arguments(header), str(board.members[to]).encode()))
        for start in _starts(data.size):
            number = self._sent[to]
            board.wait(to, taken(self._me), number - SLOTS + 1)
            if start == 0:
                self._write_header(header, number % SLOTS, to)
            chunk = data[start : start + CHUNK_BYTES]
            np.copyto(ring[number % SLOTS][: chunk.size], chunk)
            self._sent[to] = number + 1
            board.publish(sent(to), number + 1)

    def recv(self, source: int, header: bytes, into: Array) -> None:
        ring, board = self._pair_slots(source, self._me), self._board
        board.begin(b"recv%s from %s" % (_arguments(header), str(board.members[source]).encode()))
        for start in _starts(into.size):
            number = self._taken[source]
            board.wait(source, sent(self._me), number + 1)
            if start == 0:
                self._compare_header(header, source, number % SLOTS, self._me)
            chunk = into[start : start + CHUNK_BYTES]
            np.copyto(chunk, ring[number % SLOTS][: chunk.size])
            self._taken[source] = number + 1
            board.publish(taken(source), number + 1)

    def close(self) -> None:
        """Let go of the memory, so that the board can free it."""
        self._slots.clear()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _await_slot(self, step: int) -> None:
        for rank in self._board.others:
            self._board.wait(rank, DONE, step - SLOTS + 1)

    def _read(self, call: _Call, number: int, step: Step, header: bytes) -> None:
        at = self._step + number
        for rank in self._board.others:
            self._board.wait(rank, WRITTEN, at + 1)
            if number == 0:
                self._compare_header(header, rank, at % SLOTS, None)
        if step.fold is not None and step.fold.ahead:
            self._await_slot(at + step.fold.ahead)
        call.read(number, step)
        self._board.publish(DONE, at + 1)

    # --- headers ------------------------------------------------------------------------------------------------------

    def _write_header(self, header: bytes, slot: int, to: int | None) -> None:
        start = self._board.layout.header(slot, to)
        self._board.maps[self._me][start : start + HEADER_BYTES] = header

    def _compare_header(self, header: bytes, rank: int, slot: int, to: int | None) -> None:
        start = self._board.layout.header(slot, to)
        theirs = self._board.maps[rank][start : start + HEADER_BYTES]
        if theirs != header:
            raise mismatch(self._board.members[self._me], header, self._board.members[rank], theirs)

    # --- memory -------------------------------------------------------------------------------------------------------

    def _slots_of(self, dtype: np.dtype[Any]) -> list[list[Array]]:
        found = self._slots.get(dtype)
        if found is None:
            room = CHUNK_BYTES // dtype.itemsize
            found = self._slots[dtype] = [
                [np.frombuffer(each, dtype, room, self._board.layout.slot(slot)) for slot in range(SLOTS)]
                for each in self._board.maps
            ]
        return found

    def _pair_slots(self, source: int, to: int) -> list[Array]:
        layout = self._board.layout
        memory = self._board.maps[source]
        return [np.frombuffer(memory, np.uint8, CHUNK_BYTES, layout.slot(slot, to)) for slot in range(SLOTS)]


class _Call:
    """The arrays of one operation and what its steps do to them."""

    def __init__(
        self,
        board: Board,
        slots: list[list[Array]],
        first: int,
        sources: Sequence[Array],
        targets: Sequence[Array],
        combine: Combine | None,
    ) -> None:
        self._board, self._slots, self._first = board, slots, first
        self._sources, self._targets, self._combine = sources, targets, combine

    def write(self, number: int, step: Step) -> None:
        """Fill this rank's slot of a step, and say so."""
        at = self._first + number
        slot = self._slots[self._board.me][at % SLOTS]
        for part, start, stop, offset in step.puts:
            np.copyto(slot[offset : offset + stop - start], self._sources[part][start:stop])
        self._board.publish(WRITTEN, at + 1)

    def read(self, number: int, step: Step) -> None:
        """Take from the slots of a step what this rank wants; all have written theirs."""
        at = self._first + number
        for rank, (part, start, stop, offset) in step.takes:
            np.copyto(self._targets[part][start:stop], self._slots[rank][at % SLOTS][offset : offset + stop - start])
        if step.fold is not None:
            offset, size, start, ahead = step.fold
            if ahead:
                into = self._slots[self._board.me][(at + ahead) % SLOTS][offset : offset + size]
            else:
                into = self._targets[0][start : start + size]
            pieces = [ranks[at % SLOTS][offset : offset + size] for ranks in self._slots]
            self._fold(pieces, into)

    def _fold(self, pieces: list[Array], into: Array) -> None:
        if len(pieces) == 1:
            np.copyto(into, pieces[0])
            return
        assert self._combine is not None
        self._combine(pieces[0], pieces[1], into)
        for piece in pieces[2:]:
            self._combine(into, piece, into)


def make_header(text: str) -> bytes:
    """What a rank calls, in words, as bytes of a fixed size. Two headers are equal if and only if the calls agree."""
    raw = text.encode()
    if len(raw) > HEADER_BYTES:
        import hashlib

        digest = hashlib.blake2b(raw, digest_size=16).hexdigest().encode()
        raw = raw[: HEADER_BYTES - len(digest) - 4] + b"... " + digest
    return raw.ljust(HEADER_BYTES, b"\0")


def mismatch(me: object, mine: bytes, other: object, theirs: bytes) -> MismatchError:
    """The error of two ranks that called different things."""
    calls = [
        f"{who} called {raw.rstrip(bytes(1)).decode(errors='replace')}" for who, raw in ((me, mine), (other, theirs))
    ]
    return MismatchError(
        compose(
            "two ranks called different operations.",
            why="\n        ".join(calls),
            next="let all ranks call the same operations in the same order, with arrays of the same shape and dtype; "
            "then destroy the group and make it again.",
        )
    )


def _arguments(header: bytes) -> bytes:
    return header[header.index(b"(") :].rstrip(b"\0")


def _starts(size: int) -> Iterator[int]:
    """Where chunks begin; there is at least one."""
    return iter(range(0, max(size, 1), CHUNK_BYTES))
