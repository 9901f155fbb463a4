"""`serve.multiplexed`: which models are kept, who loads them, and what those who wait get."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.serve.multiplex import NO_LIMIT, Recent, loaded_models, multiplexed
from skate.serve.request_context import RequestContext, set_request

KEYS = st.sampled_from("abcde")


@given(
    most=st.sampled_from([NO_LIMIT, 1, 2, 3]),
    steps=st.lists(st.tuples(st.sampled_from(["use", "load"]), KEYS, st.integers(1, 3))),
)
def test_the_least_recently_used_values_make_room(most: int, steps: list[tuple[str, str, int]]) -> None:
    """Against a list of keys in the order of their use."""
    recent: Recent[str] = Recent(most)
    expected: list[str] = []
    for step, key, places in steps:
        if step == "use" and key in expected:
            assert recent.use(key) == key.upper()
            expected.append(expected.pop(expected.index(key)))
        elif step == "use":
            with pytest.raises(KeyError):
                recent.use(key)
        elif key not in expected:
            places = places if most == NO_LIMIT else min(places, most)
            recent.make_room(places)
            expected = expected if most == NO_LIMIT else expected[max(0, len(expected) + places - most) :]
            assert list(recent) == expected
            recent.add(key, key.upper())
            expected.append(key)
        assert list(recent) == expected
        assert len(recent) <= most or most == NO_LIMIT


@given(
    most=st.sampled_from([1, 2, 3]), steps=st.lists(st.tuples(st.sampled_from(["ask", "end", "fail", "leave"]), KEYS))
)
def test_no_more_models_than_allowed_are_loaded_or_being_loaded(most: int, steps: list[tuple[str, str]]) -> None:
    asyncio.run(_run_steps(most, steps))


async def _run_steps(most: int, steps: list[tuple[str, str]]) -> None:
    shelf = shelf_of(most)()
    asked: list[tuple[str, asyncio.Task[Any]]] = []
    for step, id in steps:
        if step == "ask":
            asked.append((id, asyncio.create_task(shelf.get_model(id))))
        elif step == "leave":
            for each, task in asked:
                if each == id:
                    task.cancel()
        elif id in shelf.gates:
            gate = shelf.gates[id]
            if not gate.done():
                gate.set_result(None) if step == "end" else gate.set_exception(ValueError(id))
        await settle()
        loading = [id for id, gate in shelf.gates.items() if not gate.done()]
        assert len(loading) + len(set(loaded_by(shelf))) <= most
        assert not set(loading) & set(loaded_by(shelf))
        for wanted, task in asked:
            if task.done() and not task.cancelled() and task.exception() is None:
                assert task.result().id == wanted
            if not task.done():
                assert loading, "a request waits although nothing is being loaded"
    while not all(task.done() for _, task in asked):
        for gate in shelf.gates.values():
            if not gate.done():
                gate.set_result(None)
        await settle()
    await asyncio.gather(*(task for _, task in asked), return_exceptions=True)


class Model:
    def __init__(self, id: str) -> None:
        self.id = id


def shelf_of(most: int) -> Any:
    """A class whose loads end when a test says so."""

    class Shelf:
        def __init__(self) -> None:
            #: The last load of each id.
            self.gates: dict[str, asyncio.Future[None]] = {}
            self.loads: Counter[str] = Counter()

        @multiplexed(max_num_models_per_replica=most)
        async def get_model(self, model_id: str) -> Model:
            self.loads[model_id] += 1
            gate = self.gates[model_id] = asyncio.get_running_loop().create_future()
            await gate
            return Model(model_id)

    return Shelf


def loaded_by(shelf: Any) -> list[str]:
    models = [each for name, each in vars(shelf).items() if name.startswith("__serve_multiplexed_")]
    return [id for each in models for id in each.loaded]


async def settle() -> None:
    """Let everything happen that needs no more than the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Run an asynchronous test on an event loop of its own."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class Names:
    """Loads at once."""

    def __init__(self) -> None:
        self.loads: list[str] = []

    @multiplexed(max_num_models_per_replica=2)
    async def get_model(self, model_id: str) -> Model:
        self.loads.append(model_id)
        return Model(model_id)


@on_loop
async def test_a_model_is_loaded_once_and_the_least_recently_used_one_is_forgotten() -> None:
    names = Names()
    a = await names.get_model("a")
    assert await names.get_model("a") is a
    await names.get_model("b")
    await names.get_model("a")
    await names.get_model("c")
    assert names.loads == ["a", "b", "c"]
    assert await names.get_model("a") is a
    await names.get_model("b")
    assert names.loads == ["a", "b", "c", "b"]


@on_loop
async def test_a_forgotten_model_is_freed_at_once_and_before_the_next_one_is_loaded() -> None:
    gc.disable()
    try:
        ended: list[str] = []

        class Ends(Model):
            def __del__(self) -> None:
                ended.append(self.id)

        class Shelf:
            @multiplexed(max_num_models_per_replica=1)
            async def get_model(self, model_id: str) -> Model:
                ended.append(f"load {model_id}")
                return Ends(model_id)

        shelf = Shelf()
        for id in "ab":
            await shelf.get_model(id)
        assert ended == ["load a", "a", "load b"]
        del shelf
        assert ended[-1] == "b"
    finally:
        gc.enable()


@on_loop
async def test_requests_for_one_model_wait_for_one_load() -> None:
    shelf = shelf_of(3)()
    asked = [asyncio.create_task(shelf.get_model("a")) for _ in range(5)]
    await settle()
    assert shelf.loads == {"a": 1}
    shelf.gates["a"].set_result(None)
    assert len({id(model) for model in await asyncio.gather(*asked)}) == 1


@on_loop
async def test_requests_for_loaded_models_do_not_wait_for_a_load() -> None:
    shelf = shelf_of(2)()
    first = asyncio.create_task(shelf.get_model("a"))
    await settle()
    shelf.gates["a"].set_result(None)
    model = await first
    slow = asyncio.create_task(shelf.get_model("b"))
    await settle()
    assert await shelf.get_model("a") is model
    assert not slow.done()
    shelf.gates["b"].set_result(None)
    await slow


@on_loop
async def test_a_load_that_fails_raises_in_all_who_wait_and_is_tried_again() -> None:
    shelf = shelf_of(1)()
    asked = [asyncio.create_task(shelf.get_model("a")) for _ in range(3)]
    await settle()
    shelf.gates["a"].set_exception(ValueError("no such file"))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(error) for error in errors] == ["no such file"] * 3
    assert loaded_by(shelf) == []
    again = asyncio.create_task(shelf.get_model("a"))
    await settle()
    shelf.gates["a"].set_result(None)
    assert (await again).id == "a"


@on_loop
async def test_a_cancelled_request_leaves_the_load_to_the_others() -> None:
    shelf = shelf_of(1)()
    leaves, stays = (asyncio.create_task(shelf.get_model("a")) for _ in range(2))
    await settle()
    leaves.cancel()
    await settle()
    assert leaves.cancelled()
    shelf.gates["a"].set_result(None)
    assert (await stays).id == "a"
    assert shelf.loads == {"a": 1}


@on_loop
async def test_an_error_that_no_request_waits_for_is_not_logged_by_asyncio() -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    shelf = shelf_of(1)()
    asked = asyncio.create_task(shelf.get_model("a"))
    await settle()
    asked.cancel()
    await settle()
    shelf.gates.pop("a").set_exception(ValueError("late"))
    await settle()
    gc.collect()
    assert problems == []


@on_loop
async def test_without_a_limit_all_models_are_kept_and_loaded_side_by_side() -> None:
    shelf = shelf_of(NO_LIMIT)()
    asked = [asyncio.create_task(shelf.get_model(str(i))) for i in range(50)]
    await settle()
    assert len(shelf.gates) == 50
    for gate in shelf.gates.values():
        gate.set_result(None)
    await asyncio.gather(*asked)
    assert len(loaded_by(shelf)) == 50


@on_loop
async def test_the_request_names_the_model_of_a_call_without_an_id() -> None:
    names = Names()
    set_request(RequestContext(model_id="named"))
    assert (await names.get_model()).id == "named"
    set_request(RequestContext())
    with pytest.raises(ValueError, match=r"(?s)the request names no model.*multiplexed_model_id"):
        await names.get_model()
    with pytest.raises(TypeError, match="the id of a model is a str, and not 3"):
        await names.get_model(3)
    with pytest.raises(TypeError, match="was called with 3 arguments"):
        await names.get_model("a", "b")
    assert (await names.get_model(model_id="by name")).id == "by name"


@on_loop
async def test_each_instance_and_each_overridden_method_has_models_of_its_own() -> None:
    class Child(Names):
        @multiplexed
        async def get_model(self, model_id: str) -> Any:
            return [await super().get_model(model_id)]

    one, other = Child(), Names()
    [inner] = await one.get_model("a")
    assert inner.id == "a"
    assert await other.get_model("a") is not inner
    assert [inner] == await one.get_model("a")


@on_loop
async def test_a_function_has_models_too() -> None:
    @multiplexed(max_num_models_per_replica=1)
    async def get_model(model_id: str) -> Model:
        return Model(model_id)

    model = await get_model("a")
    assert await get_model("a") is model
    assert await get_model("b") is not model
    assert await get_model("a") is not model


@on_loop
async def test_the_process_knows_which_models_it_has_loaded() -> None:
    gc.collect()
    assert not {"x1", "x2", "x3"} & set(loaded_models())
    names, others = Names(), Names()
    await names.get_model("x1")
    await others.get_model("x2")
    await others.get_model("x1")
    assert sorted({"x1", "x2", "x3"} & set(loaded_models())) == ["x1", "x2"]
    assert loaded_models() is loaded_models()
    await others.get_model("x3")
    assert sorted({"x1", "x2", "x3"} & set(loaded_models())) == ["x1", "x3"]
    gone = weakref.ref(others)
    del others
    assert gone() is None
    assert sorted({"x1", "x2", "x3"} & set(loaded_models())) == ["x1"]


@on_loop
async def test_a_class_travels_without_its_models() -> None:
    names = Names()
    await names.get_model("a")
    there = pickle.loads(cloudpickle.dumps(names))
    assert loaded_by(there) == []
    assert (await there.get_model("a")).id == "a"
    other = pickle.loads(cloudpickle.dumps(shelf_of(1)))()
    asked = asyncio.create_task(other.get_model("a"))
    await settle()
    other.gates["a"].set_result(None)
    assert (await asked).id == "a"


def test_what_cannot_be_meant_is_refused_with_advice() -> None:
    async def get_model(model_id: str) -> str:
        return model_id

    for wrong in (0, -2):
        with pytest.raises(ValueError, match=f"max_num_models_per_replica={wrong}.*\n  next: give a whole number"):
            multiplexed(max_num_models_per_replica=wrong)(get_model)
    for odd in ("3", 1.5, True):
        with pytest.raises(TypeError, match="is not a number of models"):
            multiplexed(max_num_models_per_replica=odd)(get_model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an `async def` function or method that loads a model"):
        multiplexed(lambda model_id: model_id)

    async def takes_nothing() -> None: ...

    with pytest.raises(TypeError, match=r"takes_nothing\(\).* cannot be called with the id of a model"):
        multiplexed(takes_nothing)

    class Slots:
        __slots__ = ()

        @multiplexed
        async def get_model(self, model_id: str) -> str:
            return model_id

    with pytest.raises(TypeError, match=r"Slots has __slots__.\n  next: add '__dict__'"):
        asyncio.run(Slots().get_model("a"))
