"""What a process printed before it died is in the error: on one node and on another, for every caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines
from shared_runtime import Sharing
from skate.cluster_utils import Cluster
from skate.exceptions import ActorDiedError, ActorUnavailableError, WorkerCrashedError
from waiting import WITHIN_S, value_of, wait_for

SECOND = {"resources": {"second": 1}}


@pytest.fixture(scope="module")
def two_nodes(sharing: Sharing) -> Iterator[Cluster]:
    """The second one has the resource "second". Actors of each test die there, and nothing else of them stays."""
    assert not sharing.end()
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node(num_cpus=2, resources={"second": 2})
        yield cluster


@pytest.fixture(params=["alone", "cluster"])
def anywhere(request: pytest.FixtureRequest, two_nodes: Cluster) -> Iterator[None]:
    """A node with the resource "second": that of the driver, or another one."""
    if request.param == "alone":
        with skate.init(num_cpus=2, resources={"second": 2}):
            yield
        return
    two_nodes.connect()
    yield
    skate.shutdown()


def exit_with_3() -> None:
    os._exit(3)


def kill_9() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


crashes = pytest.mark.parametrize("crash", [exit_with_3, kill_9, segfault])


@skate.remote
class Lane:
    """An actor that prints, and dies when it is told to."""

    def __init__(self, said: str = "") -> None:
        if said:
            print(said)

    def pid(self) -> int:
        return os.getpid()

    def say(self, text: str) -> None:
        print(text)

    def crash(self, crash: Callable[[], None] = exit_with_3) -> None:
        print("step 41 of the simulation")
        print("the ball has left the field", file=sys.stderr)
        crash()


def death_of(ref: Any) -> ActorDiedError:
    with pytest.raises(ActorDiedError) as caught:
        value_of(ref)
    return caught.value


def crash_of(ref: Any) -> WorkerCrashedError:
    with pytest.raises(WorkerCrashedError) as caught:
        value_of(ref)
    return caught.value


# -- actors ------------------------------------------------------------------------------------------------------------


@crashes
def test_the_error_of_an_actor_has_what_it_printed_last(anywhere: None, crash: Callable[[], None]) -> None:
    lane = Lane.options(**SECOND).remote()
    error = death_of(lane.crash.remote(crash))
    # stdout and stderr are two pipes: their lines may be read in either order.
    assert sorted(error.last_output.split("\n")[:2]) == ["step 41 of the simulation", "the ball has left the field"]
    assert error.stderr_tail[0] == "the ball has left the field"
    assert "\n        the ball has left the field" in str(error)
    assert "\n        step 41 of the simulation" in str(error)
    if crash is segfault:
        assert "Fatal Python error: Segmentation fault" in error.last_output
        assert "in segfault" in error.last_output, "the Python stack"
    else:
        assert "the last 2 lines that it printed:" in str(error)


def test_an_actor_that_is_killed_from_outside_has_it_too(anywhere: None) -> None:
    lane = Lane.options(**SECOND).remote()
    value_of(lane.say.remote("all is well"))
    os.kill(value_of(lane.pid.remote()), signal.SIGKILL)
    wait_for(lambda: _is_dead(lane), WITHIN_S, "the death of the actor")
    assert death_of(lane.say.remote("never")).last_output == "all is well"


def _is_dead(lane: Any) -> bool:
    try:
        value_of(lane.pid.remote())
    except ActorDiedError:
        return True
    return False


def test_callers_that_did_not_make_the_actor_have_it(anywhere: None) -> None:
    @skate.remote
    def call(lane: Any) -> str:
        try:
            skate.get(lane.crash.remote())
        except ActorDiedError as error:
            return error.last_output
        return "no error"

    lane = Lane.options(**SECOND).remote()
    assert "the ball has left the field" in value_of(call.remote(lane))
    assert "the ball has left the field" in value_of(call.remote(lane)), "also one that comes late"
    assert "the ball has left the field" in death_of(lane.pid.remote()).last_output


def test_the_call_that_an_actor_died_in_has_the_output_of_that_life(anywhere: None) -> None:
    lane = Lane.options(max_restarts=1, **SECOND).remote("hello")
    with pytest.raises(ActorUnavailableError) as caught:
        value_of(lane.crash.remote())
    assert caught.value.last_output.split("\n")[0] == "hello"
    assert "the ball has left the field" in str(caught.value)
    value_of(lane.say.remote("the second life"))
    error = death_of(lane.crash.remote(kill_9))
    assert error.last_output.split("\n")[:2] == ["hello", "the second life"], "and nothing of the first"
    assert len(error.last_output.split("\n")) == 4


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_an_actor_that_dies_in_its_constructor_has_it(anywhere: None, tmp_path: Path, max_restarts: int) -> None:
    log = tmp_path / "log"

    @skate.remote
    class Stillborn:
        def __init__(self) -> None:
            append(log, "life")
            print("life", len(lines(log)))
            os._exit(1)

        def ping(self) -> None: ...

    stillborn = Stillborn.options(max_restarts=max_restarts, **SECOND).remote()
    assert death_of(stillborn.ping.remote()).last_output == f"life {max_restarts + 1}"


def test_what_native_code_and_child_processes_print_counts(anywhere: None) -> None:
    @skate.remote(**SECOND)
    class Native:
        def crash(self) -> None:
            os.write(1, b"from C\n")
            subprocess.run(["echo", "from a child"], check=True)
            os.write(1, b"no newline")
            os._exit(1)

    assert death_of(Native.remote().crash.remote()).last_output == "from C\nfrom a child\nno newline"


def test_it_is_bounded(anywhere: None) -> None:
    lane = Lane.options(**SECOND).remote()
    value_of(lane.say.remote("\n".join(f"{number} {'x' * 300}" for number in range(1000))))
    error = death_of(lane.crash.remote())
    assert 1000 < len(error.last_output) <= 4096
    assert "the ball has left the field" in error.last_output
    assert len(str(error)) < 5000


def test_an_actor_that_printed_nothing_has_none(anywhere: None) -> None:
    lane = Lane.options(**SECOND).remote()
    error = death_of(lane.__ray_call__.remote(lambda lane: os._exit(1)))
    assert error.last_output == ""
    assert "log:" not in str(error)


def test_an_actor_that_was_ended_on_purpose_has_none(anywhere: None) -> None:
    lane = Lane.options(**SECOND).remote()
    value_of(lane.say.remote("something"))
    skate.kill(lane)
    assert death_of(lane.pid.remote()).last_output == ""


def test_what_tasks_printed_in_the_process_before_is_not_of_the_actor() -> None:
    @skate.remote
    def chatter() -> int:
        print("of a task")
        return os.getpid()

    with skate.init(num_cpus=1):
        pid = value_of(chatter.remote())
        lane = Lane.options(num_cpus=1).remote()
        assert value_of(lane.pid.remote()) == pid, "the worker has become the actor"
        assert "of a task" not in death_of(lane.crash.remote()).last_output


def test_it_is_there_although_the_driver_does_not_want_to_see_output(capfd: pytest.CaptureFixture[str]) -> None:
    with skate.init(num_cpus=1, log_to_driver=False):
        error = death_of(Lane.remote().crash.remote())
    assert "step 41 of the simulation" in error.last_output
    assert capfd.readouterr() == ("", "")


# -- tasks -------------------------------------------------------------------------------------------------------------


@crashes
def test_the_error_of_a_task_has_what_its_worker_printed_last(anywhere: None, crash: Callable[[], None]) -> None:
    @skate.remote(max_retries=0, **SECOND)
    def doomed() -> None:
        print("step 41 of the simulation")
        print("the ball has left the field", file=sys.stderr)
        crash()

    error = crash_of(doomed.remote())
    assert sorted(error.last_output.split("\n")[:2]) == ["step 41 of the simulation", "the ball has left the field"]
    assert "\n        step 41 of the simulation" in str(error)
    assert ("Segmentation fault" in error.last_output) == (crash is segfault)


def test_a_task_that_is_run_again_has_the_output_of_its_last_attempt(anywhere: None, tmp_path: Path) -> None:
    log = tmp_path / "log"

    @skate.remote(max_retries=2, **SECOND)
    def doomed() -> None:
        append(log, "attempt")
        print("attempt", len(lines(log)))
        os._exit(1)

    assert crash_of(doomed.remote()).last_output == "attempt 3"


def test_it_survives_the_way_through_another_task(anywhere: None) -> None:
    @skate.remote(max_retries=0, **SECOND)
    def doomed() -> None:
        print("the last words")
        os._exit(1)

    @skate.remote
    def middle() -> None:
        skate.get(doomed.remote())

    with pytest.raises(WorkerCrashedError) as caught:
        value_of(middle.remote())
    assert caught.value.last_output == "the last words"
