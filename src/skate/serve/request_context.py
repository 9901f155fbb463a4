"""What a handler can know of the request that it works on, and of the replica that it runs in."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = [
    "ReplicaContext",
    "RequestContext",
    "current_request",
    "get_multiplexed_model_id",
    "get_replica_context",
    "get_request_id",
]


class RequestContext(msgspec.Struct, frozen=True):
    """The request that the running code works on. Each has one, so it has to be made quickly."""

    request_id: str = ""
    model_id: str = ""
    route: str = ""


_request: ContextVar[RequestContext | None] = ContextVar("skate.serve.request", default=None)

current_request = _request.get
set_request = _request.set


@dataclass(frozen=True)
class ReplicaContext:
    """The replica that the running code belongs to."""

    app_name: str
    deployment: str
    #: The id of the replica, as status and logs have it.
    replica_tag: str
    servable_object: Any = None

    @property
    def replica_id(self) -> str:
        """Another name of `replica_tag`."""
        return self.replica_tag


_replica: ReplicaContext | None = None


def set_replica(context: ReplicaContext) -> None:
    """This process is a replica."""
    global _replica
    _replica = context


def replica_or_none() -> ReplicaContext | None:
    """The replica that the caller runs in; None outside of replicas."""
    return _replica


def get_replica_context() -> ReplicaContext:
    """The replica that the caller runs in. Raises RuntimeError outside of replicas."""
    if _replica is None:
        raise RuntimeError(
            "get_replica_context() was called outside of a replica.\n  next: call it in a deployment: in its "
            "constructor, or in a handler."
        )
    return _replica


def get_multiplexed_model_id() -> str:
    """The id of the model that the request is for; "" if it names none."""
    context = _request.get()
    return context.model_id if context is not None else ""


def get_request_id() -> str:
    """The id of the request over HTTP that the running code works for, for its log. The answer has it as X-Request-ID.

    Deployments that a handler asks through a handle see the same id. It is "" for a request that came in another way.
    """
    context = _request.get()
    return context.request_id if context is not None else ""
