"""Handles: how Python calls a deployment.

>>> handle = serve.get_deployment_handle("Brain")
>>> response = handle.act.remote(observation)      # at once; the request is on its way
>>> response.result()                              # or `await response`; or an argument of another handle's remote()
"""

from __future__ import annotations

import threading
from typing import Any

from skate.serve.dispatch import Dispatcher, dispatcher
from skate.serve.exceptions import NotSupportedError
from skate.serve.handle_responses import DeploymentResponse, DeploymentResponseGenerator
from skate.serve.records import key_of
from skate.serve.request import Request
from skate.serve.request_context import current_request

__all__ = ["DeploymentHandle", "DeploymentResponse", "DeploymentResponseGenerator"]


class DeploymentHandle:
    """Calls the replicas of a deployment. Small, and can be sent anywhere in the cluster.

    `handle.remote(...)` calls the deployment itself: its `__call__`, or the function that it is.
    `handle.method.remote(...)` calls a method. Requests go to the better of two replicas, by what is known of their
    load.
    """

    def __init__(
        self,
        deployment_name: str,
        app_name: str = "default",
        *,
        _method: str = "__call__",
        _stream: bool = False,
        _model: str = "",
        _idempotent: bool = False,
    ) -> None:
        self.deployment_name = deployment_name
        self.app_name = app_name
        self._key = key_of(app_name, deployment_name)
        self._method = _method
        self._stream = _stream
        self._model = _model
        self._idempotent = _idempotent
        self._dispatcher: Dispatcher | None = None

    def options(
        self,
        *,
        method_name: str | None = None,
        stream: bool | None = None,
        multiplexed_model_id: str | None = None,
        idempotent: bool | None = None,
        use_new_handle_api: bool | None = None,
        **others: Any,
    ) -> DeploymentHandle:
        """Make a handle whose requests differ.

        stream: responses are streams of what the method yields. multiplexed_model_id: the model that the request is
        for. idempotent: a request whose replica dies may be run again by another one.
        """
        for name in others:
            if name.lstrip("_") in ("prefer_local_routing", "session_id", "by_reference"):
                continue
            raise TypeError(
                f"a handle has no option {name!r}; it has method_name, stream, multiplexed_model_id and idempotent."
            )
        made = DeploymentHandle(
            self.deployment_name,
            self.app_name,
            _method=self._method if method_name is None else method_name,
            _stream=self._stream if stream is None else stream,
            _model=self._model if multiplexed_model_id is None else multiplexed_model_id,
            _idempotent=self._idempotent if idempotent is None else idempotent,
        )
        made._dispatcher = self._dispatcher
        return made

    def __getattr__(self, name: str) -> DeploymentHandle:
        if name.startswith("__") or name in ("_dispatcher", "_key"):
            raise AttributeError(name)
        found = self.__dict__[name] = self.options(method_name=name)
        return found

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request; a `DeploymentResponse`, or a `DeploymentResponseGenerator` with options(stream=True).

        Responses of other handles may be arguments: the replica gets their values, and they do not come by here.
        """
        owner = self._dispatcher
        if owner is None or owner.deleted or owner.ended:
            owner = self._dispatcher = dispatcher(self._key)
        context = current_request()
        id = context.request_id if context is not None else ""
        request = Request(self._method, self._model, id, args, kwargs, stream=self._stream, idempotent=self._idempotent)
        lacking = _take_responses(request)
        if lacking:
            _send_later(owner, request, lacking)
        else:
            owner.send(request)
        return DeploymentResponseGenerator(owner, request) if self._stream else DeploymentResponse(owner, request)

    def shutdown(self) -> None:
        """Nothing has to be closed. Ray Serve has it."""

    def __reduce__(self) -> Any:
        return _load, (
            self.deployment_name, self.app_name, self._method, self._stream, self._model, self._idempotent,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeploymentHandle) and self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self) -> int:
        return hash((self._key, self._method))

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"a handle is not called itself.\n  next: {self!r}.remote(…).")

    def __repr__(self) -> str:
        method = "" if self._method == "__call__" else f".{self._method}"
        return f"DeploymentHandle({self._key}){method}"


def _load(name: str, app: str, method: str, stream: bool, model: str, idempotent: bool) -> DeploymentHandle:
    return DeploymentHandle(name, app, _method=method, _stream=stream, _model=model, _idempotent=idempotent)


def _take_responses(request: Request) -> list[Request]:
    """Replace responses among the arguments by the references behind them; those that are not bound yet."""
    lacking: list[Request] = []
    for each in (*request.args, *request.kwargs.values()) if request.kwargs else request.args:
        if type(each) is DeploymentResponse:
            lacking.append(each._request)
        elif type(each) is DeploymentResponseGenerator:
            raise NotSupportedError(
                "a stream cannot be an argument.\n  next: read it here, or let the other deployment call the handle."
            )
    if not lacking:
        return lacking
    if not any(not each.is_bound for each in lacking):
        _replace(request)
        return []
    return [each for each in lacking if not each.is_bound]


def _replace(request: Request) -> None:
    """Put references where responses are. Raises the error of one that was never sent."""
    given: list[tuple[int | str, Any]] = [*enumerate(request.args), *request.kwargs.items()]
    request.answers = tuple(place for place, each in given if type(each) is DeploymentResponse)
    request.args = tuple(_ref_of(each) for each in request.args)
    request.kwargs = {name: _ref_of(each) for name, each in request.kwargs.items()}


def _ref_of(value: Any) -> Any:
    if type(value) is not DeploymentResponse:
        return value
    if value._request.error is not None:
        raise value._request.error
    return value._request.ref


def _send_later(owner: Dispatcher, request: Request, lacking: list[Request]) -> None:
    """Send a request when the responses among its arguments are bound themselves."""
    count = len(lacking)
    lock = threading.Lock()
    owner.send_later(request)

    def one_more() -> None:
        nonlocal count
        with lock:
            count -= 1
            if count:
                return
        error: BaseException | None = None
        try:
            _replace(request)
        except Exception as raised:  # noqa: BLE001 - it becomes the error of this request
            error = raised
        owner.send_now(request, error)

    for each in lacking:
        each.when_bound(one_more)
