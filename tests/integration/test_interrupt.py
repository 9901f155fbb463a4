"""Ctrl-C in the driver: `get` stops at once, and everything goes on afterwards as if nothing had been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import skate
from skate._worker.driver import LocalNode
from waiting import WITHIN_S, wait_for

#: "At once", on a machine that may be busy.
AT_ONCE_S = 5.0

PROLOGUE = """
import os, sys, time
import skate

folder = sys.argv[1]
skate.init(num_cpus=2)

@skate.remote
def forever(name):
    with open(os.path.join(folder, name), "w"):
        pass
    while True:
        time.sleep(0.01)

@skate.remote
def add_one(x):
    return x + 1
"""

EPILOGUE = """
    raise AssertionError("it was not interrupted")
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert skate.get([add_one.remote(number) for number in range(200)]) == list(range(1, 201))
assert skate.get(skate.put(bytes(1_000_000))) == bytes(1_000_000)
print("goes on", flush=True)
"""

BLOCKED = {
    "get": "skate.get(forever.remote('running'))",
    "get of many": "skate.get([add_one.remote(1), forever.remote('running'), add_one.remote(2)])",
    "get with a timeout": "skate.get(forever.remote('running'), timeout=1000)",
    "wait": "skate.wait([forever.remote('running')])",
    "as_completed": "for ref in skate.as_completed([add_one.remote(1), forever.remote('running')]): skate.get(ref)",
    "map": "list(skate.map(forever, ['running']))",
    "future": "forever.remote('running').future().result()",
}


def start(tmp_path: Path, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=40)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"it hung; stdout: {output!r}; stderr: {errors!r}")
    return process.returncode, output, errors


@pytest.mark.parametrize("whom", ["driver", "terminal"])
@pytest.mark.parametrize("call", BLOCKED)
def test_a_blocked_call_stops_at_once_and_the_runtime_goes_on(tmp_path: Path, call: str, whom: str) -> None:
    """A terminal sends Ctrl-C to every process of the group; only the driver should take notice."""
    if whom == "terminal" and call not in ("get", "wait"):
        pytest.skip("two calls are enough to show that the other processes do not care")
    process = start(tmp_path, PROLOGUE + "try:\n    " + BLOCKED[call] + EPILOGUE)
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    if whom == "driver":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    sent = time.monotonic()
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "interrupted\n", finish(process)
    assert time.monotonic() - sent < AT_ONCE_S
    # Not by communicate(): it may have come with the first line, and then it is in the stream's buffer.
    rest = process.stdout.read()
    code, _, errors = finish(process)
    assert (code, rest) == (0, "goes on\n"), errors


def test_a_stream_that_waits_stops_at_once(tmp_path: Path) -> None:
    program = PROLOGUE + (
        "@skate.remote(num_returns='streaming')\n"
        "def produce():\n"
        "    yield 1\n"
        "    with open(os.path.join(folder, 'running'), 'w'):\n"
        "        pass\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
        "try:\n"
        "    for ref in produce.remote():\n"
        "        skate.get(ref)\n"
    )
    process = start(tmp_path, program + EPILOGUE)
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert (code, output) == (0, "interrupted\ngoes on\n"), errors


def test_await_is_interrupted(tmp_path: Path) -> None:
    program = PROLOGUE + (
        "import asyncio\nasync def main():\n    await forever.remote('running')\ntry:\n    asyncio.run(main())\n"
    )
    process = start(tmp_path, program + EPILOGUE)
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert (code, output) == (0, "interrupted\ngoes on\n"), errors


def test_a_put_that_waits_for_room_is_interrupted(tmp_path: Path) -> None:
    program = PROLOGUE + (
        "import numpy as np\n"
        "skate.shutdown()\n"
        "skate.init(num_cpus=2, object_store_memory=32_000_000)\n"
        "views = [skate.get(skate.put(np.zeros(1_000_000))) for _ in range(3)]\n"
        "try:\n"
        "    print('putting', flush=True)\n"
        "    while True:\n"
        "        try:\n"
        "            skate.put(np.zeros(2_000_000))\n"
        "        except skate.exceptions.ObjectStoreFullError:\n"
        "            pass\n"
    )
    process = start(tmp_path, program + EPILOGUE.replace("assert skate", "views = None\nassert skate", 1))
    assert process.stdout is not None
    assert process.stdout.readline() == "putting\n"
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert (code, output) == (0, "interrupted\ngoes on\n"), errors


def test_uncaught_it_ends_the_program_as_python_does(tmp_path: Path) -> None:
    process = start(tmp_path, PROLOGUE + "skate.get(forever.remote('running'))\n")
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    process.send_signal(signal.SIGINT)
    code, _, errors = finish(process)
    assert code == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")


def test_the_interrupted_task_runs_on(tmp_path: Path) -> None:
    """Ctrl-C stops the waiting, not the task: it can be waited for again."""
    program = PROLOGUE + (
        "@skate.remote\n"
        "def patient():\n"
        "    with open(os.path.join(folder, 'running'), 'w'):\n"
        "        pass\n"
        "    while not os.path.exists(os.path.join(folder, 'go')):\n"
        "        time.sleep(0.005)\n"
        "    return 'done'\n"
        "ref = patient.remote()\n"
        "try:\n"
        "    skate.get(ref)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "print(skate.get(ref))\n"
    )
    process = start(tmp_path, program)
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "interrupted\n"
    (tmp_path / "go").touch()
    code, output, errors = finish(process)
    assert (code, output) == (0, "done\n"), errors


def test_a_handler_of_the_users_own_is_kept(tmp_path: Path) -> None:
    program = (
        "import signal\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        + PROLOGUE
        + (
            "ref = forever.remote('running')\n"
            "while not seen:\n"
            "    try:\n"
            "        skate.get(ref, timeout=0.2)\n"
            "    except skate.exceptions.GetTimeoutError:\n"
            "        pass\n"
            "assert skate.get(add_one.remote(1)) == 2\n"
            "print('seen', len(seen))\n"
        )
    )
    process = start(tmp_path, program)
    wait_for((tmp_path / "running").exists, 30, "the task to run")
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert (code, output) == (0, "seen 1\n"), errors


def test_the_handler_is_the_users_again_after_shutdown(tmp_path: Path) -> None:
    program = PROLOGUE + (
        "import signal\n"
        "skate.get(add_one.remote(1))\n"
        "skate.shutdown()\n"
        "try:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1000)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = start(tmp_path, program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert (code, output) == (0, "interrupted\n"), errors


STORM = """
import random, signal, threading

lock = threading.Lock()
armed = threading.Event()
ended = False
rng = random.Random(7)
main = threading.main_thread().ident

def send_interrupts():
    # One signal for each time that the main thread is armed, a random moment later.
    while True:
        armed.wait()
        if ended:
            return
        deadline = time.monotonic() + rng.random() * rng.choice([0.0005, 0.003, 0.01])
        while time.monotonic() < deadline:
            pass
        with lock:
            if armed.is_set() and not ended:
                armed.clear()
                signal.pthread_kill(main, signal.SIGINT)

def disarm():
    # The last signal may arrive here, so look again until none did.
    while True:
        try:
            with lock:
                armed.clear()
            return
        except KeyboardInterrupt:
            pass

import numpy as np

@skate.remote
def nested(x):
    return sum(skate.get([add_one.remote(x), add_one.remote(x + 1)]))

@skate.remote
def double(array):
    return array * 2

def work(number):
    kind = number % 6
    if kind == 0:
        assert skate.get([add_one.remote(number + i) for i in range(20)]) == [number + i + 1 for i in range(20)]
    elif kind == 1:
        assert skate.get(nested.remote(number)) == 2 * number + 3
    elif kind == 2:
        assert (skate.get(skate.put(np.full(50_000, number))) == number).all()
    elif kind == 3:
        assert (skate.get(double.remote(np.full(50_000, number))) == 2 * number).all()
    elif kind == 4:
        refs = [add_one.remote(number) for _ in range(10)]
        ready, rest = skate.wait(refs, num_returns=5)
        assert len(ready) == 5 and len(rest) == 5
        assert skate.get(ready) == [number + 1] * 5
    else:
        ref = add_one.remote(number)
        for _ in range(5):
            ref = add_one.remote(ref)
        assert skate.get(ref) == number + 6

thread = threading.Thread(target=send_interrupts, daemon=True)
thread.start()
interrupted = 0
for number in range(ROUNDS):
    try:
        armed.set()
        work(number)
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        disarm()
ended = True
armed.set()
thread.join()

for number in range(60):
    work(number)
assert skate.get([add_one.remote(number) for number in range(5000)]) == list(range(1, 5001))
import gc
gc.collect()
deadline = time.monotonic() + 15
while True:
    free, total = skate.available_resources(), skate.cluster_resources()
    held = total["object_store_memory"] - free.get("object_store_memory", 0)
    if free.get("CPU") == 2 and held < 40_000_000:
        break
    assert time.monotonic() < deadline, f"not given back: {2 - free.get('CPU', 0)} CPUs, {held} bytes"
    time.sleep(0.01)
print("interrupted", interrupted)
"""


def test_interrupts_at_random_moments_corrupt_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, PROLOGUE + STORM.replace("ROUNDS", "600"))
    code, output, errors = finish(process)
    assert code == 0, errors
    word, count = output.split()
    assert word == "interrupted"
    assert int(count) > 50, "the storm did hit"


# --- what was started is not lost -------------------------------------------------------------------------------------


def test_remote_returns_what_it_has_started(tmp_path: Path) -> None:
    """Ctrl-C in the middle of .remote() is raised after it: whoever called it has the reference by then."""
    program = f"""{PROLOGUE}
import signal

class Interrupting:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return int, (4,)

@skate.remote
class Adder:
    def add_one(self, x):
        return x + 1

adder = Adder.remote()
for start in (add_one, adder.add_one):
    try:
        ref = start.remote(Interrupting())
        while True:
            pass
    except KeyboardInterrupt:
        print(skate.get(ref), flush=True)
    del ref
"""
    assert finish(start(tmp_path, program)) == (0, "5\n5\n", "")


def test_a_name_is_free_again_if_its_creator_is_interrupted(tmp_path: Path) -> None:
    program = f"""{PROLOGUE}
import gc, signal, threading

@skate.remote(num_cpus=0)
class Named:
    pass

for moment in range(5):
    try:
        threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        number = 0
        while True:
            number += 1
            Named.options(name=f"{{moment}} {{number}}").remote()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
deadline = time.monotonic() + 20
while skate.util.list_named_actors() and time.monotonic() < deadline:
    gc.collect()
    time.sleep(0.01)
print(skate.util.list_named_actors())
"""
    assert finish(start(tmp_path, program)) == (0, "interrupted\n" * 5 + "[]\n", "")


@pytest.mark.parametrize("kind", ["Pool", "Executor"])
def test_no_worker_of_a_pool_is_lost(tmp_path: Path, kind: str) -> None:
    program = f"""{PROLOGUE}
import signal, threading
from skate.util import Executor
from skate.util.multiprocessing import Pool

pool = {kind}(1)
submit = (lambda x: pool.submit(abs, x).result()) if {kind} is Executor else (lambda x: pool.apply(abs, (x,)))
for _ in range(30):
    try:
        threading.Timer(0.005, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        while True:
            submit(-1)
    except KeyboardInterrupt:
        pass
print(submit(-2), flush=True)
skate.shutdown()
"""
    code, output, errors = finish(start(tmp_path, program))
    assert (code, output) == (0, "2\n"), errors


def test_an_alarm_of_the_program_that_raises_leaves_no_lock_behind(tmp_path: Path) -> None:
    """Other signals are the program's own: they are not put off, and may raise between any two steps of a submit."""
    program = tmp_path / "program.py"
    program.write_text(
        PROLOGUE
        + """
import signal, threading

class TooLong(Exception):
    pass

def too_long(signum, frame):
    raise TooLong

signal.signal(signal.SIGALRM, too_long)
skate.get(add_one.remote(1))
for round in range(300):
    refs = []
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + round % 97 * 1e-5)
        while True:
            refs.append(add_one.remote(round))
    except TooLong:
        pass
    done = threading.Event()
    threading.Thread(target=lambda: (add_one.remote(1), done.set()), daemon=True).start()
    assert done.wait(10), f"after {round + 1} alarms another thread cannot submit"
print("fine", flush=True)
"""
    )
    ended = subprocess.run([sys.executable, program, tmp_path], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "fine\n", ended.stderr


def test_an_interrupted_shutdown_leaves_nothing_behind() -> None:
    skate.init(num_cpus=1)
    daemon = psutil.Process().children()[0]
    descriptors = psutil.Process().num_fds()
    daemon.suspend()  # so that it says no goodbye, and the interrupt comes while that is waited for

    def interrupt() -> None:
        wait_for(lambda: not skate.is_initialized(), WITHIN_S, "the shutdown to begin")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        skate.shutdown()
    thread.join()
    assert not daemon.is_running()
    assert "skate-io" not in [thread.name for thread in threading.enumerate()]
    assert psutil.Process().num_fds() < descriptors


@pytest.mark.parametrize("then", [skate.shutdown, lambda: skate.init(num_cpus=1)], ids=["shutdown", "init"])
def test_a_shutdown_that_was_interrupted_at_its_very_beginning_can_be_finished(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]
) -> None:
    skate.init(num_cpus=1)
    daemon = psutil.Process().children()[0]

    def interrupted(self: LocalNode) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalNode, "close", interrupted)
        skate.shutdown()
    assert not skate.is_initialized()
    then()
    assert not daemon.is_running()
    skate.shutdown()


@pytest.mark.parametrize("set_when", ["before init", "after init"])
def test_a_handler_that_raises_at_any_moment_leaves_the_runtime_whole(set_when: str) -> None:
    """A time limit of a few milliseconds, over and over, in a loop that is hardly ever outside of Skate."""

    class OutOfTimeError(Exception):
        pass

    def on_alarm(*_: object) -> None:
        raise OutOfTimeError

    if set_when == "after init":
        skate.init(num_cpus=2)
    before = signal.signal(signal.SIGALRM, on_alarm)
    if set_when == "before init":
        skate.init(num_cpus=2)
    same = skate.remote(lambda x: x)
    try:
        assert skate.get(same.remote(1), timeout=WITHIN_S) == 1
        for number in range(60):
            with pytest.raises(OutOfTimeError):
                signal.setitimer(signal.ITIMER_REAL, 0.003)
                while True:
                    skate.get(same.remote(1), timeout=WITHIN_S)
            assert skate.get(same.remote(number), timeout=WITHIN_S) == number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_task_may_have_a_time_limit_of_its_own() -> None:
    """Also after it has waited for another one; and what it leaves behind hits nobody else."""
    skate.init(num_cpus=1)

    @skate.remote
    def limited() -> str:
        def on_alarm(*_: object) -> None:
            raise TimeoutError("over")

        signal.signal(signal.SIGALRM, on_alarm)
        skate.get(skate.remote(lambda: 1).remote())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            while True:
                pass
        except TimeoutError as error:
            return str(error)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    assert skate.get(limited.remote(), timeout=WITHIN_S) == "over"
    assert skate.get(limited.remote(), timeout=WITHIN_S) == "over"
