"""ActorGroup: actors of one class that are called together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines
from skate.util import ActorGroup
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


class Worker:
    def __init__(self, factor: int = 1, *, log: Path | None = None) -> None:
        self.factor = factor
        self.log = log

    def times(self, value: int) -> int:
        return self.factor * value

    def pid(self) -> int:
        return os.getpid()

    def holds(self) -> dict[str, float]:
        return skate.get_runtime_context().get_assigned_resources()

    def stay(self, started: Path) -> None:
        started.touch()
        while True:
            pass

    def __ray_shutdown__(self) -> None:
        if self.log is not None:
            append(self.log, "in order")


class Known(Worker):
    def get_actor_metadata(self) -> int:
        return os.getpid()


def gone(pids: list[int]) -> bool:
    return not any(Path("/proc", str(pid)).exists() for pid in pids)


def test_a_method_is_called_in_every_actor() -> None:
    group = ActorGroup(Worker, num_actors=3, num_cpus_per_actor=0, init_args=(4,))
    assert len(group) == group.num_actors == 3
    assert skate.get(group.times.remote(5), timeout=WITHIN_S) == [20, 20, 20]
    pids = skate.get(group.pid.remote(), timeout=WITHIN_S)
    assert len(set(pids)) == 3
    assert [value_of(each.actor.pid.remote()) for each in group.actors] == pids
    assert value_of(group[1].actor.pid.remote()) == pids[1]
    assert group.actor_metadata == [None, None, None]
    with pytest.raises(TypeError, match=r"group\.times\.remote"):
        group.times(5)


def test_arguments_and_resources_of_the_actors() -> None:
    group = ActorGroup(Worker, num_cpus_per_actor=0.5, init_kwargs={"factor": 3})
    assert skate.get(group.times.remote(value=2), timeout=WITHIN_S) == [6]
    assert skate.get(group.holds.remote(), timeout=WITHIN_S) == [{"CPU": 0.5}]
    assert group.actor_config.num_cpus == 0.5
    assert dict(group.actor_config.init_kwargs) == {"factor": 3}


def test_metadata_actors_added_and_removed() -> None:
    group = ActorGroup(Known, num_actors=2, num_cpus_per_actor=0)
    pids = group.actor_metadata
    assert pids == skate.get(group.pid.remote(), timeout=WITHIN_S)
    group.add_actors(1)
    assert group.actor_metadata[:2] == pids
    assert len(group) == 3
    group.remove_actors([0])
    assert group.actor_metadata[0] == pids[1]
    assert len(skate.get(group.pid.remote(), timeout=WITHIN_S)) == 2
    wait_for(lambda: gone(pids[:1]), WITHIN_S, "the removed actor to end")


def test_shutdown_ends_all_in_order_and_start_makes_them_again(tmp_path: Path) -> None:
    group = ActorGroup(Worker, num_actors=2, num_cpus_per_actor=0, init_kwargs={"log": tmp_path / "log"})
    with pytest.raises(RuntimeError, match="has 2 actors already"):
        group.start()
    pids = skate.get(group.pid.remote(), timeout=WITHIN_S)
    group.shutdown()
    wait_for(lambda: gone(pids), WITHIN_S, "the actors to end")
    assert lines(tmp_path / "log") == ["in order"] * 2
    with pytest.raises(RuntimeError, match="has no actors"):
        group.times.remote(1)
    group.start()
    assert skate.get(group.times.remote(1), timeout=WITHIN_S) == [1, 1]
    group.shutdown(patience_s=0)
    assert lines(tmp_path / "log") == ["in order"] * 2
    group.shutdown()  # of none


def test_shutdown_kills_what_does_not_end(tmp_path: Path) -> None:
    group = ActorGroup(Worker, num_actors=2, num_cpus_per_actor=0)
    pids = skate.get(group.pid.remote(), timeout=WITHIN_S)
    group[0].actor.stay.remote(tmp_path / "started")
    wait_for((tmp_path / "started").exists, WITHIN_S, "the call to run")
    group.shutdown(patience_s=0.5)
    wait_for(lambda: gone(pids), WITHIN_S, "the actors to be gone")


@pytest.mark.parametrize("given", [{"num_actors": 0}, {"num_cpus_per_actor": -1}, {"num_gpus_per_actor": -1}], ids=str)
def test_wrong_numbers_are_errors(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        ActorGroup(Worker, **given)
