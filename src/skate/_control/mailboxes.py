"""What is published, on its way to subscribers that do not read as fast: it waits here, where there is a bound.

A channel or a link keeps whatever it is given, so it is given no more while the other end does not read.
"""

from __future__ import annotations

from collections.abc import Callable

from skate._core.mailbox import Mailbox
from skate._wire import messages as wire

Topic = tuple[str, str]


class Mailboxes:
    def __init__(
        self, send: Callable[[bytes, wire.Message], None], is_congested: Callable[[bytes], bool | None]
    ) -> None:
        """is_congested: whether what is sent to a process would only pile up; None: the process is gone."""
        self._send = send
        self._is_congested = is_congested
        self._boxes: dict[bytes, Mailbox[Topic]] = {}

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._boxes)

    def deliver(self, process_id: bytes, message: wire.Published) -> None:
        """Now, or when the process has read what it was sent before."""
        box = self._boxes.get(process_id)
        if box is None:
            if not self._is_congested(process_id):
                self._send(process_id, message)
                return
            box = self._boxes[process_id] = Mailbox()
        topic = (message.namespace, message.topic)
        if message.data is not None:
            box.add(topic, message.data)
        box.miss(topic, message.missed)

    def send_waiting(self) -> None:
        """To those that read again."""
        for process_id, box in list(self._boxes.items()):
            congested = self._is_congested(process_id)
            while box and congested is False:
                (namespace, topic), data, missed = box.take()
                self._send(process_id, wire.Published(namespace, topic, data, missed))
                congested = self._is_congested(process_id)
            if not box or congested is None:
                del self._boxes[process_id]

    def waiting_bytes(self) -> int:
        return sum(box.size for box in self._boxes.values())
