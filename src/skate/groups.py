"""Placement groups: resources reserved on one or several nodes, together or not at all.

    pg = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD")
    skate.get(pg.ready())
    f.options(scheduling_strategy=PlacementGroupSchedulingStrategy(pg, placement_group_bundle_index=0)).remote()
    remove_placement_group(pg)

Also to be had from `skate.util` and `skate.util.placement_group`, where programs written for Ray look for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skate._api import get, wait
from skate._core.placement import Condition
from skate._core.resources import group_of, to_units
from skate._object_ref import ObjectRef
from skate._options import checked_text, task_options
from skate._remote_function import RemoteFunction
from skate._wire.messages import CreateGroup, RemoveGroup
from skate._worker.current import get_runtime
from skate.ids import PlacementGroupID
from skate.strategies import PlacementGroupSchedulingStrategy, selected

__all__ = [
    "PlacementGroup",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

#: Most bundles that a group may have: the cluster keeps a record of each.
BUNDLES_MAX = 100_000
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_STATES = {"ready": "CREATED", "rescheduling": "RESCHEDULING"}


class PlacementGroup:
    """A handle to a group; to be passed to tasks and actors, and compared.

    `PlacementGroup(other.id)` is a handle to the same group. Its bundles are looked up when they are needed.
    """

    def __init__(self, id: bytes, bundle_cache: Sequence[Mapping[str, float]] | None = None) -> None:
        self.id = PlacementGroupID(id)
        #: The bundles, or None if they were not looked up yet.
        self.bundle_cache = None if bundle_cache is None else [dict(bundle) for bundle in bundle_cache]

    @classmethod
    def empty(cls) -> PlacementGroup:
        """A group that stands for none."""
        return cls(PlacementGroupID.nil(), [])

    @property
    def is_empty(self) -> bool:
        return self.id.is_nil()

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The resources of each bundle; none if the group was removed before this handle has looked them up."""
        if self.bundle_cache is None:
            found = next((group for group in get_runtime().query("groups") if group["group"] == self.id), None)
            if found is None:
                return []
            self.bundle_cache = [bundle["needs"] for bundle in found["bundles"]]
        return [dict(bundle) for bundle in self.bundle_cache]

    @property
    def bundle_count(self) -> int:
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef[PlacementGroup]:
        """A reference whose value, this group, is there when all bundles are reserved.

        >>> skate.get(pg.ready(), timeout=10)
        """
        strategy = PlacementGroupSchedulingStrategy(self)
        ref: ObjectRef[PlacementGroup] = _itself.options(scheduling_strategy=strategy).remote(self)
        return ref

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Whether it is reserved within that time."""
        ref = self.ready()
        ready, _ = wait([ref], timeout=timeout_seconds)
        if ready:
            get(ref)  # raises if it was removed
        return bool(ready)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        bundles = "" if self.bundle_cache is None else f", {len(self.bundle_cache)} bundles"
        return f"PlacementGroup({self.id.hex()[:8]}…{bundles})"


_itself: RemoteFunction[Any, Any] = RemoteFunction(
    lambda group: group, task_options(num_cpus=0, name="PlacementGroup.ready")
)


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
) -> PlacementGroup:
    """Reserve bundles of resources. Returns once the cluster knows of it; `ready()` and `wait()` tell when it has them.

        >>> pg = placement_group([{"CPU": 2}, {"CPU": 1, "GPU": 1}], strategy="STRICT_SPREAD")

    strategy: "PACK" on as few nodes as possible, "SPREAD" on as many, "STRICT_PACK" on one, "STRICT_SPREAD" each on
    another. name: for `get_placement_group`. lifetime: "detached" groups outlive their job. bundle_label_selector: for
    each bundle what the labels of its node must be, {"zone": "a"} for example; {} if that does not matter.
    Without it a group ends with the driver, or with the detached actor that has made it.
    """
    if not isinstance(bundles, Sequence) or isinstance(bundles, str) or not bundles:
        raise ValueError(f"placement_group(bundles={bundles!r}): it may be a list of one or more dicts.")
    if len(bundles) > BUNDLES_MAX:
        raise ValueError(f"placement_group(bundles=…): there are {len(bundles):,}, and {BUNDLES_MAX:,} are the most.")
    for bundle in bundles:
        if not isinstance(bundle, Mapping) or not bundle or not all(isinstance(kind, str) for kind in bundle):
            raise ValueError(f"placement_group(bundles=…): {bundle!r} is not a dict of resources like {{'CPU': 1}}.")
        try:
            units = to_units(bundle)
        except (TypeError, ValueError) as error:
            raise ValueError(f"placement_group(bundles=…): in {bundle!r}, {error}.") from None
        if not units:
            raise ValueError(f"placement_group(bundles=…): {bundle!r} asks for nothing.")
    if strategy not in STRATEGIES:
        raise ValueError(f"placement_group(strategy={strategy!r}): it may be one of {', '.join(STRATEGIES)}.")
    name = checked_text("placement_group", "name", name)
    if lifetime not in (None, "detached"):
        raise ValueError(f"placement_group(lifetime={lifetime!r}): it may be 'detached', or left out.")
    required = _required(bundle_label_selector, len(bundles))
    runtime = get_runtime()
    group = PlacementGroup(PlacementGroupID.from_random(), bundles)
    detached = lifetime == "detached"
    answer = runtime.request(
        lambda number: CreateGroup(
            number, group.id.binary(), group.bundle_specs, strategy, name, detached, runtime.driver_id, required
        )
    )
    if answer.body.get("taken"):
        raise ValueError(
            f"placement_group(name={name!r}): another group has that name; get_placement_group({name!r}) gives it."
        )
    return group


def _required(selectors: Any, count: int) -> list[tuple[Condition, ...]]:
    """The labels that the node of each bundle must have. Raises ValueError."""
    if selectors is None:
        return []
    what = f"placement_group(bundle_label_selector={selectors!r})"
    if not isinstance(selectors, Sequence) or len(selectors) != count:
        raise ValueError(f"{what}: it may be a list with a dict for each of the {count} bundles.")
    for selector in selectors:
        texts = selector.items() if isinstance(selector, Mapping) else [(selector, None)]
        if not all(isinstance(text, str) for pair in texts for text in pair):
            raise ValueError(f"{what}: {selector!r} is no dict of strings like {{'zone': 'a'}}.")
    try:
        return [selected(selector) for selector in selectors]
    except ValueError as error:
        raise ValueError(f"{what}: {error}.") from None


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Give its bundles back. Tasks and actors in it are ended."""
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group({placement_group!r}): it is no placement group.")
    get_runtime().send(RemoveGroup(placement_group.id.binary()))


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """What is known of a group, or of all of them by id."""
    table = {group["group"].hex(): _for_people(group) for group in get_runtime().query("groups")}
    if placement_group is None:
        return table
    id = placement_group.id.hex()
    return table.get(id, {"placement_group_id": id, "name": "", "state": "REMOVED"})


def _for_people(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "placement_group_id": group["group"].hex(),
        "name": group["name"],
        "strategy": group["strategy"],
        "state": _STATES.get(group["state"], "PENDING"),
        "bundles": {index: bundle["needs"] for index, bundle in enumerate(group["bundles"])},
        "bundles_to_node_id": {index: bundle["node"].hex() for index, bundle in enumerate(group["bundles"])},
    }


def get_placement_group(name: str) -> PlacementGroup:
    """The group of that name. Raises ValueError if there is none."""
    for group in get_runtime().query("groups"):
        if group["name"] == name and name:
            return PlacementGroup(group["group"], [bundle["needs"] for bundle in group["bundles"]])
    raise ValueError(f"get_placement_group({name!r}): no placement group has that name.")


def get_current_placement_group() -> PlacementGroup | None:
    """The group that the current task or actor runs in; None if in none."""
    runtime = get_runtime()
    id = group_of(runtime.executor.resources) if runtime.executor is not None else b""
    if not id:
        return None
    return PlacementGroup(id)
