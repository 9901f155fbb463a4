"""ActorPool: work shared out among actors; and the helpers of `skate.util` that yield results as they come."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from skate import util
from skate.exceptions import ActorDiedError
from skate.util import ActorPool
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")

WITHIN_S = 20.0


class Worker:
    def double(self, value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is negative")
        return 2 * value

    def pair(self, value: int) -> tuple[int, int]:
        return value, 2 * value

    def pass_gate(self, gate: Any, value: int) -> int:
        if value == 0:
            skate.get(gate.wait.remote())
        elif value == 3:
            skate.get(gate.open.remote())
        return value

    def die_at(self, bad: int, value: int) -> int:
        if value == bad:
            os._exit(1)
        return value


class Gate:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self) -> str:
        await self.event.wait()
        return "passed"

    async def open(self) -> None:
        self.event.set()


def workers(count: int) -> list[Any]:
    return [skate.remote(Worker).remote() for _ in range(count)]


# --- the attributes that subclasses use -------------------------------------------------------------------------------


def test_the_attributes_tell_what_runs_and_what_waits() -> None:
    first, second = workers(2)
    pool = ActorPool([first, second])
    assert pool._idle_actors == [first, second]
    assert (pool._next_task_index, pool._next_return_index) == (0, 0)
    for value in range(3):
        pool.submit(double, value)
    assert pool._idle_actors == []
    assert list(pool._future_to_actor.values()) == [(0, first), (1, second)]
    assert list(pool._index_to_future) == [0, 1]
    assert [pool._future_to_actor[ref] for ref in pool._index_to_future.values()] == [(0, first), (1, second)]
    assert pool._pending_submits == [(double, 2)]
    assert pool._next_task_index == 2
    assert [pool.get_next() for _ in range(3)] == [0, 2, 4]
    assert (pool._next_task_index, pool._next_return_index) == (3, 3)
    assert not pool._future_to_actor
    assert not pool._index_to_future
    assert sorted(pool._idle_actors, key=hash) == sorted([first, second], key=hash)


def test_a_call_with_several_returns_is_known_by_all_of_them() -> None:
    (worker,) = workers(1)
    pool = ActorPool([worker])
    pool.submit(lambda actor, value: actor.pair.options(num_returns=2).remote(value), 4)
    ((key, running),) = pool._future_to_actor.items()
    assert running == (0, worker)
    assert list(key) == pool._index_to_future[0]
    assert pool.get_next() == [4, 8]


class PoolWithActors(ActorPool):
    """As subclasses in programs for Ray do it: a result with the actor that made it, by the attributes alone."""

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        (ref,), _ = skate.wait(list(self._future_to_actor), num_returns=1, timeout=timeout)
        index, actor = self._future_to_actor.pop(ref)
        del self._index_to_future[index]
        self._next_return_index = max(self._next_return_index, index + 1)
        self._return_actor(actor)
        return actor, skate.get(ref)


def test_a_subclass_may_fetch_by_the_attributes_and_mix_that_with_the_methods() -> None:
    actors = workers(2)
    pool = PoolWithActors(actors)
    for _ in range(2):
        results = list(pool.map_unordered(double, range(6)))
        assert sorted(value for _, value in results) == [0, 2, 4, 6, 8, 10]
        assert all(actor in actors for actor, _ in results)
        assert list(pool.map(double, range(6))) == [0, 2, 4, 6, 8, 10]
        for value in range(6):
            pool.submit(double, value)
        assert pool.get_next() == 0
        assert sorted(pool.get_next_unordered()[1] for _ in range(5)) == [2, 4, 6, 8, 10]
        assert not pool.has_next()
        assert len(pool._idle_actors) == 2


class Overrides:
    """Methods as programs for Ray write them: by the attributes alone."""

    _idle_actors: list[Any]
    _future_to_actor: dict[Any, tuple[int, Any]]
    _index_to_future: dict[int, Any]
    _next_task_index: int
    _next_return_index: int
    _pending_submits: list[tuple[Any, Any]]

    def submit(self, fn: Any, value: Any) -> None:
        if not self._idle_actors:
            self._pending_submits.append((fn, value))
            return
        actor = self._idle_actors.pop()
        ref = fn(actor, value)
        self._future_to_actor[ref] = (self._next_task_index, actor)
        self._index_to_future[self._next_task_index] = ref
        self._next_task_index += 1

    def has_next(self) -> bool:
        return bool(self._future_to_actor)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        ref = self._index_to_future[self._next_return_index]
        late = timeout is not None and not skate.wait([ref], timeout=timeout)[0]
        if late and not ignore_if_timedout:
            raise TimeoutError
        del self._index_to_future[self._next_return_index]
        self._next_return_index += 1
        _, actor = self._future_to_actor.pop(ref)
        self._return_actor(actor)
        if late:
            raise TimeoutError
        return skate.get(ref)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        ready, _ = skate.wait(list(self._future_to_actor), num_returns=1, timeout=timeout)
        if not ready and not ignore_if_timedout:
            raise TimeoutError
        ref = ready[0] if ready else next(iter(self._future_to_actor))
        index, actor = self._future_to_actor.pop(ref)
        del self._index_to_future[index]
        self._next_return_index = max(self._next_return_index, index + 1)
        self._return_actor(actor)
        if not ready:
            raise TimeoutError
        return skate.get(ref)

    def _return_actor(self, actor: Any) -> None:
        self._idle_actors.append(actor)
        if self._pending_submits:
            self.submit(*self._pending_submits.pop(0))

    def has_free(self) -> bool:
        return bool(self._idle_actors) and not self._pending_submits

    def pop_idle(self) -> Any:
        return self._idle_actors.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        if actor in self._idle_actors or actor in [busy for _, busy in self._future_to_actor.values()]:
            raise ValueError("it is in this pool")
        self._return_actor(actor)


METHODS = [name for name, member in vars(Overrides).items() if callable(member)]
MIXES = [[name] for name in METHODS] + [["submit", "get_next"], ["submit", "has_next", "_return_actor"], METHODS]


@pytest.mark.parametrize("overridden", MIXES, ids="+".join)
def test_a_subclass_may_override_any_methods_as_ray_has_them(overridden: list[str], tmp_path: Path) -> None:
    pool_class = type("Pool", (ActorPool,), {name: vars(Overrides)[name] for name in overridden})
    pool: ActorPool = pool_class(workers(2))
    assert list(pool.map(double, range(6))) == [0, 2, 4, 6, 8, 10]
    assert sorted(pool.map_unordered(double, range(6))) == [0, 2, 4, 6, 8, 10]
    assert len(pool._idle_actors) == 2
    # A map of which nothing was fetched, and whose calls still run, is replaced by the next.
    pool.map(lambda actor, folder: actor.__ray_call__.remote(wait_for_go, folder), [tmp_path] * 3)
    results = pool.map(double, range(6))
    (tmp_path / "go").touch()
    assert list(results) == [0, 2, 4, 6, 8, 10]
    assert not pool.has_next()
    wait_for(lambda: len(pool._idle_actors) == 2 or bool(pool._dropped), WITHIN_S, "the actors to be free")
    taken = pool.pop_idle()
    assert taken is not None
    pool.push(taken)
    with pytest.raises(ValueError, match="in this pool"):
        pool.push(taken)
    pool.submit(double, 7)
    assert pool.get_next_unordered() == 14


def test_an_actor_whose_result_was_collected_is_not_returned_twice(tmp_path: Path) -> None:
    first, second = workers(2)
    pool = PoolWithActors([first, second])
    pool.submit(lambda actor, folder: actor.__ray_call__.remote(wait_for_go, folder), tmp_path)
    pool.submit(double, 1)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=1)  # collects the second call, and waits for the first
    assert pool.get_next_unordered() == (second, 2)
    assert pool._idle_actors == [second]
    (tmp_path / "go").touch()
    assert pool.get_next_unordered() == (first, "gone")
    assert pool._idle_actors == [second, first]


def wait_for_go(_worker: Any, folder: Path) -> str:
    wait_for((folder / "go").exists, 40, "the first call to be let go")
    return "gone"


def test_a_reference_for_two_submissions_is_refused() -> None:
    pool = ActorPool(workers(2))
    ref = skate.put(1)
    pool.submit(lambda actor, value: ref, 0)
    with pytest.raises(ValueError, match="for two submissions"):
        pool.submit(lambda actor, value: ref, 1)
    assert pool.get_next() == 1
    assert len(pool._idle_actors) == 2


def gate() -> Any:
    return skate.remote(Gate).remote()


def double(actor: Any, value: int) -> Any:
    return actor.double.remote(value)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_map_gives_results_in_the_order_of_the_values() -> None:
    assert list(ActorPool(workers(2)).map(double, range(20))) == [2 * i for i in range(20)]


def test_map_unordered_gives_every_result_once() -> None:
    assert sorted(ActorPool(workers(2)).map_unordered(double, range(20))) == [2 * i for i in range(20)]


def test_a_pool_can_be_used_again() -> None:
    pool = ActorPool(workers(2))
    assert list(pool.map(double, [1])) == [2]
    assert list(pool.map(double, [])) == []
    assert list(pool.map_unordered(double, [3])) == [6]


def test_map_drops_results_that_nobody_fetched() -> None:
    pool = ActorPool(workers(1))
    for value in range(5):
        pool.submit(double, value)
    assert list(pool.map(double, [10, 11])) == [20, 22]
    assert not pool.has_next()


def test_one_slow_call_does_not_stop_the_other_actors() -> None:
    """The first call ends only when the last one runs, so the second actor has to make all the others meanwhile."""
    through = gate()
    pool = ActorPool(workers(2))
    results = pool.map(lambda actor, value: actor.pass_gate.remote(through, value), range(4))
    assert list(results) == [0, 1, 2, 3]


def test_unordered_results_do_not_wait_for_a_slow_one() -> None:
    through = gate()
    pool = ActorPool(workers(2))
    results = pool.map_unordered(lambda actor, value: actor.pass_gate.remote(through, value), [0, 1, 2])
    assert [next(results), next(results)] == [1, 2]
    skate.get(through.open.remote())
    assert list(results) == [0]


# --- one at a time ----------------------------------------------------------------------------------------------------


def test_results_are_fetched_in_the_order_of_submission() -> None:
    pool = ActorPool(workers(2))
    for value in range(4):
        pool.submit(double, value)
    assert [pool.get_next(timeout=WITHIN_S) for _ in range(4)] == [0, 2, 4, 6]
    assert not pool.has_next()


def test_ordered_and_unordered_fetching_may_be_mixed() -> None:
    pool = ActorPool(workers(1))
    for value in range(3):
        pool.submit(double, value)
    assert [pool.get_next_unordered(), pool.get_next(), pool.get_next_unordered()] == [0, 2, 4]


def test_nothing_to_fetch_is_a_stop_iteration() -> None:
    pool = ActorPool(workers(1))
    for fetch in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(StopIteration, match="no more results"):
            fetch()


@pytest.mark.parametrize("fetch", [ActorPool.get_next, ActorPool.get_next_unordered])
def test_after_a_timeout_the_result_can_still_be_fetched(fetch: Callable[..., Any]) -> None:
    through = gate()
    pool = ActorPool([through])
    pool.submit(lambda actor, _: actor.wait.remote(), None)
    with pytest.raises(TimeoutError, match="call again"):
        fetch(pool, timeout=0.01)
    skate.get(through.open.remote())
    assert fetch(pool, timeout=WITHIN_S) == "passed"


@pytest.mark.parametrize("fetch", [ActorPool.get_next, ActorPool.get_next_unordered])
def test_a_timeout_may_drop_the_submission(fetch: Callable[..., Any]) -> None:
    through = gate()
    pool = ActorPool([through])
    pool.submit(lambda actor, _: actor.wait.remote(), None)
    pool.submit(lambda actor, _: actor.open.remote(), None)
    with pytest.raises(TimeoutError, match="was dropped"):
        fetch(pool, timeout=0.01, ignore_if_timedout=True)
    skate.get(through.open.remote())
    assert fetch(pool, timeout=WITHIN_S) is None
    assert not pool.has_next()


def test_a_call_with_several_returns_gives_a_list() -> None:
    pool = ActorPool(workers(1))
    assert list(pool.map(lambda actor, value: actor.pair.options(num_returns=2).remote(value), [1, 2])) == [
        [1, 2],
        [2, 4],
    ]


# --- the actors -------------------------------------------------------------------------------------------------------


def test_actors_can_be_taken_out_and_put_back() -> None:
    first, second = workers(2)
    pool = ActorPool([first])
    pool.submit(double, 1)
    assert not pool.has_free()
    assert pool.pop_idle() is None
    with pytest.raises(ValueError, match="in this pool already"):
        pool.push(first)
    pool.push(second)
    assert pool.has_free()
    assert pool.pop_idle() == second
    assert pool.get_next() == 2
    assert pool.pop_idle() == first
    assert pool.pop_idle() is None


def test_an_actor_that_is_pushed_takes_waiting_work() -> None:
    through, worker = gate(), workers(1)[0]
    pool = ActorPool([through])
    pool.submit(lambda actor, _: actor.wait.remote(), None)
    pool.submit(double, 2)
    pool.push(worker)
    assert pool.get_next_unordered(timeout=WITHIN_S) == 4
    through.open.remote()
    assert pool.get_next_unordered(timeout=WITHIN_S) == "passed"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_of_a_call_does_not_lose_its_actor() -> None:
    pool = ActorPool(workers(1))
    for value in (1, -1, 3):
        pool.submit(double, value)
    assert pool.get_next() == 2
    with pytest.raises(ValueError, match="-1 is negative"):
        pool.get_next()
    assert pool.get_next() == 6
    assert pool.has_free()


def test_a_function_that_returns_no_reference_is_told_so() -> None:
    pool = ActorPool(workers(1))
    with pytest.raises(TypeError, match="must return a reference"):
        pool.submit(lambda actor, value: value, 1)
    assert list(pool.map(double, [1])) == [2]


def test_an_error_of_the_function_itself_comes_in_its_place() -> None:
    pool = ActorPool(workers(1))
    for value in (1, 0, 2):
        pool.submit(lambda actor, value: actor.double.remote(4 // value), value)
    assert pool.get_next() == 8
    with pytest.raises(ZeroDivisionError):
        pool.get_next()
    assert pool.get_next() == 4


def test_a_dead_actor_leaves_the_pool_and_the_others_go_on() -> None:
    pool = ActorPool(workers(2))
    for value in range(6):
        pool.submit(lambda actor, value: actor.die_at.remote(0, value), value)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=WITHIN_S)
    assert [pool.get_next(timeout=WITHIN_S) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_pool_whose_actors_are_all_dead_says_so() -> None:
    pool = ActorPool(workers(1))
    for value in range(2):
        pool.submit(lambda actor, value: actor.die_at.remote(0, value), value)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=WITHIN_S)
    with pytest.raises(ValueError, match="has no actor to run them"):
        pool.get_next(timeout=WITHIN_S)
    pool.push(workers(1)[0])
    assert pool.get_next(timeout=WITHIN_S) == 1


# --- skate.util itself ------------------------------------------------------------------------------------------------


@skate.remote
def square(value: int) -> int:
    return value * value


def test_as_completed_yields_values_or_references() -> None:
    refs = [square.remote(i) for i in range(5)]
    assert sorted(util.as_completed(refs)) == [0, 1, 4, 9, 16]
    assert set(util.as_completed(refs, yield_obj_refs=True)) == set(refs)


@skate.remote
def when(folder: Path, value: int) -> int:
    """The value, once there is a file of that name."""
    wait_for((folder / str(value)).exists, WITHIN_S, f"the file {value}")
    return value


@pytest.mark.parametrize("options", [{}, {"fetch_local": False}], ids=str)
def test_as_completed_waits_for_a_chunk_and_yields_it_in_the_order_of_the_references(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The example of Ray's documentation: tasks that take 10, 4, 6, 8 and 2 seconds, in chunks of two."""
    by_value = {value: when.options(num_cpus=0).remote(tmp_path, value) for value in (10, 4, 6, 8, 2)}
    results = util.as_completed(list(by_value.values()), chunk_size=2, **options)
    seen = []
    for pair in ((2, 4), (6, 8)):
        for value in pair:
            (tmp_path / str(value)).touch()
            assert skate.wait([by_value[value]], timeout=WITHIN_S)[0]
        seen += [next(results), next(results)]
    (tmp_path / "10").touch()
    assert [*seen, *results] == [4, 2, 6, 8, 10]


def test_as_completed_with_a_timeout_looks_again(tmp_path: Path) -> None:
    refs = [when.options(num_cpus=0).remote(tmp_path, value) for value in range(2)]
    (tmp_path / "1").touch()
    results = util.as_completed(refs, timeout=0.01)
    assert next(results) == 1  # a chunk of what is there after that time
    (tmp_path / "0").touch()
    assert list(results) == [0]


def test_as_completed_does_not_yield_before_a_chunk_is_ready(tmp_path: Path) -> None:
    refs = [when.options(num_cpus=0).remote(tmp_path, value) for value in range(3)]
    (tmp_path / "1").touch()
    skate.wait([refs[1]], timeout=WITHIN_S)
    got: list[int] = []
    consumer = threading.Thread(target=lambda: got.extend(util.as_completed(refs, chunk_size=2)), daemon=True)
    consumer.start()
    singles = util.as_completed(refs, chunk_size=1)
    assert next(singles) == 1
    assert got == []
    (tmp_path / "2").touch()
    (tmp_path / "0").touch()
    consumer.join(WITHIN_S)
    assert sorted(got) == [0, 1, 2]
    assert got.index(1) < 2  # it was in the first chunk


def test_as_completed_yields_what_came_before_an_error_in_its_chunk() -> None:
    @skate.remote
    def fail_at_2(value: int) -> int:
        if value == 2:
            raise ValueError("two")
        return value

    refs = [fail_at_2.remote(value) for value in range(4)]
    skate.wait(refs, num_returns=4, timeout=WITHIN_S)
    results = util.as_completed(refs)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_map_unordered_yields_in_chunks_when_enough_calls_are_in_flight() -> None:
    """The second example of Ray's documentation: at most two calls in flight, and chunks of one."""
    read = []

    def items() -> Iterator[int]:
        for value in (10, 4, 6, 8, 2):
            read.append(value)
            yield value

    results = util.map_unordered(fn=square, items=items(), backpressure_size=2, chunk_size=1)
    assert next(results) in (100, 16)
    assert read == [10, 4]
    assert len(list(results)) == 4
    assert read == [10, 4, 6, 8, 2]
    assert sorted(util.map_unordered(square, range(25), backpressure_size=7, chunk_size=3)) == [
        i * i for i in range(25)
    ]
    refs = list(util.map_unordered(square, range(3), yield_obj_refs=True, backpressure_size=None))
    assert sorted(skate.get(refs)) == [0, 1, 4]


@pytest.mark.parametrize("given", [{"chunk_size": 0}, {"num_returns": 2}], ids=str)
def test_wrong_options_of_the_helpers_are_errors_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="chunk_size"):
        util.as_completed([], **given)
    with pytest.raises(ValueError, match="chunk_size"):
        util.map_unordered(square, [], **given)


@pytest.mark.parametrize("backpressure_size", [None, 1, 3])
def test_map_unordered_yields_a_value_for_each_item(backpressure_size: int | None) -> None:
    values = util.map_unordered(square, range(10), backpressure_size=backpressure_size)
    assert sorted(values) == [i * i for i in range(10)]


def test_map_unordered_reads_no_further_ahead_than_it_is_told() -> None:
    read = []

    def endless() -> Iterator[int]:
        for i in range(1_000_000):
            read.append(i)
            yield i

    values = util.map_unordered(square, endless(), backpressure_size=4)
    next(values)
    next(values)
    assert len(read) <= 6


def test_map_unordered_works_with_methods_of_actors() -> None:
    worker = workers(1)[0]
    assert sorted(util.map_unordered(worker.double, range(3))) == [0, 2, 4]
    with pytest.raises(TypeError, match=r"skate\.remote"):
        util.map_unordered(abs, [1])


def test_the_address_of_this_node_is_an_address() -> None:
    import ipaddress

    assert ipaddress.ip_address(util.get_node_ip_address())


def test_the_address_of_this_node_is_the_one_that_it_is_registered_with() -> None:
    here = skate.get_runtime_context().get_node_id()
    (registered,) = [node["NodeManagerAddress"] for node in skate.nodes() if node["NodeID"] == here]
    assert util.get_node_ip_address() == registered
    assert skate.get(skate.remote(util.get_node_ip_address).remote()) == registered


def test_importing_the_package_loads_none_of_its_parts() -> None:
    code = "import sys, skate.util; print(*[name for name in sys.modules if name.startswith('skate.util.')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == []


def test_every_name_that_the_package_promises_is_there() -> None:
    for name in util.__all__:
        assert callable(getattr(util, name))
    with pytest.raises(AttributeError, match="no attribute 'Pool'"):
        util.Pool  # noqa: B018 - the look-up is the test


def test_a_reference_that_is_given_twice_is_an_error() -> None:
    ref = skate.put(1)
    with pytest.raises(ValueError, match="the same reference twice"):
        list(skate.util.as_completed([ref, ref]))
