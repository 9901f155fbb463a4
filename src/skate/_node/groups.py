"""Placement groups on this node: bundles are set aside here, when the control state says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._core import lease_events as leases
from skate._core.resources import Amounts

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: Groups that were removed lately: what asks for a place in one is refused at once.
REMOVED_MAX = 10_000


class Groups:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._removed: dict[bytes, None] = {}

    def is_removed(self, group: bytes) -> bool:
        return group in self._removed

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

    def held(self) -> list[tuple[bytes, int, bool]]:
        """Group and index of each bundle here, and whether it counts."""
        bundles = self._daemon.scheduler.pool.bundles
        return [(group, index, bool(names)) for (group, index), (_, names) in bundles.items()]
