"""What programs of a cluster share besides actors: functions, keys with values, and topics.

For a node that is alone it runs in the node's daemon, otherwise in the control service.
"""

from __future__ import annotations

from typing import Any

from skate._control.backend import Backend, Memory
from skate._control.functions import Functions
from skate._control.kv import KeyValues
from skate._control.topics import Publish, Send, Topics
from skate._wire import messages as wire

MESSAGES = (wire.Define, wire.Undefine, wire.KeyValue, wire.Topic)


class Commons:
    def __init__(self, send: Send, publish: Publish, backend: Backend | None = None) -> None:
        """publish: sends to subscribers, who may be slow."""
        self._send = send
        backend = backend or Memory()
        self.functions = Functions(backend)
        self.key_values = KeyValues(backend)
        self._topics = Topics(publish)

    def handle(self, process_id: bytes, message: wire.Define | wire.Undefine | wire.KeyValue | wire.Topic) -> None:
        if isinstance(message, wire.Define | wire.Undefine):
            self.functions.handle(process_id, message)
            return

        def answer(body: Any) -> None:
            if message.request:
                self._send(process_id, wire.Answer(message.request, body))

        if isinstance(message, wire.KeyValue):
            self.key_values.handle(message, answer)
        else:
            answer(self._topics.handle(process_id, message))

    def process_died(self, process_id: bytes) -> None:
        self.functions.process_died(process_id)
        self._topics.process_died(process_id)

    def node_died(self, number: int) -> None:
        """All its processes are gone."""
        self.functions.node_died(number)
        self._topics.node_died(number)
