"""Detached actors: in a cluster they outlive the driver that made them, and a node of `init` takes them along."""

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
from skate.cluster_utils import Cluster
from skate.exceptions import ActorDiedError
from waiting import wait_for

WITHIN_S = 20.0

MAKE = """
import os, signal, skate
info = skate.init(*{arguments}, namespace="place", **{options})

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

#: On a node that the program starts itself.
MAKE_ALONE = MAKE.format(arguments=[], options={"num_cpus": 2})

Made = tuple[str, int, int]

ENDS = ["", "os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(0)", "skate.shutdown()"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Nodes that outlive drivers."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        yield cluster
        skate.shutdown()


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Callable[..., Made]]:
    """Runs a driver that makes a detached actor in a cluster; the test ends the actor."""
    pids: list[int] = []

    def run(last_line: str = "", expect_code: int = 0) -> Made:
        program = MAKE.format(arguments=[cluster.address], options={})
        said, complaints = run_program(program + last_line, expect_code=expect_code)
        assert complaints == "", "nothing is lost that anybody would have to hear of"
        address, kept, left = said.split()
        pids.append(int(kept))
        return address, int(kept), int(left)

    yield run
    for pid in pids:
        wait_for(lambda pid=pid: not psutil.pid_exists(pid), WITHIN_S, "the detached actor to be gone")


@pytest.mark.parametrize("end", ENDS)
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


@pytest.mark.parametrize("end", ENDS)
def test_a_node_of_init_ends_with_its_last_driver_and_says_which_detached_actors_it_took_along(end: str) -> None:
    said, complaints = run_program(MAKE_ALONE + end, expect_code=-signal.SIGKILL if "SIGKILL" in end else 0)
    address, kept, left = said.split()
    (line,) = complaints.splitlines()
    assert "'kept' (Counter)" in line
    assert "left" not in line, "that it ends with its program is no news"
    assert "skate start" in line
    for pid in (kept, left):
        wait_for(lambda pid=pid: not psutil.pid_exists(int(pid)), WITHIN_S, "its actors to be gone")
    with pytest.raises(ConnectionError, match="no running node"):
        skate.init(address)


def test_a_node_of_init_without_detached_actors_says_nothing_at_its_end() -> None:
    program = MAKE_ALONE + "skate.kill(kept)\ntry: skate.get(kept.add.remote())\nexcept Exception: pass\n"
    assert run_program(program)[1] == ""


#: Goes on when it is told to: prints what the detached actor answers.
JOIN = """
import sys, skate
skate.init(sys.argv[1], namespace="place")
kept = skate.get_actor("kept")
print("joined", flush=True)
for line in sys.stdin:
    print(skate.get(kept.add.remote()), skate.get(skate.remote(abs).remote(-1)), flush=True)
"""


class Program:
    """A driver that ends when it is told to."""

    def __init__(self, program: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def end(self) -> str:
        """What it wrote to stderr."""
        _, complaints = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, complaints
        return complaints


def test_a_node_of_init_ends_with_the_last_of_several_drivers() -> None:
    first = Program(MAKE_ALONE + "import sys; sys.stdin.read()")
    address, kept, left = first.says().split()
    second = Program(JOIN, address)
    assert second.says() == "joined"
    assert first.end() == "", "the detached actor goes on"
    wait_for(lambda: not psutil.pid_exists(int(left)), WITHIN_S, "what the first one left to be gone")
    second.tell()
    assert second.says() == "2 1", "the same actor, and workers for tasks"
    assert psutil.pid_exists(int(kept))
    assert "'kept' (Counter)" in second.end()
    wait_for(lambda: not psutil.pid_exists(int(kept)), WITHIN_S, "the detached actor to be gone")


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
def test_the_command_line_tells_of_nodes_of_programs(command: str, tmp_path: Path) -> None:
    drivers = [Program(MAKE_ALONE + "import sys; sys.stdin.read()") for _ in range(2)]
    nodes = {psutil.Process(int(driver.says().split()[1])).parents()[1].pid for driver in drivers}
    said = subprocess.run(
        [sys.executable, "-m", "skate.cli", command],
        capture_output=True, text=True, check=False, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "Nothing runs" not in said.stdout, "over a list of what runs"
    listed = {int(line.split()[1]) for line in said.stdout.splitlines() if line.startswith("  pid ")}
    assert nodes <= listed
    for driver in drivers:
        driver.end()
    assert all(not psutil.pid_exists(pid) for pid in nodes), "a program that has ended has waited for its node"


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
info = skate.init({address!r}, namespace="place")

@skate.remote
class Keeper:
    def __init__(self, data): pass
    def pid(self): return os.getpid()

kept = Keeper.options(name="kept", lifetime="detached", max_restarts=1).remote(skate.put(bytes(1_000_000)))
print(info["address"], skate.get(kept.pid.remote()), flush=True)
"""


def test_a_restart_whose_argument_went_with_its_creator_says_so(cluster: Cluster) -> None:
    said, _ = run_program(MAKE_WITH_A_REFERENCE.format(address=cluster.address))
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
