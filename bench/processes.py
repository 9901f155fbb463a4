"""What the kernel says about a tree of processes: who is in it, what it holds, what it uses. Linux, standard library
only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_GETFD = 438  # the same number on every architecture
#: In `struct tcp_info` of linux/tcp.h: tcpi_bytes_sent and tcpi_bytes_retrans, and its size up to there.
_TCP_INFO_SENT, _TCP_INFO_SENT_OFFSET, _TCP_INFO_BYTES = struct.Struct("=QQ"), 200, 216
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that no daemon leaves the tree unseen."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(*_GONE):
                # The name in parentheses may hold anything, so the fields are counted from its end.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size: private memory in full, shared memory divided by those who share it."""
    return sum(_smaps_bytes(pid, "Pss:") for pid in pids)


def uss_bytes(pid: int) -> int:
    """Unique set size: what a process shares with no other, and what would be free if it ended."""
    return _smaps_bytes(pid, "Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")


def _smaps_bytes(pid: int, *fields: str) -> int:
    total = 0
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(fields):
                total += int(line.split()[1]) * 1024
    return total


def wait_until_gone(pids: Iterable[int]) -> None:
    """Return when none of these descendants is left. One that never ends makes its row late, and the cell says so."""
    while not set(pids).isdisjoint(descendants(os.getpid())):
        time.sleep(0.02)


def peak_rss_bytes() -> int:
    """The most memory this process ever had resident. (Not ru_maxrss, which a process inherits from its parent.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel reports no VmHWM in /proc/self/status")


def thread_count(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            total += len(list(Path(f"/proc/{pid}/task").iterdir()))
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time used so far by all threads, to the nanosecond (`stat` would count in ticks of 10 ms)."""
    total = 0
    for pid in pids:
        with suppress(*_GONE):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(*_GONE):
                    total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def tcp_sent_bytes(pid: int) -> int:
    """What a process of ours has handed to its TCP connections that are open now, each byte once."""
    sent, pidfd = 0, os.pidfd_open(pid)
    try:
        for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
            with suppress(*_GONE):
                if os.readlink(entry).startswith("socket:"):
                    fd = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, int(entry.name), 0)
                    if fd < 0:
                        raise OSError(ctypes.get_errno(), f"cannot look at the connections of process {pid}")
                    sent += _sent_bytes(socket.socket(fileno=fd))
    finally:
        os.close(pidfd)
    return sent


def _sent_bytes(sock: socket.socket) -> int:
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return 0
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        sent, again = (
            _TCP_INFO_SENT.unpack_from(info, _TCP_INFO_SENT_OFFSET) if len(info) == _TCP_INFO_BYTES else (0, 0)
        )
        return int(sent - again)


class Strangers:
    """How much CPU was used, from now on, by processes that are not in the tree below this one."""

    def __init__(self) -> None:
        self._since, self._machine, self._ours = time.monotonic(), machine_cpu_seconds(), self._used_by_us()

    def cores(self) -> float:
        theirs = machine_cpu_seconds() - self._machine - (self._used_by_us() - self._ours)
        return max(0.0, theirs / (time.monotonic() - self._since))

    @staticmethod
    def _used_by_us() -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_seconds([os.getpid(), *descendants(os.getpid())]) + ended.ru_utime + ended.ru_stime


def machine_cpu_seconds() -> float:
    """CPU time that the whole machine has spent on anything but idling."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def reap_all(grace_s: float) -> int:
    """Let every descendant of this process end within `grace_s`, kill the rest, and return how many that were."""
    end, killed = time.monotonic() + grace_s, set[int]()
    while alive := descendants(os.getpid()):
        if time.monotonic() > end:
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        _collect_zombies()
        time.sleep(0.02)
    _collect_zombies()
    return len(killed)


def _collect_zombies() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
