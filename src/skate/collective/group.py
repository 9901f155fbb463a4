"""One rank's membership in a group: how it joins, its operations on flat memory, and how it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import skate
from skate.collective.across import Across
from skate.collective.between import Between, Member
from skate.collective.board import Board, Offer
from skate.collective.errors import CollectiveError, CollectiveTimeoutError, RankDiedError, compose
from skate.collective.layout import RANKS_MAX, Layout
from skate.collective.local import Array, Local, make_header
from skate.collective.meeting import Meeting, actor_name
from skate.collective.remote import Remote
from skate.collective.tensors import Reduction
from skate.connections import Listener
from skate.exceptions import ActorError, DescriptorError, GetTimeoutError, ObjectLostError, SkateError

__all__ = ["Group", "declare"]

#: How long a rank waits for the end of an earlier group of the same name. Actors whose last handle is dropped take some
#: milliseconds to end, seconds on a busy machine, and often the next ones are made at once.
NAME_IS_FREE_S = 10.0
#: How long rank 0 leaves an earlier group alone, so that it can end, before it asks again to be let in.
ASK_AGAIN_S = 0.5
#: The same for the other ranks.
OTHERS_ASK_AGAIN_S = 2.0


class Group:
    """A group, seen by one of its ranks."""

    def __init__(self, name: str, world: int, rank: int, *, join_timeout_s: float, timeout_s: float | None) -> None:
        """Join: return when all ranks are there and have mapped each other's memory."""
        if not 0 < world <= RANKS_MAX:
            raise ValueError(f"world_size={world!r}: it may be 1 to {RANKS_MAX}.")
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank!r}: it may be 0 to {world - 1}, because world_size={world}.")
        self.name, self.world, self.rank = name, world, rank
        self._lock = threading.RLock()
        self._broken = ""
        self._headers: dict[str, bytes] = {}
        self._between: Between | None = None
        self._across: Across | None = None
        self._board: Board | None = None
        offer, listener = Offer(Layout(world)), None
        self._meeting: Any = None
        try:
            listener = Listener()  # those on other nodes can reach this rank from the moment in which it joins
            self._meeting, self._round, self.members, offers = _join(
                name, world, _myself(rank), offer, listener, join_timeout_s
            )
            self._me = self.members[rank]
            self.node = [each for each in self.members if each.node_id == self._me.node_id]
            self._board = self._map(offers, offer)
            self._local = Local(self._board)
            self._board.wait_until_all_have_mapped()
            if len(self.node) < world:
                contacts = [contact for _, contact in offers]
                between = self._between = Remote(rank, self.members, listener, contacts, self._board.check)
                between.connect()
                self._board.look_abroad = between.check
                self._across = Across(self._me, self.members, self._local, between)
        except BaseException as error:
            self._undo(error, offer)
            raise
        finally:
            if listener is not None and self._across is None:
                listener.close()
            offer.close()
        self._board.timeout_s = timeout_s

    def _undo(self, error: BaseException, offer: Offer) -> None:
        """Free what there is of a group that could not be made, and tell the others why."""
        if not isinstance(error, CollectiveError):
            error = CollectiveError(
                compose(f"{_myself(self.rank)} did not get into group {self.name!r}.", why=str(error))
            )
        if self._board is None:
            offer.fail(error)
        else:
            self._end(error)
        if self._meeting is not None:
            self._meeting.leave.remote(self._round)
            self._meeting = None

    def _map(self, offers: Sequence[Any], mine: Offer) -> Board:
        """Receive the descriptors of the other ranks of this node, and map their memory."""
        memories, bells = [], []
        try:
            for member in self.node:
                if member.rank == self.rank:
                    memories.append(os.dup(mine.memory.fileno()))
                    bells.append(os.dup(mine.bell_of_mine))
                    continue
                try:
                    memory, bell = skate.get(offers[member.rank][0])
                except (DescriptorError, ObjectLostError) as error:
                    why = getattr(error, "why", "") or str(error).split("\n")[0]
                    if isinstance(error, DescriptorError) and "has ended" not in why:
                        what = f"{member} did not get into group {self.name!r}."
                        raise CollectiveError(compose(what, why=why)) from None
                    raise RankDiedError.of(member, why, f" while group {self.name!r} was made") from None
                memories.append(memory.detach())
                bells.append(bell.detach())
            board = Board(self.node.index(self._me), self.node, mine.layout, memories, bells)
        except BaseException:
            for fd in (*memories, *bells):
                with contextlib.suppress(OSError):
                    os.close(fd)
            raise
        mine.hand_over()
        return board

    # --- operations on flat memory ------------------------------------------------------------------------------------

    def run(
        self,
        kind: str,
        text: str,
        sources: Sequence[Array],
        targets: Sequence[Array],
        *,
        root: int = 0,
        reduction: Reduction | None = None,
    ) -> None:
        """Carry out a collective operation. `text` is how errors and headers name it."""
        with self._guarded():
            header = self._header(text)
            if self._across is not None:
                self._across.run(kind, header, sources, targets, root=root, reduction=reduction)
            else:
                combine = None if reduction is None else reduction.combine
                self._local.run(kind, header, sources, targets, root=root, combine=combine)

    def send(self, to: int, text: str, data: Array) -> None:
        with self._guarded():
            (self._across or self._local).send(to, self._header(text), data)

    def recv(self, source: int, text: str, into: Array) -> None:
        with self._guarded():
            (self._across or self._local).recv(source, self._header(text), into)

    def check_other(self, rank: int, what: str) -> None:
        """Refuse a rank that is this one, or that the group does not have."""
        self.check_rank(rank, what)
        if rank == self.rank:
            raise ValueError(f"{what}={rank} is this rank itself in group {self.name!r}: name another one.")

    def check_rank(self, rank: int, what: str) -> None:
        """Refuse a rank that the group does not have."""
        if not isinstance(rank, Integral) or not 0 <= rank < self.world:
            raise ValueError(f"{what}={rank!r}: it may be 0 to {self.world - 1} in group {self.name!r}.")

    def close(self) -> None:
        """Leave the group, and free what this process has of it."""
        if os.getpid() != self._me.pid:  # a child that was forked from the rank: the rank goes on
            return
        with self._lock:
            if self._board is None or self._board.closed:
                return
            self._end(None)
            with contextlib.suppress(SkateError):
                skate.get(self._meeting.leave.remote(self._round), timeout=5)
            self._meeting = None

    def die(self) -> None:
        """Have the other ranks take this one for dead: its actor, or its program, is about to end.

        The process may stay for what others need of it, and then the kernel does not tell them.
        """
        if os.getpid() != self._me.pid:  # a child that was forked from the rank: the rank lives on
            return
        if not self._lock.acquire(blocking=False):  # a thread waits in an operation
            self._tell(RankDiedError.of(self._me, "its actor has ended"))
            return
        try:
            if self._board is not None and not self._board.closed:
                self._end(None, as_dead=True)
            self._meeting = None
        finally:
            self._lock.release()

    def _end(self, error: CollectiveError | None, *, as_dead: bool = False) -> None:
        """Free everything; with an error, tell the other ranks first."""
        assert self._board is not None
        if error is not None:
            self._tell(error)
        self._local.close()
        self._board.close(as_dead=as_dead)
        if self._between is not None:
            self._between.close(as_dead=as_dead)

    def _tell(self, error: CollectiveError) -> None:
        assert self._board is not None
        self._board.fail(error)
        if self._between is not None:
            self._between.abort(error)

    # --- within -------------------------------------------------------------------------------------------------------

    def _header(self, text: str) -> bytes:
        found = self._headers.get(text)
        if found is None:
            if len(self._headers) > 1000:
                self._headers.clear()
            found = self._headers[text] = make_header(text)
        return found

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """One operation: one thread at a time, and whatever interrupts it breaks the group, for all ranks."""
        with self._lock:
            if self._broken:
                raise CollectiveError(f"group {self.name!r} is broken by an earlier error, which was:\n{self._broken}")
            if self._board is None or self._board.closed:
                raise CollectiveError(
                    compose(f"group {self.name!r} was destroyed.", next="join it with init_collective_group().")
                )
            try:
                yield
            except BaseException as error:
                first = error if isinstance(error, CollectiveError) else self._interrupted(error)
                self._broken = str(first)
                self._tell(first)
                raise

    def _interrupted(self, error: BaseException) -> CollectiveError:
        """What the others hear of an exception that ended an operation here."""
        return CollectiveError(
            compose(
                f"{self._me} was interrupted in an operation of group {self.name!r}.",
                why=f"{type(error).__name__}: {error}".removesuffix(": "),
            )
        )


# --- joining ----------------------------------------------------------------------------------------------------------


def declare(name: str, world: int, ranks: dict[str, int], timeout_ms: int) -> tuple[Any, str]:
    """Say which actors, by their ids, are a group. Returns the handle of its meeting, and why not, if so."""
    deadline = time.monotonic() + NAME_IS_FREE_S
    while True:
        meeting: Any = None
        try:
            meeting = _meeting_of(name)
            refused, may_change = skate.get(meeting.declare.remote(world, ranks, timeout_ms))
        except ActorError:  # all ranks have just destroyed an earlier group of this name
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if not may_change or time.monotonic() > deadline:
            return meeting, refused
        meeting = None  # the actors of the earlier group may be ending
        _wait_for_the_name(name, 0, deadline)


def _meeting_of(name: str) -> Any:
    """The handle of the actor of a group, which is made if there is none."""
    actor = skate.remote(num_cpus=0)(Meeting)
    return actor.options(name=actor_name(name), get_if_exists=True).remote()


def _myself(rank: int) -> Member:
    context = skate.get_runtime_context()
    actor_id = context.get_actor_id() or ""
    name = (context.get_task_function_name() or "").rpartition(".")[0] if actor_id else ""
    return Member(rank, context.get_node_id(), os.getpid(), socket.gethostname(), actor_id, name)


def _join(
    name: str, world: int, me: Member, offer: Offer, listener: Listener, timeout_s: float
) -> tuple[Any, int, list[Member], list[Any]]:
    given = skate.put((offer.memory, offer.bell))
    deadline = time.monotonic() + NAME_IS_FREE_S
    while True:
        meeting: Any = None
        try:
            meeting = _meeting_of(name)
            refused, number, found = skate.get(
                meeting.join.remote(me, world, [given, listener.address]), timeout=timeout_s
            )
        except GetTimeoutError:
            raise _too_late(meeting, name, me, timeout_s) from None
        except KeyboardInterrupt:
            if meeting is not None:
                meeting.withdraw.remote(me.rank)
            raise
        except ActorError:
            # Its creator has ended, or all others have just destroyed an earlier group of this name.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if not refused:
            return meeting, number, [member for member, _ in found], [offered for _, offered in found]
        if number == 0 or time.monotonic() > deadline:
            raise ValueError(
                compose(
                    f"{me} cannot join group {name!r}.",
                    why=refused,
                    next="destroy the other group in its ranks first, or take another group_name.",
                )
            )
        meeting = None  # the actors of the earlier group may be ending, and this one with them
        _wait_for_the_name(name, me.rank, deadline)


def _wait_for_the_name(name: str, rank: int, deadline: float) -> None:
    """Wait, without a handle of its meeting, for an earlier group of this name to end.

    The actor that made the meeting does not end while another process has a handle. If all ranks asked again and again
    one of them would always have one, and all would be refused for ever. So rank 0 asks often, and the others rarely.
    """
    pause = ASK_AGAIN_S if rank == 0 else OTHERS_ASK_AGAIN_S
    again = min(deadline, time.monotonic() + pause)
    while time.monotonic() < again and actor_name(name) in skate.util.list_named_actors():
        time.sleep(0.02)


def _too_late(meeting: Any, name: str, me: Member, timeout_s: float) -> CollectiveTimeoutError:
    missing: list[int] = skate.get(meeting.missing.remote(), timeout=5)
    skate.get(meeting.withdraw.remote(me.rank), timeout=5)
    ranks = ", ".join(map(str, missing)) or "none"
    return CollectiveTimeoutError(
        compose(
            f"group {name!r} did not come together within {timeout_s:g} s.",
            why=f"{me} waited for ranks that did not join: {ranks}",
            next="call init_collective_group() in all ranks; a cluster without free CPUs may not have started them.",
        )
    )
