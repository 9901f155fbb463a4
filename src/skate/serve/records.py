"""What the controller keeps of applications, as it lies in `skate.kv` and travels between processes."""

from __future__ import annotations

from typing import Any

import msgspec

#: Where all that serves has its names, keys and topics. As the name begins with "_skate", the core knows that these
#: actors are not the user's, and does not warn when they end with their node.
NAMESPACE = "_skate.serve"
CONTROLLER = "SERVE_CONTROLLER_ACTOR"


class DeploymentSpec(msgspec.Struct, frozen=True):
    """One deployment of an application, as `serve.run` has sent it."""

    app: str
    name: str
    #: Digests of blobs: the class and the arguments of its constructor; and user_config, or "".
    code: str
    config: str
    #: What replicas of another version have to be replaced for.
    version: str
    replicas: int
    max_ongoing: int
    max_queued: int
    drain_s: float
    health_period_s: float
    health_timeout_s: float
    #: Options of the replica's actor, pickled: they may hold strategies and resources of all kinds.
    actor_options: bytes
    #: Settings of AutoscalingConfig; None: the number is fixed.
    scaling: dict[str, Any] | None = None
    is_ingress: bool = False

    @property
    def key(self) -> str:
        """The name of the deployment in the whole cluster."""
        return key_of(self.app, self.name)

    @property
    def settings(self) -> str:
        """What a replica can be told while it runs."""
        return f"{self.config}/{self.max_ongoing}/{self.max_queued}"


class AppSpec(msgspec.Struct, frozen=True):
    """An application: its deployments, and where HTTP finds it."""

    name: str
    #: None: HTTP does not reach it.
    route_prefix: str | None
    ingress: str
    deployments: list[DeploymentSpec]
    #: What the deployer imports from, so that replicas find the same modules.
    import_path: list[str] = []

    def digests(self) -> set[str]:
        """The blobs that it needs."""
        return {digest for each in self.deployments for digest in (each.code, each.config) if digest}


class ReplicaRecord(msgspec.Struct, frozen=True):
    """A replica, as a controller finds it that is started again."""

    key: str
    id: str
    version: str
    settings: str
    drain_s: float
    #: The name of its reconcile.State.
    state: str = "STARTING"
    #: Where it was placed, or is.
    node: str = ""
    tunnel: bytes = b""
    #: Whether it has a placement group of its own, and whether it may hold the socket of HTTP.
    has_group: bool = False
    has_socket: bool = False

    @property
    def name(self) -> str:
        """The name of its actor, and of its placement group."""
        return replica_name(self.key, self.id)


class Member(msgspec.Struct, frozen=True):
    """A replica that takes requests."""

    id: str
    node: str
    #: Where other replicas reach its HTTP side, pickled; empty if it has none.
    tunnel: bytes = b""


class Table(msgspec.Struct, frozen=True):
    """The replicas of a deployment, as handles need to know them. `number` grows with every change."""

    key: str
    number: int
    max_ongoing: int
    max_queued: int
    members: list[Member] = []
    #: The deployment was deleted.
    deleted: bool = False


class Route(msgspec.Struct, frozen=True):
    """An application that HTTP reaches under a prefix, and the deployment that answers."""

    prefix: str
    app: str
    key: str


class Routes(msgspec.Struct, frozen=True):
    """All applications that HTTP reaches, the longest prefix first."""

    number: int
    routes: list[Route]


def key_of(app: str, deployment: str) -> str:
    """The name of a deployment in the whole cluster."""
    return f"{app}#{deployment}"


def replica_name(key: str, id: str) -> str:
    """The name of the actor that a replica is."""
    return f"SERVE_REPLICA::{key}#{id}"
