"""What deployments have to do, and how many replicas that takes.

replicas ──what they have counted──►┐
handles  ──requests that wait──────►├─ load ──► Autoscaler (pure) ──► the number of replicas
keepers  ──connections that wait───►┘
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from skate.serve.autoscaling import Autoscaler
from skate.serve.config import AutoscalingConfig
from skate.serve.crew import Crew
from skate.serve.metrics import Snapshot
from skate.serve.reconcile import Deployment
from skate.serve.records import DeploymentSpec

__all__ = ["Demand", "probe_every_s"]

#: Replicas are asked so often what they have to do.
PROBE_EVERY_S, PROBE_EVERY_S_MIN = 1.0, 0.05
#: Seconds for which a process's count of waiting requests is trusted.
WAITING_FOR_S = 2.0


class Demand:
    """The load of all deployments."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._scalers: dict[str, Autoscaler] = {}
        #: By deployment and process: when it was said, and how many requests waited.
        self._waiting: dict[tuple[str, str], tuple[float, int]] = {}

    def aim(self, spec: DeploymentSpec, there: Deployment | None) -> int:
        """Begin to count for a deployment as its specification says; how many replicas it is to have at first."""
        scaler = self._scalers.pop(spec.key, None)
        if spec.scaling is None:
            return spec.replicas
        return self.scale(spec, spec.replicas if scaler is None or there is None else there.wanted)

    def scale(self, spec: DeploymentSpec, replicas: int) -> int:
        """Begin to scale a deployment from this number of replicas, clipped to its limits."""
        config = AutoscalingConfig(**(spec.scaling or {}))
        wanted = min(config.max_replicas, max(config.min_replicas, replicas))
        self._scalers[spec.key] = Autoscaler(config, wanted)
        return wanted

    def forget(self, key: str) -> None:
        """Forget a deployment that was deleted."""
        self._scalers.pop(key, None)
        self._crew.gone.pop(key, None)

    def waits(self, key: str, process: str, count: int) -> None:
        """Note how many requests of a process wait for a replica."""
        if count:
            self._waiting[key, process] = (time.monotonic(), count)
        else:
            self._waiting.pop((key, process), None)

    def refused(self, key: str, count: int) -> None:
        """Count requests that were refused before they reached a replica."""
        self._crew.gone.setdefault(key, Snapshot()).rejected += count

    def look(self, deployments: Mapping[str, Deployment]) -> None:
        """Say how many replicas deployments are to have by now."""
        now = time.monotonic()
        for key, scaler in self._scalers.items():
            deployment = deployments.get(key)
            if deployment is not None and not deployment.deleted:
                counted = self.counted(key)
                deployment.wanted = scaler.look(counted.working + counted.waiting, now)

    def counted(self, key: str) -> Snapshot:
        """What a deployment has counted, with the requests that it has at present."""
        total = Snapshot()
        gone = self._crew.gone.get(key)
        if gone is not None:
            total.merge(gone)
        for (of, _), counted in self._crew.counted.items():
            if of == key:
                total.merge(counted)
        now = time.monotonic()
        for (of, process), (at, count) in list(self._waiting.items()):
            if now - at > WAITING_FOR_S:
                del self._waiting[of, process]
            elif of == key:
                total.waiting += count
        return total


def probe_every_s(specs: list[DeploymentSpec]) -> float:
    """Seconds between two questions to each replica."""
    wishes: list[float] = [each.health_period_s for each in specs]
    wishes += [AutoscalingConfig(**each.scaling).metrics_interval_s for each in specs if each.scaling is not None]
    return max(PROBE_EVERY_S_MIN, min([PROBE_EVERY_S, *wishes]))
