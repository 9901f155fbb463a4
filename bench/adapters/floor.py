"""The floor of `floor.py` as a peer, so that the very same loops measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from floor import Driver, Ref
from tasks import increment, noop, sleep

_FUNCTIONS: list[Callable[..., Any]] = [noop, increment, sleep]


class Peer:
    cannot: ClassVar[dict[str, str]] = {}

    def start(self, cpus: int) -> None:
        self._driver = Driver(cpus, _FUNCTIONS)
        self.get_all: Callable[[Sequence[Ref]], list[Any]] = self._driver.get

    def stop(self) -> None:
        self._driver.close()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._driver.submit, _FUNCTIONS.index(function))

    def get(self, ref: Ref) -> Any:
        return self._driver.get((ref,))[0]
