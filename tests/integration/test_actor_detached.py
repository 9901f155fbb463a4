"""Actors that outlive the driver that made them, and the drivers that find them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import skate
from programs import run_program
from skate._node.lobby import enter
from skate.exceptions import ActorDiedError
from waiting import wait_for

WITHIN_S = 20.0

MAKE = """
import os, signal, skate
info = skate.init(num_cpus=2, namespace="place")

@skate.remote
class Counter:
    def __init__(self): self.n = 0
    def add(self): self.n += 1; return self.n
    def pid(self): return os.getpid()

kept = Counter.options(name="kept", lifetime="detached", max_restarts=1).remote()
left = Counter.options(name="left").remote()
assert skate.get([kept.add.remote(), left.add.remote()]) == [1, 1]
print(info["address"], skate.get(kept.pid.remote()), skate.get(left.pid.remote()), flush=True)
"""

Made = tuple[str, int, int]


@pytest.fixture
def make() -> Iterator[Callable[..., Made]]:
    """Runs a driver that makes a detached actor; ends the node in the end."""
    pids: list[int] = []

    def run(last_line: str = "", expect_code: int = 0) -> Made:
        said, _ = run_program(MAKE + last_line, expect_code=expect_code)
        address, kept, left = said.split()
        pids.append(int(kept))
        return address, int(kept), int(left)

    yield run
    for pid in pids:
        wait_for(lambda pid=pid: not psutil.pid_exists(pid), WITHIN_S, "the detached actor to be gone")


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(0)", "skate.shutdown()"])
def test_a_detached_actor_outlives_its_driver_and_the_next_one_finds_it(make: Callable[..., Made], end: str) -> None:
    address, kept, left = make(end, expect_code=-signal.SIGKILL if "SIGKILL" in end else 0)
    wait_for(lambda: not psutil.pid_exists(left), WITHIN_S, "the actor that is not detached to go")
    for number in (2, 3):
        with skate.init(address, namespace="place") as info:
            assert info["address"] == address
            handle = skate.get_actor("kept")
            assert skate.get([handle.add.remote(), handle.pid.remote()], timeout=WITHIN_S) == [number, kept]
            assert skate.util.list_named_actors() == ["kept"]
            assert skate.get(skate.remote(lambda x: x + 1).remote(1), timeout=WITHIN_S) == 2
    with skate.init(address, namespace="place"):
        skate.kill(skate.get_actor("kept"))


@pytest.mark.parametrize("said", [b"", b"\xff" * 100], ids=["nothing", "garbage"])
def test_visitors_that_leave_before_they_said_who_they_are_do_no_harm(make: Callable[..., Made], said: bytes) -> None:
    address, kept, _ = make()
    for _ in range(3):
        visitor = enter(address)
        visitor.sendall(said)
        visitor.close()
    with skate.init(address, namespace="place"):
        handle = skate.get_actor("kept")
        assert skate.get(handle.pid.remote(), timeout=WITHIN_S) == kept
        skate.kill(handle)


@pytest.mark.parametrize("command", ["status", "stop"])
def test_the_command_line_tells_of_a_node_that_is_kept(make: Callable[..., Made], command: str, tmp_path: Path) -> None:
    address, kept, _ = make()
    said = subprocess.run(
        [sys.executable, "-m", "skate.cli", command],
        capture_output=True, text=True, check=False, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    (node,) = [parent for parent in psutil.Process(kept).parents() if f"kill {parent.pid}`" in said.stdout]
    with skate.init(address):
        assert skate.get_runtime_context().get_node_id() in address
    os.kill(node.pid, signal.SIGTERM)


def test_its_name_belongs_to_its_namespace(make: Callable[..., Made]) -> None:
    address, _, _ = make()
    with skate.init(address, namespace="elsewhere"):
        with pytest.raises(ValueError, match="kept"):
            skate.get_actor("kept")
        found = skate.remote(lambda: skate.get_runtime_context().namespace).remote()
        assert skate.get(found, timeout=WITHIN_S) == "elsewhere", "workers are of the job that they work for"
        handle = skate.get_actor("kept", namespace="place")
        assert skate.get(handle.add.remote(), timeout=WITHIN_S) == 2
        assert skate.util.list_named_actors(all_namespaces=True) == [{"name": "kept", "namespace": "place"}]
        skate.kill(handle)


def test_it_restarts_without_its_creator(make: Callable[..., Made]) -> None:
    address, kept, _ = make()
    with skate.init(address, namespace="place"):
        handle = skate.get_actor("kept")
        assert skate.get(handle.add.remote(), timeout=WITHIN_S) == 2
        os.kill(kept, signal.SIGKILL)
        # The call may be on its way to the dead process before this one hears of its end.
        again = handle.add.options(max_task_retries=1).remote()
        assert skate.get(again, timeout=WITHIN_S) == 1, "its state was in that process"
        skate.kill(handle)


MAKE_WITH_A_REFERENCE = """
import os, skate
info = skate.init(num_cpus=2, namespace="place")

@skate.remote
class Keeper:
    def __init__(self, data): pass
    def pid(self): return os.getpid()

kept = Keeper.options(name="kept", lifetime="detached", max_restarts=1).remote(skate.put(bytes(1_000_000)))
print(info["address"], skate.get(kept.pid.remote()), flush=True)
"""


def test_a_restart_whose_argument_went_with_its_creator_says_so() -> None:
    said, _ = run_program(MAKE_WITH_A_REFERENCE)
    address, pid = said.split()
    with skate.init(address, namespace="place"):
        handle = skate.get_actor("kept")
        assert skate.get(handle.pid.remote(), timeout=WITHIN_S) == int(pid)
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(ActorDiedError) as caught:
            skate.get(handle.pid.options(max_task_retries=-1).remote(), timeout=WITHIN_S)
    assert "In the restart an argument of its creation is lost" in str(caught.value)
    assert "SIGKILL" in str(caught.value)
    assert "__init__" not in str(caught.value)


def test_two_drivers_at_a_time(make: Callable[..., Made]) -> None:
    address, _, _ = make()
    with skate.init(address, namespace="place"):
        handle = skate.get_actor("kept")
        said, _ = run_program(
            f"import skate; skate.init({address!r}, namespace='place');"
            "print(skate.get(skate.get_actor('kept').add.remote()))"
        )
        assert said.split() == ["2"]
        assert skate.get(handle.add.remote(), timeout=WITHIN_S) == 3, "this driver's node is still there"
        skate.kill(handle)


def test_there_may_be_nothing_to_join() -> None:
    with pytest.raises(ConnectionError, match="next:"):
        skate.init("skate-0-nothing")
    assert not skate.is_initialized()


@pytest.mark.parametrize("option", [{"num_cpus": 2}, {"num_gpus": 1}, {"object_store_memory": 10_000_000}])
def test_what_a_node_has_is_decided_where_it_starts(option: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        skate.init("auto", **option)  # type: ignore[arg-type]
