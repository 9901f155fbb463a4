"""Who leads, and which servers have all of each shard: one record, changed by compare-and-set.

file        beside the head; its lock keeps other services away
majority    among the servers themselves, so that another service can take over
leadership  until when a leader may answer from memory, and the standby that waits for its end
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skate._core.cluster.configuration import Changed, Configuration, Refused


class Authority(Protocol):
    """Who has the present configuration. Its methods block, and are called in errands."""

    @property
    def name(self) -> str: ...

    def find(self) -> Configuration | None:
        """For a service that starts: the present configuration, if there is any. Raises StorageError."""

    def begin(self, first: Configuration, *, adopts: bool = False) -> Configuration:
        """Note the first configuration, and return it; another one if another service was faster.

        adopts: in the place of whatever is there.
        """

    def close(self) -> None: ...

    def change(self, expected: Configuration, new: Configuration) -> Changed | Refused:
        """Compare and set. Raises StorageUnavailable if it is not certain what came of it."""

    def read(self) -> Configuration:
        """The present configuration. Raises StorageUnavailable."""

    #: The time between two looks of a leader at the configuration; 0: no other service can have changed it.
    look_s: float

    @property
    def absent(self) -> Sequence[str]:
        """Voters that did not vote when a leader looked last."""
