"""Keys and values that programs keep in the cluster: small, and the same wherever one asks.

A process whose answer was lost with the service asks again, over the same numbered message. So a row says who wrote it
last: the answer is then the one that was lost, and nothing is written twice. A key that was deleted keeps such a row
until its writer is known to have the answer.

Owns:      the values, and the writes whose answers may be asked for again.
Knows not: processes and nodes; who wrote is a name and a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from skate._control.state.tables import KV, ValueRow, Writer, pack
from skate._wire import messages as wire
from skate._wire.protocol_error import ProtocolError


class KeyValues:
    """All of them are in memory."""

    def __init__(self, mark: Callable[[str, bytes], None]) -> None:
        """mark: called with the table and the key of each row that has changed."""
        self._mark = mark
        self._values: dict[bytes, bytes] = {}
        #: By key, the oldest first; and the keys by who wrote them and in which message.
        self._writers: dict[bytes, list[Writer]] = {}
        self._written: dict[bytes, dict[int, bytes]] = {}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[bytes, ValueRow]]) -> None:
        for key, row in rows:
            if row.value is not None:
                self._values[key] = row.value
            for writer in row.writers:
                self._writers.setdefault(key, []).append(writer)
                self._written.setdefault(writer[0], {})[writer[1]] = key

    def row(self, key: bytes) -> bytes | None:
        value, writers = self._values.get(key), self._writers.get(key)
        return None if value is None and not writers else pack(ValueRow(value, writers or []))

    # -- requests -----------------------------------------------------------------------------------------------------

    def handle(self, message: wire.KeyValue, process_id: bytes = b"", number: int = 0) -> Any:
        """The answer. number: of the message; 0: it will not be said again."""
        key = _row(message.namespace) + message.key
        match message.what:
            case "get":
                return self._values.get(key)
            case "put" | "delete":
                for writer in self._writers.get(key, ()):
                    if writer[:2] == (process_id, number):
                        return writer[2]
                return self._write(key, message, process_id, number)
            case "keys":
                skip = len(_row(message.namespace))
                return [found[skip:] for found in sorted(self._values) if found.startswith(key)]
        raise ProtocolError(f"there is no way to {message.what!r} a key")

    def values(self, namespace: str) -> list[bytes]:
        """All of a namespace, in the order of their keys."""
        prefix = _row(namespace)
        return [self._values[key] for key in sorted(self._values) if key.startswith(prefix)]

    def _write(self, key: bytes, message: wire.KeyValue, process_id: bytes, number: int) -> bool:
        if message.what == "put":
            done = message.overwrite or key not in self._values
            if done:
                self._values[key] = message.value
        else:
            done = self._values.pop(key, None) is not None
        if done:
            if number:
                self._writers.setdefault(key, []).append((process_id, number, True))
                self._written.setdefault(process_id, {})[number] = key
            self._mark(KV, key)
        return done

    # -- writers ------------------------------------------------------------------------------------------------------

    def forget_writes(self, process_id: bytes, up_to: int | None = None) -> None:
        """That process has the answers up to this message; None: it is gone, and asks no more."""
        written = self._written.get(process_id)
        if not written:
            return
        for number in [number for number in written if up_to is None or number <= up_to]:
            key = written.pop(number)
            left = [writer for writer in self._writers[key] if writer[:2] != (process_id, number)]
            if left:
                self._writers[key] = left
            else:
                del self._writers[key]
                if key not in self._values:
                    self._mark(KV, key)
        if not written:
            del self._written[process_id]

    def writers(self) -> list[bytes]:
        """Processes that may ask again."""
        return list(self._written)


def _row(namespace: str) -> bytes:
    return namespace.encode() + b"\0"
