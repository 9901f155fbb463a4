"""A process that writes is killed with kill -9: what was acknowledged is there afterwards, and no batch by half.

A child writes numbered batches and tells the number of each one that `completed` reported, over a pipe: the test's
knowledge is its own, and not the store's word. It is killed after a number of acknowledgements, or it kills itself at a
named moment. Then the store is looked at, and the next child goes on behind the last batch that it finds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from skate._control.crash_points import VARIABLE
from skate._control.storage.sqlite import SqliteStorage

#: Rows that each batch writes, beside a counter and a log.
ROWS = 5

CHILD = """
import os, select, sys
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Put
from skate._control.storage.sqlite import SqliteStorage

ROWS = int(sys.argv[2])
storage = SqliteStorage(sys.argv[1], retry_s=(1e6, 1e6))
counter = dict(storage.scan("state")).get(b"counter")
at = int(counter or b"0")
first = at + 1

def batch(n):
    expected = b"%d" % (n - 1) if n > 1 else None
    rows = [Put("rows", b"%d/%d" % (n, row), b"x" * (n % 7) * 500) for row in range(ROWS)]
    # Each batch takes an old one away, so the file has free pages, too.
    old = [Delete("rows", b"%d/%d" % (n - 50, row)) for row in range(ROWS)]
    log = AppendAt("state", b"log", 4 * (n - 1), n.to_bytes(4, "big"))
    return [*rows, CompareAndSet("state", b"counter", expected, b"%d" % n), log, *old]

print("open", at, flush=True)
while True:
    for _ in range(3):
        at += 1
        storage.write(batch(at), lazy=at % 4 == 0)
    select.select([storage.fileno()], [], [])
    for done in storage.completed():
        assert done.error is None and all(done.results[: ROWS + 2]), done
        os.write(1, b"%d\\n" % (first + done.number - 1))
"""


def acknowledged(folder: Path, kill_after: int, crash: str = "") -> int:
    """Let a child write; the last number that it told before its end."""
    environment = {**os.environ, VARIABLE: crash}
    command = [sys.executable, "-c", CHILD, str(folder), str(ROWS)]
    last = told = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(b"open"):
                last = int(line.split()[1])
                continue
            if not line.endswith(b"\n"):
                break  # it was killed in the midst of it
            assert int(line) == last + 1, "in order, none left out"
            last, told = last + 1, told + 1
            if told == kill_after:
                child.kill()
    assert child.returncode == -9
    return last


def stored(folder: Path) -> int:
    """The last batch that is there; all of it, and all before it."""
    storage = SqliteStorage(folder, inspect=True)
    try:
        state, rows = dict(storage.scan("state")), dict(storage.scan("rows"))
    finally:
        storage.close()
    last = int(state.get(b"counter", b"0"))
    assert state.get(b"log", b"") == b"".join(number.to_bytes(4, "big") for number in range(1, last + 1))
    numbers = range(max(1, last - 49), last + 1)
    assert rows == {b"%d/%d" % (n, row): b"x" * (n % 7) * 500 for n in numbers for row in range(ROWS)}
    return last


@pytest.mark.parametrize("seed", range(2))
def test_no_acknowledged_batch_is_lost_when_the_process_is_killed(seed: int, tmp_path: Path) -> None:
    random_number = random.Random(seed).randint
    for life in range(1, 5):
        told = acknowledged(tmp_path, kill_after=random_number(1, 40))
        assert stored(tmp_path) >= told, f"life {life} of seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_no_acknowledged_batch_is_lost_around_a_commit(seed: int, tmp_path: Path) -> None:
    random_number = random.Random(seed).randint
    for point in ("storage.before_commit", "storage.after_commit"):
        before = stored(tmp_path) if any(tmp_path.iterdir()) else 0
        times = random_number(1, 10)
        told = acknowledged(tmp_path, kill_after=-1, crash=f"{point}:{times}")
        last = stored(tmp_path)
        assert last >= told, point
        if point == "storage.after_commit":
            assert last > told, "durable, and not told to anyone yet"
        if times > 1 or point == "storage.after_commit":
            assert last > before


def test_nothing_of_a_batch_is_stored_before_its_commit(tmp_path: Path) -> None:
    acknowledged(tmp_path, kill_after=1)
    before = stored(tmp_path)
    assert acknowledged(tmp_path, kill_after=-1, crash="storage.before_commit") == before
    assert stored(tmp_path) == before


@pytest.mark.parametrize("point", ["storage.before_create", "storage.after_create"])
def test_a_store_whose_making_was_cut_short_is_made_again(point: str, tmp_path: Path) -> None:
    assert acknowledged(tmp_path, kill_after=-1, crash=point) == 0
    storage = SqliteStorage(tmp_path, "mine" if point == "storage.before_create" else "")
    assert storage.meta.incarnation == 1
    storage.close()
