"""Ray's thin client, as far as programs ask whether they are one.

In Skate every program is a driver. One that is on no node of its cluster counts as a client.
"""

from __future__ import annotations

from skate.client_builder import is_on_no_node

__all__ = ["num_connected_contexts", "ray"]


class _Client:
    def is_connected(self) -> bool:
        """Whether this process has joined a cluster by `skate.init("skate://…")` and is on no node of it."""
        return is_on_no_node()


ray = _Client()


def num_connected_contexts() -> int:
    """How many clusters this process is a client of."""
    return int(is_on_no_node())
