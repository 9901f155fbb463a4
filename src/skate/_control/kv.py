"""Keys and values that programs keep in the cluster: small, and the same wherever one asks."""

from __future__ import annotations

from typing import Any

from skate._control.ledger import Ledger
from skate._wire import messages as wire
from skate._wire.guard import ProtocolError

TABLE = "kv"


class KeyValues:
    """All of them are in memory; what changes is told to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._values: dict[bytes, bytes] = dict(ledger.rows(TABLE))

    def handle(self, message: wire.KeyValue) -> Any:
        """The answer."""
        key = _row(message.namespace) + message.key
        match message.what:
            case "get":
                return self._values.get(key)
            case "put":
                return self._put(key, message)
            case "delete":
                if self._values.pop(key, None) is None:
                    return False
                self._ledger.forget(TABLE, key)
                return True
            case "keys":
                skip = len(_row(message.namespace))
                return [found[skip:] for found in sorted(self._values) if found.startswith(key)]
        raise ProtocolError(f"there is no way to {message.what!r} a key")

    def values(self, namespace: str) -> list[bytes]:
        """All of a namespace, in the order of their keys."""
        prefix = _row(namespace)
        return [self._values[key] for key in sorted(self._values) if key.startswith(prefix)]

    def _put(self, key: bytes, message: wire.KeyValue) -> bool:
        if key in self._values and not message.overwrite:
            return False
        self._values[key] = message.value
        self._ledger.put(TABLE, key, message.value)
        return True


def _row(namespace: str) -> bytes:
    return namespace.encode() + b"\0"
