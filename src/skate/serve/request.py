"""A request of a handle, from `remote()` to its answer.

lacks arguments ──► waits for a place ──► bound to a replica ──► answered
      └─────────────────┴──► refused, cancelled: bound to no replica, with an error
                        ▲                    │
                        └── its replica left ┘
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from skate.serve.router import Seat

__all__ = ["Request"]


class Request:
    """One request, from `remote()` to its answer."""

    __slots__ = (
        "_bound", "_on_bound", "answers", "args", "attempts", "counted", "error", "has_begun", "id", "idempotent",
        "is_cancelled", "kwargs", "lacks", "method", "model", "ref", "seat", "stream",
    )  # fmt: skip

    def __init__(
        self, method: str, model: str, id: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, stream: bool,
        idempotent: bool,
    ) -> None:  # fmt: skip
        self.method, self.model, self.id = method, model, id
        self.args, self.kwargs = args, kwargs
        #: Places and names of the arguments that are answers of replicas, as `Replica.call` returns them.
        self.answers: tuple[int | str, ...] = ()
        self.stream, self.idempotent = stream, idempotent
        #: What the replica's answer is known by here: a reference, or a generator of references.
        self.ref: Any = None
        self.seat: Seat | None = None
        #: The replica where it counts as in flight.
        self.counted: Seat | None = None
        #: Why it will never be sent.
        self.error: BaseException | None = None
        self.attempts = 0
        self.is_cancelled = False
        #: Something of a stream has come, so it cannot begin again.
        self.has_begun = False
        #: It waits for responses among its arguments, and was not sent.
        self.lacks = False
        self._bound = False
        self._on_bound: list[Callable[[], None]] | None = None

    def send_to(self, seat: Seat) -> Any:
        """Send it to a replica; what its answer is known by."""
        meta: Any = self.method
        if self.model or self.id or self.answers:
            meta = (self.method, self.model, self.id, self.answers)
        method = seat.target.stream if self.stream else seat.target.call
        return method.remote(meta, *self.args, **self.kwargs)

    @property
    def is_bound(self) -> bool:
        """Whether it has been sent, or never will be."""
        return self._bound

    def when_bound(self, callback: Callable[[], None]) -> None:
        """Call back once it has been sent, or never will be; at once if that is so already."""
        with _binding:
            if not self._bound:
                if self._on_bound is None:
                    self._on_bound = []
                self._on_bound.append(callback)
                return
        callback()

    def bound(self, seat: Seat | None, ref: Any, error: BaseException | None = None) -> None:
        """It has been sent, or never will be."""
        with _binding:
            self.seat, self.ref, self.error = seat, ref, error
            self._bound = True
            waiting, self._on_bound = self._on_bound, None
        if waiting:
            for callback in waiting:
                callback()

    def unbound(self) -> None:
        """It has to be sent again."""
        self._bound = False


#: Of all requests: it is held for a few instructions.
_binding = threading.Lock()
