"""Actors whose calls never end, and that are to end nevertheless."""

from __future__ import annotations

from typing import Any

from waiting import value_of

#: For calls that cannot come to their end, however long they are waited for.
WAITS_S = 0.2


def wait_only_a_moment(actor: Any) -> None:
    """When the actor ends, calls that still run are waited for a moment, and not five seconds."""
    value_of(actor.__ray_call__.remote(_wait_only_a_moment))


def _wait_only_a_moment(instance: Any) -> None:
    from skate._worker import actor_concurrency

    actor_concurrency.FINISH_S = WAITS_S
