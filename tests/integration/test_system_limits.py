"""Limits of the system: what is within them runs, and what is not is an error that names the limit."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from programs import PROGRAM_TIMEOUT_S

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
# Room for (160 - 32) / 3 = 42 workers, of which 2 are for tasks.
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
    out, _ = run(FULL.replace("GRACE_S", "1000") + program, "ulimit -n 160")
    ready, sums, why, more = last_json(out)
    assert ready == 40
    assert sums == [2 * x for x in range(20)]
    assert "42 workers (the limit on open files is 160: `ulimit -Hn`), of which 2 are kept for tasks" in why
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
    out, _ = run(FULL.replace("GRACE_S", "0.5") + program, "ulimit -n 160")
    ready, errors, doubled = last_json(out)
    assert (ready, len(errors), doubled) == (40, 10, 2)
    assert set(errors) == {errors[0]}
    assert errors[0].startswith("actor Idle was not started.")
    assert "42 workers (the limit on open files is 160: `ulimit -Hn`)" in errors[0]
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
