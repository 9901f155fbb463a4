"""The daemon's event loop: descriptors that became ready, moments that have come. One thread, no waiting elsewhere.

Owns:      the epoll set and the timers.
Knows not: what any of it means.
Invariant: with no timer and nothing ready it sleeps in the kernel for as long as it takes.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable

from skate._wire.channel import Channel
from skate._wire.guard import survive

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
#: The kernel's longest wait is 25 days; who has more time, or all of it, waits again.
POLL_S_MAX = 1e6


class Timer:
    """A moment to act at, which can be called off."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class EventLoop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        """Call back with the events of `fd` whenever it can be read or has ended."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, READ)

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def watch_writing(self, fd: int, wanted: bool) -> None:
        """Also call back when `fd` can be written."""
        if fd in self._callbacks:
            self._epoll.modify(fd, READ | WRITE if wanted else READ)

    def watch_channel(self, channel: Channel, on_readable: Callable[[], None]) -> None:
        """Call back when there is something to receive; what the channel kept back is sent in passing."""
        fd = channel.fileno()

        def on_events(events: int) -> None:
            if events & WRITE and channel.flush():
                self.watch_writing(fd, False)
            if events & ~WRITE:
                on_readable()

        channel.on_backlog = lambda _: self.watch_writing(fd, True)
        self.watch(fd, on_events)
        if channel.has_backlog:
            self.watch_writing(fd, True)

    def call_at(self, when: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def run_once(self, deadline: float | None) -> None:
        """Wait for something to happen, until `deadline` at the latest, and act on all that did."""
        timers = self._timers
        while timers and timers[0][2].action is None:
            heapq.heappop(timers)
        if timers and (deadline is None or timers[0][0] < deadline):
            deadline = timers[0][0]
        if deadline is None:
            timeout = -1.0
        else:
            timeout = min(max(0.0, deadline - time.monotonic()), POLL_S_MAX)
        callbacks = self._callbacks
        for fd, events, callback in [(fd, events, callbacks.get(fd)) for fd, events in self._epoll.poll(timeout)]:
            # An earlier callback of this round may have closed it, and its number may be that of something else by now.
            if callback is not None and callbacks.get(fd) is callback:
                callback(events)
        now = time.monotonic()
        while timers and timers[0][0] <= now:
            action = heapq.heappop(timers)[2].action
            if action is not None:
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - the others wait for their moment, too
                    survive(error, "a timer")

    def close(self) -> None:
        self._epoll.close()
