"""Where tasks and actors run: what `scheduling_strategy=` takes besides "DEFAULT" and "SPREAD".

    f.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote()
    f.options(scheduling_strategy=NodeLabelSchedulingStrategy(hard={"zone": In("a", "b")})).remote()

Also to be had from `skate.util.scheduling_strategies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skate._core.placement import ANYWHERE, Affinity, Condition, Where
from skate._core.resources import in_bundle
from skate._message_limits import TEXT_BYTES_MAX

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
    "PlacementGroupSchedulingStrategy",
    "SchedulingStrategyT",
]

NODE_ID_DIGITS = 32


class Strategy:
    """What all of them have."""

    @property
    def is_inherited(self) -> bool:
        """Whether the placement group is that of the task or actor that starts it."""
        return False

    def where(self) -> Where:
        return ANYWHERE

    def named(self, resources: dict[str, float]) -> dict[str, float]:
        return resources

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({facts})"


class NodeAffinitySchedulingStrategy(Strategy):
    """On that node; with `soft`, elsewhere if it is gone or can never run it.

        >>> here = skate.get_runtime_context().get_node_id()
        >>> f.options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)).remote()

    node_id: hexadecimal digits, or the id itself (a `skate.NodeID` or bytes). The arguments that begin with `_` have no
    effect (`_no_effect.py`).
    """

    def __init__(
        self,
        node_id: str | bytes,
        soft: bool,
        _spill_on_unavailable: bool = False,
        _fail_on_unavailable: bool = False,
    ) -> None:
        if isinstance(node_id, bytes):
            node_id = node_id.hex()
        if not isinstance(node_id, str) or len(node_id) != NODE_ID_DIGITS or not _is_hex(node_id):
            raise ValueError(
                f"node_id={node_id!r} is no id of a node: it has {NODE_ID_DIGITS} hexadecimal digits; skate.nodes() "
                "lists those that there are."
            )
        if not isinstance(soft, bool):
            raise TypeError(f"soft={soft!r}: it may be True or False.")
        self.node_id = node_id
        self.soft = soft
        self._spill_on_unavailable = _spill_on_unavailable
        self._fail_on_unavailable = _fail_on_unavailable

    def where(self) -> Where:
        return Where(affinity=Affinity(bytes.fromhex(self.node_id), self.soft))


class PlacementGroupSchedulingStrategy(Strategy):
    """In a placement group: in any of its bundles, or in that one.

    >>> PlacementGroupSchedulingStrategy(pg, placement_group_bundle_index=0)

    placement_group_capture_child_tasks: what it starts itself, without a strategy of its own, is in the group, too.
    placement_group=None: in no group, also if it is started by what captures its children; there is nothing to capture
    then. placement_group="default": in the group of the task or actor that starts it, if children are captured; with
    None for the third argument that is decided by the parent, as without a strategy.
    """

    def __init__(
        self,
        placement_group: Any,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        index = placement_group_bundle_index
        capture = placement_group_capture_child_tasks
        count = getattr(placement_group, "bundle_count", None)
        if placement_group is None or _is_default(placement_group):
            if index != -1:
                raise ValueError(
                    f"placement_group={placement_group!r} names no group, so there is no bundle {index!r}: the index "
                    "may be -1, or left out."
                )
            count = 0
        elif not isinstance(getattr(placement_group, "id", None), bytes) or count is None:
            raise TypeError(
                f"placement_group={placement_group!r}: it may be what placement_group([...]) has returned, None or "
                '"default".'
            )
        if isinstance(index, bool) or not isinstance(index, int) or not -1 <= index < max(1, count):
            raise ValueError(
                f"placement_group_bundle_index={index!r}: it may be -1, for any bundle, or one of 0 to {count - 1}."
            )
        self.placement_group = placement_group
        self.placement_group_bundle_index = index
        self.placement_group_capture_child_tasks = capture if self.is_inherited else bool(capture)

    @property
    def is_inherited(self) -> bool:
        return _is_default(self.placement_group)

    @property
    def _has_group(self) -> bool:
        return self.placement_group is not None and not self.is_inherited

    def where(self) -> Where:
        captures = self._has_group and self.placement_group_capture_child_tasks
        return Where(captures=bytes(self.placement_group.id)) if captures else ANYWHERE

    def named(self, resources: dict[str, float]) -> dict[str, float]:
        """The resources by the names that they have in the group. Raises ValueError if none of its bundles has them."""
        if not self._has_group:
            return resources
        specs = self.placement_group.bundle_specs
        index = self.placement_group_bundle_index
        usable = specs if index < 0 else specs[index : index + 1]
        if usable and not any(all(spec.get(name, 0) >= it for name, it in resources.items()) for spec in usable):
            whole = "of the placement group has"
            has = f"no bundle {whole} that:" if index < 0 else f"bundle {index} {whole} only"
            raise ValueError(
                f"it asks for {_amounts(resources)}, and {has} {', '.join(map(_amounts, usable))}. Ask for less, or "
                "make a group with larger bundles."
            )
        return in_bundle(resources, self.placement_group.id, self.placement_group_bundle_index)


def _is_default(placement_group: object) -> bool:
    return isinstance(placement_group, str) and placement_group == "default"


def _amounts(resources: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name!r}: {amount:g}" for name, amount in resources.items()) + "}"


class _Test:
    """What a label has to be."""

    values: tuple[str, ...] = ()
    negated = False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.values == self.values

    def __hash__(self) -> int:
        return hash((type(self), self.values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


class In(_Test):
    """One of these."""

    def __init__(self, *values: str) -> None:
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError(f"{type(self).__name__}{values!r}: give one or more strings.")
        self.values = values


class NotIn(In):
    """None of these."""

    negated = True


class Exists(_Test):
    """The node has that label."""


class DoesNotExist(_Test):
    """The node has no such label."""

    negated = True


class NodeLabelSchedulingStrategy(Strategy):
    """On a node whose labels fit: those in `hard` must, those in `soft` should.

    >>> NodeLabelSchedulingStrategy(hard={"zone": In("a", "b"), "spot": DoesNotExist()}, soft={"disk": In("ssd")})
    """

    def __init__(self, hard: Mapping[str, Any] | None = None, *, soft: Mapping[str, Any] | None = None) -> None:
        self.hard = _tests("hard", hard or {})
        self.soft = _tests("soft", soft or {})
        if not self.hard and not self.soft:
            raise ValueError("NodeLabelSchedulingStrategy() needs at least one label in hard or soft.")

    def where(self) -> Where:
        return Where(required=_conditions(self.hard), preferred=_conditions(self.soft))


#: What `scheduling_strategy=` takes, for the annotations of programs written for Ray.
SchedulingStrategyT = (
    None | str | PlacementGroupSchedulingStrategy | NodeAffinitySchedulingStrategy | NodeLabelSchedulingStrategy
)


def _tests(argument: str, given: Mapping[str, Any]) -> dict[str, _Test]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{argument}={given!r}: it may be a dict from labels to In, NotIn, Exists or DoesNotExist.")
    for key, test in given.items():
        if not isinstance(key, str) or not key:
            raise TypeError(f"{argument}: the label {key!r} is not the name of one.")
        if not isinstance(test, _Test):
            raise TypeError(f"{argument}: {key!r} is {test!r}; it may be In(…), NotIn(…), Exists() or DoesNotExist().")
    size = sum(len(text) for key, test in given.items() for text in (key, *test.values))
    if size > TEXT_BYTES_MAX:
        raise ValueError(f"{argument}: its labels and values have {size:,} bytes, and {TEXT_BYTES_MAX:,} are the most.")
    return dict(given)


def _conditions(tests: Mapping[str, _Test]) -> tuple[Condition, ...]:
    return tuple(Condition(key, frozenset(test.values), test.negated) for key, test in tests.items())


def selected(selector: Mapping[str, str]) -> tuple[Condition, ...]:
    """What `label_selector={"zone": "in(a, b)", "disk": "!hdd"}` asks for. Raises ValueError."""
    conditions = []
    for key, text in selector.items():
        negated = text.startswith("!")
        wanted = text[1:] if negated else text
        if wanted.startswith("in(") and wanted.endswith(")"):
            values = frozenset(value.strip() for value in wanted[3:-1].split(","))
        else:
            values = frozenset([wanted.strip()])
        if not all(values) or any(character in value for value in values for character in "()!"):
            raise ValueError(f"the value of {key!r} is {text!r}, which is not 'v', '!v', 'in(a, b)' or '!in(a, b)'")
        conditions.append(Condition(key, values, negated))
    return tuple(conditions)


def _is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True
