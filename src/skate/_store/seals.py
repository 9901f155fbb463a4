"""Objects that this process has written and the daemon has not heard of yet.

A message to the daemon costs as much as copying 200 KB: it wakes another process. Most objects are read or dropped by
the process that put them, so their Seals wait here for the next message that goes out anyway. An object that is dropped
before is never spoken of, and its space is used again at once.

Nothing overtakes a Seal: `send` is the only way to the daemon, and whoever sends to another process calls `say` first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from skate._wire.messages import Message, Seal

#: So many wait at most.
UNSAID_MAX = 16


class Seals:
    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        #: (owner, offset, size) by object id.
        self._unsaid: dict[bytes, tuple[bytes, int, int]] = {}
        self._lock = threading.RLock()

    def add(self, id: bytes, owner: bytes, offset: int, size: int) -> None:
        if id in self._unsaid:  # a task ran again: the daemon takes the space of the first result back
            self.say()
        self._unsaid[id] = (owner, offset, size)
        if len(self._unsaid) >= UNSAID_MAX:
            self.say()

    def say(self) -> None:
        """Tell the daemon of all that wait."""
        if not self._unsaid:
            return
        with self._lock:
            # One by one: another thread may add to them meanwhile.
            waiting = [(id, *self._unsaid.pop(id)) for id in list(self._unsaid)]
            if waiting:
                self._send(Seal(waiting))

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """To the daemon."""
        with self._lock:
            self.say()
            self._send(message, fds)

    def withdraw(self, ids: Iterable[bytes]) -> tuple[list[bytes], list[tuple[int, int]]]:
        """These are not needed any more: those that the daemon knows, and offset and size of those that it does not."""
        known: list[bytes] = []
        spaces: list[tuple[int, int]] = []
        with self._lock:
            for id in ids:
                seal = self._unsaid.pop(id, None)
                if seal is None:
                    known.append(id)
                else:
                    spaces.append(seal[1:])
        return known, spaces
