"""An application as the controller has it: its target, the version that worked, and what came of the latest try."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from skate.serve.reconcile import Deployment
from skate.serve.records import AppSpec

__all__ = ["App", "open_gates"]


@dataclass
class App:
    """An application."""

    target: AppSpec
    good: AppSpec | None
    deployed_at: float
    #: What its latest deployment has come to: None while that is not known, "" if it works, else why it does not.
    outcome: str | None = None
    #: When that was known.
    concluded_at: float = 0.0
    deleting: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_failed(self) -> bool:
        """Whether its first version did not start, so that there is nothing of it."""
        return bool(self.outcome) and self.good is None

    @property
    def serving(self) -> AppSpec | None:
        """The version that answers requests of HTTP: not the target, before that works."""
        return None if self.deleting else self.good

    @property
    def prefixes(self) -> set[str]:
        """The paths that are its own: of its target, and of the version that serves until that works."""
        if self.deleting or self.has_failed:
            return set()
        specs = [self.target] if self.good is None else [self.target, self.good]
        return {each.route_prefix for each in specs if each.route_prefix is not None}

    def digests(self) -> set[str]:
        """The blobs that it needs."""
        good = set() if self.good is None else self.good.digests()
        return good if self.has_failed else good | self.target.digests()


def open_gates(deployments: Sequence[Deployment], now: float) -> None:
    """Say which deployments of a target may go over to it; callers come before those that they call.

    A deployment begins when all that it may call run, and old replicas leave when all deployments run. So no replica
    calls a version that does not start, and a target that fails has replaced nothing.
    """
    ready = True
    for each in reversed(deployments):
        each.may_begin = ready
        ready = ready and each.is_ready(now)
    for each in deployments:
        each.may_replace = ready
