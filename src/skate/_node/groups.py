"""Placement groups on this node: bundles are set aside here, and what processes say of groups goes to who decides.

The decisions are in `_control/groups.py`: in this daemon if the node is alone, otherwise in the control service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._control.groups import GROUP_REMOVED, GroupService
from skate._core import lease_events as leases
from skate._core.resources import Amounts, group_of
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: Groups that were removed lately: who asks for a place in one is refused at once.
REMOVED_MAX = 10_000


class Groups:
    """Also the `Outside` of the service, if that is here."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: None: the control service has it.
        self.service = GroupService(self) if daemon.neighbours is None else None
        self._removed: dict[bytes, None] = {}

    def on_message(self, process_id: bytes, message: wire.Message) -> None:
        if self.service is not None:
            self.service.handle(process_id, message, [self._daemon.view()])
        else:
            assert self._daemon.neighbours is not None
            self._daemon.neighbours.pass_on(process_id, 0, message)

    def on_process_died(self, process_id: bytes) -> None:
        if self.service is not None:
            self.service.job_ended(process_id)

    def on_actor_died(self, actor: bytes) -> None:
        if self.service is not None:
            self.service.job_ended(actor)

    def on_resources_changed(self) -> None:
        """Something was given back."""
        if self.service is not None and self.service.waits:
            self.service.place([self._daemon.view()])

    def is_removed(self, group: bytes) -> bool:
        if self.service is not None:
            return group not in self.service.table.groups
        return group in self._removed

    def ask_whether_removed(self, group: bytes) -> None:
        """Somebody has waited for a place in it for long."""
        if self.service is None:
            assert self._daemon.neighbours is not None
            self._daemon.neighbours.ask_group(group)
        elif group not in self.service.table.groups:
            self.removed(group)

    # -- bundles ------------------------------------------------------------------------------------------------------

    def set_aside(self, group: bytes, index: int, attempt: int, needs: Amounts) -> bool:
        return self._daemon.scheduler.pool.prepare(group, index, needs, attempt)

    def count(self, group: bytes, index: int) -> None:
        self._daemon.post(leases.BundleCommitted(group, index))

    def give_back(self, group: bytes, index: int) -> None:
        self._daemon.post(leases.BundleReleased(group, index))

    def removed(self, group: bytes) -> None:
        """What waits for a place in it is refused."""
        self._removed[group] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        self._daemon.demands.on_group_removed(group)
        if self._daemon.actors.service is not None:
            for demand in list(self._daemon.scheduler.demands.values()):
                if demand.dedicated and group_of(demand.needs) == group:
                    self._daemon.actors.service.infeasible(demand.process, GROUP_REMOVED)

    # -- the outside of a service that is here ------------------------------------------------------------------------

    def send(self, process_id: bytes, message: wire.Message) -> None:
        self._daemon.send(process_id, message)

    def detached_in(self, process_id: bytes) -> bytes:
        assert self._daemon.actors.service is not None
        return self._daemon.actors.service.detached_in(process_id)

    def prepare(self, node: bytes, group: bytes, index: int, attempt: int, needs: Amounts) -> None:
        ok = self.set_aside(group, index, attempt, needs)
        assert self.service is not None
        self.service.prepared(node, group, index, attempt, ok=ok)

    def commit(self, node: bytes, group: bytes, index: int) -> None:
        self.count(group, index)

    def release(self, node: bytes, group: bytes, index: int) -> None:
        self.give_back(group, index)
