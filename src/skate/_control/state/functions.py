"""The functions and classes of a cluster: each is here once, however many processes and actors need it.

    process ──Define──▶ Functions ──its definition, to start an actor──▶ worker
            ──Undefine─▶

Processes send tasks and what they call to their workers directly; they tell this table of it a moment later. An actor
is made of what the table has: it may start again when no process knows its class any longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from skate._control.state.tables import FUNCTIONS, pack
from skate._core.ids import node_of
from skate._wire import messages as wire


class Known(msgspec.Struct):
    """A function that processes or actors need."""

    define: wire.Define
    processes: set[bytes] = msgspec.field(default_factory=set)
    actors: set[bytes] = msgspec.field(default_factory=set)


class Functions:
    def __init__(self, mark: Callable[[str, bytes], None]) -> None:
        """mark: called with the table and the key of each row that has changed."""
        self._mark = mark
        self._known: dict[bytes, Known] = {}
        #: The control service was started again, and not all nodes have come back.
        self.keeps_all = False
        #: Processes that have yet to say which functions they need, after a restart. Until then none is forgotten.
        self._awaited: set[bytes] = set()

    # -- rows ---------------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[bytes, wire.Define]]) -> None:
        self._known = {fn: Known(define) for fn, define in rows}

    def row(self, fn: bytes) -> bytes | None:
        known = self._known.get(fn)
        return None if known is None else pack(known.define)

    # -- processes ----------------------------------------------------------------------------------------------------

    def handle(self, process_id: bytes, message: wire.Define | wire.Undefine | wire.Needs) -> None:
        match message:
            case wire.Undefine(fns):
                for fn in fns:
                    if fn in self._known:
                        self._known[fn].processes.discard(process_id)
                        self._forget_unneeded([fn])
            case wire.Needs(fns):
                for fn in fns:
                    if fn in self._known:
                        self._known[fn].processes.add(process_id)
                self._has_said(process_id)
            case wire.Define():
                known = self._known.get(message.fn)
                if known is None:
                    known = self._known[message.fn] = Known(message)
                    self._mark(FUNCTIONS, message.fn)
                known.processes.add(process_id)

    def await_needs(self, process_ids: Iterable[bytes]) -> None:
        """These processes will say which functions they need."""
        self._awaited.update(process_ids)

    def _has_said(self, process_id: bytes) -> None:
        if process_id in self._awaited:
            self._awaited.discard(process_id)
            if not self._awaited:
                self.forget_unneeded()

    def process_died(self, process_id: bytes) -> None:
        for known in self._known.values():
            known.processes.discard(process_id)
        self._awaited.discard(process_id)
        self.forget_unneeded()

    def node_died(self, number: int) -> None:
        for known in self._known.values():
            known.processes = {process for process in known.processes if node_of(process) != number}
        self._awaited = {process for process in self._awaited if node_of(process) != number}
        self.forget_unneeded()

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

    def forget_unneeded(self) -> None:
        self._forget_unneeded(self._known)

    def _forget_unneeded(self, fns: Iterable[bytes]) -> None:
        if self.keeps_all or self._awaited:
            return
        for fn in list(fns):
            known = self._known[fn]
            if not known.processes and not known.actors:
                del self._known[fn]
                self._mark(FUNCTIONS, fn)

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


MESSAGES = (wire.Define, wire.Undefine, wire.Needs)
