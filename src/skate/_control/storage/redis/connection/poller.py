"""The I/O of one shard without a thread of its own: sockets, timers and short errands, behind one descriptor.

    fileno() ─ epoll ─┬─ sockets of the servers
                      ├─ a timerfd: the moment of the first timer
                      └─ an eventfd: an errand came back, or `wake` asked for a round

Owns:      the epoll set, the timers, and the threads of errands.
Invariant: callbacks run in `run`, in the thread that calls it. A timer is never early.
Idea:      the descriptor of an epoll set can itself be watched. The loop of the control service watches it and calls
           `run` when it is readable, so a write costs no switch between threads.

An errand is what may block: to look up a name, to connect, to write a file. It has a thread for as long as it takes.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

#: How long `close` waits for an errand that is under way.
ERRAND_S = 2.0

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class _Moment(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]


class Timer:
    """A moment to act at, which can be called off."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Poller:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._epoll = select.epoll()
        self._timer_fd: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._timer_fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._timer_fd, READ)
        self._epoll.register(self._wake_fd, READ)
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        #: The moment that the timerfd is set to.
        self._armed_at = float("inf")
        #: What errands brought back, and who waits for it.
        self._returned: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._threads: set[threading.Thread] = set()
        #: Guards `_is_closed` against errands that return while everything is let go.
        self._closing = threading.Lock()
        self._is_closed = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    # -- sockets ------------------------------------------------------------------------------------------------------

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        self._callbacks[fd] = callback
        self._epoll.register(fd, READ)

    def watch_writing(self, fd: int, wanted: bool) -> None:
        self._epoll.modify(fd, READ | WRITE if wanted else READ)

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    # -- timers -------------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action)
        when = time.monotonic() + delay_s
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        if when < self._armed_at:
            self._arm(when)
        return timer

    def _arm(self, when: float) -> None:
        self._armed_at = when
        whole, part = divmod(max(1, int(when * 1e9) + 1), 10**9)
        moment = _Moment(0, 0, whole, part)
        self._libc.timerfd_settime(self._timer_fd, 1, ctypes.byref(moment), None)

    def _run_timers(self) -> None:
        now = time.monotonic()
        if now < self._armed_at:
            return
        try:
            os.read(self._timer_fd, 8)
        except BlockingIOError:
            pass
        timers = self._timers
        self._armed_at = float("inf")
        while timers and (timers[0][0] <= now or timers[0][2].action is None):
            action = heapq.heappop(timers)[2].action
            if action is not None and not self._is_closed:
                action()
        if timers and timers[0][0] < self._armed_at and not self._is_closed:
            self._arm(timers[0][0])

    # -- errands ------------------------------------------------------------------------------------------------------

    def send_out(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        """Run `work` in a thread of its own, and hand its result or its exception to `then` in a later round.

        If the poller is closed by then, `then` is not called, and a result that can be closed is closed.
        """

        def run() -> None:
            try:
                found: T | Exception = work()
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the one who waits for it
                found = error
            with self._closing:
                if self._is_closed:
                    _drop(found)
                else:
                    self._returned.append((then, found))
                    os.eventfd_write(self._wake_fd, 1)

        self._threads = {thread for thread in self._threads if thread.is_alive()}
        thread = threading.Thread(target=run, name="skate-storage-errand", daemon=True)
        self._threads.add(thread)
        thread.start()

    # -- rounds -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the descriptor readable until the next round."""
        os.eventfd_write(self._wake_fd, 1)

    def run(self, timeout_s: float) -> None:
        """One round: wait for something to happen, for `timeout_s` at most, and act on all that did."""
        callbacks = self._callbacks
        for fd, events in self._epoll.poll(timeout_s):
            callback = callbacks.get(fd)
            if callback is not None:
                callback(events)
            elif fd == self._wake_fd:
                try:
                    os.eventfd_read(self._wake_fd)
                except BlockingIOError:
                    pass
        while self._returned and not self._is_closed:
            then, found = self._returned.popleft()
            then(found)
        self._run_timers()

    def close(self) -> None:
        if self._is_closed:
            return
        with self._closing:
            self._is_closed = True
        give_up_at = time.monotonic() + ERRAND_S
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        for _, found in self._returned:
            _drop(found)
        self._epoll.close()
        os.close(self._timer_fd)
        os.close(self._wake_fd)


def _drop(found: object) -> None:
    close = getattr(found, "close", None)
    if close is not None:
        close()
