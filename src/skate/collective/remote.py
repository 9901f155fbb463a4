"""The path between machines: stream sockets between the ranks of different nodes.

Two kinds of connections, both made by the node daemons (`skate.connections`):

    life   between a leader and every rank of another node, both ways: nothing is said on it but, at the end, that the
           rank leaves, or why the group is broken. An end without a word is the death of the rank.
    data   from one rank to another, made when the first data goes that way: bytes without any frame, because both sides
           know how many come next.
    pair   the same for `send` and `recv` of the program, which may be called before and behind collective operations.

The kernel ends the connections of a process that dies, so the ranks that wait for it see that at once. A node that
falls silent (its cable is cut) ends no connection. So a rank that waits also looks whether the cluster has declared
the nodes of the others dead, which takes it about four seconds.

The first word on a connection is who speaks and which kind it is. A rank accepts connections when it waits for data or
looks at the others: no thread is needed, and a rank that is busy with something else is still reachable.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import skate
from skate.collective.between import Guard, Member, leaders
from skate.collective.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    RankDiedError,
    RankLeftError,
    compose,
    unpack,
)
from skate.collective.flow import Combine, Ended, Incoming, Outgoing, flow
from skate.collective.ring import Chunk, make_plan
from skate.collective.types import ReduceOp
from skate.connections import Address, Listener

__all__ = ["Remote"]

Array = NDArray[Any]

#: A chunk of the ring: large enough that few waits are needed, and what is combined is still in a cache.
CHUNK_BYTES = 1 << 20
#: Up to this size every leader sends its whole array to every other one: one hop instead of 2(n-1).
SMALL_BYTES = 16 << 10
#: The first word on a connection: the kind, and the rank that speaks.
HELLO = struct.Struct("<cxxxI")
LIFE, DATA, PAIR = b"L", b"D", b"P"
#: The last word on a connection of the kind LIFE.
LEFT, BROKEN = b"l", b"b"
REASON_BYTES_MAX = 8000
#: How long a wait lasts before the ranks of this node are looked at, and how often that is done for other nodes.
LOOK_S = 0.25
NODES_S = 0.5
#: How long the last word of a rank may take after the end of its data.
LAST_WORD_S = 1.0
#: How long a rank whose node lives may be out of reach when a connection to it is made.
REACHED_WITHIN_S = 10.0
AGAIN_S = 0.1
#: What a refusal says when there is nothing to wait for.
GONE = ("has ended", "has stopped accepting", "not part of the cluster", "joined with skate://")

COMBINE: dict[ReduceOp, Combine] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


class Remote:
    """One rank's connections to other nodes; see `Between` for the promises of each method."""

    def __init__(
        self, me: int, members: Sequence[Member], listener: Listener, contacts: Sequence[Address], guard: Guard
    ) -> None:
        """Take this rank's listener and the addresses of the listeners of all ranks; `connect` has to follow."""
        self._members = {member.rank: member for member in members}
        self._me = self._members[me]
        self._guard = guard
        self._leaders = leaders(members)
        self._listener = listener
        self._contacts = contacts
        #: Connections that have been accepted and have not said yet whose they are.
        self._strangers: list[socket.socket] = []
        self._life: dict[int, socket.socket] = {}
        #: Two ranks call each other. A rank listens on one of the connections, says its last word on both, and keeps
        #: both open, because the end of one would look like its death.
        self._spare: list[socket.socket] = []
        #: Those that carry data, by their kind and the rank at the other end.
        self._to: dict[tuple[bytes, int], socket.socket] = {}
        self._from: dict[tuple[bytes, int], socket.socket] = {}
        #: What a rank said last, for those that said something.
        self._last_words: dict[int, tuple[bytes, bytes]] = {}
        self._ended: set[int] = set()
        self._looked_at_nodes = time.monotonic()
        self.closed = False

    def connect(self) -> None:
        """Make the connections by which ranks on other nodes hear of each other's end.

        Both ranks of a pair make one, so that neither can end unheard before the other has called it.
        """
        is_leader = self._me.rank in self._leaders
        for rank, member in self._members.items():
            if member.node_id != self._me.node_id and (is_leader or rank in self._leaders):
                try:
                    self._watch(rank)
                except RankLeftError:  # so soon; it is an error for those that wait for it
                    self._last_words[rank] = (LEFT, b"")

    # --- operations ---------------------------------------------------------------------------------------------------

    def send(self, to_rank: int, data: Array, *, pair: bool = False) -> None:
        """Send bytes to a rank; returns when the kernel has them."""
        kind = PAIR if pair else DATA
        if data.size and (kind, to_rank) not in self._to:
            self._watch_once(to_rank)
        self._move({to_rank: data}, {}, kind)

    def recv(self, from_rank: int, into: Array, *, pair: bool = False) -> None:
        """Receive as many bytes as `into` has."""
        kind = PAIR if pair else DATA
        if into.size:
            if (kind, from_rank) not in self._from:
                self._watch_once(from_rank)
            self._await_data_from(from_rank, kind)
        self._move({}, {from_rank: into}, kind)

    def exchange(self, to_rank: int, data: Array, from_rank: int, into: Array) -> None:
        """Send and receive at the same time."""
        self._move({to_rank: data}, {from_rank: into})

    def allreduce(self, data: Array, op: ReduceOp) -> None:
        """Reduce among the leaders, in place, in an order that depends on nothing but their ranks."""
        combine = COMBINE[op]
        others = [rank for rank in self._leaders if rank != self._me.rank]
        if not others or not data.size:
            return
        if data.nbytes <= SMALL_BYTES:
            parts = {rank: np.empty_like(data) for rank in others}
            self._move(dict.fromkeys(others, data), parts)
            parts[self._me.rank] = data.copy()
            np.copyto(data, parts[self._leaders[0]])
            for rank in self._leaders[1:]:
                combine(data, parts[rank], data)
            return
        count, position = len(self._leaders), self._leaders.index(self._me.rank)
        plan = make_plan(position, count, data.size, max(1, CHUNK_BYTES // data.itemsize))
        right, left = self._leaders[(position + 1) % count], self._leaders[position - 1]
        to_right, from_left = self._data_to(right), self._await_data_from(left)
        outgoing = Outgoing(to_right, data, plan.sends)
        incoming = Incoming(from_left, data, plan.receives, plan.combined, combine)
        outgoing.allowed = plan.may_send(0)

        def pace() -> None:
            outgoing.allowed = plan.may_send(incoming.received)

        self._flow([outgoing], [incoming], pace)

    def _move(self, data: dict[int, Array], into: dict[int, Array], kind: bytes = DATA) -> None:
        """Send whole arrays to some ranks while others arrive."""
        outs = [Outgoing(self._data_to(rank, kind), each, _whole(each)) for rank, each in data.items() if each.size]
        ins = [
            Incoming(self._await_data_from(rank, kind), each, _whole(each)) for rank, each in into.items() if each.size
        ]
        self._flow(outs, ins)

    def _flow(self, outs: list[Outgoing], ins: list[Incoming], pace: Any = lambda: None) -> None:
        try:
            flow(outs, ins, self._wait, pace)
        except Ended as end:
            rank = next(
                rank for each in (self._to, self._from) for (_, rank), sock in each.items() if sock.fileno() == end.fd
            )
            raise self._error_after_end(rank) from None

    # --- connections --------------------------------------------------------------------------------------------------

    def _data_to(self, rank: int, kind: bytes = DATA) -> socket.socket:
        sock = self._to.get((kind, rank))
        if sock is None:
            sock = self._to[kind, rank] = self._call(rank, kind)
        return sock

    def _await_data_from(self, rank: int, kind: bytes = DATA) -> socket.socket:
        """The connection over which a rank sends its data, when that rank has made it."""
        while (kind, rank) not in self._from:
            self._accept()
            if (kind, rank) not in self._from:
                if self._has_left(rank):
                    raise self._left(rank)
                self._wait([self._listener], [])
        return self._from[kind, rank]

    def _watch(self, rank: int) -> None:
        """Make the connection that ends with a rank."""
        sock = self._call(rank, LIFE)
        if rank in self._life:
            self._spare.append(sock)
        else:
            self._life[rank] = sock

    def _watch_once(self, rank: int) -> None:
        """Two ranks that are no leaders hear of each other's end only if they make the connection for it."""
        if rank not in self._life and rank not in self._last_words:
            self._accept()
            if rank not in self._life:
                self._watch(rank)

    def _call(self, rank: int, kind: bytes) -> socket.socket:
        deadline = time.monotonic() + REACHED_WITHIN_S
        while True:
            try:
                sock = self._contacts[rank].connect()
                sock.sendall(HELLO.pack(kind, self._me.rank))
            except (OSError, TimeoutError) as error:
                why = str(error).split("\n  why:  ")[-1].split("\n")[0]
                self._guard()
                self.check()
                if self._has_left(rank) or "has closed it" in why:
                    raise self._left(rank) from None
                if "may open no more files" in why:
                    raise CollectiveError(
                        compose(f"{self._me} cannot connect to {self._members[rank]}.", why=why)
                    ) from None
                if any(words in why for words in GONE):
                    raise self._died(rank, why) from None
                if time.monotonic() > deadline:
                    raise CollectiveTimeoutError(
                        compose(f"{self._me} did not reach {self._members[rank]} in {REACHED_WITHIN_S:g} s.", why=why)
                    ) from None
                time.sleep(AGAIN_S)  # its node may be out of reach for a moment
            else:
                sock.setblocking(False)
                return sock

    def _accept(self) -> None:
        """Take the connections that other ranks have made meanwhile, and hear whose they are."""
        while True:
            try:
                sock = self._listener.accept(timeout=0)
            except (BlockingIOError, TimeoutError):
                break
            except OSError as error:
                if "daemon has ended" not in str(error):
                    raise
                # This process ends with its node, in a moment.
                raise self._died(self._me.rank, "the daemon of its node has ended") from None
            sock.setblocking(False)
            self._strangers.append(sock)
        strangers, self._strangers = self._strangers, []
        for sock in strangers:
            if (hello := _peek(sock, HELLO.size)) is None:
                self._strangers.append(sock)
            elif len(hello) < HELLO.size:  # it has died, which is heard on its other connections
                sock.close()
            else:
                sock.recv(HELLO.size)
                self._note(sock, *HELLO.unpack(hello))

    def _note(self, sock: socket.socket, kind: bytes, rank: int) -> None:
        if kind != LIFE:
            self._from[kind, rank] = sock
        elif rank not in self._life:
            self._life[rank] = sock
        else:
            self._spare.append(sock)

    # --- waiting, and the end of others -------------------------------------------------------------------------------

    def _wait(self, readable: list[Any], writable: list[Any]) -> None:
        """Return when one of these sockets is ready; raise when a rank died, left or broke the group."""
        poll = select.poll()
        for sock in readable:
            poll.register(sock.fileno(), select.POLLIN)
        for sock in writable:
            poll.register(sock.fileno(), select.POLLOUT)
        wanted = {sock.fileno() for sock in (*readable, *writable)}
        for rank, sock in self._life.items():
            if rank not in self._ended:
                poll.register(sock.fileno(), select.POLLIN)
        for stranger in self._strangers:
            poll.register(stranger.fileno(), select.POLLIN)
        poll.register(self._listener.fileno(), select.POLLIN)
        while True:
            events = {fd for fd, _ in poll.poll(LOOK_S * 1000)}
            if events & wanted:
                return
            self.check()
            if events:
                return
            self._guard()

    def check(self) -> None:
        """Raise if a rank on another node has died or broken the group. It does not wait."""
        self._accept()
        for rank in list(self._life):
            self._hear(rank)
        for rank, (word, reason) in self._last_words.items():
            if word == BROKEN:
                raise unpack(reason)
            if word != LEFT:
                raise self._died(rank, "its connection ended")
        self._look_at_nodes()

    def _hear(self, rank: int) -> None:
        """Read the last word of a rank, if it has come."""
        if rank in self._ended:
            return
        try:
            said = self._life[rank].recv(REASON_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""
        self._ended.add(rank)
        self._last_words[rank] = (said[:1], said[1:])

    def _error_after_end(self, rank: int) -> CollectiveError:
        """The data of a rank has ended; its last word, if it had one, is on its way or here."""
        deadline = time.monotonic() + LAST_WORD_S
        while rank in self._life and rank not in self._ended and time.monotonic() < deadline:
            select.select([self._life[rank]], [], [], 0.05)
            self._hear(rank)
        try:
            self.check()
        except CollectiveError as error:
            return error
        return self._left(rank) if self._has_left(rank) else self._died(rank, "its connection ended")

    def _look_at_nodes(self) -> None:
        """Raise if the cluster has declared the node of a rank dead."""
        now = time.monotonic()
        if now - self._looked_at_nodes < NODES_S:
            return
        self._looked_at_nodes = now
        alive = {node["NodeID"] for node in skate.nodes() if node["Alive"]}
        for rank, member in self._members.items():
            if member.node_id not in alive and member.node_id != self._me.node_id:
                raise self._died(rank, "its node is dead or cut off from the cluster")

    def _has_left(self, rank: int) -> bool:
        return self._last_words.get(rank, (b"", b""))[0] == LEFT

    def _left(self, rank: int) -> RankLeftError:
        return RankLeftError(
            compose(
                f"{self._members[rank]} has left the group.",
                why="it called destroy_collective_group(), or could not join",
            )
        )

    def _died(self, rank: int, why: str) -> RankDiedError:
        member = self._members[rank]
        return RankDiedError(
            compose(f"{member} died.", why=why),
            rank=rank,
            pid=member.pid,
            node_id=member.node_id,
            actor_id=member.actor_id,
        )

    # --- the end ------------------------------------------------------------------------------------------------------

    def abort(self, error: CollectiveError) -> None:
        """Tell the ranks of other nodes that the group is broken."""
        self._say(BROKEN + error.pack()[: REASON_BYTES_MAX - 1])

    def close(self, *, as_dead: bool = False) -> None:
        """The others hear that this rank has left, or take it for dead, when they next wait for it."""
        if self.closed:
            return
        self.closed = True
        if not as_dead:
            self._say(LEFT)
        for sock in (*self._life.values(), *self._spare, *self._to.values(), *self._from.values(), *self._strangers):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)  # a child that was forked may have it open, too
            sock.close()
        self._listener.close()

    def _say(self, word: bytes) -> None:
        """Say the last word on every connection of the kind LIFE. What was said before stays the last."""
        with contextlib.suppress(OSError):
            self._accept()
        for sock in (*self._life.values(), *self._spare, *self._strangers):
            with contextlib.suppress(OSError):
                sock.send(word)
                sock.shutdown(socket.SHUT_WR)


def _whole(data: Array) -> list[Chunk]:
    return [Chunk(0, data.size)]


def _peek(sock: socket.socket, size: int) -> bytes | None:
    """The next bytes, which stay; None if they have not come, and too few if the connection has ended."""
    try:
        data = sock.recv(size, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""
    return data if len(data) == size or not data else None
