"""The one place of a process where sockets are read, and the hand-over between threads that makes it fast.

Handing a message from one thread to another is the largest cost of a synchronous call, so the thread that waits is the
thread that reads. All sockets are in an inner epoll. The I/O thread sleeps on an outer epoll that holds the inner one,
one-shot. A thread that waits disarms it there (one system call, however many sockets), polls the inner one itself and
arms it again at the end. The I/O thread wakes only when something arrives while nobody waits, and for timers; while a
thread submits task after task, only now and then (`linger`).

    socket ──┐                      ┌── wait(): the waiting thread, while it has nothing else to do
    socket ──┼── inner epoll ───────┤
    socket ──┘                      └── outer epoll ── I/O thread

Waking a core that went idle costs 25-50 µs each way, so a waiting thread looks again for a short while before it
blocks, but only while recent waits were that short: long waits and full machines pay nothing.

Owns:      channels, timers, who reads.
Knows not: what messages mean. `handle(channel, messages)` and `on_closed(channel)` are called with `lock` held.
Invariant: whoever holds `_reading` is the only one that reads sockets and dispatches.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from skate._wire.channel import RECEIVE_BYTES, BadFrame, Channel, ChannelClosed
from skate._wire.loop import POLL_S_MAX
from skate._wire.messages import AnyMessage
from skate._worker.interrupt import guard_new_handlers

ARMED = select.EPOLLIN | select.EPOLLONESHOT
#: How long a waiting thread looks again before it blocks, in seconds, and how long a wait may be to count as short:
#: longer than a round trip between cores that fell asleep (200 µs here), or nobody would ever begin to look.
SPIN_S = 50e-6
SHORT_WAIT_S = 300e-6
#: Period of the housekeeping call while there is anything to keep house for.
TICK_S = 0.25
TICKS_BEFORE_SLEEP = 4
#: How long what arrives may wait while a thread submits one task after the other.
LINGER_S = 0.005
#: Reads of all sockets in a row then: a burst of large results must not wait for a time each.
LATE_READS_MAX = 64
STOP_TIMEOUT_S = 2.0

Handler = Callable[[Channel, list[AnyMessage]], None]


class Loop:
    """Reads all sockets of one process; see the module's docstring."""

    def __init__(self, handle: Handler, on_closed: Callable[[Channel], None], tick: Callable[[], bool]) -> None:
        #: Guards all state that messages change. Held while they are handled, and briefly by callers.
        self.lock = threading.RLock()
        self._handle = handle
        self._on_closed = on_closed
        #: Housekeeping; returns whether it wants to be called again soon.
        self._tick = tick
        self._channels: dict[int, Channel] = {}
        self._inner = select.epoll()
        self._outer = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outer.register(self._wake_fd, select.EPOLLIN)
        self._outer.register(self._inner.fileno(), ARMED)
        #: Wakes a thread that reads, to look at its condition again.
        self._kicker = socket.socketpair()
        for end in self._kicker:
            end.setblocking(False)
        self._inner.register(self._kicker[1].fileno(), select.EPOLLIN)
        self._reading = threading.Lock()
        #: The thread that reads on its own behalf.
        self._reader = 0
        self._arrived = threading.Condition(threading.RLock())
        self._sleepers = 0
        self._buffer = bytearray(RECEIVE_BYTES)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._wake_at = 0.0
        self._tick_at = time.monotonic() + TICK_S
        self._idle_ticks = 0
        #: True while the I/O thread sleeps without ticking; whoever creates work must call `stir`.
        self.dormant = False
        self._stopping = False
        #: What arrives is read every LINGER_S, by a timer.
        self._lingering = False
        self._late_timer = False
        #: Somebody has submitted tasks since it was last read.
        self._submitting = False
        self._recent_wait_s = 1e-3
        #: Called when the process cannot go on: the I/O thread has ended, or a peer does not speak our protocol.
        self.on_failure: Callable[[Exception], None] = lambda error: None
        self._thread = threading.Thread(target=self._run, name="skate-io", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # -- channels ----------------------------------------------------------------------------------

    def add(self, channel: Channel) -> None:
        channel.on_backlog = self._on_backlog
        fd = channel.fileno()
        self._channels[fd] = channel
        self._inner.register(fd, select.EPOLLIN)
        if channel.has_backlog:
            self._on_backlog(channel)

    def remove(self, channel: Channel) -> None:
        fd = channel.fileno()
        if self._channels.pop(fd, None) is not None:
            self._inner.unregister(fd)
        channel.close()

    def _on_backlog(self, channel: Channel) -> None:
        if channel.fileno() in self._channels:
            self._inner.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], object], deadline: float | None = None) -> bool:
        """Read sockets until `ready()` is true; False if `deadline` (monotonic) passed first. From any thread."""
        if ready():
            return True
        if self._stopping:
            return False
        begin = time.monotonic()
        if self._reader == threading.get_ident():
            raise RuntimeError(
                "a finalizer (__del__) waits for a task while Skate itself is at work in this thread: that is for "
                "ever. Do not call get() or wait() in finalizers; submitting tasks and put() of small values are fine."
            )
        guard_new_handlers()
        if self._reading.acquire(blocking=False):
            self._reader = threading.get_ident()
            try:
                self._watch(0)
                reached = self._read_until(ready, begin, deadline)
            finally:
                # Released before it is armed: otherwise the I/O thread could use up the event and find us still
                # reading.
                self._reader = 0
                self._lingering = False
                self._reading.release()
                self._watch(ARMED)
                if self._sleepers:
                    self._notify()
        else:
            reached = self._sleep_until(ready, deadline)
        self._recent_wait_s += 0.2 * (min(time.monotonic() - begin, 1e-3) - self._recent_wait_s)
        return reached

    def _watch(self, events: int) -> None:
        """ARMED: the I/O thread is to read the next time that something arrives; 0: it is not."""
        try:
            self._outer.modify(self._inner.fileno(), events)
        except (OSError, ValueError):
            if not self._stopping:  # otherwise it was closed meanwhile
                raise

    def _read_until(self, ready: Callable[[], object], begin: float, deadline: float | None) -> bool:
        if ready():  # the I/O thread may have read it just before we took over
            return True
        poll = self._poll
        if self._recent_wait_s < SHORT_WAIT_S:
            until = begin + SPIN_S
            while time.monotonic() < until:
                if poll(0) and ready():
                    return True
        while True:
            if deadline is None:
                poll(-1)
            else:
                left = deadline - time.monotonic()
                if left <= 0:
                    return bool(ready())
                poll(min(left, POLL_S_MAX))
            if ready():
                return True
            if self._stopping:
                return False

    def _sleep_until(self, ready: Callable[[], object], deadline: float | None) -> bool:
        """Another thread reads; it (or the I/O thread after it) tells when something arrived."""
        with self._arrived:
            self._sleepers += 1
            try:
                while not ready():
                    if self._stopping:
                        return False
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._arrived.wait(None if left is None else min(left, POLL_S_MAX))
                return True
            finally:
                self._sleepers -= 1

    def _notify(self) -> None:
        with self._arrived:
            self._arrived.notify_all()

    def notify(self) -> None:
        """State that waiting threads look at was changed by something else than a message."""
        if self._sleepers:
            self._notify()
        if self._reading.locked():
            self._kick_reader()

    def _kick_reader(self) -> None:
        # The reader blocks in the inner epoll; a one-byte self-message through it makes it look at `ready` again.
        try:
            self._kicker[0].send(b".")
        except BlockingIOError:
            pass

    def _poll(self, timeout: float) -> bool:
        """Dispatch what has arrived; True if anything did. Only with `_reading` held."""
        events = self._inner.poll(timeout)
        if events:
            self._dispatch(events)
            return True
        return False

    def _dispatch(self, events: list[tuple[int, int]]) -> None:
        channels = self._channels
        with self.lock:
            for fd, event in events:
                channel = channels.get(fd)
                if channel is None:
                    if fd == self._kicker[1].fileno():
                        self._kicker[1].recv(4096)
                    continue
                if event & select.EPOLLOUT and channel.flush():
                    self._inner.modify(fd, select.EPOLLIN)
                    if channel.has_backlog:  # another thread's, from between the two lines above
                        self._on_backlog(channel)
                if event & ~select.EPOLLOUT:
                    try:
                        messages = channel.receive(self._buffer)
                    except ChannelClosed as error:
                        self.remove(channel)
                        self._on_closed(channel)
                        if isinstance(error, BadFrame):
                            # The other process lives, and does not know that nothing of it is heard: both would wait.
                            self.on_failure(error)
                    else:
                        if messages:
                            self._handle(channel, messages)
        if self._sleepers:
            self._notify()

    # -- the I/O thread ------------------------------------------------------------------------------

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Call `action` in the I/O thread, with `lock` held, at `when` (monotonic)."""
        with self.lock:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), action))
            sooner = when < self._wake_at
        if sooner or self.dormant:
            self.stir()

    def linger(self) -> None:
        """A thread submits one task after the other, and nobody waits: what arrives is read every LINGER_S.

        If the I/O thread woke for each message, the two would fight for the interpreter lock, which the one lets go of
        whenever it sends something; a task then cost a third more. With the lock held.
        """
        self._submitting = True
        if not self._lingering and not self._sleepers and not self._reading.locked():
            self._lingering = True
            self._watch(0)
            if not self._late_timer:
                self._read_later()

    def linger_no_more(self) -> None:
        """Somebody wants to know at once what arrives."""
        if self._lingering:
            with self.lock:
                self._lingering = False
                self._watch(ARMED)

    def _read_later(self) -> None:
        self._late_timer = True
        self.call_at(time.monotonic() + LINGER_S, self._read_late)

    def _read_late(self) -> None:
        self._late_timer = False
        if not self._lingering or not self._submitting or self._sleepers:
            # Armed in any case: whoever ended the lingering may have done so just before `linger` disarmed.
            self._lingering = False
            self._watch(ARMED)
            return
        self._submitting = False
        self._read_later()
        if self._reading.acquire(blocking=False):
            try:
                for _ in range(LATE_READS_MAX):
                    if not self._poll(0):
                        break
            finally:
                self._reading.release()

    def stir(self) -> None:
        """Wake the I/O thread: there is something new to look after."""
        self.dormant = False
        os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        try:
            self._read_for_ever()
        except Exception as error:  # noqa: BLE001 - a bug of ours; without this thread much would wait for ever
            self.on_failure(error)

    def _read_for_ever(self) -> None:
        while not self._stopping:
            timeout = self._timeout()
            events = self._outer.poll(timeout)
            if self._stopping:
                return
            rearm = False
            for fd, _ in events:
                if fd == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                else:
                    rearm = True
            # Otherwise a caller reads, and arms when it is done.
            if rearm and self._reading.acquire(blocking=False):
                try:
                    self._poll(0)
                    # While others wait for what they cannot read themselves, go on without a round through the outer
                    # epoll.
                    if not self._stopping and not self._lingering:
                        self._outer.modify(self._inner.fileno(), ARMED)
                finally:
                    self._reading.release()
            if time.monotonic() >= self._wake_at:
                self._run_timers()

    def _timeout(self) -> float:
        now = time.monotonic()
        if self._idle_ticks >= TICKS_BEFORE_SLEEP and not self._timers:
            self.dormant = True
            # Work created between the last tick and this line has seen dormant False: look once more.
            with self.lock:
                wanted = self._tick() or bool(self._timers)
            if not wanted:
                self._wake_at = float("inf")
                return -1
            self.dormant = False
            self._tick_at = now + TICK_S
        # The next tick stays where it is while messages arrive: they may do so for ever. With the lock: a timer that is
        # set at this moment must not be compared with a time that is past.
        with self.lock:
            self._wake_at = min(self._tick_at, self._timers[0][0]) if self._timers else self._tick_at
        return max(0.0, self._wake_at - now)

    def _run_timers(self) -> None:
        now = time.monotonic()
        self._tick_at = now + TICK_S
        with self.lock:
            self._idle_ticks = 0 if self._tick() else self._idle_ticks + 1
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
        if self._sleepers:
            self._notify()

    def stop(self) -> None:
        """End the I/O thread, send waiting threads away and close every channel. Not from the I/O thread."""
        self._stopping = True
        self.stir()
        self._notify()
        if self._reading.locked():
            self._kick_reader()
        if self._thread.ident is not None:
            self._thread.join(timeout=STOP_TIMEOUT_S)
        # Whoever still reads has been woken, and leaves.
        if not self._reading.acquire(timeout=STOP_TIMEOUT_S):
            return
        with self.lock:
            for channel in list(self._channels.values()):
                channel.close()
            self._channels.clear()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for end in self._kicker:
            end.close()
        self._inner.close()
        self._outer.close()
        os.close(self._wake_fd)

    def abandon(self) -> None:
        """In a forked child: let go of the descriptors without touching what the parent uses."""
        self._stopping = True
        for channel in list(self._channels.values()):
            channel.sock.close()
        self._close_descriptors()
