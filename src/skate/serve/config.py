"""What can be set: of a deployment, of its autoscaling, of HTTP. Wrong values are refused where they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from skate.serve.exceptions import NotSupportedError

__all__ = ["AutoscalingConfig", "DeploymentOptions", "HTTPOptions"]

Options = dict[str, Any]

#: Settings that Ray Serve has and skate.serve has not, with what to do instead.
NOT_HERE = {
    "request_router_config": "requests go to the better of two replicas, by what is known of their queues",
    "request_router_class": "requests go to the better of two replicas, by what is known of their queues",
    "replica_scheduler_class": "requests go to the better of two replicas, by what is known of their queues",
    "local_testing_mode": "call the class itself, or serve.run() it: that takes a tenth of a second",
    "grpc_options": "HTTP and handles are served",
    "gang_scheduling_config": "placement_group_bundles reserve resources for one replica",
}


class gRPCOptions:  # noqa: N801 - the name of Ray Serve
    """Ray Serve has it, and skate.serve has not."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotSupportedError(f"skate.serve does not answer gRPC.\n  next: leave it out; {NOT_HERE['grpc_options']}.")


class RequestRouterConfig:
    """Ray Serve has it, and skate.serve has not."""

    def __init__(self, *_: Any, **__: Any) -> None:
        instead = NOT_HERE["request_router_config"]
        raise NotSupportedError(f"skate.serve has no request routers of one's own.\n  next: leave it out; {instead}.")


@dataclass(frozen=True)
class AutoscalingConfig:
    """How many replicas a deployment has, by the requests that are in it.

    >>> @serve.deployment(autoscaling_config=AutoscalingConfig(min_replicas=0, max_replicas=4))
    """

    #: With 0, the first request of a quiet deployment waits until a replica has started.
    min_replicas: int = 1
    initial_replicas: int | None = None
    max_replicas: int = 1
    #: Requests, in work or waiting, that there should be for each replica.
    target_ongoing_requests: float = 2.0
    #: Seconds for which the load has to ask for more, or for fewer, replicas before their number changes.
    upscale_delay_s: float = 1.0
    downscale_delay_s: float = 60.0
    #: Seconds between two looks at the load, and over which its mean is taken.
    metrics_interval_s: float = 0.5
    look_back_period_s: float = 2.0
    #: The part of the way that one change goes, at least one replica; above 1 it goes farther than the load asks.
    upscaling_factor: float | None = None
    downscaling_factor: float | None = None
    #: Another delay for the last step, from one replica to none.
    downscale_to_zero_delay_s: float | None = None

    def __post_init__(self) -> None:
        where = "AutoscalingConfig"
        make_plain(self)
        whole(where, "min_replicas", self.min_replicas, 0)
        whole(where, "max_replicas", self.max_replicas, max(1, self.min_replicas))
        if self.initial_replicas is not None:
            whole(where, "initial_replicas", self.initial_replicas, self.min_replicas, self.max_replicas)
        positive(where, "target_ongoing_requests", self.target_ongoing_requests)
        for name in ("metrics_interval_s", "look_back_period_s"):
            positive(where, name, getattr(self, name))
        for name in ("upscale_delay_s", "downscale_delay_s"):
            not_negative(where, name, getattr(self, name))
        if self.downscale_to_zero_delay_s is not None:
            not_negative(where, "downscale_to_zero_delay_s", self.downscale_to_zero_delay_s)
        for name in ("upscaling_factor", "downscaling_factor"):
            value = getattr(self, name)
            if value is not None:
                positive(where, name, value)


@dataclass(frozen=True)
class HTTPOptions:
    """Where and how HTTP is answered.

    >>> serve.start(http_options=serve.HTTPOptions(port=9000, token="of 32 random bytes"))
    """

    #: Loopback: programs on other machines cannot connect. "0.0.0.0" lets them.
    host: str | None = "127.0.0.1"
    port: int = 8000
    root_path: str = ""
    #: Seconds until a request without a complete answer is cancelled, with a 504 if nothing was sent. None: no end.
    request_timeout_s: float | None = None
    keep_alive_timeout_s: float = 120.0
    #: Requests must bring `Authorization: Bearer TOKEN`. None: no token.
    token: str | None = field(default=None, repr=False)
    #: Pages of other sites may only read: other methods and websockets are refused if a browser says by `Origin` that
    #: the page came from elsewhere. These origins may do all, for example "https://example.com"; "*" stands for all.
    #: On loopback without a token, the page's own site has to be named too, unless it is localhost or an address.
    #: Apps of serve.ingress are not protected: they have their own rules.
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 << 20
    max_header_bytes: int = 64 << 10
    header_timeout_s: float = 10.0
    #: The silence allowed within a body, and how much later it may end than at 16 KiB in each second. Then it is a 408.
    body_timeout_s: float = 60.0
    #: How long a client may take nothing of what is sent to it. Then its connection ends, and the work for it.
    write_timeout_s: float = 60.0
    #: Of one message of a websocket that a client sends; a longer one closes it with code 1009. At most 64 MiB.
    max_websocket_bytes: int = 16 << 20
    #: Requests that may wait in one replica where its deployment sets no max_queued_requests.
    max_queued_requests: int = 1000
    #: Whether answers with status 500 have the traceback. It shows code and data to strangers.
    show_tracebacks: bool = False
    #: Taken and of no effect, because every replica answers HTTP itself: Ray's place of proxies, and their CPUs.
    location: str | None = None
    num_cpus: int = 0

    def __post_init__(self) -> None:
        where = "HTTPOptions"
        make_plain(self)
        if self.host is not None and not isinstance(self.host, str):
            raise TypeError(f"{where}: host is {self.host!r}; it may be the name or the address of an interface.")
        whole(where, "port", self.port, 0, 65535)
        if not isinstance(self.root_path, str) or (self.root_path and not self.root_path.startswith("/")):
            raise ValueError(f"{where}: root_path is {self.root_path!r}; it may be a path that begins with '/'.")
        if self.request_timeout_s is not None:
            positive(where, "request_timeout_s", self.request_timeout_s)
        for name in ("keep_alive_timeout_s", "header_timeout_s", "body_timeout_s", "write_timeout_s"):
            positive(where, name, getattr(self, name))
        for name, least in (("max_body_bytes", 0), ("max_header_bytes", 256), ("max_queued_requests", 0)):
            whole(where, name, getattr(self, name), least)
        whole(where, "max_websocket_bytes", self.max_websocket_bytes, 125, 64 << 20)
        origins = self.allowed_origins
        if not isinstance(origins, (tuple, list, set, frozenset)) or not all(isinstance(each, str) for each in origins):
            raise TypeError(f"{where}(allowed_origins={origins!r}): it may be a tuple of strings.")
        object.__setattr__(self, "allowed_origins", tuple(map(str.__str__, origins)))
        if self.token is not None and (not isinstance(self.token, str) or not self.token.isascii() or not self.token):
            raise ValueError(f"{where}: token may be a string of ASCII characters that is not empty.")
        if not isinstance(self.show_tracebacks, bool):
            raise TypeError(f"{where}: show_tracebacks is {self.show_tracebacks!r}; it may be True or False.")
        if self.location is not None and not isinstance(self.location, str):
            raise TypeError(f"{where}: location is {self.location!r}; it may be a string, and has no effect.")
        whole(where, "num_cpus", self.num_cpus, 0)


def why_not_as(asked: HTTPOptions, there: HTTPOptions, address: tuple[str, int]) -> str:
    """Why HTTP cannot be answered as it is asked for, if it is answered already; "" if that is the same."""
    if asked.port == address[1]:  # port 0 has become this one
        asked = dataclasses.replace(asked, port=there.port)
    other = [
        each.name for each in dataclasses.fields(HTTPOptions) if getattr(asked, each.name) != getattr(there, each.name)
    ]
    if not other:
        return ""
    return (
        f"HTTP is answered already, at {address[0]}:{address[1]}, with another {', '.join(other)}.\n"
        "  next: serve.shutdown() first, or leave the options out."
    )


@dataclass(frozen=True)
class DeploymentOptions:
    """The settings of a deployment, as `@serve.deployment(...)` takes them."""

    name: str = ""
    #: How many replicas there are. None: one, or what autoscaling_config says; "auto": 1 to 100, by load.
    num_replicas: int | str | None = None
    #: Options of the actor that a replica is: num_cpus, num_gpus, resources, memory, runtime_env.
    ray_actor_options: Options = field(default_factory=dict)
    placement_group_bundles: list[dict[str, float]] | None = None
    placement_group_strategy: str = "PACK"
    max_replicas_per_node: int | None = None
    #: Is given to the method `reconfigure` of each replica, after its __init__ and when it changes.
    user_config: Any = None
    #: Requests that a replica works on at a time.
    max_ongoing_requests: int = 100
    #: Requests that may wait in each handle; the next one is a BackPressureError. -1: without limit.
    max_queued_requests: int = -1
    autoscaling_config: AutoscalingConfig | None = None
    #: Seconds that a draining replica waits for the requests that it has.
    graceful_shutdown_timeout_s: float = 20.0
    #: Taken and of no effect: a replica ends as soon as it has answered all.
    graceful_shutdown_wait_loop_s: float = 2.0
    #: Seconds between two calls of the method `check_health` of a replica, if it has one; it raises if it is not well.
    health_check_period_s: float = 10.0
    health_check_timeout_s: float = 30.0
    #: Replicas of another version are replaced. None: that follows from the class, its arguments and its options.
    version: str | None = None
    #: Taken and of no effect.
    logging_config: Any = None

    def __post_init__(self) -> None:
        where = f"deployment({self.name!r})" if self.name else "deployment()"
        make_plain(self)
        if not isinstance(self.name, str) or "#" in self.name or not is_line(self.name):
            raise ValueError(f"{where}: the name may be a string of one line, without '#'.")
        if self.version is not None and not isinstance(self.version, str):
            raise TypeError(f"{where}: version is {self.version!r}; it may be a string.")
        if self.num_replicas is not None and self.num_replicas != "auto":
            if isinstance(self.num_replicas, str):
                raise ValueError(f"{where}: num_replicas is {self.num_replicas!r}; it may be a whole number or 'auto'.")
            whole(where, "num_replicas", self.num_replicas, 0)
            if self.autoscaling_config is not None:
                raise ValueError(
                    f"{where}: num_replicas={self.num_replicas} and autoscaling_config contradict each other.\n"
                    "  next: leave one out; AutoscalingConfig(initial_replicas=…) is what to begin with."
                )
        if not isinstance(self.ray_actor_options, dict):
            raise TypeError(
                f"{where}: ray_actor_options is {self.ray_actor_options!r}; it may be a dict of options of actors."
            )
        refused = sorted(set(self.ray_actor_options) & REPLICAS_OWN)
        if refused:
            raise ValueError(f"{where}: ray_actor_options may not have {', '.join(refused)}: skate.serve sets that.")
        whole(where, "max_ongoing_requests", self.max_ongoing_requests, 1)
        whole(where, "max_queued_requests", self.max_queued_requests, -1)
        if self.max_replicas_per_node is not None:
            whole(where, "max_replicas_per_node", self.max_replicas_per_node, 1)
            if self.placement_group_bundles is not None:
                raise ValueError(
                    f"{where}: max_replicas_per_node and placement_group_bundles exclude each other, since the bundles "
                    "say where a replica is.\n  next: leave one out."
                )
        placed = "max_replicas_per_node" if self.max_replicas_per_node is not None else "placement_group_bundles"
        if getattr(self, placed) is not None and self.ray_actor_options.get("scheduling_strategy") is not None:
            raise ValueError(
                f"{where}: {placed} and the scheduling_strategy of ray_actor_options exclude each other, since both "
                "say where a replica is.\n  next: leave one out."
            )
        for name in ("graceful_shutdown_timeout_s", "graceful_shutdown_wait_loop_s"):
            not_negative(where, name, getattr(self, name))
        for name in ("health_check_period_s", "health_check_timeout_s"):
            positive(where, name, getattr(self, name))
        bundles = self.placement_group_bundles
        if bundles is not None and not (
            isinstance(bundles, list) and bundles and all(isinstance(bundle, dict) for bundle in bundles)
        ):
            raise TypeError(
                f"{where}: placement_group_bundles is {bundles!r}; it may be a list of dicts of resources, not empty."
            )
        if self.placement_group_strategy not in STRATEGIES:
            raise ValueError(
                f"{where}: placement_group_strategy is {self.placement_group_strategy!r}; "
                f"it may be {', '.join(STRATEGIES)}."
            )
        if self.autoscaling_config is not None and not isinstance(self.autoscaling_config, AutoscalingConfig):
            raise TypeError(
                f"{where}: autoscaling_config is {self.autoscaling_config!r}; "
                "it may be an AutoscalingConfig or a dict of its settings."
            )

    def scaling(self) -> AutoscalingConfig | None:
        """How replicas are counted by load; None if their number is given."""
        if self.num_replicas == "auto" and self.autoscaling_config is None:
            return AutoscalingConfig(**AUTO)
        return self.autoscaling_config


#: What num_replicas="auto" means where autoscaling_config does not say another thing.
AUTO: Options = {"min_replicas": 1, "max_replicas": 100}
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

#: Options of a replica's actor that are not the user's to choose.
REPLICAS_OWN = {
    "name",
    "namespace",
    "lifetime",
    "get_if_exists",
    "max_restarts",
    "max_task_retries",
    "max_concurrency",
    "concurrency_groups",
    "max_pending_calls",
    "placement_group",
    "placement_group_bundle_index",
}


def options_from(given: Mapping[str, Any], before: DeploymentOptions | None = None) -> DeploymentOptions:
    """The options that the words of `@serve.deployment(...)` or of `.options(...)` mean."""
    known = {each.name for each in dataclasses.fields(DeploymentOptions)}
    for name, instead in NOT_HERE.items():
        if given.get(name) or given.get(f"_{name}"):
            raise NotSupportedError(f"skate.serve has no {name}.\n  next: leave it out; {instead}.")
    if "route_prefix" in given:
        raise ValueError("a deployment has no route_prefix.\n  next: serve.run(app, route_prefix=…) sets it.")
    chosen = {name: value for name, value in given.items() if name.lstrip("_") not in NOT_HERE}
    unknown = sorted(set(chosen) - known)
    if unknown:
        raise TypeError(f"a deployment has no option {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    scaling = chosen.get("autoscaling_config")
    if isinstance(scaling, Mapping):
        if chosen.get("num_replicas") == "auto":
            scaling = AUTO | dict(scaling)
        chosen["autoscaling_config"] = from_dict(AutoscalingConfig, scaling)
    if chosen.get("ray_actor_options", 0) is None:
        chosen["ray_actor_options"] = {}
    if before is None:
        return DeploymentOptions(**chosen)
    if chosen.get("num_replicas") is not None and "autoscaling_config" not in chosen:
        chosen["autoscaling_config"] = None
    elif chosen.get("autoscaling_config") is not None and "num_replicas" not in chosen:
        chosen["num_replicas"] = None
    return dataclasses.replace(before, **chosen)


def from_dict(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """Make an instance of a class of settings from a dict of them."""
    known = [each.name for each in dataclasses.fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(f"{kind.__name__} has no {unknown[0]!r}; it has {', '.join(known)}.")
    return kind(**given)


def make_plain(options: Any) -> None:
    """Turn numbers and strings of other classes, for example numpy's, into Python's own: only those can be kept."""
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        if each.type == "Any" or isinstance(value, bool):  # what is the user's own stays as it is
            continue
        if isinstance(value, Integral):
            object.__setattr__(options, each.name, int(value))
        elif isinstance(value, Real):
            object.__setattr__(options, each.name, float(value))
        elif isinstance(value, str):
            object.__setattr__(options, each.name, str.__str__(value))


def is_utf8(text: str) -> bool:
    """Whether a string can be kept. Python reads names of files that are not UTF-8 as strings that cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_line(text: str) -> bool:
    """Whether a string can be kept, and be a name: it has no line break."""
    return is_utf8(text) and len(text.splitlines()) <= 1


def whole(where: str, name: str, value: Any, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number of a range."""
    right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not right or (most is not None and value > most):
        end = "on" if most is None else f"to {most}"
        raise ValueError(f"{where}: {name} is {value!r}; it may be a whole number from {least} {end}.")


def positive(where: str, name: str, value: Any) -> None:
    """Refuse what is no number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{where}: {name} is {value!r}; it may be a number above 0.")


def not_negative(where: str, name: str, value: Any) -> None:
    """Refuse what is no number from zero on."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ValueError(f"{where}: {name} is {value!r}; it may be a number from 0 on.")
