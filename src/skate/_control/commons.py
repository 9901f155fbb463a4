"""What programs of a cluster share besides actors: functions, keys with values, and topics.

For a node that is alone it runs in the node's daemon, otherwise in the control service.
"""

from __future__ import annotations

from skate._control.functions import Functions
from skate._control.kv import KeyValues
from skate._control.ledger import Ledger
from skate._control.topics import Publish, Send, Topics
from skate._wire import messages as wire

MESSAGES = (wire.Define, wire.Undefine, wire.KeyValue, wire.Topic)


class Commons:
    def __init__(self, send: Send, publish: Publish, ledger: Ledger | None = None) -> None:
        """publish: sends to subscribers, who may be slow. Without a ledger all of it ends with this process."""
        self._send = send
        ledger = ledger or Ledger()
        self.functions = Functions(ledger)
        self.key_values = KeyValues(ledger)
        self._topics = Topics(publish)

    def handle(self, process_id: bytes, message: wire.Define | wire.Undefine | wire.KeyValue | wire.Topic) -> None:
        if isinstance(message, wire.Define | wire.Undefine):
            self.functions.handle(process_id, message)
            return
        if isinstance(message, wire.KeyValue):
            body = self.key_values.handle(message)
        else:
            body = self._topics.handle(process_id, message)
        if message.request:
            self._send(process_id, wire.Answer(message.request, body))

    def process_died(self, process_id: bytes) -> None:
        self.functions.process_died(process_id)
        self._topics.process_died(process_id)

    def node_died(self, number: int) -> None:
        """All its processes are gone."""
        self.functions.node_died(number)
        self._topics.node_died(number)
