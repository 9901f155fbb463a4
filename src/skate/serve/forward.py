"""Requests of HTTP for other replicas, through tunnels: those of other applications, and those with no place here.

    another application ──► a place in one of its replicas, waited for ──► a tunnel
    the own deployment  ──► the sibling with the least to do, if it has a free place ──► a tunnel

A request that was passed on is not passed on again.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from skate.serve.dispatch import Dispatcher, Request, dispatcher
from skate.serve.exceptions import BackPressureError, DeploymentUnavailableError
from skate.serve.responses import Receive, Scope, Send
from skate.serve.router import Seat
from skate.serve.tunnel import TunnelBroken, TunnelClient

__all__ = ["Forwarder", "Siblings"]

#: A request that has not reached a replica is offered to another one, so often.
ATTEMPTS = 5
#: Seconds for which a sibling's report of its load is trusted.
NEWS_S = 0.1


class Passage(Request):
    """A request that needs a replica, and is not a call: it takes a place there for as long as it is under way."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", "", "", (), {}, stream=False, idempotent=False)

    def send_to(self, seat: Seat) -> Any:
        """Nothing is called: who waits for the place uses it."""
        return None


class Tunnels:
    """The tunnels from this process to the replicas of one deployment."""

    def __init__(self, owner: Dispatcher) -> None:
        self.owner = owner
        self._clients: dict[str, TunnelClient] = {}

    def to(self, id: str) -> TunnelClient | None:
        """The tunnel to a replica; None if it has left."""
        client = self._clients.get(id)
        if client is None:
            address = self.owner.tunnels.get(id)
            if not address:
                return None
            for gone in self._clients.keys() - self.owner.tunnels.keys():
                self._clients.pop(gone).close()
            client = self._clients[id] = TunnelClient(pickle.loads(address))
        return client


class Forwarder:
    """The other applications, as this process reaches them."""

    def __init__(self, most_waiting: int) -> None:
        self._tunnels: dict[str, Tunnels] = {}
        #: Requests that may wait for a deployment that sets no limit of its own.
        self._most_waiting = most_waiting

    async def __call__(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a replica of another deployment answer.

        Raises TunnelBroken if it dies meanwhile, BackPressureError if too many requests wait for one, and
        DeploymentUnavailableError if none can be reached.
        """
        if scope["type"] == "websocket":
            ahead = Ahead(receive)
            try:
                await self._forward(key, scope, ahead, send, ahead.outlasts)
            finally:
                ahead.end()
        else:
            await self._forward(key, scope, receive, send, _done)

    async def _forward(
        self,
        key: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        is_done: Callable[[Coroutine[Any, Any, None]], Awaitable[bool]],
    ) -> None:
        tunnels = self._tunnels.get(key)
        if tunnels is None or tunnels.owner.deleted or tunnels.owner.ended:
            tunnels = self._tunnels[key] = Tunnels(await asyncio.to_thread(dispatcher, key))
        first: MutableMapping[str, Any] | None = None
        for attempt in range(ATTEMPTS):
            passage = Passage()
            if not await is_done(_place(tunnels.owner, passage, self._most_waiting)):
                return
            try:
                if passage.error is not None:
                    raise passage.error
                assert passage.seat is not None
                client = tunnels.to(passage.seat.id)
                if client is None:
                    raise TunnelBroken("the replica has left.", was_sent=False)
                if scope["type"] == "websocket":
                    tunnels.owner.answered(passage)  # it needs no place there, because most of them wait
                if first is None:
                    first = await receive()
                await client(scope, receive, send, first)
                break
            except TunnelBroken as error:
                if error.started or error.was_sent:
                    raise
                if attempt == ATTEMPTS - 1:
                    raise DeploymentUnavailableError(f"no replica of {key} can be reached.") from error
                # Only a refusal shows that the process has ended. Others come of this process, or pass.
                if error.__cause__ is None or isinstance(error.__cause__, ConnectionRefusedError):
                    tunnels.owner.lost(passage)
            finally:
                tunnels.owner.answered(passage)


async def _place(owner: Dispatcher, passage: Passage, most_waiting: int) -> None:
    """Wait for a replica that has a place. Raises BackPressureError if too many wait."""
    owner.send(passage)
    if passage.is_bound:
        return
    if owner.router.max_queued < 0 and owner.waiting > most_waiting:
        _give_up(owner, passage)
        owner.refused()
        raise BackPressureError(deployment=owner.key.partition("#")[2], waiting=most_waiting)
    loop = asyncio.get_running_loop()
    bound = loop.create_future()

    def settle() -> None:
        if not bound.done():
            bound.set_result(None)

    def on_bound() -> None:
        loop.call_soon_threadsafe(settle)

    passage.when_bound(on_bound)
    try:
        await bound
    except asyncio.CancelledError:
        _give_up(owner, passage)
        raise


def _give_up(owner: Dispatcher, passage: Passage) -> None:
    """Stop waiting."""
    owner.cancel(passage)
    passage.when_bound(lambda: owner.answered(passage))  # another thread may give it a place at this moment


async def _done(work: Coroutine[Any, Any, None]) -> bool:
    """Wait for some work. A request over HTTP is cancelled by its guard if its client goes."""
    await work
    return True


class Ahead:
    """The messages of a websocket, of which one is awaited ahead: that shows if the client goes before it is heard."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[MutableMapping[str, Any]] = deque()
        self._next: asyncio.Future[MutableMapping[str, Any]] | None = None

    async def __call__(self) -> MutableMapping[str, Any]:
        """The next message."""
        if self._messages:
            return self._messages.popleft()
        if self._next is not None:
            awaited, self._next = self._next, None
            return await awaited
        return await self._receive()

    async def outlasts(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for some work, which is cancelled if the client goes meanwhile; whether it was done."""
        working: asyncio.Future[Any] = asyncio.ensure_future(work)
        try:
            if self._next is None:
                self._messages.append(await self._receive())  # websocket.connect, which is there
                self._next = asyncio.ensure_future(self._receive())
            await asyncio.wait([working, self._next], return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and self._next.result()["type"] == "websocket.disconnect":
                return False
            await working
            return True
        finally:
            working.cancel()

    def end(self) -> None:
        """Await nothing more."""
        if self._next is not None:
            self._next.cancel()


class Siblings:
    """The other replicas of the own deployment."""

    def __init__(self, key: str, own_id: str) -> None:
        self._key, self._own_id = key, own_id
        self._tunnels: Tunnels | None = None
        self._reaching: asyncio.Task[None] | None = None

    def free(self) -> TunnelClient | None:
        """The tunnel to the sibling with the least to do, if it has a free place as far as this process knows."""
        tunnels = self._tunnels
        if tunnels is None or tunnels.owner.ended:
            if self._reaching is None or self._reaching.done():
                self._reaching = asyncio.ensure_future(self._reach())
            return None
        best: TunnelClient | None = None
        least, since = tunnels.owner.router.max_ongoing, time.monotonic() - NEWS_S
        for id in list(tunnels.owner.router.seats):
            if id != self._own_id and (client := tunnels.to(id)) is not None:
                load = client.in_flight + (client.others if client.heard_at > since else 0)
                if load < least:
                    best, least = client, load
        return best

    async def _reach(self) -> None:
        self._tunnels = Tunnels(await asyncio.to_thread(dispatcher, self._key))
