"""Deployments and applications: what is to be served, before it is.

    @serve.deployment(num_replicas=2)
    class Brain: ...                  Deployment       a class or function with settings
    app = Api.bind(Brain.bind())      Application      a deployment with arguments; others among them become handles
    serve.run(app)                    AppSpec + blobs  what the controller gets

Idea: an Application that is met while arguments are pickled is written as the handle that it will be, wherever it
stands: in a list, in an object, in a closure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from skate import cloudpickle
from skate.serve import configs
from skate.serve.code_digest import code_digest
from skate.serve.config import DeploymentOptions, is_utf8, options_from
from skate.serve.records import AppSpec, DeploymentSpec

__all__ = ["Application", "Deployment", "deployment", "pack"]

if TYPE_CHECKING:
    from abc import ABCMeta

    class DeploymentMeta(ABCMeta):
        """What mypy is told that the class behind `@serve.deployment` has; see `skate.mypy_plugin`."""

        name: str
        func_or_class: Any

        def bind(cls, *args: Any, **kwargs: Any) -> Application: ...
        def options(cls, **options: Any) -> Deployment[Any]: ...


T = TypeVar("T")

#: What a deployment may have in blobs: its class, arguments and user_config together.
BLOB_BYTES_MAX = 64 << 20


class Deployment(Generic[T]):
    """A class or function that can be served, with its settings. `bind` gives it arguments."""

    def __init__(self, target: T, options: DeploymentOptions) -> None:
        self._target = target
        self._options = options

    @property
    def name(self) -> str:
        """What it is called in its application."""
        return self._options.name

    @property
    def func_or_class(self) -> T:
        """What is served."""
        return self._target

    def __getattr__(self, name: str) -> Any:
        # Settings can be read as attributes, as in Ray Serve.
        if name.startswith("_"):  # copy and pickle ask for such names before there are options
            raise AttributeError(name)
        if name in DeploymentOptions.__dataclass_fields__:
            return getattr(self._options, name)
        raise AttributeError(
            f"deployment {self.name} has no attribute {name!r}; its class has, perhaps: .func_or_class"
        )

    def options(self, **options: Any) -> Deployment[T]:
        """Make the same deployment with other settings."""
        return Deployment(self._target, options_from(options, self._options))

    def bind(self, *args: Any, **kwargs: Any) -> Application:
        """Give it the arguments of its constructor. Applications among them become handles there."""
        if inspect.isclass(self._target):
            _check_arguments(self._target, args, kwargs)
        elif args or kwargs:
            raise TypeError(f"deployment {self.name} is a function: bind() takes no arguments, requests bring them.")
        return Application(self, args, kwargs)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.name} is a deployment.\n  next: serve.run({self.name}.bind(…)) serves it.")

    def __repr__(self) -> str:
        return f"Deployment({self.name})"


class Application:
    """A deployment with the arguments of its constructor: what `serve.run` takes."""

    def __init__(self, deployment: Deployment[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._deployment = deployment
        self._args = args
        self._kwargs = kwargs

    def __reduce__(self) -> Any:
        packing = _packing.get()
        if packing is None:
            return Application, (self._deployment, self._args, self._kwargs)
        from skate.serve.handle import DeploymentHandle

        return DeploymentHandle, (packing.name_of(self), packing.app)

    def __repr__(self) -> str:
        return f"Application({self._deployment.name})"


@overload
def deployment(target: T, /) -> Deployment[T]: ...
@overload
def deployment(**options: Any) -> Callable[[T], Deployment[T]]: ...
def deployment(target: Any = None, /, **options: Any) -> Any:
    """Make a class or a function a deployment.

    >>> @serve.deployment(num_replicas=2, max_ongoing_requests=64)
    ... class Greeter:
    ...     def __call__(self, request):
    ...         return "hello"
    >>> handle = serve.run(Greeter.bind())

    The settings are the fields of `serve.config.DeploymentOptions`.
    """

    def decorate(target: Any) -> Deployment[Any]:
        if isinstance(target, Deployment):
            raise TypeError(
                f"{target.name} is a deployment already.\n  next: .options(…) makes one with other settings."
            )
        if not inspect.isclass(target) and not callable(target):
            raise TypeError(f"@serve.deployment: {target!r} is neither a class nor a function.")
        chosen = options_from(options)
        if not chosen.name:
            chosen = dataclasses.replace(chosen, name=getattr(target, "__name__", type(target).__name__))
        return Deployment(target, chosen)

    return decorate if target is None else decorate(target)


def pack(application: Application, name: str, route_prefix: str | None) -> tuple[AppSpec, dict[str, bytes]]:
    """The application as the controller takes it: its specification, and the blobs that it names by their digests."""
    packing = _Packing(name)
    packing.name_of(application)
    token = _packing.set(packing)
    blobs: dict[str, bytes] = {}
    specs: list[DeploymentSpec] = []
    try:
        for each, called in packing.found():
            is_ingress = each is application
            specs.append(_spec(each, called, name, is_ingress, route_prefix, blobs))
    finally:
        _packing.reset(token)
    return AppSpec(name, route_prefix, packing.name_of(application), specs, _import_path()), blobs


def _import_path() -> list[str]:
    """Where this process imports from. Python overlooks what is no string in `sys.path`, such as a Path."""
    paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
    return [str.__str__(path) for path in paths if is_utf8(path)]


class _Packing:
    """The applications that were met while one is packed, and what each is called."""

    def __init__(self, app: str) -> None:
        self.app = app
        self._met: list[tuple[Application, str]] = []

    def name_of(self, application: Application) -> str:
        """The name of its deployment; the second one of a name has a number."""
        for each, called in self._met:
            if each is application:
                return called
        names = {called for _, called in self._met}
        called = wanted = application._deployment.name
        number = 0
        while called in names:
            number += 1
            called = f"{wanted}_{number}"
        self._met.append((application, called))
        return called

    def found(self) -> Iterator[tuple[Application, str]]:
        """All of them; those that are met meanwhile come later."""
        yield from self._met


_packing: ContextVar[_Packing | None] = ContextVar("packing", default=None)


def _spec(
    each: Application, called: str, app: str, is_ingress: bool, route_prefix: str | None, blobs: dict[str, bytes]
) -> DeploymentSpec:
    options = each._deployment._options
    code = _dumps(called, (each._deployment._target, each._args, each._kwargs), "its class or its arguments")
    config = b""
    if options.user_config is not None:
        config = _dumps(called, options.user_config, "its user_config", configs.dump)
    if len(code) + len(config) > BLOB_BYTES_MAX:
        raise ValueError(
            f"deployment {called}: its class, arguments and user_config have {len(code) + len(config):,} bytes, and "
            f"{BLOB_BYTES_MAX:,} is the most, because they outlive every process of the cluster.\n"
            "  next: write what is large to a file, and give the path to the constructor or in user_config."
        )
    actor_options = dict(options.ray_actor_options)
    if options.placement_group_bundles is not None:
        actor_options["_bundles"] = (options.placement_group_bundles, options.placement_group_strategy)
    if options.max_replicas_per_node is not None:
        actor_options["_most_per_node"] = options.max_replicas_per_node
    packed_options = cloudpickle.dumps(actor_options)
    digests = {name: _digest(data) for name, data in (("code", code), ("config", config)) if data}
    blobs.update({digests["code"]: code} | ({digests["config"]: config} if config else {}))
    scaling = options.scaling()
    count = options.num_replicas if isinstance(options.num_replicas, int) else 1
    if scaling is not None:
        count = scaling.min_replicas if scaling.initial_replicas is None else scaling.initial_replicas
    version = options.version or _digest(
        code_digest(code) + code_digest(packed_options) + _source(each._deployment._target)
    )
    if is_ingress:  # it is HTTP that replicas of another place, or none, would answer
        version = f"{version} {route_prefix}"
    return DeploymentSpec(
        app=app,
        name=called,
        code=digests["code"],
        config=digests.get("config", ""),
        version=version,
        replicas=count,
        max_ongoing=options.max_ongoing_requests,
        max_queued=options.max_queued_requests,
        drain_s=options.graceful_shutdown_timeout_s,
        health_period_s=options.health_check_period_s,
        health_timeout_s=options.health_check_timeout_s,
        actor_options=packed_options,
        scaling=None if scaling is None else msgspec.to_builtins(scaling),
        is_ingress=is_ingress,
    )


def _source(target: Any) -> bytes:
    """The file that a class or function is from: what can be imported is pickled by its name, whatever it says."""
    try:
        with open(inspect.getsourcefile(target) or "", "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).digest()
    except (OSError, TypeError):  # of a notebook, or an object with `__call__`
        return b""


def _dumps(called: str, value: Any, what: str, dump: Callable[[Any], bytes] = cloudpickle.dumps) -> bytes:
    try:
        return dump(value)
    except Exception as error:
        raise TypeError(
            f"deployment {called} cannot be sent to its replicas.\n  why:  {what} cannot be pickled: {error}\n"
            "  next: make what cannot travel (locks, connections, models on a device) in the constructor."
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.bind(…): {error}; its constructor takes {signature}.") from None
