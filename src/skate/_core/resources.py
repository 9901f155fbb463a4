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


class Allocation(msgspec.Struct):
    """What one lease took out of a pool."""

    amounts: Amounts
    #: The GPUs that it may use; each is charged the same part of `amounts["GPU"]`.
    gpu_ids: list[int]


class ResourcePool:
    """The resources of a node, taken and given back whole."""

    __slots__ = ("available", "gpus", "total")

    def __init__(self, total: Mapping[str, int]) -> None:
        self.total: Amounts = dict(total)
        self.available: Amounts = dict(total)
        #: What is free of each GPU, by its id.
        self.gpus: list[int] = [PRECISION] * (total.get("GPU", 0) // PRECISION)

    def copy(self) -> ResourcePool:
        """A pool to plan with."""
        twin = ResourcePool.__new__(ResourcePool)
        twin.total = self.total
        twin.available = dict(self.available)
        twin.gpus = list(self.gpus)
        return twin

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
        return not gpus or self._choose_gpus(gpus) is not None

    def _choose_gpus(self, amount: int) -> list[int] | None:
        if amount >= PRECISION:
            whole = [gpu for gpu, free in enumerate(self.gpus) if free == PRECISION]
            count = amount // PRECISION
            return whole[:count] if len(whole) >= count else None
        # The fullest GPU with room: whole ones stay whole for those who need them.
        roomy = [(free, gpu) for gpu, free in enumerate(self.gpus) if free >= amount]
        return [min(roomy)[1]] if roomy else None

    def take(self, request: Amounts) -> Allocation:
        """Take what `fits` has said yes to."""
        gpus = request.get("GPU", 0)
        gpu_ids = self._choose_gpus(gpus) if gpus else []
        assert gpu_ids is not None, "take() without fits()"
        allocation = Allocation(request, gpu_ids)
        self.take_exactly(allocation)
        return allocation

    def take_exactly(self, allocation: Allocation) -> None:
        """Take what was chosen on a copy of this pool."""
        self._add(allocation.amounts.items(), -1)
        self._add_gpus(allocation, -1)

    def give_back(self, allocation: Allocation, *, but_cpus: bool = False) -> None:
        """The lease has ended. `but_cpus`: its CPUs were given back before."""
        amounts = allocation.amounts.items()
        self._add([item for item in amounts if item[0] != "CPU"] if but_cpus else amounts, 1)
        self._add_gpus(allocation, 1)

    def give_back_cpus(self, allocation: Allocation) -> None:
        """The task waits for others: its CPUs serve them meanwhile."""
        self.available["CPU"] = self.available.get("CPU", 0) + allocation.amounts.get("CPU", 0)

    def take_cpus_again(self, allocation: Allocation) -> None:
        """The task goes on, whether or not its CPUs are free: stopping it would free nothing."""
        self.available["CPU"] = self.available.get("CPU", 0) - allocation.amounts.get("CPU", 0)

    def _add(self, amounts: Iterable[tuple[str, int]], sign: int) -> None:
        available = self.available
        for name, amount in amounts:
            available[name] = available.get(name, 0) + sign * amount

    def _add_gpus(self, allocation: Allocation, sign: int) -> None:
        if allocation.gpu_ids:
            each = allocation.amounts["GPU"] // len(allocation.gpu_ids)
            for gpu in allocation.gpu_ids:
                self.gpus[gpu] += sign * each

    def validate(self) -> None:
        for name, amount in self.available.items():
            assert amount <= self.total.get(name, 0), f"more {name} is free than there is: {self.available}"
            assert amount >= 0 or name == "CPU", f"{name} was taken twice: {self.available}"
        assert all(0 <= free <= PRECISION for free in self.gpus), f"a GPU was taken twice: {self.gpus}"
        assert self.available.get("GPU", 0) == sum(self.gpus), f"{self.available} does not match {self.gpus}"
