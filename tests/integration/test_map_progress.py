"""`skate.map`, which bounds and chunks itself, and `skate.progress`."""

from __future__ import annotations

import itertools
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")


def square(x: int) -> int:
    return x * x


# --- map --------------------------------------------------------------------------------------------------------------


def test_results_are_in_order() -> None:
    assert list(skate.map(square, range(1000))) == [square(i) for i in range(1000)]


def test_results_are_in_order_even_when_the_first_takes_longest(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def work(i: int) -> int:
        if i == 0:
            wait_for(gate.exists, 40, "a later item to be done")
        if i == 1:
            gate.touch()
        return i

    assert list(skate.map(work, range(5), chunk=1)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "function",
    [square, skate.remote(square), skate.remote(square).options(num_cpus=0.5), lambda x: x * x],
    ids=["plain", "remote", "options", "lambda"],
)
def test_plain_and_remote_functions(function: Any) -> None:
    assert list(skate.map(function, range(10))) == [square(i) for i in range(10)]


def test_an_item_is_retried_as_the_options_of_its_function_say() -> None:
    def attempts(needed: int) -> int:
        attempt = skate.get_runtime_context().get_attempt_number()
        if attempt < needed:
            raise ConnectionError("not yet")
        return attempt

    function = skate.remote(attempts).options(max_retries=2, retry_exceptions=[ConnectionError])
    assert list(skate.map(function, [0, 2, 1])) == [0, 2, 1]
    results = skate.map(function, [1, 3])
    assert next(results) == 1
    with pytest.raises(ConnectionError, match="not yet"):
        next(results)
    with pytest.raises(ValueError, match="Leave chunk out"):
        skate.map(function, [0], chunk=2)


def test_a_worker_is_replaced_after_max_calls_items() -> None:
    pids = list(skate.map(skate.remote(max_calls=2)(lambda _: os.getpid()), range(12)))
    assert max(pids.count(pid) for pid in pids) == 2


def test_an_item_is_all_that_the_function_returns() -> None:
    pair = skate.remote(num_returns=2)(lambda x: (x, -x))
    assert list(skate.map(pair, range(3))) == [(0, 0), (1, -1), (2, -2)]


def test_several_iterables_stop_with_the_shortest() -> None:
    assert list(skate.map(pow, [2, 3, 4], itertools.count(1))) == [2, 9, 64]


def test_map_of_nothing() -> None:
    assert list(skate.map(square, [])) == []


def test_map_runs_in_other_processes() -> None:
    assert os.getpid() not in set(skate.map(lambda _: os.getpid(), range(20)))


def test_map_uses_both_cpus(tmp_path: Path) -> None:
    def meet(me: int) -> int:
        (tmp_path / str(me)).touch()
        wait_for((tmp_path / str(1 - me)).exists, 40, "the other item to run at the same time")
        return me

    assert list(skate.map(meet, [0, 1])) == [0, 1]


def test_an_endless_iterable() -> None:
    results = skate.map(square, itertools.count())
    assert list(itertools.islice(results, 500)) == [square(i) for i in range(500)]


def test_an_endless_iterable_with_a_bound() -> None:
    """Items are taken from the iterable only as fast as results are consumed."""
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield i

    results = skate.map(square, items(), max_in_flight=10)
    for i in range(200):
        assert next(results) == i * i
        assert taken <= i + 1 + 10


@pytest.mark.parametrize("max_in_flight", [1, 2, 7])
def test_the_bound_holds_for_what_runs(max_in_flight: int, tmp_path: Path) -> None:
    results = skate.map(square, range(100), max_in_flight=max_in_flight)
    assert list(results) == [square(i) for i in range(100)]


def test_nothing_is_taken_before_the_first_result_is_asked_for_beyond_the_bound() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            taken.append(i)
            yield i

    results = skate.map(square, items(), max_in_flight=5)
    assert len(taken) <= 5
    assert next(results) == 0
    assert len(taken) <= 6
    assert list(results) == [square(i) for i in range(1, 1000)]


def test_small_items_travel_in_chunks() -> None:
    """A thousand items take far fewer tasks, once the first ones have shown that they are small."""
    skate.shutdown()
    skate.init(num_cpus=1)
    list(skate.map(square, range(5000)))
    tasks = [event for event in skate.timeline() if event.get("ph") == "X"]
    assert 1 <= len(tasks) < 1000


def test_a_chunk_size_may_be_given() -> None:
    assert list(skate.map(square, range(25), chunk=10)) == [square(i) for i in range(25)]
    tasks = [event for event in skate.timeline() if event.get("ph") == "X"]
    assert len(tasks) == 3


def test_an_error_comes_in_its_place() -> None:
    def fragile(i: int) -> int:
        if i == 3:
            raise ValueError(f"item {i}")
        return i

    seen = []
    with pytest.raises(ValueError, match="item 3"):
        for value in skate.map(fragile, range(10)):
            seen.append(value)  # noqa: PERF402
    assert seen == [0, 1, 2]


def test_an_error_comes_in_its_place_within_a_chunk() -> None:
    def fragile(i: int) -> int:
        if i == 3:
            raise ValueError(f"item {i}")
        return i

    seen = []
    with pytest.raises(ValueError, match="item 3"):
        for value in skate.map(fragile, range(10), chunk=10):
            seen.append(value)  # noqa: PERF402
    assert seen == [0, 1, 2]


def test_an_error_of_the_iterable_is_the_callers() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        list(skate.map(square, items()))
    assert not isinstance(caught.value, skate.exceptions.TaskError)


def test_references_among_the_items_are_resolved() -> None:
    """As in `f.remote(ref)`: a reference stands for its value."""
    refs = [skate.put(i) for i in range(5)]
    assert list(skate.map(skate.remote(square), refs)) == [0, 1, 4, 9, 16]


def test_a_map_that_is_left_early_is_no_harm() -> None:
    results = skate.map(square, itertools.count())
    assert next(results) == 0
    del results
    assert skate.get(skate.remote(square).remote(3)) == 9


def test_large_items_and_results() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = (numpy.full(100_000, i) for i in range(20))
    assert [int(array[0]) for array in skate.map(lambda array: array + 1, arrays, max_in_flight=4)] == list(
        range(1, 21)
    )


def test_two_maps_at_once() -> None:
    pairs = list(zip(skate.map(square, range(50)), skate.map(abs, range(-50, 0))))
    assert pairs == [(square(i), 50 - i) for i in range(50)]


@pytest.mark.parametrize(
    "arguments", [{"max_in_flight": 0}, {"max_in_flight": -1}, {"max_in_flight": 1.5}, {"chunk": 0}], ids=str
)
def test_bad_arguments_of_map_are_errors_at_the_call(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        skate.map(square, [1], **arguments)


def test_map_of_what_is_no_function_is_an_error_at_the_call() -> None:
    with pytest.raises(TypeError, match="function"):
        skate.map(5, [1])


def test_map_over_what_is_not_iterable_is_an_error_at_the_call() -> None:
    with pytest.raises(TypeError, match="iterable"):
        skate.map(square, 5)


# --- progress ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import skate

skate.init(num_cpus=2)

@skate.remote
def square(x):
    return x * x

refs = skate.progress([square.remote(i) for i in range(30)], description="squares")
print("total", sum(skate.get(refs)))
"""


def test_progress_returns_the_references() -> None:
    refs = [skate.remote(square).remote(i) for i in range(10)]
    assert skate.progress(refs) == refs
    assert skate.get(refs) == [square(i) for i in range(10)]
    assert skate.progress(iter(refs)) == refs
    assert skate.progress([]) == []


def test_progress_counts_failures_as_done() -> None:
    refs = [skate.remote(lambda: 1 / 0).remote() for _ in range(3)]
    assert skate.progress(refs) == refs
    with pytest.raises(ZeroDivisionError):
        skate.get(refs)


def test_progress_of_other_things_is_an_error() -> None:
    with pytest.raises(TypeError, match="progress"):
        skate.progress([1])


def in_a_terminal(path: Path, **environment: str) -> str:
    """What a program shows on a terminal of its own."""
    master, slave = pty.openpty()
    try:
        program = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"} | environment,
            start_new_session=True,
        )
        os.close(slave)
        shown = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the last writer closed the terminal
                break
            if not piece:
                break
            shown += piece
        assert program.wait(50) == 0, shown.decode(errors="replace")
    finally:
        os.close(master)
    return shown.decode(errors="replace")


def without_rich(folder: Path) -> dict[str, str]:
    """An environment in which rich cannot be imported."""
    (folder / "rich.py").write_text('raise ImportError("rich is not installed")\n')
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("rich", [True, False])
def test_a_bar_in_a_terminal(rich: bool, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    path = tmp_path / "programs" / "script.py"
    path.write_text(PROGRAM)
    shown = in_a_terminal(path, **({} if rich else without_rich(tmp_path)))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "squares" in plain
    assert "30/30" in plain
    assert "total 8555" in plain
    assert "\r" in plain, "the bar is drawn over itself"


@pytest.mark.parametrize("rich", [True, False])
def test_one_line_when_the_output_is_no_terminal(rich: bool, tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    path = tmp_path / "programs" / "script.py"
    path.write_text(PROGRAM)
    environment = os.environ | ({} if rich else without_rich(tmp_path))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=50, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "total 8555"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "squares" in line]
    assert len(lines) == 1
    assert "30/30" in lines[0]
    assert "\x1b" not in done.stdout + done.stderr
    assert "squares" not in done.stdout, "results on standard output stay clean for pipes"
