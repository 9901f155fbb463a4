"""examples/sharded_parameter_server.py in small: it learns both ways, and in step as one process does."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WIDTH, ROUNDS, BATCH = 256, 30, 32


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module of this process, so that only its actors import torch for it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    found = importlib.import_module("sharded_parameter_server")
    monkeypatch.delitem(sys.modules, found.__name__)
    monkeypatch.setitem(sys.modules, found.__name__, found)  # gone after the test
    monkeypatch.setattr(found, "keep_memory", lambda: None)  # for the objects that are made here; actors import it
    return found


def losses_of_one_process(example: Any, rounds_of_each: list[int]) -> list[list[float]]:
    """What plain objects give for so many rounds in step."""
    layers = example.make_layers(WIDTH, 6, 2)
    shards = [example.Shard(part, 0.05 / 2) for part in layers]
    workers = [example.Worker(number, copy.deepcopy(layers), WIDTH, BATCH) for number in range(2)]
    found: list[list[float]] = []
    for rounds in rounds_of_each:
        for shard in shards:
            shard.start()
        found.append([])
        for _ in range(rounds):
            losses = []
            for worker in workers:
                parts = [worker.forward(part, [w.clone() for w in shards[part].weights]) for part in range(2)]
                losses.append(parts[-1])
            for part in (1, 0):
                shards[part].update(*[worker.backward(part) for worker in workers])
            found[-1].append(sum(losses) / 2)
    return found


@pytest.mark.timeout(120)  # torch is imported four times
def test_it_learns_both_ways_and_in_step_as_one_process_does(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[list[float]] = []
    in_step = example.in_step

    def noted(*arguments: Any) -> list[float]:
        found.append(in_step(*arguments))
        return found[-1]

    monkeypatch.setattr(example, "in_step", noted)
    sizes = {"width": WIDTH, "rounds": ROUNDS, "batch": BATCH, "shards": 2}
    arguments = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    monkeypatch.setattr(sys, "argv", ["sharded_parameter_server.py", *arguments])
    example.main()
    printed = capsys.readouterr().out
    line = re.compile(r"^(.+?) +loss ([\d.]+) → ([\d.]+), (\d+) samples/s$", re.M)
    rows = {label: (float(first), float(last), int(rate)) for label, first, last, rate in line.findall(printed)}
    assert list(rows) == ["in step", "out of step"], printed
    assert all(last < 0.8 * first and rate > 0 for first, last, rate in rows.values()), printed
    assert [len(losses) for losses in found] == [2, ROUNDS]
    for losses, alone in zip(found, losses_of_one_process(example, [2, ROUNDS]), strict=True):
        assert losses == pytest.approx(alone, abs=1e-5)
        assert len(set(losses)) == len(losses)
