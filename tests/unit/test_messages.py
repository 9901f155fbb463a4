"""Every message survives the wire, refuses what does not fit, and says who sends it to whom."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._core import task
from skate._wire import messages
from skate._wire.messages import AnyMessage, Message, decode, encoder

MESSAGES: tuple[type[Message], ...] = typing.get_args(AnyMessage)
PARTS = [part for part in vars(task).values() if isinstance(part, type) and issubclass(part, msgspec.Struct)]

every_message = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)

# --- Building any message from its annotations ------------------------------------------------------------------------

INTEGERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=40),
    int: INTEGERS,
    float: st.floats(allow_nan=False),
    str: TEXTS,
    bool: st.booleans(),
    type(None): st.none(),
    Any: st.recursive(
        st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXTS | st.binary(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=5,
    ),
}


@functools.cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that an annotation allows."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is frozenset:
        return st.frozensets(values_of(arguments[0]), max_size=3)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(argument) for argument in arguments])
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    assert issubclass(hint, msgspec.Struct), f"a message may not carry {hint}"
    fields = {name: values_of(field) for name, field in typing.get_type_hints(hint).items()}
    return st.fixed_dictionaries(fields).map(lambda given: hint(**given))


def wire(message: object) -> list[Any]:
    """A message as the array that it is on the wire."""
    fields: list[Any] = msgspec.msgpack.decode(encoder.encode(message))
    return fields


def example(kind: type[Any]) -> Any:
    """The plainest message of its kind: defaults where there are any, zeros elsewhere."""
    zeros = {bytes: b"", int: 0, float: 0.0, str: "", bool: False, Any: None}
    hints = typing.get_type_hints(kind)
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    given_values = {}
    for field in required:
        hint = hints[field.name]
        origin = typing.get_origin(hint)
        if hint in zeros:
            given_values[field.name] = zeros[hint]
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            given_values[field.name] = example(hint)
        else:
            given_values[field.name] = b"" if origin in (typing.Union, types.UnionType) else origin()
    return kind(**given_values)


# --- The wire ---------------------------------------------------------------------------------------------------------


@every_message
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(values_of(kind))
    received = decode(encoder.encode(message))
    assert type(received) is kind
    assert received == message


@every_message
def test_a_message_is_an_array_that_begins_with_its_tag(kind: type[Message]) -> None:
    fields = wire(example(kind))
    assert fields[0] == kind.__struct_config__.tag
    assert len(fields) == 1 + len(kind.__struct_fields__)


@every_message
def test_a_peer_that_knows_more_fields_is_understood(kind: type[Message]) -> None:
    message = example(kind)
    assert decode(encoder.encode([*wire(message), "a field of tomorrow"])) == message


@every_message
def test_fields_with_defaults_come_last_and_may_be_missing(kind: type[Message]) -> None:
    message = example(kind)
    required = sum(field.required for field in msgspec.structs.fields(kind))
    assert decode(encoder.encode(wire(message)[: 1 + required])) == message
    if required:
        with pytest.raises(msgspec.ValidationError):
            decode(encoder.encode(wire(message)[:required]))


@pytest.mark.parametrize("value", [b"", b"inline", 0, 2**40, task.Failure(b"error")])
def test_the_three_forms_of_a_value_are_told_apart(value: task.Value) -> None:
    result = task.Result(b"id", value, task.ResultExtra(more=[value]))
    (received,) = decode(encoder.encode(messages.Results([result]))).results
    assert type(received.value) is type(value)
    assert received == result


def test_a_plain_task_carries_no_extra() -> None:
    plain = messages.Tasks(1, [task.Task(b"id", b"fn", b"args")])
    assert wire(plain) == [62, 1, [[b"id", b"fn", b"args", 0, None]]]


def test_mutable_defaults_are_not_shared() -> None:
    """msgspec copies empty defaults; a list shared by all tasks would be a disaster."""
    for part in PARTS:
        for field in msgspec.structs.fields(part):
            if field.default_factory is not msgspec.NODEFAULT:
                assert field.default_factory() is not field.default_factory()
    one, other = task.Extra(), task.Extra()
    one.refs.append(task.RefInfo(b"x", b"owner"))
    assert other.refs == []


# --- What does not fit ------------------------------------------------------------------------------------------------


@every_message
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_a_message_cut_short_is_refused(kind: type[Message], data: st.DataObject) -> None:
    whole = encoder.encode(data.draw(values_of(kind)))
    for size in range(len(whole)):
        with pytest.raises(msgspec.MsgspecError):
            decode(whole[:size])


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [0],
        [255],
        ["Hello", 1, "driver"],
        [1, "1", "driver"],
        [1, 1, b"driver"],
        [1, 1, None],
        {"pid": 1},
        None,
        "Shutdown",
        [63, [[b"id", "text is no value"]]],
        [81, b"id", [1.5]],
        [82, 1, [b"id"], "borrower"],
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(encoder.encode(wrong))


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_noise_is_a_message_or_an_error(noise: bytes) -> None:
    try:
        message = decode(noise)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    assert isinstance(message, MESSAGES)


# --- The protocol as text ---------------------------------------------------------------------------------------------


def test_the_union_is_the_whole_protocol() -> None:
    declared = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }
    assert set(MESSAGES) == declared
    assert len(MESSAGES) == len(declared)


def test_tags_are_unique_and_small() -> None:
    tags = [kind.__struct_config__.tag for kind in MESSAGES]
    assert len(set(tags)) == len(tags)
    assert all(type(tag) is int and 0 < tag < 128 for tag in tags), "one byte on the wire"


@every_message
def test_a_message_says_who_sends_it_to_whom(kind: type[Message]) -> None:
    first_line = (kind.__doc__ or "").strip().split("\n")[0]
    sender, arrow, receiver = first_line.partition("→")
    assert arrow, f"{kind.__name__} says only: {first_line}"
    assert sender.strip()
    assert receiver.strip()


@pytest.mark.parametrize("part", [*MESSAGES, *PARTS], ids=lambda part: part.__name__)
def test_records_are_arrays_that_the_collector_does_not_visit(part: type[msgspec.Struct]) -> None:
    assert part.__struct_config__.array_like
    assert not part.__struct_config__.gc
