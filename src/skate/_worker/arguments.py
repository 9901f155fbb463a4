"""A large argument that is passed by value to many tasks is stored once.

    big = numpy.zeros(10_000_000)
    for i in range(1000):
        f.remote(big, i)        # one copy in shared memory, not a thousand

The object stored for a value is remembered for a moment. When the same value comes again, its bytes are compared with what
was stored: comparing costs no more than copying, and the answer is exact, so a value that was changed in between is
stored anew.
"""

from __future__ import annotations

import ctypes
import sys
import time
import weakref
from collections import OrderedDict
from typing import Any

from skate._object_ref import ObjectRef
from skate._serialize.values import Serialized

#: Values remembered at a time, and how long after their last use. Both small: each keeps an object in the store.
REMEMBERED_MAX = 16
REMEMBERED_S = 0.5

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class StoredArguments:
    """Used with the runtime's lock held, except `same_bytes`."""

    def __init__(self) -> None:
        #: By identity of the value: a weak reference to it, what it was stored as, last use.
        self._known: OrderedDict[int, tuple[weakref.ref[Any], ObjectRef[Any], float]] = OrderedDict()

    def find(self, value: Any) -> ObjectRef[Any] | None:
        """What this very value was stored as a moment ago; its bytes may have changed since."""
        known = self._known.get(id(value))
        if known is None or known[0]() is not value:
            return None
        return known[1]

    def remember(self, value: Any, ref: ObjectRef[Any]) -> None:
        try:
            weak = weakref.ref(value)
        except TypeError:
            return
        self._known[id(value)] = (weak, ref, time.monotonic())
        self._known.move_to_end(id(value))
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def forget_old(self) -> None:
        if self._known:
            now = time.monotonic()
            for key, (weak, _, used) in list(self._known.items()):
                if now - used > REMEMBERED_S or weak() is None:
                    del self._known[key]

    def forget_all(self) -> None:
        self._known.clear()


def same_bytes(value: Serialized, stored: memoryview) -> bool:
    """Whether a serialised value is byte for byte what is stored."""
    numpy = sys.modules.get("numpy")
    if numpy is None or value.size != len(stored):
        return False

    def address(data: Any) -> int:
        return int(numpy.frombuffer(data, dtype="u1").ctypes.data)

    return all(
        not len(piece) or _memcmp(address(piece), address(stored[offset : offset + len(piece)]), len(piece)) == 0
        for offset, piece in value.pieces
    )
