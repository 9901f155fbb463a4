"""What a process knows of deployments: their replicas, and the routes of HTTP.

The controller writes tables to `skate.kv` and publishes each change. A process reads a table when it first needs it and
hears of changes from then on, in a thread. So requests need no controller: it may be dead, and they find their way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

import skate
from skate.exceptions import SkateError
from skate.serve.records import NAMESPACE, Routes, Table
from skate.threads import never_start

__all__ = ["Directory", "directory", "highest_number", "publish_routes", "publish_table", "refresh", "table_keys"]

logger = logging.getLogger("skate.serve")

TOPIC = "tables"
ROUTES = "routes"
TABLE = "table/"
#: The number of a table that says of a deployment that it is not there any more, and was read from the store.
LAST = 1 << 62

_tables = msgspec.msgpack.Decoder(Table)
_routes = msgspec.msgpack.Decoder(Routes)
_encode = msgspec.msgpack.Encoder().encode

#: None: Skate was shut down, so no further table will come.
OnTable = Callable[[Table | None], None]
OnRoutes = Callable[[Routes], None]


def _table_key(key: str) -> str:
    return f"{TABLE}{key}"


def publish_table(table: Table) -> None:
    """Write a table, and tell all processes that serve or ask. Only the controller does."""
    data = _encode(table)
    if table.deleted:
        skate.kv.delete(_table_key(table.key), namespace=NAMESPACE)
    else:
        skate.kv.put(_table_key(table.key), data, namespace=NAMESPACE)
    skate.pubsub.publish(TOPIC, b"t" + data, namespace=NAMESPACE)


def publish_routes(routes: Routes) -> None:
    """Write the routes, and tell all replicas that answer HTTP. Only the controller does."""
    data = _encode(routes)
    skate.kv.put(ROUTES, data, namespace=NAMESPACE)
    skate.pubsub.publish(TOPIC, b"r" + data, namespace=NAMESPACE)


def read_table(key: str) -> Table | None:
    """The table of a deployment as it lies in the store; None if there is no such deployment."""
    data = skate.kv.get(_table_key(key), namespace=NAMESPACE)
    return None if data is None else _tables.decode(data)


def table_keys() -> list[str]:
    """The deployments that have a table."""
    return [each.decode().removeprefix(TABLE) for each in skate.kv.keys(TABLE, namespace=NAMESPACE)]


def read_routes() -> Routes:
    """The routes as they lie in the store."""
    data = skate.kv.get(ROUTES, namespace=NAMESPACE)
    return Routes(0, []) if data is None else _routes.decode(data)


def highest_number() -> int:
    """The number of the latest table, or of the routes if they are later, that lie in the store; 0 without any."""
    tables = [read_table(key) for key in table_keys()]
    return max(read_routes().number, *(each.number for each in tables if each is not None), 0)


def _deleted(key: str) -> Table:
    return Table(key, LAST, 0, 0, deleted=True)


class Directory:
    """The tables that this process uses, kept up to date by a thread until Skate is shut down."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, OnTable] = {}
        self._on_routes: list[OnRoutes] = []
        self._routes_number = 0
        self._subscription = skate.pubsub.subscribe(TOPIC, namespace=NAMESPACE)
        self.ended = False
        threading.Thread(target=self._listen, name="skate-serve-directory", daemon=True).start()

    def watch(self, key: str, on_table: OnTable) -> bool:
        """Call back with the table of a deployment, now and after each change; False if there is no such deployment."""
        table = read_table(key)
        if table is None:
            return False
        with self._lock:
            self._tables[key] = on_table
        on_table(table)
        again = read_table(key) or _deleted(key)  # a change between the two is in it
        if again.number > table.number:
            on_table(again)
        return True

    def watch_routes(self, on_routes: OnRoutes) -> None:
        """Call back with the routes of HTTP, now and after every change."""
        with self._lock:
            self._on_routes.append(on_routes)
        on_routes(read_routes())

    def forget(self, key: str) -> None:
        """Stop calling back for a deployment."""
        with self._lock:
            self._tables.pop(key, None)

    def read_all(self) -> None:
        """Read everything from the store: what was published may not have come yet, or was missed."""
        for key, on_table in list(self._tables.items()):
            on_table(read_table(key) or _deleted(key))
        self._tell_routes(read_routes())

    def _listen(self) -> None:
        never_start()
        missed = 0
        try:
            for message in self._subscription:
                try:
                    if self._subscription.missed > missed:
                        missed = self._subscription.missed
                        self.read_all()
                    else:
                        self._hear(message)
                except Exception:
                    if not skate.is_initialized():
                        break
                    logger.exception("a table of replicas, or the routes, could not be taken over")
        except SkateError:  # the connection to the node is lost
            pass
        self.ended = True
        for on_table in list(self._tables.values()):
            on_table(None)

    def _hear(self, message: bytes) -> None:
        if message[:1] == b"t":
            table = _tables.decode(memoryview(message)[1:])
            on_table = self._tables.get(table.key)
            if on_table is not None:
                on_table(table)
        else:
            self._tell_routes(_routes.decode(memoryview(message)[1:]))

    def _tell_routes(self, routes: Routes) -> None:
        with self._lock:  # what was read may be older than what was heard meanwhile
            if routes.number < self._routes_number:
                return
            self._routes_number = routes.number
        for on_routes in list(self._on_routes):
            on_routes(routes)


_directory: Directory | None = None
_making = threading.Lock()


def directory() -> Directory:
    """The directory of this process."""
    global _directory
    found = _directory
    if found is not None and not found.ended:
        return found
    with _making:
        if _directory is None or _directory.ended:
            _directory = Directory()
        return _directory


def refresh() -> None:
    """Have this process know what the controller has said up to now."""
    found = _directory
    if found is not None and not found.ended:
        found.read_all()
