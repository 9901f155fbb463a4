"""Which methods of a class are sent along with it, and what the other end makes of them."""

from __future__ import annotations

import inspect
import pickle
import string
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from skate._serialize.patches import PatchedClass, with_patches


@pytest.fixture
def formatter() -> Iterator[Any]:
    """A class of a module, as an importing process has it before and after the test."""
    before = dict(vars(string.Formatter))
    yield string.Formatter
    for name in set(vars(string.Formatter)) - set(before):
        delattr(string.Formatter, name)


class Taking(Protocol):
    """Its statement takes up functions of other modules."""

    asks = inspect.isclass


def test_a_class_as_its_module_makes_it_is_sent_as_it_is(formatter: Any) -> None:
    assert with_patches(formatter) is formatter
    assert with_patches(pickle.Pickler) is pickle.Pickler


def test_a_method_that_was_put_in_is_there_after_loading(formatter: Any) -> None:
    formatter.is_class = inspect.isclass
    sent = pickle.dumps(with_patches(formatter))
    del formatter.is_class
    assert pickle.loads(sent) is formatter
    assert formatter.is_class is inspect.isclass


def test_methods_put_into_a_base_are_sent_with_the_class(formatter: Any) -> None:
    class Own(formatter):  # type: ignore[misc]
        pass

    formatter.is_class = inspect.isclass
    sent = with_patches(Own)
    assert isinstance(sent, PatchedClass)
    assert sent._patches == [(formatter, {"is_class": inspect.isclass})]


def test_what_the_statement_of_the_class_took_up_is_left_alone() -> None:
    before = dict(vars(Taking))
    assert pickle.loads(pickle.dumps(with_patches(Taking))) is Taking
    assert dict(vars(Taking)) == before


def test_closures_are_not_sent(formatter: Any) -> None:
    captured = bytearray(10)
    formatter.show = lambda self: captured
    assert with_patches(formatter) is formatter
