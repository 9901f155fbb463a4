"""Serialisers that users have given for classes of theirs, in this process."""

from __future__ import annotations

import pickle
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

from skate._serialize.code import CodePickler
from skate._serialize.values import reducers

_ordinary = cloudpickle.Pickler.dispatch_table


def register(cls: type, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    def reduce(value: Any) -> tuple[Any, ...]:
        try:
            made = serializer(value)
        except Exception as error:
            # Otherwise it looks as if the class itself could not be pickled.
            named = getattr(serializer, "__qualname__", None) or repr(serializer)
            raise pickle.PicklingError(
                f"the serializer {named}, which is registered for {cls.__module__}.{cls.__qualname__}, raised "
                f"{type(error).__name__}: {error}"
            ) from error
        return deserializer, (made,)

    reducers[cls] = reduce
    # Only now: picklers look into every map of the chain for each object, and most programs register nothing.
    CodePickler.dispatch_table = ChainMap(reducers, *_ordinary.maps)


def deregister(cls: type) -> None:
    reducers.pop(cls, None)
    if not reducers:
        CodePickler.dispatch_table = _ordinary
