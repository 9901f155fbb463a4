"""What is served, and how that goes: what `serve.status()` returns."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from skate.serve.metrics import Snapshot
from skate.serve.reconcile import Deployment

if TYPE_CHECKING:
    from skate.serve.application import App

__all__ = [
    "ApplicationStatus",
    "ApplicationStatusOverview",
    "DeploymentStatus",
    "DeploymentStatusOverview",
    "ServeStatus",
    "application_overview",
    "deployment_overview",
]


class ApplicationStatus(str, enum.Enum):
    """How an application is."""

    NOT_STARTED = "NOT_STARTED"
    #: Its latest version is being started, or replaces the one before.
    DEPLOYING = "DEPLOYING"
    #: Its first version did not start.
    DEPLOY_FAILED = "DEPLOY_FAILED"
    RUNNING = "RUNNING"
    #: Some of its replicas cannot be had.
    UNHEALTHY = "UNHEALTHY"
    DELETING = "DELETING"


class DeploymentStatus(str, enum.Enum):
    """How a deployment is."""

    UPDATING = "UPDATING"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


class DeploymentStatusOverview(msgspec.Struct):
    """A deployment: its replicas by state, and what they have counted."""

    status: DeploymentStatus
    replica_states: dict[str, int]
    #: The number of replicas that there are to be.
    wanted: int
    message: str
    counted: Snapshot

    @property
    def metrics(self) -> dict[str, Any]:
        """Requests, errors, latency and queue as plain numbers."""
        counted = self.counted
        return {
            "requests": counted.requests,
            "errors": counted.errors,
            "rejected": counted.rejected,
            "working": counted.working,
            "waiting": counted.waiting,
            "latency_p50_s": counted.seconds.quantile(0.5),
            "latency_p99_s": counted.seconds.quantile(0.99),
            "batch_size_mean": counted.batches.total / counted.batches.count if counted.batches.count else 0.0,
        }


class ApplicationStatusOverview(msgspec.Struct):
    """An application and its deployments."""

    status: ApplicationStatus
    message: str
    last_deployed_time_s: float
    route_prefix: str | None
    #: The deployment that answers for it.
    ingress: str
    deployments: dict[str, DeploymentStatusOverview]


class ServeStatus(msgspec.Struct):
    """All applications, by name."""

    #: Where HTTP is answered; None if it is not.
    http_address: tuple[str, int] | None
    applications: dict[str, ApplicationStatusOverview]

    @property
    def proxies(self) -> dict[str, str]:
        """Ray Serve's proxies: there are none, because replicas answer HTTP themselves."""
        return {}


def deployment_overview(deployment: Deployment, counted: Snapshot, full: str) -> DeploymentStatusOverview:
    """What is said of a deployment. `full` is why it gets no more replicas at present."""
    states: dict[str, int] = {}
    for replica in deployment.replicas.values():
        states[replica.state.name] = states.get(replica.state.name, 0) + 1
    status = DeploymentStatus.HEALTHY if deployment.is_settled else DeploymentStatus.UPDATING
    if deployment.message and not deployment.is_settled:
        status = DeploymentStatus.UNHEALTHY
    return DeploymentStatusOverview(status, states, deployment.wanted, deployment.message or full, counted)


def application_overview(app: App, deployments: dict[str, DeploymentStatusOverview]) -> ApplicationStatusOverview:
    """What is said of an application."""
    if app.deleting:
        status = ApplicationStatus.DELETING
    elif app.outcome is None:
        status = ApplicationStatus.DEPLOYING
    elif app.has_failed:
        status = ApplicationStatus.DEPLOY_FAILED
    elif any(each.status is DeploymentStatus.UNHEALTHY for each in deployments.values()):
        status = ApplicationStatus.UNHEALTHY
    else:
        status = ApplicationStatus.RUNNING
    target = app.target
    return ApplicationStatusOverview(
        status, app.outcome or "", app.deployed_at, target.route_prefix, target.ingress, deployments
    )
