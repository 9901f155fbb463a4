"""What the system allows this process and those that it starts: open files, processes and threads.

Owns:      where these limits are read, and how they are raised.
Knows not: how many workers follow from them; `_core/worker_limit.py` says that.

Everything is read below `root`, which tests replace by a folder of their own.
"""

from __future__ import annotations

import errno
import os
import resource

from skate._control_groups import control_groups, read
from skate._core.worker_limit import Limit

#: Open files that drivers and workers may have, if the system allows it: each process that they talk to takes one or
#: two. Not more, because some programs go through all numbers that a descriptor can have.
USER_DESCRIPTORS_MAX = 65_536
#: What an unlimited number is taken for.
NO_LIMIT = 1 << 20


def raise_descriptor_limit(most: int | None = None) -> Limit:
    """As many open files as the system allows us, or as that if it allows more; how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    amount = NO_LIMIT if hard == resource.RLIM_INFINITY else hard
    wanted = amount if most is None else min(amount, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return Limit(amount, f"the limit on open files is {amount:,}: `ulimit -Hn`")


def raise_process_limit() -> None:
    """As many processes and threads as the system allows this user: for this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def limit_of(error: BaseException) -> str:
    """The limit of the system that this error comes from, as a sentence; "" if it has another cause."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, OSError) and number in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if number == errno.ENFILE:
            return "all programs of this machine together have as many files open as they may: `sysctl fs.file-max`."
        more = "" if error.strerror in ("", os.strerror(number)) else f" {error.strerror}."
        most = f"{soft:,} (`ulimit -n`; at most {hard:,}, `ulimit -Hn`)"
        return f"a process has as many files open as it may: {most}.{more}"
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    space, _hard = resource.getrlimit(resource.RLIMIT_AS)
    if (number == errno.ENOMEM or isinstance(error, MemoryError) or no_thread) and space != resource.RLIM_INFINITY:
        store = "An object store takes two to three times its size of it (object_store_memory=)."
        return f"a process may have {space >> 10:,} KiB of address space (`ulimit -v`). {store}"
    if number == errno.EAGAIN or no_thread:
        strictest = min(thread_limits(), default=None)
        least = f"; the strictest of its limits: {strictest.what}" if strictest is not None else ""
        return f"the system allows no more processes and threads{least}."
    return ""


def thread_limits(root: str = "/") -> list[Limit]:
    """How many processes and threads there can be: of this user, in this container, and on this machine."""
    found = []
    _soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY and os.getuid() != 0:  # it does not hold for root
        found.append(Limit(hard, f"the limit on processes and threads of this user is {hard:,}: `ulimit -u`"))
    base = root.rstrip("/")
    files = {f"{group.folder}/pids.max": "control group" for group in control_groups("pids", root)}
    files.update({f"{base}/proc/sys/kernel/{name}": "machine" for name in ("pid_max", "threads-max")})
    for path, whose in files.items():
        amount = read(path).strip()
        if amount.isdigit():  # otherwise there is none: "max"
            what = f"the limit on processes and threads of this {whose} is {int(amount):,}: {path[len(base) :]}"
            found.append(Limit(int(amount), what))
    return found
