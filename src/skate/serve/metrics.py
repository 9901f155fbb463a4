"""What a replica counts: requests, errors, seconds, sizes of batches. Cheap enough for every request."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

__all__ = ["Histogram", "ReplicaMetrics", "Snapshot", "prometheus_text"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Histogram(msgspec.Struct):
    """How often a value lay in which range. The last count is that of all values above the last bound."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> Histogram:
        """Make an empty histogram."""
        return cls(bounds, [0] * (len(bounds) + 1))

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same bounds."""
        assert self.bounds == other.bounds, "histograms with different bounds have no sum"
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts)]
        self.total += other.total

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The least bound that this share of the values does not exceed; 0 without values, infinite above them all."""
        wanted, seen = share * self.count, 0
        if not wanted:
            return 0.0
        for bound, count in zip(self.bounds, self.counts):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")


class Snapshot(msgspec.Struct):
    """What one replica, or all of a deployment, have counted so far, and what they have to do now."""

    requests: int = 0
    errors: int = 0
    rejected: int = 0
    working: int = 0
    waiting: int = 0
    seconds: Histogram = msgspec.field(default_factory=lambda: Histogram.of(SECONDS))
    batches: Histogram = msgspec.field(default_factory=lambda: Histogram.of(SIZES))

    def merge(self, other: Snapshot) -> None:
        """Add what another replica has counted."""
        self.requests += other.requests
        self.errors += other.errors
        self.rejected += other.rejected
        self.working += other.working
        self.waiting += other.waiting
        self.seconds.merge(other.seconds)
        self.batches.merge(other.batches)

    def gone(self) -> Snapshot:
        """The same without what is at this moment: what stays of a replica that has ended."""
        return msgspec.structs.replace(self, working=0, waiting=0)


class ReplicaMetrics(Snapshot):
    """The counts of this process."""

    def ended(self, seconds: float, *, failed: bool) -> None:
        """A request has ended."""
        self.requests += 1
        self.errors += failed
        self.seconds.add(seconds)


HELP = {
    "requests_total": ("counter", "Requests that were answered, errors included."),
    "errors_total": ("counter", "Requests whose handler raised."),
    "rejected_total": ("counter", "Requests that were refused because too many waited, by replicas and by handles."),
    "working": ("gauge", "Requests that replicas work on."),
    "waiting": ("gauge", "Requests that wait, in replicas and in handles."),
    "replicas": ("gauge", "Replicas that take requests."),
    "latency_seconds": ("histogram", "Seconds from a place in the replica to the answer."),
    "batch_size": ("histogram", "Items in a batch of serve.batch."),
}


def prometheus_text(deployments: dict[tuple[str, str], tuple[Snapshot, int]]) -> str:
    """All deployments, by application and name, in the text format of Prometheus."""
    lines: list[str] = []
    for name, (kind, what) in HELP.items():
        full = f"skate_serve_{name}"
        lines += [f"# HELP {full} {what}", f"# TYPE {full} {kind}"]
        for (app, deployment), (counted, replicas) in sorted(deployments.items()):
            labels = f'application="{_escaped(app)}",deployment="{_escaped(deployment)}"'
            if kind == "histogram":
                lines += _histogram_lines(full, labels, _histogram(name, counted))
            else:
                value: Any = replicas if name == "replicas" else getattr(counted, name.removesuffix("_total"))
                lines.append(f"{full}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, counted: Snapshot) -> Histogram:
    return counted.seconds if name == "latency_seconds" else counted.batches


def _histogram_lines(full: str, labels: str, histogram: Histogram) -> list[str]:
    lines, seen = [], 0
    for bound, count in zip((*(f"{each:g}" for each in histogram.bounds), "+Inf"), histogram.counts):
        seen += count
        lines.append(f'{full}_bucket{{{labels},le="{bound}"}} {seen}')
    return [*lines, f"{full}_sum{{{labels}}} {histogram.total:.9g}", f"{full}_count{{{labels}}} {seen}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
