"""What a node that is alone has in the place of other nodes: none of them, and nothing between it and them.

The daemon asks the same questions wherever it runs, and does the same with the answers.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from skate._core.ids import new_node_id
from skate._core.resources import marks_of_node
from skate._node.local_control import LocalControl
from skate._node.system import LOOPBACK
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._core.placement import NodeView
    from skate._node.daemon import Daemon


class NoTransfers:
    """All objects are here."""

    def on_pin(self, process_id: bytes, message: wire.Pin) -> bool:
        return False

    def on_prefetch(self, process_id: bytes, message: wire.Prefetch) -> None:
        pass

    def on_store_reply(self, process_id: bytes, message: wire.Message) -> None:
        """Its process is gone."""

    def on_freed(self, ids: list[bytes]) -> None:
        pass

    def free_copies(self, ids: list[bytes]) -> None:
        pass

    def on_process_died(self, process_id: bytes) -> None:
        pass

    def describe(self) -> dict[bytes, Any]:
        return {}


class NoBridges:
    """No process is elsewhere. References of other sessions may name one: it is dead."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def connect(self, ours: bytes, theirs: bytes, again: bool = False) -> None:
        self._daemon.send(ours, self._daemon.switchboard.death_of(theirs))

    def on_process_died(self, process_id: bytes) -> None:
        pass


class NoCallers:
    """No listener is elsewhere."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def call(self, process: bytes, message: wire.CallListener) -> None:
        reason = "its node is not part of this session: the address is of another one"
        self._daemon.send(process, wire.DescriptorGiven(message.request, reason))


class NoReach:
    """Nothing can be cut."""

    def is_cut(self, node: int) -> bool:
        return False

    def describe(self) -> dict[int, str]:
        return {}


class NoNeighbours:
    #: Other nodes may come, and what waits here can go there.
    may_come = False

    def __init__(self, daemon: Daemon) -> None:
        self.node_id: bytes = new_node_id()
        self.members: dict[int, Any] = {}
        self.departed: tuple[Any, ...] = ()
        self.guests: dict[bytes, Any] = {}
        self.host, self.name = LOOPBACK, socket.gethostname()
        self.transfers, self.bridges = NoTransfers(), NoBridges(daemon)
        self.callers, self.reach = NoCallers(daemon), NoReach()
        self.control = LocalControl(daemon)
        daemon.total.update(marks_of_node(LOOPBACK, is_head=True))

    def begin(self) -> None:
        """Nothing has to be told of it."""

    def stakes_of_others(self) -> dict[int, tuple[int, list[int]]]:
        return {}

    def views(self) -> list[NodeView]:
        return []

    def describe(self, process_id: bytes) -> str:
        return ""

    def send_to_process(self, process_id: bytes, message: wire.Message) -> None:
        """It is gone, or was never there."""

    def pass_on(self, process_id: bytes, node: int, message: wire.Message) -> None:
        """It is about what was on a node of another session, and is gone."""

    def has_backlog(self, node: int) -> bool:
        return False

    def ask_events(self, node: int, request: int) -> None:
        pass

    def send_events(self, node: int, request: int, events: list[Any]) -> None:
        pass

    def on_process_died(self, gone: wire.PeerGone) -> None:
        pass
