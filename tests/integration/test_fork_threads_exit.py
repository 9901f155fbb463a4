"""Forks, threads, atexit handlers and finalizers in users' programs: safe, or a clear error.

Programs that fork run as processes of their own: a fork of the test runner would be a second test runner.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from programs import run_program

PROLOGUE = """
import atexit, gc, os, sys, threading, time
import skate

@skate.remote
def add_one(x):
    return x + 1

def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(program: str, *, expect_code: int = 0) -> tuple[str, str]:
    """Run a program that uses Skate; its stdout and stderr."""
    options = ("-W", "ignore::DeprecationWarning")
    return run_program(PROLOGUE + program, expect_code=expect_code, options=options)


# --- Fork in the driver -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)", "raise SystemExit(0)", "gc.collect(); sys.exit(0)"])
def test_a_forked_child_may_exit_freely(leave: str) -> None:
    """Its finalizers and atexit handlers run, with references and the runtime of its parent in its memory."""
    output, errors = run(
        f"""
skate.init(num_cpus=2)
refs = [add_one.remote(1), skate.put(bytes(1_000_000))]
skate.get(refs)
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        {leave}
    assert exit_code(pid) == 0
    assert skate.get(refs)[0] == 2
    assert skate.get([add_one.remote(n) for n in range(100)]) == list(range(1, 101))
print("parent is well")
"""
    )
    assert output == "parent is well\n"
    assert errors == ""


def test_a_forked_child_that_drops_references_takes_nothing_from_its_parent() -> None:
    output, _ = run(
        """
import numpy as np
skate.init(num_cpus=2, object_store_memory=64_000_000)
refs = [skate.put(np.full(500_000, n)) for n in range(4)]
views = skate.get(refs)
pid = os.fork()
if pid == 0:
    del refs, views
    gc.collect()
    sys.exit(0)
assert exit_code(pid) == 0
others = [skate.put(np.full(500_000, 9)) for n in range(8)]
assert [int(view[0]) for view in views] == [0, 1, 2, 3]
del views
gc.collect()
assert [int(array[-1]) for array in skate.get(refs)] == [0, 1, 2, 3]
print("all there")
"""
    )
    assert output == "all there\n"


@pytest.mark.parametrize(
    "call",
    [
        "skate.get(ref)",
        "skate.get(add_one.remote(1))",
        "skate.put(1)",
        "skate.put(bytes(1_000_000))",
        "skate.wait([ref])",
        "skate.cancel(ref)",
        "skate.cluster_resources()",
    ],
)
def test_a_forked_child_that_uses_the_api_gets_a_clear_error(call: str) -> None:
    output, _ = run(
        f"""
skate.init(num_cpus=2)
ref = add_one.remote(1)
skate.get(ref)
pid = os.fork()
if pid == 0:
    try:
        {call}
        print("no error", flush=True)
    except skate.exceptions.SkateError as error:
        print(type(error).__name__, "fork" in str(error), "spawn" in str(error), flush=True)
    os._exit(0)
assert exit_code(pid) == 0
assert skate.get([add_one.remote(n) for n in range(100)]) == list(range(1, 101))
"""
    )
    assert output == "ForkedProcessError True True\n"


def test_a_forked_child_may_shut_down_and_begin_again() -> None:
    """Either it gets a runtime of its own, or a clear error; its parent's runtime is not touched."""
    output, _ = run(
        """
skate.init(num_cpus=2)
skate.get(add_one.remote(1))
pid = os.fork()
if pid == 0:
    try:
        skate.shutdown()
        skate.init(num_cpus=1)
        assert skate.get(add_one.remote(5)) == 6
        skate.shutdown()
    except skate.exceptions.ForkedProcessError:
        pass
    sys.exit(0)
assert exit_code(pid) == 0
assert skate.get([add_one.remote(n) for n in range(100)]) == list(range(1, 101))
print("parent is well")
"""
    )
    assert output == "parent is well\n"


def test_fork_before_init_is_nothing_special() -> None:
    output, _ = run(
        """
pid = os.fork()
skate.init(num_cpus=1)
assert skate.get(add_one.remote(1)) == 2
skate.shutdown()
if pid:
    assert exit_code(pid) == 0
    print("both")
"""
    )
    assert output == "both\n"


def test_fork_while_threads_use_the_api() -> None:
    output, _ = run(
        """
skate.init(num_cpus=2)
stop = False
failures = []
def use():
    try:
        number = 0
        while not stop:
            assert skate.get(add_one.remote(number)) == number + 1
            number += 1
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=use) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert exit_code(pid) == 0
stop = True
for thread in threads:
    thread.join()
assert not failures, failures
print("well")
"""
    )
    assert output == "well\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_in_the_driver(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing
import skate

@skate.remote
def add_one(x):
    return x + 1

def square(x):
    return x * x

if __name__ == "__main__":
    skate.init(num_cpus=2)
    ref = add_one.remote(1)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map(square, range(10)) == [x * x for x in range(10)]
    assert skate.get(ref) == 2
    assert skate.get([add_one.remote(n) for n in range(100)]) == list(range(1, 101))
    print("well")
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program)],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


# --- Fork in a task ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["os._exit", "sys.exit"])
def test_a_task_may_fork(runtime: ModuleType, leave: str) -> None:
    @runtime.remote(max_retries=0)
    def fork(number: int) -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(number % 100) if leave == "os._exit" else sys.exit(number % 100)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert runtime.get([fork.remote(number) for number in range(20)]) == list(range(20))


def test_a_forked_child_of_a_task_cannot_answer_in_its_name(runtime: ModuleType) -> None:
    """The child returns from the function, as in a program with a mistake: the task has one result, its own."""

    @runtime.remote(max_retries=0)
    def twice() -> str:
        pid = os.fork()
        if pid == 0:
            return "child"
        os.waitpid(pid, 0)
        return "parent"

    @runtime.remote(max_retries=0)
    def child_raises() -> str:
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the child")
        os.waitpid(pid, 0)
        return "parent"

    assert runtime.get([twice.remote() for _ in range(5)], timeout=30) == ["parent"] * 5
    assert runtime.get([child_raises.remote() for _ in range(5)], timeout=30) == ["parent"] * 5


def test_a_forked_child_of_a_task_that_uses_the_api_gets_a_clear_error(runtime: ModuleType) -> None:
    @runtime.remote(max_retries=0)
    def fork() -> str:
        import skate

        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                skate.put(1)
                os.write(writing, b"no error")
            except skate.exceptions.SkateError as error:
                os.write(writing, type(error).__name__.encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        return os.read(reading, 1000).decode()

    assert runtime.get(fork.remote(), timeout=30) == "ForkedProcessError"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_in_a_task(runtime: ModuleType, method: str) -> None:
    @runtime.remote(max_retries=0)
    def pool() -> list[int]:
        import math
        import multiprocessing

        with multiprocessing.get_context(method).Pool(2) as workers:
            return workers.map(math.factorial, range(6))

    assert runtime.get(pool.remote(), timeout=40) == [1, 1, 2, 6, 24, 120]


def test_a_task_may_run_programs(runtime: ModuleType) -> None:
    @runtime.remote(max_retries=0)
    def shell() -> tuple[str, int]:
        text = subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True).stdout
        return text, subprocess.run(["false"], check=False).returncode

    assert runtime.get([shell.remote() for _ in range(10)]) == [("hello\n", 1)] * 10


# --- Threads ----------------------------------------------------------------------------------------------------------


def test_eight_threads_use_everything_at_once(runtime: ModuleType) -> None:
    import numpy as np

    @runtime.remote
    def add_one(x: int) -> int:
        return x + 1

    @runtime.remote
    def total(array: Any) -> int:
        return int(array.sum())

    failures: list[BaseException] = []
    together = threading.Barrier(8)

    def use(thread: int) -> None:
        try:
            together.wait()
            for number in range(thread * 1000, thread * 1000 + 25):
                refs = [add_one.remote(number + step) for step in range(10)]
                ready, rest = runtime.wait(refs, num_returns=3)
                assert (len(ready), len(rest)) == (3, 7)
                assert runtime.get(refs) == [number + step + 1 for step in range(10)]
                array = np.full(20_000, number)
                ref = runtime.put(array)
                assert runtime.get(total.remote(ref)) == 20_000 * number
                assert (runtime.get(ref) == number).all()
                assert runtime.get(add_one.remote(add_one.remote(number))) == number + 2
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_many_threads_wait_for_one_reference(runtime: ModuleType, tmp_path: Path) -> None:
    go = tmp_path / "go"

    @runtime.remote
    def late() -> str:
        import time

        while not go.exists():
            time.sleep(0.005)
        return "here"

    ref = late.remote()
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(runtime.get(ref))) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.touch()
    for thread in threads:
        thread.join()
    assert results == ["here"] * 8


def test_threads_that_call_a_new_function_at_once(runtime: ModuleType) -> None:
    """The first call of a function sends it to the workers; several threads make the first call together."""

    def use(function: Any, together: threading.Barrier) -> None:
        try:
            together.wait()
            assert [runtime.get(function.remote(number)) for number in range(5)] == [1, 2, 3, 4, 5]
        except BaseException as error:
            failures.append(error)

    failures: list[BaseException] = []
    for _ in range(30):

        @runtime.remote
        def add_one(x: int) -> int:
            return x + 1

        together = threading.Barrier(4)
        threads = [threading.Thread(target=use, args=(add_one, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_function_that_is_defined_again_and_again(runtime: ModuleType) -> None:
    """The same text, so the same function to the workers; the earlier ones are garbage, at any moment."""
    for number in range(500):

        @runtime.remote
        def add_one(x: int) -> int:
            return x + 1

        assert runtime.get([add_one.remote(number), add_one.remote(number)]) == [number + 1] * 2


def test_threads_inside_a_task(runtime: ModuleType) -> None:
    @runtime.remote
    def add_one(x: int) -> int:
        return x + 1

    @runtime.remote
    def parent() -> list[int]:
        import skate

        results: list[int] = []

        def use(number: int) -> None:
            results.append(skate.get(add_one.remote(number)))

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(results)

    assert runtime.get([parent.remote() for _ in range(3)], timeout=40) == [list(range(1, 9))] * 3


def test_init_and_shutdown_from_another_thread() -> None:
    output, _ = run(
        """
def use():
    skate.init(num_cpus=2)
    assert skate.get(add_one.remote(1)) == 2
thread = threading.Thread(target=use)
thread.start()
thread.join()
assert skate.get(add_one.remote(2)) == 3
thread = threading.Thread(target=skate.shutdown)
thread.start()
thread.join()
assert not skate.is_initialized()
skate.init(num_cpus=1)
assert skate.get(add_one.remote(3)) == 4
print("well")
"""
    )
    assert output == "well\n"


def test_first_use_by_many_threads_starts_one_runtime() -> None:
    output, errors = run(
        """
results = []
threads = [threading.Thread(target=lambda n=n: results.append(skate.get(add_one.remote(n)))) for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(results) == list(range(1, 9))
import psutil
print(len(psutil.Process().children()))
"""
    )
    assert output == "1\n", errors


def test_shutdown_while_threads_wait() -> None:
    """They get an error; none of them hangs, and none of them crashes the process."""
    output, errors = run(
        """
skate.init(num_cpus=2)
@skate.remote
def forever():
    while True:
        time.sleep(0.01)
errors = []
started = threading.Semaphore(0)
def use():
    ref = forever.remote()
    started.release()
    try:
        skate.get(ref)
    except skate.exceptions.SkateError as error:
        errors.append(error)
threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in threads:
    started.acquire()
skate.shutdown()
for thread in threads:
    thread.join(20)
    assert not thread.is_alive()
print(len(errors))
"""
    )
    assert output == "4\n", errors


def test_a_daemon_thread_that_is_in_get_does_not_hold_up_the_exit() -> None:
    output, errors = run(
        """
skate.init(num_cpus=2)
@skate.remote
def forever():
    while True:
        time.sleep(0.01)
ref = forever.remote()
threading.Thread(target=skate.get, args=(ref,), daemon=True).start()
print("end")
"""
    )
    assert output == "end\n"
    assert "Fatal" not in errors


# --- atexit and finalizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registered", ["before", "after"])
def test_use_in_an_atexit_handler(registered: str) -> None:
    """A handler that was registered after Skate runs before its shutdown; the other one may get a clear error."""
    program = """
def at_exit():
    try:
        print(skate.get(add_one.remote(1)))
    except skate.exceptions.SkateError as error:
        print("clear error")
"""
    if registered == "before":
        output, errors = run(program + "atexit.register(at_exit)\nskate.init(num_cpus=1)\n")
    else:
        output, errors = run(program + "skate.init(num_cpus=1)\natexit.register(at_exit)\n")
    assert output in ("2\n", "clear error\n")
    assert errors == ""
    if registered == "after":
        assert output == "2\n"


def test_ctrl_c_while_a_program_ends_says_nothing() -> None:
    _, errors = run(
        """
import signal
from skate._worker import current

def press():
    while not current._exiting:
        time.sleep(0.0002)
    os.kill(os.getpid(), signal.SIGINT)

skate.init(num_cpus=1)
skate.get(add_one.remote(1))
threading.Thread(target=press, daemon=True).start()
"""
    )
    assert errors == ""


def test_use_in_an_atexit_handler_of_a_module_imported_first() -> None:
    """Registered before Skate was even imported, so it runs when Skate has gone."""
    program = (
        "import atexit\n"
        "def at_exit():\n"
        "    try:\n"
        "        print(skate.get(add_one.remote(1)))\n"
        "    except skate.exceptions.SkateError:\n"
        "        print('clear error')\n"
        "atexit.register(at_exit)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + PROLOGUE + "skate.init(num_cpus=1)\nskate.get(add_one.remote(1))\n"],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout in ("2\n", "clear error\n")
    assert done.stderr == ""


@pytest.mark.parametrize("when", ["dropped", "collected", "at exit", "after shutdown"])
def test_use_in_del(when: str) -> None:
    output, errors = run(
        f"""
skate.init(num_cpus=1)
class Holder:
    def __init__(self):
        self.ref = skate.put(bytes(1_000_000))
        self.itself = self if {when!r} == "collected" else None
    def __del__(self):
        try:
            print(len(skate.get(self.ref)), skate.get(add_one.remote(1)))
        except skate.exceptions.SkateError:
            print("clear error")
holder = Holder()
when = {when!r}
if when == "dropped":
    del holder
elif when == "collected":
    del holder
    gc.collect()
elif when == "after shutdown":
    skate.shutdown()
    del holder
print("end")
"""
    )
    used = "1000000 2"
    if when in ("dropped", "collected"):
        assert output == f"{used}\nend\n"
    elif when == "after shutdown":
        assert output == "clear error\nend\n"
    else:
        assert output in (f"end\n{used}\n", "end\nclear error\n", "end\n")
    assert errors == ""


def test_finalizers_that_run_in_the_middle_of_calls() -> None:
    """Garbage is collected at any moment, in any thread; finalizers that drop and make references run inside ours."""
    output, errors = run(
        """
skate.init(num_cpus=2)
done = 0
class Cycle:
    def __init__(self):
        self.ref = skate.put(1)
        self.itself = self
    def __del__(self):
        global done
        skate.put(2)
        add_one.remote(3)
        done += 1
gc.set_threshold(20, 2, 2)
def use(start):
    for number in range(start, start + 300):
        Cycle()
        assert skate.get(add_one.remote(number)) == number + 1
threads = [threading.Thread(target=use, args=(1000 * n,)) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
print(done)
"""
    )
    assert output == "900\n", errors


def test_submitting_imports_nothing() -> None:
    """Garbage may be collected in the middle of an import, and a finalizer that submits would find half a module."""
    output, errors = run(
        """
def submit():
    before = set(sys.modules)
    function = skate.remote(lambda *args, **kwargs: None)
    for args in ((1,), ([1],), (bytes(200_000),), ([bytes(200_000)],), (skate.put([1]),)):
        function.remote(*args, name=args)
    function.options(num_returns=2).remote()
    skate.remote(type("Actor", (), {})).remote()
    return [module for module in set(sys.modules) - before if module.startswith("skate")]
skate.init(num_cpus=2)
print(submit(), skate.get(skate.remote(submit).remote()))
"""
    )
    assert output == "[] []\n", errors


def test_references_that_outlive_the_runtime_are_harmless() -> None:
    output, errors = run(
        """
import numpy as np
skate.init(num_cpus=1)
old = [add_one.remote(1), skate.put(np.zeros(100_000))]
view = skate.get(old[1])
skate.shutdown()
skate.init(num_cpus=1)
new = skate.put(5)
for ref in old:
    try:
        skate.get(ref, timeout=5)
        print("no error")
    except skate.exceptions.SkateError:
        print("clear error")
del old, view, ref
gc.collect()
assert skate.get(new) == 5
assert skate.get(add_one.remote(1)) == 2
"""
    )
    assert output == "clear error\nclear error\n", errors


def test_sys_exit_in_a_thread_and_in_a_task_end_neither_driver_nor_worker(runtime: ModuleType) -> None:
    @runtime.remote(max_retries=0)
    def leave(code: int) -> None:
        sys.exit(code)

    @runtime.remote(max_retries=0)
    def pid() -> int:
        return os.getpid()

    with pytest.raises(runtime.exceptions.SkateError):
        runtime.get(leave.remote(3))
    assert runtime.get(pid.remote()) > 0
