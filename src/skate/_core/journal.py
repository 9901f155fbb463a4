"""What was said over a connection that may break: nothing is lost and nothing is heard twice when it is replaced.

    we: send ──▶ journal ──▶ connection ──▶ they: count it, act on it, now and then say how many have come
                    │                                     │
                    └──◀── what they have is let go ◀─────┘
    a new connection: each says how many have come; the other goes on behind that

Pure: frames are opaque, and connections are the caller's.
Invariant: the frames held are those from `confirmed` on, in the order they were said.
"""

from __future__ import annotations

from collections import deque

#: How much may come before the other end is told that it need not keep it.
FRAMES_PER_CONFIRMATION = 64
BYTES_PER_CONFIRMATION = 256 << 10


class MemoryLost(ConnectionError):
    """The other end does not know what it has been told: it is not the one that we spoke to."""


class Journal:
    __slots__ = ("_bytes_since", "_frames", "_told", "confirmed", "received")

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        #: How many of our frames the other end is known to have.
        self.confirmed = 0
        #: How many frames of the other end have come.
        self.received = 0
        self._told = 0
        self._bytes_since = 0

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was said yet."""
        return not self._frames and not self.confirmed

    @property
    def said(self) -> int:
        """How many frames were said so far."""
        return self.confirmed + len(self._frames)

    def sent(self, frame: bytes) -> None:
        """To be kept until the other end has it."""
        self._frames.append(frame)

    def confirm(self, count: int) -> None:
        """The other end has so many of ours."""
        letting_go = count - self.confirmed
        if not 0 <= letting_go <= len(self._frames):
            raise MemoryLost(
                f"the other end has {count} messages; it should have from {self.confirmed} to "
                f"{self.confirmed + len(self._frames)}"
            )
        for _ in range(letting_go):
            self._frames.popleft()
        self.confirmed = count

    def unconfirmed(self) -> list[bytes]:
        """What has to be said again over a new connection, once the other end has said what it has."""
        return list(self._frames)

    def came(self, frames: int, size: int) -> bool:
        """So many frames, in so many bytes; whether the other end should be told how many there are now."""
        self.received += frames
        self._bytes_since += size
        return self.received - self._told >= FRAMES_PER_CONFIRMATION or self._bytes_since >= BYTES_PER_CONFIRMATION

    def tell(self) -> int:
        """How many have come, to be told now."""
        self._told = self.received
        self._bytes_since = 0
        return self.received

    def forget(self) -> None:
        """Nobody will ask for it again."""
        self._frames.clear()
