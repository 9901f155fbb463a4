"""Ray's thin client, as far as programs ask whether they are one. In Skate every program is a driver of its own."""

from __future__ import annotations

__all__ = ["num_connected_contexts", "ray"]


class _Client:
    def is_connected(self) -> bool:
        """Whether this process is a thin client of a cluster: never, also after `skate.init("skate://…")`."""
        return False


ray = _Client()


def num_connected_contexts() -> int:
    """How many clusters this process is a thin client of."""
    return 0
