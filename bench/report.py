"""From samples to a table: medians, spread, ratios to Skate, and which aims were reached.

Everything here works on the stored results alone, so that an old file can be shown again (`run.py --show FILE`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cluster_rows import LOCALITY
from workloads import ASYNC_TASKS, ROWS, Metric

NOISY_CORES = 0.1  # more CPU than this used by strangers while a cell ran earns it a mark
FLAT = 1.5  # cost per task counts as flat if its largest value is at most this many times its smallest


@dataclass(frozen=True)
class Results:
    """Samples as `run.py` stores them: one for each peer, row and run."""

    data: dict[str, Any]

    @property
    def peers(self) -> list[str]:
        return list(self.data["peers"])

    def samples(self, peer: str, row: str) -> list[dict[str, Any]]:
        return [s for s in self.data["samples"] if s["peer"] == peer and s["row"] == row]

    def values(self, peer: str, row: str, metric: str) -> list[float]:
        return [s["metrics"][metric] for s in self.samples(peer, row) if s["status"] == "ok"]

    def median(self, peer: str, row: str, metric: str) -> float | None:
        values = self.values(peer, row, metric)
        return statistics.median(values) if values else None

    def advantage(self, peer: str, row: str, metric: Metric) -> float | None:
        """How many times better than `peer` Skate is; below 1, the peer is ahead."""
        ours, theirs = self.median("skate", row, metric.name), self.median(peer, row, metric.name)
        if not ours or not theirs or metric.better == "neither":
            return None
        return ours / theirs if metric.better == "higher" else theirs / ours


def summarise(results: Results) -> list[dict[str, Any]]:
    """The table as data: one record for each row, metric and peer that has a figure."""
    return [
        {
            "row": name,
            "metric": metric.name,
            "unit": metric.unit,
            "peer": peer,
            "median": statistics.median(values),
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None,
            "min": min(values),
            "max": max(values),
            "skate_is_better_by": results.advantage(peer, name, metric) if peer != "skate" else None,
        }
        for name in results.data["rows"]
        for metric in ROWS[name].metrics
        for peer in results.peers
        if (values := results.values(peer, name, metric.name))
    ]


# -- the table -------------------------------------------------------------------------------------------------------


def show(results: Results) -> Iterator[str]:
    """The whole report, line by line."""
    data, machine = results.data, results.data["machine"]
    yield f"{data['date']}  commit {machine['commit'][:12]}{' + changes' if machine['uncommitted_changes'] else ''}"
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"load {machine['load_at_start']} at the start; {data['cpus']} workers, {data['runs']} runs"
        f"{', quick' if data['quick'] else ''}"
    )
    for peer, versions in data["versions"].items():
        yield f"  {peer}: " + ", ".join(f"{name} {version}" for name, version in versions.items())
    yield ""
    yield "Median over the runs (smallest–largest). × = how many times better Skate is than this peer."
    yield ""
    yield from _table(results)
    yield from _notes(results)
    yield ""
    yield from _flatness(results)
    yield from _aims(results)


def _table(results: Results) -> Iterator[str]:
    lines = [["row", "metric", *results.peers]]
    for name in results.data["rows"]:
        for i, metric in enumerate(ROWS[name].metrics):
            label = f"{metric.name} [{metric.unit}]" if metric.unit else metric.name
            lines.append([name if i == 0 else "", label, *(_cell(results, p, name, metric) for p in results.peers)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for i, line in enumerate(lines):
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        if i == 0:
            yield "  ".join("-" * width for width in widths)


def _cell(results: Results, peer: str, name: str, metric: Metric) -> str:
    samples = results.samples(peer, name)
    values = results.values(peer, name, metric.name)
    if not values:
        return samples[-1]["status"] if samples else "–"
    text = number(statistics.median(values))
    if len(values) > 1:
        text += f" ({number(min(values))}–{number(max(values))})"
    if peer != "skate" and (ratio := results.advantage(peer, name, metric)):
        text += f" {number(ratio)}×"
    if len(values) < len(samples):
        text += f" [{len(values)} of {len(samples)}]"
    if any(map(_noisy, samples)):
        text += " *"
    return text


def _noisy(sample: dict[str, Any]) -> bool:
    return (sample["strangers_cores"] or 0.0) > NOISY_CORES


def _notes(results: Results) -> Iterator[str]:
    """Why cells are empty or marked; rows of a peer with the same story share a line."""
    stories: dict[tuple[str, str], dict[str, None]] = {}
    for sample in results.data["samples"]:
        if sample["note"]:
            stories.setdefault((sample["peer"], f"{sample['status']}: {sample['note']}"), {})[sample["row"]] = None
    lines = [f"  {peer}, {', '.join(rows)}: {story}" for (peer, story), rows in stories.items()]
    if any(map(_noisy, results.data["samples"])):
        lines.append(f"  * processes outside the benchmark used over {NOISY_CORES} of a core meanwhile")
    if lines:
        yield ""
        yield "Notes"
        yield from lines


def number(value: float) -> str:
    """Three or four digits: more would claim a precision that no run has."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _flatness(results: Results) -> Iterator[str]:
    """Does a task cost the same whether there are a thousand or a million of them?"""
    lines = []
    for name, count in ASYNC_TASKS.items():
        rate, memory = results.median("skate", name, "tasks/s"), results.median("skate", name, "driver peak RSS")
        if rate and memory:
            lines.append(f"  {count:>9,} tasks: {1e6 / rate:6.2f} µs each, driver peak RSS {memory:,.0f} MB")
    if lines:
        yield "Cost per task on Skate"
        yield from lines
        yield ""


# -- the aims --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """Something to be shown: `measure` gives the figure, or None where the run has none."""

    text: str
    measure: Callable[[Results], float | None]
    reached: Callable[[float], bool]
    unit: str = ""
    alternative: Aim | None = None  # if this one is reached, that is enough


def _times(row: str, metric: str, at_least: float, what: str, against: str = "ray") -> Aim:
    found = next(m for m in ROWS[row].metrics if m.name == metric)
    text = f"{what}: {f'≥ {at_least:g} × ' if at_least > 1 else 'ahead of '}{against.capitalize()}"
    return Aim(
        text,
        lambda results: results.advantage(against, row, found),
        lambda ratio: ratio >= at_least if at_least > 1 else ratio > 1,
        "×",
    )


def _most(row: str, metric: str, limit: float, unit: str, what: str) -> Aim:
    text = f"{what}: ≤ {limit:g} {unit}"
    return Aim(text, lambda results: results.median("skate", row, metric), lambda value: value <= limit, unit)


def _least(row: str, metric: str, limit: float, unit: str, what: str) -> Aim:
    text = f"{what}: ≥ {limit:,g} {unit}".rstrip()
    return Aim(text, lambda results: results.median("skate", row, metric), lambda value: value >= limit, unit)


def _either(aim: Aim, other: Aim) -> Aim:
    """Two ways to reach one aim. Figures of both are shown."""
    return replace(aim, text=f"{aim.text} or {other.text.partition(': ')[2]}", alternative=other)


def _of_floor(row: str, metric: str) -> Callable[[Results], float | None]:
    def ratio(results: Results) -> float | None:
        ours, floor = results.median("skate", row, metric), results.median("floor", row, metric)
        return ours / floor if ours and floor else None

    return ratio


def _spread_of_cost(results: Results) -> float | None:
    rates = [results.median("skate", name, "tasks/s") for name in ASYNC_TASKS]
    known = [rate for rate in rates if rate]
    return max(known) / min(known) if len(known) == len(rates) else None


def _growth_with_size(results: Results) -> float | None:
    latencies = [results.median("skate", name, "on p50") for name in LOCALITY]
    known = [latency for latency in latencies if latency]
    return max(known) / min(known) if len(known) == len(latencies) else None


NODES = (4, 16, 64, 100)

AIMS: dict[str, list[Aim]] = {
    "Against Ray": [
        _times("async_10k", "tasks/s", 100, "async tasks"),
        _times("sync_task", "p50", 25, "synchronous task, p50"),
        _times("nested", "tasks/s", 45, "1,000 nested subtasks"),
        _times("first_result", "seconds", 20, "import + init + first result"),
        _most("first_result", "seconds", 0.25, "s", "import + init + first result"),
        _times("put_100b", "puts/s", 60, "put 100 B"),
        _times("put_1mb", "put", 1, "put 1 MB"),
        _times("put_100mb", "put", 1, "put 100 MB"),
        _times("put_1gib", "put", 1, "put 1 GiB"),
        _least("simulations", "efficiency", 0.95, "", "simulation efficiency"),
        _most("idle", "memory", 60, "MB", "idle memory"),
        Aim("idle CPU: < 0.5 % of a core", lambda r: r.median("skate", "idle", "CPU"), lambda v: v < 0.5, "%"),
    ],
    "Against the floors": [
        Aim("10,000 async tasks: ≥ 0.5 of the floor", _of_floor("async_10k", "tasks/s"), lambda v: v >= 0.5),
        Aim("100,000 async tasks: ≥ 0.5 of the floor", _of_floor("async_100k", "tasks/s"), lambda v: v >= 0.5),
        Aim("synchronous task, p50: ≤ 2 × the floor", _of_floor("sync_task", "p50"), lambda v: v <= 2, "×"),
        _least("put_1mb", "put/memcpy", 0.8, "of a memcpy", "put 1 MB"),
        _least("put_100mb", "put/memcpy", 0.8, "of a memcpy", "put 100 MB"),
        _least("put_1gib", "put/memcpy", 0.8, "of a memcpy", "put 1 GiB"),
    ],
    "A million tasks": [
        _least("async_1m", "tasks/s", 1, "tasks/s", "1M queued tasks finish"),
        _most("async_1m", "driver peak RSS", 1000, "MB", "driver memory with 1M tasks queued"),
        Aim(f"cost per task from 1,000 to 1M: largest ≤ {FLAT} × smallest", _spread_of_cost, lambda v: v <= FLAT, "×"),
    ],
    "Actors": [
        _least("actor_async", "calls/s", 100_000, "/s", "async calls, 1:1"),
        _times("actor_async", "calls/s", 50, "async calls, 1:1"),
        _either(
            _most("actor_sync", "p50", 70, "µs", "synchronous call, p50"),
            _times("actor_sync", "p50", 15, "synchronous call, p50"),
        ),
        *(_times("actor_1_n", f"calls/s n={n}", 40, f"async calls, 1:{n}") for n in (2, 4)),
        *(_times("actor_n_n", f"calls/s n={n}", 40, f"async calls, {n}:{n}") for n in (2, 4)),
        _least("actor_asyncio", "calls/s", 30_000, "/s", "calls of an async actor"),
        _least("actor_threaded", "calls/s", 30_000, "/s", "calls of a threaded actor"),
        _least("actor_create", "actors/s", 150, "/s", "50 actors created and called"),
        _most("actor_create", "memory each", 25, "MB", "private memory of each actor"),
        Aim("1,000 idle actors start and answer", lambda r: r.median("skate", "actor_idle", "seconds"), bool, "s"),
    ],
    "Clusters": [
        Aim(
            f"task with locality, p50, from 100 KB to 100 MB: largest ≤ {FLAT} × smallest",
            _growth_with_size,
            lambda v: v <= FLAT,
            "×",
        ),
        *(_most(f"nodes_{n}", "joined", 60, "s", f"{n} nodes join") for n in NODES),
        *(_most(f"nodes_{n}", "memory at first", 30, "MB", f"memory a node of {n}, at first") for n in NODES),
        *(_most(f"nodes_{n}", "memory at last", 30, "MB", f"memory a node of {n}, with workers") for n in NODES),
        *(_least(f"nodes_{n}", "spread nodes used", n, "", f"10,000 tasks, nodes that ran some of {n}") for n in NODES),
        _least("transfer_1gib", "get/sendfile", 0.6, "of a bare sendfile", "1 GiB from another node"),
        _least("transfer_1gib", "get/send", 0.6, "of a bare send", "1 GiB from another node"),
        _most("broadcast_256mb", "of 8 sendfile", 1.5, "× 8 bare sendfiles", "256 MB to 8 nodes"),
        _most("broadcast_256mb", "of 8 send", 1.5, "× 8 bare sends", "256 MB to 8 nodes"),
        _most("broadcast_256mb", "first sent", 3, "copies", "256 MB to 8 nodes, sent by the first"),
        _times("locality_100mb", "on p50", 1, "task with locality, 100 MB"),
        _times("locality_100mb", "off p50", 1, "task without locality, 100 MB"),
        _times("transfer_1gib", "get", 1, "1 GiB from another node"),
        _times("broadcast_256mb", "seconds", 1, "256 MB to 8 nodes"),
        _times("nodes_2", "tasks/s", 1, "10,000 tasks on 2 nodes"),
        _times("nodes_2", "p50", 1, "one task at a time on another node, p50"),
    ],
    "Absolute, on the machine of the design": [
        _least("async_10k", "tasks/s", 135_000, "/s", "async tasks"),
        _most("sync_task", "p50", 70, "µs", "synchronous task, p50"),
        _least("nested", "tasks/s", 60_000, "/s", "1,000 nested subtasks"),
        _least("put_100b", "puts/s", 100_000, "/s", "put 100 B"),
        _least("put_10kb", "puts/s", 30_000, "/s", "put 10 KB"),
        _least("get_small", "gets/s", 300_000, "/s", "get of a local object again"),
    ],
}


def _aims(results: Results) -> Iterator[str]:
    yield "Aims"
    width = max(len(aim.text) for aims in AIMS.values() for aim in aims)
    for heading, aims in AIMS.items():
        yield f" {heading}"
        for aim in aims:
            ways = [way for way in (aim, aim.alternative) if way is not None]
            known = [(way, value) for way in ways if (value := way.measure(results)) is not None]
            if not known:
                yield f"  {aim.text.ljust(width)}  not measured"
            else:
                verdict = "yes" if any(way.reached(value) for way, value in known) else "NO "
                figures = ", ".join(f"{number(value)} {way.unit}".rstrip() for way, value in known)
                yield f"  {aim.text.ljust(width)}  {verdict}  {figures}"
