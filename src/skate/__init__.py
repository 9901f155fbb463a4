"""Skate: run Python functions on all cores, with futures and shared memory.

>>> import skate
>>> @skate.remote
... def square(x):
...     return x * x
>>> skate.get([square.remote(i) for i in range(4)])
[0, 1, 4, 9]
"""

from typing import TYPE_CHECKING, Any

from skate import actor, exceptions
from skate._actor import Actor, ActorClass, ActorMethod, exit_actor, get_actor, kill, method
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
from skate._core.version import VERSION
from skate._object_ref import ObjectRef
from skate._progress import progress
from skate._remote_function import RemoteFunction, remote
from skate._runtime_context import get_runtime_context
from skate._streaming import DynamicObjectRefGenerator, ObjectRefGenerator

__version__ = VERSION

if TYPE_CHECKING:
    from skate import kv as kv
    from skate import pubsub as pubsub
    from skate import util as util

    def as_ray(version: str | None = None) -> None:
        """Have `import ray` find Skate; the module `skate.as_ray` can be called."""
else:

    def __getattr__(name: str) -> Any:
        """`skate.util` and a few others need no imports; they are loaded when they are first used."""
        if name in ("as_ray", "kv", "pubsub", "util"):
            import importlib

            return importlib.import_module(f"skate.{name}")
        raise AttributeError(f"module 'skate' has no attribute {name!r}")


__all__ = [
    "Actor",
    "ActorClass",
    "ActorMethod",
    "DynamicObjectRefGenerator",
    "ObjectRef",
    "ObjectRefGenerator",
    "RemoteFunction",
    "__version__",
    "actor",
    "as_completed",
    "as_ray",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "map",
    "method",
    "nodes",
    "progress",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "wait",
    "why",
]
