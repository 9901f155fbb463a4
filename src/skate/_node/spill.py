"""The spill file, and the thread that copies objects to it and back.

Disk I/O must not block the daemon's loop, so one thread does it, in the order of the jobs. The file is unlinked as soon
as it is open: it has no name, and its space is the kernel's again when the daemon ends, however it ends. Space of
objects that are gone is punched out of the file where the file system can.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from skate._core.object_records import Discard, StartRestore, StartSpill

#: One system call copies at most this much, so that ending the daemon never waits long.
PIECE_BYTES = 16 << 20
FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02

Job = StartSpill | StartRestore | Discard


class Spill:
    """Runs jobs in a thread of its own; `finished` holds (job, error) of those that have ended."""

    def __init__(self, arena: memoryview, directory: str | Path, wake: Callable[[], None]) -> None:
        self._arena = arena
        self._directory = str(directory)
        self._wake = wake
        self._jobs: deque[Job] = deque()
        self._wanted = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._closing = False
        self.finished: deque[tuple[StartSpill | StartRestore, str]] = deque()

    def start(self, job: Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skate-spill", daemon=True)
            self._thread.start()
        self._jobs.append(job)
        self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closing:
                return
            job = self._jobs.popleft()
            if isinstance(job, Discard):
                self._punch(job)
                continue
            try:
                self._copy(job)
                error = ""
            except OSError as failure:
                error = f"{failure.strerror or failure} (in {self._directory})"
            self.finished.append((job, error))
            self._wake()

    def _copy(self, job: StartSpill | StartRestore) -> None:
        if self._fd < 0:
            fd, path = tempfile.mkstemp(prefix="skate-spill-", dir=self._directory)
            os.unlink(path)
            self._fd = fd
        done = 0
        while done < job.size and not self._closing:
            piece = self._arena[job.offset + done : job.offset + min(done + PIECE_BYTES, job.size)]
            if isinstance(job, StartSpill):
                count = os.pwrite(self._fd, piece, job.disk + done)
            else:
                count = os.preadv(self._fd, [piece], job.disk + done)
                if count == 0:
                    raise OSError(0, "the spill file is shorter than what was written to it")
            done += count

    def _punch(self, job: Discard) -> None:
        """Give the space back; where the file system cannot, it is used again by later objects."""
        if self._fd >= 0:
            mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            libc = ctypes.CDLL(None)
            libc.fallocate(self._fd, mode, ctypes.c_long(job.disk), ctypes.c_long(job.size))

    def close(self) -> None:
        self._closing = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
