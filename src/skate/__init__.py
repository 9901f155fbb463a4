"""Skate: run Python functions on all cores, with futures and shared memory.

>>> import skate
>>> @skate.remote
... def square(x):
...     return x * x
>>> skate.get([square.remote(i) for i in range(4)])
[0, 1, 4, 9]
"""

from skate import exceptions
from skate._api import (
    as_completed,
    available_resources,
    cancel,
    cluster_resources,
    get,
    get_gpu_ids,
    init,
    is_initialized,
    map,
    nodes,
    put,
    shutdown,
    timeline,
    wait,
    why,
)
from skate._object_ref import ObjectRef
from skate._progress import progress
from skate._remote_function import RemoteFunction, remote
from skate._runtime_context import get_runtime_context
from skate._streaming import DynamicObjectRefGenerator, ObjectRefGenerator

__version__ = "0.1.0"

__all__ = [
    "DynamicObjectRefGenerator",
    "ObjectRef",
    "ObjectRefGenerator",
    "RemoteFunction",
    "__version__",
    "as_completed",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "get",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "map",
    "nodes",
    "progress",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "wait",
    "why",
]
