"""Large values as text: in part, by the rules of `repr`; small ones as `repr` has them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._bounded_text import ROOM_LEAST, bounded_repr, cut, is_large

MOST = 100
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=300), inner),
)


class Watched(bytes):
    """Says so when it is printed."""

    def __repr__(self) -> str:
        raise AssertionError("the whole of it is printed")


@dataclasses.dataclass
class Holder:
    content: Any


@given(values)
def test_what_is_short_is_as_repr_has_it(value: object) -> None:
    text = repr(value)
    if len(text) <= MOST:
        assert bounded_repr(value, MOST) == text


@given(values)
def test_what_is_long_is_not_longer_than_a_few_times_what_was_asked_for(value: object) -> None:
    assert len(bounded_repr(value, MOST)) < 60 * (MOST + ROOM_LEAST)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 200, f"{'x' * MOST!r}… (200 characters in all)"),
        ([bytes(200)], f"[{bytes(MOST // 4)!r}… (200 bytes in all)]"),
        (list(range(1000)), f"[{', '.join(map(str, range(28)))}, … (1,000 in all)]"),
        ({"x": "y" * 200}, f"{{'x': {'y' * 95!r}… (200 characters in all)}}"),
        (("y" * 200,), f"({'y' * MOST!r}… (200 characters in all),)"),
    ],
)
def test_of_a_collection_that_is_too_large_the_first_items_are_shown(value: object, text: str) -> None:
    assert bounded_repr(value, MOST) == text


@pytest.mark.parametrize("inside", [lambda it: it, lambda it: [it], lambda it: {1: (it,)}, Holder, ValueError])
def test_what_is_too_large_is_not_printed_as_a_whole(inside: Any) -> None:
    value = inside(Watched(200))
    assert is_large(value, MOST)
    with pytest.raises(AssertionError):
        repr(value)
    text = bounded_repr(value, MOST) if not isinstance(value, bytes) else bounded_repr(bytes(value), MOST)
    assert len(text) < 1000


def test_what_holds_itself_is_printed() -> None:
    value: list[Any] = ["x" * 200]
    value.append(value)
    assert "…" in bounded_repr(value, MOST)
    assert not is_large(value[1:] and [[]], MOST)


def test_both_ends_of_a_text_are_kept() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcdef", 4) == "ab … (6 characters in all) … ef"
