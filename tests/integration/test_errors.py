"""Exceptions of tasks: they arrive as what they are, with the story of where they came from."""

from __future__ import annotations

import builtins
import pickle
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import skate
from skate.exceptions import SkateError, TaskError

pytestmark = pytest.mark.usefixtures("runtime")


class Plain(Exception):
    pass


class SeveralArguments(Exception):
    def __init__(self, code: int, reason: str, *, fatal: bool) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason
        self.fatal = fatal


class OwnText(Exception):
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __str__(self) -> str:
        return f"amount was {self.amount}"


class Slotted(Exception):
    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.level = level


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class FailsToLoad(Exception):
    def __reduce__(self) -> Any:
        return int, ("not a number",)


@skate.remote
def fail(error: BaseException) -> None:
    raise error


@skate.remote
def fail_with(kind: type[BaseException], *args: Any, **kwargs: Any) -> None:
    raise kind(*args, **kwargs)


@skate.remote
def take(value: Any) -> Any:
    return value


def error_of(ref: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        skate.get(ref)
    return caught.value


# --- the class and its contents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ZeroDivisionError(),
        KeyError("missing"),
        Plain("one", 2, None),
        OSError(2, "No such file", "name.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        AssertionError("assert"),
        RecursionError("deep"),
        MemoryError("much"),
        TimeoutError("late"),
        ImportError("nothing", name="module", path="/x"),
        SyntaxError("bad", ("file.py", 3, 4, "text")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_an_instance_of_its_class_and_of_task_error(error: Exception) -> None:
    arrived = error_of(fail.remote(error))
    assert isinstance(arrived, type(error))
    assert isinstance(arrived, TaskError)
    assert isinstance(arrived, skate.exceptions.RayTaskError)
    assert isinstance(arrived, SkateError)
    assert arrived.args == error.args
    assert type(arrived.cause) is type(error)
    assert arrived.cause.args == error.args
    assert str(error.args[0] if error.args else "") in str(arrived)
    assert type(error).__name__ in str(arrived)


def test_except_clauses_work_as_for_a_local_call() -> None:
    with pytest.raises(OSError) as caught:
        skate.get(fail.remote(FileNotFoundError(2, "No such file", "x")))
    assert caught.value.errno == 2
    assert caught.value.filename == "x"


def test_a_constructor_with_several_arguments() -> None:
    error = error_of(fail_with.remote(SeveralArguments, 7, "broken", fatal=True))
    assert isinstance(error, SeveralArguments)
    assert (error.code, error.reason, error.fatal) == (7, "broken", True)
    assert "broken (7)" in str(error)


def test_an_exception_with_its_own_text() -> None:
    error = error_of(fail_with.remote(OwnText, 5))
    assert isinstance(error, OwnText)
    assert error.amount == 5
    assert "amount was 5" in str(error)


def test_an_exception_with_slots() -> None:
    error = error_of(fail_with.remote(Slotted, 3))
    assert isinstance(error, Slotted)
    assert error.level == 3


def test_a_class_defined_in_the_test() -> None:
    class Local(ValueError):
        pass

    error = error_of(fail_with.remote(Local, "mine"))
    assert isinstance(error, Local)
    assert isinstance(error, TaskError)


def test_a_class_defined_in_the_task() -> None:
    @skate.remote
    def fail_with_own() -> None:
        class Inside(LookupError):
            pass

        raise Inside("from within")

    error = error_of(fail_with_own.remote())
    assert isinstance(error, LookupError)
    assert type(error.cause).__name__ == "Inside"


def test_the_cause_of_an_exception_is_told() -> None:
    @skate.remote
    def chained() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("outer") from error

    error = error_of(chained.remote())
    assert isinstance(error, ValueError)
    assert "KeyError: 'missing'" in str(error)
    assert "outer" in str(error)
    assert "direct cause" in str(error)


def test_notes_arrive() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("notes are of Python 3.11")

    @skate.remote
    def noted() -> None:
        error = ValueError("with note")
        error.add_note("look at line 7")
        raise error

    shown = "".join(traceback.format_exception(error_of(noted.remote())))
    assert shown.count("look at line 7") == 1


def test_exception_groups_arrive() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("exception groups are of Python 3.11")
    group = vars(builtins)["ExceptionGroup"]
    error = error_of(fail.remote(group("several", [ValueError("a"), KeyError("b")])))
    assert isinstance(error, group)
    assert [type(each) for each in error.exceptions] == [ValueError, KeyError]


def test_an_error_that_arrived_can_be_pickled() -> None:
    error = error_of(fail_with.remote(SeveralArguments, 7, "broken", fatal=True))
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, SeveralArguments)
    assert isinstance(copy, TaskError)
    assert str(copy) == str(error)


# --- those that cannot travel -----------------------------------------------------------------------------------------


def test_an_unpicklable_exception_has_a_faithful_stand_in() -> None:
    error = error_of(fail_with.remote(HoldsALock, "held tightly"))
    assert isinstance(error, TaskError)
    assert "HoldsALock" in str(error)
    assert "held tightly" in str(error)
    assert "raise kind(*args, **kwargs)" in str(error), "the remote traceback is there"


def test_an_exception_that_cannot_be_loaded_has_a_stand_in_too() -> None:
    error = error_of(fail_with.remote(FailsToLoad, "broken pickle"))
    assert isinstance(error, TaskError)
    assert "FailsToLoad" in str(error)
    assert "broken pickle" in str(error)


def test_an_exception_whose_text_fails() -> None:
    class NoText(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error = error_of(fail_with.remote(NoText))
    assert isinstance(error, TaskError)
    assert "NoText" in str(error)


def test_a_huge_message_arrives() -> None:
    error = error_of(fail_with.remote(ValueError, "x" * 3_000_000))
    assert len(error.args[0]) == 3_000_000


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, StopAsyncIteration])
def test_exceptions_that_would_end_the_driver_arrive_as_errors(kind: type[BaseException]) -> None:
    """A task that calls sys.exit() must not end the program that asked for its value."""
    with pytest.raises(TaskError) as caught:
        skate.get(fail_with.remote(kind, 3))
    assert isinstance(caught.value, Exception)
    assert isinstance(caught.value.cause, kind)
    assert kind.__name__ in str(caught.value)
    assert skate.get(take.remote(1)) == 1


def test_a_base_exception_of_the_user() -> None:
    class Stop(BaseException):
        pass

    with pytest.raises(TaskError) as caught:
        skate.get(fail_with.remote(Stop, "halt"))
    assert isinstance(caught.value.cause, Stop)


def test_sys_exit_in_a_task_is_an_error() -> None:
    with pytest.raises(TaskError, match="SystemExit"):
        skate.get(skate.remote(lambda: sys.exit(3)).remote())


def test_an_argument_that_cannot_be_loaded_in_the_worker_is_an_error() -> None:
    with pytest.raises(SkateError, match="not a number"):
        skate.get(take.remote(FailsToLoad("argument")))
    assert skate.get(take.remote("the worker goes on")) == "the worker goes on"


def test_endless_recursion_in_a_task() -> None:
    def endless(n: int) -> int:
        return endless(n + 1) + 1

    with pytest.raises(RecursionError):
        skate.get(skate.remote(endless).remote(0))


# --- the traceback ----------------------------------------------------------------------------------------------------


def test_the_traceback_shows_the_users_frames_and_no_others() -> None:
    @skate.remote
    def outer() -> None:
        inner(5)

    def inner(x: int) -> None:
        raise ValueError(f"at the bottom with {x}")

    text = str(error_of(outer.remote()))
    assert text.rstrip().endswith("ValueError: at the bottom with 5")
    assert "in outer" in text
    assert "inner(5)" in text
    assert "in inner" in text
    assert "test_errors.py" in text
    assert text.index("in outer") < text.index("in inner")
    assert "_worker/execute" not in text, "our own frames say nothing to the user"


def test_an_error_says_which_task_and_where() -> None:
    error = error_of(fail.options(name="my-task").remote(ValueError("x")))
    assert "my-task" in error.function_name
    assert error.pid > 0
    assert str(error.pid) in str(error)


def test_the_local_traceback_leads_to_the_users_get(tmp_path: Path) -> None:
    """What a user sees at the end of a failed program: the remote frames first, then the line that called get."""
    script = tmp_path / "script.py"
    script.write_text("""
import skate

@skate.remote
def divide(a, b):
    return a / b

def main():
    skate.get(divide.remote(1, 0))

main()
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "return a / b" in done.stderr
    assert "skate.get(divide.remote(1, 0))" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert done.stderr.count("Traceback") <= 2


# --- through chains of tasks ------------------------------------------------------------------------------------------


def test_an_error_passes_through_the_tasks_that_needed_the_value(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    @skate.remote
    def run(value: Any) -> None:
        ran.touch()

    error = error_of(take.remote(take.remote(run.remote(fail.remote(Plain("at the root"))))))
    assert isinstance(error, Plain)
    assert error.args == ("at the root",)
    assert not ran.exists(), "a task whose argument failed never runs"


def test_an_error_passes_through_gets_in_tasks() -> None:
    @skate.remote
    def level(n: int) -> None:
        if n == 0:
            raise Plain("bottom")
        skate.get(level.remote(n - 1))

    error = error_of(level.remote(3))
    assert isinstance(error, Plain)
    assert error.args == ("bottom",)
    assert str(error).count("in level") >= 2, "each task that it passed through is told"


def test_a_task_may_catch_the_error_of_another() -> None:
    @skate.remote
    def guarded() -> str:
        try:
            skate.get(fail.remote(Plain("caught")))
        except Plain as error:
            return f"handled {error.args[0]}"
        return "nothing"

    assert skate.get(guarded.remote()) == "handled caught"


def test_an_error_raised_because_of_another_tasks_error() -> None:
    @skate.remote
    def translate() -> None:
        try:
            skate.get(fail.remote(KeyError("inner")))
        except KeyError as error:
            raise ValueError("outer") from error

    error = error_of(translate.remote())
    assert isinstance(error, ValueError)
    assert not isinstance(error, KeyError)
    assert "inner" in str(error)


def test_an_error_among_many_arguments() -> None:
    collect = skate.remote(lambda *values: values)
    with pytest.raises(Plain):
        skate.get(collect.remote(1, skate.put(2), fail.remote(Plain()), take.remote(4)))


def test_every_get_raises_the_error_anew() -> None:
    ref = fail.remote(ValueError("again"))
    errors = [error_of(ref) for _ in range(3)]
    assert all(isinstance(error, ValueError) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert len({id(error) for error in errors}) == 3, "a shared instance would collect the tracebacks of all gets"


def test_a_worker_survives_exceptions() -> None:
    import os

    skate.shutdown()
    skate.init(num_cpus=1)
    pid = skate.remote(os.getpid)
    before = skate.get(pid.remote())
    for _ in range(20):
        error_of(fail.remote(ValueError()))
    assert skate.get(pid.remote()) == before


def test_errors_of_tasks_nobody_asks_for_are_no_trouble() -> None:
    for _ in range(20):
        fail.remote(ValueError("unseen"))
    assert skate.get(take.remote(1)) == 1


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "RayError",
        "RayTaskError",
        "RayActorError",
        "RaySystemError",
        "ActorDiedError",
        "ActorUnavailableError",
        "ActorUnschedulableError",
        "AsyncioActorExit",
        "GetTimeoutError",
        "NodeDiedError",
        "ObjectFetchTimedOutError",
        "ObjectLostError",
        "ObjectReconstructionFailedError",
        "ObjectStoreFullError",
        "OutOfDiskError",
        "OutOfMemoryError",
        "OwnerDiedError",
        "PendingCallsLimitExceeded",
        "RuntimeEnvSetupError",
        "TaskCancelledError",
        "TaskPlacementGroupRemoved",
        "TaskUnschedulableError",
        "WorkerCrashedError",
    ],
)
def test_the_names_of_ray_are_there(name: str) -> None:
    assert issubclass(getattr(skate.exceptions, name), SkateError)


def test_slots_of_a_class_that_was_sent_by_value() -> None:
    class Slotted(Exception):
        __slots__ = ("code",)

        def __init__(self, code: int) -> None:
            super().__init__("slotted")
            self.code = code

    @skate.remote
    def fail() -> None:
        raise Slotted(4)

    with pytest.raises(Slotted) as caught:
        skate.get(fail.remote())
    assert caught.value.code == 4


@dataclass(frozen=True)
class Frozen(Exception):
    """Nothing of it can be assigned, not even what Python itself would."""

    level: int


@pytest.mark.parametrize("in_actor", [False, True])
def test_an_exception_that_cannot_be_changed_arrives_as_itself(in_actor: bool) -> None:
    def fail() -> None:
        raise Frozen(3)

    @skate.remote
    class Actor:
        def __init__(self) -> None:
            fail()

    if in_actor:
        with pytest.raises(skate.exceptions.ActorDiedError, match="Frozen"):
            skate.get(Actor.remote().__ray_ready__.remote(), timeout=20)
        return
    with pytest.raises(Frozen) as caught:
        skate.get(skate.remote(fail).remote(), timeout=20)
    assert caught.value.level == 3
