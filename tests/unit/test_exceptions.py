"""The tree of errors: drawn as it is, named as Ray names it, and each error whole after pickling."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import cloudpickle
import pytest

from skate import exceptions
from skate.exceptions import SkateError, TaskError

CLASSES: dict[str, type[SkateError]] = {
    name: value
    for name, value in vars(exceptions).items()
    if isinstance(value, type) and issubclass(value, SkateError) and not name.startswith("_") and value.__name__ == name
}

#: For each class with facts of its own: facts, and pieces of the text that must come of them.
FACTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "TaskError": (
        {
            "cause": ValueError("bad", 3),
            "function_name": "load",
            "pid": 12,
            "node": "n1",
            "remote_traceback": "Traceback …\nValueError: bad",
        },
        ["Traceback …\nValueError: bad"],
    ),
    "TaskCancelledError": ({"task_name": "load", "was_running": True, "forced": True}, ["load", "force=True"]),
    "GetTimeoutError": (
        {"timeout_s": 1.5, "pending": 3, "total": 8, "reasons": ("load waits for 4 CPUs",)},
        ["1.5 s", "3 of 8 values", "load waits for 4 CPUs", "skate.cancel"],
    ),
    "TaskUnschedulableError": (
        {"name": "train", "asked": {"CPU": 8.0, "memory": 2**34}, "available": {"CPU": 2.0}},
        ["train", "CPU 8", "memory 16.0 GiB", "CPU 2"],
    ),
    "ActorUnschedulableError": (
        {"name": "Learner", "asked": {"GPU": 1.0}, "available": {"CPU": 2.0}},
        ["actor Learner", "GPU 1", "CPU 2"],
    ),
    "RuntimeEnvSetupError": ({"task_name": "load", "reason": "no such variable"}, ["load", "no such variable"]),
    "SerializationError": (
        {"what": "argument batch of task resize", "variable": "batch.lock", "reason": "a lock cannot be pickled"},
        ["argument batch of task resize", "batch.lock", "a lock cannot be pickled"],
    ),
    "MessageTooLargeError": (
        {"what": "the remote function train", "size_bytes": 300 << 20, "limit_bytes": 192 << 20},
        ["the remote function train", "300.0 MiB", "192.0 MiB", "skate.put()"],
    ),
    "NotInitializedError": ({"call": "skate.get()"}, ["skate.get()", "skate.init()"]),
    "NotInSkateError": (
        {"name": "ray.data.from_pandas_refs", "part": "Ray Data", "instead": "use skate.put()."},
        ["ray.data.from_pandas_refs", "without Ray Data", "next: use skate.put()."],
    ),
    "ForkedProcessError": ({"pid": 5, "parent_pid": 4}, ["process 5", "process 4", "spawn"]),
    "WorkerCrashedError": (
        {
            "task_name": "resize",
            "pid": 4123,
            "node": "n1",
            "exit_code": None,
            "signal": 9,
            "stderr_tail": ("killed",),
            "last_output": "loading\nkilled",
            "retries_used": 3,
            "max_retries": 3,
        },
        ["resize", "4123", "n1", "signal 9 (SIGKILL)", "loading\n", "killed", "retried 3 times"],
    ),
    "OutOfMemoryError": (
        {
            "task_name": "resize",
            "pid": 4123,
            "node": "n1",
            "used_bytes": 62 * 2**30,
            "total_bytes": 64 * 2**30,
            "limit": 0.95,
            "processes": (("resize", 4123, 31 * 2**30), ("firefox", 99, 2**30)),
            "retries_used": 0,
            "max_retries": 0,
        },
        [
            "resize",
            "97% of 64.0 GiB; the limit is 95%.",
            "31.0 GiB  resize (pid 4123)",
            "1.0 GiB  firefox (pid 99)",
            "max_retries=3",
        ],
    ),
    "NodeDiedError": (
        {"node": "n1", "pid": 77, "exit_code": 1, "signal": None, "stderr_tail": ("bye",)},
        ["pid 77", "n1", "code 1", "bye", "skate.init()"],
    ),
    "ObjectStoreFullError": (
        {
            "needed_bytes": 2**30,
            "capacity_bytes": 2**31,
            "holders": (("array of task load, read by pid 7", 2**30), ("put() by the driver", 2**29)),
            "waited_s": 10.0,
        },
        ["1.0 GiB", "2.0 GiB", "array of task load, read by pid 7", "512.0 MiB  put() by the driver", "10 s"],
    ),
    "OutOfDiskError": ({"path": "/spill", "needed_bytes": 2**30, "free_bytes": 0}, ["/spill", "1.0 GiB", "0 B"]),
    "ActorAlreadyExistsError": (
        {"actor_name": "Board", "namespace": "games", "look_up": "skate.get_actor('Board', 'games')"},
        ["'Board' is taken in namespace 'games'", "skate.get_actor('Board', 'games')", "get_if_exists"],
    ),
    "PendingCallsLimitExceeded": ({"actor_name": "Learner", "limit": 10}, ["Learner", "10 calls"]),
    "SystemLimitError": (
        {"what": "no node could be started.", "limit": "`ulimit -n` is 40.", "next": "close files."},
        ["no node", "ulimit -n", "close files"],
    ),
    "InternalError": (
        {"detail": "task t finished twice", "story": ("queued", "running")},
        ["twice", "queued", "report"],
    ),
}
OBJECT_FACTS = {"object_id": "ab12", "task_name": "load", "reason": "the disk broke"}
ACTOR_FACTS = {
    "actor_id": "ab12",
    "actor_name": "Learner",
    "reason": "its process was killed",
    "last_output": "one\ntwo",
}
for _name, _class in CLASSES.items():
    if issubclass(_class, exceptions.ObjectLostError):
        FACTS[_name] = (OBJECT_FACTS, ["ab12", "load", "the disk broke"])
    elif issubclass(_class, exceptions.ActorError):
        FACTS[_name] = (
            ACTOR_FACTS,
            ["Learner", "its process was killed", "the last 2 lines that it printed:\n        one\n        two"],
        )


def same(one: Any, other: Any) -> bool:
    """Equal, where exceptions are equal when their class and arguments are."""
    if isinstance(one, BaseException):
        return type(one) is type(other) and one.args == other.args
    return bool(one == other)


def test_docstring_draws_the_tree_as_it_is() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (exceptions.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ]*[├└]── )?(\w+Error|\w+Removed|\w+Exceeded|\w+Exit)(\s|$)", line)
        if match:
            depth = len(match[1] or "") // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else ""
    found = {
        name: next((base.__name__ for base in value.__mro__[1:] if base.__name__ in CLASSES), "")
        for name, value in CLASSES.items()
    }
    assert drawn == found


def test_all_lists_every_public_name() -> None:
    public = {name for name, value in vars(exceptions).items() if isinstance(value, type) and name[0].isupper()}
    public -= {"Any", "Callable", "Iterable", "Mapping"}
    assert set(exceptions.__all__) == public
    assert len(exceptions.__all__) == len(set(exceptions.__all__))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_says_when_you_see_it(name: str) -> None:
    assert "__doc__" in vars(CLASSES[name])
    assert (CLASSES[name].__doc__ or "").strip()


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps, None], ids=["pickle", "cloudpickle", "copy"])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_survives_pickling_and_copying_with_its_facts(name: str, dumps: Any) -> None:
    facts, _ = FACTS.get(name, ({}, []))
    error = CLASSES[name](**facts)
    again = copy.copy(error) if dumps is None else pickle.loads(dumps(error))
    assert again is not error
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    for fact, value in facts.items():
        assert same(getattr(again, fact), value), fact


@pytest.mark.parametrize("name", sorted(FACTS))
def test_facts_are_attributes_and_in_the_text(name: str) -> None:
    facts, pieces = FACTS[name]
    error = CLASSES[name](**facts)
    for fact, value in facts.items():
        assert same(getattr(error, fact), value), fact
    for piece in pieces:
        assert piece in str(error)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_can_be_made_without_facts_or_with_a_text(name: str) -> None:
    """Programs written for Ray raise some of these themselves."""
    kind = CLASSES[name]
    bare = str(kind())
    assert "None" not in bare
    if name not in ("SkateError", "SkateSystemError", "AsyncioActorExit"):
        assert bare
    assert str(kind("as I say")) == "as I say"
    assert str(pickle.loads(pickle.dumps(kind("as I say")))) == "as I say"


@pytest.mark.parametrize("name", sorted(set(CLASSES) - {"TaskError"}))
def test_texts_are_a_headline_and_labelled_lines(name: str) -> None:
    facts, _ = FACTS.get(name, ({}, []))
    headline, *lines = str(CLASSES[name](**facts)).splitlines() or [""]
    assert not headline.startswith(" ")
    for line in lines:
        assert re.match(r"  (what|why|next|log): +\S|        ", line), line


@pytest.mark.parametrize(
    ("name", "standard"),
    [
        ("GetTimeoutError", TimeoutError),
        ("SerializationError", TypeError),
        ("NotInitializedError", RuntimeError),
        ("ForkedProcessError", RuntimeError),
    ],
)
def test_errors_that_python_has_a_class_for_are_instances_of_it(name: str, standard: type[Exception]) -> None:
    assert issubclass(CLASSES[name], standard)


def test_rays_names_are_there() -> None:
    assert exceptions.RayError is SkateError
    assert exceptions.RayTaskError is TaskError
    assert exceptions.RayActorError is exceptions.ActorError
    assert exceptions.RaySystemError is exceptions.SkateSystemError
    assert exceptions.LocalRayletDiedError is exceptions.NodeDiedError
    assert exceptions.PlasmaObjectNotAvailable is exceptions.ObjectLostError


def test_a_cancelled_task_does_not_swallow_its_interrupt() -> None:
    assert not issubclass(exceptions.TaskInterrupt, Exception)
    assert issubclass(exceptions.TaskInterrupt, KeyboardInterrupt)


def test_notes_survive_pickling() -> None:
    error = exceptions.NodeDiedError(node="n1")
    error.__dict__["__notes__"] = ["seen at noon"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen at noon"]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"exit_code": 3}, "exited with code 3"),
        ({"signal": 11}, "signal 11 (SIGSEGV)"),
        ({"signal": 250}, "signal 250"),
        ({}, "not known how"),
        ({"signal": 9, "reason": "its group was removed"}, "why:  its group was removed."),
    ],
)
def test_crash_says_how_the_process_ended(facts: dict[str, Any], text: str) -> None:
    assert text in str(exceptions.WorkerCrashedError(task_name="f", pid=1, **facts))


def test_object_larger_than_the_store_says_so() -> None:
    error = exceptions.ObjectStoreFullError(needed_bytes=2**31, capacity_bytes=2**30)
    assert "larger than the whole store" in str(error)


def test_task_error_made_by_hand_shows_its_cause() -> None:
    error = TaskError(cause=KeyError("x"), function_name="load")
    assert error.args == ("x",)
    assert "load" in str(error)
    assert "KeyError('x')" in str(error)


def test_owner_that_died_is_named() -> None:
    error = exceptions.OwnerDiedError(object_id="ab12", owner_pid=77)
    assert error.owner_pid == 77
    assert "(pid 77) died" in str(error)
    assert pickle.loads(pickle.dumps(error)).owner_pid == 77


@pytest.mark.parametrize("by_name", [False, True])
def test_a_task_error_can_be_made_as_in_ray(by_name: bool) -> None:
    class Mine(exceptions.RayTaskError):
        def __init__(self, name: str, text: str, cause: Exception) -> None:
            if by_name:
                super().__init__(function_name=name, traceback_str=text, cause=cause)
            else:
                super().__init__(name, text, cause)

    cause = KeyError("k")
    error = Mine("f", "a traceback", cause)
    assert (error.function_name, error.traceback_str, error.cause) == ("f", "a traceback", cause)
    assert str(error) == error.remote_traceback == "a traceback"
    assert (error.ip, error.proctitle, error.actor_repr, error.actor_id) == (None,) * 4
    whole = exceptions.RayTaskError("f", "", cause, "title", 7, "10.0.0.7", "Actor(1)", "ab12")
    again = pickle.loads(pickle.dumps(whole))
    assert (again.proctitle, again.pid, again.ip, again.actor_repr, again.actor_id) == (
        "title", 7, "10.0.0.7", "Actor(1)", "ab12"
    )  # fmt: skip
    assert "task f raised KeyError" in str(again)


def test_errors_of_actors_and_objects_can_be_made_as_in_ray() -> None:
    assert exceptions.ActorDiedError("it is gone").error_msg == "it is gone"
    away = exceptions.ActorUnavailableError("not now", b"\xab\x12")
    assert (away.error_msg, away.actor_id) == ("not now", "ab12")
    assert exceptions.ActorUnavailableError("not now", None).actor_id == ""
    for kind in (exceptions.ObjectLostError, exceptions.OwnerDiedError, exceptions.ReferenceCountingAssertionError):
        lost = pickle.loads(pickle.dumps(kind("ab12", b"owner", "line 1")))
        assert (lost.object_ref_hex, lost.object_id, lost.owner_address) == ("ab12", "ab12", b"owner")
        assert lost.call_site == "line 1"
        assert str(lost).startswith("object ab12 is lost.")


def test_a_subclass_may_set_what_ray_names_otherwise() -> None:
    class Mine(exceptions.RayActorError):
        def __init__(self) -> None:
            self.error_msg = "mine"

    assert Mine().error_msg == "mine"
