"""The spill file, and the thread that copies objects to it and back.

Disk I/O must not block the daemon's loop, so one thread does it, in the order of the jobs: a Discard is done before a
later job writes to the same place. The file has no name, and its space is the kernel's again when the daemon ends,
however it ends. Space of objects that are gone is punched out of the file where the file system can do that; where it
cannot, later objects use it again.

Copies go through the mapping of the arena. Measured with the file in the page cache, objects of 128 KiB to 128 MiB:
`pwrite` out of the mapping 2.2–2.9 GB/s, `sendfile` between the two files 1.1–2.1; `preadv` into the mapping 6.3–7.9
GB/s, `sendfile` 2.5–4.1.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import deque
from collections.abc import Callable

from skate._core.object_records import Discard, StartReserve, StartRestore, StartSpill
from skate._system_limits import limit_of

#: One system call copies at most this much, so that ending the daemon never waits long.
PIECE_BYTES = 16 << 20
FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02

#: Jobs whose end is reported.
Reported = StartSpill | StartRestore | StartReserve
Job = Reported | Discard

#: Begin to write, and wait until it is done.
SYNC_FILE_RANGE = 0x01 | 0x02 | 0x04

_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch_hole(fd: int, offset: int, size: int) -> bool:
    """Give the file's space back to the kernel, where the file system can; it then reads as zeros."""
    return bool(_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size) == 0)


def let_cache_go(fd: int, offset: int, size: int) -> None:
    """Have the system keep nothing of that part of the file in memory, as far as it can."""
    sync_file_range = _libc.sync_file_range
    sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    sync_file_range(fd, offset, size, SYNC_FILE_RANGE)  # what is not on disk yet cannot be let go
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def open_nameless(directory: str) -> int:
    """A file of our own without a name, from the start on where the file system can do that."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    import tempfile

    fd, path = tempfile.mkstemp(prefix="skate-spill-", dir=directory)
    os.unlink(path)
    return fd


class Spill:
    """Runs jobs in a thread of its own. Used from the loop's thread; `wake` is called from the other one."""

    def __init__(self, arena: memoryview, directory: str | os.PathLike[str], wake: Callable[[], None]) -> None:
        self._arena = arena
        self._directory = str(directory)
        self._wake = wake
        #: Bounded by the object table: a job for each object that moves, and a Discard for each that is gone.
        self._jobs: deque[Job] = deque()
        self._wanted = threading.Semaphore(0)
        #: Thread and file come into being with the first job: most programs never need them.
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._closing = False
        #: (job, error) of those that have ended; the loop takes them out after each `wake`.
        self.finished: deque[tuple[Reported, str]] = deque()

    def start(self, job: Job) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="skate-spill", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not isinstance(job, Discard):
                    self.finished.append((job, limit_of(error) or str(error)))
                    self._wake()
                return
            self._thread = thread
        self._jobs.append(job)
        self._wanted.release()

    def close(self) -> None:
        """End the thread, after the piece that it is at, and let the file go."""
        self._closing = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._closing:
                return
            job = self._jobs.popleft()
            if isinstance(job, Discard):
                if self._fd >= 0:
                    punch_hole(self._fd, job.disk, job.size)
                continue
            error = ""
            try:
                self._do(job)
            except OSError as failure:
                error = f"{failure.strerror or failure} (in {self._directory})"
            self.finished.append((job, error))
            self._wake()

    def _do(self, job: Reported) -> None:
        if self._fd < 0:
            self._fd = open_nameless(self._directory)
        if not isinstance(job, StartReserve):
            self._copy(job)
        # Not posix_fallocate: where the file system cannot set space aside, that one writes zeros instead.
        elif _fallocate(self._fd, 0, job.disk, job.size) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _copy(self, job: StartSpill | StartRestore) -> None:
        done = 0
        while done < job.size and not self._closing:
            piece = self._arena[job.offset + done : job.offset + min(done + PIECE_BYTES, job.size)]
            if isinstance(job, StartSpill):
                count = os.pwrite(self._fd, piece, job.disk + done)
                if job.uncached:
                    let_cache_go(self._fd, job.disk + done, count)
                done += count
                continue
            count = os.preadv(self._fd, [piece], job.disk + done)
            if count == 0:
                raise OSError(0, "the spill file is shorter than what was written to it")
            done += count
