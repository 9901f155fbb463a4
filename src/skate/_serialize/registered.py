"""Serialisers that users have given for classes of theirs, in this process."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

from skate._serialize.code import CodePickler
from skate._serialize.values import reducers

_ordinary = cloudpickle.Pickler.dispatch_table


def register(cls: type, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    def reduce(value: Any) -> tuple[Any, ...]:
        return deserializer, (serializer(value),)

    reducers[cls] = reduce
    # Only now: picklers look into every map of the chain for each object, and most programs register nothing.
    CodePickler.dispatch_table = ChainMap(reducers, *_ordinary.maps)


def deregister(cls: type) -> None:
    reducers.pop(cls, None)
    if not reducers:
        CodePickler.dispatch_table = _ordinary
