"""Where the actor of a replica is placed: in a placement group of its own, or on a node with few replicas."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

import skate
from skate.serve.records import DeploymentSpec, ReplicaRecord
from skate.strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from skate.util.placement_group import get_placement_group, placement_group, remove_placement_group

__all__ = ["NoNode", "has_group", "place", "remove_group"]


class NoNode(Exception):
    """No node may have another replica at present. The text says why."""


def place(
    spec: DeploymentSpec, record: ReplicaRecord, others: Iterable[ReplicaRecord]
) -> tuple[dict[str, Any], ReplicaRecord]:
    """The options of the actor, and the record with its place. Raises NoNode if the replica has to wait."""
    options: dict[str, Any] = pickle.loads(spec.actor_options)
    grouped = options.pop("_bundles", None)
    most = options.pop("_most_per_node", None)
    if grouped is not None:
        bundles, strategy = grouped
        group = placement_group(bundles, strategy, name=record.name, lifetime="detached")
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, 0, True)
        record = msgspec.structs.replace(record, has_group=True)
    elif most is not None:
        node = _node_for(options, most, [each for each in others if _counts(each, record)])
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        record = msgspec.structs.replace(record, node=node)
    return options, record


def has_group(spec: DeploymentSpec) -> bool:
    """Whether each replica reserves resources for itself."""
    return "_bundles" in pickle.loads(spec.actor_options)


def remove_group(record: ReplicaRecord) -> None:
    """Give back what a replica has reserved."""
    try:
        group = get_placement_group(record.name)
    except ValueError:  # it was removed, or never made
        return
    remove_placement_group(group)


def _counts(other: ReplicaRecord, record: ReplicaRecord) -> bool:
    """Whether another replica counts against the limit. The one that a new version replaces does not."""
    return (other.key, other.version) == (record.key, record.version) and other.id != record.id


def _node_for(options: dict[str, Any], most: int, others: list[ReplicaRecord]) -> str:
    """The node with the fewest replicas among those that are large enough and may have one more.

    Nodes that have room now come first: on another one the replica would wait, though it could run elsewhere.
    """
    needs = _needs(options)
    nodes = [node for node in skate.nodes() if node["Alive"] and _has(node["Resources"], needs)]
    if not nodes:
        asked = ", ".join(f"{amount:g} {name}" for name, amount in needs.items())
        raise NoNode(f"no node has what a replica asks for: {asked}.")
    there = Counter(each.node for each in others)
    may = [node for node in nodes if there[node["NodeID"]] < most]
    if not may:
        raise NoNode(
            f"max_replicas_per_node={most} allows no more replicas. Nodes that are large enough: {len(nodes)}.\n"
            "  next: add a node, raise max_replicas_per_node, or ask for fewer replicas."
        )
    best = min(may, key=lambda node: (not _has(node["Available"], needs), there[node["NodeID"]]))
    return str(best["NodeID"])


def _has(resources: dict[str, float], needs: dict[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needs.items())


def _needs(options: dict[str, Any]) -> dict[str, float]:
    needs = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    return {name: amount for name, amount in {**needs, **(options.get("resources") or {})}.items() if amount}
