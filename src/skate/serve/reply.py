"""What a replica answers: the value, and how much it has to do."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reply(NamedTuple):
    """The result of a request, with the number of requests that the replica had when it left."""

    value: Any
    load: int
