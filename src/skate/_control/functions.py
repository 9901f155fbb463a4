"""The functions and classes of a cluster: each is here once, however many processes and actors need it.

    process ──Define──▶ Functions ──its definition, to start an actor──▶ worker
            ──Undefine─▶

Processes send tasks and what they call to their workers directly; they tell this table of it a moment later. An actor
is made of what the table has: it may start again when nobody else knows its class any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from skate._control.ledger import Ledger
from skate._core.ids import node_of
from skate._wire import messages as wire

TABLE = "functions"

_encode = msgspec.msgpack.Encoder().encode


class Known(msgspec.Struct):
    """A function that processes or actors need."""

    define: wire.Define
    processes: set[bytes] = msgspec.field(default_factory=set)
    actors: set[bytes] = msgspec.field(default_factory=set)


class Functions:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[bytes, Known] = {}

    # -- processes ----------------------------------------------------------------------------------------------------

    def handle(self, process_id: bytes, message: wire.Define | wire.Undefine) -> None:
        if isinstance(message, wire.Undefine):
            for fn in message.fns:
                if fn in self._known:
                    self._known[fn].processes.discard(process_id)
                    self._forget_unneeded([fn])
            return
        known = self._known.get(message.fn)
        if known is None:
            known = self._known[message.fn] = Known(message)
            self._ledger.put(TABLE, message.fn, _encode(message))
        known.processes.add(process_id)

    def process_died(self, process_id: bytes) -> None:
        for known in self._known.values():
            known.processes.discard(process_id)
        self._forget_unneeded(self._known)

    def node_died(self, number: int) -> None:
        for known in self._known.values():
            known.processes = {process for process in known.processes if node_of(process) != number}
        self._forget_unneeded(self._known)

    # -- actors -------------------------------------------------------------------------------------------------------

    def hold(self, fn: bytes, actor: bytes) -> None:
        """For as long as the actor may start again."""
        if fn in self._known:
            self._known[fn].actors.add(actor)

    def let_go(self, fn: bytes, actor: bytes) -> None:
        if fn in self._known:
            self._known[fn].actors.discard(actor)
            self._forget_unneeded([fn])

    def get(self, fn: bytes) -> wire.Define | None:
        known = self._known.get(fn)
        return None if known is None else known.define

    def _forget_unneeded(self, fns: Iterable[bytes]) -> None:
        for fn in list(fns):
            known = self._known[fn]
            if not known.processes and not known.actors:
                del self._known[fn]
                self._ledger.forget(TABLE, fn)

    # -- looking inside -----------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "function_id": fn,
                "name": known.define.name,
                "bytes": len(known.define.definition),
                "processes": len(known.processes),
                "actors": len(known.actors),
            }
            for fn, known in self._known.items()
        ]
