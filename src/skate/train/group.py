"""The workers of one attempt: reserved, started, looked at, ended.

    reserve ──► a Worker per bundle ──► describe ──► setup (torchrun's environment) ──► fit

Invariant: after `end`, whatever came before it, no worker is left, and the resources are free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import skate
from skate import exceptions
from skate.train import checkpoint as checkpoints
from skate.train import sizing
from skate.train.environment import Place, Seat, seats
from skate.train.progress import LINE_EVERY_S
from skate.train.stalls import Look, StalledError
from skate.train.worker import Worker
from skate.util.placement_group import placement_group, remove_placement_group
from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

#: How long resources may take to be free that the workers of the last attempt had, before fewer workers are tried.
FREED_WITHIN_S = 2.0
#: How long each smaller number of workers is tried.
TRIED_FOR_S = 0.5
#: How long a machine that died may take to come back, if the others are too few.
BACK_WITHIN_S = 30.0
#: How long the processes of ended workers may take to be gone.
GONE_WITHIN_S = 10.0
#: How long workers may take to start, at least, where stalls are looked for.
STARTED_WITHIN_S = 60.0
#: How long a rank may take to say where its main thread is.
LOOK_WITHIN_S = 2.0


class NoRoomError(ValueError):
    """The cluster has fewer places than a training needs at least."""


class StartFailedError(Exception):
    """A worker failed before it trained. rank: None if it had none yet."""

    def __init__(self, rank: int | None, error: BaseException) -> None:
        super().__init__(rank, error)
        self.rank, self.error = rank, error


class Group:
    """The workers of one attempt, in the order of their ranks."""

    def __init__(self, resources: Mapping[str, float], say: Callable[[str], None]) -> None:
        self._resources = dict(resources)
        self._say = say
        self._reserved: Any = None
        self._actors: list[Any] = []
        self._places: list[Place] = []
        #: What ranks report, and their training functions: the reference or stream, and the rank.
        self.streams: dict[Any, int] = {}
        self.fits: dict[Any, int] = {}
        #: Ranks whose training function has ended, in that order.
        self.dismissed: list[int] = []

    # -- room --------------------------------------------------------------------------------------------------------

    def check_room(self, least: int) -> None:
        """Raise if the machines that live could not run these workers, even if nothing else ran."""
        nodes = [node["Resources"] for node in skate.nodes() if node["Alive"]]
        room = sizing.capacity(nodes, self._resources)
        if room < least:
            kinds = {kind: sum(node.get(kind, 0) for node in nodes) for kind in self._resources}
            raise NoRoomError(
                f"train.run(workers={least}): the cluster has room for {room} of these workers.\n"
                f"  why:  each needs {self._resources}, and the {len(nodes)} nodes have {kinds} together.\n"
                "  next: fewer workers, a smaller resources_per_worker=, or more nodes."
            )

    def reserve(self, least: int, most: int) -> int:
        """Reserve places for as many workers as can be had, `most` at most; wait while there are fewer than `least`.

        Raises NoRoomError if the machines that live are too few, and stay so.
        """
        too_few_since: float | None = None
        while True:
            sizes = sizing.sizes_to_try(self._capacity(), self._free(), least, most)
            for size in sizes[:-1]:
                if self._try_to_reserve(size, FREED_WITHIN_S if size == sizes[0] else TRIED_FOR_S):
                    return size
            if sizes and self._wait_for(sizes[-1], least):
                return sizes[-1]
            if sizes or too_few_since is None:
                too_few_since = time.monotonic()
                self._say(f"train.run waits for machines with room for {least} times {self._resources}.")
            if time.monotonic() - too_few_since >= BACK_WITHIN_S:
                self.check_room(least)
            time.sleep(0.5)

    def could_grow_to(self, most: int) -> int:
        """How many workers the group could have if it was made again now."""
        workers = len(self._actors)
        if workers >= most:
            return workers
        size = sizing.size_to_grow_to(workers, self._capacity(), self._free(), most)
        if size > workers:
            # Free resources may lie in pieces: only a reservation shows that the places are there.
            more = placement_group([self._resources] * (size - workers))
            try:
                if not more.wait(TRIED_FOR_S):
                    return workers
            finally:
                remove_placement_group(more)
        return size

    def _try_to_reserve(self, workers: int, patience: float) -> bool:
        # Noted before it is waited for, so that `end` removes it if Ctrl-C is pressed meanwhile.
        self._reserved = placement_group([self._resources] * workers)
        if self._reserved.wait(patience):
            return True
        self._give_back()
        return False

    def _wait_for(self, workers: int, least: int) -> bool:
        """Reserve places for these workers, however long others use them. False if machines were lost meanwhile."""
        self._reserved = placement_group([self._resources] * workers)
        while not self._reserved.wait(LINE_EVERY_S):
            if self._capacity() < least:
                self._give_back()
                return False
            free = {kind: skate.available_resources().get(kind, 0) for kind in self._resources}
            self._say(f"train.run waits for {workers} times {self._resources}; free is {free}.")
        return True

    def _capacity(self) -> int:
        return sizing.capacity([node["Resources"] for node in skate.nodes() if node["Alive"]], self._resources)

    def _free(self) -> int:
        return sizing.fitting(skate.available_resources(), self._resources)

    # -- start -------------------------------------------------------------------------------------------------------

    def start(
        self,
        workers: int,
        about: dict[str, Any],
        *,
        run_id: str,
        failed: int,
        failures: int | None,
        stall_after: float | None,
        fit: tuple[Any, Any, bool],
    ) -> None:
        """Start the workers in the reserved places. Raises StartFailedError.

        about: what the context of every rank has. stall_after: as in `run`; workers that take longer than that, and
        than a minute, to start have failed.
        fit: a reference to the function, its config, and whether it takes that.
        """
        patience = None if stall_after is None else max(stall_after, STARTED_WITHIN_S)
        made = skate.remote(concurrency_groups={"reports": 1, "watch": 1})(Worker)
        other = {kind: amount for kind, amount in self._resources.items() if kind not in ("CPU", "GPU", "memory")}
        actors = self._actors = [
            made.options(
                num_cpus=self._resources.get("CPU", 0),
                num_gpus=self._resources.get("GPU", 0),
                memory=self._resources.get("memory"),
                resources=other,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._reserved, bundle),
            ).remote()
            for bundle in range(workers)
        ]
        places: list[Place] = self._all([actor.describe.remote() for actor in actors], patience, has_rank=False)
        order = seats(_with_cores_of_nodes(places), run_id=run_id, failed=failed, failures=failures)
        self._actors = [actors[seat.index] for seat in order]
        self._places = [places[seat.index] for seat in order]
        # Their resources are free for these, so the workers before them are gone and write no more.
        checkpoints.discard_parts(Path(about["path"]))
        self._set_up(order, about, patience)
        self.dismissed = []
        self.streams = {actor.reports.remote(): rank for rank, actor in enumerate(self._actors)}
        self.fits = {actor.fit.remote(*fit): rank for rank, actor in enumerate(self._actors)}

    def _set_up(self, order: Sequence[Seat], about: dict[str, Any], patience: float | None) -> None:
        refs = [actor.setup.remote(seat, about) for actor, seat in zip(self._actors, order)]
        self._all(refs, patience, has_rank=True)

    def _all(self, refs: list[Any], patience: float | None, *, has_rank: bool) -> list[Any]:
        """The values of all references, one of each worker; the first failure as soon as it is known."""
        indices = {ref: index for index, ref in enumerate(refs)}
        values: dict[int, Any] = {}
        pending = list(refs)
        deadline = None if patience is None else time.monotonic() + patience
        while pending:
            ready, pending = skate.wait(pending, num_returns=1, timeout=LINE_EVERY_S)
            for ref in ready:
                try:
                    values[indices[ref]] = skate.get(ref)
                except exceptions.SkateError as error:
                    raise StartFailedError(indices[ref] if has_rank else None, error) from None
            if ready:
                continue
            try:
                self.check_room(len(refs))  # a worker whose reserved place was lost waits for another one
            except NoRoomError as error:
                raise StartFailedError(None, error) from None
            if deadline is not None and time.monotonic() >= deadline:
                late = tuple(indices[ref] for ref in pending)
                looks = {index: Look(False, process="a worker that was starting") for index in late}
                raise StartFailedError(late[0] if has_rank else None, StalledError(late, looks, patience or 0.0))
        return [values[index] for index in range(len(refs))]

    # -- while it trains ---------------------------------------------------------------------------------------------

    def look(self) -> dict[int, Look]:
        """Where the main thread of every rank is that has not finished. Empty if one dies meanwhile."""
        ranks = sorted(self.fits.values())
        asked = {self._actors[rank].look.remote(): rank for rank in ranks}
        answered, _ = skate.wait(list(asked), num_returns=len(asked), timeout=LOOK_WITHIN_S)
        looks: dict[int, Look] = {}
        for ref in answered:
            try:
                seen = skate.get(ref)
            except exceptions.SkateError:
                return {}  # it has died meanwhile, which says more than where the others are
            place = self._places[asked[ref]]
            looks[asked[ref]] = Look(True, seen.waits, seen.stack, f"process {place.pid}")
        mute = [rank for ref, rank in asked.items() if ref not in answered]
        return {**looks, **{rank: Look(False, process=text) for rank, text in self._states_of(mute).items()}}

    def _states_of(self, ranks: list[int]) -> dict[int, str]:
        """What the machines say of the processes of these ranks."""
        ask = skate.remote(num_cpus=0)(process_state)
        asked = {}
        for rank in ranks:
            place = self._places[rank]
            there = NodeAffinitySchedulingStrategy(place.node, soft=False)
            asked[ask.options(scheduling_strategy=there).remote(place.pid)] = rank
        answered = skate.wait(list(asked), num_returns=len(asked), timeout=LOOK_WITHIN_S)[0] if asked else []
        texts = {}
        for ref, rank in asked.items():
            text = f"process {self._places[rank].pid}"
            if ref in answered:
                try:
                    text += f", {skate.get(ref)}"
                except exceptions.SkateError:
                    pass
            else:
                skate.cancel(ref)
            texts[rank] = text
        return texts

    # -- the end -----------------------------------------------------------------------------------------------------

    def dismiss(self, rank: int) -> None:
        """End the process of a rank whose training function has ended, as torchrun does.

        torch keeps the connections of a model in DistributedDataParallel open until then, whatever the program closes.
        A rank that waits in a collective for this one would hear nothing, and wait for half an hour.
        """
        self.dismissed.append(rank)
        skate.kill(self._actors[rank])

    def end(self) -> None:
        """End all workers at once, and give the resources back."""
        try:
            for actor in self._actors:
                skate.kill(actor)
            if self.fits:
                skate.wait(list(self.fits), num_returns=len(self.fits), timeout=GONE_WITHIN_S)
        finally:
            self._give_back()
            self._actors, self._places, self.streams, self.fits = [], [], {}, {}

    def _give_back(self) -> None:
        if self._reserved is not None:
            remove_placement_group(self._reserved)
            self._reserved = None


def process_state(pid: int) -> str:
    """What the kernel says of a process, in words."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "which is gone"
    words = {"T": "stopped by a signal (SIGSTOP)", "t": "held by a debugger", "D": "waiting for a disk", "Z": "dead"}
    return words.get(state, "running" if state == "R" else "asleep")


def _with_cores_of_nodes(places: list[Place]) -> list[Place]:
    """A node may be given fewer CPUs than its machine has cores."""
    cpus = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in skate.nodes() if node["Alive"]}
    return [
        Place(**{**vars(place), "cores": min(place.cores, int(cpus.get(place.node, 0)) or place.cores)})
        for place in places
    ]
