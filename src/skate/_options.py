"""Every option of a task, declared once: its type, its default, what it may be, and what it means.

    @skate.remote(num_cpus=2, max_retries=0)        task_options(num_cpus=2, max_retries=0)
    f.options(num_cpus=0.5)                         merge(options of f, num_cpus=0.5)

Owns:      `TaskOptions`. Each field carries a `Rule` beside its type; the checks, the texts of the errors and the list
           of options that users see are made from these rules and from nothing else.
Invariant: a TaskOptions holds only values that were checked, in one form each: amounts are floats in steps of 1/10000,
           a list of exception types is a tuple, a dict is no longer the user's. So nothing is checked again later.
Errors:    an unknown option is a ValueError, a value of the wrong type a TypeError, one out of range a ValueError;
           raised at decoration, with the name of the option, the value, and what it may be. None means the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

from skate._core.resources import AMOUNT_MAX, PRECISION

# --- checks: a value in, the value in its one form out; TypeError or ValueError with the reason, as a clause ----------


def _amount(value: object) -> float:
    # Booleans are numbers to Python, but num_gpus=True is a mistake.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError("it is not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("it is not a finite number")
    if number < 0:
        raise ValueError("it is negative")
    if number > AMOUNT_MAX:
        raise ValueError(f"it is more than {AMOUNT_MAX:.0f}")
    # Rounded down, so that seven tasks of 1/7 fit on one CPU; but 0.57 × 10000, just below 5700 in floats, stays 5700.
    units = math.floor(number * PRECISION + 1e-6)
    if number > 0 and units == 0:
        raise ValueError(f"it is less than {1 / PRECISION}, the finest fraction")
    return units / PRECISION


def _gpus(value: object) -> float:
    amount = _amount(value)
    if amount > 1 and amount != int(amount):
        raise ValueError("above 1 it must be whole, because a task cannot have halves of two GPUs")
    return amount


def _bytes(value: object) -> int:
    return math.ceil(_amount(value))


_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory", "object_store_memory": "object_store_memory"}


def _resources(value: object) -> dict[str, float]:
    checked: dict[str, float] = {}
    for name, amount in _mapping(value).items():
        if name in _OWN_OPTIONS:
            instead = f"use {_OWN_OPTIONS[name]}=" if name != "object_store_memory" else "it cannot be reserved"
            raise ValueError(f"{name!r} is not a custom resource: {instead}")
        try:
            checked[name] = _amount(amount)
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"the amount of {name!r} is {_short(amount)}, and {reason}") from None
    return checked


def _whole(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("it is not a whole number")
    number = int(value)
    if number < least:
        raise ValueError(f"it is less than {least}")
    return number


def _retries(value: object) -> int:
    return _whole(value, -1)


def _at_least_0(value: object) -> int:
    return _whole(value, 0)


def _at_least_1(value: object) -> int:
    return _whole(value, 1)


def _num_returns(value: object) -> int | Literal["streaming", "dynamic"]:
    if value == "streaming":
        return "streaming"
    if value == "dynamic":
        return "dynamic"
    if isinstance(value, str):
        raise ValueError("it is neither a number nor one of these words")
    return _whole(value, 0)


def _retry_exceptions(value: object) -> bool | tuple[type[BaseException], ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, type) and issubclass(value, BaseException):
        raise TypeError(f"a single class goes into a list, [{value.__name__}]")
    if not isinstance(value, (list, tuple)):
        raise TypeError("it is neither True or False nor a list")
    for each in value:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError(f"{_short(each)} is not an exception class")
    return tuple(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is neither True nor False")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("it is not a dict")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"the name {_short(name)} is not a string")
        if not name:
            raise ValueError("one of the names is empty")
    return dict(value)


def _texts(value: object) -> dict[str, str]:
    checked = _mapping(value)
    for name, text in checked.items():
        if not isinstance(text, str):
            raise TypeError(f"the value of {name!r} is {_short(text)}, which is not a string")
    return checked


def _runtime_env(value: object) -> dict[str, dict[str, str]]:
    given = _mapping(value)
    unknown = [key for key in given if key != "env_vars"]
    if unknown:
        raise ValueError(f"this version of Skate knows only 'env_vars', and not {', '.join(map(repr, unknown))}")
    try:
        variables = _texts(given.get("env_vars") or {})
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"in env_vars {reason}") from None
    for name, text in variables.items():
        # The kernel keeps a variable as NAME=value and ends it with a zero byte.
        if "=" in name or "\0" in name + text:
            raise ValueError(f"in env_vars {name!r} holds a character that an environment cannot: '=' or a zero byte")
    return {"env_vars": variables} if variables else {}


def _strategy(value: object) -> Literal["DEFAULT", "SPREAD"]:
    if value == "DEFAULT":
        return "DEFAULT"
    if value == "SPREAD":
        return "SPREAD"
    raise (ValueError if isinstance(value, str) else TypeError)("on one machine there are no other strategies")


# --- the options ------------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What belongs to an option beside its type and default."""

    check: Callable[[Any], Any]
    #: Completes "it may be …", in errors and in the reference.
    may_be: str
    meaning: str


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one remote function. Made by `task_options` and `merge`, which check them."""

    num_cpus: Annotated[
        float, Rule(_amount, "a number of CPUs, 0 or more, whole or not", "CPUs that the task holds while it runs")
    ] = 1.0
    num_gpus: Annotated[
        float,
        Rule(_gpus, "a fraction of one GPU or a whole number of them, 0 or more", "GPUs that it holds while it runs"),
    ] = 0.0
    resources: Annotated[
        dict[str, float],
        Rule(_resources, 'a dict from names to amounts, e.g. {"licence": 1}', "custom resources that it holds"),
    ] = {}
    memory: Annotated[
        int, Rule(_bytes, "a number of bytes, 0 or more", "memory to reserve for it; it is not held to that")
    ] = 0
    num_returns: Annotated[
        int | Literal["streaming", "dynamic"] | None,
        Rule(
            _num_returns,
            'a whole number, 0 or more, "streaming" or "dynamic"',
            'how many references a call gives; by default 1, and "streaming" for a generator function',
        ),
    ] = None
    max_retries: Annotated[
        int,
        Rule(_retries, "a whole number, 0 or more, or -1 for no end", "how often it is run again when its worker dies"),
    ] = 3
    retry_exceptions: Annotated[
        bool | tuple[type[BaseException], ...],
        Rule(
            _retry_exceptions,
            "True, False or a list of exception classes, e.g. [OSError]",
            "which exceptions of the function, besides crashes, are reason to run it again",
        ),
    ] = False
    max_calls: Annotated[
        int,
        Rule(
            _at_least_0,
            "a whole number, 0 or more; 0 means never",
            "after so many runs the worker is replaced, for functions that leak",
        ),
    ] = 0
    name: Annotated[str, Rule(_text, "a string", "what logs and tools call it; by default the function's name")] = ""
    runtime_env: Annotated[
        dict[str, dict[str, str]],
        Rule(
            _runtime_env,
            'a dict like {"env_vars": {"OMP_NUM_THREADS": "1"}}, with strings for values',
            "environment variables of the process that runs it",
        ),
    ] = {}
    scheduling_strategy: Annotated[
        Literal["DEFAULT", "SPREAD"],
        Rule(_strategy, '"DEFAULT" or "SPREAD"', "how a node is chosen; with one machine both mean that one"),
    ] = "DEFAULT"
    accelerator_type: Annotated[
        str, Rule(_text, "the name of an accelerator, a string", "the accelerator that its node should have")
    ] = ""
    label_selector: Annotated[
        dict[str, str], Rule(_texts, "a dict from labels to strings", "labels that its node should have")
    ] = {}
    enable_task_events: Annotated[bool, Rule(_flag, "True or False", "whether the timeline shows it")] = True
    _metadata: Annotated[
        dict[str, Any], Rule(_mapping, "a dict with strings for keys", "notes that libraries keep with a function")
    ] = {}
    _generator_backpressure_num_objects: Annotated[
        int | None,
        Rule(
            _at_least_1,
            "a whole number, 1 or more",
            "how many values a generator may be ahead of its reader before it waits",
        ),
    ] = None

    def resources_needed(self) -> dict[str, float]:
        """All that the task holds while it runs, by the names that nodes use, without zeros."""
        needed = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory), **self.resources}
        return {name: amount for name, amount in needed.items() if amount}


#: The rules by name, in the order of declaration.
RULES: dict[str, Rule] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(TaskOptions, include_extras=True).items()
}
DEFAULTS = TaskOptions()


def task_options(**given: Any) -> TaskOptions:
    """The options given in @remote(...), checked; defaults for the rest."""
    return merge(DEFAULTS, **given)


def merge(base: TaskOptions, **given: Any) -> TaskOptions:
    """`base` with the options given in .options(...), checked. None sets one back to its default."""
    return msgspec.structs.replace(base, **{name: _checked(name, value) for name, value in given.items()})


def _checked(name: str, value: Any) -> Any:
    rule = RULES.get(name)
    if rule is None:
        raise _unknown(name)
    if value is None:
        return getattr(DEFAULTS, name)
    try:
        return rule.check(value)
    except (TypeError, ValueError) as error:
        default = getattr(DEFAULTS, name)
        raise type(error)(
            f"{name}={_short(value)} is not a value for this task option.\n"
            f"  why:  {error}.\n"
            f"  next: it may be {rule.may_be}" + (f" (default {default!r})." if default or default == 0 else ".")
        ) from None


def _unknown(name: str) -> ValueError:
    import difflib  # Slow to import, and needed only here.

    close = difflib.get_close_matches(name, RULES, n=3)
    return ValueError(
        f"{name!r} is not an option of a task.\n"
        + (f"  next: did you mean {' or '.join(close)}?\n" if close else "")
        + f"  there are: {', '.join(RULES)}."
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
