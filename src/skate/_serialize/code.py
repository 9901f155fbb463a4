"""Pickling of code: cloudpickle, with what it leaves out.

cloudpickle sends functions and classes that cannot be imported (those of `__main__`, of notebooks, of functions) by
value. Four kinds do not survive that:

- A class with `__slots__`, as `@dataclass(slots=True)` makes one, arrives without its slots. Its instances then have a
  `__dict__`, and cannot come back to where the class has none.
- A function with a cache (`functools.cache`, `lru_cache`) is sent by name, and nobody knows that name at the other end.
- A class of msgspec arrives without its fields (structs.py).
- A field of a dataclass that has no default says so by an object, `dataclasses.MISSING`, which arrives as a copy of it.
  The copy counts as a default: msgspec then takes a value that lacks the field, and the field has the copy.
"""

from __future__ import annotations

import abc
import copyreg
import dataclasses
import functools
import sys
from collections.abc import Callable
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, NamedTuple

import cloudpickle

from skate._serialize.structs import StructMeta, reduce_struct

_Cached = type(functools.lru_cache(lambda: None))
#: Classes of other metaclasses may be made in ways of their own.
_PLAIN_METACLASSES = (type, abc.ABCMeta)
# By its name, as the one object that it is.
copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is _Cached and not can_be_imported(value):
            return _cache_again, (value.__wrapped__, value.cache_parameters())
        reduced = super().reducer_override(value)
        if kind is StructMeta and type(reduced) is tuple:
            return reduce_struct(value, reduced)
        if (
            kind in _PLAIN_METACLASSES
            and type(reduced) is tuple
            and "__slots__" in vars(value)
            and not _is_named(value)
        ):
            return _with_slots(value, reduced)
        return reduced


def _with_slots(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """What makes the class again, so that it has its slots from the beginning: they cannot be added later."""
    make, (kind, name, bases, namespace, *rest), (attributes, others), *more = reduced
    namespace = {**namespace, "__slots__": vars(cls)["__slots__"]}
    attributes = {key: it for key, it in attributes.items() if not isinstance(it, MemberDescriptorType)}
    return make, (kind, name, bases, namespace, *rest), (attributes, others), *more


def _is_named(cls: type) -> bool:
    """A `typing.NamedTuple`: made anew as such, it gets its slots by itself."""
    return NamedTuple in vars(cls).get("__orig_bases__", ())


def can_be_imported(function: Any) -> bool:
    """Whether a function or class is sent by its name: the other end imports it."""
    name = function.__module__
    if name == "__main__" or name in cloudpickle.list_registry_pickle_by_value():
        return False
    try:
        return attrgetter(function.__qualname__)(sys.modules[name]) is function
    except (KeyError, AttributeError):
        return False


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached
