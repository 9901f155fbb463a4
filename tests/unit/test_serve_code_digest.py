"""The digest of a pickle is the same if the pickle says the same, and only then."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate import cloudpickle
from skate.serve import code_digest as module
from skate.serve.code_digest import code_digest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.frozensets(st.integers(0, 9))
    ),
    max_leaves=12,
)


def digest(value: Any) -> bytes:
    return code_digest(cloudpickle.dumps(value))


def fresh(value: Any) -> Any:
    """An equal value, all of whose parts are other objects."""
    if isinstance(value, str):
        return "".join(list(value))
    if isinstance(value, bytes):
        return bytes(bytearray(value))
    if isinstance(value, (list, tuple)):
        return type(value)([fresh(each) for each in value])
    return {fresh(key): fresh(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(VALUES, VALUES)
def test_equal_values_have_equal_digests_and_others_have_not(one: Any, other: Any) -> None:
    assert digest(one) == digest(one) == digest(fresh(one))
    assert digest([one, one, other]) == digest([fresh(one), one, fresh(other)])
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))
    assert (digest([[one], [other]]) == digest([[other], [one]])) == (repr(one) == repr(other))


def variants() -> list[Any]:
    """Values that differ in one thing each."""
    limit, other_limit = 3, 4

    def function(x: int, more: int = 1) -> int:
        return x + more

    def with_another_default(x: int, more: int = 2) -> int:
        return x + more

    def with_a_closure(x: int) -> int:
        return x + limit

    def with_another_closure(x: int) -> int:
        return x + other_limit

    for each, named in ((with_another_default, function), (with_another_closure, with_a_closure)):
        each.__name__, each.__qualname__ = named.__name__, named.__qualname__
    classes = [type("C", (), {"a": 1}), type("C", (), {"a": 2}), type("C", (dict,), {"a": 1}), type("D", (), {"a": 1})]
    endless: list[Any] = [1]
    endless.append(endless)
    deeper: list[Any] = [1, endless]
    other_endless: list[Any] = [2]
    other_endless.append(other_endless)
    return [
        0, False, 0.0, -0.0, "0", b"0", None, (), [], {}, set(), frozenset(), [1], (1,), {1}, frozenset({1}), {1: 2},
        [[1], [1]], [[1], [1], [1]], bytearray(b"0"), math.sin, math.cos, ("a", ("b",)), (("a", "b"),), ([1], [2]),
        ([2], [1]), endless, [deeper], other_endless, function, with_another_default, with_a_closure,
        with_another_closure, {"f": function, "g": with_a_closure}, {"g": function, "f": with_a_closure}, *classes,
    ]  # fmt: skip


def test_whatever_differs_has_another_digest() -> None:
    digests = [digest(each) for each in variants()]
    assert len(set(digests)) == len(digests)


def test_classes_whose_instances_came_back_from_a_replica_are_the_same() -> None:
    @dataclasses.dataclass
    class Result:
        value: int

        def double(self) -> int:
            return 2 * self.value

    @dataclasses.dataclass
    class Other:
        value: int

    def handler(x: int) -> Any:
        return Result(x), Other(x)

    before, exact = digest(handler), cloudpickle.dumps(handler)
    pickle.loads(cloudpickle.dumps(Result(1)))
    assert cloudpickle.dumps(handler) != exact, "else this test shows nothing"
    assert digest(handler) == before


@pytest.mark.parametrize("name", ["INSTRUCTIONS_MAX", "ROUNDS_MAX", "MAKERS"])
def test_what_is_not_understood_is_taken_as_it_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, type(getattr(module, name))())
    assert digest([1]) == digest([1]) != digest([2])
