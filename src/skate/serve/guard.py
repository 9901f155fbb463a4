"""What ends a request before its handler does: the client goes, or the time is over.

A guard costs an entry in a list of the server. Only a limit of time costs more: a timer, and a look at every message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from skate.serve.responses import Message, Scope, Send

__all__ = ["Guard", "TimeGuard", "is_raised_by_code"]


def is_raised_by_code() -> bool:
    """Whether the CancelledError that was just caught is an error of the running code: its task was not cancelled.

    A handler raises it if it awaits something else that was cancelled. Before Python 3.11 that cannot be told.
    """
    task: Any = asyncio.current_task()
    return hasattr(task, "cancelling") and not task.cancelling()


class Guard:
    """Cancels the task that makes it when its client goes before it has the answer."""

    __slots__ = ("_task", "has_cut")

    #: Whether the time was over before the answer was complete.
    is_late = False

    def __init__(self, scope: Scope) -> None:
        #: The task to cancel; None after `end`.
        extensions = scope["extensions"]
        self._task: asyncio.Task[Any] | None = extensions.get("skate.task") or asyncio.current_task()
        self.has_cut = False
        extensions["skate.disconnect"](self._cut)

    def end(self) -> None:
        """Guard no longer. May be called again."""
        self._task = None

    async def conclude(self) -> None:
        """After the time was over: return when the client has its answer, or raise if it has only part of one."""

    def caused_cancellation(self) -> bool:
        """Whether the CancelledError that was just caught comes from this guard alone, and ends here."""
        if not self.has_cut:
            return False
        task: Any = asyncio.current_task()
        # Before Python 3.11 a task does not count who cancelled it.
        return not hasattr(task, "uncancel") or task.uncancel() == 0

    def _cut(self) -> None:
        if self._task is not None and not self.has_cut:
            self.has_cut = True
            self._task.cancel()


class TimeGuard(Guard):
    """The same, also when the time is over before the answer is complete.

    The client hears of it at once, by `too_late`, although a plain function in a thread may work on. What the handler
    sends after that is dropped.
    """

    __slots__ = ("_answering", "_has_started", "_is_complete", "_send", "_timer", "_too_late", "is_late")

    def __init__(self, scope: Scope, send: Send, timeout_s: float, too_late: Callable[[], Awaitable[None]]) -> None:
        super().__init__(scope)
        self._send, self._too_late = send, too_late
        self._has_started = self._is_complete = False
        self._answering: asyncio.Future[None] | None = None
        #: Whether the time was over before the answer was complete.
        self.is_late = False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._on_late)

    async def send(self, message: Message) -> None:
        """Send a message of the handler."""
        if self.is_late:
            return
        if message["type"] == "http.response.start":
            self._has_started = True
        elif not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def conclude(self) -> None:
        """As it says above."""
        if self._answering is None:
            raise ConnectionAbortedError("the time was over in the middle of an answer")
        await self._answering

    def end(self) -> None:
        """Guard no longer. May be called again."""
        super().end()
        self._timer.cancel()

    def _on_late(self) -> None:
        if self._task is None or self._is_complete or self.has_cut:
            return
        self.is_late = True
        if not self._has_started:
            self._answering = asyncio.ensure_future(self._too_late())
        self._cut()
