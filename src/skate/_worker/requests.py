"""Questions that this process has asked, of the node daemon or of other processes, and the replies to them.

Owns:      the numbers of requests, and replies that nobody has picked up yet.
Invariant: a reply to somebody who was interrupted meanwhile is undone, and never kept.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._wire.channel import TooLarge
from skate._wire.messages import Answer, DescriptorGiven, Message
from skate.exceptions import ControlUnavailableError, MessageTooLargeError, NodeDiedError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


class Requests:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = itertools.count(1)
        self._replies: dict[int, Any] = {}
        #: Requests whose askers were interrupted, and what to do with replies that still come.
        self._abandoned: dict[int, Callable[[Any], None] | None] = {}

    def request(
        self,
        make: Callable[[int], Message],
        deadline: float | None = None,
        undo: Callable[[Any], None] | None = None,
    ) -> Any:
        """Ask the node daemon and wait for the reply. Not with the lock held."""
        return self.ask(self._runtime.send, make, deadline, undo)

    def ask(
        self,
        send: Callable[[Message], None],
        make: Callable[[int], Message],
        deadline: float | None = None,
        undo: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a request and wait for its reply; None if the deadline passed.

        Whoever waits may be interrupted. Then a reply that still comes is given to `undo`, with the lock held. Raises
        MessageTooLargeError if the question or the answer does not fit into a message.
        """
        number = next(self._numbers)
        replies, runtime = self._replies, self._runtime
        try:
            send(make(number))
            runtime.loop.wait(lambda: number in replies or runtime.broken or runtime.closed, deadline)
            reply = replies.pop(number, None)
        except TooLarge as error:
            message, size = error.unsent[0]
            raise MessageTooLargeError(
                what=f"a request to the node ({type(message).__name__})",
                size_bytes=size,
                limit_bytes=error.limit,
                next="use shorter names and keys, or fewer of them; values that are large go into the object store.",
            ) from None
        except BaseException:
            self._abandon_request(number, undo)
            raise
        if reply is not None:
            if type(reply) is Answer and reply.is_unavailable:
                raise ControlUnavailableError(reason=reply.error)
            if type(reply) is Answer and reply.error:
                raise MessageTooLargeError(f"there is no answer: {reply.error}.")
            return reply
        if runtime.broken:
            raise runtime.broken
        self._abandon_request(number, undo)
        if runtime.closed:
            raise NodeDiedError("skate.shutdown() was called before the answer came.")
        return None

    def _abandon_request(self, number: int, undo: Callable[[Any], None] | None) -> None:
        with self._runtime.lock:
            reply = self._replies.pop(number, None)
            if reply is None:
                self._abandoned[number] = undo
            elif undo is not None:
                undo(reply)

    def on_reply(self, message: Any) -> None:
        self._on_reply(message.request, message)

    def on_descriptor(self, message: DescriptorGiven, fds: deque[int]) -> None:
        """The reply is the reason why there is none, or the descriptor, which came beside the message."""
        self._on_reply(message.request, message.reason or fds.popleft())

    def _on_reply(self, number: int, reply: Any) -> None:
        if number in self._abandoned:
            undo = self._abandoned.pop(number)
            if undo is not None:
                undo(reply)
        else:
            self._replies[number] = reply
