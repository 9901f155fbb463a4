"""The topics that this process hears, and what has come of each and was not taken yet.

A subscription that nobody refers to any more ends when the next message comes for it: no finalizer has to work.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING

from skate._wire.messages import Published, Topic
from skate._worker.interrupt import guard_new_handlers

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: Messages that a subscription keeps, and their bytes. When more come, the oldest are dropped; `missed` counts them.
MESSAGES_MAX = 10_000
BYTES_MAX = 64 << 20


class Subscription:
    """What is published on a topic, in order. Made by `skate.pubsub.subscribe`.

    >>> for message in subscription: ...          # waits for each; ends when the subscription is closed
    >>> async for message in subscription: ...
    >>> subscription.get(timeout=1)               # the next one, or TimeoutError
    """

    def __init__(self, runtime: Runtime, namespace: str, topic: str) -> None:
        self.namespace = namespace
        self.topic = topic
        #: Messages that were dropped, here or on their way, because too many had not been taken.
        self.missed = 0
        self._bytes = 0
        self.closed = False
        self._runtime = runtime
        self._messages: deque[bytes] = deque()
        #: Called, once, when a message comes or the subscription is closed.
        self._waiting: list[Callable[[], None]] = []

    def get(self, timeout: float | None = None) -> bytes:
        """Take the next message; wait for it if there is none."""
        if timeout is not None and not (isinstance(timeout, Real) and timeout >= 0):
            raise ValueError(f"Subscription.get({timeout=}): it may be a number of seconds, 0 or more, or None.")
        if not self._has_news():
            deadline = None if timeout is None else time.monotonic() + timeout
            guard_new_handlers()
            with self._runtime.blocking():
                if not self._sleep_until(deadline):
                    raise TimeoutError(f"nothing was published on the topic {self.topic!r} within {timeout:g} s.")
        return self._take()

    def _sleep_until(self, deadline: float | None) -> bool:
        """Wait for a message; False if the deadline passed first.

        Other waits read the sockets of the process themselves. A thread that listens to a topic waits nearly all the
        time: it would read the answers to the calls of all other threads, and would have to wake those for each. That
        doubled the time of a call.
        """
        while not self._has_news():
            arrived = threading.Event()
            with self._runtime.lock:
                if self._has_news():
                    break
                self._waiting.append(arrived.set)
            self._runtime.loop.linger_no_more()
            if not arrived.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                with self._runtime.lock, contextlib.suppress(ValueError):  # it has just come
                    self._waiting.remove(arrived.set)
                return self._has_news()
        return True

    async def get_async(self) -> bytes:
        """The same in a coroutine."""
        import asyncio

        loop = asyncio.get_running_loop()
        while not self._has_news():
            arrived = asyncio.Event()

            def tell(arrived: asyncio.Event = arrived) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived.set)

            with self._runtime.lock:
                if self._has_news():
                    break
                self._waiting.append(tell)
            await arrived.wait()
        return self._take()

    def _has_news(self) -> bool:
        return bool(self._messages) or self.closed or self._runtime.broken is not None or self._runtime.closed

    def _take(self) -> bytes:
        with self._runtime.lock:
            if self._messages:
                message = self._messages.popleft()
                self._bytes -= len(message)
                return message
        if self._runtime.broken is not None and not self.closed:
            raise self._runtime.broken
        raise ValueError(f"the subscription to {self.topic!r} is closed.")

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> bytes:
        try:
            return self.get()
        except ValueError:
            raise StopIteration from None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.get_async()
        except ValueError:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Hear no more. What has come can still be taken."""
        self._runtime.subscriptions.close(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._messages)} waiting"
        return f"Subscription({self.topic!r}, {state})"

    def _on_message(self, data: bytes | None, missed: int) -> None:
        """With the runtime's lock held."""
        self.missed += missed
        if data is None:
            return
        self._messages.append(data)
        self._bytes += len(data)
        while len(self._messages) > MESSAGES_MAX or (self._bytes > BYTES_MAX and len(self._messages) > 1):
            self._bytes -= len(self._messages.popleft())
            self.missed += 1
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()


class Subscriptions:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open: dict[tuple[str, str], weakref.WeakSet[Subscription]] = {}

    def open(self, namespace: str, topic: str) -> Subscription:
        subscription = Subscription(self._runtime, namespace, topic)
        with self._runtime.lock:
            self._open.setdefault((namespace, topic), weakref.WeakSet()).add(subscription)
        # Also if another one has asked before: once this is answered nothing is missed.
        self._runtime.request(lambda number: Topic(number, "subscribe", namespace, topic))
        return subscription

    def close(self, subscription: Subscription) -> None:
        with self._runtime.lock:
            if subscription.closed:
                return
            subscription.closed = True
            subscription._tell()
            key = (subscription.namespace, subscription.topic)
            self._open[key].discard(subscription)
            self._end_if_unused(key)
        self._runtime.loop.notify()

    def on_published(self, message: Published) -> None:
        key = (message.namespace, message.topic)
        for subscription in list(self._open.get(key, ())):
            subscription._on_message(message.data, message.missed)
        self._end_if_unused(key)

    def subscribe_again(self) -> None:
        """A control service that was started again does not know who subscribes."""
        for key, subscriptions in self._open.items():
            if subscriptions:
                self._runtime.send(Topic(0, "subscribe", *key))

    def on_end(self) -> None:
        """The node is gone, or this runtime ends: nothing more will come."""
        for subscriptions in self._open.values():
            for subscription in list(subscriptions):
                subscription._tell()

    def _end_if_unused(self, key: tuple[str, str]) -> None:
        if key in self._open and not self._open[key]:
            del self._open[key]
            if not self._runtime.closed and self._runtime.broken is None:
                self._runtime.send(Topic(0, "unsubscribe", *key))
