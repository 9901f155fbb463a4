"""`skate.util.multiprocessing.Pool`: what programs expect of `multiprocessing.Pool`.

The cases follow those of CPython's own tests of its pool (Lib/test/_test_multiprocessing.py), in other words; those at
the end are about what Skate does better.
"""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import threading
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines, run_program
from skate.exceptions import ActorDiedError, NotInitializedError, SerializationError, TaskCancelledError
from skate.util import multiprocessing as drop_in
from skate.util.multiprocessing import Pool
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")

WITHIN_S = 20.0
SOON_S = 0.01

initialized: list[Any] = []


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool
    pool.join()


class SayWhen(Exception):
    """Raised by iterables that have had enough."""


def square(x: int, by: int = 1) -> int:
    return x * x * by


def multiply(x: int, y: int) -> int:
    return x * y


def fail(x: Any = 123) -> None:
    raise RuntimeError(x)  # a comment that the traceback shows


def fail_at(bad: int, x: int) -> int:
    if x == bad:
        raise ValueError(f"{x} is bad")
    return x


def wait_for_file(path: Path) -> str:
    wait_for(path.exists, WITHIN_S, "somebody to make the file")
    return "seen"


def pid_of(_: Any = None) -> int:
    return os.getpid()


def numbers_until(total: int, when: int) -> Iterator[int]:
    """Numbers up to `total`, but it raises instead of `when`; -1: before the first."""
    if when == -1:
        raise SayWhen("at once")
    for i in range(total):
        if i == when:
            raise SayWhen(f"at {i}")
        yield i


def remember(value: Any) -> None:
    initialized.append(value)


def remembered(_: Any = None) -> list[Any]:
    return initialized


# --- apply ------------------------------------------------------------------------------------------------------------


def test_apply_calls_with_arguments_and_keywords(pool: Pool) -> None:
    assert pool.apply(square, (5,)) == 25
    assert pool.apply(square, (5,), {"by": 2}) == 50
    assert pool.apply(square, (), {"x": 3}) == 9
    assert pool.apply(pid_of) != os.getpid()


def test_apply_takes_the_names_of_ray_and_none(pool: Pool) -> None:
    assert pool.apply(square, (5,), kwargs={"by": 2}) == 50
    assert pool.apply(square, None, {"x": 3}) == 9
    assert pool.apply_async(square, args=(5,), kwargs={"by": 3}).get(WITHIN_S) == 75
    assert pool.apply(pid_of, None, None) != os.getpid()


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_imap_chooses_the_size_of_its_chunks_when_it_is_none(pool: Pool, method: str) -> None:
    imap = getattr(pool, method)
    assert sorted(imap(square, range(50), chunksize=None)) == [x * x for x in range(50)]
    assert sorted(imap(square, iter(range(5)), None)) == [x * x for x in range(5)]
    assert list(imap(square, [], None)) == []


def test_an_initializer_without_arguments() -> None:
    with Pool(1, remember, None) as pool, pytest.raises(TypeError, match="value"):
        pool.apply(square, (1,))


def test_apply_async_returns_a_result_that_can_be_waited_for(pool: Pool, tmp_path: Path) -> None:
    result = pool.apply_async(wait_for_file, (tmp_path / "go",))
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    result.wait(SOON_S)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=SOON_S)
    (tmp_path / "go").touch()
    result.wait(WITHIN_S)
    assert result.ready()
    assert result.successful()
    assert result.get() == result.get() == "seen"


def test_an_error_of_a_call_is_raised_by_get(pool: Pool) -> None:
    result = pool.apply_async(fail)
    with pytest.raises(RuntimeError):
        result.get(WITHIN_S)
    assert not result.successful()


def test_callbacks_get_the_value_or_the_error(pool: Pool) -> None:
    seen: list[Any] = []
    pool.apply_async(square, (3,), callback=seen.append, error_callback=seen.append).wait(WITHIN_S)
    assert seen == [9]  # the callback has run when the result is ready
    pool.apply_async(fail, callback=seen.append, error_callback=seen.append).wait(WITHIN_S)
    assert type(seen[1]) is RuntimeError


def test_a_callback_that_raises_does_not_stop_the_pool(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    assert pool.apply_async(square, (3,), callback=lambda _: fail()).get(WITHIN_S) == 9
    assert pool.apply(square, (4,)) == 16
    assert "callback" in caplog.text
    caplog.clear()  # the traceback there has references


def test_a_callback_may_use_the_pool(pool: Pool) -> None:
    second: list[Any] = []
    first = pool.apply_async(square, (2,), callback=lambda value: second.append(pool.apply_async(square, (value,))))
    assert first.get(WITHIN_S) == 4
    assert second[0].get(WITHIN_S) == 16


# --- map --------------------------------------------------------------------------------------------------------------


def test_map_is_the_built_in_map(pool: Pool) -> None:
    assert pool.map(square, list(range(10))) == list(map(square, range(10)))
    assert pool.map(square, list(range(100)), chunksize=20) == list(map(square, range(100)))
    assert pool.map(square, (i for i in range(7)), chunksize=3) == list(map(square, range(7)))


def test_starmap_takes_arguments_apart(pool: Pool) -> None:
    pairs = list(zip(range(10), range(9, -1, -1)))
    expected = list(itertools.starmap(multiply, pairs))
    assert pool.starmap(multiply, pairs) == expected
    assert pool.starmap(multiply, pairs, chunksize=3) == expected
    assert pool.starmap_async(multiply, pairs).get(WITHIN_S) == expected


def test_map_async_calls_back_once_with_the_whole_list(pool: Pool) -> None:
    seen: list[Any] = []
    pool.map_async(square, range(5), callback=seen.append, error_callback=seen.append).wait(WITHIN_S)
    assert seen == [[0, 1, 4, 9, 16]]
    pool.map_async(fail, [1, 2], callback=seen.append, error_callback=seen.append).wait(WITHIN_S)
    assert len(seen) == 2
    assert isinstance(seen[1], RuntimeError)


def test_maps_of_nothing_give_nothing_at_once(pool: Pool) -> None:
    assert pool.map(square, []) == []
    assert pool.map_async(square, [], chunksize=1).get(WITHIN_S) == []
    assert pool.starmap(multiply, ()) == []
    assert list(pool.imap(square, [])) == []
    assert list(pool.imap_unordered(square, iter([]))) == []
    seen: list[Any] = []
    pool.map_async(square, [], callback=seen.append).wait(WITHIN_S)
    assert seen == [[]]


def test_a_map_that_fails_still_runs_every_chunk(pool: Pool, tmp_path: Path) -> None:
    """The error does not come before the others are done: nothing of the map runs behind the caller's back."""
    log = tmp_path / "log"

    def note(x: int) -> None:
        append(log, x)
        if x == 0:
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        pool.map(note, range(10), chunksize=1)
    assert sorted(map(int, lines(log))) == list(range(10))


def test_an_iterable_that_raises_fails_the_map_and_not_the_pool(pool: Pool) -> None:
    for _ in range(2):
        with pytest.raises(SayWhen):
            pool.map(square, numbers_until(1, -1), 1)
        with pytest.raises(SayWhen):
            pool.map(square, numbers_until(10, 3), 1)

    class Special:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            raise SayWhen

        def __len__(self) -> int:
            return 1

    with pytest.raises(SayWhen):
        pool.map(square, Special(), 1)
    assert pool.map(square, [3]) == [9]


@pytest.mark.parametrize("chunksize", [0, -1, 1.5, True])
def test_a_chunksize_that_makes_no_sense_is_refused(pool: Pool, chunksize: Any) -> None:
    for call in (pool.map, pool.imap, pool.imap_unordered):
        with pytest.raises(ValueError, match="1 or more"):
            call(square, [1], chunksize)


def test_chunks_are_spread_over_all_processes(pool: Pool, tmp_path: Path) -> None:
    """Two calls that wait for each other are in two processes at a time."""

    def meet(me: int) -> int:
        (tmp_path / str(me)).touch()
        wait_for((tmp_path / str(1 - me)).exists, WITHIN_S, "the other one")
        return os.getpid()

    assert len(set(pool.map(meet, [0, 1]))) == 2


def test_a_quick_call_does_not_wait_behind_a_slow_one(pool: Pool, tmp_path: Path) -> None:
    slow = pool.apply_async(wait_for_file, (tmp_path / "go",))
    assert pool.map(square, range(20), chunksize=1) == [i * i for i in range(20)]
    assert not slow.ready()
    (tmp_path / "go").touch()
    assert slow.get(WITHIN_S) == "seen"


# --- imap -------------------------------------------------------------------------------------------------------------


def test_imap_gives_results_in_order(pool: Pool) -> None:
    assert list(pool.imap(square, range(20))) == [i * i for i in range(20)]
    assert list(pool.imap(square, range(100), chunksize=30)) == [i * i for i in range(100)]
    results = pool.imap(square, range(3))
    assert iter(results) is results
    assert [next(results), next(results), next(results)] == [0, 1, 4]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(results)


def test_imap_unordered_gives_every_result(pool: Pool) -> None:
    assert sorted(pool.imap_unordered(square, range(20))) == [i * i for i in range(20)]
    assert sorted(pool.imap_unordered(square, range(100), chunksize=30)) == [i * i for i in range(100)]


def test_imap_unordered_does_not_wait_for_a_slow_call(pool: Pool, tmp_path: Path) -> None:
    def slow_zero(x: int) -> int:
        if x == 0:
            wait_for_file(tmp_path / "go")
        return x

    results = pool.imap_unordered(slow_zero, range(4))
    assert [next(results) for _ in range(3)] == [1, 2, 3]
    (tmp_path / "go").touch()
    assert list(results) == [0]


@pytest.mark.parametrize("timeout", [1e12, float("inf")])
def test_a_timeout_may_be_as_long_as_one_likes(pool: Pool, timeout: float) -> None:
    result = pool.apply_async(abs, (-1,))
    result.wait(timeout=timeout)
    assert result.get(timeout=timeout) == 1
    assert pool.imap(abs, [-2]).next(timeout=timeout) == 2


def test_next_takes_a_timeout(pool: Pool, tmp_path: Path) -> None:
    results = pool.imap(wait_for_file, [tmp_path / "go"])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=SOON_S)
    (tmp_path / "go").touch()
    assert results.next(timeout=WITHIN_S) == "seen"


def test_an_error_in_an_imap_comes_in_its_place_and_the_rest_after_it(pool: Pool) -> None:
    results = pool.imap(functools.partial(fail_at, 2), range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2 is bad"):
        next(results)
    assert list(results) == [3, 4]


def test_values_of_a_chunk_before_its_error_are_not_lost(pool: Pool) -> None:
    results = pool.imap(functools.partial(fail_at, 2), range(8), chunksize=4)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="2 is bad"):
        next(results)
    assert list(results) == [4, 5, 6, 7]


@pytest.mark.parametrize(("when", "chunksize", "before"), [(-1, 1, 0), (3, 1, 3), (7, 2, 6), (7, 4, 4)])
def test_an_iterable_that_raises_ends_an_imap_after_the_whole_chunks(
    pool: Pool, when: int, chunksize: int, before: int
) -> None:
    results = pool.imap(square, numbers_until(20, when), chunksize)
    assert [next(results) for _ in range(before)] == [i * i for i in range(before)]
    with pytest.raises(SayWhen) as caught:
        next(results)
    assert caught.value.__cause__ is None  # it was raised here
    with pytest.raises(StopIteration):
        next(results)


def test_an_iterable_that_raises_ends_an_imap_unordered(pool: Pool) -> None:
    expected = {i * i for i in range(3)}
    results = pool.imap_unordered(square, numbers_until(10, 3), 1)
    seen = set()
    with pytest.raises(SayWhen):
        for value in results:
            seen.add(value)
    assert seen == expected


def test_imap_starts_without_a_consumer_and_survives_close_and_join() -> None:
    pool = Pool(2)
    results = pool.imap(square, range(50))
    pool.close()
    pool.join()
    assert list(results) == [i * i for i in range(50)]


def test_imap_reads_only_as_far_ahead_as_the_workers_need(pool: Pool, tmp_path: Path) -> None:
    read = []

    def paths() -> Iterator[Path]:
        for i in range(10_000):
            read.append(i)
            yield tmp_path / "go"

    results = pool.imap(wait_for_file, paths())
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.1)
    assert len(read) < 20
    pool.terminate()


def test_terminate_ends_an_imap_over_an_endless_iterable() -> None:
    pool = Pool(2)
    results = pool.imap(square, itertools.count())
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    pool.terminate()
    pool.join()
    with pytest.raises(TaskCancelledError):
        for _ in results:
            pass


def test_terminate_does_not_wait_for_an_iterable_that_gives_nothing() -> None:
    never = threading.Event()

    def silent() -> Iterator[int]:
        yield 1
        never.wait(WITHIN_S)

    pool = Pool(1)
    results = pool.imap(square, silent())
    assert next(results) == 1
    pool.terminate()
    pool.join()
    never.set()


def test_an_iterable_may_depend_on_earlier_results(pool: Pool) -> None:
    taken = threading.Semaphore(1)

    def one_at_a_time() -> Iterator[int]:
        for i in range(5):
            taken.acquire()
            yield i

    for i, value in enumerate(pool.imap(square, one_at_a_time())):
        assert value == i * i
        taken.release()


# --- making and ending pools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, -1])
def test_a_pool_has_at_least_one_process(processes: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Pool(processes)


def test_a_pool_of_no_given_size_has_as_many_processes_as_the_cluster_has_cpus() -> None:
    with Pool() as pool:
        assert "processes=2" in repr(pool)
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="initializer"):
        Pool(1, initializer=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="processes"):
        Pool("2")  # type: ignore[arg-type]
    for wrong in (0, -1, "12", 12.5):
        with pytest.raises(ValueError, match="maxtasksperchild"):
            Pool(1, maxtasksperchild=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_cpu"):
        Pool(1, ray_remote_args={"num_cpu": 1})


def test_the_names_of_the_standard_library_are_there() -> None:
    assert drop_in.TimeoutError is multiprocessing.TimeoutError
    with drop_in.Pool(1, ray_address="local", context=None) as pool:
        assert isinstance(pool.apply_async(square, (1,)), drop_in.AsyncResult)


def test_more_processes_than_cpus_may_be_asked_for() -> None:
    with Pool(5) as pool:
        assert pool.map(square, range(50), chunksize=1) == [i * i for i in range(50)]


def test_options_of_the_workers_may_be_given() -> None:
    with Pool(1, ray_remote_args={"num_cpus": 1}) as pool:
        pool.apply(square, (1,))
        assert skate.available_resources()["CPU"] == 1


def test_each_process_calls_the_initializer_once() -> None:
    with Pool(2, initializer=remember, initargs=("a",)) as pool:
        assert pool.map(remembered, range(8), chunksize=1) == [["a"]] * 8
    assert initialized == []


def test_functions_of_a_script_see_what_the_initializer_left_in_its_globals(tmp_path: Path) -> None:
    """Such functions travel by value, each with globals of its own."""
    script = tmp_path / "script.py"
    script.write_text("""\
import functools
from skate.util import Executor
from skate.util.multiprocessing import Pool

model, seen, scale = None, {}, 2

def start(value):
    global model, made
    model, made = value, lambda: value + 1
    seen["value"] = value

def look():
    return model, made(), seen["value"]

def use(x):
    return (*look(), x)

def move(_):
    global model
    model += 1

def scaled(x):
    return scale * x

def inside(value):
    with Pool(1, initializer=start, initargs=(value,)) as pool:
        return pool.apply(look)

if __name__ == "__main__":
    with Pool(1, initializer=start, initargs=(7,)) as pool:
        print(pool.map(use, [1]), pool.apply(lambda: model), pool.apply(inside, (3,)))
        pool.map(move, [1, 2])
        print(pool.apply(look), pool.apply(scaled, (1,)))
        scale = 3
        print(pool.apply(look), pool.apply(scaled, (1,)), pool.apply(lambda: scale))
    with Executor(1, initializer=functools.partial(start, 5)) as executor:
        print(list(executor.map(use, [1])), executor.submit(look).result())
    print(model, seen)
""")
    assert run_program(script)[0].splitlines() == [
        "[(7, 8, 7, 1)] 7 (3, 4, 3)",
        "(9, 8, 7) 2",
        "(9, 8, 7) 2 3",
        "[(5, 6, 5, 1)] (5, 6, 5)",
        "None {}",
    ]


def test_processes_are_replaced_after_so_many_chunks() -> None:
    with Pool(1, initializer=remember, initargs=("b",), maxtasksperchild=3) as pool:
        pids = pool.map(pid_of, range(9), chunksize=1)
        assert [len(list(group)) for _, group in itertools.groupby(pids)] == [3, 3, 3]
        assert pool.apply(remembered) == ["b"]


def test_a_pool_that_replaces_processes_can_be_closed_early() -> None:
    pool = Pool(2, maxtasksperchild=1)
    results = [pool.apply_async(square, (i,)) for i in range(6)]
    pool.close()
    pool.join()
    assert [result.get(WITHIN_S) for result in results] == [i * i for i in range(6)]


def test_close_lets_what_was_asked_for_complete() -> None:
    pool = Pool(2)
    result = pool.map_async(square, range(20), chunksize=1)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    pool.close()
    pool.join()
    assert result.get(WITHIN_S) == [i * i for i in range(20)]
    assert "closed" in repr(pool)


def test_a_closed_pool_takes_no_more_calls() -> None:
    pool = Pool(1)
    pool.close()
    for call in (
        lambda: pool.apply(square, (1,)),
        lambda: pool.map(square, [1]),
        lambda: pool.starmap(multiply, [(1, 2)]),
        lambda: pool.imap(square, [1]),
        lambda: pool.imap_unordered(square, [1]),
        lambda: pool.__enter__(),
    ):
        with pytest.raises(ValueError, match="not running"):
            call()
    pool.join()


def test_terminate_stops_calls_in_the_middle(tmp_path: Path) -> None:
    pool = Pool(2)
    results = [pool.apply_async(wait_for_file, (tmp_path / "never",)) for _ in range(10)]
    pool.terminate()
    pool.join()
    for result in results:
        with pytest.raises(TaskCancelledError, match="terminated"):
            result.get(WITHIN_S)


def test_the_end_of_a_with_block_terminates(tmp_path: Path) -> None:
    with Pool(1) as pool:
        result = pool.apply_async(wait_for_file, (tmp_path / "never",))
    with pytest.raises(TaskCancelledError):
        result.get(WITHIN_S)
    with pytest.raises(ValueError, match="not running"):
        pool.map_async(square, [1])


def test_a_pool_that_nobody_holds_lives_until_its_results_are_there() -> None:
    def use() -> list[int]:
        values = Pool(1).map_async(square, range(10)).get(WITHIN_S)
        gc.collect()
        return values

    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):
        assert use() == [i * i for i in range(10)]


def test_a_pool_cannot_be_pickled(pool: Pool) -> None:
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(pool)


def test_a_program_that_leaves_its_pool_open_ends() -> None:
    program = "from skate.util.multiprocessing import Pool; pool = Pool(2); print(pool.map(abs, [-1]))"
    assert run_program(program)[0] == "[1]\n"


# --- what travels -----------------------------------------------------------------------------------------------------


def test_an_exception_keeps_its_class_and_brings_its_traceback(pool: Pool) -> None:
    with pytest.raises(RuntimeError) as caught:
        pool.apply(fail)
    assert type(caught.value) is RuntimeError
    assert caught.value.args == (123,)
    text = "raise RuntimeError(x)  # a comment that the traceback shows"
    assert text in caught.value.__cause__.tb  # type: ignore[union-attr]
    assert text in "".join(traceback.format_exception(caught.value))


def test_an_exception_that_cannot_be_rebuilt_arrives_all_the_same(pool: Pool) -> None:
    class Picky(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("picky")

    def raise_picky() -> None:
        raise Picky(1, 2)

    with pytest.raises(Exception, match="picky"):
        pool.apply(raise_picky)
    assert pool.apply(square, (2,)) == 4


def test_results_that_cannot_be_pickled_fail_their_call_only(pool: Pool) -> None:
    for _ in range(5):
        seen: list[Any] = []
        result = pool.apply_async(threading.Lock, error_callback=seen.append)
        with pytest.raises(TypeError):
            result.get(WITHIN_S)
        assert len(seen) == 1
    assert pool.apply(square, (2,)) == 4


def test_arguments_that_cannot_be_pickled_fail_their_call_only(pool: Pool) -> None:
    with pytest.raises(SerializationError):
        pool.apply(square, (threading.Lock(),))
    with pytest.raises(SerializationError):
        pool.map(square, [threading.Lock()] * 10)
    assert pool.apply(square, (2,)) == 4


def test_arguments_and_results_are_not_kept(pool: Pool) -> None:
    class Thing:
        pass

    things = [Thing() for _ in range(5)]
    kept = [weakref.ref(thing) for thing in things]
    results = pool.map(lambda thing: thing, things)
    del things
    wait_for(lambda: gc.collect() is not None and not any(ref() for ref in kept), WITHIN_S, "the arguments to go")
    kept = [weakref.ref(thing) for thing in results]
    del results
    wait_for(lambda: gc.collect() is not None and not any(ref() for ref in kept), WITHIN_S, "the results to go")


def test_a_callable_whose_state_changes_is_sent_anew(pool: Pool) -> None:
    class Adder:
        def __init__(self) -> None:
            self.amount = 1

        def __call__(self, x: int) -> int:
            return x + self.amount

    adder = Adder()
    assert pool.apply(adder, (1,)) == 2
    adder.amount = 10
    assert pool.apply(adder, (1,)) == 11
    assert pool.map(adder, [1, 2]) == [11, 12]


def draw(rng: random.Random, _: object) -> float:
    return rng.random()


def test_every_chunk_has_a_copy_of_a_callable_with_a_state() -> None:
    """Otherwise the results would depend on which process got which chunk."""
    with Pool(1) as pool:
        seeded = functools.partial(draw, random.Random(0))
        first = random.Random(0).random()
        assert pool.map(seeded, range(4), chunksize=1) == [first] * 4
        assert list(pool.imap(seeded, range(4))) == [first] * 4
        assert len(set(pool.map(seeded, range(4), chunksize=4))) == 4, "calls of one chunk share it, as they do there"


def test_a_function_of_a_script_keeps_its_globals_from_map_to_map(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""\
from skate.util import Executor
from skate.util.multiprocessing import Pool

calls = 0

def count(_):
    global calls
    calls += 1
    return calls

if __name__ == "__main__":
    with Pool(1) as pool:
        print(pool.map(count, "ab"), pool.map(count, "ab"), list(pool.imap(count, "ab")), pool.apply(count, "a"))
    with Executor(1) as executor:
        print(list(executor.map(count, "ab")), list(executor.map(count, "ab")), executor.submit(count, "a").result())
""")
    assert run_program(script)[0].splitlines() == ["[1, 2] [3, 4] [5, 6] 7", "[1, 2] [3, 4] 5"]


def test_all_processes_see_the_same_globals_of_a_script(tmp_path: Path) -> None:
    """Those of the moment when the function was first used, whatever each of them has run since then."""
    script = tmp_path / "script.py"
    script.write_text("""\
from skate.util.multiprocessing import Pool

scale = 2

def scaled(x):
    return scale * x

if __name__ == "__main__":
    with Pool(2) as pool:
        print(set(pool.map(scaled, [1] * 8, chunksize=1)))
        pool.apply(abs, (1,))  # one of them has another function now
        scale = 3
        print(set(pool.map(scaled, [1] * 8, chunksize=1)))
""")
    assert run_program(script)[0].splitlines() == ["{2}", "{2}"]


def test_what_cannot_be_called_is_an_error_also_after_another_function(pool: Pool) -> None:
    assert pool.map(square, [1, 2]) == [1, 4]
    none: Any = None
    for call in (lambda: pool.map(none, [3, 4]), lambda: pool.apply(none, (3,)), lambda: next(pool.imap(none, [3]))):
        with pytest.raises(TypeError, match="not callable"):
            call()


def test_functions_may_be_anything_that_can_be_called(pool: Pool) -> None:
    offset = 5
    assert pool.map(lambda x: x + offset, [1, 2]) == [6, 7]
    assert pool.map(functools.partial(multiply, 3), [1, 2]) == [3, 6]
    assert pool.map("-".join, [["a", "b"]]) == ["a-b"]


def test_two_functions_in_turn_are_not_mixed_up(pool: Pool) -> None:
    results = [pool.apply_async(square if i % 2 else abs, (-i,)) for i in range(20)]
    assert [result.get(WITHIN_S) for result in results] == [i * i if i % 2 else i for i in range(20)]


# --- when things go wrong ---------------------------------------------------------------------------------------------


def test_a_process_that_dies_fails_its_call_and_is_replaced() -> None:
    with Pool(1, initializer=remember, initargs=("c",)) as pool:
        with pytest.raises(ActorDiedError, match="exited with code 3"):
            pool.apply(os._exit, (3,))
        assert pool.apply(remembered) == ["c"]


def test_an_initializer_that_raises_fails_the_calls_with_its_error() -> None:
    with Pool(2, initializer=fail, initargs=("no start",)) as pool:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no start"):
                pool.map_async(square, range(4)).get(WITHIN_S)
    pool.join()


def test_an_initializer_that_raises_is_heard_of_even_if_nobody_calls(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(1, initializer=fail, initargs=("no start",))
    pool.close()
    pool.join()
    assert "no start" in caplog.text
    caplog.clear()  # the error there has references


def test_objects_of_a_manager_work_in_the_pool() -> None:
    with multiprocessing.Manager() as manager, Pool(2) as pool:
        shared = manager.dict()
        pool.starmap(shared.__setitem__, [(number, number * number) for number in range(4)])
        assert dict(shared) == {0: 0, 1: 1, 2: 4, 3: 9}


def test_a_pool_of_an_earlier_session_says_so() -> None:
    pool = Pool(1)
    assert pool.apply(square, (2,)) == 4
    skate.shutdown()
    with pytest.raises(NotInitializedError, match="make another one"):
        pool.apply(square, (2,))
    pool.terminate()
    pool.join()
    assert not skate.is_initialized()


def test_a_pool_whose_workers_still_start_at_a_shutdown_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(1, initializer=wait_for_file, initargs=(tmp_path / "never",))
    skate.shutdown()
    pool.close()
    pool.join()
    assert caplog.text == ""


ENDS_WITH_AN_OPEN_POOL = """
import itertools, sys, time
from skate.util import Executor
from skate.util.multiprocessing import Pool

def never():
    time.sleep(1000)

starting = Pool(1, initializer=never)
pool = Pool(2)
print(pool.map(abs, range(5)))
unfinished = pool.imap(abs, itertools.count())
print(next(unfinished))
executor = Executor(2)
print(list(executor.map(abs, range(5))))
"""


def test_a_program_may_end_without_closing_its_pools() -> None:
    out, err = run_program(ENDS_WITH_AN_OPEN_POOL)
    assert out.splitlines() == ["[0, 1, 2, 3, 4]", "0", "[0, 1, 2, 3, 4]"]
    assert err == ""


def test_a_shutdown_fails_what_still_runs(tmp_path: Path) -> None:
    pool = Pool(1)
    result = pool.apply_async(wait_for_file, (tmp_path / "never",))
    behind = pool.apply_async(square, (1,))
    skate.shutdown()
    for one in (result, behind):
        with pytest.raises(skate.exceptions.SkateError):
            one.get(WITHIN_S)
    pool.close()
    pool.join()


def test_a_pool_inside_a_task_needs_no_free_cpu() -> None:
    @skate.remote(num_cpus=2)
    def inner() -> list[int]:
        with Pool(2) as pool:
            return pool.map(square, range(4))

    assert skate.get(inner.remote(), timeout=2 * WITHIN_S) == [0, 1, 4, 9]


def test_many_threads_may_share_a_pool(pool: Pool) -> None:
    sums: list[int] = []
    threads = [
        threading.Thread(target=lambda: sums.append(sum(pool.map(square, range(50), chunksize=5)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert sums == [sum(i * i for i in range(50))] * 4
