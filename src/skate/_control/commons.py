"""What programs of a cluster share besides actors: keys with values, and topics.

For a node that is alone it runs in the node's daemon, otherwise in the control service.
"""

from __future__ import annotations

from typing import Any

from skate._control.backend import Backend, Memory
from skate._control.kv import KeyValues
from skate._control.topics import Send, Topics
from skate._wire import messages as wire

MESSAGES = (wire.KeyValue, wire.Topic)


class Commons:
    def __init__(self, send: Send, backend: Backend | None = None) -> None:
        self._send = send
        self.key_values = KeyValues(backend or Memory())
        self.topics = Topics(send)

    def handle(self, process_id: bytes, message: wire.KeyValue | wire.Topic) -> None:
        def answer(body: Any) -> None:
            if message.request:
                self._send(process_id, wire.Answer(message.request, body))

        if isinstance(message, wire.KeyValue):
            self.key_values.handle(message, answer)
        else:
            answer(self.topics.handle(process_id, message))
