"""Ray, quiet: no dashboard, no log forwarding, no usage report. Everything else as it comes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import ray

from tasks import noop

_noop = ray.remote(noop)


def _spawn(count: int) -> int:
    return len(ray.get([_noop.remote() for _ in range(count)]))


@ray.remote
class _Caller:
    def __init__(self, actor: Any) -> None:
        self._noop = actor.noop.remote

    def call(self, count: int) -> int:
        noop = self._noop
        return len(ray.get([noop() for _ in range(count)]))


class Peer:
    cannot: ClassVar[dict[str, str]] = {
        "actor_idle": "left out: at its rate in actor_create 1,000 actors would take minutes, and tens of GB",
    }

    def start(self, cpus: int) -> None:
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.gettempdir())
        self.get: Callable[[Any], Any] = ray.get
        self.get_all: Callable[[Sequence[Any]], list[Any]] = ray.get
        self.put: Callable[[Any], Any] = ray.put

    def stop(self) -> None:
        ray.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = ray.remote(function).remote
        return submit

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        rest: Sequence[Any] = ray.wait(refs, num_returns=1)[1]
        return rest

    def parent(self) -> Callable[[int], Any]:
        return self.task(_spawn)

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        remote_class: Any = ray.remote(cls)
        if max_concurrency is not None:
            remote_class = remote_class.options(max_concurrency=max_concurrency)
        make: Callable[[], Any] = remote_class.remote
        return make

    def method(self, actor: Any, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(actor, name).remote
        return call

    def caller(self, actor: Any) -> Callable[[int], Any]:
        call: Callable[[int], Any] = _Caller.remote(actor).call.remote
        return call
