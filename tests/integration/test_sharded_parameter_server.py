"""examples/sharded_parameter_server.py in small: it learns both ways, and in step as one process does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from programs import run_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sharded_parameter_server.py"

#: The example itself, and the losses of its rounds in step: its own, and those of plain objects in one process.
EXAMPLE_AND_ALONE = f"""
import copy, json, sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
sys.argv = [{EXAMPLE.name!r}, "--width", "256", "--rounds", "40", "--batch", "32", "--shards", "2"]
import sharded_parameter_server as example

found = []
in_step = example.in_step

def noted(*arguments):
    found.append(in_step(*arguments))
    return found[-1]

example.in_step = noted
if __name__ == "__main__":
    example.main()

    layers = example.make_layers(256, 6, 2)
    shards = [example.Shard(part, 0.05 / 2) for part in layers]
    workers = [example.Worker(number, copy.deepcopy(layers), 256, 32) for number in range(2)]
    expected = []
    for rounds in (len(each) for each in found):
        for shard in shards:
            shard.start()
        expected.append([])
        for _ in range(rounds):
            losses = []
            for worker in workers:
                parts = [worker.forward(part, [w.clone() for w in shards[part].weights]) for part in range(2)]
                losses.append(parts[-1])
            for part in (1, 0):
                shards[part].update(*[worker.backward(part) for worker in workers])
            expected[-1].append(sum(losses) / 2)
    print(json.dumps([found, expected]))
"""


@pytest.mark.timeout(250)
def test_it_learns_both_ways_and_in_step_as_one_process_does(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXAMPLE_AND_ALONE)
    printed, _ = run_program(program, timeout_s=110)
    line = re.compile(r"^(.+?) +loss ([\d.]+) → ([\d.]+), (\d+) samples/s$", re.M)
    rows = {label: (float(first), float(last), int(rate)) for label, first, last, rate in line.findall(printed)}
    assert list(rows) == ["in step", "out of step"], printed
    assert all(last < 0.8 * first and rate > 0 for first, last, rate in rows.values()), printed
    found, expected = json.loads(printed.splitlines()[-1])
    assert [len(losses) for losses in found] == [2, 40]
    for losses, alone in zip(found, expected, strict=True):
        assert losses == pytest.approx(alone, abs=1e-5)
        assert len(set(losses)) == len(losses)
