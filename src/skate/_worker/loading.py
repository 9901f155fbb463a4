"""The arguments of a task, where it runs: those that came with it, lie in shared memory, or are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skate._core.task import ALL_ARGUMENTS, Arg, Extra, Task
from skate._serialize.values import deserialize
from skate._worker.waits import Wait
from skate.exceptions import ObjectFetchTimedOutError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


class OutOfReach(Exception):
    """An argument of a task lies on a node that could not be reached for too long: the task has not begun."""


def load_arguments(runtime: Runtime, task: Task, extra: Extra) -> tuple[list[Any], dict[str, Any]]:
    if not extra.args:
        return _split(deserialize(task.args) if task.args else ())
    stored = {arg.id: arg.value for arg in extra.args if isinstance(arg.value, int)}
    views = dict(zip(stored, _views(runtime, task, list(stored.items())), strict=True)) if stored else {}
    late = _fetch(runtime, [arg for arg in extra.args if arg.late])
    loaded: Any = deserialize(task.args) if task.args else ()
    values: list[tuple[int | str, Any]] = []
    for arg in extra.args:
        data = views[arg.id] if type(arg.value) is int else arg.value
        if data is None:
            raise runtime.borrowing.loss_of(arg.id, arg.owner)
        value = late[arg.id] if arg.late else deserialize(data)  # type: ignore[arg-type]
        if arg.at == ALL_ARGUMENTS:
            loaded = value
        else:
            values.append((arg.at, value))
    args, kwargs = _split(loaded)
    for at, value in values:
        if isinstance(at, int):
            args[at] = value
        else:
            kwargs[at] = value
    return args, kwargs


def _views(runtime: Runtime, task: Task, stored: list[tuple[bytes, int]]) -> list[memoryview | None]:
    runtime.waits[task.id] = Wait(stored, are_arguments=True)
    try:
        return runtime.store.views(stored, is_patient=True)
    except ObjectFetchTimedOutError as error:
        raise OutOfReach from error
    finally:
        runtime.waits.pop(task.id, None)


def _split(loaded: Any) -> tuple[list[Any], dict[str, Any]]:
    """A list marks keywords: a task without them carries its arguments as a tuple."""
    args, kwargs = loaded if type(loaded) is list else (loaded, {})
    return list(args), kwargs


def _fetch(runtime: Runtime, late: list[Arg]) -> dict[bytes, Any]:
    """The task would have been too large with these. Its submitter holds them until it has ended."""
    if not late:
        return {}
    values = runtime.get([runtime.adopt(arg.id, arg.owner) for arg in late], None)
    return {arg.id: value for arg, value in zip(late, values, strict=True)}
