"""A cable in user space: a program that carries Ethernet frames between two TAP devices, holds them up and loses some.

It is for kernels that cannot slow a link down themselves (tests/netns.py says where the cable lies). It makes the two
devices in the network namespace that it runs in, and they go when it does:

    python slow_cable.py <name of one device> <name of the other>

Each line of its input says from now on how many milliseconds a frame takes and what percentage of frames is lost, in
each direction, and is answered with a line when that is so. Before the first, nothing passes. When its input ends, so
does the program.

Frames keep their order, even those that are on their way when the delay is made shorter. A TAP device offers the kernel
none of what network cards do for it, so frames are of ordinary size and have their checksums when they come here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

#: What makes TAP devices; in the namespace of the process that opens it.
TUN = "/dev/net/tun"

#: The request that names such a device, and what it shall be: frames with Ethernet headers, and nothing before those.
TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
REQUEST = struct.Struct("16sH22x")

#: More than the largest frame.
FRAME_BYTES_MAX = 1 << 16

#: So many frames are taken at one end before the other end, and those that are due, get their turn.
FRAMES_AT_ONCE = 64


class Direction:
    """What is on its way from one device to the other."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self._target = target
        #: Frames with the time that each is due, which never falls from one to the next.
        self._frames: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float | None:
        """When the next frame is; None if there is none."""
        return self._frames[0][0] if self._frames else None

    def take(self, delay_s: float, loss: float) -> None:
        """Read the frames that wait at the source; `loss` is the part of them that vanishes."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(FRAMES_AT_ONCE):
                frame = os.read(self.source, FRAME_BYTES_MAX)
                if random.random() >= loss:
                    last_due = self._frames[-1][0] if self._frames else 0.0
                    self._frames.append((max(last_due, time.monotonic() + delay_s), frame))

    def deliver(self) -> None:
        """Write the frames that are due to the target."""
        now = time.monotonic()
        while self._frames and self._frames[0][0] <= now:
            _, frame = self._frames.popleft()
            try:
                os.write(self._target, frame)
            except OSError as error:
                # The device is not up: nobody is there to receive it.
                if error.errno != errno.EIO:
                    raise


def open_tap(name: str) -> int:
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(tap, TUNSETIFF, REQUEST.pack(name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry(one: int, other: int) -> None:
    """Carry frames both ways until the input ends."""
    directions = (Direction(one, other), Direction(other, one))
    delay_s, loss = 0.0, 1.0
    while True:
        dues = [direction.due for direction in directions if direction.due is not None]
        timeout_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        readable, _, _ = select.select([sys.stdin.buffer, one, other], [], [], timeout_s)
        if sys.stdin.buffer in readable:
            # Whoever writes a line waits for the answer before the next, so none stays behind in the buffer.
            line = sys.stdin.buffer.readline()
            if not line:
                return
            delay_ms, loss_percent = map(float, line.split())
            delay_s, loss = delay_ms / 1000, loss_percent / 100
            print("so be it", flush=True)
        for direction in directions:
            if direction.source in readable:
                direction.take(delay_s, loss)
            direction.deliver()


if __name__ == "__main__":
    carry(*map(open_tap, sys.argv[1:]))
