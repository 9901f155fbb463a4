"""Serving: deployments of classes and functions that answer HTTP and Python, as replicas on one machine or many.

>>> from skate import serve
>>> @serve.deployment(num_replicas=2)
... class Greeter:
...     def __call__(self, request):
...         return f"Hello {request.query_params['name']}"
>>> serve.run(Greeter.bind(), port=8000)         # curl 'localhost:8000/?name=Ada'

Every name is imported when it is used: `import skate.serve` needs no package but Skate's own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.serve.api import delete, get_app_handle, get_deployment_handle, run, shutdown, start, status
    from skate.serve.asgi_class import ingress
    from skate.serve.batches import batch
    from skate.serve.config import AutoscalingConfig, HTTPOptions
    from skate.serve.deployments import Application, Deployment, deployment
    from skate.serve.exceptions import (
        BackPressureError,
        DeployFailedError,
        DeploymentUnavailableError,
        RequestCancelledError,
        ServeError,
    )
    from skate.serve.handle import DeploymentHandle, DeploymentResponse, DeploymentResponseGenerator
    from skate.serve.multiplex import multiplexed
    from skate.serve.request_context import get_multiplexed_model_id, get_replica_context, get_request_id
    from skate.serve.routes import get, post, put, websocket
    from skate.serve.sockets import WebSocket

#: The names, and the module that has each.
_HOMES = {
    **dict.fromkeys(["delete", "get_app_handle", "get_deployment_handle", "run", "shutdown", "start", "status"], "api"),
    "batch": "batches",
    **dict.fromkeys(["AutoscalingConfig", "HTTPOptions"], "config"),
    **dict.fromkeys(["Application", "Deployment", "deployment"], "deployments"),
    **dict.fromkeys(
        [
            "BackPressureError",
            "DeployFailedError",
            "DeploymentUnavailableError",
            "RequestCancelledError",
            "ServeError",
        ],
        "exceptions",
    ),
    **dict.fromkeys(["DeploymentHandle", "DeploymentResponse", "DeploymentResponseGenerator"], "handle"),
    "ingress": "asgi_class",
    "multiplexed": "multiplex",
    **dict.fromkeys(["get_multiplexed_model_id", "get_replica_context", "get_request_id"], "request_context"),
    **dict.fromkeys(["get", "post", "put", "websocket"], "routes"),
    "WebSocket": "sockets",
}

__all__ = [
    "Application",
    "AutoscalingConfig",
    "BackPressureError",
    "DeployFailedError",
    "Deployment",
    "DeploymentHandle",
    "DeploymentResponse",
    "DeploymentResponseGenerator",
    "DeploymentUnavailableError",
    "HTTPOptions",
    "RequestCancelledError",
    "ServeError",
    "WebSocket",
    "batch",
    "delete",
    "deployment",
    "get",
    "get_app_handle",
    "get_deployment_handle",
    "get_multiplexed_model_id",
    "get_replica_context",
    "get_request_id",
    "ingress",
    "multiplexed",
    "post",
    "put",
    "run",
    "shutdown",
    "start",
    "status",
    "websocket",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}.")
    found = getattr(importlib.import_module(f"skate.serve.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
