"""Actors: a class becomes a service. Creation, calls, results, errors, handles, and what the actor knows of itself."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import pickle
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from programs import append, lines
from skate.exceptions import GetTimeoutError, SerializationError, TaskError
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


def free_cpus() -> float:
    return skate.available_resources().get("CPU", 0)


@skate.remote
class Counter:
    """Counts; the docstring is kept."""

    step = 1

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def read(self) -> int:
        return self.value

    def pid(self) -> int:
        return os.getpid()


@skate.remote
class Keeper:
    """Keeps whatever it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def kept(self) -> Any:
        return self.args, self.kwargs


@skate.remote
class Echo:
    def same(self, value: Any) -> Any:
        return value

    def arguments(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def fail(self, error: BaseException) -> None:
        raise error

    def pair(self) -> tuple[int, str]:
        return 1, "two"

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)


@skate.remote
class Gate:
    """Something that can be kept busy until a file appears."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def hold(self, started: Path, go: Path) -> str:
        started.touch()
        wait_for(go.exists, 40, "the gate to open")
        return "held"

    def see(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def all_seen(self) -> list[Any]:
        return self.seen


@skate.remote
class Facts:
    """What an actor can ask about itself."""

    def __init__(self) -> None:
        self.when_made = self.facts()

    def facts(self) -> dict[str, Any]:
        context = skate.get_runtime_context()
        return {
            "actor": context.get_actor_id(),
            "name": context.get_actor_name(),
            "task": context.get_task_id(),
            "task name": context.get_task_name(),
            "job": context.get_job_id(),
            "node": context.get_node_id(),
            "worker": context.get_worker_id(),
            "restarted": context.was_current_actor_reconstructed,
            "resources": context.get_assigned_resources(),
            "namespace": context.namespace,
        }

    def facts_when_made(self) -> dict[str, Any]:
        return self.when_made

    def facts_of_a_task(self) -> Any:
        look = skate.remote(lambda: (skate.get_runtime_context().get_actor_id(), os.getpid()))
        return skate.get(look.remote())

    def myself(self) -> Any:
        return skate.get_runtime_context().current_actor


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any = None) -> Any:
    wait_for(gate.exists, 40, f"{gate.name} to open")
    return value


@skate.remote
def fail_early() -> None:
    raise ValueError("failed early")


# --- Creation ---------------------------------------------------------------------------------------------------------


def test_state_is_kept_between_calls() -> None:
    counter = Counter.remote()
    assert [value_of(counter.add.remote(amount)) for amount in (1, 10, 100)] == [1, 11, 111]
    assert value_of(counter.read.remote()) == 111


def test_two_actors_of_a_class_share_nothing() -> None:
    first, second = Counter.remote(), Counter.remote(100)
    skate.get([first.add.remote() for _ in range(5)])
    assert value_of(second.read.remote()) == 100
    assert value_of(first.read.remote()) == 5


def test_each_actor_has_a_process_of_its_own_and_keeps_it() -> None:
    counters = [Counter.remote() for _ in range(5)]
    pids = skate.get([counter.pid.remote() for counter in counters], timeout=WITHIN_S)
    assert len({*pids, os.getpid()}) == 6
    assert skate.get([counter.pid.remote() for counter in counters], timeout=WITHIN_S) == pids


def test_constructor_takes_values_by_position_and_by_name() -> None:
    assert value_of(Keeper.remote(1, "b", c=[3], d=None).kept.remote()) == ((1, "b"), {"c": [3], "d": None})


def test_constructor_gets_the_values_of_references() -> None:
    keeper = Keeper.remote(skate.put("by position"), name=Echo.remote().same.remote("by name"))
    assert value_of(keeper.kept.remote()) == (("by position",), {"name": "by name"})


def test_constructor_gets_a_reference_inside_a_value_as_a_reference() -> None:
    ((inner,), _) = value_of(Keeper.remote([skate.put(5)]).kept.remote())
    assert isinstance(inner[0], skate.ObjectRef)
    assert value_of(inner[0]) == 5


def test_constructor_gets_a_large_array() -> None:
    array = np.arange(500_000)
    ((kept,), _) = value_of(Keeper.remote(array).kept.remote())
    assert np.array_equal(kept, array)


def test_creation_and_calls_return_before_the_arguments_are_there(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    keeper = Keeper.remote(when.remote(gate, "late"))
    ref = keeper.kept.remote()
    assert skate.wait([ref], timeout=0) == ([], [ref])
    gate.touch()
    assert value_of(ref) == (("late",), {})


def test_the_constructor_runs_once_and_without_a_call(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote
    class Marked:
        def __init__(self) -> None:
            append(made, os.getpid())

        def pid(self) -> int:
            return os.getpid()

    marked = Marked.remote()
    wait_for(lambda: lines(made), WITHIN_S, "the constructor to run")
    pids = skate.get([marked.pid.remote() for _ in range(10)], timeout=WITHIN_S)
    assert {str(pid) for pid in pids} == set(lines(made))
    assert len(lines(made)) == 1


def test_a_class_without_constructor() -> None:
    assert value_of(Echo.remote().same.remote("x")) == "x"


def test_wrong_arguments_of_the_constructor_are_an_error_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"Counter"):
        Counter.remote(1, 2, 3)
    with pytest.raises(TypeError, match=r"begin"):
        Counter.remote(begin=1)


@pytest.mark.parametrize(
    "decorate",
    [skate.remote, skate.remote(num_cpus=0), skate.remote(max_restarts=1, max_concurrency=1)],
    ids=["plain", "num_cpus", "several"],
)
def test_a_class_can_be_made_remote_by_a_call(decorate: Callable[[type], Any]) -> None:
    class Plain:
        def __init__(self, x: int) -> None:
            self.x = x

        def read(self) -> int:
            return self.x

    assert value_of(decorate(Plain).remote(7).read.remote()) == 7
    assert Plain(8).read() == 8, "the class itself is as it was"


def test_a_class_is_not_made_remote_twice() -> None:
    with pytest.raises(TypeError, match="Counter"):
        skate.remote(Counter)


def test_the_class_may_use_what_surrounds_it() -> None:
    offset = 40

    @skate.remote
    class Local:
        def plus(self, x: int) -> int:
            return helper(x) + offset

    def helper(x: int) -> int:
        return x + 1

    assert value_of(Local.remote().plus.remote(1)) == 42


def test_types_of_classes_handles_and_methods() -> None:
    counter = Counter.remote()
    assert isinstance(Counter, skate.actor.ActorClass)
    assert isinstance(counter, skate.actor.ActorHandle)
    assert isinstance(counter.add, skate.actor.ActorMethod)
    assert isinstance(counter.add.remote(), skate.ObjectRef)


def test_name_and_docstring_of_the_class_are_kept() -> None:
    assert Counter.__name__ == "Counter"
    assert Counter.__module__ == __name__
    assert "Counts" in (Counter.__doc__ or "")


def test_a_handle_and_its_class_can_be_read_in_a_log() -> None:
    first, second = Counter.remote(), Counter.remote()
    assert "Counter" in repr(Counter)
    assert "Counter" in repr(first)
    assert repr(first) != repr(second)
    assert "add" in repr(first.add)


# --- Options ----------------------------------------------------------------------------------------------------------


def test_options_make_a_copy_and_leave_the_class_alone() -> None:
    named = Counter.options(name="by options")
    handle = named.remote(5)
    assert value_of(handle.read.remote()) == 5
    assert value_of(Counter.remote(6).read.remote()) == 6, "the class itself asks for no name"
    assert value_of(skate.get_actor("by options").read.remote()) == 5


def test_options_at_creation_win_over_those_of_the_decorator() -> None:
    @skate.remote(num_cpus=2)
    class Held:
        def resources(self) -> dict[str, float]:
            return skate.get_runtime_context().get_assigned_resources()

    assert value_of(Held.options(num_cpus=0.5).remote().resources.remote()).get("CPU") == 0.5


def test_options_can_be_chained() -> None:
    handle = Facts.options(num_cpus=1).options(name="chained").remote()
    facts = value_of(handle.facts.remote())
    assert (facts["name"], facts["resources"].get("CPU")) == ("chained", 1)


def test_environment_variables_of_an_actor() -> None:
    @skate.remote(runtime_env={"env_vars": {"ACTOR_COLOUR": "green"}})
    class Environment:
        def __init__(self) -> None:
            self.when_made = os.environ.get("ACTOR_COLOUR")

        def colours(self) -> Any:
            return self.when_made, os.environ.get("ACTOR_COLOUR")

    assert value_of(Environment.remote().colours.remote()) == ("green", "green")
    other = Environment.options(runtime_env={"env_vars": {"ACTOR_COLOUR": "red"}}).remote()
    assert value_of(other.colours.remote()) == ("red", "red")
    assert value_of(skate.remote(lambda: os.environ.get("ACTOR_COLOUR")).remote()) is None


BAD_OPTIONS: list[tuple[str, Any]] = [
    ("num_cpus", -1),
    ("num_cpus", "two"),
    ("num_gpus", -1),
    ("num_gpus", 1.5),
    ("resources", {"lamp": -1}),
    ("resources", ["lamp"]),
    ("memory", "much"),
    ("name", 5),
    ("name", ""),
    ("namespace", 5),
    ("namespace", ""),
    ("get_if_exists", "yes"),
    ("lifetime", "forever"),
    ("lifetime", 5),
    ("max_restarts", -2),
    ("max_restarts", 1.5),
    ("max_task_retries", -2),
    ("max_task_retries", "often"),
    ("max_concurrency", 0),
    ("max_concurrency", -1),
    ("max_concurrency", "many"),
    ("max_pending_calls", -2),
    ("max_pending_calls", "few"),
    ("concurrency_groups", 5),
    ("concurrency_groups", {"io": 0}),
    ("concurrency_groups", {"io": "two"}),
    ("runtime_env", {"env_vars": {"A": 1}}),
    ("runtime_env", "fast"),
    ("num_cpu", 1),
    ("max_retries", 1),
    ("num_returns", 2),
]


@pytest.mark.parametrize(("option", "value"), BAD_OPTIONS, ids=str)
def test_a_bad_option_is_an_error_that_names_it(option: str, value: Any) -> None:
    class Plain:
        pass

    with pytest.raises((TypeError, ValueError), match=option) as caught:
        skate.remote(**{option: value})(Plain)
    assert "of a task" not in str(caught.value)
    with pytest.raises((TypeError, ValueError), match=option):
        skate.remote(Plain).options(**{option: value})


def test_get_if_exists_needs_a_name() -> None:
    with pytest.raises(ValueError, match=r"get_if_exists[\s\S]*name|name[\s\S]*get_if_exists"):
        Counter.options(get_if_exists=True).remote()


@pytest.mark.parametrize("option", ["max_restarts", "lifetime", "max_concurrency", "get_if_exists"])
def test_an_option_of_actors_is_refused_for_a_task(option: str) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        skate.remote(**{option: 1})(lambda: None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_returns", -1),
        ("num_returns", "many"),
        ("max_task_retries", -2),
        ("concurrency_group", 5),
        ("num_cpus", 1),
        ("num_return", 2),
    ],
    ids=str,
)
def test_a_bad_option_of_a_method_is_an_error_that_names_it(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=option):

        @skate.remote
        class Decorated:
            @skate.method(**{option: value})
            def go(self) -> None: ...

    counter = Counter.remote()
    with pytest.raises((TypeError, ValueError), match=option):
        counter.add.options(**{option: value}).remote()


def test_a_method_may_be_decorated_without_options() -> None:
    @skate.remote
    class Bare:
        @skate.method
        def go(self, x: int) -> int:
            return 2 * x

        @skate.method()
        def pair(self) -> tuple[int, int]:
            return 1, 2

        @skate.method
        @staticmethod
        def static(x: int) -> int:
            return -x

        @skate.method
        def count(self, n: int) -> Iterator[int]:
            yield from range(n)

    bare = Bare.remote()
    assert value_of(bare.go.remote(4)) == 8
    assert value_of(bare.pair.remote()) == (1, 2)
    assert value_of(bare.static.remote(4)) == -4
    assert [value_of(ref) for ref in bare.count.remote(3)] == [0, 1, 2]


def test_options_of_a_method_are_given_by_keyword() -> None:
    with pytest.raises(TypeError, match=r"options by keyword: @skate.method\(num_returns=2\)"):
        skate.method(2)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="takes options by keyword"):
        skate.method(lambda self: None, num_returns=2)  # type: ignore[call-overload]


def test_options_arguments_and_keywords_in_one_call() -> None:
    """`_remote`, by which libraries call Ray."""
    counter = Counter._remote(args=[3], name="by _remote", num_cpus=0)
    assert skate.get_actor("by _remote") == counter
    assert value_of(counter.add._remote(args=(4,))) == 7
    assert value_of(counter.add._remote(kwargs={"amount": 5}, name="named")) == 12
    assert value_of(counter.read._remote()) == 12
    first, second = Echo.remote().pair._remote(num_returns=2)
    assert (value_of(first), value_of(second)) == (1, "two")
    assert value_of(Counter._remote(kwargs={"start": 9}).read.remote()) == 9
    assert value_of(Counter._remote().read.remote()) == 0

    @skate.remote
    def name_and_sum(a: int, b: int = 1) -> tuple[str | None, int]:
        return skate.get_runtime_context().get_task_name(), a + b

    assert value_of(name_and_sum._remote(args=[1], kwargs={"b": 4}, name="other", num_cpus=0)) == ("other", 5)
    assert value_of(name_and_sum._remote((2,)))[1] == 3
    with pytest.raises(ValueError, match="not an option of a task"):
        name_and_sum._remote((2,), max_restarts=1)
    with pytest.raises(TypeError, match="missing a required argument"):
        name_and_sum._remote()


def test_options_of_ray_without_effect_are_accepted() -> None:
    actor = Counter.options(_labels={"a": "b"}, fallback_strategy=[{"label_selector": {"a": "b"}}]).remote()
    assert value_of(actor.add.options(_labels={}, enable_task_events=False).remote()) == 1
    plain = skate.remote(_metadata={"a": 1}, _labels={"a": "b"}, object_store_memory=100)(lambda: 1)
    assert value_of(plain.options(_num_objects_per_yield=2).remote()) == 1


# --- Resources --------------------------------------------------------------------------------------------------------


def test_by_default_an_actor_holds_no_cpu_while_it_lives() -> None:
    counters = [Counter.remote() for _ in range(6)]
    skate.get([counter.read.remote() for counter in counters], timeout=WITHIN_S)
    wait_for(lambda: free_cpus() == 2, WITHIN_S, "both CPUs to be free")
    assert value_of(skate.remote(num_cpus=2)(lambda: "ran").remote()) == "ran"


@skate.remote
def occupy(folder: Path, me: int) -> int:
    """Keep a CPU until the file "go" appears."""
    (folder / f"occupied-{me}").touch()
    wait_for((folder / "go").exists, 40, "the CPU to be needed no longer")
    return me


def test_by_default_an_actor_starts_though_tasks_keep_all_cpus_busy(tmp_path: Path) -> None:
    busy = [occupy.remote(tmp_path, me) for me in range(2)]
    wait_for(lambda: len(list(tmp_path.glob("occupied-*"))) == 2, WITHIN_S, "both CPUs to be in use")
    assert value_of(Counter.remote(3).read.remote()) == 3
    assert value_of(Counter.options(num_cpus=0).remote(4).read.remote()) == 4
    with_cpu = Counter.options(num_cpus=1).remote().read.remote()
    assert skate.wait([with_cpu], timeout=0.3) == ([], [with_cpu]), "no CPU is free, and this one holds one"
    (tmp_path / "go").touch()
    assert value_of(with_cpu) == 0
    assert skate.get(busy, timeout=WITHIN_S) == [0, 1]


def test_by_default_an_actor_starts_though_actors_hold_all_cpus() -> None:
    greedy = Counter.options(num_cpus=2).remote()
    value_of(greedy.read.remote())
    assert value_of(Counter.remote(3).read.remote()) == 3
    assert free_cpus() == 0


def test_tasks_that_make_actors_and_poll_for_them_get_them() -> None:
    """They look with a timeout of 0, so they never give their CPUs to others."""

    @skate.remote
    def make_and_poll(value: int) -> int:
        counter = Counter.remote(value)
        ref = counter.read.remote()
        wait_for(lambda: skate.wait([ref], timeout=0)[0], WITHIN_S, "the actor to answer")
        return skate.get(ref)

    assert skate.get([make_and_poll.remote(value) for value in range(2)], timeout=2 * WITHIN_S) == [0, 1]


@pytest.mark.parametrize("amount", [0.5, 1, 2])
def test_cpus_that_are_asked_for_are_held_until_the_end(amount: float) -> None:
    counter = Counter.options(num_cpus=amount).remote()
    value_of(counter.read.remote())
    assert free_cpus() == 2 - amount
    skate.kill(counter)
    wait_for(lambda: free_cpus() == 2, WITHIN_S, "the CPUs to be free again")


def test_an_actor_waits_until_there_is_room() -> None:
    first = Counter.options(num_cpus=2).remote()
    value_of(first.read.remote())
    second = Counter.options(num_cpus=1).remote(7)
    ref = second.read.remote()
    assert skate.wait([ref], timeout=0.3) == ([], [ref])
    skate.kill(first)
    assert value_of(ref) == 7


def test_custom_resources_gpus_and_memory_are_held() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, num_gpus=2, resources={"lamp": 3})
    total = skate.available_resources()
    facts = Facts.options(resources={"lamp": 2}, num_gpus=1, memory=1000).remote()
    resources = value_of(facts.facts.remote())["resources"]
    assert (resources["lamp"], resources["GPU"], resources["memory"]) == (2, 1, 1000)
    left = skate.available_resources()
    assert (left["lamp"], left["GPU"]) == (1, 1)
    assert left["memory"] == total["memory"] - 1000
    skate.kill(facts)
    wait_for(lambda: skate.available_resources().get("lamp") == 3, WITHIN_S, "the lamps to be free again")


def test_an_actor_sees_the_gpus_that_it_was_given() -> None:
    skate.shutdown()
    skate.init(num_cpus=1, num_gpus=2)

    @skate.remote(num_gpus=1)
    class OnGpu:
        def seen(self) -> Any:
            return skate.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    first, second = OnGpu.remote(), OnGpu.remote()
    seen = skate.get([first.seen.remote(), second.seen.remote()], timeout=WITHIN_S)
    assert sorted(seen) == [([0], "0"), ([1], "1")]


def test_tasks_run_beside_actors() -> None:
    counters = [Counter.remote() for _ in range(4)]
    square = skate.remote(lambda x: x * x)
    tasks = [square.remote(x) for x in range(100)]
    calls = [counter.add.remote() for counter in counters for _ in range(25)]
    assert skate.get(tasks, timeout=WITHIN_S) == [x * x for x in range(100)]
    assert skate.get(calls, timeout=WITHIN_S) == list(range(1, 26)) * 4


# --- Calls ------------------------------------------------------------------------------------------------------------


def test_arguments_by_position_and_by_name() -> None:
    echo = Echo.remote()
    assert value_of(echo.arguments.remote(1, "b", c=[3])) == ((1, "b"), {"c": [3]})
    assert value_of(Counter.remote().add.remote(amount=4)) == 4


def test_references_become_values_unless_they_are_inside_a_value() -> None:
    echo = Echo.remote()
    ref = skate.put("stored")
    (args, kwargs) = value_of(echo.arguments.remote(ref, [ref], named=ref))
    assert args[0] == "stored"
    assert args[1] == [ref]
    assert kwargs == {"named": "stored"}


def test_a_result_is_passed_on_without_waiting_for_it() -> None:
    counter, echo = Counter.remote(), Echo.remote()
    plus_one = skate.remote(lambda x: x + 1)
    chained = plus_one.remote(echo.same.remote(counter.add.remote(5)))
    assert value_of(counter.add.remote(chained)) == 11


def test_large_arguments_and_results() -> None:
    echo = Echo.remote()
    array = np.arange(1_000_000)
    assert np.array_equal(value_of(echo.same.remote(array)), array)
    assert np.array_equal(value_of(echo.same.remote(skate.put(array))), array)


def test_a_method_that_returns_nothing_gives_none() -> None:
    @skate.remote
    class Silent:
        def do(self) -> None:
            self.done = True

    assert value_of(Silent.remote().do.remote()) is None


def test_a_method_kept_in_a_variable_and_called_later() -> None:
    counter = Counter.remote()
    add = counter.add
    ten = functools.partial(add.remote, 10)
    assert [value_of(add.remote()), value_of(ten()), value_of(add.remote())] == [1, 11, 12]


def test_the_actor_can_be_called_like_a_function() -> None:
    @skate.remote
    class Callable_:  # noqa: N801
        def __call__(self, x: int) -> int:
            return x + 1

    assert value_of(Callable_.remote().__call__.remote(1)) == 2


def test_wait_sorts_calls_by_what_is_ready(tmp_path: Path) -> None:
    busy, free = Gate.remote(), Gate.remote()
    held = busy.hold.remote(tmp_path / "started", tmp_path / "go")
    quick = free.see.remote(1)
    assert skate.wait([held, quick], timeout=WITHIN_S) == ([quick], [held])
    (tmp_path / "go").touch()
    assert value_of(held) == "held"


def test_get_with_a_timeout_names_the_method(tmp_path: Path) -> None:
    gate = Gate.remote()
    held = gate.hold.remote(tmp_path / "started", tmp_path / "go")
    wait_for((tmp_path / "started").exists, WITHIN_S, "the call to run")
    with pytest.raises(GetTimeoutError, match="hold"):
        skate.get(held, timeout=0.05)
    (tmp_path / "go").touch()
    assert value_of(held) == "held"


def test_as_completed_takes_calls() -> None:
    counters = [Counter.remote(start) for start in range(4)]
    refs = [counter.read.remote() for counter in counters]
    assert sorted(value_of(ref) for ref in skate.as_completed(refs)) == [0, 1, 2, 3]


def test_calls_from_threads_of_the_driver() -> None:
    counter = Counter.remote()

    def call() -> None:
        for _ in range(50):
            value_of(counter.add.remote())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_of(counter.read.remote()) == 200


# --- Order ------------------------------------------------------------------------------------------------------------


whether_it_is_made = pytest.mark.parametrize("made", [False, True], ids=["not yet made", "made"])


def new_gate(made: bool) -> Any:
    gate = Gate.remote()
    if made:
        value_of(gate.all_seen.remote())
    return gate


def test_calls_run_in_the_order_sent() -> None:
    counter = Counter.remote()
    assert skate.get([counter.add.remote() for _ in range(2000)], timeout=WITHIN_S) == list(range(1, 2001))


def test_calls_of_different_methods_run_in_the_order_sent() -> None:
    counter = Counter.remote()
    refs = [counter.add.remote() if number % 2 == 0 else counter.read.remote() for number in range(200)]
    assert skate.get(refs, timeout=WITHIN_S) == [number // 2 + 1 for number in range(200)]


def test_calls_sent_before_the_actor_is_made_run_in_order(tmp_path: Path) -> None:
    made = tmp_path / "made"
    counter = Counter.remote(when.remote(made, 0))
    refs = [counter.add.remote() for _ in range(100)]
    made.touch()
    assert skate.get(refs, timeout=WITHIN_S) == list(range(1, 101))


@whether_it_is_made
def test_a_call_whose_argument_is_late_holds_up_those_behind_it(tmp_path: Path, made: bool) -> None:
    go = tmp_path / "go"
    gate = new_gate(made)
    refs = [gate.see.remote("first"), gate.see.remote(when.remote(go, "late")), gate.see.remote("last")]
    assert value_of(refs[0]) == "first"
    assert skate.wait([refs[2]], timeout=0.1) == ([], [refs[2]])
    go.touch()
    assert value_of(gate.all_seen.remote()) == ["first", "late", "last"]


@whether_it_is_made
def test_large_and_small_arguments_keep_their_order(made: bool) -> None:
    gate = new_gate(made)
    sizes = [1, 300_000, 2, 3, 400_000, 4, 200_000, 5]
    for size in sizes:
        gate.see.remote(np.zeros(size, dtype=np.uint8))
    assert [len(value) for value in value_of(gate.all_seen.remote())] == sizes


def test_calls_through_copies_of_a_handle_keep_their_order() -> None:
    gate = Gate.remote()
    copies = [gate, value_of(skate.put(gate)), copy.copy(gate)]
    for number in range(300):
        copies[number % 3].see.remote(number)
    assert value_of(gate.all_seen.remote()) == list(range(300))


@whether_it_is_made
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind another"])
def test_a_call_whose_argument_failed_is_skipped_and_those_behind_it_run(made: bool, alone: bool) -> None:
    gate = new_gate(made)
    if not alone:
        gate.see.remote(1)
    failed = gate.see.remote(fail_early.remote())
    gate.see.remote(2)
    assert value_of(gate.all_seen.remote()) == ([2] if alone else [1, 2])
    with pytest.raises(ValueError, match="failed early"):
        value_of(failed)


# --- Several returns --------------------------------------------------------------------------------------------------


def test_several_returns_by_options() -> None:
    first, second = Echo.remote().pair.options(num_returns=2).remote()
    assert (value_of(first), value_of(second)) == (1, "two")


def test_without_the_option_a_tuple_is_one_value() -> None:
    assert value_of(Echo.remote().pair.remote()) == (1, "two")


def test_several_returns_by_decorator_and_overridden() -> None:
    @skate.remote
    class Twins:
        @skate.method(num_returns=2)
        def pair(self) -> tuple[int, int]:
            return 1, 2

    twins = Twins.remote()
    first, second = twins.pair.remote()
    assert (value_of(first), value_of(second)) == (1, 2)
    assert value_of(twins.pair.options(num_returns=1).remote()) == (1, 2)
    first, second = twins.pair.remote()
    assert (value_of(first), value_of(second)) == (1, 2), "options are for one call"


def test_no_return_at_all() -> None:
    counter = Counter.remote()
    assert counter.add.options(num_returns=0).remote(5) is None
    assert value_of(counter.read.remote()) == 5


def test_a_wrong_number_of_returns_is_an_error_for_each_of_them() -> None:
    echo = Echo.remote()
    for ref in echo.pair.options(num_returns=3).remote():
        with pytest.raises(TaskError, match=r"num_returns|3") as caught:
            value_of(ref)
        assert "execute.py" not in str(caught.value), "frames of Skate"
    assert value_of(echo.same.remote(1)) == 1


def test_options_of_a_call_may_name_it() -> None:
    facts = Facts.remote()
    assert value_of(facts.facts.options(name="other name").remote())["task name"] == "other name"


# --- Streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_returns": "streaming"}], ids=str)
def test_a_generator_method_streams(options: dict[str, Any]) -> None:
    stream = Echo.remote().count.options(**options).remote(50)
    assert isinstance(stream, skate.ObjectRefGenerator)
    assert [value_of(ref) for ref in stream] == list(range(50))


def test_a_method_streams_by_its_decorator() -> None:
    @skate.remote
    class Source:
        @skate.method(num_returns="streaming")
        def letters(self) -> Any:
            return iter("abc")

    assert [value_of(ref) for ref in Source.remote().letters.remote()] == ["a", "b", "c"]


def test_a_value_arrives_while_the_method_still_yields(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    class Source:
        def two(self) -> Iterator[str]:
            yield "early"
            wait_for(go.exists, 40, "the consumer to have the first value")
            yield "late"

    values = []
    for ref in Source.remote().two.remote():
        values.append(value_of(ref))
        go.touch()
    assert values == ["early", "late"]


def test_a_stream_sees_and_changes_the_state() -> None:
    @skate.remote
    class Source:
        total = 0

        def add_up(self, n: int) -> Iterator[int]:
            for number in range(n):
                self.total += number
                yield self.total

        def read(self) -> int:
            return self.total

    source = Source.remote()
    assert [value_of(ref) for ref in source.add_up.remote(4)] == [0, 1, 3, 6]
    assert value_of(source.read.remote()) == 6, "a call behind the stream runs after it"


def test_an_exception_in_a_stream_comes_after_the_values() -> None:
    @skate.remote
    class Source:
        def broken(self) -> Iterator[int]:
            yield 1
            raise ValueError("out of values")

    source = Source.remote()
    stream = source.broken.remote()
    assert value_of(next(stream)) == 1
    with pytest.raises(ValueError, match="out of values"):
        for ref in stream:
            value_of(ref)
    assert value_of(next(source.broken.remote())) == 1, "the actor lives on"


def test_a_stream_that_nobody_reads_ends_and_the_actor_goes_on(tmp_path: Path) -> None:
    ended = tmp_path / "ended"

    @skate.remote
    class Source:
        def forever(self) -> Iterator[int]:
            try:
                while True:
                    yield 1
            finally:
                ended.touch()

        def ping(self) -> str:
            return "pong"

    source = Source.remote()
    stream = source.forever.remote()
    assert value_of(next(stream)) == 1
    del stream
    wait_for(ended.exists, WITHIN_S, "the generator to be closed")
    assert value_of(source.ping.remote()) == "pong"


def test_large_values_stream() -> None:
    @skate.remote
    class Source:
        def blocks(self, n: int) -> Iterator[Any]:
            for number in range(n):
                yield np.full(200_000, number)

    assert [int(value_of(ref)[-1]) for ref in Source.remote().blocks.remote(10)] == list(range(10))


# --- Exceptions -------------------------------------------------------------------------------------------------------


class OwnError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def test_an_exception_arrives_as_its_own_class_and_as_task_error() -> None:
    with pytest.raises(ValueError, match="wrong") as caught:
        value_of(Echo.remote().fail.remote(ValueError("wrong")))
    error = caught.value
    assert isinstance(error, TaskError)
    assert not isinstance(error, skate.exceptions.ActorError)
    assert type(error.cause) is ValueError
    assert error.args == ("wrong",)


def test_an_exception_of_the_users_own_keeps_what_it_carries() -> None:
    with pytest.raises(OwnError) as caught:
        value_of(Echo.remote().fail.remote(OwnError(7)))
    assert caught.value.code == 7


def test_the_text_of_an_exception_is_the_traceback_in_the_actor() -> None:
    with pytest.raises(ValueError, match="deep inside") as caught:
        value_of(Echo.remote().fail.remote(ValueError("deep inside")))
    text = str(caught.value)
    assert "raise error" in text
    assert "in fail" in text
    assert "test_actors.py" in text


def test_the_actor_lives_on_after_an_exception() -> None:
    @skate.remote
    class Careless:
        def __init__(self) -> None:
            self.calls = 0

        def divide(self, x: int) -> float:
            self.calls += 1
            return 1 / x

        def count(self) -> int:
            return self.calls

    careless = Careless.remote()
    refs = [careless.divide.remote(x) for x in (1, 0, 2, 0, 4)]
    for ref, expected in zip(refs, (1, None, 0.5, None, 0.25)):
        if expected is None:
            with pytest.raises(ZeroDivisionError):
                value_of(ref)
        else:
            assert value_of(ref) == expected
    assert value_of(careless.count.remote()) == 5


def test_every_return_of_a_method_that_raises_is_the_error() -> None:
    for ref in Echo.remote().fail.options(num_returns=2).remote(KeyError("k")):
        with pytest.raises(KeyError):
            value_of(ref)


def test_an_error_passes_through_actors_and_tasks() -> None:
    @skate.remote
    class Front:
        def ask(self, echo: Any) -> Any:
            return skate.get(echo.fail.remote(OwnError(3)))

    ask = skate.remote(lambda front, echo: skate.get(front.ask.remote(echo)))
    with pytest.raises(OwnError) as caught:
        value_of(ask.remote(Front.remote(), Echo.remote()))
    assert caught.value.code == 3
    assert "ask" in str(caught.value)


def test_a_result_that_cannot_be_sent_is_an_error_and_the_actor_lives_on() -> None:
    @skate.remote
    class Locked:
        def lock(self) -> Any:
            return threading.Lock()

        def ping(self) -> str:
            return "pong"

    locked = Locked.remote()
    with pytest.raises(TypeError, match="lock"):
        value_of(locked.lock.remote())
    assert value_of(locked.ping.remote()) == "pong"


def test_an_argument_that_cannot_be_sent_is_an_error_at_the_call_and_nothing_is_lost() -> None:
    gate = Gate.remote()
    gate.see.remote(1)
    with pytest.raises(TypeError, match="lock"):
        gate.see.remote(threading.Lock())
    gate.see.remote(2)
    assert value_of(gate.all_seen.remote()) == [1, 2]


# --- Mistakes ---------------------------------------------------------------------------------------------------------


def test_calling_the_class_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"Counter\.remote\("):
        Counter()


def test_calling_a_method_says_what_to_do() -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError, match=r"add\.remote\("):
        counter.add()


def test_an_unknown_method_is_an_error_that_names_it_and_the_class() -> None:
    counter = Counter.remote()
    with pytest.raises(AttributeError, match=r"subtract") as caught:
        counter.subtract.remote()
    assert "Counter" in str(caught.value)
    assert not hasattr(counter, "subtract")


def test_wrong_arguments_of_a_method_are_an_error_at_the_call() -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError, match="add"):
        counter.add.remote(1, 2, 3)
    with pytest.raises(TypeError, match="amout"):
        counter.add.remote(amout=1)
    assert value_of(counter.add.remote()) == 1


def test_a_property_is_refused_with_an_advice_and_works_inside() -> None:
    @skate.remote
    class Circle:
        def __init__(self, radius: float) -> None:
            self._radius = radius

        @property
        def diameter(self) -> float:
            return 2 * self._radius

        def twice(self) -> float:
            return 2 * self.diameter

    circle = Circle.remote(2)
    assert value_of(circle.twice.remote()) == 8
    with pytest.raises(AttributeError, match=r"diameter[\s\S]*method[\s\S]*\.remote\("):
        circle.diameter  # noqa: B018


def test_a_cached_property_is_refused_as_a_property_is_and_works_inside() -> None:
    @skate.remote
    class Square:
        @functools.cached_property
        def area(self) -> list[int]:
            return [4]

        def grow(self) -> list[int]:
            self.area.append(1)
            return self.area

    square = Square.remote()
    assert [value_of(square.grow.remote()), value_of(square.grow.remote())] == [[4, 1], [4, 1, 1]]
    with pytest.raises(AttributeError, match=r"area[\s\S]*method[\s\S]*\.remote\("):
        square.area  # noqa: B018


def test_what_cannot_be_sent_with_a_class_is_named() -> None:
    @skate.remote
    class Guarded:
        guard = threading.Lock()

    with pytest.raises(SerializationError, match=r"the remote class Guarded[\s\S]*the attribute 'guard'"):
        Guarded.remote()


def test_a_method_can_be_sent_before_and_after_it_was_called() -> None:
    @skate.remote
    def call(method: Any, amount: int) -> Any:
        return skate.get(method.remote(amount), timeout=WITHIN_S)

    counter = Counter.remote()
    assert value_of(call.remote(counter.add, 1)) == 1
    assert value_of(counter.add.remote(1)) == 2
    assert value_of(call.remote(counter.add, 1)) == 3
    assert value_of(call.remote(counter.add.options(name="renamed"), 1)) == 4


def test_an_attribute_of_the_instance_is_not_to_be_had_from_outside() -> None:
    counter = Counter.remote()
    with pytest.raises(AttributeError, match="value"):
        counter.value  # noqa: B018


def test_what_a_handle_is_not() -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError):
        skate.get(counter)
    with pytest.raises(TypeError):
        skate.wait([counter])
    with pytest.raises((TypeError, AttributeError)):
        counter.remote()  # a class has remote, a handle has methods


# --- Classes of every kind --------------------------------------------------------------------------------------------


class Base:
    colour = "grey"

    def __init__(self, name: str) -> None:
        self.name = name

    def hello(self) -> str:
        return f"{self.name} is {self.colour}"

    def overridden(self) -> str:
        return "base"

    @classmethod
    def of_class(cls, suffix: str = "") -> str:
        return f"{cls.__name__} {cls.colour}{suffix}"

    @staticmethod
    def of_nobody(x: int) -> int:
        return x + 1

    @skate.method(num_returns=2)
    def both(self) -> tuple[str, str]:
        return self.name, self.colour


class Mixin:
    def mixed(self) -> str:
        return f"mixed into {type(self).__name__}"


@skate.remote
class Child(Mixin, Base):
    colour = "red"

    def __init__(self, name: str) -> None:
        super().__init__(name.title())

    def overridden(self) -> str:
        return "child of " + super().overridden()


def test_inherited_methods_work() -> None:
    child = Child.remote("ann")
    assert value_of(child.hello.remote()) == "Ann is red"
    assert value_of(child.overridden.remote()) == "child of base"
    assert value_of(child.mixed.remote()) == "mixed into Child"


def test_a_class_may_inherit_from_a_remote_class() -> None:
    class Twice(Counter):
        def add(self, amount: int = 1) -> int:
            return super().add(2 * amount)

    assert Twice(1).add(2) == 5, "it is a plain class"
    assert value_of(skate.remote(Twice).remote(1).add.remote(3)) == 7


def test_an_inherited_method_keeps_its_decorator() -> None:
    first, second = Child.remote("ann").both.remote()
    assert (value_of(first), value_of(second)) == ("Ann", "red")


def test_class_methods_through_the_handle() -> None:
    child = Child.remote("ann")
    assert value_of(child.of_class.remote()) == "Child red"
    assert value_of(child.of_class.remote(suffix="!")) == "Child red!"


def test_static_methods_through_the_handle() -> None:
    assert value_of(Child.remote("ann").of_nobody.remote(1)) == 2


def test_class_attributes_and_class_methods_on_the_class_itself() -> None:
    assert Child.colour == "red"
    assert Child.of_class() == "Child red"
    assert Child.of_nobody(1) == 2


def test_an_actor_sees_its_own_class_by_name() -> None:
    @skate.remote
    class Named:
        LIMIT = 5

        @classmethod
        def limit(cls) -> int:
            return cls.LIMIT

        def limits(self) -> tuple[int, int, int]:
            return Named.LIMIT, Named.limit(), self.limit()

    assert value_of(Named.remote().limits.remote()) == (5, 5, 5)


def test_an_abstract_base() -> None:
    class Shape(ABC):
        @abstractmethod
        def area(self) -> float: ...

        def twice(self) -> float:
            return 2 * self.area()

    @skate.remote
    class Square(Shape):
        def __init__(self, side: float) -> None:
            self.side = side

        def area(self) -> float:
            return self.side**2

    assert value_of(Square.remote(3).twice.remote()) == 18


def test_a_dataclass_and_a_class_with_slots() -> None:
    import dataclasses

    @skate.remote
    @dataclasses.dataclass
    class Point:
        x: int
        y: int = 0

        def total(self) -> int:
            return self.x + self.y

    @skate.remote
    class Slotted:
        __slots__ = ("x",)

        def __init__(self) -> None:
            self.x = 4

        def read(self) -> int:
            return self.x

    assert value_of(Point.remote(1, y=2).total.remote()) == 3
    assert value_of(Slotted.remote().read.remote()) == 4


def test_methods_with_a_leading_underscore_and_with_decorators() -> None:
    def doubled(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> int:
            return 2 * function(*args)

        return wrapper

    @skate.remote
    class Odd:
        def _private(self) -> str:
            return "seen"

        @doubled
        def plus_one(self, x: int) -> int:
            return x + 1

    odd = Odd.remote()
    assert value_of(odd._private.remote()) == "seen"
    assert value_of(odd.plus_one.remote(1)) == 4


def test_an_attribute_of_the_instance_does_not_hide_a_method_of_the_same_name() -> None:
    class Base:
        def count(self) -> str:
            return "inherited"

    @skate.remote
    class Stepper(Base):
        def __init__(self) -> None:
            self.step = 7
            self.count = self.kind = self.twice = None  # type: ignore[assignment]

        def step(self, by: int) -> tuple[str, int]:
            return "stepped", by

        @classmethod
        def kind(cls) -> str:
            return cls.__name__

        @staticmethod
        def twice(n: int) -> int:
            return 2 * n

        def read(self) -> Any:
            return self.step

    class AsyncStepper:
        def __init__(self) -> None:
            self.step = 7

        async def step(self, by: int) -> tuple[str, int]:
            return "stepped", by

    stepper = Stepper.remote()
    assert value_of(stepper.step.remote(2)) == ("stepped", 2)
    assert value_of(stepper.count.remote()) == "inherited"
    assert value_of(stepper.kind.remote()) == "Stepper"
    assert value_of(stepper.twice.remote(4)) == 8
    assert value_of(stepper.read.remote()) == 7
    assert value_of(skate.remote(AsyncStepper).remote().step.remote(3)) == ("stepped", 3)
    assert value_of(Stepper.options(max_concurrency=2).remote().step.remote(4)) == ("stepped", 4)


def test_methods_that_every_actor_has() -> None:
    counter = Counter.remote(5)
    assert value_of(counter.__ray_ready__.remote()) is True
    assert value_of(counter.__ray_call__.remote(lambda self, factor: self.value * factor, 3)) == 15


def test_private_threads_of_an_actor_may_use_skate() -> None:
    @skate.remote
    class WithThread:
        def __init__(self) -> None:
            self.found: list[Any] = []

        def look(self) -> list[Any]:
            double = skate.remote(lambda x: 2 * x)
            thread = threading.Thread(target=lambda: self.found.append(skate.get(double.remote(21))))
            thread.start()
            thread.join()
            return self.found

    assert value_of(WithThread.remote().look.remote()) == [42]


# --- Actors that create actors and tasks ------------------------------------------------------------------------------


@skate.remote
class Manager:
    """Makes counters and tasks of its own."""

    def __init__(self) -> None:
        self.counters = [Counter.remote(10 * number) for number in range(3)]

    def total(self) -> int:
        return sum(skate.get([counter.add.remote() for counter in self.counters]))

    def counter(self, number: int) -> Any:
        return self.counters[number]

    def squares(self, n: int) -> list[int]:
        square = skate.remote(lambda x: x * x)
        return skate.get([square.remote(x) for x in range(n)])

    def pending(self) -> Any:
        return [self.counters[0].add.remote(5)]


def test_an_actor_creates_actors() -> None:
    manager = Manager.remote()
    assert value_of(manager.total.remote()) == 33
    assert value_of(manager.total.remote()) == 36


def test_an_actor_runs_tasks() -> None:
    assert value_of(Manager.remote().squares.remote(20)) == [x * x for x in range(20)]


def test_an_actor_hands_out_the_handles_of_its_actors() -> None:
    manager = Manager.remote()
    counter = value_of(manager.counter.remote(1))
    assert value_of(counter.add.remote(5)) == 15
    assert value_of(manager.total.remote()) == 38


def test_an_actor_hands_out_references_of_its_calls() -> None:
    (ref,) = value_of(Manager.remote().pending.remote())
    assert value_of(ref) == 5


def test_actors_four_deep() -> None:
    @skate.remote
    class Nested:
        def __init__(self, depth: int) -> None:
            self.child = Nested.remote(depth - 1) if depth else None

        def depth(self) -> int:
            return 1 + skate.get(self.child.depth.remote()) if self.child is not None else 0

    assert value_of(Nested.remote(4).depth.remote()) == 4


def test_a_task_creates_an_actor_and_returns_it() -> None:
    make = skate.remote(lambda start: Counter.remote(start))
    counter = value_of(make.remote(3))
    assert value_of(counter.add.remote()) == 4
    assert value_of(counter.add.remote()) == 5


def test_a_task_uses_an_actor_for_itself() -> None:
    @skate.remote
    def use() -> list[int]:
        counter = Counter.remote()
        return skate.get([counter.add.remote() for _ in range(5)])

    assert skate.get([use.remote() for _ in range(4)], timeout=WITHIN_S) == [[1, 2, 3, 4, 5]] * 4


# --- Handles ----------------------------------------------------------------------------------------------------------


@skate.remote
def add_through(handle: Any, times: int = 1) -> list[int]:
    return skate.get([handle.add.remote() for _ in range(times)])


@skate.remote
def add_inside(box: dict[str, list[Any]]) -> int:
    return skate.get(box["handles"][0].add.remote())


def test_a_handle_passed_to_tasks_leads_to_the_same_actor() -> None:
    counter = Counter.remote()
    added = skate.get([add_through.remote(counter, 10) for _ in range(5)], timeout=WITHIN_S)
    assert sorted(number for part in added for number in part) == list(range(1, 51))
    assert all(part == sorted(part) for part in added), "each task sees its own calls in order"


def test_a_handle_inside_a_value() -> None:
    counter = Counter.remote()
    assert value_of(add_inside.remote({"handles": [counter]})) == 1
    assert value_of(counter.read.remote()) == 1


def test_a_handle_captured_by_a_function() -> None:
    counter = Counter.remote()
    add = skate.remote(lambda: skate.get(counter.add.remote()))
    assert sorted(skate.get([add.remote() for _ in range(3)], timeout=WITHIN_S)) == [1, 2, 3]


def test_a_handle_passed_to_an_actor_by_constructor_and_by_call() -> None:
    @skate.remote
    class User:
        def __init__(self, counter: Any) -> None:
            self.counter = counter

        def add(self) -> int:
            return skate.get(self.counter.add.remote())

        def add_to(self, counter: Any) -> int:
            return skate.get(counter.add.remote(10))

    counter = Counter.remote()
    user = User.remote(counter)
    assert value_of(user.add.remote()) == 1
    assert value_of(user.add_to.remote(counter)) == 11


def test_a_handle_stored_in_an_object() -> None:
    counter = Counter.remote()
    ref = skate.put({"counter": counter, "array": np.zeros(100_000)})
    stored = value_of(ref)["counter"]
    assert stored == counter
    assert value_of(stored.add.remote()) == 1
    look = skate.remote(lambda box: skate.get(box["counter"].add.remote()))
    assert value_of(look.remote(ref)) == 2


def test_a_handle_whose_actor_is_not_yet_made_can_be_passed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    counter = Counter.remote(when.remote(made, 100))
    ref = add_through.remote(counter)
    made.touch()
    assert value_of(ref) == [101]


def test_handles_are_compared_by_their_actor() -> None:
    first, second = Counter.remote(), Counter.remote()
    assert first == first
    assert first != second
    assert first != 5
    assert first is not None
    returned = value_of(Echo.remote().same.remote(first))
    assert returned == first
    assert returned != second


def test_handles_can_be_keys() -> None:
    first, second = Counter.remote(), Counter.remote()
    returned = value_of(Echo.remote().same.remote(first))
    assert hash(returned) == hash(first)
    assert {first: "first", second: "second"}[returned] == "first"
    assert len({first, second, returned}) == 2


@pytest.mark.parametrize(
    "duplicate",
    [lambda handle: pickle.loads(pickle.dumps(handle)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
@pytest.mark.usefixtures("fresh_runtime")
def test_a_copy_of_a_handle_leads_to_the_same_actor(duplicate: Callable[[Any], Any]) -> None:
    counter = Counter.remote()
    other = duplicate(counter)
    assert other == counter
    assert value_of(other.add.remote()) == 1
    assert value_of(counter.add.remote()) == 2


def test_a_handle_knows_the_signatures_and_decorators_wherever_it_is() -> None:
    @skate.remote
    def use(child: Any) -> Any:
        first, second = child.both.remote()
        with pytest.raises(TypeError, match="hello"):
            child.hello.remote(1, 2)
        with pytest.raises(AttributeError, match="nothing"):
            child.nothing.remote()
        return skate.get([first, second])

    assert value_of(use.remote(Child.remote("bob"))) == ["Bob", "red"]


def test_a_class_passed_to_a_task_makes_actors_there() -> None:
    @skate.remote
    def make(kind: Any, start: int) -> int:
        return skate.get(kind.remote(start).add.remote())

    assert value_of(make.remote(Counter, 4)) == 5
    assert value_of(make.remote(Counter.options(num_cpus=0), 5)) == 6


@pytest.mark.usefixtures("fresh_runtime")
def test_actors_may_know_each_other() -> None:
    @skate.remote
    class Player:
        def __init__(self) -> None:
            self.other: Any = None

        def meet(self, other: Any) -> None:
            self.other = other

        def play(self, rounds: int) -> Any:
            return self.other.play.remote(rounds - 1) if rounds else "over"

    ping, pong = Player.remote(), Player.remote()
    skate.get([ping.meet.remote(pong), pong.meet.remote(ping)], timeout=WITHIN_S)
    result = value_of(ping.play.remote(6))
    for _ in range(6):
        if isinstance(result, skate.ObjectRef):
            result = value_of(result)
    assert result == "over"


# --- What an actor knows of itself ------------------------------------------------------------------------------------


def test_the_id_of_an_actor_inside_and_outside() -> None:
    facts = Facts.remote()
    inside = value_of(facts.facts.remote())
    assert re.fullmatch(r"[0-9a-f]+", inside["actor"])
    assert inside["actor"] == facts._actor_id.hex()
    assert value_of(facts.facts_when_made.remote())["actor"] == inside["actor"], "in the constructor, too"
    assert skate.get_runtime_context().get_actor_id() is None, "the driver is none"


def test_ids_differ_between_actors() -> None:
    handles = [Facts.remote() for _ in range(4)]
    found = skate.get([handle.facts.remote() for handle in handles], timeout=WITHIN_S)
    assert len({facts["actor"] for facts in found}) == 4
    assert len({facts["worker"] for facts in found}) == 4


def test_the_name_of_an_actor() -> None:
    assert value_of(Facts.options(name="well known").remote().facts.remote())["name"] == "well known"
    assert not value_of(Facts.remote().facts.remote())["name"]


def test_job_and_node_are_those_of_the_driver() -> None:
    here = skate.get_runtime_context()
    there = value_of(Facts.remote().facts.remote())
    assert there["job"] == here.get_job_id()
    assert there["node"] == here.get_node_id()
    assert there["worker"] != here.get_worker_id()
    assert there["namespace"] == here.namespace


def test_each_call_is_a_task_with_an_id_and_a_name() -> None:
    facts = Facts.remote()
    refs = [facts.facts.remote() for _ in range(3)]
    found = skate.get(refs, timeout=WITHIN_S)
    assert [one["task"] for one in found] == [ref.task_id().hex() for ref in refs]
    assert len({one["task"] for one in found}) == 3
    assert all("facts" in one["task name"] for one in found)


def test_a_fresh_actor_was_not_restarted() -> None:
    assert value_of(Facts.remote().facts.remote())["restarted"] is False


def test_resources_as_the_actor_sees_them() -> None:
    assert value_of(Facts.options(num_cpus=1.5).remote().facts.remote())["resources"] == {"CPU": 1.5}
    assert not value_of(Facts.remote().facts.remote())["resources"].get("CPU")


def test_the_environment_of_an_actor_is_told() -> None:
    @skate.remote(runtime_env={"env_vars": {"OF_THE_ACTOR": "1"}})
    class Told:
        def here(self) -> str:
            return skate.get_runtime_context().get_runtime_env_string()

        def in_a_task(self) -> str:
            text: str = skate.get(skate.remote(lambda: skate.get_runtime_context().get_runtime_env_string()).remote())
            return text

    told = Told.remote()
    for text in skate.get([told.here.remote(), told.in_a_task.remote()], timeout=WITHIN_S):
        assert json.loads(text) == {"env_vars": {"OF_THE_ACTOR": "1"}}


def test_a_task_of_an_actor_is_in_no_actor() -> None:
    actor_id, pid = value_of(Facts.remote().facts_of_a_task.remote())
    assert actor_id is None
    assert pid != os.getpid()


def test_a_handle_to_oneself() -> None:
    facts = Facts.remote()
    assert value_of(facts.myself.remote()) == facts


def test_an_actor_sends_calls_to_itself() -> None:
    @skate.remote
    class Chain:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def go(self, n: int) -> None:
            self.seen.append(n)
            if n:
                skate.get_runtime_context().current_actor.go.remote(n - 1)

        def all_seen(self) -> list[int]:
            return self.seen

    chain = Chain.remote()
    value_of(chain.go.remote(5))
    wait_for(lambda: value_of(chain.all_seen.remote()) == [5, 4, 3, 2, 1, 0], WITHIN_S, "all its calls to have run")


def test_why_of_a_call_to_oneself() -> None:
    @skate.remote
    class Asking:
        def why(self) -> str:
            ref = skate.get_runtime_context().current_actor.pid.remote()
            return wait_for(lambda: "behind" in skate.why(ref) and skate.why(ref), WITHIN_S, "it to be there")

        def pid(self) -> int:
            return os.getpid()

    asking = Asking.remote()
    assert f"pid {value_of(asking.pid.remote())} behind Asking.why" in value_of(asking.why.remote())


def test_map_calls_the_method_for_each_item_in_order() -> None:
    counter = Counter.remote()
    assert list(skate.map(counter.add, range(5))) == [0, 1, 3, 6, 10]
    assert list(skate.map(counter.add, range(3000), max_in_flight=7))[-1] == 10 + sum(range(3000))

    @skate.remote
    def in_a_task(counter: Any) -> list[int]:
        return list(skate.map(counter.add, [0, 0]))

    assert len(value_of(in_a_task.remote(counter))) == 2
    numbers = skate.map(counter.add, itertools.count(), max_in_flight=3)
    next(numbers)
    sent = value_of(counter.read.remote())
    assert sent <= 10 + sum(range(3000)) + sum(range(4)), "an endless iterable is not run ahead of"


def test_an_actor_gives_its_handle_to_others() -> None:
    @skate.remote
    class Server:
        def __init__(self) -> None:
            self.met: list[int] = []

        def register(self) -> Any:
            return add_through_meet.remote(skate.get_runtime_context().current_actor)

        def meet(self, pid: int) -> None:
            self.met.append(pid)

        def all_met(self) -> list[int]:
            return self.met

    @skate.remote
    def add_through_meet(server: Any) -> int:
        skate.get(server.meet.remote(os.getpid()))
        return os.getpid()

    server = Server.remote()
    pid = value_of(value_of(server.register.remote()))
    assert value_of(server.all_met.remote()) == [pid]


def test_outside_an_actor_there_is_no_current_actor() -> None:
    with pytest.raises(RuntimeError, match=r"(?i)actor"):
        skate.get_runtime_context().current_actor  # noqa: B018

    @skate.remote
    def look() -> Any:
        return skate.get_runtime_context().current_actor

    with pytest.raises(RuntimeError, match=r"(?i)actor"):
        value_of(look.remote())


# --- Many -------------------------------------------------------------------------------------------------------------


def test_fifty_actors_answer_and_are_gone_together() -> None:
    counters = [Counter.remote(number) for number in range(50)]
    assert skate.get([counter.add.remote() for counter in counters], timeout=WITHIN_S) == list(range(1, 51))


def test_actors_made_one_after_the_other_leave_nothing_behind() -> None:
    for number in range(20):
        assert value_of(Counter.remote(number).add.remote()) == number + 1
    wait_for(lambda: free_cpus() == 2, WITHIN_S, "both CPUs to be free")


def test_a_program_starts_skate_by_making_an_actor() -> None:
    skate.shutdown()
    counter = Counter.remote(1)
    assert skate.is_initialized()
    assert value_of(counter.add.remote()) == 2


def test_a_handle_of_an_earlier_session_is_a_clear_error() -> None:
    counter = Counter.remote()
    value_of(counter.add.remote())
    skate.shutdown()
    skate.init(num_cpus=2)
    with pytest.raises((skate.exceptions.SkateError, RuntimeError, ValueError)):
        value_of(counter.add.remote())
    assert value_of(Counter.remote().add.remote()) == 1


def test_time_passes_only_where_it_must(tmp_path: Path) -> None:
    """Two actors work at the same time: each waits for the other's mark."""

    @skate.remote
    class Meeting:
        def meet(self, mine: Path, other: Path) -> str:
            mine.touch()
            deadline = time.monotonic() + WITHIN_S
            while not other.exists() and time.monotonic() < deadline:
                time.sleep(0.002)
            return "met" if other.exists() else "alone"

    a, b = tmp_path / "a", tmp_path / "b"
    refs = [Meeting.remote().meet.remote(a, b), Meeting.remote().meet.remote(b, a)]
    assert skate.get(refs, timeout=2 * WITHIN_S) == ["met", "met"]
