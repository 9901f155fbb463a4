"""What processes of a node have said to the control service, and is not known to be durable there.

    say ──number──▶ kept and sent ──▶ the service writes it ──▶ done, or answered: let go
                      └─▶ the service was started again: all that is kept is said again, in its order

A request that was answered is let go at once: it must not be carried out a second time, when its answer could be
another one.

Owns:      the numbers, and the messages that may have to be said again.
Knows not: what messages mean, and whether there is a service at the moment.
Invariant: the messages of a process leave in the order of their numbers, which begin with 1.
Bounds:    MESSAGES_MAX and BYTES_MAX a process. Beyond them `say` takes nothing, and the process is told why.
"""

from __future__ import annotations

from typing import Generic, TypeVar

M = TypeVar("M")

#: Of one process: more than a program can have on the way unless the service is away for long.
MESSAGES_MAX = 100_000
BYTES_MAX = 256 << 20


class Box(Generic[M]):
    """What one process has said."""

    __slots__ = ("bytes", "done", "kept", "last", "requests")

    def __init__(self) -> None:
        #: By number, in their order: the message, its size, and the request that it is.
        self.kept: dict[int, tuple[M, int, int]] = {}
        #: By request, the number of the message.
        self.requests: dict[int, int] = {}
        self.bytes = 0
        self.last = 0
        self.done = 0

    def let_go(self, number: int) -> None:
        _, size, request = self.kept.pop(number)
        self.bytes -= size
        if request:
            del self.requests[request]


class Outbox(Generic[M]):
    def __init__(self) -> None:
        self._boxes: dict[bytes, Box[M]] = {}

    def say(
        self, process_id: bytes, message: M, size_bytes: int, *, request: int = 0, is_last: bool = False
    ) -> tuple[int, int]:
        """The number of the message, and up to which number all is done. Number 0: there is no room for it.

        request: of the process, if the message is to be answered. is_last: nothing but the end of the process is still
        to be said; there is always room for that.
        """
        box = self._boxes.get(process_id)
        if box is None:
            box = self._boxes[process_id] = Box()
        if not is_last and (len(box.kept) >= MESSAGES_MAX or box.bytes + size_bytes > BYTES_MAX):
            return 0, box.done
        box.last += 1
        box.kept[box.last] = (message, size_bytes, request)
        box.bytes += size_bytes
        if request:
            box.requests[request] = box.last
        return box.last, box.done

    def answered(self, process_id: bytes, request: int) -> None:
        """What the request has changed is durable, and the process has its answer."""
        box = self._boxes.get(process_id)
        number = box.requests.get(request) if box is not None else None
        if box is not None and number is not None:
            box.let_go(number)

    def done(self, process_id: bytes, number: int) -> bool:
        """Up to that number all is durable; whether nothing of the process is kept."""
        box = self._boxes.get(process_id)
        if box is None:
            return True
        while box.kept and (oldest := next(iter(box.kept))) <= number:
            box.let_go(oldest)
        box.done = max(box.done, number)
        return not box.kept

    def forget(self, process_id: bytes) -> None:
        """The process is dead, and that is durable."""
        self._boxes.pop(process_id, None)

    def kept(self) -> list[tuple[bytes, int, int, M]]:
        """All that has to be said again: process, number, up to which number all is done, and the message."""
        return [
            (id, number, box.done, message)
            for id, box in self._boxes.items()
            for number, (message, _, _) in box.kept.items()
        ]

    def holds(self, process_id: bytes) -> bool:
        """Whether something of that process is kept."""
        box = self._boxes.get(process_id)
        return box is not None and bool(box.kept)

    def statistics(self) -> dict[str, int]:
        boxes = self._boxes.values()
        return {"messages": sum(len(box.kept) for box in boxes), "bytes": sum(box.bytes for box in boxes)}

    def validate(self) -> None:
        for box in self._boxes.values():
            numbers = list(box.kept)
            assert numbers == sorted(numbers)
            assert not numbers or numbers[-1] <= box.last
            assert box.bytes == sum(size for _, size, _ in box.kept.values())
            assert box.requests == {request: number for number, (_, _, request) in box.kept.items() if request}
            assert box.done <= box.last
