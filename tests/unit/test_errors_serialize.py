"""Exceptions of tasks, packed in one place and unpacked in another."""

from __future__ import annotations

import asyncio
import builtins
import copy
import gc
import importlib
import json
import pickle
import subprocess
import sys
import threading
import traceback
import urllib.error
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skate._serialize.errors as errors_module
from skate._serialize.error_text import LARGE, SHOWN, printable, repr_of, text_of
from skate._serialize.errors import HOPS_MAX, pack_error, unpack_error
from skate.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    SkateError,
    TaskError,
    TaskInterrupt,
    WorkerCrashedError,
)

# --- what is thrown at it -------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first
        self.second = second


class GarbledByPickle(Exception):
    """Its constructor adds to the message, so that calling it with `args` adds twice."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(f"[{code}] {message}")
        self.code = code


class KeywordOnly(ValueError):
    def __init__(self, *, path: str, line: int) -> None:
        super().__init__(path)
        self.path = path
        self.line = line

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class WithSlots(Exception):
    __slots__ = ("__private", "left", "never_set", "right")

    def __init__(self, left: int, right: int | None) -> None:
        super().__init__()
        self.left = left
        self.right = right
        self.__private = left


class OwnPickling(Exception):
    def __init__(self, handle: Any, name: str) -> None:
        super().__init__(name)
        self.handle = handle
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnPickling, (None, self.name)


class BrokenPickling(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return BrokenPickling, (1, 2, 3)

    def __init__(self, only: str) -> None:
        super().__init__(only)


class LyingPickling(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("not an exception",)


@dataclass(frozen=True)
class FrozenDataclass(Exception):
    code: int
    reason: str


class HasProperties(Exception):
    """Property names that a TaskError has attributes of."""

    @property
    def cause(self) -> str:
        return "their cause"

    @property
    def node(self) -> str:
        return "their node"


class NoSubclasses(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("final")


class Meta(type):
    made: list[str] = []  # noqa: RUF012

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> None:
        super().__init__(name, bases, names)
        Meta.made.append(name)


class WithMetaclass(Exception, metaclass=Meta):
    pass


class OwnNew(Exception):
    def __new__(cls, *, needed: int) -> OwnNew:
        self = super().__new__(cls, needed)
        self.needed = needed
        return self

    needed: int

    def __init__(self, *, needed: int) -> None:
        pass


class EvilToPrint(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no picture")


class OwnOSError(OSError):
    def __init__(self, where: str, *, detail: str) -> None:
        super().__init__(5, "input/output", where)
        self.detail = detail


def decode_error() -> UnicodeDecodeError:
    try:
        b"abc\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


def syntax_error() -> SyntaxError:
    try:
        compile("a b", "their.py", "exec")
    except SyntaxError as error:
        return error
    raise AssertionError


#: Exceptions and the names of attributes that must arrive. All arrive as instances of their own class.
TRAVELLERS: list[tuple[BaseException, tuple[str, ...]]] = [
    (ValueError("bad"), ()),
    (ValueError(), ()),
    (ValueError("a", 2, [3]), ()),
    (KeyError("name"), ()),
    (ZeroDivisionError("division by zero"), ()),
    (OSError(5, "input/output"), ("errno", "strerror", "filename")),
    (FileNotFoundError(2, "No such file", "x.txt"), ("errno", "strerror", "filename", "filename2")),
    (OSError(18, "cross-device", "a", None, "b"), ("errno", "filename", "filename2")),
    (BlockingIOError(11, "again", 7), ("errno", "characters_written")),
    (decode_error(), ("encoding", "object", "start", "end", "reason")),
    (UnicodeEncodeError("ascii", "ü", 0, 1, "no"), ("encoding", "object", "start", "end", "reason")),
    (syntax_error(), ("msg", "filename", "lineno", "offset", "text")),
    (ImportError("no", name="m", path="p"), ("name", "path", "msg")),
    (ModuleNotFoundError("no", name="m"), ("name",)),
    (NameError("no", name="n"), ("name",)),
    (AttributeError("no", name="n", obj=threading.Lock()), ("name",)),
    (json.JSONDecodeError("bad", "{", 1), ("msg", "doc", "pos", "lineno", "colno")),
    (subprocess.CalledProcessError(3, ["ls"], b"out", b"err"), ("returncode", "cmd", "output", "stderr")),
    (urllib.error.HTTPError("http://x", 404, "gone", None, None), ("code", "msg", "filename")),
    (TwoArguments(1, "two"), ("first", "second")),
    (GarbledByPickle("m", 4), ("code",)),
    (KeywordOnly(path="x", line=3), ("path", "line")),
    (WithSlots(1, None), ("left", "right", "_WithSlots__private")),
    (BrokenPickling("only"), ()),
    (FrozenDataclass(3, "why"), ("code", "reason")),
    (WithMetaclass("m"), ()),
    (OwnNew(needed=3), ("needed",)),
    (OwnOSError("/dev/x", detail="d"), ("errno", "filename", "detail")),
    (asyncio.QueueEmpty(), ()),
    (asyncio.IncompleteReadError(b"ab", 3), ("partial", "expected")),
]
IDS = [type(error).__name__ for error, _ in TRAVELLERS]


def raised(error: BaseException) -> BaseException:
    """The error as a worker has it: with a traceback, and with its frames gone."""
    try:
        raise error
    except BaseException as caught:
        return caught


def sent(error: BaseException, function_name: str = "f", pid: int = 12, node: str = "n1") -> Any:
    return unpack_error(pack_error(raised(error), function_name=function_name, pid=pid, node=node))


def run_and_send(function: Callable[[], object], name: str, *, frames_above: int = 0) -> Any:
    """What a worker does with a function that raises. Drops the frames of the test above those of the worker."""
    try:
        function()
    except BaseException as error:
        for _ in range(frames_above):
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        return unpack_error(pack_error(error, function_name=name, pid=1))
    raise AssertionError("the function did not raise")


# --- it arrives as what it was --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "names"), TRAVELLERS, ids=IDS)
def test_error_is_both_task_error_and_its_own_class(error: BaseException, names: tuple[str, ...]) -> None:
    arrived = sent(error)
    assert isinstance(arrived, TaskError)
    assert isinstance(arrived, type(error))
    assert type(arrived).__name__ == f"TaskError({type(error).__name__})"
    assert arrived.args == error.args
    for name in names:
        assert getattr(arrived, name) == getattr(error, name), name
    assert (arrived.function_name, arrived.pid) == ("f", 12)


@pytest.mark.parametrize(("error", "names"), TRAVELLERS, ids=IDS)
def test_cause_is_the_original(error: BaseException, names: tuple[str, ...]) -> None:
    cause = sent(error).cause
    assert type(cause) is type(error)
    assert cause.args == error.args
    assert str(cause) == str(error)
    assert repr(cause) == repr(error)
    for name in names:
        assert getattr(cause, name) == getattr(error, name), name


@pytest.mark.parametrize(
    "how", [pickle.dumps, cloudpickle.dumps, None, "deep"], ids=["pickle", "cloud", "copy", "deep"]
)
@pytest.mark.parametrize(("error", "names"), TRAVELLERS, ids=IDS)
def test_what_arrived_can_be_pickled_and_copied(error: BaseException, names: tuple[str, ...], how: Any) -> None:
    arrived = sent(error)
    if how is None:
        again = copy.copy(arrived)
    elif how == "deep":
        again = copy.deepcopy(arrived)
    else:
        again = pickle.loads(how(arrived))
    assert again is not arrived
    assert type(again) is type(arrived)
    assert str(again) == str(arrived)
    assert again.args == arrived.args
    assert type(again.cause) is type(error)
    for name in names:
        assert getattr(again, name) == getattr(error, name)


def test_own_pickling_of_a_class_is_used() -> None:
    arrived = sent(OwnPickling(threading.Lock(), "n"))
    assert isinstance(arrived, OwnPickling)
    assert arrived.handle is None
    assert arrived.name == "n"


def test_object_of_an_attribute_error_stays_behind() -> None:
    arrived = run_and_send(lambda: b"x".nothing, "f")  # type: ignore[attr-defined]
    assert isinstance(arrived, AttributeError)
    assert (arrived.name, arrived.obj) == ("nothing", None)


def test_class_is_made_once() -> None:
    assert type(sent(TwoArguments(1, "a"))) is type(sent(TwoArguments(2, "b")))


def test_class_is_forgotten_with_the_class_it_was_made_for() -> None:
    """A notebook defines the same class again and again."""

    class Passing(Exception):
        pass

    errors_module._class_for(Passing)
    gone = weakref.ref(Passing)
    del Passing
    gc.collect()  # The class made from it goes first, and only then can it go.
    gc.collect()
    assert gone() is None


def test_metaclass_of_the_class_is_respected() -> None:
    arrived = sent(WithMetaclass("m"))
    assert type(type(arrived)) is Meta
    assert Meta.made[-1] == "TaskError(WithMetaclass)"


def test_property_of_the_class_hides_ours_except_cause() -> None:
    arrived = sent(HasProperties("x"))
    assert arrived.node == "their node"
    assert isinstance(arrived.cause, HasProperties)
    assert arrived.cause.cause == "their cause"
    assert "on node n1" in str(arrived)


def test_attribute_of_the_error_hides_ours_except_cause() -> None:
    error = ValueError("x")
    error.__dict__.update(pid="theirs", cause="theirs", remote_traceback="theirs")
    arrived = sent(error)
    assert (arrived.pid, arrived.remote_traceback) == ("theirs", "theirs")
    assert isinstance(arrived.cause, ValueError)
    assert str(arrived).endswith("ValueError: x")


def test_explicit_cause_arrives_too() -> None:
    error = ValueError("outer")
    error.__cause__ = TwoArguments(1, "two")
    arrived = sent(error)
    assert isinstance(arrived.cause.__cause__, TwoArguments)
    assert isinstance(arrived.__cause__, TwoArguments)


def test_exceptions_that_refer_to_each_other_arrive() -> None:
    one, other = ValueError("one"), KeyError("other")
    one.__cause__ = other
    other.__cause__ = one
    one.__dict__["itself"] = one
    arrived = sent(one)
    assert arrived.cause.__cause__.__cause__ is arrived.cause
    assert arrived.cause.itself is arrived.cause


def test_task_error_made_by_hand_arrives_as_itself() -> None:
    class Mine(TaskError):
        pass

    for kind in (TaskError, Mine):
        arrived = sent(kind("by hand"))
        assert isinstance(arrived, kind)
        assert "by hand" in str(arrived)


@given(st.lists(st.one_of(st.integers(), st.text(), st.binary(), st.none(), st.floats(allow_nan=False))))
def test_any_arguments_arrive(arguments: list[Any]) -> None:
    for kind in (ValueError, KeyError, OSError, ImportError):
        error = kind(*arguments)
        arrived = sent(error)
        assert arrived.args == error.args
        assert str(arrived.cause) == str(error)


# --- what must not act on the receiver ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError("m"),
        TaskInterrupt(),
        StopIteration(4),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_act_on_the_receiver_is_a_task_error_only(error: BaseException) -> None:
    arrived = sent(error)
    assert isinstance(arrived, TaskError)
    assert not isinstance(arrived, type(error))
    assert type(arrived).__name__ == f"TaskError({type(error).__name__})"
    assert type(arrived.cause) is type(error)
    assert arrived.args == error.args
    assert str(pickle.loads(pickle.dumps(arrived))) == str(arrived)


def test_fields_of_such_an_error_can_still_be_read() -> None:
    assert sent(SystemExit(3)).code == 3
    assert sent(StopIteration(4)).value == 4


def test_stop_iteration_of_a_task_does_not_cut_a_loop_short() -> None:
    data = pack_error(StopIteration(), function_name="f", pid=1)

    def get(number: int) -> int:
        if number == 1:
            raise unpack_error(data)
        return number

    with pytest.raises(TaskError):
        list(map(get, range(3)))


def test_class_that_cannot_be_subclassed_arrives_as_task_error_only() -> None:
    arrived = sent(NoSubclasses("x"))
    assert isinstance(arrived, TaskError)
    assert not isinstance(arrived, NoSubclasses)
    assert isinstance(arrived.cause, NoSubclasses)
    assert arrived.args == ("x",)


# --- groups ---------------------------------------------------------------------------------------------------------

needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="ExceptionGroup came with Python 3.11")
Group: Any = getattr(builtins, "ExceptionGroup", None)
BaseGroup: Any = getattr(builtins, "BaseExceptionGroup", None)


@needs_groups
def test_exception_group_arrives_with_its_members() -> None:
    arrived = sent(Group("many", [TwoArguments(1, "a"), Group("inner", [KeyError("k")])]))
    assert isinstance(arrived, Group)
    assert isinstance(arrived, TaskError)
    assert arrived.message == "many"
    assert isinstance(arrived.exceptions[0], TwoArguments)
    matching, rest = arrived.split(KeyError)
    assert isinstance(matching.exceptions[0].exceptions[0], KeyError)
    assert len(rest.exceptions) == 1
    for text in ("many (2 sub-exceptions)", "TwoArguments: 1 and a", "KeyError: 'k'"):
        assert text in str(arrived)
    assert pickle.loads(pickle.dumps(arrived)).message == "many"


@needs_groups
def test_member_that_cannot_be_sent_does_not_spoil_the_group() -> None:
    bad = ValueError(threading.Lock())
    arrived = sent(Group("many", [bad, KeyError("k")]))
    assert isinstance(arrived, Group)
    assert isinstance(arrived.exceptions[0], ValueError)
    assert repr(arrived.exceptions[0]) == repr(bad)
    assert isinstance(arrived.exceptions[1], KeyError)


@needs_groups
def test_group_with_its_own_constructor_arrives() -> None:
    class Mine(Group):  # type: ignore[misc]
        def __new__(cls, members: list[Exception], code: int) -> Mine:
            self: Mine = super().__new__(cls, "mine", members)
            self.code = code
            return self

    arrived = sent(Mine([ValueError(1)], 7))
    assert isinstance(arrived, Mine)
    assert (arrived.message, arrived.code) == ("mine", 7)


@needs_groups
def test_group_of_base_exceptions_is_a_task_error_only() -> None:
    arrived = sent(BaseGroup("m", [SystemExit(1)]))
    assert not isinstance(arrived, BaseGroup)
    assert isinstance(arrived.cause, BaseGroup)


# --- tracebacks -----------------------------------------------------------------------------------------------------


def inner() -> None:
    raise ValueError("the message")


def outer() -> None:
    inner()


def test_text_is_where_then_traceback_then_message() -> None:
    text = str(run_and_send(outer, "outer"))
    assert text.startswith("raised by task outer in worker pid 1:\n\nTraceback (most recent call last):\n")
    assert text.endswith("ValueError: the message")
    assert text.index("in outer") < text.index("in inner")
    assert "inner()" in text


def test_remote_traceback_is_an_attribute() -> None:
    arrived = run_and_send(outer, "outer")
    assert arrived.remote_traceback == str(arrived)


def in_our_module(source: str, module: str = "_worker/execute.py") -> dict[str, Any]:
    """Run code as if it stood in a module of the package."""
    package = Path(errors_module.__file__).parent.parent
    names: dict[str, Any] = {}
    exec(compile(source, str(package / module), "exec"), names)
    return names


RUNNER = "def execute_a_task(f):\n    return f()\n"


def test_our_frames_above_those_of_the_user_are_dropped() -> None:
    execute = in_our_module(RUNNER)["execute_a_task"]

    text = str(run_and_send(lambda: execute(outer), "f", frames_above=2))
    assert "execute_a_task" not in text
    assert "in outer" in text


def test_our_frames_below_those_of_the_user_are_kept() -> None:
    """When the user calls us wrongly, where we noticed is of use."""
    broken = in_our_module("def check_arguments():\n    raise TypeError('wrong')\n", "_api.py")["check_arguments"]
    text = str(run_and_send(lambda: broken(), "f"))
    assert "check_arguments" in text


def test_libraries_on_top_of_the_runtime_are_user_code() -> None:
    learn = in_our_module("def learn():\n    raise ValueError('diverged')\n", "rl/ppo.py")["learn"]
    text = str(run_and_send(lambda: learn(), "f", frames_above=2))
    assert "in learn" in text


def test_error_of_our_own_code_keeps_all_its_frames() -> None:
    fail = in_our_module("def load_arguments():\n    raise ValueError('ours')\n")["load_arguments"]
    text = str(run_and_send(lambda: fail(), "f", frames_above=2))
    assert "load_arguments" in text


def test_chain_of_causes_and_contexts_is_in_the_text() -> None:
    def f() -> None:
        try:
            try:
                inner()
            except ValueError:
                {}["context"]
        except KeyError as error:
            raise TwoArguments(1, "b") from error

    text = str(run_and_send(f, "f"))
    assert text.index("ValueError: the message") < text.index("KeyError: 'context'") < text.index("1 and b")
    assert "direct cause" in text
    assert "During handling" in text


def test_error_of_a_task_that_waits_for_a_task_shows_both_innermost_first() -> None:
    get = in_our_module("import copy\ndef get(error):\n    raise copy.copy(error)\n", "_api.py")["get"]
    first = run_and_send(outer, "fetch")

    def crawl() -> None:
        get(first)

    def main() -> None:
        get(run_and_send(crawl, "crawl"))

    second = run_and_send(crawl, "crawl")
    third = run_and_send(main, "main")
    for arrived in (second, third):
        assert isinstance(arrived, ValueError)
        assert isinstance(arrived, TaskError)
        assert type(arrived) is type(first)
        assert type(arrived.cause) is ValueError
        assert arrived.args == ("the message",)
        assert str(arrived).endswith("ValueError: the message")
        assert arrived.function_name == "fetch"
    text = str(third)
    places = [
        text.index(piece)
        for piece in ("by task fetch", "in inner", "reached task crawl", "in crawl", "reached task main", "in main")
    ]
    assert places == sorted(places)
    assert "in get" not in text


def test_error_raised_from_the_error_of_a_task_shows_both() -> None:
    first = run_and_send(outer, "fetch")

    def crawl() -> None:
        try:
            raise first
        except ValueError as error:
            raise TwoArguments(1, "b") from error

    arrived = run_and_send(crawl, "crawl")
    assert isinstance(arrived, TwoArguments)
    assert not isinstance(arrived, ValueError)
    assert str(arrived).index("in inner") < str(arrived).index("1 and b")
    assert isinstance(arrived.cause.__cause__, TaskError)
    assert isinstance(arrived.cause.__cause__, ValueError)


def test_original_raised_again_from_the_cause_arrives() -> None:
    first = run_and_send(outer, "fetch")

    def crawl() -> None:
        raise first.cause

    assert type(run_and_send(crawl, "crawl").cause) is ValueError


def test_long_chain_of_tasks_is_bounded_and_shows_its_ends() -> None:
    arrived = run_and_send(outer, "task-0")
    for number in range(1, 200):
        arrived = sent(arrived, function_name=f"task-{number}")
    text = str(arrived)
    assert text.count("reached task") == HOPS_MAX - 1
    assert f"… {200 - HOPS_MAX} more tasks …" in text
    assert "by task task-0 " in text
    assert "reached task task-199 " in text
    assert len(pack_error(arrived, function_name="f", pid=1)) < 20_000


def test_deep_recursion_is_folded() -> None:
    def f(n: int) -> int:
        return f(n + 1)

    arrived = run_and_send(lambda: f(0), "f")
    assert isinstance(arrived, RecursionError)
    assert "Previous line repeated" in str(arrived)


def test_raising_what_arrived_several_times_does_not_pile_up_tracebacks() -> None:
    data = pack_error(raised(ValueError("x")), function_name="f", pid=1)
    lengths = []
    for _ in range(3):
        try:
            raise unpack_error(data)
        except ValueError as error:
            lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert lengths == [1, 1, 1]
    assert unpack_error(data) is not unpack_error(data)


def test_python_prints_the_remote_traceback() -> None:
    for error in (ValueError("x"), KeyError("x"), syntax_error()):
        printed = "".join(traceback.format_exception(sent(error)))
        # Older versions print a SyntaxError without its text and without notes.
        assert "raised by task f in worker pid 12 on node n1:" in printed or (
            isinstance(error, SyntaxError) and sys.version_info < (3, 11)
        )
        assert f"skate.exceptions.TaskError({type(error).__name__})" in printed


# --- notes ----------------------------------------------------------------------------------------------------------

needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="add_note() came with Python 3.11")


@needs_notes
@pytest.mark.parametrize("make", [lambda: ValueError("x"), syntax_error], ids=["ValueError", "SyntaxError"])
def test_notes_arrive_and_are_printed_once(make: Callable[[], Any]) -> None:
    error = make()
    error.add_note("first note")
    arrived = sent(error)
    assert arrived.__notes__[0] == "first note"
    arrived.add_note("second note")
    again = sent(arrived, function_name="g")
    assert again.__notes__[:2] == ["first note", "second note"]
    for each in (again, pickle.loads(pickle.dumps(again)), copy.copy(again)):
        printed = "".join(traceback.format_exception(each))
        assert printed.count("first note") == 1
        assert printed.count("second note") == 1


# --- stand-ins ------------------------------------------------------------------------------------------------------


def unpicklable_class() -> type[Any]:
    lock = threading.Lock()

    class Local(KeyError):
        held = lock

        def __str__(self) -> str:
            return f"local {self.args}"

    return Local


def test_attribute_that_cannot_be_sent_is_left_out() -> None:
    error = TwoArguments(1, "two")
    error.__dict__["lock"] = threading.Lock()
    arrived = sent(error)
    assert isinstance(arrived, TwoArguments)
    assert isinstance(arrived, TaskError)
    assert (arrived.first, arrived.second) == (1, "two")
    assert not hasattr(arrived, "lock")
    assert "sent without lock" in str(arrived)
    cause = arrived.cause
    assert (str(cause), repr(cause)) == (str(error), repr(error))
    assert type(cause).__name__ == "TwoArguments"
    assert cause.stand_in_for == f"{__name__}.TwoArguments"


def test_argument_that_cannot_be_sent_looks_the_same() -> None:
    lock = threading.Lock()
    error = OSError(5, lock)
    arrived = sent(error)
    assert isinstance(arrived, OSError)
    assert arrived.errno == 5
    assert arrived.args[0] == 5
    assert repr(arrived.args[1]) == repr(lock)
    assert (str(arrived.cause), repr(arrived.cause)) == (str(error), repr(error))


def test_class_that_cannot_be_sent_gets_a_stand_in_below_its_nearest_base() -> None:
    error = unpicklable_class()("k", 3)
    error.detail = "d"
    arrived = sent(error)
    assert isinstance(arrived, TaskError)
    assert isinstance(arrived, KeyError)
    assert type(arrived).__name__ == "TaskError(Local)"
    assert (arrived.args, arrived.detail) == (("k", 3), "d")
    cause = arrived.cause
    assert type(cause).__name__ == "Local"
    assert (str(cause), repr(cause)) == (str(error), repr(error))
    assert cause.stand_in_for == f"{__name__}.unpicklable_class.<locals>.Local"
    assert cause.stand_in_ancestry[1:] == (
        "builtins.KeyError",
        "builtins.LookupError",
        "builtins.Exception",
        "builtins.BaseException",
        "builtins.object",
    )
    assert str(arrived).endswith("Local: local ('k', 3)")


def test_stand_in_can_be_pickled_copied_and_sent_on() -> None:
    error = unpicklable_class()("k")
    arrived = sent(error)
    for again in (pickle.loads(pickle.dumps(arrived)), copy.copy(arrived), sent(arrived), sent(arrived.cause)):
        assert isinstance(again, KeyError)
        assert isinstance(again, TaskError)
        assert repr(again.cause) == repr(error)
    assert repr(pickle.loads(pickle.dumps(arrived.cause))) == repr(error)


def test_cause_that_cannot_be_sent_becomes_a_stand_in_alone() -> None:
    error = TwoArguments(1, "two")
    error.__cause__ = unpicklable_class()("k")
    cause = sent(error).cause
    assert type(cause) is TwoArguments
    assert isinstance(cause.__cause__, KeyError)
    assert str(cause.__cause__) == "local ('k',)"


def test_nest_of_what_cannot_be_sent_ends() -> None:
    kind = unpicklable_class()
    error = kind(0)
    for number in range(1, 50):
        outer_error = kind(number)
        outer_error.__cause__ = error
        error = outer_error
    assert sent(error).args == (49,)
    circle = kind("circle")
    circle.__cause__ = kind("other")
    circle.__cause__.__cause__ = circle
    assert sent(circle).args == ("circle",)


@pytest.mark.parametrize("error", [EvilToPrint("x"), LyingPickling("x"), EvilToPrint(threading.Lock())])
def test_nothing_that_an_exception_does_makes_packing_fail(error: BaseException) -> None:
    arrived = sent(error)
    assert isinstance(arrived, TaskError)
    assert isinstance(arrived, type(error))
    assert type(error).__name__ in str(arrived)


def test_text_that_is_not_unicode_arrives() -> None:
    assert sent(FileNotFoundError(2, "no", "bad\udcff")).filename == "bad\udcff"


def test_class_that_is_unknown_where_it_arrives_gets_a_stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed here with a module on the path, unpacked in an interpreter that does not have it."""
    (tmp_path / "only_here.py").write_text("class OnlyHere(LookupError):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("only_here")
    data = pack_error(module.OnlyHere("gone", 1), function_name="f", pid=1)
    packed = tmp_path / "packed"
    packed.write_bytes(data)
    program = f"""
import pathlib, sys
sys.path[:0] = {[path for path in sys.path if path != str(tmp_path)]!r}
from skate._serialize.errors import unpack_error
from skate.exceptions import TaskError
error = unpack_error(pathlib.Path({str(packed)!r}).read_bytes())
assert isinstance(error, TaskError) and isinstance(error, LookupError)
assert "only_here" not in sys.modules
print(type(error).__name__, repr(error.cause), error.cause.stand_in_for, sep="|")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.strip() == "TaskError(OnlyHere)|OnlyHere('gone', 1)|only_here.OnlyHere"


# --- errors of the system -------------------------------------------------------------------------------------------


def made_by_the_runtime(error: BaseException) -> Any:
    return unpack_error(pack_error(error, function_name="resize", pid=0))


def test_errors_that_the_runtime_made_arrive_as_themselves() -> None:
    error = WorkerCrashedError(task_name="resize", pid=3, signal=9, stderr_tail=["last words"])
    arrived = made_by_the_runtime(error)
    assert type(arrived) is WorkerCrashedError
    assert not isinstance(arrived, TaskError)
    assert str(arrived) == str(error)
    assert (arrived.signal, arrived.stderr_tail) == (9, ("last words",))


def test_an_error_of_the_system_that_a_task_raised_is_a_task_error_as_well() -> None:
    """The text has the frames of each task that it passed, without those of the runtime, and the message."""

    def crawl() -> None:
        raise GetTimeoutError(timeout_s=1, pending=1, total=1)

    arrived = run_and_send(crawl, "crawl")
    again = sent(arrived, function_name="main")
    for each in (arrived, again):
        assert isinstance(each, GetTimeoutError)
        assert isinstance(each, TaskError)
        assert (each.timeout_s, each.function_name) == (1, "crawl")
        assert type(each.cause) is GetTimeoutError
    text = str(again)
    places = [
        "raised by task crawl in worker pid 1:",
        "in crawl",
        "get() timed out after 1 s",
        "which reached task main",
    ]
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
    assert isinstance(pickle.loads(pickle.dumps(again)), GetTimeoutError)


def test_error_that_the_runtime_made_itself_gets_no_note() -> None:
    error = NodeDiedError(node="n1")
    arrived = unpack_error(pack_error(error, function_name="", pid=0))
    assert str(arrived) == str(error)
    assert not hasattr(arrived, "__notes__")


def test_cause_of_an_error_of_the_system_is_kept() -> None:
    error = NodeDiedError(node="n1")
    error.__cause__ = ConnectionResetError(104, "reset")
    arrived = made_by_the_runtime(error)
    assert type(arrived) is NodeDiedError
    assert arrived.__cause__.errno == 104
    arrived = sent(error)
    assert isinstance(arrived, NodeDiedError)
    assert arrived.__cause__.errno == 104


def test_error_of_the_system_made_by_a_user_is_one() -> None:
    class Mine(SkateError):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")
            self.one = one

    arrived = sent(Mine(1, 2))
    assert isinstance(arrived, Mine)
    assert isinstance(arrived, TaskError)
    assert (arrived.one, str(arrived.cause)) == (1, "1 2")


# -- large arguments ---------------------------------------------------------------------------------------------------


def test_a_class_that_makes_its_own_text_is_asked_for_it() -> None:
    class Own(Exception):
        def __str__(self) -> str:
            return f"own text of {len(self.args[0])}"

    class Argument:
        def __init__(self) -> None:
            self.content = bytes(2 * LARGE)

        def __str__(self) -> str:
            return "own text of the argument"

    assert text_of(Own(bytes(2 * LARGE))) == f"own text of {2 * LARGE}"
    assert text_of(ValueError(Argument())) == "own text of the argument"


@pytest.mark.parametrize("args", [(), (1,), ("x",), ("x", 2), ([b"x"],), ("x" * 2 * LARGE,)])
def test_of_arguments_that_are_not_large_the_texts_are_pythons(args: tuple[object, ...]) -> None:
    for kind in (ValueError, KeyError, OSError, SystemExit):
        error = kind(*args)
        assert (text_of(error), repr_of(error), printable(error)) == (str(error), repr(error), error)


def test_large_arguments_are_shown_in_part() -> None:
    for kind in (ValueError, KeyError, OSError):
        error = kind([1, "x" * 2 * LARGE])
        assert text_of(error).startswith("[1, 'xxx")
        assert text_of(error).endswith(f"xxx'… ({2 * LARGE:,} characters in all)]")
        assert repr_of(error).startswith(f"{kind.__name__}([1, 'xxx")
        assert repr_of(error).endswith(" in all)])")
        assert len(repr_of(error)) < 2 * SHOWN
        twin = printable(error)
        assert (type(twin).__name__, str(twin)) == (kind.__name__, text_of(error))


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_arrays_in_arguments_and_attributes_arrive(size: int) -> None:
    error: Any = ValueError(np.arange(size))
    error.values = np.ones(size)
    received = unpack_error(pack_error(error, function_name="f", pid=1))
    assert isinstance(received, TaskError)
    cause: Any = received.cause
    assert cause.args[0].sum() == np.arange(size).sum()
    assert cause.values.sum() == size
    assert "sent without" not in str(received)
