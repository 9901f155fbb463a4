"""`skate status` and `skate list`: what a cluster says of itself, as text for people or JSON for programs."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from skate._core.actors import DEAD
from skate._core.ids import short_task
from skate._core.resources import GROUP, NODE, to_floats
from skate.cli.asking import NOTHING_RUNS, ask_cluster
from skate.cli.parser import show_address
from skate.cli.running import tell_of_programs
from skate.cli.trouble import Trouble

#: Resources that are counted in bytes.
IN_BYTES = ("memory", "object_store_memory")
#: Ids are shown so far to people: enough to tell them apart.
ID_SHOWN = 12


def status(options: argparse.Namespace) -> int:
    try:
        where, asking = ask_cluster(options)
    except Trouble as trouble:
        if trouble.exit_code != NOTHING_RUNS:
            raise
        if options.json:
            print(json.dumps({"running": False}))
        else:
            print("No cluster of `skate start` runs here.\n")
            print("  skate start --head             starts a cluster on this machine")
            print("  skate start --address H:P      joins one")
            print("  skate status --address H:P     asks one that runs elsewhere")
            tell_of_programs()
        return NOTHING_RUNS
    with asking:
        about, nodes, actors = asking.ask("cluster"), asking.ask("nodes"), asking.ask("actors")
    nodes = _serving(nodes)
    total, used = _sums(nodes)
    states = Counter(actor["state"] for actor in actors)
    waiting = sum(node["queued"] for node in nodes)
    if options.json:
        found = {
            "running": True,
            "address": show_address(where),
            "cluster_id": about["cluster_id"],
            "started_at": about["began_at"],
            "recovering": about["recovering"],
            "nodes": nodes,
            "resources": {"total": total, "used": used},
            "queued": waiting,
            "actors": dict(states),
        }
        print(json.dumps(found, indent=2))
        return 0
    age = duration_text(time.time() - about["began_at"])
    print(f"Cluster at {show_address(where)}: {count_text(len(nodes), 'node')}, up for {age}.\n")
    if about["recovering"]:
        print("The control service was started again, and waits for the nodes that it knows of.\n")
    shown = {"object_store_memory": "objects"}
    rows = [[shown.get(name, name), _amount(name, used[name]), _amount(name, total[name])] for name in total]
    print(table_text(["", "used", "of"], rows))
    print()
    print(f"tasks    {count_text(waiting, 'task') if waiting else 'none'} waiting for resources")
    print(f"actors   {', '.join(f'{n} {state.lower()}' for state, n in sorted(states.items())) or 'none'}")
    print()
    print(_nodes_table(nodes))
    for one, other in sorted({tuple(sorted((it["node_id"], id))) for it in nodes for id in it["cut_off_from"]}):
        print(
            f"\nnodes {one[:ID_SHOWN]} and {other[:ID_SHOWN]} cannot reach each other: check the network between them."
        )
    return 0


def list_things(options: argparse.Namespace) -> int:
    _, asking = ask_cluster(options)
    with asking:
        found = asking.ask(options.what)
        if options.what == "jobs":
            from skate.cli.job import NAMESPACE  # imports all of Skate

            found = _jobs(found, asking.ask(f"values {NAMESPACE}"), asking.ask("actors"))
    if options.what == "nodes":
        found = _serving(found)
    found = [{name: _plain(value) for name, value in thing.items()} for thing in found]
    if options.format == "json":
        print(json.dumps(found, indent=2))
    elif not found:
        print(f"No {options.what}.")
    else:
        print(TABLES[options.what](found))
    return 0


# -- nodes, actors, jobs, functions, events ----------------------------------------------------------------------------


def _serving(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nodes that run tasks. A driver on a machine that is none has one, too, which is for itself."""
    return [_node(node) for node in said if node.get("serves", True)]


def _node(said: dict[str, Any]) -> dict[str, Any]:
    """A node as the control service describes it, with amounts that people know and its object store among them."""
    total, free = to_floats(_own_names(said["total"])), to_floats(_own_names(said["available"]))
    if "store_bytes" in said:
        total["object_store_memory"] = float(said["store_bytes"])
        free["object_store_memory"] = float(said["store_bytes"] - said["store_used_bytes"])
    # A node that goes on with tasks that had waited has less than nothing; people are told "nothing".
    used = {name: min(amount, amount - free.get(name, 0.0)) for name, amount in total.items()}
    kept = {name: said[name] for name in ("node_id", "name", "host", "port", "labels", "queued")}
    return {**kept, "total": total, "used": used, "cut_off_from": said.get("cut_off_from", [])}


def _own_names(amounts: dict[str, int]) -> dict[str, int]:
    """Without what people do not count.

    That are the names that resources have in a placement group, because those are set aside from what is listed
    already, and the marks of nodes, because each node has one.
    """
    return {name: amount for name, amount in amounts.items() if GROUP not in name and not name.startswith(NODE)}


def _sums(nodes: Sequence[dict[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    total: dict[str, float] = {}
    used: dict[str, float] = {}
    for node in nodes:
        for sums, amounts in ((total, node["total"]), (used, node["used"])):
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0.0) + amount
    first = ["CPU", "GPU"]
    order = [*(name for name in first if name in total), *sorted(set(total) - set(first))]
    return {name: total[name] for name in order}, {name: used[name] for name in order}


def _nodes_table(nodes: Sequence[dict[str, Any]]) -> str:
    rows = []
    for node in nodes:
        others = [name for name in node["total"] if name not in ("CPU", "GPU", *IN_BYTES)]
        rows.append(
            [
                node["node_id"][:ID_SHOWN],
                node["name"],
                show_address((node["host"], node["port"])) if node["port"] else "-",
                _share(node, "CPU"),
                _share(node, "GPU"),
                _share(node, "memory"),
                _share(node, "object_store_memory"),
                " ".join(f"{name} {_share(node, name)}" for name in others) or "-",
                ",".join(f"{name}={value}" for name, value in node["labels"].items()) or "-",
            ]
        )
    return table_text(
        ["node", "name", "address", "CPU", "GPU", "memory", "objects", "resources", "labels"], rows, drop="-"
    )


def _actors_table(actors: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            short_task(bytes.fromhex(actor["actor_id"])),
            actor["class_name"],
            actor["name"] or "-",
            actor["namespace"] or "-",
            actor["state"].lower() + (" (detached)" if actor["detached"] else ""),
            str(actor["pid"] or "-"),
            str(actor["node"] or "-"),
            str(actor["restarts"] or "-"),
            actor["reason"] or "-",
        ]
        for actor in actors
    ]
    head = ["actor", "class", "name", "namespace", "state", "pid", "node", "restarts", "why"]
    return table_text(head, rows, drop="-")


def _jobs(drivers: Sequence[dict[str, Any]], records: Sequence[bytes], actors: Sequence[dict[str, Any]]) -> list[Any]:
    """Programs that joined, and commands that were submitted, whose own drivers are part of them."""
    from skate.cli.job import NAMESPACE, name_of

    living = {actor["name"] for actor in actors if actor["namespace"] == NAMESPACE and actor["state"] != DEAD}
    jobs = {job["job_id"]: job for job in drivers if job["namespace"] != NAMESPACE}  # `skate submit` itself is none
    for record in records:
        job = json.loads(record)
        if job["state"] == "running" and name_of(job["job_id"]) not in living:
            job["state"] = "lost"  # with its node
            job["ended_at"] = jobs.get(job["job_id"], job)["ended_at"]  # a driver of it may be known
        jobs[job["job_id"]] = job
    return sorted(jobs.values(), key=lambda job: job["started_at"])


def _jobs_table(jobs: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            job["job_id"][:ID_SHOWN],
            job["state"].lower(),
            clock_text(job["started_at"]),
            _took(job),
            str(job["driver_pid"]),
            job["node_id"][:ID_SHOWN],
            job["namespace"] or "-",
            " ".join(job.get("entrypoint", "").split()) or "-",
        ]
        for job in jobs
    ]
    return table_text(["job", "state", "began", "took", "pid", "node", "namespace", "command"], rows, drop="-")


def _took(job: dict[str, Any]) -> str:
    if job["ended_at"] is None and job["state"] == "lost":
        return "?"
    return duration_text((job["ended_at"] or time.time()) - job["started_at"])


def _functions_table(functions: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            function["function_id"][:ID_SHOWN],
            function["name"],
            bytes_text(function["bytes"]),
            str(function["processes"] or "-"),
            str(function["actors"] or "-"),
        ]
        for function in functions
    ]
    return table_text(["function", "name", "size", "processes", "actors"], rows, drop="-")


def _events_table(events: Sequence[dict[str, Any]]) -> str:
    return table_text(["when", "of a", "what happened"], [[clock_text(e["at"]), e["kind"], e["text"]] for e in events])


TABLES = {
    "nodes": _nodes_table,
    "actors": _actors_table,
    "jobs": _jobs_table,
    "functions": _functions_table,
    "events": _events_table,
}


# -- text --------------------------------------------------------------------------------------------------------------


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]], drop: str | None = None) -> str:
    """Columns side by side, without those in which every row has `drop`; the last one is cut to the terminal."""
    kept = [at for at in range(len(head)) if drop is None or any(row[at] != drop for row in rows)]
    cells = [[row[at] for at in kept] for row in [head, *rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(kept))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
    # A pipe has no width, and what reads it wants all of it.
    import sys

    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return "\n".join(line if not most or len(line) <= most else line[: most - 1] + "…" for line in lines)


def _share(node: dict[str, Any], name: str) -> str:
    if name not in node["total"]:
        return "-"
    return f"{_amount(name, node['used'][name])}/{_amount(name, node['total'][name])}"


def _amount(name: str, value: float) -> str:
    return bytes_text(value) if name in IN_BYTES else f"{value:g}"


def bytes_text(size: float) -> str:
    """7.0 GiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def clock_text(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def duration_text(seconds: float) -> str:
    seconds = max(0, int(seconds))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def count_text(number: int, what: str, several: str = "") -> str:
    return f"{number} {what if number == 1 else several or what + 's'}"


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
