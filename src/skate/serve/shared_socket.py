"""The listening socket of a node, in a replica that accepts from it; `keeper.py` tells the whole story."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import skate
from skate.descriptors import Descriptor
from skate.exceptions import ActorDiedError, ActorError, ActorUnavailableError
from skate.serve.keeper import keeper_of

__all__ = ["SharedSocket"]

#: A keeper that was killed is started again within a moment; a replica that starts asks so often for the socket.
ATTEMPTS = 50
PAUSE_S = 0.1


class SharedSocket:
    """A duplicate of the socket that the keeper of this node holds."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._keeper = keeper_of(skate.get_runtime_context().get_node_id())
        self._socket: socket.socket | None = None
        #: Our end of the pipe. The keeper has the other one, and sees when this one is closed.
        self._pipe = -1
        self._watch: asyncio.Task[None] | None = None

    async def open(self, host: str | None, port: int) -> socket.socket | None:
        """Get the socket; None if another node of this machine has it. Raises OSError if its address cannot be had."""
        attempt = 1
        while True:
            try:
                await self._ask(host, port)
                break
            except ActorUnavailableError:
                if attempt == ATTEMPTS:
                    raise
                attempt += 1
                await asyncio.sleep(PAUSE_S)
        if self._socket is not None:
            self._watch = asyncio.ensure_future(self._outlive())
        return self._socket

    def close(self) -> None:
        """Accept no more: others do."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            # A program that the replica has started may have inherited the pipe.
            self._keeper.returned.remote(self._replica)

    async def _ask(self, host: str | None, port: int) -> None:
        with _Pipe() as pipe:
            shared, problem = await self._keeper.share.remote(self._replica, host, port, pipe.their_end)
            if problem:
                raise OSError(problem)
            if shared is None:
                return
            self._socket, self._pipe = socket.socket(fileno=shared.detach()), pipe.detach()

    async def _outlive(self) -> None:
        """Give the socket to the next keeper, whenever one was killed."""
        while True:
            try:
                await self._keeper.stay.remote()
            except ActorDiedError:
                return  # it was ended for good
            except ActorError:
                await self._give()

    async def _give(self) -> None:
        assert self._socket is not None
        held = Descriptor(self._socket)
        try:
            with _Pipe() as pipe:
                await self._keeper.adopt.remote(self._replica, held, pipe.their_end)
                os.close(self._pipe)
                self._pipe = pipe.detach()
        except ActorError:
            await asyncio.sleep(PAUSE_S)
        finally:
            held.close()


class _Pipe:
    """A new pipe: one end for another process, the other one for this process unless an error comes first."""

    def __init__(self) -> None:
        theirs, self._ours = os.pipe()
        self.their_end = Descriptor(theirs)
        os.close(theirs)

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: Any) -> None:
        self.their_end.close()
        if self._ours >= 0:
            os.close(self._ours)

    def detach(self) -> int:
        """Take our end out of it."""
        ours, self._ours = self._ours, -1
        return ours
