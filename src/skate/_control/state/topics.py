"""Topics: a subscriber hears what is published on one from then on, wherever that was done.

All messages of a topic pass through here, one after the other, so all subscribers hear them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from skate._core.ids import node_of
from skate._wire import messages as wire
from skate._wire.protocol_error import ProtocolError

Publish = Callable[[bytes, wire.Published], None]


class Topics:
    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        #: By namespace and topic; none of them is empty.
        self._subscribers: dict[tuple[str, str], set[bytes]] = {}

    def handle(self, process_id: bytes, message: wire.Topic) -> int:
        """How many processes are subscribed now, or were told."""
        key = (message.namespace, message.topic)
        match message.what:
            case "subscribe":
                self._subscribers.setdefault(key, set()).add(process_id)
            case "unsubscribe":
                self._forget(key, lambda process: process == process_id)
            case "publish":
                for subscriber in sorted(self._subscribers.get(key, ())):
                    self._publish(subscriber, wire.Published(message.namespace, message.topic, message.data))
            case _:
                raise ProtocolError(f"there is no way to {message.what!r} a topic")
        return len(self._subscribers.get(key, ()))

    def process_died(self, process_id: bytes) -> None:
        for key in list(self._subscribers):
            self._forget(key, lambda process: process == process_id)

    def node_died(self, number: int) -> None:
        for key in list(self._subscribers):
            self._forget(key, lambda process: node_of(process) == number)

    def _forget(self, key: tuple[str, str], is_meant: Callable[[bytes], bool]) -> None:
        left = {process for process in self._subscribers.get(key, ()) if not is_meant(process)}
        if left:
            self._subscribers[key] = left
        else:
            self._subscribers.pop(key, None)
