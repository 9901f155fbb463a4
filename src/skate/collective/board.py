"""The memory that ranks of one node share, and waiting for words in it.

Each rank makes one piece of memory without a name (a memfd) and one socket pair, and gives the memory and one end of
the pair to the others, as `Descriptor`s. A rank writes only its own memory. It waits for a word of another rank by
looking at it for at most 50 µs (only if every rank can have a core), and then in the kernel, at its end of the pair:
the others send a byte there if the rank has said in ASLEEP that it waits for the word that they have just written.
The kernel closes that end when the rank's process ends, whatever ends it, and the others see this at once. A child that
was forked from the rank may hold the end open, therefore the process itself is watched too, where the kernel can
(pidfd).

Why plain loads and stores of 8-byte words are enough:

- A word is aligned, and is written by one rank. Indexing a memoryview of format "Q" moves 8 bytes with one instruction,
  on x86-64 as on aarch64. So a reader sees the old or the new value, and counters only grow: a stale one costs time.
- Data before counter: x86-64 keeps the order of stores, and that of loads. aarch64 keeps neither; there each counter is
  stored after `_fence` and data is read after one.
- No rank misses the last store: the one that waits stores ASLEEP and then looks at the word; the other one stores
  the word and then looks at ASLEEP. Even x86-64 lets a load overtake an earlier store, so both have a fence in between.

`_fence` is the release of a lock followed by its acquisition. Accesses before a release are not moved behind it, those
after an acquisition not before it, and these two are not exchanged. On x86-64 both are locked instructions.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence

from skate.collective.between import Guard, Member
from skate.collective.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    MismatchError,
    RankDiedError,
    RankLeftError,
    compose,
    unpack,
)
from skate.collective.layout import (
    ASLEEP,
    CALLS,
    HEADER_BYTES,
    PAGE_BYTES,
    READY,
    STATE,
    TEXT_BYTES,
    WORD_BYTES,
    Awaited,
    Layout,
    State,
)
from skate.descriptors import Descriptor

SPIN_NS = 50_000

#: How long a wait in the kernel lasts before it is begun again. A rank of this node that wakes this one, or ends, ends
#: it at once. This is for ranks on other nodes, and for a Ctrl-C that comes between the interpreter's last look at
#: signals and the wait.
LOOK_S = 1.0

ORDERED = platform.machine().lower() in ("x86_64", "amd64", "i686")


class Board:
    """The memory of all ranks of one node, seen by one of them. Ranks are numbered within the node here."""

    def __init__(
        self, me: int, members: Sequence[Member], layout: Layout, memories: Sequence[int], bells: Sequence[int]
    ) -> None:
        """Map the memory of each rank, and own the descriptors; `bells[me]` is the end that only this rank has."""
        self.me = me
        self.members = members
        self.layout = layout
        self.others = [rank for rank in range(len(members)) if rank != me]
        self.maps = [mmap.mmap(fd, self.layout.size) for fd in memories]
        self._words = [memoryview(each)[: self.layout.texts].cast("Q") for each in self.maps]
        self._own = self._words[me]
        self._bells = [socket.socket(fileno=fd) for fd in bells]
        self._watched: dict[int, int] = {}  # descriptor → rank: it is readable, or hung up, when the rank is gone
        self._pidfds: list[int] = []
        self._poll = select.poll()
        self._bell_fd = bells[me]
        self._poll.register(self._bell_fd, select.POLLIN)
        for rank in self.others:
            self._watch(bells[rank], rank, 0)
            with contextlib.suppress(OSError, AttributeError):
                self._pidfds.append(os.pidfd_open(members[rank].pid))
                self._watch(self._pidfds[-1], rank, select.POLLIN)
        self._gone: set[int] = set()
        self._fence_lock = threading.Lock()
        self._fence_lock.acquire()
        self._spins = len(os.sched_getaffinity(0)) >= len(members)
        self.calls = 0
        #: What the rank has called, as errors say it.
        self.doing = b""
        #: Looks at ranks on other nodes; set if there are any.
        self.look_abroad: Guard | None = None
        self.timeout_s: float | None = None
        self.closed = False
        for fd in memories:  # last, because they are the caller's if anything above fails
            os.close(fd)

    # --- words --------------------------------------------------------------------------------------------------------

    def publish(self, word: int, value: int) -> None:
        """Set a word of this rank, after all that it has written before, and wake those who wait for it."""
        if not ORDERED:
            self._fence()
        self._own[word] = value
        self._fence()
        for rank in self.others:
            packed = self._words[rank][ASLEEP]
            if packed and packed & 0x3FF == self.me + 1:
                awaited = Awaited.unpack(packed)
                if self._own[awaited.word] >= awaited.value:
                    self._ring(rank)

    def wait(self, rank: int, word: int, value: int) -> None:
        """Return when a word of a rank is at least `value`; what it wrote before that can be read."""
        view = self._words[rank]
        if view[word] < value and not (self._spins and self._spin(view, word, value)):
            self._sleep(rank, word, value)
        if not ORDERED:
            self._fence()

    @staticmethod
    def _spin(view: memoryview, word: int, value: int) -> bool:
        now = time.perf_counter_ns
        end = now() + SPIN_NS
        while now() < end:
            if view[word] >= value:
                return True
        return False

    def _sleep(self, rank: int, word: int, value: int) -> None:
        view = self._words[rank]
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        self._write_text(self.layout.doing, self.doing[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"))
        self._own[ASLEEP] = Awaited(rank, word, value).pack()
        self._fence()
        try:
            while view[word] < value:
                self._raise_if_broken()
                if rank in self._gone and view[word] < value:
                    raise self._error_of(rank)
                self._raise_if_stuck(rank)
                self._listen(self._patience(rank, deadline))
        finally:
            self._own[ASLEEP] = 0

    def _raise_if_stuck(self, rank: int) -> None:
        """Raise if this rank waits for one that waits for one … that waits for this one: none will ever go on.

        They have called different things, for example send in one and barrier in the other. The last of them to fall
        asleep sees all the others asleep. All are looked at a second time, this one too. Words only grow, so a rank
        that lacks the same value both times lacked it in between, and there was a moment at which all of them did.
        """
        sleeping: dict[int, int] = {}
        at = rank
        while at != self.me:
            packed = self._asleep(at)
            if not packed or at in sleeping:
                return
            sleeping[at] = packed
            at = Awaited.unpack(packed).rank
        if self._asleep(self.me) and all(self._asleep(each) == packed for each, packed in sleeping.items()):
            calls = [f"{self.members[each]} waits in {self._doing(each)}" for each in sorted([self.me, *sleeping])]
            raise MismatchError(
                compose(
                    "ranks wait for each other, and none can go on.",
                    why="\n        ".join(calls),
                    next="let all ranks call the same operations in the same order, and one of two ranks receive while "
                    "the other sends; then destroy the group and make it again.",
                )
            )

    def _asleep(self, rank: int) -> int:
        """The word ASLEEP of a rank, if what it waits for has not come; otherwise 0."""
        packed = self._words[rank][ASLEEP]
        if not packed:
            return 0
        self._fence()
        awaited = Awaited.unpack(packed)
        return packed if self._words[awaited.rank][awaited.word] < awaited.value else 0

    def _doing(self, rank: int) -> str:
        start = self.layout.doing
        return self.maps[rank][start : start + HEADER_BYTES].rstrip(b"\0").decode(errors="replace")

    def _write_text(self, at: int, raw: bytes) -> None:
        self.maps[self.me][at : at + len(raw)] = raw

    def _patience(self, rank: int, deadline: float | None) -> float:
        """How long to wait in the kernel, in seconds."""
        if self.look_abroad is not None:
            self.look_abroad()
        if deadline is None:
            return LOOK_S
        left = deadline - time.monotonic()
        if left <= 0:
            raise CollectiveTimeoutError(
                compose(f"{self.members[rank]} did not come within {self.timeout_s:g} s.", why="it is alive, and slow")
            )
        return min(left, LOOK_S)

    def _fence(self) -> None:
        self._fence_lock.release()
        self._fence_lock.acquire()

    # --- life and death -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if a rank of this node has died or broken the group. It does not wait.

        A rank that has left is an error for those who wait for it, and for no others.
        """
        self._listen(0)
        self._raise_if_broken()

    def begin(self, doing: bytes) -> None:
        """Note what the rank calls, and raise if another rank has broken the group."""
        self.doing = doing
        for rank in self.others:
            if self._words[rank][STATE] == State.BROKEN:
                self._raise_what_is_said_by(rank)

    def fail(self, error: CollectiveError) -> None:
        """Tell all ranks of this node that the group is broken, unless this one has said so before."""
        if self.closed or self._own[STATE] != State.ALIVE:
            return
        self._write_text(self.layout.texts, error.pack()[:TEXT_BYTES])
        self._fence_lock = threading.Lock()  # the old one may have been interrupted between release and acquisition
        self._fence_lock.acquire()
        self._fence()
        self._own[STATE] = State.BROKEN
        for rank in self.others:
            self._ring(rank)

    def wait_until_all_have_mapped(self) -> None:
        """Return when every rank of the node has mapped the memory of all."""
        self.publish(READY, 1)
        for rank in self.others:
            self.wait(rank, READY, 1)

    def close(self, *, as_dead: bool = False) -> None:
        """Free the memory and the descriptors. The others see that this rank has left, or take it for dead."""
        if self.closed:
            return
        self.closed = True
        if self._own[STATE] == State.ALIVE and not as_dead:
            self._own[STATE] = State.LEFT
        for view in self._words:
            view.release()
        for each in self.maps:
            with contextlib.suppress(BufferError):  # an error's traceback holds an array; it goes with that
                each.close()
        with contextlib.suppress(OSError):  # a child that was forked may have it open, and hides the end of this number
            self._bells[self.me].shutdown(socket.SHUT_RDWR)
        for bell in self._bells:
            bell.close()
        for fd in self._pidfds:
            os.close(fd)

    def _watch(self, fd: int, rank: int, events: int) -> None:
        self._watched[fd] = rank
        self._poll.register(fd, events)

    def _ring(self, rank: int) -> None:
        # A full socket has enough bytes in it to wake the rank; a closed one belongs to a rank that has gone.
        with contextlib.suppress(OSError):
            self._bells[rank].send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _listen(self, patience_s: float) -> None:
        """Wait in the kernel, and note who has gone."""
        for fd, _ in self._poll.poll(patience_s * 1000):
            if fd == self._bell_fd:
                with contextlib.suppress(BlockingIOError):
                    self._bells[self.me].recv(PAGE_BYTES, socket.MSG_DONTWAIT)
            else:
                self._poll.unregister(fd)
                self._gone.add(self._watched[fd])

    def _raise_if_broken(self) -> None:
        self.begin(self.doing)
        for rank in self._gone:
            left = self._words[rank][STATE] == State.LEFT
            # A rank that ended after its part of this operation takes nothing away from it.
            if not left and self._words[rank][CALLS] <= self.calls:
                raise self._error_of(rank)

    def _raise_what_is_said_by(self, rank: int) -> None:
        self._fence()
        start = self.layout.texts
        raw = bytes(self.maps[rank][start : start + TEXT_BYTES])
        raise unpack(raw.rstrip(b"\0"))

    def _error_of(self, rank: int) -> CollectiveError:
        member = self.members[rank]
        if self._words[rank][STATE] == State.LEFT:
            return RankLeftError(compose(f"{member} has left the group.", why="it called destroy_collective_group()"))
        return RankDiedError.of(member, "its process or its actor has ended")


class Offer:
    """What a rank gives to the others of its node: its memory, and an end of its socket pair."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.memory = Descriptor.memory(layout.size)
        self._mine, theirs = socket.socketpair()
        with theirs:
            self.bell = Descriptor(theirs)

    @property
    def bell_of_mine(self) -> int:
        """The end of the socket pair that the others do not get."""
        return self._mine.fileno()

    def fail(self, error: CollectiveError) -> None:
        """Tell the others, before there is a board, that the group cannot be made."""
        with mmap.mmap(self.memory.fileno(), self.layout.size) as memory:
            raw = error.pack()[:TEXT_BYTES]
            memory[self.layout.texts : self.layout.texts + len(raw)] = raw
            memory[STATE * WORD_BYTES : (STATE + 1) * WORD_BYTES] = State.BROKEN.to_bytes(WORD_BYTES, sys.byteorder)
        self.hand_over()

    def hand_over(self) -> None:
        """Close the rank's own end: a board has a copy of it, or there will be none."""
        self._mine.close()

    def close(self) -> None:
        """Stop giving it, when the others have received it."""
        self.memory.close()
        self.bell.close()
