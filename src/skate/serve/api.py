"""The verbs: run, start, status, delete, shutdown, and where handles come from."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterable
from typing import Any

import skate
from skate.exceptions import SkateError
from skate.serve.client import ask_controller, end_all, has_controller, shut_down, tell_controller
from skate.serve.config import HTTPOptions, from_dict, is_line
from skate.serve.deployments import Application, Deployment, pack
from skate.serve.directory import refresh
from skate.serve.exceptions import DeployFailedError, DeploymentUnavailableError, NotSupportedError, ServeError
from skate.serve.handle import DeploymentHandle
from skate.serve.records import CONTROLLER, NAMESPACE
from skate.serve.report import ServeStatus

__all__ = ["delete", "get_app_handle", "get_deployment_handle", "run", "shutdown", "start", "status"]

DEFAULT_APP = "default"
#: Seconds that running requests get to finish when a script ends.
FAREWELL_S = 1.0
#: While `run` waits, it looks so often whether there is something to say about that.
SAY_EVERY_S = 5.5

logger = logging.getLogger("skate.serve")


def start(*, http_options: HTTPOptions | dict[str, Any] | None = None, grpc_options: Any = None, **others: Any) -> None:
    """Start to answer HTTP, before any application is there.

    >>> serve.start(http_options=serve.HTTPOptions(port=9000))
    """
    if grpc_options is not None:
        raise NotSupportedError("skate.serve does not answer gRPC.\n  next: use HTTP, or handles from Python.")
    for name in others:
        if name not in ("detached", "proxy_location", "logging_config", "dedicated_cpu"):
            raise TypeError(f"serve.start() has no argument {name!r}; it has http_options.")
    options = _http_options(http_options)
    _ensure_started()
    if options is not None or not _answers_http():
        _start(options or HTTPOptions())


def run(
    target: Application,
    *,
    name: str = DEFAULT_APP,
    route_prefix: str | None = "/",
    port: int | None = None,
    host: str | None = None,
    http_options: HTTPOptions | dict[str, Any] | None = None,
    blocking: bool = False,
    logging_config: Any = None,
    _local_testing_mode: bool = False,
) -> DeploymentHandle:
    """Serve an application, or replace it by another version; returns when that works, with a handle to it.

    >>> handle = serve.run(Greeter.bind(), port=8000)
    >>> handle.remote("Ada").result()

    name: an application of that name is replaced, replica by replica, and no request is dropped. A version that does
    not start is a DeployFailedError, and the one before it serves on.
    route_prefix: the path under which HTTP reaches it. None: HTTP does not.
    port, host: where HTTP is answered: 127.0.0.1:8000 if nothing is given. All applications share one address.
    blocking: serve until Ctrl-C.

    What is served ends with the script that started Skate. In a cluster that the script has joined, it stays until
    `serve.delete` or `serve.shutdown`.
    """
    if _local_testing_mode:
        raise NotSupportedError(
            "skate.serve has no local testing mode.\n  next: call the class itself, or serve.run() it: that takes a "
            "tenth of a second."
        )
    if isinstance(target, Deployment):
        raise TypeError(f"serve.run({target!r}): it takes an application.\n  next: serve.run({target.name}.bind(…)).")
    if not isinstance(target, Application):
        raise TypeError(f"serve.run({target!r}): it takes an application, which deployment.bind(…) makes.")
    name, route_prefix = _checked_name(name), _checked_prefix(route_prefix)
    spec, blobs = pack(target, name, route_prefix)
    options = _http_options(http_options)
    if port is not None or host is not None:
        chosen = options or HTTPOptions()
        options = HTTPOptions(**{
            **{field: getattr(chosen, field) for field in HTTPOptions.__dataclass_fields__},
            **({} if port is None else {"port": port}),
            **({} if host is None else {"host": host}),
        })  # fmt: skip
    _ensure_started()
    if route_prefix is not None and (options is not None or not _answers_http()):
        _start(options or HTTPOptions())
    problem = ask_controller("deploy", spec, blobs, meanwhile=_Patience(name).say_why, every_s=SAY_EVERY_S)
    if problem:
        raise DeployFailedError(problem)
    refresh()
    if blocking:
        _block()
    return DeploymentHandle(spec.ingress, name)


def status() -> ServeStatus:
    """What is served, and how that goes.

    >>> serve.status().applications["default"].status
    """
    if not skate.is_initialized() or not has_controller():
        return ServeStatus(None, {})
    found: ServeStatus = ask_controller("status")
    return found


def delete(name: str, _blocking: bool = True) -> Any:
    """Serve an application no more. Requests that it has are answered first.

    With a path, which begins with "/" as no name of an application does, it is a decorator of methods: that of HTTP's
    DELETE, beside `serve.get`, `serve.post` and `serve.put`.
    """
    if isinstance(name, str) and name.startswith("/"):
        from skate.serve import routes

        return routes.delete(name)
    there = status().applications
    if name not in there:
        raise _no_application(name, there)
    (ask_controller if _blocking else tell_controller)("delete", name)
    if _blocking:
        refresh()
    return None


def shutdown() -> None:
    """Stop serving: delete all applications and close the HTTP port. Running requests are answered first."""
    if not skate.is_initialized() or not has_controller():
        return
    shut_down()
    refresh()
    end_all()


def get_app_handle(name: str = DEFAULT_APP) -> DeploymentHandle:
    """A handle to the deployment that answers for an application."""
    there = status().applications
    if name not in there:
        raise _no_application(name, there)
    return DeploymentHandle(there[name].ingress, name)


def get_deployment_handle(deployment_name: str, app_name: str | None = None, **_: Any) -> DeploymentHandle:
    """A handle to a deployment, of the application of the caller or of "default" unless another one is named."""
    from skate.serve import request_context

    if app_name is None:
        replica = request_context.replica_or_none()
        app_name = DEFAULT_APP if replica is None else replica.app_name
    if not isinstance(deployment_name, str) or not deployment_name:
        raise TypeError(f"get_deployment_handle({deployment_name!r}): it takes the name of a deployment.")
    return DeploymentHandle(deployment_name, app_name)


# -- parts -------------------------------------------------------------------------------------------------------------


class _Patience:
    """Says once for each deployment why `run` has to wait: no node has room, or a constructor takes long."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._said: set[str] = set()

    def say_why(self) -> None:
        """Look at the deployments of the application."""
        found = status().applications.get(self._app)
        for name, each in found.deployments.items() if found is not None else ():
            if each.message and name not in self._said:
                self._said.add(name)
                logger.warning("serve.run waits for deployment %s of application %s: %s", name, self._app, each.message)


def _no_application(name: str, there: Iterable[str]) -> DeploymentUnavailableError:
    return DeploymentUnavailableError(f"there is no application {name!r}; there are: {', '.join(there) or 'none'}.")


def _ensure_started() -> None:
    if not skate.is_initialized():
        skate.init()
    atexit.unregister(_end_with_script)
    atexit.register(_end_with_script)


def _end_with_script() -> None:
    """Let replicas answer what they have, if they end with this script because it has started their node."""
    with contextlib.suppress(SkateError, ValueError):  # there is no controller, or it does not answer
        if skate.is_initialized():
            controller = skate.get_actor(CONTROLLER, NAMESPACE)
            if skate.get(controller.ends_with.remote(os.getpid()), timeout=FAREWELL_S):
                skate.get(controller.shutdown.remote(FAREWELL_S), timeout=2 * FAREWELL_S)


def _start(options: HTTPOptions) -> None:
    _ensure_started()
    _check_http_packages()
    problem = ask_controller("start", options)
    if problem:
        raise ServeError(problem)


def _answers_http() -> bool:
    return skate.kv.get("http", namespace=NAMESPACE) is not None


def _check_http_packages() -> None:
    import importlib.util

    for package in ("uvicorn", "httptools", "websockets", "starlette"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(
                f"skate.serve needs the package {package} to answer HTTP, and it is not installed.\n"
                "  next: pip install 'skate[serve]', or serve.run(…, route_prefix=None) for handles alone.",
                name=package,
            )


def _http_options(given: HTTPOptions | dict[str, Any] | None) -> HTTPOptions | None:
    if given is None or isinstance(given, HTTPOptions):
        return given
    if isinstance(given, dict):
        made: HTTPOptions = from_dict(HTTPOptions, given)
        return made
    raise TypeError(f"http_options={given!r}: it may be an HTTPOptions or a dict of its settings.")


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or "#" in name or "/" in name or not is_line(name):
        raise ValueError(
            f"serve.run(name={name!r}): it may be a string of one line that is not empty, without '#' and '/'."
        )
    return str.__str__(name)


def _checked_prefix(prefix: str | None) -> str | None:
    if prefix is None:
        return None
    if not isinstance(prefix, str) or not prefix.startswith("/") or "{" in prefix or not is_line(prefix):
        raise ValueError(f"serve.run(route_prefix={prefix!r}): it may be a path that begins with '/', or None.")
    if prefix.startswith("/-"):
        raise ValueError(f"serve.run(route_prefix={prefix!r}): paths below /- are those of skate.serve itself.")
    return str.__str__(prefix).rstrip("/") or "/"


def _block() -> None:
    """Wait for Ctrl-C or a TERM signal, then stop serving."""
    ended = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set()) if is_main else None
    try:
        ended.wait()
    except KeyboardInterrupt:
        pass
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
        shutdown()
