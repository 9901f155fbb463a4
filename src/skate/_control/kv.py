"""Keys and values that programs keep in the cluster: small, and the same wherever one asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skate._control.backend import Backend
from skate._wire import messages as wire
from skate._wire.guard import ProtocolError

TABLE = "kv"

Answer = Callable[[Any], None]


class KeyValues:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def handle(self, message: wire.KeyValue, answer: Answer) -> None:
        key = message.namespace.encode() + b"\0" + message.key
        match message.what:
            case "get":
                self._backend.get(TABLE, key, answer)
            case "put":
                self._put(key, message, answer)
            case "delete":
                self._backend.delete(TABLE, key, answer)
            case "keys":
                skip = len(message.namespace.encode()) + 1
                self._backend.scan(TABLE, key, lambda pairs: answer([found[skip:] for found, _ in pairs]))
            case _:
                raise ProtocolError(f"nobody knows how to {message.what!r} a key")

    def values(self, namespace: str, answer: Answer) -> None:
        """All of a namespace, in the order of their keys."""
        self._backend.scan(TABLE, namespace.encode() + b"\0", lambda pairs: answer([value for _, value in pairs]))

    def _put(self, key: bytes, message: wire.KeyValue, answer: Answer) -> None:
        def on_known(known: bytes | None) -> None:
            if known is not None and not message.overwrite:
                answer(False)
            else:
                self._backend.put(TABLE, key, message.value, lambda: answer(True))

        self._backend.get(TABLE, key, on_known)
