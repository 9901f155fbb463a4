"""Sockets, loops and a disk for one thread: the real `Link` and `LastingChannel` run over them, and do not notice.

    node's Link ──bytes──▶ Wire ──a little later──▶ the service's Link        a Wire that breaks loses what is under way

Played: what the kernel does with bytes, timers and files. A process that is killed runs no timer and reads nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from network import Clockwork

from skate._control.storage.admission import Admission
from skate._control.storage.interface import LAZY_S, Delete, Done, Meta, Operation, Put
from skate._wire.loop import READ, Timer

if TYPE_CHECKING:
    from control_world import World

#: How long bytes are on their way.
DELAY_S = (0.0002, 0.004)


class Crash(BaseException):
    """The process is killed here and now."""


class SimLoop:
    """The event loop of one process."""

    def __init__(self, clock: Clockwork, on_crash: Callable[[], None] = lambda: None) -> None:
        self.clock = clock
        self.is_over = False
        self._on_crash = on_crash
        self._callbacks: dict[int, Callable[[int], None]] = {}

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        self._callbacks[fd] = callback

    def watches(self, fd: int) -> bool:
        return not self.is_over and fd in self._callbacks

    def unwatch(self, fd: int) -> None:
        self._callbacks.pop(fd, None)

    def watch_writing(self, fd: int, wanted: bool) -> None:
        """A socket here takes everything."""

    def watch_channel(self, channel: Any, on_readable: Callable[[], None]) -> None:
        fd = channel.fileno()
        self.watch(fd, lambda events: on_readable())
        if channel.sock.has_something:
            self.clock.after(0.0, channel.sock.wake)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action)

        def fire() -> None:
            if timer.action is not None:
                self.do(timer.action)

        self.clock.after(max(0.0, when - self.clock.now), fire)
        return timer

    def wake(self, fd: int) -> None:
        callback = self._callbacks.get(fd)
        if callback is not None:
            self.do(lambda: callback(READ))

    def do(self, action: Callable[[], None]) -> None:
        if self.is_over:
            return
        try:
            action()
        except Crash:
            self._on_crash()


class SimSocket:
    """One end of a wire."""

    _numbers = itertools.count(1000)

    def __init__(self, wire: Wire, loop: SimLoop) -> None:
        self.wire = wire
        self.loop = loop
        self.number = next(self._numbers)
        self.inbox = bytearray()
        self.is_closed = False
        self.has_ended = False

    @property
    def has_something(self) -> bool:
        return bool(self.inbox) or self.has_ended

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        return -1 if self.is_closed else self.number

    def getpeername(self) -> str:
        return ""

    def send(self, data: Any) -> int:
        if self.is_closed:
            raise OSError("it is closed")
        self.wire.carry(self, bytes(data))
        return len(data)

    def recv_into(self, buffer: bytearray) -> int:
        if self.is_closed:
            raise OSError("it is closed")
        if self.inbox:
            size = min(len(buffer), len(self.inbox))
            buffer[:size] = self.inbox[:size]
            del self.inbox[:size]
            return size
        if self.has_ended:
            return 0
        raise BlockingIOError

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.wire.closed_by(self)

    def arrive(self, data: bytes) -> None:
        """An empty message is the end."""
        if not self.is_closed:
            self.inbox += data
            self.has_ended |= not data
            self.wake()

    def wake(self) -> None:
        """Until all is read, the end included, as with a level-triggered epoll."""
        self.loop.wake(self.number)
        if self.has_something and not self.is_closed and self.loop.watches(self.number):
            self.loop.clock.after(0.0001, self.wake)


class Wire:
    """A connection between two processes."""

    def __init__(self, clock: Clockwork, first: SimLoop, second: SimLoop) -> None:
        self._clock = clock
        self.ends = (SimSocket(self, first), SimSocket(self, second))
        #: For each direction when the last bytes arrive, and from when on none do.
        self._last = [0.0, 0.0]
        self._lost_after = [float("inf"), float("inf")]

    def carry(self, sender: SimSocket, data: bytes) -> None:
        way = 0 if sender is self.ends[0] else 1
        at = self._last[way] = max(self._last[way], self._clock.now + self._clock.random.uniform(*DELAY_S))
        receiver = self.ends[1 - way]

        def deliver() -> None:
            if self._clock.now <= self._lost_after[way]:
                receiver.arrive(data)

        self._clock.after(at - self._clock.now, deliver)

    def slow(self, seconds: float) -> None:
        """What the first end says from now on takes so long."""
        self._last[0] = max(self._last[0], self._clock.now + seconds)

    def closed_by(self, sender: SimSocket) -> None:
        """The other end reads what was sent before, and then the end."""
        self.carry(sender, b"")

    def broken(self, *, is_seen: bool = True) -> None:
        """Of what is under way some arrives, in order. Both ends see the end, unless a machine is just gone."""
        for way, receiver in enumerate(reversed(self.ends)):
            end = self._clock.now + self._clock.random.choice((0.0, self._clock.random.uniform(0, DELAY_S[1])))
            self._lost_after[way] = min(self._lost_after[way], end)
            if is_seen:
                delay_s = end - self._clock.now + self._clock.random.choice((0.0, 0.001, 0.05))
                self._clock.after(delay_s, lambda receiver=receiver: receiver.arrive(b""))


class SimDial:
    """Takes the place of `gate.Dial`."""

    world: World

    def __init__(
        self, loop: SimLoop, host: str, port: int, token: bytes, on_done: Callable[[Any, str], None], tls: Any = None
    ) -> None:
        self._is_over = False

        def answered() -> None:
            if not self._is_over:
                self._is_over = True
                sock = self.world.connected(loop, host)
                loop.do(lambda: on_done(sock, "" if sock is not None else "refused"))

        loop.clock.after(self.world.random.uniform(0.001, 0.01), answered)

    def cancel(self) -> None:
        self._is_over = True


class SimDisk:
    """What is left of a storage when its service was killed. Rows lie on shards, each of which has its own time."""

    def __init__(self, world: World, shards: int, write_s: tuple[float, float]) -> None:
        self.world = world
        self.write_s = write_s
        self.incarnation = 0
        self.shards = [Shard(self) for _ in range(shards)]
        self.storage: SimStorage | None = None

    def opened(self, loop: SimLoop) -> SimStorage:
        self.incarnation += 1
        self.storage = SimStorage(self, loop)
        return self.storage

    def crash(self) -> None:
        """The service is gone. What no shard has written may be written or not, on each in its order."""
        if self.storage is not None:
            self.storage.is_dead = True
            self.storage = None
        for shard in self.shards:
            shard.crash(self.world.random.choice((0, 0, len(shard.waiting), len(shard.waiting) // 2)))

    def shard_of(self, operation: Operation) -> Shard:
        return self.shards[crc32(operation.table.encode() + b"\0" + operation.key) % len(self.shards)]

    def rows(self, table: str) -> list[tuple[bytes, bytes]]:
        return sorted((key, row) for shard in self.shards for (of, key), row in shard.rows.items() if of == table)


class Shard:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.rows: dict[tuple[str, bytes], bytes] = {}
        #: The operations of each batch that it has not written.
        self.waiting: list[tuple[int, list[Operation]]] = []
        self._is_writing = False

    def write(self, number: int, operations: list[Operation], *, lazy: bool) -> None:
        self.waiting.append((number, operations))
        self._begin(LAZY_S if lazy else 0.0)

    def _begin(self, pause_s: float) -> None:
        """All that waits by then is written together."""
        if not self._is_writing:
            self._is_writing = True
            delay_s = pause_s + self._disk.world.random.uniform(*self._disk.write_s)
            storage = self._disk.storage
            self._disk.world.clock.after(delay_s, lambda: self._written(storage))

    def _written(self, storage: SimStorage | None) -> None:
        if storage is None or storage is not self._disk.storage:
            return
        self._is_writing = False
        self.apply(len(self.waiting))
        world = self._disk.world
        # Rows of what many tables have to do with, such as the death of a node.
        if world.crashes_between and sum(bool(shard.waiting) for shard in self._disk.shards) > 1:
            world.crashes_between = False
            world.crash()
        else:
            storage.collect()

    def crash(self, survive: int) -> None:
        self.apply(survive)
        self.waiting.clear()
        self._is_writing = False

    def apply(self, count: int) -> None:
        for _, operations in self.waiting[:count]:
            for operation in operations:
                if isinstance(operation, Put):
                    self.rows[operation.table, operation.key] = operation.value
                else:
                    assert isinstance(operation, Delete)
                    self.rows.pop((operation.table, operation.key), None)
        del self.waiting[:count]


class SimStorage:
    """The disk as one service has it open."""

    trouble = None

    def __init__(self, disk: SimDisk, loop: SimLoop) -> None:
        self._disk = disk
        self._loop = loop
        self._fd = next(SimSocket._numbers)
        self._admission = Admission()
        self._done: list[Done] = []
        self._reported = 0
        self.is_dead = False
        self.meta = Meta("sim", disk.incarnation, 1, 0.0)

    def fileno(self) -> int:
        return self._fd

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self.is_dead:
            return 0
        self._disk.world.crash_point()
        number = self._admission.admit(batch)
        parts: dict[int, list[Operation]] = {}
        for operation in batch:
            parts.setdefault(self._disk.shards.index(self._disk.shard_of(operation)), []).append(operation)
        for shard, operations in parts.items():
            self._disk.shards[shard].write(number, operations, lazy=lazy)
        return number

    def collect(self) -> None:
        waiting = [shard.waiting[0][0] for shard in self._disk.shards if shard.waiting]
        durable = min(waiting, default=self._admission.written + 1) - 1
        for number in range(self._reported + 1, durable + 1):
            self._done.append(Done(number, ()))
            self._reported = number
        if self._done:
            self._loop.clock.after(0.0, lambda: self._loop.wake(self._fd))

    def completed(self) -> list[Done]:
        done, self._done = self._done, []
        for end in done:
            self._admission.collect(end.number)
        return done

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(self._disk.rows(table))

    def tables(self) -> list[str]:
        return sorted({table for shard in self._disk.shards for table, _ in shard.rows})

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        """A service that is killed closes nothing."""
