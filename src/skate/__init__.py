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
from skate._core.version import COMMIT, VERSION
from skate._object_ref import ObjectRef
from skate._progress import progress
from skate._remote_function import RemoteFunction, remote
from skate._runtime_context import get_runtime_context
from skate._streaming import DynamicObjectRefGenerator, ObjectRefGenerator

__version__ = VERSION
#: Of Ray: the commit that a release was built from. Releases of Skate do not note it, and name themselves.
__commit__ = COMMIT

#: Values of `skate.get_runtime_context().worker.mode`: a driver, a worker, and what only Ray has.
SCRIPT_MODE, WORKER_MODE, LOCAL_MODE = 0, 1, 2

if TYPE_CHECKING:
    from logging import Logger

    from skate import client_builder as client_builder
    from skate import cloudpickle as cloudpickle
    from skate import experimental as experimental
    from skate import ids as ids
    from skate import job_config as job_config
    from skate import kv as kv
    from skate import pubsub as pubsub
    from skate import remote_function as remote_function
    from skate import runtime_context as runtime_context
    from skate import runtime_env as runtime_env
    from skate import serialization as serialization
    from skate import types as types
    from skate import util as util
    from skate._worker.logging_config import LoggingConfig as LoggingConfig
    from skate.client_builder import ClientBuilder as ClientBuilder
    from skate.client_builder import client as client
    from skate.ids import ActorClassID as ActorClassID
    from skate.ids import ActorID as ActorID
    from skate.ids import ClusterID as ClusterID
    from skate.ids import FunctionID as FunctionID
    from skate.ids import JobID as JobID
    from skate.ids import NodeID as NodeID
    from skate.ids import ObjectID as ObjectID
    from skate.ids import PlacementGroupID as PlacementGroupID
    from skate.ids import TaskID as TaskID
    from skate.ids import UniqueID as UniqueID
    from skate.ids import WorkerID as WorkerID

    logger: Logger

    def as_ray(version: str | None = None) -> None:
        """Have `import ray` find Skate; the module `skate.as_ray` can be called."""
else:
    #: Modules that need no import, and names of other modules: both are loaded when they are first used.
    _MODULES = frozenset(
        {
            "as_ray",
            "client_builder",
            "cloudpickle",
            "connections",
            "descriptors",
            "experimental",
            "ids",
            "job_config",
            "kv",
            "pubsub",
            "remote_function",
            "runtime_context",
            "runtime_env",
            "serialization",
            "types",
            "util",
        }
    )
    _HOMES = {
        "ClientBuilder": "skate.client_builder",
        "LoggingConfig": "skate._worker.logging_config",
        "client": "skate.client_builder",
        **dict.fromkeys(
            (
                "ActorClassID",
                "ActorID",
                "ClusterID",
                "FunctionID",
                "JobID",
                "NodeID",
                "ObjectID",
                "PlacementGroupID",
                "TaskID",
                "UniqueID",
                "WorkerID",
            ),
            "skate.ids",
        ),
    }

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            import importlib

            return importlib.import_module(f"skate.{name}")
        if name in _HOMES:
            import importlib

            found = getattr(importlib.import_module(_HOMES[name]), name)
        elif name == "logger":
            import logging

            found = logging.getLogger("skate")
        else:
            import sys

            from skate._alias.absent import missing

            raise missing(sys.modules[__name__], name)
        globals()[name] = found
        return found


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
