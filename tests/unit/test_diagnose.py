"""The culprit is named: which variable, in what, and what to do about it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from skate._serialize.diagnose import (
    DEPTH_MAX,
    PARTS_MAX,
    explain_unpicklable,
    find_culprit,
    largest_captures,
)
from skate.exceptions import SerializationError

LOCK = "_thread.lock"
MEGABYTE = 1 << 20

module_lock = threading.Lock()


def new_lock() -> object:
    return threading.Lock()


class Holder:
    def __init__(self, held: object) -> None:
        self.fine = 1
        self.held = held


# --- What cannot be pickled -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda lock: [1, lock], ["the element 1"]),
        (lambda lock: (lock,), ["the element 0"]),
        (lambda lock: {lock}, ["the element 0"]),
        (lambda lock: {"ok": 1, "bad": lock}, ["the item 'bad'"]),
        (lambda lock: Holder(lock), ["the attribute 'held'"]),
        (lambda lock: {"model": [0, Holder(lock)]}, ["the item 'model'", "the element 1", "the attribute 'held'"]),
    ],
    ids=["list", "tuple", "set", "dict", "attribute", "nested"],
)
def test_the_path_to_the_culprit_is_named(make: Callable[[Any], Any], names: list[str]) -> None:
    path = find_culprit(make(threading.Lock()))
    assert [step.split(" of type ")[0] for step in path] == names
    assert path[-1].endswith(f"of type {LOCK}")


def test_a_closure_variable_is_named() -> None:
    connection = threading.Lock()

    def task() -> object:
        return connection

    assert find_culprit(task) == [f"the closure variable 'connection' of type {LOCK}"]


def test_a_global_variable_is_named_where_the_function_takes_it_along() -> None:
    def task() -> object:
        return module_lock

    assert find_culprit(task) == [f"the global variable 'module_lock' of type {LOCK}"]


def test_a_function_inside_a_function_is_looked_into() -> None:
    lock = threading.Lock()

    def inner() -> object:
        return lock

    def outer() -> object:
        return inner()

    path = find_culprit({"callback": outer})
    assert [step.split(" of type ")[0] for step in path] == [
        "the item 'callback'",
        "the closure variable 'inner'",
        "the closure variable 'lock'",
    ]


def test_the_default_of_a_keyword_is_named() -> None:
    def task(*, lock: object = new_lock()) -> object:
        return lock

    assert find_culprit(task) == [f"the default of 'lock' of type {LOCK}"]


def test_the_default_of_a_positional_parameter_is_named() -> None:
    def task(number: int, lock: object = new_lock()) -> object:
        return lock

    assert find_culprit(task) == [f"the default of 'lock' of type {LOCK}"]


def test_what_can_be_pickled_has_no_culprit() -> None:
    assert find_culprit({"a": [1, Holder(2)], "f": lambda: 1}) == []


def test_a_circle_ends_the_search() -> None:
    circle: list[Any] = [threading.Lock()]
    circle.insert(0, circle)
    path = find_culprit(circle)
    assert 0 < len(path) <= DEPTH_MAX


def test_the_search_goes_only_so_deep_and_so_wide() -> None:
    deep: Any = threading.Lock()
    for _ in range(DEPTH_MAX + 3):
        deep = [deep]
    assert len(find_culprit(deep)) == DEPTH_MAX
    wide = [*range(PARTS_MAX), threading.Lock()]
    assert find_culprit(wide) == []


class Hostile:
    """Refuses everything."""

    def __reduce__(self) -> Any:
        raise RuntimeError("I will not be pickled")

    def __repr__(self) -> str:
        raise RuntimeError("I will not be shown")


def test_hostile_objects_do_not_make_it_worse() -> None:
    (step,) = find_culprit([Hostile()])
    assert step == f"the element 0 of type {__name__}.Hostile"


def explained(value: object, what: str = "an argument of f") -> str:
    import cloudpickle

    with pytest.raises(Exception) as raised:
        cloudpickle.dumps(value)
    error = explain_unpicklable(value, raised.value, what=what)
    assert isinstance(error, SerializationError)
    return str(error)


def test_the_error_says_what_why_and_what_to_do() -> None:
    text = explained({"db": Holder(threading.Lock())})
    assert text.startswith("an argument of f cannot be sent to another process.")
    assert (
        f"the item 'db' of type {__name__}.Holder, in it the attribute 'held' of type {LOCK} cannot be pickled" in text
    )
    assert "why:  TypeError: cannot pickle '_thread.lock' object" in text
    assert "next: create it inside the task" in text


def test_a_culprit_that_is_the_value_itself_is_named_by_its_type() -> None:
    assert f"an object of type {LOCK} cannot be pickled" in explained(threading.Lock())
    assert "I will not be pickled" in explained(Hostile())


def test_a_generator_is_explained() -> None:
    assert "of type builtins.generator" in explained({"rows": (number for number in range(3))})


# --- What is large ----------------------------------------------------------------------------------------------------


def test_the_largest_captures_come_first_with_their_sizes() -> None:
    small, large, middle = b"x", bytes(3 * MEGABYTE), bytes(2 * MEGABYTE)

    def task() -> object:
        return small, large, middle

    assert largest_captures(task, 2) == (
        "the closure variable 'large' (bytes, 3.0 MB), the closure variable 'middle' (bytes, 2.0 MB)"
    )


def test_captures_are_found_through_decorators() -> None:
    data = bytes(MEGABYTE)

    def decorated(function: Callable[[], object]) -> Callable[[], object]:
        @functools.wraps(function)
        def wrapper() -> object:
            return function()

        return wrapper

    @decorated
    def task() -> object:
        return data

    assert largest_captures(task) == "the closure variable 'data' (bytes, 1.0 MB)"


def test_large_defaults_are_found() -> None:
    def task(*, table: bytes = bytes(MEGABYTE)) -> bytes:
        return table

    assert largest_captures(task) == "the default of 'table' (bytes, 1.0 MB)"


def test_what_the_methods_of_a_class_capture_is_named_once() -> None:
    data = b"1" * MEGABYTE
    more = b"2" * (2 * MEGABYTE)

    class Base:
        def inherited(self) -> bytes:
            return more

    class Actor(Base):
        table = b"3" * (3 * MEGABYTE)

        def __init__(self) -> None:
            super().__init__()

        def method(self) -> bytes:
            return data

        @property
        def again(self) -> bytes:
            return data

        @staticmethod
        def once_more() -> bytes:
            return data

    assert largest_captures(Actor, 4) == (
        "the attribute 'table' (bytes, 3.0 MB), the closure variable 'more' (bytes, 2.0 MB), "
        "the closure variable 'data' (bytes, 1.0 MB)"
    )


def test_what_cannot_be_measured_is_left_out() -> None:
    lock, data = threading.Lock(), bytes(MEGABYTE)

    def task() -> object:
        return lock, data

    assert largest_captures(task) == "the closure variable 'data' (bytes, 1.0 MB)"


@pytest.mark.parametrize("function", [len, int, functools.partial(int, "1"), Holder(1), 5])
def test_without_captures_there_is_still_something_to_say(function: object) -> None:
    assert largest_captures(function) == "large data"
