"""Limits of the system: what is within them runs, and what is not is an error that names the limit."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs import PROGRAM_TIMEOUT_S
from skate._control_groups import control_groups
from waiting import wait_for

HEAD = """
import json, os, sys, time
import skate

@skate.remote
def double(x):
    return 2 * x

@skate.remote
class Idle:
    def pid(self):
        return os.getpid()
"""


def run(program: str, limits: str, *, expect_code: int | None = 0) -> tuple[str, str]:
    """Run a program under limits that are set by shell commands; its stdout and stderr."""
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", f'{limits} && exec "$@"', "bash", sys.executable, "-c", f"{HEAD}{program}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"it hung; stdout: {str(expired.stdout)[-2000:]}, stderr: {str(expired.stderr)[-2000:]}")
    assert expect_code is None or done.returncode == expect_code, (
        f"exit code {done.returncode}; stdout {done.stdout[-3000:]}; stderr {done.stderr[-3000:]}"
    )
    return done.stdout, done.stderr


def last_json(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


# -- as many workers as there can be -----------------------------------------------------------------------------------

FULL = """
skate.init(num_cpus=2, infeasible_grace_s=GRACE_S)
actors = [Idle.remote() for _ in range(50)]
refs = [actor.pid.remote() for actor in actors]
# Room for (150 - 24) / 3 = 42 workers, of which 2 are for tasks.
ready, pending = skate.wait(refs, num_returns=40, timeout=30)
"""


def test_idle_actors_that_take_all_workers_leave_some_to_tasks() -> None:
    program = """
sums = skate.get([double.remote(x) for x in range(20)], timeout=30)
why = skate.why(pending[0])
try:
    skate.get(pending[0], timeout=0.1)
except skate.exceptions.GetTimeoutError:
    pass
skate.kill(actors[refs.index(ready[0])])
more, _ = skate.wait(pending, timeout=30)
print(json.dumps([len(ready), sums, why, len(more)]))
"""
    out, _ = run(FULL.replace("GRACE_S", "1000") + program, "ulimit -n 150")
    ready, sums, why, more = last_json(out)
    assert ready == 40
    assert sums == [2 * x for x in range(20)]
    assert "42 workers (the limit on open files is 150: `ulimit -Hn`), of which tasks keep 2" in why
    assert more == 1, "the worker of one that ended is another's"


def test_an_actor_for_which_there_is_no_worker_is_an_error_that_names_the_limit() -> None:
    program = """
errors = []
for ref in pending:
    try:
        skate.get(ref, timeout=30)
    except skate.exceptions.ActorUnschedulableError as error:
        errors.append(str(error))
print(json.dumps([len(ready), errors, skate.get(double.remote(1), timeout=30)]))
"""
    out, _ = run(FULL.replace("GRACE_S", "0.5") + program, "ulimit -n 150")
    ready, errors, doubled = last_json(out)
    assert (ready, len(errors), doubled) == (40, 10, 2)
    assert set(errors) == {errors[0]}
    assert errors[0].startswith("actor Idle was not started.")
    assert "42 workers (the limit on open files is 150: `ulimit -Hn`)" in errors[0]
    assert "skate.kill" in errors[0]


def test_the_soft_limit_on_open_files_is_raised_in_drivers_and_workers() -> None:
    """With 64 a driver could not talk to more than some twenty actors."""
    program = """
import resource
skate.init(num_cpus=2)
limit = skate.remote(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
actors = [Idle.remote() for _ in range(40)]
pids = skate.get([actor.pid.remote() for actor in actors], timeout=30)
here = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(json.dumps([len(set(pids)), here, skate.get(limit.remote(), timeout=30)]))
"""
    out, _ = run(program, "ulimit -Sn 64")
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert last_json(out) == [40, min(hard, 65_536), min(hard, 65_536)]


# -- too little to start, or to go on ----------------------------------------------------------------------------------

#: A user for whom the limit on processes holds, who may read what the tests lie in.
OTHER_USER = 65_534
CAPABILITIES = "+dac_override,+dac_read_search"
AS_OTHER_USER = [
    *("setpriv", "--reuid", str(OTHER_USER), "--clear-groups"),
    *("--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES),
]

START = """
def told(make):
    try:
        make()
    except skate.exceptions.SkateError as error:
        print(json.dumps([type(error).__name__, str(error)]))
        skate.shutdown()
        sys.exit(0)

told(lambda: skate.init(num_cpus=2, object_store_memory=STORE_BYTES, infeasible_grace_s=1))
told(lambda: skate.get([double.remote(x) for x in range(20)], timeout=30))
actors = [Idle.remote() for _ in range(30)]
told(lambda: skate.get([actor.pid.remote() for actor in actors], timeout=30))
print(json.dumps(["nothing", ""]))
"""


def start(limits: str, store_bytes: int = 64 << 20) -> tuple[str, str, str]:
    """Kind and text of the first error of a program under these limits, and what it wrote to stderr."""
    out, err = run(START.replace("STORE_BYTES", str(store_bytes)), limits)
    kind, text = last_json(out)
    assert "Traceback" not in err
    assert "bug" not in err
    return kind, text, err


@pytest.mark.parametrize("files", [8, 12, 20, 29])
def test_too_few_open_files_for_a_node_is_an_error_of_init(files: int) -> None:
    kind, text, _ = start(f"ulimit -n {files}")
    assert kind == "SystemLimitError"
    assert f"a process has as many files open as it may: {files} (`ulimit -n`" in text


def test_the_least_number_of_open_files_is_enough() -> None:
    out, _ = run("skate.init(num_cpus=2); print(skate.get(double.remote(2), timeout=30))", "ulimit -n 30")
    assert out == "4\n"


@pytest.mark.parametrize("kib", [150_000, 1_000_000, 8_000_000])
def test_too_little_address_space_is_an_error_of_init(kib: int) -> None:
    kind, text, _ = start(f"ulimit -v {kib}", store_bytes=64 << 20 if kib < 200_000 else 7 << 30)
    assert kind == "SystemLimitError"
    assert f"a process may have {kib:,} KiB of address space (`ulimit -v`)" in text
    assert "object_store_memory" in text


def test_a_small_store_does_with_little_address_space() -> None:
    program = "skate.init(num_cpus=2, object_store_memory=64 << 20); print(skate.get(double.remote(2), timeout=30))"
    out, _ = run(program, "ulimit -v 500000")
    assert out == "4\n"


@contextlib.contextmanager
def pid_group(most: int) -> Iterator[Path]:
    """A control group that may have so many processes and threads."""
    group = None
    for own in control_groups("pids"):
        folder = Path(own.folder) / f"skate-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / "pids.max").exists():
                (folder / "pids.max").write_text(f"{most}\n")
                group = folder
                break
            folder.rmdir()  # its tree does not count processes
    if group is None:
        pytest.skip("no control group can be made here")
    try:
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), 10, "the control group to be empty")
        group.rmdir()


@pytest.mark.parametrize("most", [2, 3, 4, 5, 6, 8, 12])
def test_a_limit_on_processes_of_the_container_is_named(most: int) -> None:
    with pid_group(most) as group:
        kind, text, _ = start(f"echo 0 > {group}/cgroup.procs")
    assert kind in ("SystemLimitError", "TaskUnschedulableError", "ActorUnschedulableError")
    assert (kind == "SystemLimitError") == (most <= 3), "a node has a driver with two threads, a daemon and a zygote"
    assert f"of this control group is {most}: {group}/pids.max" in text
    assert "runtime_env" not in text


ONE_WORKER = 10
NO_WORKER = """
skate.init(num_cpus=2, infeasible_grace_s=1)

@skate.remote
def outer(depth):
    return skate.get(outer.remote(depth - 1)) if depth else "nothing waits"

@skate.remote
class Caller:
    def call(self):
        return skate.get(double.remote(2))

def told(ref, timeout=30):
    try:
        print(json.dumps(["", skate.get(ref, timeout=timeout)]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def without_worker(program: str, most: int = ONE_WORKER) -> list[tuple[str, str]]:
    """Kind and text of each error, or an empty string and the value."""
    with pid_group(most) as group:
        out, _ = run(NO_WORKER + program, f"echo 0 > {group}/cgroup.procs")
    texts = [json.loads(line) for line in out.splitlines()]
    assert all(f"control group is {most}: {group}/pids.max" in text for kind, text in texts if kind)
    return texts


def test_a_task_waits_for_the_only_worker_as_long_as_the_grace_period_if_an_actor_has_it() -> None:
    found = without_worker("""
actor = Idle.remote()
skate.get(actor.pid.remote(), timeout=30)
told(double.options(num_cpus=0).remote(2), timeout=0.2)
told(double.remote(2))
del actor
told(double.remote(2))
actor = Caller.remote()
told(actor.call.remote())
""")
    kinds = ["GetTimeoutError", "TaskUnschedulableError", "", "TaskError(TaskUnschedulableError)"]
    assert [kind for kind, _ in found] == kinds
    assert "this node can have 1 worker" in found[0][1]
    assert "it got no worker for 1 s: this node can have 1 worker" in found[1][1]
    assert "and an actor has it" in found[1][1]
    assert "skate.kill" in found[1][1]
    assert found[2][1] == 4, "the worker of an actor that has ended"


def test_tasks_that_wait_for_tasks_and_have_all_workers_get_an_error() -> None:
    found = without_worker("""
told(outer.remote(0))
told(outer.remote(1))
""")
    assert found[0] == ["", "nothing waits"]
    kind, text = found[1]
    assert kind == "TaskError(TaskUnschedulableError)", "the inner task's error came through the outer one"
    assert "a task that waits for tasks of its own" in text
    found = without_worker("told(outer.remote(1)); told(outer.remote(9))", most=12)
    assert found[0] == ["", "nothing waits"]
    assert found[1][0] == "TaskError(TaskUnschedulableError)"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("most", [2, 4, 5, 10])
def test_a_limit_on_processes_of_the_user_is_named(most: int) -> None:
    become = " ".join(AS_OTHER_USER)
    kind, text, _ = start(f'exec {become} bash -c \'ulimit -u {most} && exec "$@"\' bash "$@"; true')
    assert kind in ("SystemLimitError", "TaskUnschedulableError", "ActorUnschedulableError")
    assert f"the limit on processes and threads of this user is {most}: `ulimit -u`" in text


def test_work_goes_on_once_processes_can_be_started_again() -> None:
    program = """
skate.init(num_cpus=2)
assert skate.get([double.remote(x) for x in range(20)], timeout=30) == [2 * x for x in range(20)]
pid = skate.get(Idle.options(name="first").remote().pid.remote(), timeout=30)
def allow(most):
    with open("GROUP/pids.max", "w") as file:
        file.write(str(most))

allow(3)  # less than there are: no more can be started
actors = [Idle.remote() for _ in range(5)]
refs = [actor.pid.remote() for actor in actors]
errors = []
for ref in refs:
    try:
        skate.get(ref, timeout=30)
    except skate.exceptions.ActorUnschedulableError as error:
        errors.append(str(error))
allow(100)
actors.append(Idle.remote())
skate.get(actors[-1].pid.remote(), timeout=30)
print(json.dumps([errors, skate.get([double.remote(x) for x in range(20)], timeout=30)]))
"""
    with pid_group(100) as group:
        out, err = run(program.replace("GROUP", str(group)), f"echo 0 > {group}/cgroup.procs")
    errors, doubled = last_json(out)
    assert doubled == [2 * x for x in range(20)]
    assert 3 <= len(errors) <= 5, "two workers were idle"
    assert all("of this control group is 3:" in error for error in errors)
    assert "Traceback" not in err


def test_a_driver_that_may_open_no_more_files_is_told_so() -> None:
    program = """
skate.init(num_cpus=2)
skate.get(double.remote(1), timeout=30)
actors = [Idle.remote() for _ in range(20)]
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    os.close(files.pop())
errors = set()
for actor in actors:
    try:
        skate.get(actor.pid.remote(), timeout=30)
    except skate.exceptions.SystemLimitError as error:
        errors.add(str(error))
for file in files:
    os.close(file)
skate.shutdown()
skate.init(num_cpus=2)
print(json.dumps([list(errors), skate.get(double.remote(2), timeout=30)]))
"""
    out, err = run(program, "ulimit -n 150")
    (text,), doubled = last_json(out)
    assert "a connection to another process could not be made" in text
    assert "a process has as many files open as it may: 150" in text
    assert doubled == 4, "afterwards it can begin again"
    assert "Traceback" not in err
