"""Skate, through its public API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import skate
from tasks import noop

_noop = skate.remote(noop)


def _spawn(count: int) -> int:
    return len(skate.get([_noop.remote() for _ in range(count)]))


@skate.remote
class _Caller:
    def __init__(self, actor: Any) -> None:
        self._noop = actor.noop.remote

    def call(self, count: int) -> int:
        noop = self._noop
        return len(skate.get([noop() for _ in range(count)]))


class Peer:
    cannot: ClassVar[dict[str, str]] = {}

    def start(self, cpus: int) -> None:
        skate.init(num_cpus=cpus, log_to_driver=False)
        self.get: Callable[[Any], Any] = skate.get
        self.get_all: Callable[[Sequence[Any]], list[Any]] = skate.get
        self.put: Callable[[Any], Any] = skate.put

    def stop(self) -> None:
        skate.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = skate.remote(function).remote
        return submit

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        rest: Sequence[Any] = skate.wait(refs, num_returns=1)[1]
        return rest

    def parent(self) -> Callable[[int], Any]:
        return self.task(_spawn)

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        remote_class: Any = skate.remote(cls)
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
