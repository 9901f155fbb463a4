"""What `skate start` has started on this machine, as the kernel tells it.

A process that was started writes to a log, which is its standard error from birth to death. The name of the log says
what the process is, and the kernel says who has it open:

    ~/.skate/logs/node@127.0.0.1:6380@gandalf-20260131-142233-4711.log
                  kind  cluster       machine, when, which command

So there is no list of processes that could be wrong: after `kill -9`, or a power cut, the process is not there, and
neither is the link `/proc/<pid>/fd/2`. A file with pids would have to be checked against pids that were given
to others; a socket of the control service's would be one more thing to guard. Nodes of `skate.cluster_utils` and of a
plain `skate.init()` have no such log, and are never found, nor are those of other users. Somebody with another home
(or `SKATE_LOG_DIR`) has other logs, and finds what writes to those: tests do not end a developer's cluster.

The first line of a log is JSON, with what else has to be known at the end: the file of a rendezvous.

Owns:      the directory of logs.
Invariant: a process is only signalled through a pidfd, after which it was looked at again: never its successor.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from skate._node.lobby import nodes_of_programs
from skate.cli.trouble import Trouble

LOG_DIRECTORY_VARIABLE = "SKATE_LOG_DIR"
#: Logs of processes that are gone, which are kept for those who want to know why; the oldest make room.
LOGS_KEPT_MAX = 50
#: A header is read up to here.
HEADER_BYTES_MAX = 64 << 10
KINDS = ("control", "node")
_DELETED = " (deleted)"


def log_directory() -> str:
    """Where logs are: the home of what was started, too."""
    return os.path.abspath(os.environ.get(LOG_DIRECTORY_VARIABLE) or os.path.expanduser("~/.skate/logs"))


class Log:
    """The log of a process that is about to be started."""

    def __init__(self, kind: str, cluster: str, about: dict[str, Any]) -> None:
        """Raises Trouble if nothing can be written there: better now than when there is something to say."""
        self._kind = kind
        self._rest = f"{socket.gethostname()}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        directory = log_directory()
        self.path = os.path.join(directory, f"{kind}@{cluster}@{self._rest}")
        header = {"kind": kind, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **about}
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self.fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise self._trouble(error) from None
        try:
            os.write(self.fd, json.dumps(header).encode() + b"\n")
            os.fsync(self.fd)  # a full disk shows now
        except OSError as error:
            self.discard()
            raise self._trouble(error) from None

    def _trouble(self, error: OSError) -> Trouble:
        return Trouble(
            f"the log {self.path} cannot be written: {error.strerror}.",
            f"make room there, or name another directory with {LOG_DIRECTORY_VARIABLE} (for `skate stop`, too).",
        )

    def name_cluster(self, cluster: str) -> None:
        """The address is known now; the process that has the file open does not notice."""
        path = os.path.join(os.path.dirname(self.path), f"{self._kind}@{cluster}@{self._rest}")
        os.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        """The process has it. Harmless when it was called before."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """The process was not to be."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def last_line(self) -> str:
        """What the process said before it failed, in short."""
        try:
            with open(self.path, errors="replace") as file:
                lines = [line.strip() for line in file.readlines()[1:] if line.strip()]
        except OSError:
            return ""
        return lines[-1] if lines else ""


def tidy_logs() -> None:
    """Remove the oldest logs of processes that are gone, beyond LOGS_KEPT_MAX."""
    directory, open_now = log_directory(), {process.log for process in find_running()}
    with contextlib.suppress(OSError):
        paths = [entry.path for entry in os.scandir(directory) if entry.name.endswith(".log")]
        old = sorted((path for path in paths if path not in open_now), key=os.path.getmtime)
        for path in old[:-LOGS_KEPT_MAX]:
            os.unlink(path)


@dataclass
class Running:
    """A process that `skate start` has started."""

    pid: int
    kind: str
    #: Where the control service of its cluster listens: "host:port".
    cluster: str
    log: str
    #: In ticks since the machine was started, of the process.
    started: int

    def about(self) -> dict[str, Any]:
        """The header of its log."""
        with contextlib.suppress(OSError, ValueError), open(self.log, "rb") as file:
            found = json.loads(file.readline(HEADER_BYTES_MAX))
            if isinstance(found, dict):
                return found
        return {}

    def hold(self) -> int:
        """A descriptor of this very process; -1 if it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return -1
        if look(self.pid) == self:
            return fd
        os.close(fd)
        return -1


def find_running() -> list[Running]:
    """Oldest first; nodes behind the control service that was started with them."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return sorted(filter(None, map(look, pids)), key=lambda process: (process.started, process.pid))


def look(pid: int) -> Running | None:
    """What this process is, if it is one of ours."""
    try:
        log = os.readlink(f"/proc/{pid}/fd/2").removesuffix(_DELETED)
        directory, name = os.path.split(log)
        kind, _, rest = name.partition("@")
        if kind not in KINDS or directory != os.path.realpath(log_directory()):
            return None
        # Children share the log; what was started is the one that leads its session.
        if os.getsid(pid) != pid or os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return None
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:  # it has ended, or is somebody else's
        return None
    if fields[0] in ("Z", "X"):
        return None
    return Running(pid, kind, rest.partition("@")[0], log, int(fields[19]))


def tell_of_programs() -> None:
    """List the nodes of `skate.init()` that others can join. They end with their programs, not by `stop`."""
    pids = nodes_of_programs()
    if pids:
        print("\nNodes that programs have started with skate.init(), and that others can join, newest first:")
        for pid in pids:
            print(f"  pid {pid}    ends with the last program that uses it")
        print('  skate.init("auto") joins the newest.')


def wait_for_end(pidfds: list[int], timeout_s: float) -> list[int]:
    """Those that are still there then."""
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    left, deadline = set(pidfds), time.monotonic() + timeout_s
    while left and (wait_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(wait_s * 1000):
            poll.unregister(fd)
            left.discard(fd)
    return [fd for fd in pidfds if fd in left]


def send_signal(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)
