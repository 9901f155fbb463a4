"""The whole product in tiny programs: read this first, run this first.

pytest tests/test_tiny.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

import skate

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote
def add(a: int, b: int) -> int:
    return a + b


@skate.remote
def fail(text: str) -> None:
    raise ValueError(text)


@skate.remote
def count(n: int) -> Iterator[int]:
    yield from range(n)


@skate.remote
def fib(n: int) -> int:
    if n < 2:
        return n
    return sum(skate.get([fib.remote(n - 1), fib.remote(n - 2)]))


def test_a_task_returns_a_value() -> None:
    assert skate.get(add.remote(1, 2)) == 3


def test_a_task_runs_in_another_process() -> None:
    assert skate.get(skate.remote(os.getpid).remote()) != os.getpid()


def test_many_tasks_give_their_values_in_order() -> None:
    assert skate.get([add.remote(i, i) for i in range(200)]) == [2 * i for i in range(200)]


def test_a_reference_as_an_argument_is_replaced_by_its_value() -> None:
    three = add.remote(1, 2)
    assert skate.get(add.remote(three, three)) == 6


def test_put_stores_a_value_once_for_many_tasks() -> None:
    table = skate.put({"a": 1})
    lookup = skate.remote(lambda table, key: table[key])
    assert skate.get([lookup.remote(table, "a") for _ in range(10)]) == [1] * 10


def test_an_exception_arrives_as_its_own_class() -> None:
    with pytest.raises(ValueError, match="not today"):
        skate.get(fail.remote("not today"))


def test_wait_splits_into_ready_and_not_ready() -> None:
    refs = [add.remote(i, 1) for i in range(3)]
    ready, rest = skate.wait(refs, num_returns=3)
    assert ready == refs
    assert rest == []


def test_as_completed_yields_every_reference_once() -> None:
    refs = [add.remote(i, 0) for i in range(10)]
    assert sorted(skate.get(ref) for ref in skate.as_completed(refs)) == list(range(10))


def test_map_works_like_the_builtin() -> None:
    assert list(skate.map(abs, range(-5, 5))) == list(map(abs, range(-5, 5)))


def test_a_task_may_start_tasks_and_wait_for_them() -> None:
    assert skate.get(fib.remote(6)) == 8


def test_a_remote_generator_yields_references() -> None:
    assert [skate.get(ref) for ref in count.remote(4)] == [0, 1, 2, 3]


def test_references_can_be_awaited() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*[add.remote(i, i) for i in range(3)])

    assert asyncio.run(main()) == [0, 2, 4]


def test_options_change_one_call() -> None:
    environment = {"env_vars": {"GREETING": "hello"}}
    getenv = skate.remote(lambda name: os.environ.get(name))
    assert skate.get(getenv.options(runtime_env=environment).remote("GREETING")) == "hello"
    assert skate.get(getenv.remote("GREETING")) is None


def test_several_return_values() -> None:
    quotient, remainder = skate.remote(divmod).options(num_returns=2).remote(17, 5)
    assert skate.get([quotient, remainder]) == [3, 2]


def test_the_machine_tells_what_it_has() -> None:
    assert skate.cluster_resources()["CPU"] == 2
    assert len(skate.nodes()) == 1


def test_large_arrays_are_shared_and_read_only() -> None:
    numpy = pytest.importorskip("numpy")
    array = skate.get(skate.put(numpy.arange(1_000_000)))
    assert array.sum() == 499999500000
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
