"""`skate.client("host:port").namespace("x").connect()`: join a cluster from a machine that is no node of it.

The same as `skate.init("skate://host:port", namespace="x")`, in the form that older programs for Ray have.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from skate._api import RuntimeInfo, init, is_on_no_node, shutdown

__all__ = ["ClientBuilder", "ClientContext", "client", "connect", "disconnect", "is_on_no_node"]


class ClientContext:
    """A connection to a cluster, which ends with `disconnect()` or with the block that it opens."""

    def __init__(self, facts: RuntimeInfo) -> None:
        #: What `skate.init` returned.
        self.facts = facts
        self.dashboard_url: str = ""
        self.python_version = facts.python_version
        self.ray_version = facts.ray_version
        self.ray_commit = facts.ray_commit

    def disconnect(self) -> None:
        shutdown()

    def __enter__(self) -> ClientContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()


class ClientBuilder:
    """Where to connect to, and as what; `connect()` does it."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._arguments: dict[str, Any] = {}

    def env(self, env: dict[str, Any]) -> ClientBuilder:
        """The `runtime_env` of the program."""
        self._arguments["runtime_env"] = env
        return self

    def namespace(self, namespace: str) -> ClientBuilder:
        """The namespace of the program's named actors."""
        self._arguments["namespace"] = namespace
        return self

    def connect(self) -> ClientContext:
        """Join the cluster. Raises what `skate.init` raises."""
        return ClientContext(init(self.address, **self._arguments))


def client(address: str | None = None) -> ClientBuilder:
    """A connection to make: to a cluster at "host:port", or to "local", a node that is started here.

    >>> with skate.client("10.0.0.7:6380").namespace("train").connect():
    ...     skate.get(f.remote())
    """
    return ClientBuilder(_outside(address))


def connect(
    conn_str: str,
    secure: bool = False,
    metadata: list[tuple[str, str]] | None = None,
    connection_retries: int = 3,
    job_config: Any = None,
    namespace: str | None = None,
    *,
    ignore_version: bool = False,
    ray_init_kwargs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Join the cluster at "host:port", as `skate.init("skate://host:port")` does; facts about it.

    secure, metadata, connection_retries and ignore_version have no effect: the cluster decides whether connections are
    encrypted, and broken ones are made again by themselves.
    """
    arguments = {"namespace": namespace, "job_config": job_config, **(ray_init_kwargs or {})}
    facts = init(_outside(conn_str), **arguments)
    return {
        "num_clients": 1,
        "python_version": facts.python_version,
        "ray_version": facts.ray_version,
        "ray_commit": facts.ray_commit,
        **facts,
    }


def disconnect() -> None:
    """Leave the cluster, as `skate.shutdown()` does."""
    shutdown()


def _outside(address: str | None) -> str | None:
    """An address for `init`: "host:port" is that of a cluster that this machine need not be a node of."""
    is_plain = isinstance(address, str) and "://" not in address and ":" in address
    return f"skate://{address}" if is_plain else address
