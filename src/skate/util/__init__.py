"""What is built on Skate as any user could build it: pools, a queue, an executor, helpers for results.

    >>> from skate.util import ActorPool, Executor
    >>> from skate.util.queue import Queue
    >>> from skate.util.multiprocessing import Pool

Importing this package loads none of them: each comes with its first use.
"""

# Without `from __future__ import annotations`: `annotations` is a module of this package.
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.actor import list_named_actors
    from skate.client_builder import connect, disconnect
    from skate.serialization import deregister_serializer, inspect_serializability, register_serializer
    from skate.util.actor_group import ActorGroup
    from skate.util.actor_pool import ActorPool
    from skate.util.debug import disable_log_once_globally, enable_periodic_logging, log_once
    from skate.util.executor import Executor
    from skate.util.results import as_completed, map_unordered

__all__ = [
    "ActorGroup",
    "ActorPool",
    "Executor",
    "as_completed",
    "PlacementGroup",
    "connect",
    "deregister_serializer",
    "disable_log_once_globally",
    "disconnect",
    "enable_periodic_logging",
    "get_current_placement_group",
    "get_node_instance_id",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]

#: Those that need nothing else to be installed. `placement_group` can be called, as in Ray.
_MODULES = (
    "actor_group",
    "actor_pool",
    "accelerators",
    "annotations",
    "callbacks",
    "check_serialize",
    "client",
    "client_connect",
    "collective",
    "debug",
    "files",
    "metrics",
    "multiprocessing",
    "placement_group",
    "queue",
    "scheduling_strategies",
    "serialization",
)
_HOMES = {
    "ActorGroup": "skate.util.actor_group",
    "ActorPool": "skate.util.actor_pool",
    "Executor": "skate.util.executor",
    "as_completed": "skate.util.results",
    "connect": "skate.client_builder",
    "deregister_serializer": "skate.serialization",
    "disconnect": "skate.client_builder",
    "disable_log_once_globally": "skate.util.debug",
    "enable_periodic_logging": "skate.util.debug",
    "inspect_serializability": "skate.serialization",
    "log_once": "skate.util.debug",
    "map_unordered": "skate.util.results",
    "register_serializer": "skate.serialization",
    **dict.fromkeys(
        (
            "PlacementGroup",
            "get_current_placement_group",
            "get_placement_group",
            "placement_group_table",
            "remove_placement_group",
        ),
        "skate.util.placement_group",
    ),
}


def get_node_ip_address() -> str:
    """The address by which others reach the node of this process, as `skate.nodes()` tells it.

    Without a runtime, or in a program on a machine that is no node, that by which other machines reach this one;
    127.0.0.1 if it has no network.

    >>> skate.util.get_node_ip_address()
    '10.0.0.7'
    """
    import socket

    import skate

    if skate.is_initialized() and not skate.client_builder.is_on_no_node():
        ours = skate.get_runtime_context().get_node_id()
        for node in skate.nodes():
            if node["NodeID"] == ours:
                return str(node["NodeManagerAddress"])
    # Nothing is sent: connecting a datagram socket only asks the kernel which interface it would use.
    for family, target, loopback in (
        (socket.AF_INET, "192.0.2.1", "127.0.0.1"),
        (socket.AF_INET6, "2001:db8::1", "::1"),
    ):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                address: str = probe.getsockname()[0]
                if address != loopback:
                    return address
        except OSError:
            continue
    return "127.0.0.1"


def get_node_instance_id() -> str:
    """In Ray: what a cloud calls the machine of this process. Skate does not ask a cloud, so it is empty."""
    return ""


def __getattr__(name: str) -> Any:
    if name == "list_named_actors":
        from skate.actor import list_named_actors

        found: Any = list_named_actors
    elif name in _MODULES:
        import importlib

        found = importlib.import_module(f"skate.util.{name}")
    elif name in _HOMES:
        import importlib

        found = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        import sys

        from skate._alias.absent import missing

        raise missing(sys.modules[__name__], name, f"; it has {', '.join(__all__)}.")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
