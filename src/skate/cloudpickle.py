"""The pickler that Skate uses for code and values, under the names of the package `cloudpickle`.

    >>> data = skate.cloudpickle.dumps(lambda x: x + 1)
    >>> skate.cloudpickle.loads(data)(1)
    2

It is `cloudpickle` with classes that have `__slots__`, cached functions, and what `skate.util.register_serializer` was
told. What it writes, `pickle.loads` reads.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pickle import load, loads
from typing import IO, Any

from cloudpickle import (
    __version__ as __version__,
)
from cloudpickle import (
    list_registry_pickle_by_value,
    register_pickle_by_value,
    unregister_pickle_by_value,
)

from skate._serialize.code import CodePickler

__all__ = [
    "DEFAULT_PROTOCOL",
    "CloudPickler",
    "Pickler",
    "dump",
    "dumps",
    "list_registry_pickle_by_value",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]

CloudPickler = Pickler = CodePickler
DEFAULT_PROTOCOL = pickle.HIGHEST_PROTOCOL

BufferCallback = Callable[[pickle.PickleBuffer], Any]


def dump(
    obj: object, file: IO[bytes], protocol: int | None = None, buffer_callback: BufferCallback | None = None
) -> None:
    """Write the pickle of an object to a file."""
    CodePickler(file, protocol=protocol, buffer_callback=buffer_callback).dump(obj)


def dumps(obj: object, protocol: int | None = None, buffer_callback: BufferCallback | None = None) -> bytes:
    """The pickle of an object."""
    with io.BytesIO() as file:
        dump(obj, file, protocol, buffer_callback)
        return file.getvalue()
