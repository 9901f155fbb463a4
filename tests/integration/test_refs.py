"""References: what they are, where they may be, and that objects live exactly as long as any of them."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import pickle
import re
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import run_program
from skate._worker import current
from skate._worker import runtime as runtime_module
from skate._worker.runtime import DROPPED_MAX
from waiting import WITHIN_S, wait_for

FREED_WITHIN_S = 20.0

LARGE = 300_000


pytestmark = pytest.mark.usefixtures("runtime")


def objects_here() -> int:
    """Objects that this process owns or borrows."""
    statistics = current.get_runtime().statistics()
    return statistics["objects_owned"] + statistics["objects_borrowed"]


def store_bytes_used() -> float:
    return skate.cluster_resources()["object_store_memory"] - skate.available_resources()["object_store_memory"]


@skate.remote
def length(value: Any) -> int:
    return len(value)


@skate.remote
def make(size: int) -> bytes:
    return b"m" * size


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any) -> Any:
    wait_for(gate.exists, 40, "the gate to open")
    return value


def look_inside(value: Any) -> Any:
    """A structure with each reference replaced by the length of its object."""
    if isinstance(value, skate.ObjectRef):
        return len(skate.get(value))
    if isinstance(value, dict):
        return {key: look_inside(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [look_inside(each) for each in value]
    return value


@skate.remote
def look(value: Any) -> Any:
    return look_inside(value)


# --- what a reference is ----------------------------------------------------------------------------------------------


def test_references_are_equal_to_themselves_only() -> None:
    a, b = skate.put(1), skate.put(1)
    assert a == a
    assert a != b
    assert a != 1
    assert len({a, b, a}) == 2
    assert {a: "found"}[a] == "found"


def test_a_reference_is_typed_and_has_ids() -> None:
    ref = length.remote(b"")
    assert isinstance(ref, skate.ObjectRef)
    assert ref.hex() == ref.binary().hex()
    assert len(ref.binary()) >= 16
    assert ref.task_id()
    assert skate.ObjectRef[int]  # may be written in annotations


def test_a_reference_by_id_counts_like_any_other() -> None:
    ref = skate.put([1, 2])
    same = skate.ObjectRef.from_hex(ref.hex())
    del ref
    gc.collect()
    skate.get(skate.put(0))
    assert skate.get(same) == [1, 2]
    assert same.job_id().hex() == skate.get_runtime_context().get_job_id()
    assert same.owner_address().hex() == skate.get_runtime_context().get_worker_id()


def test_a_reference_to_an_unknown_id_takes_nothing_from_one_that_arrives_later() -> None:
    """It is not counted, so its end must not be counted either."""
    known = skate.put("value")
    id = known.binary()[:-1] + b"\0"
    unknown = skate.ObjectRef.from_binary(id)
    runtime = current.get_runtime()
    with runtime.lock:
        arrived = runtime.table.adopt(id, b"")
    del unknown
    gc.collect()
    with runtime.lock:
        runtime._housekeeping()
        assert arrived.refs == 1
        runtime.table.drop([id])


def test_a_reference_to_nothing_is_lost_and_not_waited_for() -> None:
    nothing = skate.ObjectRef.from_random()
    with pytest.raises(skate.exceptions.ObjectLostError, match="made by hand"):
        skate.get(nothing)
    assert skate.wait([nothing], timeout=0) == ([nothing], [])
    assert skate.get(skate.put([nothing])) == [nothing]
    for argument in (nothing, [nothing]):
        with pytest.raises(skate.exceptions.ObjectLostError, match="made by hand"):
            skate.get(look.remote(argument), timeout=20)


def test_the_nil_reference_as_an_argument_is_an_error_at_the_call() -> None:
    nil = skate.ObjectRef.nil()
    for call in (lambda: look.remote(nil), lambda: length.remote(nil), lambda: length.options(name="x").remote(nil)):
        with pytest.raises(ValueError, match=r"\.remote\(\): the argument '\w+' is ObjectRef.nil\(\), which"):
            call()
    many = skate.remote(lambda *args, **keywords: None)
    with pytest.raises(ValueError, match="the argument at position 2 is ObjectRef"):
        many.remote(1, nil)
    with pytest.raises(ValueError, match="the argument 'key' is ObjectRef"):
        many.remote(1, key=nil)


def test_the_value_of_the_nil_reference_is_a_value_error_wherever_it_is_asked_for() -> None:
    nil = skate.ObjectRef.nil()
    for ask in (lambda: skate.get(nil), lambda: skate.get([skate.put(1), nil]), lambda: nil.future().result(20)):
        with pytest.raises(ValueError, match=r"ObjectRef.nil\(\), which stands for no object"):
            ask()
    assert skate.wait([nil], timeout=0) == ([nil], [])
    assert skate.why(nil) == "It is ObjectRef.nil(), which stands for no object."
    is_nil = skate.remote(lambda refs: (refs[0].is_nil(), refs == [skate.ObjectRef.nil()], refs))
    assert skate.get(is_nil.remote([nil])) == (True, True, [nil])
    with pytest.raises(ValueError, match=r"ObjectRef.nil\(\), which stands for no object"):
        skate.get(look.remote([nil]))


def test_as_future_is_a_future_of_the_event_loop() -> None:
    import asyncio

    async def main() -> int:
        future = length.remote(b"abc").as_future()
        assert isinstance(future, asyncio.Future)
        return await future

    assert asyncio.run(main()) == 3


def test_the_repr_of_a_reference_is_short() -> None:
    text = repr(skate.put(1))
    assert re.fullmatch(r"ObjectRef\(\S+\)", text)
    assert len(text) < 40


def test_a_reference_can_be_pickled() -> None:
    """By hand, nobody can know how often it will be loaded: the object stays until shutdown."""
    ref = skate.put("value")
    data = pickle.dumps(ref)
    copy = pickle.loads(data)
    assert copy == ref
    assert hash(copy) == hash(ref)
    del ref, copy
    gc.collect()
    assert skate.get(pickle.loads(data)) == "value"
    skate.shutdown()


def test_a_reference_is_neither_iterable_nor_changeable() -> None:
    ref = skate.put([1])
    with pytest.raises(TypeError):
        iter(ref)  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        ref.anything = 1


# --- as arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, LARGE])
def test_as_argument_a_reference_becomes_its_value(size: int) -> None:
    assert skate.get(length.remote(skate.put(b"x" * size))) == size
    assert skate.get(length.remote(value=skate.put(b"x" * size))) == size
    assert skate.get(length.remote(make.remote(size))) == size
    assert skate.get(length.remote(value=make.remote(size))) == size


def test_the_same_reference_twice_in_a_call() -> None:
    same = skate.remote(lambda a, b, c: (a == b == c, len(a)))
    ref = make.remote(LARGE)
    assert skate.get(same.remote(ref, ref, c=ref)) == (True, LARGE)


def test_a_task_waits_for_its_arguments(tmp_path: Path) -> None:
    pending = when.remote(tmp_path / "gate", "value")
    ref = length.remote(pending)
    assert skate.wait([ref], timeout=0) == ([], [ref])
    (tmp_path / "gate").touch()
    assert skate.get(ref) == 5


def test_tasks_that_wait_for_arguments_hold_no_cpu(tmp_path: Path) -> None:
    pending = when.remote(tmp_path / "gate", b"")
    waiting = [length.remote(pending) for _ in range(10)]
    skate.get(skate.remote((tmp_path / "gate").touch).remote())
    assert skate.get(waiting) == [0] * 10


@dataclass
class Box:
    content: Any


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


@pytest.mark.parametrize("size", [10, LARGE])
def test_nested_references_stay_references(size: int) -> None:
    ref = make.remote(size)
    assert skate.get(look.remote([ref])) == [size]
    assert skate.get(look.remote({"a": ref, "b": [ref, (ref,)]})) == {"a": size, "b": [size, [size]]}
    assert skate.get(look.remote(value={"a": [[[ref]]]})) == {"a": [[[size]]]}
    assert skate.get(look.remote({ref})) == [size]


@pytest.mark.parametrize("box", [Box, Slotted])
def test_references_in_instances(box: Any) -> None:
    opened = skate.remote(lambda box: len(skate.get(box.content)))
    assert skate.get(opened.remote(box(make.remote(LARGE)))) == LARGE


def test_a_reference_in_a_structure_with_a_cycle() -> None:
    structure: dict[str, Any] = {"ref": skate.put(b"x" * LARGE)}
    structure["self"] = structure
    check = skate.remote(lambda s: (s["self"] is s, len(skate.get(s["ref"]))))
    assert skate.get(check.remote(structure)) == (True, LARGE)
    structure.clear()


def test_a_reference_dropped_after_the_call_still_arrives() -> None:
    for nested in (False, True):
        ref = skate.put(b"x" * LARGE)
        result = look.remote([ref]) if nested else length.remote(ref)
        del ref
        assert skate.get(result) == ([LARGE] if nested else LARGE)


def test_a_nested_reference_keeps_its_object_while_the_task_waits(tmp_path: Path) -> None:
    """Nobody but the waiting call holds the reference; the object must still be there in the end."""
    pending = when.remote(tmp_path / "gate", None)
    check = skate.remote(lambda _, refs: [len(skate.get(ref)) for ref in refs])
    ref = skate.put(b"x" * LARGE)
    result = check.remote(pending, [ref])
    del ref
    gc.collect()
    (tmp_path / "gate").touch()
    assert skate.get(result) == [LARGE]


def test_many_references_in_one_argument() -> None:
    refs = [skate.put(bytes(i)) for i in range(500)]
    assert skate.get(look.remote(refs)) == list(range(500))


def test_a_pending_reference_can_be_passed_nested(tmp_path: Path) -> None:
    pending = when.remote(tmp_path / "gate", b"1234")
    result = look.remote([pending])
    (tmp_path / "gate").touch()
    assert skate.get(result) == [4]


# --- as results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_task_may_return_a_reference_that_it_made(size: int) -> None:
    by_put = skate.remote(lambda: skate.put(b"p" * size))
    by_task = skate.remote(lambda: make.remote(size))
    for maker in (by_put, by_task):
        inner = skate.get(maker.remote())
        assert isinstance(inner, skate.ObjectRef)
        assert len(skate.get(inner)) == size


def test_a_task_may_return_a_reference_that_it_was_given() -> None:
    ref = skate.put(b"x" * LARGE)
    back = skate.get(skate.remote(lambda refs: refs[0]).remote([ref]))
    assert back == ref
    del ref
    assert len(skate.get(back)) == LARGE


def test_a_task_may_return_many_references() -> None:
    @skate.remote
    def many() -> dict[str, Any]:
        return {"puts": [skate.put(bytes(i)) for i in range(20)], "tasks": [make.remote(i) for i in range(20)]}

    refs = skate.get(many.remote())
    assert [len(each) for each in skate.get(refs["puts"])] == list(range(20))
    assert [len(each) for each in skate.get(refs["tasks"])] == list(range(20))


def test_a_returned_reference_can_be_used_without_looking_at_it() -> None:
    """The outer object is passed on by reference; whoever gets it finds the inner one alive."""
    outer = skate.remote(lambda: [skate.put(b"x" * LARGE)]).remote()
    assert skate.get(look.remote(outer)) == [LARGE]


def test_a_returned_reference_lives_after_its_maker_died() -> None:
    """The worker that made it is replaced after the call; what it owns belongs to whoever has the reference."""
    maker = skate.remote(max_calls=1)(lambda: [make.remote(LARGE)])
    inner = skate.get(maker.remote())[0]
    assert len(skate.get(inner)) == LARGE


def test_a_reference_through_three_processes() -> None:
    @skate.remote
    def deep(level: int, refs: list[Any]) -> Any:
        if level == 0:
            return [*refs, skate.put(b"d" * LARGE)]
        return skate.get(deep.remote(level - 1, refs))

    ref = skate.put(b"t" * LARGE)
    top, bottom = skate.get(deep.remote(3, [ref]))
    assert top == ref
    assert [len(each) for each in skate.get([top, bottom])] == [LARGE, LARGE]


def test_references_of_references() -> None:
    ref: Any = skate.put(b"x" * LARGE)
    for _ in range(5):
        ref = skate.put([ref])
    for _ in range(5):
        ref = skate.get(ref)[0]
    assert len(skate.get(ref)) == LARGE


def test_a_reference_to_a_failed_task_can_be_passed_and_returned() -> None:
    failed = skate.remote(lambda: 1 / 0).remote()
    back = skate.get(skate.remote(lambda refs: refs).remote([failed]))
    with pytest.raises(ZeroDivisionError):
        skate.get(back[0])


# --- in objects, closures, classes and globals ------------------------------------------------------------------------


def test_a_reference_inside_an_object_keeps_the_inner_object() -> None:
    inner = skate.put(b"x" * LARGE)
    outer = skate.put({"inner": inner})
    del inner
    gc.collect()
    assert len(skate.get(skate.get(outer)["inner"])) == LARGE
    assert skate.get(look.remote(outer)) == {"inner": LARGE}


def test_dropping_the_outer_object_frees_the_inner_one() -> None:
    before = objects_here()
    outer = skate.put([skate.put([skate.put(b"x" * LARGE)])])
    assert objects_here() == before + 3
    assert store_bytes_used() >= LARGE
    del outer
    wait_for(lambda: objects_here() == before, FREED_WITHIN_S, "all three to be freed")


def test_a_reference_captured_in_a_closure() -> None:
    ref = skate.put(b"x" * LARGE)
    captured = skate.remote(lambda: len(skate.get(ref)))
    assert skate.get([captured.remote() for _ in range(3)]) == [LARGE] * 3


def test_a_reference_captured_in_a_closure_is_kept_by_the_function() -> None:
    def build() -> Any:
        ref = skate.put(b"x" * LARGE)
        return skate.remote(lambda: len(skate.get(ref)))

    captured = build()
    gc.collect()
    assert skate.get(captured.remote()) == LARGE
    gc.collect()
    assert skate.get(captured.remote()) == LARGE


def test_a_reference_as_a_default_argument() -> None:
    ref = skate.put(b"x" * LARGE)

    def with_default(data: Any = ref) -> int:
        return len(skate.get(data))

    assert skate.get(skate.remote(with_default).remote()) == LARGE


def test_a_reference_stored_on_a_class() -> None:
    class Settings:
        table = skate.put(b"x" * LARGE)

        def size(self) -> int:
            return len(skate.get(self.table))

    assert skate.get(skate.remote(Settings().size).remote()) == LARGE
    assert skate.get(skate.remote(lambda: Settings().size()).remote()) == LARGE


def test_a_reference_stored_in_a_worker_outlives_its_task() -> None:
    """A worker keeps it in a module; a later task there uses it after the driver let go."""

    @skate.remote
    def keep(refs: list[Any]) -> None:
        import builtins

        builtins.kept_by_test = refs[0]  # type: ignore[attr-defined]

    @skate.remote
    def use() -> int | None:
        import builtins

        kept = getattr(builtins, "kept_by_test", None)
        return None if kept is None else len(skate.get(kept))

    @skate.remote
    def forget() -> bool:
        import builtins

        return builtins.__dict__.pop("kept_by_test", None) is not None

    ref = skate.put(b"x" * LARGE)
    skate.get(keep.remote([ref]))
    del ref
    gc.collect()
    assert objects_here() >= 1, "the worker still has it"
    found = wait_for(lambda: skate.get(use.remote()), 30, "a task to run in the worker that keeps the reference")
    assert found == LARGE
    wait_for(lambda: skate.get(forget.remote()), 30, "a task to run in the worker that keeps the reference")


def test_a_reference_in_an_exception() -> None:
    class Partial(Exception):
        def __init__(self, text: str, refs: list[Any]) -> None:
            super().__init__(text, refs)
            self.refs = refs

    @skate.remote
    def fail() -> None:
        raise Partial("half", [skate.put(b"x" * LARGE)])

    with pytest.raises(Partial) as caught:
        skate.get(fail.remote())
    assert len(skate.get(caught.value.refs[0])) == LARGE
    del caught


# --- freeing ----------------------------------------------------------------------------------------------------------


def test_an_object_is_freed_with_its_last_reference() -> None:
    first = skate.put(b"x" * 3_000_000)
    (second,) = skate.get(skate.remote(lambda refs: refs).remote([first]))
    used = store_bytes_used()
    assert used >= 3_000_000
    del first
    gc.collect()
    assert len(skate.get(second)) == 3_000_000
    del second
    wait_for(lambda: store_bytes_used() < 3_000_000, FREED_WITHIN_S, "the object to be freed")


def test_results_nobody_wants_are_freed(tmp_path: Path) -> None:
    """The reference is dropped before the task has run; the task runs, and its result goes at once."""
    mark = tmp_path / "ran"
    run = skate.remote(lambda: mark.touch() or b"x" * LARGE)
    run.remote()
    wait_for(mark.exists, 30, "the task to run")


def test_a_value_outlives_its_reference() -> None:
    """The memory under a zero-copy value is not given to others while the value is used."""
    numpy = pytest.importorskip("numpy")
    array = skate.get(skate.put(numpy.full(500_000, 7)))
    gc.collect()
    for i in range(30):
        skate.get(skate.put(numpy.full(500_000, i)))
    assert (array == 7).all()
    del array


def test_a_slice_keeps_the_memory_of_a_whole_array() -> None:
    numpy = pytest.importorskip("numpy")
    part = skate.get(skate.put(numpy.full(500_000, 7)))[10:20]
    gc.collect()
    for i in range(30):
        skate.get(skate.put(numpy.full(500_000, i)))
    assert list(part) == [7] * 10
    del part


def test_many_objects_come_and_go() -> None:
    """Far more than the store holds at once, in each way that objects are made."""
    for i in range(300):
        assert skate.get(skate.put(i)) == i
        assert len(skate.get(make.remote(LARGE))) == LARGE
        assert skate.get(length.remote(skate.put(b"x" * LARGE))) == LARGE


# --- arrays, tables and tensors ---------------------------------------------------------------------------------------


def in_shared_memory(address: int) -> bool:
    """Whether an address is in the arena that all processes share."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        begin, end = (int(edge, 16) for edge in span.split("-"))
        if begin <= address < end:
            return "skate" in name
    return False


def test_a_large_array_is_not_copied() -> None:
    numpy = pytest.importorskip("numpy")
    ref = skate.put(numpy.arange(1_000_000))
    here = skate.get(ref)
    assert in_shared_memory(here.ctypes.data)
    there = skate.remote(lambda array: (in_shared_memory(array.ctypes.data), int(array.sum()), array.flags.writeable))
    assert skate.get(there.remote(ref)) == (True, 499999500000, False)


def test_arrays_in_structures_are_not_copied_either() -> None:
    numpy = pytest.importorskip("numpy")
    value = skate.get(skate.put({"x": [numpy.ones(200_000), numpy.zeros((300, 1000))], "y": Box(numpy.ones(50_000))}))
    assert all(in_shared_memory(array.ctypes.data) for array in (*value["x"], value["y"].content))


def test_arrays_are_read_only_and_say_so() -> None:
    numpy = pytest.importorskip("numpy")
    array = skate.get(skate.put(numpy.zeros(100_000)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        array += 1
    with pytest.raises(ValueError):
        array.flags.writeable = True
    changed = array.copy()
    changed[0] = 1
    assert changed[0] == 1


def test_in_a_task_a_write_to_a_shared_array_is_an_error_with_the_line() -> None:
    numpy = pytest.importorskip("numpy")

    @skate.remote
    def change(array: Any) -> None:
        array[0] = 1

    with pytest.raises(ValueError, match=r"array\[0\] = 1[\s\S]*read-only"):
        skate.get(change.remote(skate.put(numpy.zeros(100_000))))


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "int8", "bool", "complex128", "datetime64[s]", "U7", "O", "f4,i8"]
)
@pytest.mark.parametrize("layout", ["C", "F", "strided", "empty", "scalar"])
def test_arrays_of_every_kind_are_equal_after_the_trip(dtype: str, layout: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros((300, 400), dtype=dtype)
    if layout == "F":
        array = numpy.asfortranarray(array)
    elif layout == "strided":
        array = array[::3, ::-2]
    elif layout == "empty":
        array = array[:0]
    elif layout == "scalar":
        array = array[0, 0].reshape(()) if dtype != "O" else numpy.array(None, dtype=object)
    back = skate.get(skate.remote(lambda a: a).remote(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert numpy.array_equal(back, array)


def test_one_array_for_a_thousand_tasks_is_stored_once() -> None:
    numpy = pytest.importorskip("numpy")
    ref = skate.put(numpy.ones(500_000))
    before = store_bytes_used()
    total = skate.remote(lambda array, i: float(array.sum()) + i)
    refs = [total.remote(ref, i) for i in range(1000)]
    during = [store_bytes_used() for _ in range(5)]
    assert skate.get(refs) == [500_000.0 + i for i in range(1000)]
    assert max(during) < before + 4_000_000
    assert store_bytes_used() < before + 4_000_000


def test_an_array_returned_from_a_task_is_not_copied() -> None:
    numpy = pytest.importorskip("numpy")
    array = skate.get(skate.remote(lambda: numpy.arange(300_000)).remote())
    assert in_shared_memory(array.ctypes.data)
    assert array[-1] == 299_999


def test_pandas_keeps_its_buffers_outside_the_pickle() -> None:
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    frame = pandas.DataFrame({"a": numpy.arange(200_000), "b": numpy.arange(200_000) / 3, "c": ["x"] * 200_000})
    back = skate.get(skate.remote(lambda frame: frame).remote(frame))
    pandas.testing.assert_frame_equal(back, frame)
    assert in_shared_memory(back["a"].to_numpy().ctypes.data)
    assert in_shared_memory(back["b"].to_numpy().ctypes.data)
    assert (back["a"] + 1).iloc[-1] == 200_000, "computing with it works"


def test_pyarrow_keeps_its_buffers_outside_the_pickle() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": list(range(200_000)), "b": ["text"] * 200_000})
    back = skate.get(skate.remote(lambda table: table).remote(table))
    assert back.equals(table)
    buffers = [buffer for chunk in back.column("a").chunks for buffer in chunk.buffers() if buffer is not None]
    assert all(in_shared_memory(buffer.address) for buffer in buffers)


def test_torch_keeps_its_storage_outside_the_pickle() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(200_000)
    back = skate.get(skate.remote(lambda tensor: tensor).remote(tensor))
    assert torch.equal(back, tensor)
    assert in_shared_memory(back.data_ptr())


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_tensor_can_be_written_to_and_nobody_else_sees_it(size: int) -> None:
    torch = pytest.importorskip("torch")
    ref = skate.put({"t": torch.arange(size)})

    def write(value: dict[str, Any]) -> int:
        value["t"][0] = 7
        value["t"] += 1
        return int(value["t"][0])

    assert skate.get([skate.remote(write).remote(ref) for _ in range(3)]) == [8, 8, 8]
    mine = skate.get(ref)
    assert write(mine) == 8
    assert torch.equal(skate.get(ref)["t"], torch.arange(size))
    del ref
    gc.collect()
    skate.put(bytes(10_000_000))  # what it had is not taken away while somebody looks at it
    assert mine["t"][-1] == size


def test_tensors_of_many_sizes_leave_no_type_for_each_behind() -> None:
    torch = pytest.importorskip("torch")
    array_type = type(ctypes.c_char * 1)

    def array_types() -> int:
        return sum(1 for found in gc.get_objects() if type(found) is array_type)

    skate.get(skate.put(torch.arange(65_000)))
    before = array_types()
    for size in range(40_000, 40_050):
        assert len(skate.get(skate.put(torch.arange(size)))) == size
    assert array_types() - before < 10


def test_bytes_like_values_of_every_kind() -> None:
    for value in (b"x" * LARGE, bytearray(b"y" * LARGE), memoryview(b"z" * LARGE)):
        assert bytes(skate.get(skate.put(value))) == bytes(value)


def test_a_finalizer_that_puts_something_while_dropped_references_are_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may run it in the middle of that, in the same thread: then nobody may see to them a second time."""
    put: list[Any] = []

    class Last:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            put.append(skate.put(1))

    class Dropped(deque[bytes]):
        """The collector runs when it has been counted."""

        looks = 0

        def __len__(self) -> int:
            count = super().__len__()
            self.looks += 1
            if self.looks == 2:  # the first one is whether there are any
                gc.collect()
            return count

    runtime = current.get_runtime()
    with runtime.lock:  # nobody else sees to them
        refs = [skate.put(number) for number in range(DROPPED_MAX)]
        ids = [ref._id for ref in refs]
        monkeypatch.setattr(runtime_module, "dropped", Dropped(ids))
        Last()
        runtime._housekeeping()
        monkeypatch.undo()
        assert not [id for id in ids if id in runtime.table.entries]
    assert skate.get(put) == [1]


@pytest.mark.parametrize("size", [10, LARGE])
def test_references_inside_the_items_of_a_dynamic_generator_are_kept(size: int, tmp_path: Path) -> None:
    @skate.remote(num_returns="dynamic")
    def boxes() -> Any:
        for number in range(3):
            yield [skate.put(b"x" * (size + number))]
            skate.get(when.remote(tmp_path, None))  # time for whoever frees what nobody refers to

    items = list(skate.get(boxes.remote()))
    assert [len(skate.get(skate.get(item)[0])) for item in items] == [size, size + 1, size + 2]


def test_a_reference_to_be_made_of_an_id_alone_says_how_to_make_one() -> None:
    for made in (skate.ObjectRef, skate.ObjectID):
        with pytest.raises(TypeError, match=r"ObjectRef\.from_binary\(id\)"):
            made(bytes(20))


def test_a_reference_cannot_be_made_by_hand_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(TypeError, match="_id"):
        skate.ObjectRef()  # type: ignore[call-arg]
    gc.collect()
    assert not ignored


KEEPS_AN_ERROR = """
try:
    import nothing_of_the_kind
except ImportError as error:
    KEPT = error  # with its traceback, and so the frames of all who called

def fail(values):
    raise ValueError("as asked")
"""


def test_a_module_that_keeps_an_error_of_its_import_does_not_keep_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker imports it while it loads the function, so the frame that runs the task is among those kept."""
    (tmp_path / "keeps_an_error.py").write_text(KEEPS_AN_ERROR)
    monkeypatch.syspath_prepend(str(tmp_path))
    fail = skate.remote(importlib.import_module("keeps_an_error").fail)
    ref = skate.put(bytes(1_000_000))
    with pytest.raises(ValueError, match="as asked"):
        skate.get(fail.remote([ref]))
    id = ref.binary()
    del ref
    wait_for(lambda: id not in current.get_runtime().table.entries, FREED_WITHIN_S, "the object to be freed")


@skate.remote
class Echo:
    """An async actor: it answers a call while another waits."""

    async def echo(self, value: Any) -> Any:
        return value

    async def size(self, value: bytes) -> int:
        return len(value)

    async def wait(self) -> None:
        await asyncio.Event().wait()

    async def numbers(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number


class Calls:
    """A function that can be waited for, and what is known of its calls."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self) -> None:
        self.threads.append(threading.get_ident())

    def wait_for(self, count: int) -> None:
        # The main thread sleeps here, and asks Skate for nothing.
        wait_for(lambda: len(self.threads) >= count, WITHIN_S, f"{count} calls")
        assert len(self.threads) == count


def test_when_ready_calls_at_once_for_what_is_there() -> None:
    called = Calls()
    small, large = skate.put(1), skate.put(bytes(LARGE))
    for ref in (small, large):
        ref.when_ready(called)
    assert called.threads == [threading.get_ident()] * 2


def test_when_ready_calls_once_while_the_driver_does_something_else(tmp_path: Path) -> None:
    called = Calls()
    ref = when.remote(tmp_path / "gate", 1)
    ref.when_ready(called)
    ref.when_ready(called)
    assert not called.threads
    (tmp_path / "gate").touch()
    called.wait_for(2)
    assert threading.get_ident() not in called.threads
    assert skate.get(ref) == 1
    called.wait_for(2)


def test_when_ready_calls_promptly_after_a_burst_of_calls() -> None:
    """While a thread submits one task after the other, what arrives is read now and then only."""
    called = Calls()
    echo = Echo.remote()
    for number in range(2000):
        echo.echo.remote(number).when_ready(called)  # nothing else keeps the reference
    called.wait_for(2000)


def test_when_ready_calls_for_errors_of_every_kind() -> None:
    called = Calls()
    echo = Echo.remote()

    @skate.remote
    def fail() -> None:
        raise ValueError("as asked")

    failed, cancelled = fail.remote(), echo.wait.remote()
    failed.when_ready(called)
    called.wait_for(1)
    cancelled.when_ready(called)
    skate.cancel(cancelled)
    called.wait_for(2)
    died, never_sent = echo.wait.remote(), echo.wait.remote()
    died.when_ready(called)
    never_sent.when_ready(called)
    skate.kill(echo)
    called.wait_for(4)
    for ref in (skate.ObjectRef.nil(), skate.ObjectRef.from_random(), failed, died):
        ref.when_ready(called)
    called.wait_for(8)


def test_when_ready_calls_for_references_of_other_processes(tmp_path: Path) -> None:
    @skate.remote(num_cpus=0)
    def watch(refs: list[Any]) -> bool:
        called = Calls()
        for ref in refs:
            ref.when_ready(called)
        refs.clear()
        del ref
        (tmp_path / "watched").touch()
        called.wait_for(3)
        return True

    @skate.remote(num_cpus=0)
    def fail_after(gate: Path) -> None:
        wait_for(gate.exists, 40, "the gate to open")
        raise ValueError("as asked")

    gate = tmp_path / "gate"
    watched = watch.remote([when.remote(gate, 1), when.remote(gate, bytes(LARGE)), fail_after.remote(gate)])
    wait_for((tmp_path / "watched").exists, WITHIN_S, "all to be watched")
    gate.touch()
    assert skate.get(watched, timeout=WITHIN_S)


def test_when_ready_reads_no_value(tmp_path: Path) -> None:
    class Touches:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "loaded",)

    called = Calls()
    ref = Echo.remote().echo.remote(bytes(LARGE))
    ref.when_ready(called)
    of_a_task = skate.remote(lambda: Touches()).remote()
    of_a_task.when_ready(called)
    called.wait_for(2)
    assert current.get_runtime().store.pinned == 0
    assert not (tmp_path / "loaded").exists()


def test_when_ready_calls_for_items_of_a_stream() -> None:
    called = Calls()
    for ref in Echo.remote().numbers.remote(10):
        ref.when_ready(called)
    called.wait_for(10)


@pytest.mark.parametrize("size", [10, LARGE])
def test_when_ready_may_submit_the_next_call_and_take_a_lock(size: int) -> None:
    """As routers do. A thread that holds their lock may at the same time submit, and wait for room in the store."""
    echo = Echo.remote()
    lock = threading.Lock()
    sizes: list[Any] = []
    per_thread = 40

    def submit_next() -> None:
        with lock:
            if len(sizes) < 4 * per_thread:
                sizes.append(echo.size.remote(bytes([len(sizes)]) * size))
                sizes[-1].when_ready(submit_later)

    def submit_later() -> None:
        if len(sizes) < 4 * per_thread:
            submit_next()

    def submit_beside() -> None:
        for number in range(per_thread):
            with lock:
                ref = echo.size.remote(bytes([number]) * size)
            assert skate.get(ref) == size

    threads = [threading.Thread(target=submit_beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    submit_next()
    wait_for(lambda: len(sizes) == 4 * per_thread, WITHIN_S, "each call to submit the next")
    for thread in threads:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    assert skate.get(sizes, timeout=WITHIN_S) == [size] * len(sizes)


def test_what_a_function_of_when_ready_raises_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    called = Calls()

    def fail() -> None:
        called()
        raise (SystemExit if len(called.threads) % 2 else ValueError)("as asked")

    ref = when.remote(tmp_path / "gate", 1)
    for function in (fail, fail, called):
        ref.when_ready(function)
    (tmp_path / "gate").touch()
    called.wait_for(3)
    ref.when_ready(fail)
    called.wait_for(4)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [SystemExit, ValueError, ValueError]
    assert "when_ready" in caplog.text
    assert "fail" in caplog.text
    caplog.clear()  # the tracebacks keep the reference
    assert skate.get(Echo.remote().echo.remote(1)) == 1


def test_when_ready_takes_functions_only() -> None:
    with pytest.raises(TypeError, match=r"when_ready.* a NoneType"):
        skate.put(1).when_ready(None)  # type: ignore[arg-type]


SHUTS_DOWN = """
import time, skate
from skate import is_initialized

skate.init(num_cpus=1)
sleep = skate.remote(lambda: time.sleep(1000))

def goes_on():
    try:
        sleep.remote()
    except skate.exceptions.NotInitializedError:
        print("ended")

ref = sleep.remote()
ref.when_ready(goes_on)
skate.shutdown()
print("shut down")
ref.when_ready(lambda: print("an error by now"))
print(is_initialized())
"""


def test_when_ready_calls_when_skate_is_shut_down_and_starts_it_no_more() -> None:
    output, errors = run_program(SHUTS_DOWN)
    assert (output.splitlines(), errors) == (["ended", "shut down", "an error by now", "False"], "")


def test_has_failed_says_of_what_is_there_whether_it_is_an_error() -> None:
    @skate.remote
    def divide(by: int) -> float:
        return 1 / by

    actor = Echo.remote()
    fine, failed, waiting = divide.remote(1), divide.remote(0), actor.wait.remote()
    skate.wait([fine, failed], num_returns=2)
    assert [ref.has_failed() for ref in (fine, failed, waiting, skate.put(1))] == [False, True, False, False]
    skate.cancel(waiting)
    skate.wait([waiting])
    assert waiting.has_failed()
