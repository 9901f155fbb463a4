"""What was published for one process and has not been sent to it, because it does not read as fast as others publish.

Owns:      the newest messages, at most MESSAGES_MAX of them and BYTES_MAX bytes, and how many were dropped, by topic.
Knows not: what the messages are, and when the process can take one.
Invariant: every message that was added is taken, waits, or is counted as missed; the counts are told with the next
           message of the topic, or by themselves when nothing else is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

MESSAGES_MAX = 10_000
BYTES_MAX = 64 << 20

TopicT = TypeVar("TopicT", bound=Hashable)


class Mailbox(Generic[TopicT]):
    def __init__(self, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: deque[tuple[TopicT, bytes]] = deque()
        self.size = 0
        self._missed: dict[TopicT, int] = {}

    def __bool__(self) -> bool:
        """Whether there is something to be said."""
        return bool(self._messages or self._missed)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, topic: TopicT, data: bytes) -> None:
        """Older messages make room for it, but it is kept itself, whatever its size."""
        self._messages.append((topic, data))
        self.size += len(data)
        while len(self._messages) > 1 and (len(self._messages) > self._messages_max or self.size > self._bytes_max):
            dropped, content = self._messages.popleft()
            self.size -= len(content)
            self._missed[dropped] = self._missed.get(dropped, 0) + 1

    def miss(self, topic: TopicT, count: int) -> None:
        """So many were dropped before they came here."""
        if count:
            self._missed[topic] = self._missed.get(topic, 0) + count

    def take(self) -> tuple[TopicT, bytes | None, int]:
        """The oldest, and how many of its topic were dropped before it; None for the message if only that is left."""
        if self._messages:
            topic, data = self._messages.popleft()
            self.size -= len(data)
            return topic, data, self._missed.pop(topic, 0)
        topic, missed = self._missed.popitem()
        return topic, None, missed

    def validate(self) -> None:
        assert self.size == sum(len(data) for _, data in self._messages), "bytes are counted wrong"
        assert len(self._messages) <= max(1, self._messages_max), "too many wait"
        assert self.size <= self._bytes_max or len(self._messages) == 1, "too much waits"
        assert all(self._missed.values()), "none was missed"
