"""Generators with num_returns=n: each value that is yielded is one of the n references."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from programs import append, lines, run_program
from skate.exceptions import SerializationError
from waiting import value_of

runtime = pytest.mark.usefixtures("runtime")


def yielding(made: int, size: int = 1) -> Iterator[bytes]:
    """So many values of that size, and then an error."""
    for number in range(made):
        yield bytes([number]) * size
    raise KeyError(f"after {made}")


class Yields:
    def values(self, made: int, size: int = 1) -> Iterator[bytes]:
        yield from yielding(made, size)


class YieldsAsync(Yields):
    async def later(self, made: int, size: int = 1) -> AsyncIterator[bytes]:
        for value in yielding(made, size):
            yield value


def by_task() -> Any:
    return skate.remote(yielding)


def by_actor() -> Any:
    return skate.remote(Yields).remote().values


def by_threads() -> Any:
    return skate.remote(Yields).options(max_concurrency=2).remote().values


def by_async_actor() -> Any:
    return skate.remote(YieldsAsync).remote().values


def by_coroutine() -> Any:
    return skate.remote(YieldsAsync).remote().later


@runtime
@pytest.mark.parametrize("make", [by_task, by_actor, by_threads, by_async_actor, by_coroutine])
@pytest.mark.parametrize("size", [1, 200_000])
def test_values_before_an_error_are_kept(make: Callable[[], Any], size: int) -> None:
    refs = make().options(num_returns=4).remote(2, size)
    assert [value_of(ref) for ref in refs[:2]] == [b"\0" * size, b"\1" * size]
    for ref in refs[2:]:
        with pytest.raises(KeyError, match="after 2"):
            value_of(ref)


@runtime
def test_an_error_before_the_first_value_is_the_error_of_all() -> None:
    for ref in by_task().options(num_returns=2).remote(0):
        with pytest.raises(KeyError, match="after 0"):
            value_of(ref)


@runtime
@pytest.mark.parametrize("size", [1, 200_000])
def test_too_few_values_are_kept_and_the_rest_is_an_error(size: int) -> None:
    @skate.remote(num_returns=3)
    def two() -> Iterator[Any]:
        yield np.zeros(size)
        yield np.ones(size)

    refs = two.remote()
    assert value_of(refs[0])[0] == 0
    assert value_of(refs[1])[0] == 1
    with pytest.raises(ValueError, match=r"two has num_returns=3, so it must yield that many values; it yielded 2\."):
        value_of(refs[2])


@runtime
def test_a_value_that_cannot_be_sent_is_an_error_from_there_on() -> None:
    @skate.remote(num_returns=3)
    def odd() -> Iterator[Any]:
        yield 1
        yield (each for each in ())
        yield 3

    first, second, third = odd.remote()
    assert value_of(first) == 1
    for ref in (second, third):
        with pytest.raises(SerializationError, match="the value returned by odd"):
            value_of(ref)


@runtime
def test_references_inside_values_and_inside_the_error_are_kept() -> None:
    @skate.remote(num_returns=3)
    def boxes() -> Iterator[Any]:
        yield [skate.put("inside the first")]
        error = ValueError("last")
        error.kept = skate.put("inside the error")  # type: ignore[attr-defined]
        raise error

    first, second, third = boxes.remote()
    assert value_of(value_of(first)[0]) == "inside the first"
    for ref in (second, third):
        with pytest.raises(ValueError, match="last") as caught:
            value_of(ref)
        assert value_of(caught.value.cause.kept) == "inside the error"  # type: ignore[attr-defined]


@runtime
@pytest.mark.parametrize("made", [3, 1])
def test_a_retry_replaces_what_an_attempt_before_it_had_yielded(tmp_path: Path, made: int) -> None:
    """The second attempt makes all three values, or fewer than the first one did."""
    log = tmp_path / "attempts"

    @skate.remote(num_returns=3, max_retries=1, retry_exceptions=True)
    def unstable() -> Iterator[Any]:
        append(log, "attempt")
        attempt = len(lines(log))
        for number in range(2 if attempt == 1 else made):
            yield np.full(100_000, 10 * attempt + number)
        if attempt == 1 or made < 3:
            raise OSError(f"attempt {attempt}")

    refs = unstable.remote()
    assert [int(value_of(ref)[0]) for ref in refs[:made]] == [20, 21, 22][:made]
    for ref in refs[made:]:
        with pytest.raises(OSError, match="attempt 2"):
            value_of(ref)
    assert len(lines(log)) == 2


PROGRAM = """
import skate
skate.init(num_cpus=1)

@skate.remote(num_returns=2)
def endless():
    number = 0
    try:
        while True:
            yield number
            number += 1
    finally:
        print("closed at", number)

@skate.remote(num_returns=2)
def late():
    yield 5
    yield 6
    raise KeyError("too late")

@skate.remote(num_returns=2)
def either(count):
    yield from range(count)
    raise KeyError("at the end of either")

@skate.remote
class Counter:
    async def count(self):
        for number in range(4):
            yield number

for _ in range(3):
    print(skate.get(endless.remote()))
print(skate.get(late.remote()))
for count in (3, 2, 3, 2):
    skate.get(either.remote(count))
counter = Counter.remote()
print(skate.get(counter.count.options(num_returns=2).remote()))
"""


def test_more_values_than_returns_give_the_first_and_a_warning() -> None:
    output, errors = run_program(PROGRAM)
    assert [line for line in output.splitlines() if not line.startswith("(")] == ["[0, 1]"] * 3 + ["[5, 6]", "[0, 1]"]
    assert set(re.findall(r"closed at \d+", output)) == {"closed at 2"}
    warning = "a generator with num_returns=2, yielded more than 2 values; the first 2 are its returns."
    assert errors.count(f"endless, {warning}") == 1  # once for a function, not once for a call
    assert errors.count(f"Counter.count, {warning}") == 1
    assert "late, a generator with num_returns=2, raised after its 2 values, which are its returns." in errors
    assert "KeyError: 'too late'" in errors
    assert errors.count(f"either, {warning}") == 1
    assert errors.count("KeyError: 'at the end of either'") == 1
