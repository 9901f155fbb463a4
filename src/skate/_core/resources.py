"""What a node has and what of it is free: exact arithmetic on fractions of resources.

Owns:      amounts. Inside, an amount is an `int` of 1/10000 units, so that ten tasks of 0.1 CPU fill one CPU exactly
           and giving back always restores what was taken; floats appear at the edges only.
Knows not: who asks and why; `scheduler.py` decides that.
Idea:      GPUs are counted twice, as the sum in `available["GPU"]` and one by one in `gpus`: a task gets whole GPUs or
           a fraction of a single one, never halves of two.
Invariant: `available["GPU"] == sum(gpus)`; only CPUs can be negative (a task that waited goes on,
           even on a full machine).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

#: Units in 1.0 of a resource: the finest fraction that can be told apart.
PRECISION = 10_000
#: The largest amount that may be asked for; beyond it floats no longer hold units exactly.
AMOUNT_MAX = float(2**53)

Amounts = dict[str, int]


def to_units(amounts: Mapping[str, float]) -> Amounts:
    """Exact amounts of what is asked for, without zeros. ValueError for what is no amount."""
    units: Amounts = {}
    for name, amount in amounts.items():
        if not math.isfinite(amount) or amount < 0 or amount > AMOUNT_MAX:
            raise ValueError(
                f"resource {name!r}: {amount} is no amount; it must be a number from 0 to {AMOUNT_MAX:.0f}"
            )
        if rounded := round(amount * PRECISION):
            units[name] = rounded
        elif amount > 0:
            raise ValueError(f"resource {name!r}: {amount} is too little; the finest fraction is {1 / PRECISION}")
    gpus = units.get("GPU", 0)
    if gpus > PRECISION and gpus % PRECISION:
        raise ValueError(f"resource 'GPU': {amounts['GPU']} must be a whole number, or a fraction of one GPU")
    return units


def to_floats(units: Mapping[str, int]) -> dict[str, float]:
    return {name: amount / PRECISION for name, amount in units.items()}


#: How the names of resources begin that mark a node: each node has one of `node:<its address>`.
NODE = "node:"
#: The first node of a cluster has this one, too, and so has a node that is alone.
HEAD = "node:__internal_head__"


def marks_of_node(host: str, *, is_head: bool) -> Amounts:
    """The resources by which tasks name one node: they ask for a little of them, such as 0.001, to run there."""
    marks = {f"{NODE}{host}": PRECISION}
    if is_head:
        marks[HEAD] = PRECISION
    return marks


def without_marks(amounts: Mapping[str, float]) -> dict[str, float]:
    """The same amounts without the marks of nodes: each node has one, so people learn nothing from them."""
    return {name: amount for name, amount in amounts.items() if not name.startswith(NODE)}


class Allocation(msgspec.Struct):
    """What one lease took out of a pool."""

    amounts: Amounts
    #: The GPUs that it may use; each is charged the same part of `amounts["GPU"]`.
    gpu_ids: list[int]
    #: The bundle of each of them, if they are of a placement group.
    gpu_bundles: list[int] = []


GROUP = "_group_"


def in_bundle(amounts: Mapping[str, float], group: bytes, index: int = -1) -> dict[str, float]:
    """The same amounts, out of a placement group: of any of its bundles, or of that one.

    A bundle's resources have names of their own on its node, so that whoever asks for them is led there and uses
    nothing else. Each is there twice, with and without the bundle's index: who names one needs both. `bundle_group_…`
    is for those who need nothing, and still have to be there.
    """
    named = {f"{name}{GROUP}{group.hex()}": amount for name, amount in {**amounts, "bundle": BUNDLE_PART}.items()}
    if index >= 0:
        indexed = {**amounts, "bundle": BUNDLE_PART}
        named.update({f"{name}{GROUP}{index}_{group.hex()}": amount for name, amount in indexed.items()})
    return named


#: What everybody in a bundle takes of it, besides what he asks for; a bundle has 1000 such parts.
BUNDLE_PART = 0.001


def group_of(amounts: Iterable[str]) -> bytes:
    """The placement group that these resources are of; empty if they are of none."""
    for name in amounts:
        if GROUP in name:
            return bytes.fromhex(name.rpartition("_")[2])
    return b""


def reserved(total: Amounts) -> Amounts:
    """What a node with these resources has set aside for bundles."""
    amounts: Amounts = {}
    for name, amount in total.items():
        kind, group, which = name.partition(GROUP)
        if group and "_" not in which:  # with an index it is the same again
            amounts[kind] = amounts.get(kind, 0) + amount
    return amounts


def is_cpu(name: str) -> bool:
    """Whether that resource is CPUs, of a node or of a bundle."""
    return name == "CPU" or name.startswith("CPU_group_")


def is_gpu(name: str) -> bool:
    """Whether that resource is GPUs, of a node or of a bundle."""
    return name == "GPU" or name.startswith("GPU_group_")


class ResourcePool:
    """The resources of a node, taken and given back whole."""

    __slots__ = ("_attempts", "available", "bundle_gpus", "bundles", "gpus", "total")

    def __init__(self, total: Mapping[str, int]) -> None:
        self.total: Amounts = dict(total)
        self.available: Amounts = dict(total)
        #: What is free of each GPU, by its id.
        self.gpus: list[int] = [PRECISION] * (total.get("GPU", 0) // PRECISION)
        #: Bundles of placement groups: what was taken for them, and the names that it has since; by group and index.
        self.bundles: dict[tuple[bytes, int], tuple[Allocation, Amounts]] = {}
        #: For which attempt at placing its group each was set aside.
        self._attempts: dict[tuple[bytes, int], int] = {}
        #: What is free of each GPU of a placement group, by group, and by bundle and GPU: bundles may share a GPU.
        self.bundle_gpus: dict[bytes, dict[tuple[int, int], int]] = {}

    def copy(self) -> ResourcePool:
        """A pool to plan with."""
        twin = ResourcePool.__new__(ResourcePool)
        twin.total = self.total
        twin.available = dict(self.available)
        twin.gpus = list(self.gpus)
        twin.bundles = self.bundles
        twin.bundle_gpus = {group: dict(gpus) for group, gpus in self.bundle_gpus.items()}
        return twin

    # -- bundles ------------------------------------------------------------------------------------------------------

    def prepare(self, group: bytes, index: int, needs: Amounts, attempt: int = 0) -> bool:
        """Set a bundle aside; False if that is not possible now. A question that is repeated has the same answer."""
        if (group, index) in self.bundles:
            return self._attempts[group, index] == attempt
        if not self.fits(needs):
            return False
        self.bundles[group, index] = (self.take(needs), {})
        self._attempts[group, index] = attempt
        return True

    def commit(self, group: bytes, index: int) -> None:
        """Those who name the bundle can have it from now on. Nothing happens the second time, or if it was released."""
        allocation, known = self.bundles.get((group, index), (None, {}))
        if allocation is None or known:
            return
        floats = {name: amount / PRECISION for name, amount in allocation.amounts.items()}
        names = to_units_of_bundle(floats, group, index)
        self.bundles[group, index] = (allocation, names)
        for name, amount in names.items():
            self.total[name] = self.total.get(name, 0) + amount
            self.available[name] = self.available.get(name, 0) + amount
        each = allocation.amounts.get("GPU", 0) // max(1, len(allocation.gpu_ids))
        for gpu in allocation.gpu_ids:
            self.bundle_gpus.setdefault(group, {})[index, gpu] = each

    def release(self, group: bytes, index: int) -> None:
        """The bundle is no more. What is still held of it is given back into nothing."""
        bundle = self.bundles.pop((group, index), None)
        if bundle is None:
            return
        del self._attempts[group, index]
        allocation, names = bundle
        for name, amount in names.items():
            left = self.total[name] - amount
            if left:
                self.total[name] = left
                self.available[name] -= amount
            else:
                del self.total[name], self.available[name]
        gpus = {place: free for place, free in self.bundle_gpus.pop(group, {}).items() if place[0] != index}
        if gpus:
            self.bundle_gpus[group] = gpus
        self.give_back(allocation)

    def can_ever_fit(self, request: Amounts) -> bool:
        total = self.total
        return all(amount <= total.get(name, 0) for name, amount in request.items())

    def fits(self, request: Amounts, leaving: Amounts | None = None) -> bool:
        """Whether the request can be taken now, with `leaving` still there afterwards."""
        available = self.available
        for name, amount in request.items():
            kept = leaving.get(name, 0) if leaving else 0
            if available.get(name, 0) - kept < amount:
                return False
        gpus = request.get("GPU", 0)
        if gpus and self._choose_gpus(gpus) is None:
            return False
        inside = _gpus_in_bundle(request)
        return inside is None or self._choose_in_bundle(*inside) is not None

    def _choose_in_bundle(self, group: bytes, index: int, amount: int) -> list[tuple[int, int]] | None:
        """Bundles, and a GPU of each."""
        known = self.bundle_gpus.get(group, {})
        gpus = {place: free for place, free in known.items() if index in (-1, place[0])}
        if amount >= PRECISION:
            whole = [place for place, free in gpus.items() if free == PRECISION]
            count = amount // PRECISION
            return whole[:count] if len(whole) >= count else None
        roomy = [(free, place) for place, free in gpus.items() if free >= amount]
        return [min(roomy)[1]] if roomy else None

    def _choose_gpus(self, amount: int) -> list[int] | None:
        if amount >= PRECISION:
            whole = [gpu for gpu, free in enumerate(self.gpus) if free == PRECISION]
            count = amount // PRECISION
            return whole[:count] if len(whole) >= count else None
        # The fullest GPU with room: whole ones stay whole for those who need them.
        roomy = [(free, gpu) for gpu, free in enumerate(self.gpus) if free >= amount]
        return [min(roomy)[1]] if roomy else None

    def gpus_for(self, request: Amounts) -> list[int]:
        """The GPUs that it would get, after `fits` has said yes."""
        return self._allocation_of(request).gpu_ids

    def _allocation_of(self, request: Amounts) -> Allocation:
        gpus = request.get("GPU", 0)
        inside = _gpus_in_bundle(request)
        if inside is not None:
            places = self._choose_in_bundle(*inside)
            assert places is not None, "without fits()"
            return Allocation(request, [gpu for _, gpu in places], [bundle for bundle, _ in places])
        gpu_ids = self._choose_gpus(gpus) if gpus else []
        assert gpu_ids is not None, "without fits()"
        return Allocation(request, gpu_ids)

    def take(self, request: Amounts) -> Allocation:
        """Take what `fits` has said yes to."""
        allocation = self._allocation_of(request)
        self.take_exactly(allocation)
        return allocation

    def take_exactly(self, allocation: Allocation) -> None:
        """Take what was chosen on a copy of this pool."""
        self._add(allocation.amounts.items(), -1)
        self._add_gpus(allocation, -1)

    def give_back(self, allocation: Allocation, *, but_cpus: bool = False) -> None:
        """The lease has ended. `but_cpus`: its CPUs were given back before."""
        amounts = allocation.amounts.items()
        self._add([item for item in amounts if not is_cpu(item[0])] if but_cpus else amounts, 1)
        self._add_gpus(allocation, 1)

    def give_back_cpus(self, allocation: Allocation) -> None:
        """The task waits for others: its CPUs serve them meanwhile."""
        self._add([item for item in allocation.amounts.items() if is_cpu(item[0])], 1)

    def take_cpus_again(self, allocation: Allocation) -> None:
        """The task goes on, whether or not its CPUs are free: stopping it would free nothing."""
        self._add([item for item in allocation.amounts.items() if is_cpu(item[0])], -1)

    def _add(self, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        available = self.available
        for name, amount in amounts:
            if name in self.total or GROUP not in name:  # a bundle that is gone takes nothing back
                available[name] = available.get(name, 0) + sign * amount

    def _add_gpus(self, allocation: Allocation, sign: int) -> None:
        inside = _gpus_in_bundle(allocation.amounts)
        if inside is not None:
            group, _index, amount = inside
            gpus = self.bundle_gpus.get(group, {})
            for place in zip(allocation.gpu_bundles, allocation.gpu_ids):
                if place in gpus:
                    gpus[place] += sign * amount // len(allocation.gpu_ids)
        elif allocation.gpu_ids:
            each = allocation.amounts["GPU"] // len(allocation.gpu_ids)
            for gpu in allocation.gpu_ids:
                self.gpus[gpu] += sign * each

    def validate(self) -> None:
        for name, amount in self.available.items():
            assert amount <= self.total.get(name, 0), f"more {name} is free than there is: {self.available}"
            assert amount >= 0 or is_cpu(name), f"{name} was taken twice: {self.available}"
        assert all(0 <= free <= PRECISION for free in self.gpus), f"a GPU was taken twice: {self.gpus}"
        assert self.available.get("GPU", 0) == sum(self.gpus), f"{self.available} does not match {self.gpus}"


def to_units_of_bundle(amounts: Mapping[str, float], group: bytes, index: int) -> Amounts:
    """What a bundle adds to its node."""
    whole = in_bundle(amounts, group, index)
    whole[f"bundle{GROUP}{group.hex()}"] = 1.0
    whole[f"bundle{GROUP}{index}_{group.hex()}"] = 1.0
    return {name: round(amount * PRECISION) for name, amount in whole.items()}


def _gpus_in_bundle(amounts: Mapping[str, int]) -> tuple[bytes, int, int] | None:
    """The group, the index (-1: any) and the amount of GPUs that are asked of a placement group."""
    found: tuple[bytes, int, int] | None = None
    for name, amount in amounts.items():
        if name.startswith("GPU_group_") and amount:
            parts = name.split("_")
            index = int(parts[2]) if len(parts) == 4 else -1
            if found is None or index >= 0:
                found = (bytes.fromhex(parts[-1]), index, amount)
    return found
