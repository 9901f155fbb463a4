"""Tasks that start tasks, to any depth, on as little as one CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from waiting import WITHIN_S, wait_for

cpus = pytest.mark.parametrize("cpus", [1, 2])


@skate.remote
def fib(n: int) -> int:
    if n < 2:
        return n
    return sum(skate.get([fib.remote(n - 1), fib.remote(n - 2)]))


@skate.remote
def descend(depth: int) -> int:
    return 0 if depth == 0 else 1 + skate.get(descend.remote(depth - 1))


@skate.remote
def add_one(x: int) -> int:
    return x + 1


@cpus
def test_recursive_fib_with_get_inside(cpus: int) -> None:
    skate.init(num_cpus=cpus)
    assert skate.get(fib.remote(9)) == 34


@cpus
def test_a_deep_stack_of_tasks_that_wait_for_each_other(cpus: int) -> None:
    skate.init(num_cpus=cpus)
    assert skate.get(descend.remote(25)) == 25


@cpus
def test_a_task_starts_many_and_waits_for_all(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def parent(n: int) -> int:
        return sum(skate.get([add_one.remote(i) for i in range(n)]))

    assert skate.get([parent.remote(50) for _ in range(4)]) == [1275] * 4


@cpus
def test_a_tree_of_tasks(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def leaves(level: int) -> int:
        return 1 if level == 0 else sum(skate.get([leaves.remote(level - 1) for _ in range(3)]))

    assert skate.get(leaves.remote(3)) == 27


@cpus
def test_wait_inside_a_task(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def parent() -> list[int]:
        waiting = [add_one.remote(i) for i in range(10)]
        values = []
        while waiting:
            ready, waiting = skate.wait(waiting)
            values += skate.get(ready)
        return sorted(values)

    assert skate.get(parent.remote()) == list(range(1, 11))


@cpus
def test_as_completed_and_map_inside_a_task(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def parent() -> tuple[list[int], list[int]]:
        completed = sorted(skate.get(ref) for ref in skate.as_completed([add_one.remote(i) for i in range(5)]))
        return completed, list(skate.map(abs, range(-3, 0)))

    assert skate.get(parent.remote()) == ([1, 2, 3, 4, 5], [3, 2, 1])


@cpus
def test_all_cpus_blocked_in_get(cpus: int) -> None:
    """Every CPU is held by a task that waits for children, and each of those waits for its own."""
    skate.init(num_cpus=cpus)

    @skate.remote
    def wide(level: int) -> int:
        return 1 if level == 0 else sum(skate.get([wide.remote(level - 1) for _ in range(2)]))

    assert skate.get([wide.remote(3) for _ in range(2 * cpus)]) == [8] * 2 * cpus


def test_a_task_blocked_in_get_gives_its_cpu_back(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    gate = tmp_path / "gate"

    @skate.remote(num_cpus=0)
    def gated() -> str:
        wait_for(gate.exists, 40, "the other task, which needs the CPU")
        return "opened"

    @skate.remote
    def blocked() -> str:
        return skate.get(gated.remote())

    @skate.remote
    def opener() -> None:
        gate.touch()

    ref = blocked.remote()
    wait_for(lambda: skate.available_resources().get("CPU", 0) == 1, 30, "the blocked task to give its CPU back")
    skate.get(opener.remote())
    assert skate.get(ref) == "opened"


def test_after_get_a_task_has_its_cpu_again(tmp_path: Path) -> None:
    """While it runs after its get, no other task that needs the CPU runs beside it."""
    skate.init(num_cpus=1)

    @skate.remote
    def parent() -> dict[str, float]:
        skate.get(add_one.remote(1))
        return skate.available_resources()

    assert skate.get(parent.remote()).get("CPU", 0) == 0


def test_custom_resources_stay_with_a_blocked_task() -> None:
    """Only the CPU is given back: a licence or a GPU is in use for as long as the task exists."""
    skate.init(num_cpus=1, resources={"licence": 1})

    @skate.remote
    def child() -> dict[str, float]:
        return skate.available_resources()

    parent = skate.remote(resources={"licence": 1})(lambda: skate.get(child.remote()))
    assert skate.get(parent.remote()).get("licence", 0) == 0


def test_a_long_chain_of_references() -> None:
    skate.init(num_cpus=2)
    ref: Any = 0
    for _ in range(1000):
        ref = add_one.remote(ref)
    assert skate.get(ref) == 1000


def test_a_long_chain_that_starts_with_an_error() -> None:
    skate.init(num_cpus=2)
    ref: Any = skate.remote(lambda: 1 / 0).remote()
    for _ in range(500):
        ref = add_one.remote(ref)
    with pytest.raises(ZeroDivisionError):
        skate.get(ref)


def test_children_may_outlive_their_parent(tmp_path: Path) -> None:
    skate.init(num_cpus=2)
    gate = tmp_path / "gate"

    @skate.remote
    def child() -> str:
        wait_for(gate.exists, 40, "the parent to be done")
        return "grown up"

    parent = skate.remote(lambda: [child.remote()])
    (ref,) = skate.get(parent.remote())
    gate.touch()
    assert skate.get(ref) == "grown up"


def test_a_child_nobody_waits_for_still_runs(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    mark = tmp_path / "ran"

    @skate.remote
    def parent() -> str:
        skate.remote(mark.touch).remote()
        return "done"

    assert skate.get(parent.remote()) == "done"
    wait_for(mark.exists, 30, "the child to run")


def test_large_values_pass_between_levels() -> None:
    numpy = pytest.importorskip("numpy")
    skate.init(num_cpus=2)

    @skate.remote
    def sort(array: Any, level: int) -> Any:
        if level == 0:
            return numpy.sort(array)
        half = len(array) // 2
        parts = skate.get([sort.remote(array[:half], level - 1), sort.remote(array[half:], level - 1)])
        return numpy.sort(numpy.concatenate(parts), kind="stable")

    array = numpy.random.default_rng(0).random(200_000)
    assert (skate.get(sort.remote(array, 2)) == numpy.sort(array)).all()


def test_children_with_other_options_than_their_parent() -> None:
    skate.init(num_cpus=2, resources={"licence": 1})
    child = skate.remote(num_cpus=0.5, resources={"licence": 1})(lambda i: i)
    parent = skate.remote(num_cpus=2)(lambda: skate.get([child.remote(i) for i in range(5)]))
    assert skate.get(parent.remote()) == [0, 1, 2, 3, 4]


def test_tasks_of_the_driver_and_of_tasks_share_the_machine() -> None:
    skate.init(num_cpus=1)
    parent = skate.remote(lambda i: skate.get(add_one.remote(i)))
    mixed = [parent.remote(i) if i % 2 else add_one.remote(i) for i in range(60)]
    assert skate.get(mixed) == list(range(1, 61))


@cpus
def test_waiting_for_the_items_of_a_stream_in_a_coroutine_needs_no_cpu(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @skate.remote
    def total(depth: int) -> int:
        async def add_up() -> int:
            below = [await total.remote(depth - 1)] if depth else []
            return sum(below + [await ref async for ref in count.remote(4)])

        return asyncio.run(add_up())

    assert skate.get(total.remote(2), timeout=WITHIN_S) == 18


@cpus
def test_waiting_for_a_future_of_the_standard_library_needs_no_cpu(cpus: int) -> None:
    skate.init(num_cpus=cpus)

    @skate.remote
    def deep(depth: int) -> int:
        return 1 + deep.remote(depth - 1).future().result() if depth else 0

    @skate.remote
    def fail() -> None:
        raise KeyError("here")

    error = skate.remote(lambda: repr(fail.remote().future().exception()))
    assert skate.get(deep.remote(5), timeout=WITHIN_S) == 5
    assert "KeyError" in skate.get(error.remote(), timeout=WITHIN_S)


# -- values that are there already -------------------------------------------------------------------------------------


def times_given_back(action: Callable[[], object]) -> int:
    """In a task: how often its CPU was given to others while that was done."""
    from skate._worker.current import get_runtime

    runtime = get_runtime()
    sent: list[str] = []
    send = runtime.send

    def note(message: Any) -> None:
        sent.append(type(message).__name__)
        send(message)

    runtime.send = note  # type: ignore[method-assign]
    try:
        action()
    finally:
        runtime.send = send  # type: ignore[method-assign]
    return sent.count("Blocked")


@pytest.mark.parametrize("way", ["get", "wait", "wait for all", "next_ready", "polls"])
def test_a_task_keeps_its_cpu_while_it_looks_at_values_that_are_there(way: str) -> None:
    skate.init(num_cpus=1)

    @skate.remote
    def look() -> int:
        done = [add_one.remote(x) for x in range(3)] + [skate.put(0)]
        stream = skate.remote(num_returns="streaming")(lambda: iter(range(3))).remote()
        skate.wait(done, num_returns=4)
        wait_for(lambda: stream.next_ready(timeout=1), WITHIN_S, "the first item")
        pending = add_one.remote(skate.remote(lambda: 1).remote())
        actions: dict[str, Callable[[], object]] = {
            "get": lambda: skate.get(done),
            "wait": lambda: skate.wait([*done, pending], num_returns=2, timeout=5),
            "wait for all": lambda: skate.wait(done, num_returns=4),
            "next_ready": lambda: stream.next_ready(timeout=5),
            "polls": lambda: [skate.wait([pending], timeout=0) for _ in range(5)],
        }
        return times_given_back(actions[way])

    assert skate.get(look.remote(), timeout=WITHIN_S) == 0


@pytest.mark.parametrize("way", ["get", "wait"])
def test_a_task_keeps_its_cpu_while_values_that_others_have_are_brought(way: str) -> None:
    skate.init(num_cpus=1)

    @skate.remote
    def look(refs: list[Any]) -> int:
        one_by_one = {"get": lambda: [skate.get(ref) for ref in refs], "wait": lambda: [skate.wait([r]) for r in refs]}
        return times_given_back(one_by_one[way])

    refs = [skate.put(number) for number in range(50)]
    # Each takes a fraction of a millisecond; on a busy machine some may take longer than a task should hold its CPU.
    assert skate.get(look.remote(refs), timeout=WITHIN_S) < 50


def test_a_task_that_has_to_wait_for_values_of_others_gives_its_cpu_back() -> None:
    skate.init(num_cpus=1)

    @skate.remote
    def look(refs: list[Any]) -> list[int]:
        return skate.get(refs)

    behind = add_one.remote(skate.remote(lambda: skate.get(add_one.remote(1))).remote())
    assert skate.get(look.remote([behind]), timeout=WITHIN_S) == [3]
