"""A get() that waits for want of something says so, in one line on stderr; one whose task runs says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from skate._core.environment import FIRST_LOOK
from skate._core.patience import NOTHING, Notices, Sight
from skate._worker import current, notice
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

BEGIN = """
import os, sys, threading
import skate

skate.init(num_cpus=1)

@skate.remote(num_cpus=1)
class Holder:
    def __init__(self, *args): pass
    def hold(self): pass

holder = Holder.remote()
skate.get(holder.hold.remote())

def release():
    sys.stdin.readline()
    skate.kill(holder)

threading.Thread(target=release).start()

@skate.remote
def waiter(*args): return 1

@skate.remote(num_cpus=0)
def parent(refs=None): return skate.get(refs[0] if refs else waiter.remote())
"""

WAITS = {
    "a task": ("waiter.remote()", "waiter waits for a worker: it needs 1 CPU"),
    "one of several": ("[skate.put(1), waiter.remote(), waiter.remote()]", "waiter waits for a worker"),
    "an argument": ("waiter.options(num_cpus=0).remote(waiter.remote())", "waits for 1 of its arguments"),
    "a call of an actor": ("Holder.remote().hold.remote()", "waits for the actor Holder"),
    "an argument of an actor": ("Holder.options(num_cpus=0).remote(waiter.remote()).hold.remote()", "waiter waits for"),
    "a task in a task": ("parent.remote()", "waiter waits for a worker"),
    "a borrowed reference": ("parent.remote([waiter.remote()])", "belongs to another process"),
}


class Program:
    """A program with a get() that lasts until it is told to go on."""

    def __init__(self, waits_for: str, **settings: str) -> None:
        last = f"skate.get({waits_for})\nprint('got it', flush=True)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + last],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "SKATE_WAIT_NOTICE_S": "0.3", **settings},
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> str:
        """Let it go on; what it still says on stderr."""
        said, complaints = self.process.communicate("\n", timeout=40)
        assert (said, self.process.returncode) == ("got it\n", 0), complaints
        return complaints


@pytest.mark.parametrize("what", WAITS)
def test_a_get_that_waits_for_resources_says_so_once(what: str) -> None:
    waits_for, words = WAITS[what]
    program = Program(waits_for)
    said = program.line()
    assert "skate: get() has waited for" in said
    assert words in said
    assert "SKATE_WAIT_NOTICE=0" in said
    rest = program.end()
    assert "has waited" not in rest


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Sight]:
    """What each look of this process finds."""
    found: list[Sight] = []
    really = notice.look_at

    def look_at(*args: Any) -> Sight:
        found.append(really(*args))
        return found[-1]

    monkeypatch.setattr(notice, "look_at", look_at)
    monkeypatch.setattr(notice, "_notices", Notices())
    return found


@pytest.mark.parametrize("switch", ["0", "1"])
def test_it_can_be_switched_off(
    switch: str, looks: list[Sight], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKATE_WAIT_NOTICE", switch)
    monkeypatch.setenv("SKATE_WAIT_NOTICE_S", "0.3")
    with skate.init(num_cpus=1):
        holder = skate.remote(num_cpus=1)(Slow).remote()
        skate.get(holder.nothing.remote())
        with pytest.raises(skate.exceptions.GetTimeoutError):
            skate.get(skate.remote(lambda: None).remote(), timeout=1)
    assert bool(looks) == ("has waited" in capsys.readouterr().err) == (switch == "1")


def open_after(looks: list[Sight], count: int, gate: Path) -> threading.Thread:
    def run() -> None:
        wait_for(lambda: len(looks) >= count, WITHIN_S, "the wait to be looked at")
        gate.touch()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def pass_gate(gate: Path) -> int:
    gate.with_name("reached").touch()
    wait_for(gate.exists, WITHIN_S, "the gate to open")
    return os.getpid()


class Slow:
    def __init__(self, gate: Path | None = None) -> None:
        if gate is not None:
            pass_gate(gate)

    def pass_gate(self, gate: Path) -> int:
        return pass_gate(gate)

    def nothing(self) -> None:
        pass


@pytest.mark.parametrize("what", ["task", "argument", "nested", "call", "behind a call", "init"])
def test_a_get_whose_task_runs_long_says_nothing(
    what: str, looks: list[Sight], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skate.init(num_cpus=2)
    gate = tmp_path / "gate"
    task = skate.remote(pass_gate)
    slow = skate.remote(num_cpus=0)(Slow)
    actor = slow.remote()
    skate.get(actor.nothing.remote())
    ref = {
        "task": lambda: task.remote(gate),
        "argument": lambda: skate.remote(lambda x: x).remote(task.remote(gate)),
        "nested": lambda: skate.remote(lambda: skate.get(task.remote(gate))).remote(),
        "call": lambda: actor.pass_gate.remote(gate),
        "behind a call": lambda: [actor.pass_gate.remote(gate), actor.nothing.remote()][1],
        "init": lambda: slow.remote(gate).nothing.remote(),
    }[what]()
    wait_for((tmp_path / "reached").exists, WITHIN_S, "the task to run")
    runtime = current.get_runtime()
    # From here on, and not while workers start.
    runtime.notice_s = 0.05
    runtime.first_look_s = runtime.notice_s * FIRST_LOOK
    opener = open_after(looks, 6, gate)
    skate.get(ref, timeout=WITHIN_S)
    opener.join()
    assert {sight.cause for sight in looks} == {NOTHING}
    skate.shutdown()
    assert "has waited" not in capsys.readouterr().err


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SKATE_WAIT_NOTICE_S", "1")
    monkeypatch.setattr(notice, "_notices", Notices())
    with Cluster(initialize_head=True, connect=True) as cluster:
        yield cluster
        skate.shutdown()


def test_a_get_that_waits_for_the_control_service_says_so(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    def thaw() -> None:
        wait_for(lambda: heard.append(capsys.readouterr().err) or "has waited" in heard[-1], WITHIN_S, "the line")
        os.kill(cluster._control.pid, signal.SIGCONT)

    os.kill(cluster._control.pid, signal.SIGSTOP)
    thread = threading.Thread(target=thaw)
    thread.start()
    try:
        skate.get(skate.remote(num_cpus=0)(Slow).remote().nothing.remote(), timeout=60)
    finally:
        thread.join()
        os.kill(cluster._control.pid, signal.SIGCONT)
    assert "control service" in "".join(heard)
    assert "".join(heard).count("has waited") == 1


def test_a_get_that_waits_for_room_for_a_value_of_another_node_says_so(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    megabyte = 1 << 20
    skate.shutdown()
    cluster.remove_node(cluster.nodes[0])
    cluster.add_node(num_cpus=1, object_store_memory=32 * megabyte)
    cluster.add_node(num_cpus=1, object_store_memory=32 * megabyte, resources={"second": 1})
    cluster.connect()
    held = [skate.get(skate.put(np.zeros(5 * megabyte, np.uint8))) for _ in range(5)]
    elsewhere = skate.remote(lambda: np.ones(20 * megabyte, np.uint8)).options(resources={"second": 1}).remote()
    skate.wait([elsewhere])
    heard: list[str] = []

    def make_room() -> None:
        wait_for(lambda: heard.append(capsys.readouterr().err) or "has waited" in heard[-1], WITHIN_S, "the line")
        held.clear()

    thread = threading.Thread(target=make_room)
    thread.start()
    assert skate.get(elsewhere, timeout=60).sum() == 20 * megabyte
    thread.join()
    assert "no room in memory" in "".join(heard)


def test_a_get_that_waits_for_an_actor_whose_only_node_was_lost_says_so(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = cluster.add_node(num_cpus=1, resources={"far": 1})
    actor = skate.remote(num_cpus=0, resources={"far": 1}, max_restarts=-1, max_task_retries=-1)(Slow).remote()
    skate.get(actor.nothing.remote())
    cluster.remove_node(lost, allow_graceful=False)
    call = actor.nothing.remote()
    words = ["to be started again", "no node has so much of far", "Before that, its node is gone"]
    wait_for(lambda: all(word in skate.why(call) for word in words), WITHIN_S, "why to tell what it waits for")
    heard: list[str] = []

    def find_node() -> None:
        wait_for(lambda: heard.append(capsys.readouterr().err) or "has waited" in heard[-1], WITHIN_S, "the line")
        cluster.add_node(num_cpus=1, resources={"far": 1})

    thread = threading.Thread(target=find_node)
    thread.start()
    skate.get(call, timeout=60)
    thread.join()
    assert all(word in "".join(heard) for word in words), heard
