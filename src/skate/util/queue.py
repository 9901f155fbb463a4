"""A queue that tasks, actors and drivers share.

    producers ──put──▶ QueueActor: items, those who wait to get, those who wait to put ──get──▶ consumers

Calls that wait are coroutines in one async actor, in the order in which they came. An item is handed to the first
getter that waits, so items wait only while no getter does, and putters only while the queue is full.

No item is lost when a get does not complete: a timeout is decided in the actor, where the item is; and a get that is
cancelled tells the actor, which puts the item back at the front if it had been handed out.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import skate
from skate.exceptions import ActorDiedError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

T = TypeVar("T")

#: Calls of one queue that wait at a time. More of them wait outside of the actor, and so do puts behind them.
WAITING_MAX = 100_000


class Empty(queue.Empty):
    """Nothing was in the queue, in the time that was given."""


class Full(queue.Full):
    """There was no room in the queue, in the time that was given."""


class _Putter(NamedTuple):
    item: Any
    accepted: asyncio.Future[bool]


class QueueActor:
    """What is behind a queue. Every method is a coroutine: they run on one event loop, and need no locks."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        #: Each gets (True, item), or (False, None) when its time is over.
        self._getters: deque[asyncio.Future[tuple[bool, Any]]] = deque()
        self._putters: deque[_Putter] = deque()

    # -- for `Queue` ---------------------------------------------------------------------------------------------------

    async def offer(self, item: Any, timeout: float | None) -> bool:
        if self._has_room():
            self._add(item)
            return True
        if timeout is not None and timeout <= 0:
            return False
        import asyncio

        loop = asyncio.get_running_loop()
        putter = _Putter(item, loop.create_future())
        self._putters.append(putter)
        timer = None if timeout is None else loop.call_later(timeout, _settle, putter.accepted, False)
        accepted = False
        try:
            accepted = await putter.accepted
        finally:
            if timer is not None:
                timer.cancel()
            if not accepted:
                # Not with `remove`, which would compare items.
                self._putters = deque(other for other in self._putters if other is not putter)
        return accepted

    async def take(self, timeout: float | None) -> tuple[bool, Any]:
        if self._items:
            return True, self._take()
        if timeout is not None and timeout <= 0:
            return False, None
        import asyncio

        loop = asyncio.get_running_loop()
        getter: asyncio.Future[tuple[bool, Any]] = loop.create_future()
        self._getters.append(getter)
        timer = None if timeout is None else loop.call_later(timeout, _settle, getter, (False, None))
        answer: tuple[bool, Any] = (False, None)
        try:
            answer = await getter
        except asyncio.CancelledError:
            # The item may have been handed over in the moment before.
            if getter.done() and not getter.cancelled() and getter.result()[0]:
                self._give_back(getter.result()[1])
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not answer[0] and getter in self._getters:
                self._getters.remove(getter)
        return answer

    async def put_all(self, items: list[Any]) -> bool:
        """All of them or none."""
        if self._maxsize > 0 and len(self._items) + len(items) > self._maxsize:
            return False
        for item in items:
            self._add(item)
        return True

    async def get_all(self, count: int) -> list[Any] | None:
        """So many, or none at all."""
        if len(self._items) < count:
            return None
        return [self._take() for _ in range(count)]

    async def give_back(self, item: Any) -> None:
        """A get was cancelled after its item had left."""
        self._give_back(item)

    async def size(self) -> int:
        return len(self._items)

    async def limit(self) -> int:
        return self._maxsize

    # -- for programs that call the actor itself, by Ray's names: queue.actor.get.remote() is a reference --------------

    async def put(self, item: Any, timeout: float | None = None) -> None:
        if not await self.offer(item, timeout):
            raise Full(f"the queue holds {self._maxsize} items, which is its maxsize" + _waited(timeout))

    async def get(self, timeout: float | None = None) -> Any:
        found, item = await self.take(timeout)
        if not found:
            raise Empty(_empty_text(timeout))
        return item

    async def put_nowait(self, item: Any) -> None:
        await self.put(item, 0.0)

    async def get_nowait(self) -> Any:
        return await self.get(0.0)

    async def put_nowait_batch(self, items: Iterable[Any]) -> None:
        items = list(items)
        if not await self.put_all(items):
            raise Full(f"{len(items)} items do not fit into the queue, which may hold {self._maxsize}; none was added.")

    async def get_nowait_batch(self, num_items: int) -> list[Any]:
        items = await self.get_all(num_items)
        if items is None:
            raise Empty(f"the queue holds less than {num_items} items; none was taken.")
        return items

    async def qsize(self) -> int:
        return len(self._items)

    async def empty(self) -> bool:
        return not self._items

    async def full(self) -> bool:
        return not self._has_room()

    # -- within --------------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return self._maxsize <= 0 or len(self._items) < self._maxsize

    def _add(self, item: Any) -> None:
        if not self._hand_over(item):
            self._items.append(item)

    def _give_back(self, item: Any) -> None:
        """The queue may hold one more than its limit for a moment: better than to lose it."""
        if not self._hand_over(item):
            self._items.appendleft(item)

    def _hand_over(self, item: Any) -> bool:
        while self._getters:
            if _settle(self._getters.popleft(), (True, item)):
                return True
        return False

    def _take(self) -> Any:
        item = self._items.popleft()
        while self._putters and self._has_room():
            putter = self._putters.popleft()
            if _settle(putter.accepted, True):
                self._items.append(putter.item)
        return item


RemoteQueueActor = skate.remote(QueueActor)


def _settle(future: asyncio.Future[Any], value: Any) -> bool:
    """False if it has its value already, or was cancelled."""
    if future.done():
        return False
    future.set_result(value)
    return True


class Queue(Generic[T]):
    """A first-in, first-out queue for any number of producers and consumers, anywhere.

        >>> queue = Queue(maxsize=100)
        >>> queue.put("work")
        >>> queue.get(timeout=5)
        'work'

    `maxsize` 0 means no limit. Pass the queue to tasks and actors as it is: all copies are the same queue. It lives as
    long as any of them. `actor_options` are those of the actor behind it: `{"name": "jobs", "num_cpus": 1}`.

    An item that is a reference arrives as its value, as with any call; put it in a list to send the reference itself.
    """

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        if isinstance(maxsize, bool) or not isinstance(maxsize, int):
            raise TypeError(f"Queue(maxsize={maxsize!r}): it may be a whole number; 0 means no limit.")
        self.maxsize = maxsize
        options = {"max_concurrency": WAITING_MAX, **(actor_options or {})}
        self._actor: Any = RemoteQueueActor.options(**options).remote(maxsize)

    @property
    def actor(self) -> Any:
        """The handle of the actor behind the queue; None after `shutdown`."""
        return self._actor

    def _running(self) -> Any:
        if self._actor is None:
            raise ActorDiedError(
                "the queue was shut down.\n  why:  shutdown() was called on it in this process.\n"
                "  next: make another one: Queue()."
            )
        return self._actor

    def __len__(self) -> int:
        return self.size()

    def __repr__(self) -> str:
        return f"Queue(maxsize={self.maxsize})" if self._actor is not None else "Queue(shut down)"

    # -- what is in it -------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """How many items it holds. Another process may change that before you look at the answer.

        >>> queue.size()
        """
        size: int = skate.get(self._running().size.remote())
        return size

    def qsize(self) -> int:
        """The same as `size()`."""
        return self.size()

    def empty(self) -> bool:
        """Whether it holds no item."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether it holds as many items as it may."""
        return 0 < self.maxsize <= self.size()

    # -- put -----------------------------------------------------------------------------------------------------------

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, and wait for room if there is none.

            >>> queue.put(1)
            >>> queue.put(2, timeout=5)         # Full after 5 s

        `block=False` does not wait. If it is interrupted, the item is in the queue or not.
        """
        limit = _limit(block, timeout)
        ref = self._running().offer.remote(item, limit)
        try:
            accepted = skate.get(ref)
        except KeyboardInterrupt:
            skate.cancel(ref)
            raise
        if not accepted:
            raise Full(self._full_text(limit))

    def put_nowait(self, item: T) -> None:
        """Add an item if there is room, else raise Full."""
        self.put(item, block=False)

    async def put_async(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """`put` for async code.

        >>> await queue.put_async(1)
        """
        import asyncio

        limit = _limit(block, timeout)
        ref = self._running().offer.remote(item, limit)
        try:
            accepted = await ref
        except asyncio.CancelledError:
            skate.cancel(ref)
            raise
        if not accepted:
            raise Full(self._full_text(limit))

    def put_nowait_batch(self, items: Iterable[T]) -> None:
        """Add all of the items, or raise Full and add none.

        >>> queue.put_nowait_batch([1, 2, 3])
        """
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch({items!r}): it may be a list of items.")
        batch = list(items)
        if not skate.get(self._running().put_all.remote(batch)):
            raise Full(f"{len(batch)} items do not fit into the queue, which may hold {self.maxsize}; none was added.")

    # -- get -----------------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the oldest item, and wait for one if there is none.

            >>> queue.get()
            >>> queue.get(timeout=5)            # Empty after 5 s

        `block=False` does not wait. If it is interrupted, the item stays in the queue.
        """
        limit = _limit(block, timeout)
        ref = self._running().take.remote(limit)
        try:
            found, item = skate.get(ref)
        except KeyboardInterrupt:
            self._abandon(ref)
            raise
        if not found:
            raise Empty(_empty_text(limit))
        taken: T = item
        return taken

    def get_nowait(self) -> T:
        """Take the oldest item if there is one, else raise Empty."""
        return self.get(block=False)

    async def get_async(self, block: bool = True, timeout: float | None = None) -> T:
        """`get` for async code. If it is cancelled, the item stays in the queue.

        >>> await queue.get_async()
        """
        import asyncio

        limit = _limit(block, timeout)
        ref = self._running().take.remote(limit)
        try:
            found, item = await ref
        except asyncio.CancelledError:
            self._abandon(ref)
            raise
        if not found:
            raise Empty(_empty_text(limit))
        taken: T = item
        return taken

    def get_nowait_batch(self, num_items: int) -> list[T]:
        """Take so many items, or raise Empty and take none.

        >>> queue.get_nowait_batch(3)
        """
        if isinstance(num_items, bool) or not isinstance(num_items, int):
            raise TypeError(f"get_nowait_batch({num_items!r}): it may be a whole number, 0 or more.")
        if num_items < 0:
            raise ValueError(f"get_nowait_batch({num_items!r}): it may be a whole number, 0 or more.")
        items: list[T] | None = skate.get(self._running().get_all.remote(num_items))
        if items is None:
            raise Empty(f"the queue holds less than {num_items} items; none was taken.")
        return items

    # -- the end -------------------------------------------------------------------------------------------------------

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue, in every process. Calls that wait, and all later ones, fail with ActorDiedError.

            >>> queue.shutdown()

        The actor first completes the calls that it can complete; it is killed after `grace_period_s` seconds, or at
        once with `force`. Items that it holds are gone.
        """
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        if not force:
            ready, _ = skate.wait([actor.__ray_terminate__.remote()], timeout=grace_period_s)
            if ready:
                return
        skate.kill(actor, no_restart=True)

    # -- within --------------------------------------------------------------------------------------------------------

    def _abandon(self, ref: skate.ObjectRef[tuple[bool, Any]]) -> None:
        """Nobody waits for this get any more. If its item is on the way, it goes back."""
        actor = self._running()

        def give_back(answer: Future[tuple[bool, Any]]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                found, item = answer.result()
                if found:
                    actor.give_back.remote(item)

        skate.cancel(ref)
        ref.future().add_done_callback(give_back)

    def _full_text(self, limit: float | None) -> str:
        return f"the queue holds {self.maxsize} items, which is its maxsize" + _waited(limit)


def _limit(block: bool, timeout: float | None) -> float | None:
    """How long to wait, in seconds; None for as long as it takes."""
    if not block:
        return 0.0
    if timeout is not None and not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r}: it may be None or a number of seconds, 0 or more.")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout!r}: it may be None or a number of seconds, 0 or more.")
    return None if timeout is None else float(timeout)


def _empty_text(limit: float | None) -> str:
    return "the queue is empty" + _waited(limit)


def _waited(limit: float | None) -> str:
    return f", and stayed so for {limit:g} s." if limit else "."
