"""Which node runs what another could not, or should not: the decisions of the global scheduler.

Problem:   a node serves its own demands first. What it lacks the resources for, has too long a queue for, or whose data
           lies elsewhere, goes to the node where it is estimated to begin first:

               tasks that wait there × how long one takes + bytes to be brought there ÷ how many arrive a second

           All four come from the nodes' own reports and from what is known of the inputs; times and rates are
           exponential averages.
Owns:      nothing. Every function takes what is known and says what to do, so any number of schedulers can serve.
Knows not: messages, leases, time.
Idea:      who asks for a place decides, and may change its mind (`dispersal.py`); who is asked keeps what it was asked
           for. Nothing is sent to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from skate._core.resources import PRECISION, Amounts, is_cpu, reserved

#: What a node is taken for that has not run or received anything yet.
TASK_S_AT_FIRST = 0.01
BYTES_PER_S_AT_FIRST = 1e9
#: Weight of the newest value in an average.
NEWEST = 0.2


class Average(msgspec.Struct):
    """An exponential average."""

    value: float

    def learn(self, seen: float) -> None:
        self.value += NEWEST * (seen - self.value)


class NodeView(msgspec.Struct, kw_only=True):
    """A node as the others know it, from its last report."""

    id: bytes
    total: Amounts
    available: Amounts
    labels: dict[str, str] = {}
    #: Tasks that wait there.
    queued: int = 0
    #: By the number of a node whose processes have some: how many of those are theirs, and the leases that they hold.
    stakes: dict[int, tuple[int, list[int]]] = {}
    task_s: float = TASK_S_AT_FIRST
    bytes_per_s: float = BYTES_PER_S_AT_FIRST
    #: It runs tasks and actors; otherwise it is there for a driver.
    serves: bool = True
    #: Of its object store.
    store_bytes: int = 0
    store_used_bytes: int = 0
    #: How many more workers it can have for actors; None: it does not say.
    actor_room: int | None = None
    #: It can have no worker for a task: it has as many as it can, and actors have them all.
    full_of_actors: bool = False

    def can_ever_fit(self, needs: Amounts) -> bool:
        return self.serves and all(amount <= self.total.get(name, 0) for name, amount in needs.items())

    def fits(self, needs: Amounts) -> bool:
        return all(amount <= self.available.get(name, 0) for name, amount in needs.items())

    def can_start_actor(self, held: Amounts) -> bool:
        """Now, by its report."""
        return self.actor_room != 0 and self.fits(held)

    def can_ever_hold(self, inputs: Sequence[Input]) -> bool:
        return not self.store_bytes or _missing_bytes(self, inputs) <= self.store_bytes

    def has_labels(self, conditions: Sequence[Condition]) -> bool:
        return all(condition.holds(self.labels) for condition in conditions)

    def can_ever_run(self, request: Request) -> bool:
        return self.has_labels(request.required) and self.can_ever_fit(request.needs)


class Residents(msgspec.Struct):
    """The actors of a node, as the one who places them knows them: before the node reports them."""

    #: What they hold.
    held: Amounts = msgspec.field(default_factory=dict)
    #: How many of them are to be spread.
    spread: int = 0
    #: How many of them hold no CPU, and so are in no report.
    without_cpu: int = 0


NOBODY = Residents()


class Input(msgspec.Struct, frozen=True):
    """An object that the task reads."""

    size_bytes: int
    #: Nodes that have a copy.
    nodes: frozenset[bytes] = frozenset()


class Affinity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """On that node; if soft, elsewhere when it is gone or can never run it."""

    node: bytes
    soft: bool = False


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the label `key` of a node has to be; `values` empty: it has to be there. `negated`: it must not."""

    key: str
    values: frozenset[str] = frozenset()
    negated: bool = False

    def holds(self, labels: Mapping[str, str]) -> bool:
        there = self.key in labels and (not self.values or labels[self.key] in self.values)
        return there is not self.negated


class Where(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the one who submits a task, or creates an actor, wishes."""

    spread: bool = False
    affinity: Affinity | None = None
    #: Labels that its node must have, and labels that it should have.
    required: tuple[Condition, ...] = ()
    preferred: tuple[Condition, ...] = ()
    #: The placement group that what it starts itself is in, too.
    captures: bytes = b""


ANYWHERE = Where()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    #: What a node must have in all, free or not.
    needs: Amounts
    #: What must be free there to begin, if that is less: an actor without options holds nothing.
    holds: Amounts | None = None
    inputs: Sequence[Input] = ()
    #: How long one takes, by experience; 0 if there is none.
    task_s: float = 0.0
    spread: bool = False
    affinity: Affinity | None = None
    required: Sequence[Condition] = ()
    preferred: Sequence[Condition] = ()

    @classmethod
    def of(cls, needs: Amounts, where: Where | None, inputs: Sequence[Input] = (), task_s: float = 0.0) -> Request:
        where = where or ANYWHERE
        return cls(
            needs=needs,
            inputs=inputs,
            task_s=task_s,
            spread=where.spread,
            affinity=where.affinity,
            required=where.required,
            preferred=where.preferred,
        )

    @property
    def held(self) -> Amounts:
        return self.needs if self.holds is None else self.holds


class Nowhere(msgspec.Struct, frozen=True):
    """No node of the cluster can ever run it; for people, why."""

    reason: str


def wait_s(node: NodeView, request: Request) -> float:
    """How long until the task could begin there, by what is known."""
    return node.queued * node.task_s + _missing_bytes(node, request.inputs) / node.bytes_per_s


def _missing_bytes(node: NodeView, inputs: Sequence[Input]) -> int:
    return sum(item.size_bytes for item in inputs if node.id not in item.nodes)


def choose(
    request: Request, nodes: Iterable[NodeView], residents: Mapping[bytes, Residents] | None = None
) -> NodeView | Nowhere:
    """The node that should run it; `residents` by node, if it is an actor. Ties go to the least of ids, so that all
    schedulers decide alike."""
    living = sorted(nodes, key=lambda node: node.id)
    affinity = request.affinity
    if affinity is not None:
        wanted = next((node for node in living if node.id == affinity.node), None)
        if wanted is not None and wanted.can_ever_run(request):
            return wanted
        if not affinity.soft:
            return Nowhere(f"the node {affinity.node.hex()} {_why_not_there(request, wanted)}.")
    ordered = order(request, living, residents)
    return ordered[0] if ordered else Nowhere(_why_nowhere(request, living))


def order(
    request: Request,
    nodes: Iterable[NodeView],
    residents: Mapping[bytes, Residents] | None = None,
    after: bytes = b"",
) -> list[NodeView]:
    """The nodes that can run it, best first, whatever its affinity. Ties go to the next of ids after that one."""
    living = sorted(nodes, key=lambda node: (node.id <= after, node.id))
    feasible = [node for node in living if node.can_ever_run(request)]
    if request.preferred:
        feasible = [node for node in feasible if node.has_labels(request.preferred)] or feasible
    if request.inputs:
        feasible = [node for node in feasible if node.can_ever_hold(request.inputs)] or feasible
    if residents is not None:  # it is an actor: one that has no worker for it is the last resort
        feasible = [node for node in feasible if node.actor_room != 0] or feasible
    else:
        feasible = [node for node in feasible if not node.full_of_actors] or feasible
    if request.spread and residents is not None:
        return sorted(feasible, key=lambda node: _as_home(node, request, residents.get(node.id, NOBODY)))
    if residents is not None and not any(is_cpu(name) for name in request.held):
        return sorted(feasible, key=lambda node: _without_cpu(node, request, residents.get(node.id, NOBODY)))
    if request.spread:
        return sorted(feasible, key=lambda node: (not node.fits(request.needs), _use_of(node), node.queued))
    # Resources that are taken are a queue too, if nobody stands in it yet.
    return sorted(feasible, key=lambda node: (wait_s(node, request) + _occupied_s(node, request.needs), _use_of(node)))


def _as_home(node: NodeView, request: Request, residents: Residents) -> tuple[bool, int, bool, float, int]:
    """For an actor that is to be spread the least is the best.

    What tasks have in use counts last: by the time that it is known here they may have ended, and the actor stays.
    """
    is_full = _is_full(node, request.needs, residents)
    return is_full, residents.spread, not node.fits(request.needs), _use_of(node), node.queued


def _without_cpu(node: NodeView, request: Request, residents: Residents) -> tuple[bool, bool, float, float, int]:
    """The same for an actor that holds no CPU, and so waits for no task.

    Where no CPU is held, none is missing from any report: such actors would all go to the same node. So each counts as
    if it used one CPU, beside those that tasks and other actors hold.
    """
    held = request.held
    is_full = _is_full(node, held, residents)
    cpus = node.total.get("CPU", 0)
    in_use = max(cpus - node.available.get("CPU", 0), residents.held.get("CPU", 0))
    load = (in_use + residents.without_cpu * PRECISION) / max(cpus, PRECISION)
    return is_full, not node.fits(held), load, _use_of(node), node.queued


def _is_full(node: NodeView, amounts: Amounts, residents: Residents) -> bool:
    """Of bundles and of actors, whether or not the node has reported them."""
    kept = reserved(node.total)
    return any(
        node.total.get(name, 0) - kept.get(name, 0) - residents.held.get(name, 0) < amount
        for name, amount in amounts.items()
    )


def _occupied_s(node: NodeView, needs: Amounts) -> float:
    return 0.0 if node.fits(needs) else node.task_s


def _use_of(node: NodeView) -> float:
    """The largest part of any resource that is in use."""
    parts = [1 - node.available.get(name, 0) / amount for name, amount in node.total.items() if amount]
    return max(parts, default=0.0)


def _why_not_there(request: Request, node: NodeView | None) -> str:
    if node is None:
        return "is not part of the cluster"
    if not node.has_labels(request.required):
        return "does not have the labels that it requires"
    return "has less than it needs"


def _why_nowhere(request: Request, living: Sequence[NodeView]) -> str:
    if not living:
        return "the cluster has no node."
    labelled = [node for node in living if node.has_labels(request.required)]
    if not labelled:
        return "no node has the labels that it requires."
    most = {name: max(node.total.get(name, 0) for node in labelled) for name in request.needs}
    lacking = [name for name, amount in request.needs.items() if amount > most[name]]
    if lacking:
        return f"no node has so much of {', '.join(lacking)}."
    return "no single node has all that it needs."
