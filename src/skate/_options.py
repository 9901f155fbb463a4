"""Every option of tasks, actors and methods, declared once: its type, its default, what it may be, what it means.

    @skate.remote(num_cpus=2) on a function         task_options(num_cpus=2)
    @skate.remote(max_restarts=1) on a class        actor_options(max_restarts=1)
    @skate.method(num_returns=2)                    method_options(num_returns=2)
    anything.options(name="x")                      merge(its options, name="x")

Owns:      `TaskOptions`, `ActorOptions`, `MethodOptions`. Each field carries a `Rule` beside its type; the checks, the
           texts of the errors and the list of options that users see are made from these rules and from nothing else.
Invariant: such a record holds only values that were checked, in one form each: amounts are floats in steps of 1/10000,
           a list of exception types is a tuple, a dict is no longer the user's. So nothing is checked again later.
Errors:    an unknown option is a ValueError, a value of the wrong type a TypeError, one out of range a ValueError;
           raised at decoration, with the name of the option, the value, and what it may be. None means the default.
           Names that begin with `_` are private to Ray: those that are unknown here are accepted, without effect.
           An option of something else (max_retries on a class) is refused with the place where it belongs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec

from skate._core.placement import ANYWHERE, Where
from skate._core.resources import AMOUNT_MAX, PRECISION
from skate._message_limits import TEXT_BYTES_MAX
from skate.strategies import PlacementGroupSchedulingStrategy, Strategy, selected

#: The largest number that messages carry.
WHOLE_MAX = 2**63 - 1

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
        raise ValueError("above 1 it must be whole, because halves of two GPUs are not one")
    return amount


def _bytes(value: object) -> int:
    return math.ceil(_amount(value))  # of a product such as 0.6 * total


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
    if number > WHOLE_MAX:
        raise ValueError(f"it is more than {WHOLE_MAX}")
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


def _pending(value: object) -> int:
    number = _whole(value, -1)
    if number == 0:
        raise ValueError("with 0 nothing could ever be called")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not a string")
    text = str.__str__(value)  # the text of a numpy.str_ or an enumeration, and nothing else of it
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate), which cannot be sent") from None
    if size > TEXT_BYTES_MAX:
        raise ValueError(f"it has {size:,} bytes, and {TEXT_BYTES_MAX:,} are the most")
    return text


def checked_text(call: str, argument: str, value: object) -> str:
    """The same for an argument of an API call."""
    try:
        return _text(value)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"{call}({argument}={_short(value)}): {reason}; it may be a string.") from None


def checked_amount(call: str, argument: str, value: object) -> float:
    try:
        return _amount(value)
    except (TypeError, ValueError) as reason:
        raise ValueError(f"{call}({argument}={_short(value)}): {reason}; it may be a number, 0 or more.") from None


def checked_labels(value: object) -> dict[str, str]:
    """Labels of a node."""
    try:
        return _texts({} if value is None else value)
    except (TypeError, ValueError) as reason:
        raise type(reason)(f"init(labels={_short(value)}): {reason}; it may be a dict of strings.") from None


def _some_text(value: object) -> str:
    text = _text(value)
    if not text:
        raise ValueError("it is empty")
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is neither True nor False")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("it is not a dict")
    checked: dict[str, Any] = {}
    size = 0
    for name, content in value.items():
        if not isinstance(name, str):
            raise TypeError(f"the name {_short(name)} is not a string")
        if not name:
            raise ValueError("one of the names is empty")
        try:
            checked[_text(name)] = content
        except ValueError as reason:
            raise ValueError(f"of the name {_short(name)}: {reason}") from None
        size += sum(len(text.encode(errors="replace")) for text in (name, content) if isinstance(text, str))
        if size > TEXT_BYTES_MAX:
            raise ValueError(f"its texts have together more than {TEXT_BYTES_MAX:,} bytes, which are the most")
    return checked


def _list_of_dicts(value: object) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError("it is not a list")
    return [_mapping(each) for each in value]


def _texts(value: object) -> dict[str, str]:
    checked = _mapping(value)
    for name, text in checked.items():
        if not isinstance(text, str):
            raise TypeError(f"the value of {name!r} is {_short(text)}, which is not a string")
        try:
            checked[name] = _text(text)
        except ValueError as reason:
            raise ValueError(f"the value of {name!r} is {_short(text)}: {reason}") from None
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


def _strategy(value: object) -> str | Strategy:
    if isinstance(value, Strategy):
        return value
    if value in ("DEFAULT", "SPREAD"):
        return str(value)
    raise (ValueError if isinstance(value, str) else TypeError)("it is neither of these words, nor a strategy")


def _label_selector(value: object) -> dict[str, str]:
    selector = _texts(value)
    selected(selector)
    return selector


def _lifetime(value: object) -> Literal["detached"] | None:
    word = _text(value)
    if word == "detached":
        return "detached"
    if word == "non_detached":
        return None
    raise ValueError("it is neither of these words")


def _concurrency_groups(value: object) -> dict[str, int]:
    limits: dict[str, int] = {}
    for name, limit in _mapping(_groups_by_name(value) if isinstance(value, (list, tuple)) else value).items():
        try:
            limits[name] = _whole(limit, 1)
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"the limit of {name!r} is {_short(limit)}, and {reason}") from None
    return limits


def _groups_by_name(listed: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    """[{"name": "io", "max_concurrency": 2}], which Ray also takes, as {"io": 2}."""
    groups: dict[str, Any] = {}
    for each in listed:
        if not isinstance(each, Mapping):
            raise TypeError(f"{_short(each)} in the list is not a dict")
        if set(each) != {"name", "max_concurrency"}:
            raise ValueError(f"{_short(each)} in the list does not have just the keys 'name' and 'max_concurrency'")
        name = each["name"]
        if not isinstance(name, str):
            raise TypeError(f"the name {_short(name)} is not a string")
        if name in groups:
            raise ValueError(f"the name {name!r} is there twice")
        groups[name] = each["max_concurrency"]
    return groups


# --- the rules that several kinds share -------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What belongs to an option beside its type and default."""

    check: Callable[[Any], Any]
    #: Completes "it may be …", in errors and in the reference.
    may_be: str
    meaning: str
    #: For an option that is checked and changes nothing, the reason: for programs that give it to Ray.
    no_effect: str = ""


_NUM_GPUS = Rule(
    _gpus, "a fraction of one GPU or a whole number of them, 0 or more", "GPUs that it holds while it runs"
)
_RESOURCES = Rule(_resources, 'a dict from names to amounts, e.g. {"licence": 1}', "custom resources that it holds")
_MEMORY = Rule(_bytes, "a number of bytes, 0 or more", "memory to reserve for it; it is not held to that")
_NUM_RETURNS = Rule(
    _num_returns,
    'a whole number, 0 or more, "streaming" or "dynamic"',
    'how many references a call gives; by default 1, and "streaming" for a generator function',
)
_RETRY_EXCEPTIONS = Rule(
    _retry_exceptions,
    "True, False or a list of exception classes, e.g. [OSError]",
    "which exceptions of the function, besides crashes, are reason to run it again",
)
_RUNTIME_ENV = Rule(
    _runtime_env,
    'a dict like {"env_vars": {"OMP_NUM_THREADS": "1"}}, with strings for values',
    "environment variables of the process that runs it",
)
_SCHEDULING_STRATEGY = Rule(
    _strategy,
    '"DEFAULT", "SPREAD" or one of skate.strategies',
    "how a node is chosen: this one if it can, evenly over all, or as the strategy says",
)
_ACCELERATOR_TYPE = Rule(
    _text,
    "the name of an accelerator, a string",
    "the accelerator that its node should have",
    no_effect="nodes do not say which accelerators they have; `resources` or `label_selector` can choose a node",
)
_LABEL_SELECTOR = Rule(
    _label_selector,
    "a dict from labels to 'v', '!v', 'in(a, b)' or '!in(a, b)'",
    "labels that its node must have, or must not",
)
_FALLBACK_STRATEGY = Rule(
    _list_of_dicts,
    'a list of dicts like {"label_selector": {…}}',
    "label selectors to try when no node meets the first",
    no_effect="only `label_selector` counts",
)
_OBJECT_STORE_MEMORY = Rule(
    _bytes,
    "a number of bytes, 0 or more",
    "part of the store for it",
    no_effect="the store is shared, and grows as needed",
)
_TASK_EVENTS = Rule(
    _flag, "True or False", "whether the timeline shows it", no_effect="the timeline shows every task and every call"
)
_METADATA = Rule(
    _mapping, "a dict with strings for keys", "notes that libraries keep with it", no_effect="nothing reads it"
)
_BACKPRESSURE = Rule(
    _at_least_1, "a whole number, 1 or more", "how many values a generator may be ahead of its reader before it waits"
)


# --- the options ------------------------------------------------------------------------------------------------------


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one remote function. Made by `task_options` and `merge`, which check them."""

    num_cpus: Annotated[
        float, Rule(_amount, "a number of CPUs, 0 or more, whole or not", "CPUs that the task holds while it runs")
    ] = 1.0
    num_gpus: Annotated[float, _NUM_GPUS] = 0.0
    resources: Annotated[dict[str, float], _RESOURCES] = {}
    memory: Annotated[int, _MEMORY] = 0
    num_returns: Annotated[int | Literal["streaming", "dynamic"] | None, _NUM_RETURNS] = None
    max_retries: Annotated[
        int,
        Rule(_retries, "a whole number, 0 or more, or -1 for no end", "how often it is run again when its worker dies"),
    ] = 3
    retry_exceptions: Annotated[bool | tuple[type[BaseException], ...], _RETRY_EXCEPTIONS] = False
    max_calls: Annotated[
        int,
        Rule(
            _at_least_0,
            "a whole number, 0 or more; 0 means never",
            "after so many runs the worker is replaced, for functions that leak",
        ),
    ] = 0
    name: Annotated[str, Rule(_text, "a string", "what logs and tools call it; by default the function's name")] = ""
    runtime_env: Annotated[dict[str, dict[str, str]], _RUNTIME_ENV] = {}
    scheduling_strategy: Annotated[str | Strategy, _SCHEDULING_STRATEGY] = "DEFAULT"
    accelerator_type: Annotated[str, _ACCELERATOR_TYPE] = ""
    label_selector: Annotated[dict[str, str], _LABEL_SELECTOR] = {}
    fallback_strategy: Annotated[list[Any], _FALLBACK_STRATEGY] = []
    object_store_memory: Annotated[int, _OBJECT_STORE_MEMORY] = 0
    enable_task_events: Annotated[bool, _TASK_EVENTS] = True
    _metadata: Annotated[dict[str, Any], _METADATA] = {}
    _generator_backpressure_num_objects: Annotated[int | None, _BACKPRESSURE] = None

    def resources_needed(self) -> dict[str, float]:
        """All that the task holds while it runs, by the names that nodes use, without zeros."""
        return _by_node_names(self.num_cpus, self)

    def where(self) -> Where | None:
        """Where it wants to run."""
        return _where(self)


class ActorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one remote class. Made by `actor_options` and `merge`, which check them."""

    num_cpus: Annotated[
        float | None,
        Rule(
            _amount,
            "a number of CPUs, 0 or more, whole or not",
            "CPUs that the actor holds while it lives; by default none, on a node that has at least one",
        ),
    ] = None
    num_gpus: Annotated[float, _NUM_GPUS] = 0.0
    resources: Annotated[dict[str, float], _RESOURCES] = {}
    memory: Annotated[int, _MEMORY] = 0
    name: Annotated[
        str, Rule(_some_text, "a string that is not empty", "the name by which skate.get_actor finds it; else none")
    ] = ""
    namespace: Annotated[
        str, Rule(_some_text, "a string that is not empty", "where its name is known; by default that of skate.init")
    ] = ""
    get_if_exists: Annotated[
        bool, Rule(_flag, "True or False", "whether an actor that has this name already is taken instead of a new one")
    ] = False
    lifetime: Annotated[
        Literal["detached"] | None,
        Rule(
            _lifetime,
            '"detached" or "non_detached"',
            "when it ends: with its last handle or its owner (the default), or detached, only when it is killed",
        ),
    ] = None
    max_restarts: Annotated[
        int,
        Rule(_retries, "a whole number, 0 or more, or -1 for no end", "how often it is started again when it dies"),
    ] = 0
    max_task_retries: Annotated[
        int,
        Rule(
            _retries,
            "a whole number, 0 or more, or -1 for no end",
            "how often a call is run again when the actor dies during it",
        ),
    ] = 0
    max_concurrency: Annotated[
        int | None,
        Rule(
            _at_least_1,
            "a whole number, 1 or more",
            "how many calls run in it at once; by default 1, and 1000 if it has async methods",
        ),
    ] = None
    concurrency_groups: Annotated[
        dict[str, int],
        Rule(
            _concurrency_groups,
            'a dict from names to limits of 1 or more, e.g. {"io": 2}, or [{"name": "io", "max_concurrency": 2}]',
            "groups of methods, and how many calls of each group run at once",
        ),
    ] = {}
    max_pending_calls: Annotated[
        int,
        Rule(
            _pending,
            "a whole number, 1 or more, or -1 for no limit",
            "how many calls of one caller may wait before the next one is refused",
        ),
    ] = -1
    runtime_env: Annotated[dict[str, dict[str, str]], _RUNTIME_ENV] = {}
    scheduling_strategy: Annotated[str | Strategy, _SCHEDULING_STRATEGY] = "DEFAULT"
    accelerator_type: Annotated[str, _ACCELERATOR_TYPE] = ""
    label_selector: Annotated[dict[str, str], _LABEL_SELECTOR] = {}
    fallback_strategy: Annotated[list[Any], _FALLBACK_STRATEGY] = []
    object_store_memory: Annotated[int, _OBJECT_STORE_MEMORY] = 0
    enable_task_events: Annotated[bool, _TASK_EVENTS] = True
    allow_out_of_order_execution: Annotated[
        bool | None,
        Rule(
            _flag,
            "True or False",
            "whether a call may overtake an earlier one that waits for its arguments; by default only if several run "
            "at once",
        ),
    ] = None
    _metadata: Annotated[dict[str, Any], _METADATA] = {}

    def resources_needed(self) -> dict[str, float]:
        """All that the actor holds while it lives, by the names that nodes use, without zeros."""
        return _by_node_names(self.num_cpus or 0.0, self)

    def resources_to_place(self) -> dict[str, float]:
        """All that a node must have, free or not, for the actor to start there.

        By default that is one CPU more than the actor holds: actors mostly wait, so a machine holds more of them than
        it has CPUs; but a node without any CPU (a head that only keeps the books) is not the place for one.
        """
        return _by_node_names(1.0 if self.num_cpus is None else self.num_cpus, self)

    def where(self) -> Where | None:
        """Where it wants to live."""
        return _where(self)


class MethodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one method of an actor. Made by `method_options` and `merge`, which check them."""

    num_returns: Annotated[int | Literal["streaming", "dynamic"] | None, _NUM_RETURNS] = None
    concurrency_group: Annotated[
        str | None,
        Rule(_some_text, "the name of a group, a string", "the group of the actor's concurrency_groups that runs it"),
    ] = None
    max_task_retries: Annotated[
        int | None,
        Rule(
            _retries,
            "a whole number, 0 or more, or -1 for no end",
            "how often a call is run again when the actor dies during it; by default as the actor says",
        ),
    ] = None
    retry_exceptions: Annotated[bool | tuple[type[BaseException], ...], _RETRY_EXCEPTIONS] = False
    name: Annotated[str, Rule(_text, "a string", "what logs and tools call it; by default the method's name")] = ""
    enable_task_events: Annotated[bool | None, _TASK_EVENTS] = None
    _generator_backpressure_num_objects: Annotated[int | None, _BACKPRESSURE] = None


def _by_node_names(cpus: float, options: TaskOptions | ActorOptions) -> dict[str, float]:
    amounts = {"CPU": cpus, "GPU": options.num_gpus, "memory": float(options.memory), **options.resources}
    needed = {name: amount for name, amount in amounts.items() if amount}
    strategy = options.scheduling_strategy
    return strategy.named(needed) if isinstance(strategy, Strategy) else needed


def _where(options: TaskOptions | ActorOptions) -> Where | None:
    strategy = options.scheduling_strategy
    where = strategy.where() if isinstance(strategy, Strategy) else Where(spread=strategy == "SPREAD")
    if options.label_selector:
        where = msgspec.structs.replace(where, required=(*where.required, *selected(options.label_selector)))
    return None if where == ANYWHERE else where


Options = TypeVar("Options", bound=TaskOptions | ActorOptions | MethodOptions)


class _Captured:
    """A placement group, for those who are in it without having been told."""

    bundle_count = 0

    def __init__(self, id: bytes) -> None:
        self.id = id
        #: Not known here.
        self.bundle_specs: list[dict[str, float]] = []


def captured(options: Options, captures: bytes, current: bytes) -> Options:
    """The same options, in the placement group that they have from the task or actor that starts it, if any.

    captures: the group that this one passes on to its children; current: the group that it is in. Both may be empty.
    """
    if isinstance(options, MethodOptions):
        return options
    strategy, capture = options.scheduling_strategy, None
    if isinstance(strategy, PlacementGroupSchedulingStrategy) and strategy.is_inherited:
        capture = strategy.placement_group_capture_child_tasks
    elif strategy != "DEFAULT" or not captures:
        return options
    group = captures if capture is None else current if capture else b""
    strategy = PlacementGroupSchedulingStrategy(_Captured(group) if group else None, -1, bool(group))
    return msgspec.structs.replace(options, scheduling_strategy=strategy)


class Kind(NamedTuple):
    """What errors need to know of one of these classes."""

    noun: str
    #: Where its options are written, with a gap for the name of one.
    place: str


KINDS: dict[type, Kind] = {
    TaskOptions: Kind("task", "@skate.remote({}=…) on a function"),
    ActorOptions: Kind("actor", "@skate.remote({}=…) on a class"),
    MethodOptions: Kind("method", "@skate.method({}=…) on a method"),
}


@functools.cache  # Not at import: it takes 1 ms, and a program that gives no options never asks.
def rules_of(options: type) -> dict[str, Rule]:
    """The rules of one of these classes by name, in the order of declaration."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(options, include_extras=True).items()}


def task_options(**given: Any) -> TaskOptions:
    """The options given in @remote(...) on a function, checked; defaults for the rest."""
    return merge(TaskOptions(), **given)


def actor_options(**given: Any) -> ActorOptions:
    """The options given in @remote(...) on a class, checked; defaults for the rest."""
    return merge(ActorOptions(), **given)


def method_options(**given: Any) -> MethodOptions:
    """The options given in @method(...), checked; defaults for the rest."""
    return merge(MethodOptions(), **given)


def merge(base: Options, /, **given: Any) -> Options:
    """`base` with the options given in .options(...), checked. None sets one back to its default."""
    if not given.keys().isdisjoint(OLDER) and not isinstance(base, MethodOptions):
        given = _as_strategy(base, given)
    kind = type(base)
    changes = {name: _checked(kind, name, value) for name, value in given.items() if not _is_private_to_ray(kind, name)}
    merged = msgspec.structs.replace(base, **changes)
    if isinstance(merged, ActorOptions) and merged.get_if_exists and not merged.name:
        raise ValueError(
            "get_if_exists=True is not possible without a name.\n"
            "  why:  an actor that exists is found by its name.\n"
            '  next: give both, name="…" and get_if_exists=True, or leave get_if_exists out.'
        )
    return merged


#: An older spelling of a strategy, for tasks and actors; the arguments of PlacementGroupSchedulingStrategy.
OLDER = ("placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks")


def _as_strategy(base: TaskOptions | ActorOptions, given: dict[str, Any]) -> dict[str, Any]:
    """The same in the newer spelling. `placement_group="default"` is as good as nothing, and None is no group."""
    older = {name: given[name] for name in OLDER if name in given}
    rest = {name: value for name, value in given.items() if name not in OLDER}
    has_strategy = rest.get("scheduling_strategy") is not None
    if has_strategy and older.get("placement_group") is None:
        older["placement_group"] = "default"
    if has_strategy and older.get("placement_group", "default") != "default":
        raise ValueError(
            f"{_short(older)} and scheduling_strategy={_short(rest['scheduling_strategy'])} are given.\n"
            "  why:  both say where it runs.\n"
            "  next: give one of them; scheduling_strategy=PlacementGroupSchedulingStrategy(group, …) is the newer."
        )
    strategy = base.scheduling_strategy
    if older.get("placement_group", "default") == "default":
        older.pop("placement_group", None)
        if "scheduling_strategy" in rest or not isinstance(strategy, PlacementGroupSchedulingStrategy):
            if older.get(OLDER[1]) not in (None, -1):
                raise ValueError(
                    f"{_short(older)} is not possible without a group.\n  next: give placement_group=…, too."
                )
            capture = older.get(OLDER[2])
            if capture is None or has_strategy:
                return rest
            return {**rest, "scheduling_strategy": PlacementGroupSchedulingStrategy("default", -1, capture)}
        older = {**vars(strategy), **older}
    known = {name: value for name, value in older.items() if value is not None or name == "placement_group"}
    return {**rest, "scheduling_strategy": PlacementGroupSchedulingStrategy(**known)}


def _checked(options: type, name: str, value: Any) -> Any:
    rule = rules_of(options).get(name)
    if rule is None:
        from skate._option_errors import refusal  # needed only here

        raise refusal(options, name)
    default = getattr(options(), name)
    if value is None:
        return default
    try:
        return rule.check(value)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name}={_short(value)} is not a value for this option.\n"
            f"  why:  {error}.\n"
            f"  next: it may be {rule.may_be}" + (f" (default {default!r})." if default or default == 0 else ".")
        ) from None


def _is_private_to_ray(options: type, name: str) -> bool:
    """An option that begins with `_` and means nothing here, such as `_labels`: accepted, because libraries give them.
    One that does something elsewhere is misplaced."""
    if not name.startswith("_") or name in rules_of(options):
        return False
    return all(rules_of(kind)[name].no_effect for kind in KINDS if name in rules_of(kind))


def _short(value: object) -> str:
    from skate._bounded_text import bounded_repr  # needed only for errors

    text = bounded_repr(value, 1000)
    return text if len(text) <= 80 else text[:79] + "…"
