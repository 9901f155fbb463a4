"""Values come back equal, arrays come back in place, and the bytes are laid out as the docstring says."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import fractions
import math
import mmap
import pickle
import struct
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skate import _object_ref
from skate._object_ref import ObjectRef
from skate._serialize.values import (
    ALIGNMENT,
    INLINE_BYTES_MAX,
    NONE,
    PLAIN_LENGTH_MAX,
    Serialized,
    deserialize,
    is_plain,
    serialize,
    serialize_inline,
    serialize_plain,
)


def round_trip(value: Any) -> Any:
    return deserialize(serialize(value).to_bytes())


def buffers_of(blob: bytes) -> list[tuple[int, int]]:
    """(offset, length) of every out-of-band buffer, read as the docstring says and not as the code does."""
    assert blob[:4] == b"\x01\0\0\0"
    count = int.from_bytes(blob[4:8], "little")
    at = 16 + 8 * count + int.from_bytes(blob[8:16], "little")
    found = []
    for number in range(count):
        length = int.from_bytes(blob[16 + 8 * number : 24 + 8 * number], "little")
        at = math.ceil(at / 64) * 64
        found.append((at, length))
        at += length
    assert at == len(blob)
    return found


def shares_memory_with(array: np.ndarray[Any, Any], blob: bytes | memoryview) -> bool:
    return np.shares_memory(array, np.frombuffer(blob, np.uint8))


# --- Scalars and containers -------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(SCALARS, inner, max_size=4),
        st.sets(SCALARS, max_size=4),
        st.frozensets(SCALARS, max_size=4),
    ),
    max_leaves=15,
)


@given(SCALARS)
@settings(deadline=None)
def test_scalars_come_back(value: object) -> None:
    assert is_plain(value)
    back = round_trip(value)
    assert type(back) is type(value)
    assert back == value
    assert deserialize(serialize_plain(value)) == value
    assert serialize(value).to_bytes() == serialize_plain(value)


@given(st.lists(SCALARS, max_size=PLAIN_LENGTH_MAX))
@settings(deadline=None)
def test_short_tuples_of_scalars_are_written_like_scalars(values: list[object]) -> None:
    assert is_plain(tuple(values))
    assert round_trip(tuple(values)) == tuple(values)
    assert serialize(tuple(values)).to_bytes() == serialize_plain(tuple(values))


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    "value",
    [(1, [2]), (1, (2, 3)), tuple(range(PLAIN_LENGTH_MAX + 1)), Pair(1, 2), [1, 2]],
    ids=["a list inside", "a tuple inside", "a long one", "a class of its own", "a list"],
)
def test_what_may_hold_more_than_scalars_is_not_plain(value: object) -> None:
    assert not is_plain(value)
    assert round_trip(value) == value


ARRAYS = st.one_of(
    hnp.arrays(
        st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(endianness="="), hnp.datetime64_dtypes(endianness="=")),
        hnp.array_shapes(min_side=0),
    ),
    hnp.arrays(np.float32, (4, 6)).map(lambda array: array[::2, 1:]),
)
NUMBERS = st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.uint8(7)])


@given(st.lists(st.one_of(ARRAYS, NUMBERS, SCALARS), max_size=PLAIN_LENGTH_MAX))
@settings(deadline=None)
def test_arrays_and_numbers_in_arguments_come_back_and_are_written_to_by_no_one(values: list[Any]) -> None:
    data = serialize_inline(tuple(values))
    assert data is not None
    for back in (deserialize(data), round_trip(tuple(values))):
        assert [type(each) for each in back] == [type(each) for each in values]
        for one, other in zip(back, values, strict=True):
            np.testing.assert_array_equal(one, other)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


class Meters(float):
    pass


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, "two"], dtype=object),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(INLINE_BYTES_MAX, np.uint8),
        b"x" * INLINE_BYTES_MAX,
        [np.zeros(2)],
        (1, np.zeros(2)),
        Meters(2),
        np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")])[0],
    ],
    ids=["objects", "a subclass", "a large array", "large bytes", "a list", "a tuple", "a class", "a record"],
)
def test_other_arguments_are_written_with_more_care(value: object) -> None:
    assert serialize_inline((1, value)) is None


@given(VALUES)
@settings(deadline=None)
def test_containers_come_back(value: object) -> None:
    back = round_trip(value)
    assert type(back) is type(value)
    assert back == value


def test_not_a_number_comes_back() -> None:
    assert math.isnan(round_trip(math.nan))


def test_a_subclass_of_a_scalar_is_no_scalar() -> None:
    class Celsius(float):
        pass

    value = Celsius(21.5)
    assert not is_plain(value)
    assert type(round_trip(value)).__name__ == "Celsius"
    assert round_trip(value) == 21.5


@dataclasses.dataclass
class Point:
    x: int
    y: list[int]


@pytest.mark.parametrize(
    "value",
    [
        Point(1, [2]),
        collections.OrderedDict(a=1, b=2),
        collections.Counter("hello"),
        collections.deque([1, 2], maxlen=3),
        range(0, 100, 7),
        slice(1, None, 2),
        dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        bytearray(b"mutable"),
        Ellipsis,
        int,
        len,
        math.sqrt,
        2**10_000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_things_come_back(value: object) -> None:
    back = round_trip(value)
    assert type(back) is type(value)
    assert back == value


def test_what_is_defined_here_and_now_comes_back() -> None:
    """Closures, lambdas and local classes: what plain pickle refuses."""
    factor = 3

    class Local:
        def times(self, number: int) -> int:
            return factor * number

    assert round_trip(lambda number: factor * number)(4) == 12
    assert round_trip(Local)().times(4) == 12
    assert round_trip(Local()).times(5) == 15


def test_what_is_shared_stays_shared_and_circles_stay_circles() -> None:
    shared = [1]
    one, other = round_trip([shared, shared])
    assert one is other
    circle: list[Any] = []
    circle.append(circle)
    back = round_trip(circle)
    assert back[0] is back


def test_none_has_the_bytes_that_the_fast_path_compares_with() -> None:
    assert serialize(None).to_bytes() == NONE
    assert deserialize(NONE) is None


# --- Bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 3_000_000])
def test_bytes_of_any_size_come_back_as_bytes(size: int) -> None:
    value = bytes(range(256)) * (size // 256) + bytes(size % 256)
    serialized = serialize(value)
    blob = serialized.to_bytes()
    assert len(blob) == serialized.size
    back = deserialize(memoryview(blob))
    assert type(back) is bytes
    assert back == value


def test_large_bytes_are_raw_from_offset_64_on() -> None:
    value = b"x" * (INLINE_BYTES_MAX + 1)
    blob = serialize(value).to_bytes()
    assert blob[0] == 0x02
    assert blob[1:64] == bytes(63)
    assert blob[64:] == value
    assert serialize(value[1:]).to_bytes()[0] == 0x80


def test_large_bytes_are_not_copied_before_they_are_written() -> None:
    value = b"x" * (INLINE_BYTES_MAX + 1)
    pieces = [piece for _, piece in serialize(value).pieces if len(piece) == len(value)]
    assert shares_memory_with(np.frombuffer(value, np.uint8), memoryview(pieces[0]))


# --- Arrays -----------------------------------------------------------------------------------------------------------

#: Of this machine's byte order: numpy's own pickles turn some of the others round.
PLAIN_DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="="),
    hnp.complex_number_dtypes(endianness="="),
    hnp.datetime64_dtypes(endianness="="),
    hnp.timedelta64_dtypes(endianness="="),
    hnp.unicode_string_dtypes(endianness="=", max_len=5),
    hnp.byte_string_dtypes(max_len=5),
)
DTYPES = PLAIN_DTYPES | hnp.array_dtypes(PLAIN_DTYPES, max_size=3)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
REARRANGEMENTS = [
    lambda array: array,
    lambda array: array.T,
    lambda array: array[::2] if array.ndim else array,
    lambda array: array[..., ::-1] if array.ndim else array,
    lambda array: np.asfortranarray(array),
    lambda array: np.broadcast_to(array, (2, *array.shape)),
]


@given(ARRAYS, st.sampled_from(REARRANGEMENTS))
@settings(max_examples=100, deadline=None)
def test_arrays_come_back(original: Any, rearrange: Any) -> None:
    """Contiguous or not, 0-d, empty, structured, text, times: bit for bit."""
    array = rearrange(original)
    back = round_trip(array)
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.arange(10).reshape(2, 5),
        np.asfortranarray(np.arange(10).reshape(2, 5)),
        np.arange(12).reshape(3, 4)[1:],
        np.array(7.5),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["text", "more"]),
        np.array([b"bytes", b"more"]),
        np.array([True, False]),
    ],
    ids=["1-d", "C", "Fortran", "part", "0-d", "structured", "text", "bytes", "truth"],
)
def test_arrays_are_read_in_place_and_read_only(array: Any) -> None:
    blob = serialize(array).to_bytes()
    back = deserialize(blob)
    np.testing.assert_array_equal(back, array)
    assert shares_memory_with(back, blob)
    assert not back.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        back[...] = back
    with pytest.raises(ValueError, match="WRITEABLE"):
        back.flags.writeable = True


@pytest.mark.parametrize(
    "array",
    [np.arange(10)[::3], np.arange(10)[::-1], np.arange(12).reshape(3, 4)[:, 1:3], np.broadcast_to(1.0, (3, 3))],
    ids=["step", "backwards", "columns", "broadcast"],
)
def test_arrays_with_gaps_come_back_without(array: Any) -> None:
    back = round_trip(array)
    np.testing.assert_array_equal(back, array)
    assert back.flags.contiguous


def test_fortran_order_is_kept() -> None:
    back = round_trip(np.asfortranarray(np.zeros((3, 4))))
    assert back.flags.f_contiguous
    assert not back.flags.c_contiguous


def test_the_original_stays_writable() -> None:
    array = np.arange(10)
    serialize(array).to_bytes()
    array[0] = 5


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_arrays_come_back(shape: tuple[int, ...]) -> None:
    back = round_trip({"empty": np.empty(shape), "full": np.ones(3)})
    assert back["empty"].shape == shape
    assert back["full"].tolist() == [1, 1, 1]


def test_arrays_of_objects_come_back_with_what_is_in_them() -> None:
    array = np.empty(3, dtype=object)
    array[:] = [{"a": 1}, np.arange(5), None]
    back = round_trip(array)
    assert back[0] == {"a": 1}
    assert back[1].tolist() == [0, 1, 2, 3, 4]
    assert back[2] is None


def test_numpy_scalars_masked_arrays_and_records_come_back() -> None:
    assert round_trip(np.float32(1.5)) == np.float32(1.5)
    masked = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
    back = round_trip(masked)
    assert type(back) is type(masked)
    assert back.tolist() == [1, None, 3]
    records = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    assert round_trip(records).b[0] == 2.0


def test_an_array_that_occurs_twice_is_stored_once() -> None:
    array = np.arange(1000)
    serialized = serialize([array, {"again": array}])
    assert len(buffers_of(serialized.to_bytes())) == 1
    back = deserialize(serialized.to_bytes())
    assert back[0] is back[1]["again"]


def test_arrays_survive_the_end_of_everything_else() -> None:
    """An array keeps the memory that it lies in."""
    blob = serialize(np.arange(10_000)).to_bytes()
    back = deserialize(memoryview(blob))
    del blob
    assert back.sum() == 49_995_000


# --- Layout -----------------------------------------------------------------------------------------------------------


def test_the_bytes_are_laid_out_as_the_table_says() -> None:
    arrays = [np.arange(100, dtype=np.uint8), np.arange(1, dtype=np.float64), np.empty(0), np.arange(65, dtype=np.int8)]
    serialized = serialize(arrays)
    blob = serialized.to_bytes()
    lengths = [array.nbytes for array in arrays]
    assert blob[0] == 0x01
    assert blob[1:4] == bytes(3)
    assert struct.unpack_from("<I", blob, 4) == (4,)
    (pickle_bytes,) = struct.unpack_from("<Q", blob, 8)
    assert struct.unpack_from("<4Q", blob, 16) == tuple(lengths)
    assert blob[48 : 48 + 2] == b"\x80\x05"
    assert blob[48 + pickle_bytes - 1 : 48 + pickle_bytes] == pickle.STOP
    found = buffers_of(blob)
    assert [length for _, length in found] == lengths
    for (offset, length), array in zip(found, arrays):
        assert offset % ALIGNMENT == 0
        assert blob[offset : offset + length] == array.tobytes()
    assert serialized.size == len(blob)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=10), st.integers(0, 200))
@settings(deadline=None)
def test_every_buffer_starts_at_a_multiple_of_64(sizes: list[int], padding: int) -> None:
    """However long the pickle before it and the buffers before that."""
    value = ["x" * padding, *[np.full(size, number, np.uint8) for number, size in enumerate(sizes)]]
    blob = serialize(value).to_bytes()
    assert ALIGNMENT == 64
    found = buffers_of(blob)
    assert len(found) == len(sizes)
    assert all(offset % 64 == 0 for offset, _ in found)


def test_arrays_in_aligned_memory_are_aligned() -> None:
    """As in the arena: an object there starts at a multiple of 64, and mapped memory at a page."""
    serialized = serialize({"a": np.arange(7, dtype=np.float64), "b": np.arange(9, dtype=np.complex128)})
    with mmap.mmap(-1, 4096 + serialized.size) as memory:
        view = memoryview(memory)[4096 : 4096 + serialized.size]
        serialized.write_into(view)
        back = deserialize(view.toreadonly())
        for array in back.values():
            assert array.__array_interface__["data"][0] % 64 == 0
            assert array.flags.aligned
            assert not array.flags.writeable
        assert back["b"].tolist() == list(range(9))
        del array, back
        view.release()


def test_writing_fills_exactly_its_size() -> None:
    serialized = serialize([np.arange(50), b"tail", np.arange(3)])
    target = bytearray(b"\xee" * (serialized.size + 100))
    serialized.write_into(memoryview(target)[: serialized.size])
    assert target[serialized.size :] == b"\xee" * 100
    assert deserialize(memoryview(target)[: serialized.size].toreadonly())[1] == b"tail"


def test_small_values_are_plain_pickles() -> None:
    assert serialize({"a": 1}).to_bytes()[:1] == b"\x80"
    assert pickle.loads(serialize({"a": 1}).to_bytes()) == {"a": 1}


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(ValueError, match="0x47"):
        deserialize(b"GET / HTTP/1.1")


def test_what_cannot_be_pickled_raises() -> None:
    with pytest.raises(TypeError):
        serialize([threading.Lock()])


# --- References inside values -----------------------------------------------------------------------------------------


class Adopting:
    """A runtime as far as references inside values are concerned."""

    def __init__(self) -> None:
        self.adopted: list[tuple[bytes, bytes]] = []
        self.kept_for_good: list[bytes] = []

    def adopt(self, id: bytes, owner: bytes) -> ObjectRef[Any]:
        self.adopted.append((id, owner))
        return ObjectRef(id, owner)

    def keep_for_good(self, ref: ObjectRef[Any]) -> None:
        self.kept_for_good.append(ref._id)


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Adopting:
    runtime = Adopting()
    monkeypatch.setattr(_object_ref, "_accessor", lambda: runtime, raising=False)
    return runtime


A, B = b"a" * 20, b"b" * 20
OWNER = b"owner"


def ids(serialized: Serialized) -> list[bytes]:
    return [ref._id for ref in serialized.refs]


def test_references_inside_a_value_are_found_and_adopted(adopting: Adopting) -> None:
    a, b = ObjectRef(A, OWNER), ObjectRef(B, OWNER)
    serialized = serialize({"deep": [[a]], "array": np.arange(3), "other": (b,)})
    assert ids(serialized) == [A, B]
    assert serialized.refs[0] is a, "the reference itself, so that it lives as long as the value is not stored"
    assert adopting.kept_for_good == []
    back = deserialize(serialized.to_bytes())
    assert adopting.adopted == [(A, OWNER), (B, OWNER)]
    assert back["deep"][0][0] == a


def test_a_reference_captured_by_a_function_is_found(adopting: Adopting) -> None:
    a = ObjectRef(A, OWNER)
    assert ids(serialize(lambda: a)) == [A]


def test_a_value_without_references_has_none() -> None:
    assert list(serialize([1, 2]).refs) == []
    assert list(serialize(1).refs) == []


def test_a_value_serialised_while_another_is_does_not_mix_up_references(adopting: Adopting) -> None:
    a, b = ObjectRef(A, OWNER), ObjectRef(B, OWNER)
    inner: list[Serialized] = []

    class Outer:
        def __reduce__(self) -> Any:
            inner.append(serialize([b]))
            return list, ((a,),)

    outer = serialize(Outer())
    assert ids(outer) == [A]
    assert ids(inner[0]) == [B]


def test_after_a_failure_references_are_not_collected_any_more(adopting: Adopting) -> None:
    a = ObjectRef(A, OWNER)
    with pytest.raises(TypeError):
        serialize([a, threading.Lock()])
    pickle.dumps(a)
    assert adopting.kept_for_good == [A]


# --- Tables -----------------------------------------------------------------------------------------------------------


def test_data_frames_come_back_in_place() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"n": np.arange(1000), "x": np.linspace(0, 1, 1000), "t": [f"row {n}" for n in range(1000)]})
    blob = serialize(frame).to_bytes()
    back = deserialize(blob)
    pd.testing.assert_frame_equal(back, frame)
    assert shares_memory_with(back["x"].to_numpy(), blob)
    assert not back["x"].to_numpy().flags.writeable
    assert back.groupby(back["n"] % 2)["x"].sum().tolist() == pytest.approx([249.75, 250.25], abs=0.5)


def test_arrow_tables_come_back_in_place() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"n": list(range(1000)), "t": [f"row {n}" for n in range(1000)], "gap": [None, 1] * 500})
    blob = serialize(table).to_bytes()
    back = deserialize(blob)
    assert back.equals(table)
    assert shares_memory_with(back["n"].chunk(0).to_numpy(), blob)
    assert all(offset % 64 == 0 for offset, _ in buffers_of(blob))


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "bfloat16", "complex64"])
def test_torch_tensors_come_back_in_place(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1000).to(getattr(torch, dtype)).reshape(10, 100)
    for value in (tensor, tensor.T, tensor[::2]):
        blob = serialize({"t": value}).to_bytes()
        back = deserialize(blob)["t"]
        assert back.dtype == value.dtype
        assert torch.equal(back, value)
        assert len(buffers_of(blob)) == 1
