"""What goes wrong in serving.

    ServeError                      (RayServeException) the base of all
    ├── BackPressureError           as many requests wait as may wait
    ├── DeploymentUnavailableError  the deployment was deleted, or none of its replicas can be had
    ├── DeployFailedError           a version did not become healthy; the text has the traceback of its replica
    ├── RequestCancelledError       the request was cancelled
    └── NotSupportedError           Ray Serve has it, and skate.serve has not

What a handler raises arrives as a `skate.exceptions.TaskError` that is also an instance of the exception's own class.
"""

from __future__ import annotations

from skate.exceptions import SkateError

__all__ = [
    "BackPressureError",
    "DeployFailedError",
    "DeploymentUnavailableError",
    "NotSupportedError",
    "RayServeException",
    "RequestCancelledError",
    "ServeError",
]


class ServeError(SkateError, RuntimeError):
    """The base of the errors of `skate.serve`."""

    __module__ = "skate.serve.exceptions"


#: The name that programs for Ray Serve use.
RayServeException = ServeError


class BackPressureError(ServeError):
    """As many requests wait as `max_queued_requests` allows, so this one was not taken. Over HTTP it is a 503."""

    __module__ = "skate.serve.exceptions"

    def __init__(self, message: str = "", *, deployment: str = "", waiting: int = 0) -> None:
        self.deployment, self.waiting = deployment, waiting
        super().__init__(
            message
            or f"deployment {deployment} took no further request.\n"
            f"  why:  all replicas are busy, and {waiting} requests wait: max_queued_requests allows no more.\n"
            "  next: send less, ask again later, or raise num_replicas, max_ongoing_requests or max_queued_requests."
        )

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self)


class DeploymentUnavailableError(ServeError):
    """The deployment was deleted, or none of its replicas can be had."""

    __module__ = "skate.serve.exceptions"


class DeployFailedError(ServeError):
    """A version of an application did not become healthy. The text says why; what served before serves on."""

    __module__ = "skate.serve.exceptions"


class RequestCancelledError(ServeError):
    """The request was cancelled before it had a result."""

    __module__ = "skate.serve.exceptions"

    def __init__(self, request_id: str | None = None) -> None:
        super().__init__("the request was cancelled." if not request_id else f"request {request_id} was cancelled.")


class NotSupportedError(ServeError):
    """Ray Serve has this, and skate.serve has not."""

    __module__ = "skate.serve.exceptions"
