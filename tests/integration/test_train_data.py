"""train.stream: tasks make blocks, each worker takes its share, and the tasks wait for workers that are behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from programs import append, lines
from skate import train
from skate.train.data import MADE_AHEAD
from waiting import wait_for

pytestmark = pytest.mark.timeout(120)

Config = dict[str, Any]


def numbers(part: int) -> Iterator[int]:
    """The blocks of a part: a few more for a later one."""
    for block in range(3 + part):
        yield 100 * part + block


ALL = [100 * part + block for part in range(5) for block in range(3 + part)]


def tell_blocks(config: Config) -> None:
    for epoch in range(2):
        train.report({"epoch": epoch, "blocks": list(config["data"](epoch))})


def blocks_by_rank(result: train.Result, epoch: int) -> list[list[int]]:
    rows = sorted(result.history, key=lambda row: row["rank"])
    return [row["blocks"] for row in rows if row["epoch"] == epoch]


def test_every_worker_gets_as_many_blocks_and_no_block_comes_twice(runtime: ModuleType, tmp_path: Path) -> None:
    data = train.stream(numbers, range(5), seed=3)
    result = train.run(tell_blocks, {"data": data}, path=tmp_path / "a")
    for epoch in range(2):
        first, second = blocks_by_rank(result, epoch)
        assert len(first) == len(second) == len(ALL) // 2
        assert len({*first, *second}) == len(ALL) - 1  # the last round is not whole
        assert {*first, *second} < set(ALL)
    assert blocks_by_rank(result, 0) != blocks_by_rank(result, 1)
    again = train.run(tell_blocks, {"data": data}, path=tmp_path / "b")
    assert [blocks_by_rank(again, epoch) for epoch in range(2)] == [blocks_by_rank(result, epoch) for epoch in range(2)]


def test_the_blocks_that_are_made_and_not_taken_are_few(runtime: ModuleType, tmp_path: Path) -> None:
    log, workers, tasks, ahead = tmp_path / "log", 2, 2, 3

    def produce(part: int) -> Iterator[bytes]:
        for _ in range(60):
            append(log, "made")
            yield bytes(1000)

    def fit(config: Config) -> None:
        seen = 0
        for number, _ in enumerate(config["data"](0)):
            append(log, "taken")
            seen += 1
            if number == 0:  # now the tasks may go on as far as they can
                wait_for(lambda: lines(log).count("made") >= workers * ahead, 20, "the tasks to make blocks")
        train.report({"seen": seen})

    data = train.stream(produce, range(4), tasks=tasks, ahead=ahead)
    result = train.run(fit, {"data": data}, workers=workers, path=tmp_path / "run")
    assert [row["seen"] for row in result.history] == [120, 120]
    bound = workers * (ahead + 1) + tasks * (MADE_AHEAD + 1)
    in_flight = most = 0
    for line in lines(log):
        in_flight += 1 if line == "made" else -1
        most = max(most, in_flight)
    assert workers * ahead <= most <= bound


def learn_from_blocks(config: Config) -> None:
    """Add blocks up, and die on the way."""
    total, here, data = Sum(), train.context(), config["data"]
    start = train.restore(total=total, data=data)
    for step, block in enumerate(data(0), start):
        if (here.rank, step, here.restarts) == (1, config["dies_at"], 0):
            os.kill(os.getpid(), signal.SIGKILL)
        total.value = total.value * 3 + block
        train.report({"total": total.value}, checkpoint={"total": total, "data": data}, step=step, sharded=True)


class Sum:
    value = 0

    def state_dict(self) -> int:
        return self.value

    def load_state_dict(self, state: int) -> None:
        self.value = state


def test_a_training_that_was_killed_sees_the_blocks_that_are_left(runtime: ModuleType, tmp_path: Path) -> None:
    results = []
    for dies_at, failures in ((-1, 0), (4, 1)):
        config = {"data": train.stream(numbers, range(4)), "dies_at": dies_at}
        results.append(train.run(learn_from_blocks, config, failures=failures, path=tmp_path / str(dies_at)))
    killed = results[1]
    assert isinstance(killed.error, skate.exceptions.ActorDiedError)
    in_order = [sorted((row["rank"], row["step"], row["total"]) for row in each.history) for each in results]
    assert in_order[0] == in_order[1]
    assert len(in_order[0]) == 18  # nine rounds for two workers


def test_a_task_that_dies_makes_the_blocks_that_are_left(runtime: ModuleType, tmp_path: Path) -> None:
    died = tmp_path / "died"

    def produce(part: int) -> Iterator[int]:
        for block in numbers(part):
            if block == 102 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield block

    result = train.run(tell_blocks, {"data": train.stream(produce, range(5), shuffle=False)}, path=tmp_path / "run")
    assert died.exists()
    first, second = blocks_by_rank(result, 0)
    assert len({*first, *second}) == len(first) + len(second) == len(ALL) - 1


def test_what_a_producer_raises_is_raised(runtime: ModuleType, tmp_path: Path) -> None:
    def produce(part: int) -> Iterator[int]:
        yield 1
        raise ValueError(f"part {part} is damaged")

    with pytest.raises(ValueError, match="part 0 is damaged"):
        train.run(tell_blocks, {"data": train.stream(produce, [0])}, path=tmp_path)


def test_a_worker_may_leave_an_epoch_early(runtime: ModuleType, tmp_path: Path) -> None:
    def fit(config: Config) -> None:
        for number in range(3):
            for block in config["data"](0):
                train.report({"epoch": number, "blocks": [block]})
                break

    result = train.run(fit, {"data": train.stream(numbers, range(5), shuffle=False)}, path=tmp_path)
    assert [blocks_by_rank(result, epoch) for epoch in range(3)] == [[[0], [100]]] * 3


def test_a_stream_that_one_worker_makes_for_itself_is_refused(runtime: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"make it before train\.run"):
        train.run(lambda: train.stream(numbers, [1]), workers=1, path=tmp_path)


def test_a_share_of_any_iterable(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({"epoch": 0, "blocks": list(train.shard(number * number for number in range(7)))})

    assert blocks_by_rank(train.run(fit, path=tmp_path), 0) == [[0, 4, 16], [1, 9, 25]]


def test_what_a_stream_cannot_be_made_of_is_named(runtime: ModuleType) -> None:
    for wrong in ({"tasks": 0}, {"ahead": True}, {"num_returns": 2}, {"num_cpu": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            train.stream(numbers, [1], **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a function"):
        train.stream([1, 2], [1])  # type: ignore[arg-type]
