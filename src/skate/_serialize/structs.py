"""Classes of msgspec (`class Order(msgspec.Struct)`) that cannot be imported: those of `__main__` and of notebooks.

cloudpickle makes a class again as an empty one and adds its attributes afterwards. The fields of a Struct are laid out
when the class is made, so it would arrive without them. Here it is made again as a Struct with these fields. Their
types come afterwards, as the types themselves: names in annotations mean nothing in the `__main__` of another process,
and a type may refer to the class.
"""

from __future__ import annotations

import inspect
import types
import typing
from types import MemberDescriptorType
from typing import Any

import msgspec
from cloudpickle.cloudpickle import _lookup_class_or_track

StructMeta = type(msgspec.Struct)
#: Settings of a Struct that it tells of itself.
SETTINGS = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "weakref",
    "dict",
    "cache_hash",
    "omit_defaults",
    "repr_omit_defaults",
    "forbid_unknown_fields",
    "tag",
    "tag_field",
)
#: What a class of Python has by itself, or gets when it is made.
_MADE = ("__slots__", "__annotations__", "__orig_bases__", "__parameters__", "__dict__", "__weakref__")


def reduce_struct(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """What makes the class again, from what cloudpickle would do."""
    _, (_, name, bases, _, tracker_id, _), (attributes, others), *more = reduced
    own = vars(cls).get("__annotations__", {})
    fields = [field for field in msgspec.structs.fields(cls) if field.name in own]
    parameters = inspect.signature(cls).parameters
    config = cls.__struct_config__
    settings = {key: getattr(config, key) for key in SETTINGS}
    settings["rename"] = {field.name: field.encode_name for field in fields}
    settings["kw_only"] = any(parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY for field in fields)
    body = {field.name: _default(field) for field in fields if not field.required}
    kept = {
        key: value
        for key, value in attributes.items()
        if key not in _MADE and not isinstance(value, MemberDescriptorType)
    }
    if own:
        kept["__annotations__"] = _resolved(cls, own)
    bases = vars(cls).get("__orig_bases__", bases)
    names = [field.name for field in fields]
    has_post_init = "__post_init__" in vars(cls)
    made = (name, bases, cls.__module__, names, body, settings, has_post_init, tracker_id)
    return make_struct, made, (kept, others), *more


def make_struct(
    name: str,
    bases: tuple[Any, ...],
    module: str,
    names: list[str],
    body: dict[str, Any],
    settings: dict[str, Any],
    has_post_init: bool,
    tracker_id: str,
) -> Any:
    """Make a Struct with these fields; the same one if it has come before."""
    namespace: dict[str, Any] = {"__module__": module, "__annotations__": dict.fromkeys(names, Any)}
    for field, (default, factory) in body.items():
        namespace[field] = msgspec.field(default_factory=factory) if factory is not None else default
    if has_post_init:
        namespace["__post_init__"] = _call_post_init
    cls = types.new_class(name, bases, settings, lambda made: made.update(namespace))
    return _lookup_class_or_track(tracker_id, cls)


def _call_post_init(self: Any) -> None:
    """Stands for the method, which comes after the class is made, and would not be noticed then."""
    type(self).__post_init__(self)


def _default(field: Any) -> tuple[Any, Any]:
    """The default value of a field, and what makes it, of which one is None."""
    if field.default is not msgspec.NODEFAULT:
        return field.default, None
    return None, field.default_factory


def _resolved(cls: Any, own: dict[str, Any]) -> dict[str, Any]:
    """The types of the fields; as they are written if a name in them means nothing here either."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - annotations are any code
        return own
    return {name: hints.get(name, hint) for name, hint in own.items()}
