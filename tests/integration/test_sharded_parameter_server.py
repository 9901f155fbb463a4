"""examples/sharded_parameter_server.py in small: it learns both ways, and in step as one process does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from programs import run_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sharded_parameter_server.py"
pytestmark = pytest.mark.timeout(250)

#: The losses of each round, with actors and with plain objects.
IN_STEP_AND_ALONE = f"""
import copy, json, sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import skate
from sharded_parameter_server import Shard, Worker, in_step, make_layers

layers = make_layers(32, 5, 2)
with skate.init(num_cpus=2):
    shards = [skate.remote(Shard).remote(part, 0.02) for part in layers]
    workers = [skate.remote(Worker).remote(number, layers, 32, 8) for number in range(2)]
    found = in_step(shards, workers, 6)
shards = [Shard(part, 0.02) for part in copy.deepcopy(layers)]
workers = [Worker(number, copy.deepcopy(layers), 32, 8) for number in range(2)]
expected = []
for _ in range(6):
    losses = []
    for worker in workers:
        losses.append([worker.forward(part, [w.clone() for w in shards[part].weights]) for part in range(2)][-1])
    for part in (1, 0):
        shards[part].update(*[worker.backward(part) for worker in workers])
    expected.append(sum(losses) / 2)
print(json.dumps([found, expected]))
"""


def test_in_step_it_computes_what_one_process_does() -> None:
    printed, _ = run_program(IN_STEP_AND_ALONE, timeout_s=110)
    found, expected = json.loads(printed)
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) == 6


def test_it_learns_both_ways() -> None:
    arguments = [EXAMPLE.name, "--width", "256", "--rounds", "40", "--batch", "32", "--shards", "2"]
    printed, _ = run_program(
        f"import runpy, sys; sys.argv = {arguments}; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')",
        timeout_s=110,
    )
    line = re.compile(r"^(.+?) +loss ([\d.]+) → ([\d.]+), (\d+) samples/s$", re.M)
    found = {label: (float(first), float(last), int(rate)) for label, first, last, rate in line.findall(printed)}
    assert list(found) == ["in step", "out of step"], printed
    assert all(last < 0.8 * first and rate > 0 for first, last, rate in found.values()), printed
