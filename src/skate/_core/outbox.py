"""What processes of a node have said to the control service, and is not known to be durable there.

    say ──number──▶ kept and sent ──▶ the service writes it ──▶ done: let go
                      └─▶ the service was started again: all that is kept is said again, in its order

Owns:      the numbers, and the messages that may have to be said again.
Knows not: what messages mean, and whether there is a service at the moment.
Invariant: the messages of a process leave in the order of their numbers, which begin with 1 and have no gaps.
Bounds:    MESSAGES_MAX and BYTES_MAX a process. Beyond them `say` takes nothing, and the process is told why.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

M = TypeVar("M")

#: Of one process: more than a program can have on the way unless the service is away for long.
MESSAGES_MAX = 100_000
BYTES_MAX = 256 << 20


class Box(Generic[M]):
    """What one process has said."""

    __slots__ = ("bytes", "done", "kept", "last")

    def __init__(self) -> None:
        #: Number, message, size, and the number of the request that it is, of each.
        self.kept: deque[tuple[int, M, int, int]] = deque()
        self.bytes = 0
        self.last = 0
        self.done = 0


class Outbox(Generic[M]):
    def __init__(self) -> None:
        self._boxes: dict[bytes, Box[M]] = {}

    def say(
        self, process_id: bytes, message: M, size_bytes: int, *, request: int = 0, is_last: bool = False
    ) -> tuple[int, int]:
        """The number of the message, and up to which number all is done. Number 0: there is no room for it.

        request: the number by which the process knows its answer; 0: there will be none.
        is_last: of this process, of which nothing but its end is still to be said; there is always room for that.
        """
        box = self._boxes.get(process_id)
        if box is None:
            box = self._boxes[process_id] = Box()
        if not is_last and (len(box.kept) >= MESSAGES_MAX or box.bytes + size_bytes > BYTES_MAX):
            return 0, box.done
        box.last += 1
        box.kept.append((box.last, message, size_bytes, request))
        box.bytes += size_bytes
        return box.last, box.done

    def done(self, process_id: bytes, number: int) -> bool:
        """Up to that number all is durable; whether nothing of the process is kept."""
        box = self._boxes.get(process_id)
        if box is None:
            return True
        while box.kept and box.kept[0][0] <= number:
            box.bytes -= box.kept.popleft()[2]
        box.done = max(box.done, number)
        return not box.kept

    def answered(self, process_id: bytes, request: int) -> int:
        """The number of the message whose answer has come: all up to it is done. 0: that was known.

        A request whose answer the process has must not be said again. A key that was not there to be deleted may be
        there by now.
        """
        box = self._boxes.get(process_id)
        kept = box.kept if box is not None else ()
        return next((number for number, _, _, asked in kept if asked == request), 0)

    def forget(self, process_id: bytes) -> None:
        """The process is dead, and that is durable."""
        self._boxes.pop(process_id, None)

    def kept(self) -> list[tuple[bytes, int, int, M]]:
        """All that has to be said again: process, number, up to which number all is done, and the message."""
        return [(id, number, box.done, message) for id, box in self._boxes.items() for number, message, *_ in box.kept]

    def holds(self, process_id: bytes) -> bool:
        """Whether something of that process is kept."""
        box = self._boxes.get(process_id)
        return box is not None and bool(box.kept)

    def statistics(self) -> dict[str, int]:
        boxes = self._boxes.values()
        return {"messages": sum(len(box.kept) for box in boxes), "bytes": sum(box.bytes for box in boxes)}

    def validate(self) -> None:
        for box in self._boxes.values():
            numbers = [number for number, *_ in box.kept]
            assert numbers == list(range(box.last - len(numbers) + 1, box.last + 1))
            assert box.bytes == sum(size for _, _, size, _ in box.kept)
            assert box.done <= box.last
