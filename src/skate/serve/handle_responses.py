"""Responses: what `remote()` of a handle returns at once, and what the result or the stream comes from."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import skate
from skate.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NotInitializedError,
    SerializationError,
    TaskCancelledError,
    TaskError,
)
from skate.serve.dispatch import Dispatcher, said_of
from skate.serve.exceptions import NotSupportedError, RequestCancelledError
from skate.serve.request import Request

__all__ = ["DeploymentResponse", "DeploymentResponseGenerator"]

#: The event loop that runs in this thread, if any. Unlike `asyncio.get_running_loop` it raises nothing.
_running_loop = asyncio._get_running_loop


class _Response:
    """What both kinds of responses have in common."""

    def __init__(self, owner: Dispatcher, request: Request) -> None:
        self._owner = owner
        self._request = request

    @property
    def request_id(self) -> str:
        """The id of the HTTP request that it belongs to; "" if there is none."""
        return self._request.id

    def cancel(self) -> None:
        """Take the request back: one that waits is never run, and in `async` code that runs a CancelledError is raised.

        Code of a plain function that runs goes on; its result is dropped.
        """
        self._owner.cancel(self._request)

    def cancelled(self) -> bool:
        """Whether it was cancelled here."""
        return self._request.is_cancelled

    def _wait_until_bound(self, deadline: float | None, timeout_s: float | None = None) -> None:
        """Wait until the request was sent. Raises its error, if it never will be."""
        request = self._request
        if not request.is_bound:
            arrived = threading.Event()
            request.when_bound(arrived.set)
            if not arrived.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise self._too_late(timeout_s)
        if request.error is not None:
            raise request.error

    def _told(self, error: BaseException) -> BaseException | None:
        """The error in words of serving, if it speaks of the replica and its methods; None if it is the handler's."""
        if isinstance(error, TaskError):
            return None
        if isinstance(error, TaskCancelledError):
            return RequestCancelledError(self._request.id)
        if isinstance(error, SerializationError):
            return said_of(self._name, error)
        seat = self._request.seat
        if not isinstance(error, (ActorDiedError, ActorUnavailableError)) or seat is None:
            return None
        if error.actor_id != seat.target._actor_id.hex():  # it is the error of an argument
            return None
        was = "died" if isinstance(error, ActorDiedError) else "cannot be reached at present"
        facts = {name: getattr(error, name) for name in ("actor_id", "actor_name", "reason", "last_output")}
        advice = "ask again if the request may run twice; handle.options(idempotent=True) does that by itself."
        if self._request.idempotent and self._request.attempts > 1:
            advice = f"{self._request.attempts} replicas were tried. Perhaps the request itself ends them."
        _, _, rest = str(type(error)(**facts, next=advice)).partition("\n")
        return type(error)(f"the replica that worked on {self._name} {was}.\n{rest}", **facts)

    @property
    def _name(self) -> str:
        """What was called."""
        return f"{self._request.method} of {self._owner.key}"

    def _too_late(self, timeout_s: float | None) -> GetTimeoutError:
        """The error of a wait that was longer than the caller wanted."""
        if self._request.is_bound:
            why = "a replica has the request, and works on it, or on those before it."
        elif self._owner.router.seats:
            why = "all replicas are busy, and the request waits for a place in one."
        else:
            why = "there is no replica at present, and the request waits for one; serve.status() says more."
        return GetTimeoutError(
            f"{self._name} has no result after {timeout_s or 0:g} s.\n  why:  {why}\n"
            "  next: call result() again (the request goes on), give it more time, or cancel() it.",
            timeout_s=timeout_s,
        )

    async def _until_bound(self) -> None:
        request = self._request
        if not request.is_bound:
            loop = asyncio.get_running_loop()
            arrived = loop.create_future()

            def tell() -> None:
                loop.call_soon_threadsafe(_settle, arrived)

            request.when_bound(tell)
            await arrived
        if request.error is not None:
            raise request.error


class DeploymentResponse(_Response):
    """The result of a request, once it is there."""

    def result(self, timeout_s: float | None = None, *, _skip_asyncio_check: bool = False) -> Any:
        """Wait for the result. Raises what the handler raised, and TimeoutError after `timeout_s`."""
        if not _skip_asyncio_check and _running_loop() is not None:
            _refuse_in_loop(self)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        request = self._request
        while True:
            if not request.is_bound or request.error is not None:
                self._wait_until_bound(deadline, timeout_s)
            ref = request.ref
            if self._owner.ended:  # else `skate.get` would start another runtime
                raise NotInitializedError(call=f"result() of {self!r}")
            try:
                answer = skate.get(ref, timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except BaseException as error:
                if isinstance(error, GetTimeoutError) and not isinstance(error, TaskError):
                    raise self._too_late(timeout_s) from None
                if isinstance(error, KeyboardInterrupt) and not isinstance(error, TaskError):
                    raise
                if self._owner.repeats(request, ref, error):
                    continue
                self._owner.answered(request)
                if (told := self._told(error)) is not None:
                    raise told from None
                raise
            self._owner.answered(request)
            return self._value(answer)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        request = self._request
        ref: Any = None
        while True:
            try:
                if not request.is_bound or request.error is not None:
                    await self._until_bound()
                ref = request.ref
                answer = await ref
            except asyncio.CancelledError:
                self.cancel()
                raise
            except BaseException as error:
                if request.error is error:
                    raise
                if self._owner.repeats(request, ref, error):
                    continue
                self._owner.answered(request)
                if (told := self._told(error)) is not None:
                    raise told from None
                raise
            self._owner.answered(request)
            return self._value(answer)

    def _value(self, answer: tuple[Any, int]) -> Any:
        value, load = answer
        seat = self._request.seat
        if seat is not None:
            self._owner.router.heard(seat, load)
        return value

    def _to_object_ref_sync(self) -> Any:
        """A reference to the result, for tasks and actors of Skate."""
        return _value_of.remote(self._ref())

    async def _to_object_ref(self) -> Any:
        """The same in an event loop."""
        await self._until_bound()
        return _value_of.remote(self._request.ref)

    def _ref(self) -> Any:
        if not self._request.is_bound and _running_loop() is not None:
            _refuse_in_loop(self)
        self._wait_until_bound(None)
        return self._request.ref

    def __reduce__(self) -> Any:
        return _Received, (self._ref(),)

    def __del__(self) -> None:
        if self._request.counted is not None:
            self._owner.dropped(self._request)

    def __repr__(self) -> str:
        return f"DeploymentResponse({self._name})"


class _Received:
    """A response that was sent inside another value: it can be waited for where it arrives."""

    def __init__(self, ref: Any) -> None:
        self._ref = ref

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result."""
        return skate.get(self._ref, timeout=timeout_s)[0]

    def __await__(self) -> Generator[Any, None, Any]:
        answer = yield from self._ref.__await__()
        return answer[0]


class DeploymentResponseGenerator(_Response):
    """What a method yields, as it comes: `for item in response`, or `async for`."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if _running_loop() is not None:
            _refuse_in_loop(self)
        request = self._request
        while True:
            self._wait_until_bound(None)
            ref = request.ref
            try:
                item = skate.get(next(ref))
            except StopIteration:
                raise
            except Exception as error:
                if self._owner.repeats(request, ref, error):
                    continue
                if (told := self._told(error)) is not None:
                    raise told from None
                raise
            request.has_begun = True
            return item

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = self._request
        ref: Any = None
        while True:
            try:
                await self._until_bound()
                ref = request.ref
                item = await (await ref.__anext__())
            except asyncio.CancelledError:
                self.cancel()
                raise
            except StopAsyncIteration:
                raise
            except Exception as error:
                if request.error is error:
                    raise
                if self._owner.repeats(request, ref, error):
                    continue
                if (told := self._told(error)) is not None:
                    raise told from None
                raise
            request.has_begun = True
            return item

    def __del__(self) -> None:
        # The runtime ends a stream that no process refers to.
        self._request.is_cancelled = True
        self._request.ref = None

    def result(self, *_: Any, **__: Any) -> Any:
        raise TypeError("this response is a stream.\n  next: iterate over it, or leave out options(stream=True).")

    def __reduce__(self) -> Any:
        raise NotSupportedError("a stream cannot be sent elsewhere.\n  next: read it here and send what it yields.")

    def __repr__(self) -> str:
        return f"DeploymentResponseGenerator({self._name})"


@skate.remote(num_cpus=0)
def _value_of(answer: Any) -> Any:
    return answer[0]


def _refuse_in_loop(response: _Response) -> None:
    raise RuntimeError(
        f"{response!r} cannot be waited for in an event loop, which would stand still.\n"
        "  next: `await` it, or `async for` if it is a stream."
    )


def _settle(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
