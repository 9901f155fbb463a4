"""An application as the controller has it: its target, the version that worked, and what came of the latest try."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from skate.serve.records import AppSpec

__all__ = ["App"]


@dataclass
class App:
    """An application."""

    target: AppSpec
    good: AppSpec | None
    deployed_at: float
    #: What its latest deployment has come to: None while that is not known, "" if it works, else why it does not.
    outcome: str | None = None
    deleting: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_failed(self) -> bool:
        """Whether its first version did not start, so that there is nothing of it."""
        return bool(self.outcome) and self.good is None

    @property
    def prefix(self) -> str | None:
        """The path that is its own; None if there is none."""
        return None if self.deleting or self.has_failed else self.target.route_prefix
