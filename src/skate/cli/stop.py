"""`skate stop`: end what `skate start` started on this machine, and say what that was.

Nodes go first: a node that is told to end (SIGTERM) says goodbye, so the others know at once. Then the control service:
with it the cluster ends, on all its machines (SIGUSR1), or, with --keep, the service alone (SIGTERM), and a head that
is started again goes on. What has not ended by itself after GOODBYE_S is killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Sequence

import psutil

from skate.cli.running import Running, find_running, look, send_signal, tell_of_programs, wait_for_end
from skate.cli.trouble import Trouble

GOODBYE_S = 5.0
#: Stands for the port in the path of a store: it is not known before the service listens.
PORT_MARK = "{port}"
#: After it was killed; only a process that the kernel itself is stuck in takes longer.
KILLED_S = 5.0


def stop(*, force: bool, keep: bool = False) -> int:
    running = find_running()
    if not running:
        print("Nothing to stop: no node or control service of `skate start` runs here.")
        tell_of_programs()
        return 0
    stuck, group = [], running
    if force:  # all at once, as a power cut does: the service must not notice first that its nodes are gone
        nodes_first = sorted(running, key=lambda process: process.kind != "node")
        stuck = end(nodes_first, force=True, keep=keep)
    for kind in ("node", "control"):
        # Looked for again: the node of the head may have started the control service again a moment ago.
        group = [process for process in find_running() if process.kind == kind and process not in stuck]
        stuck += end(group, force=force, keep=keep)
        if force:
            group += [process for process in running if process.kind == kind and process not in group]
        for process in group:
            if process not in stuck:
                print(f"Ended {describe(process)}.")
    if group:
        if keep and not any(map(store_of, group)):
            print("That was the head. Its state was in memory, so the cluster is over.")
        elif keep:
            print("That was the head. Its state is kept: `skate start --head`, with the same store, goes on with it.")
        else:
            print("That was the head: nodes of its cluster on other machines end, too.")
    if stuck:
        raise Trouble(
            f"still there, though killed: {', '.join(f'pid {process.pid}' for process in stuck)}.",
            "the kernel is busy with them, often a disk or network that does not answer; try again later.",
        )
    return 0


def describe(process: Running) -> str:
    what = "the control service" if process.kind == "control" else "a node"
    return f"{what} of the cluster at {process.cluster} (pid {process.pid})"


def end(group: Sequence[Running], *, force: bool = False, keep: bool = False) -> list[Running]:
    """End these, and what they have started; those that do not go. keep: a control service leaves its cluster alone."""
    held = {fd: process for process in group if (fd := process.hold()) >= 0}
    # A node that is killed takes its workers along, but only just after it: we stay until they are gone.
    children = [child for process in held.values() for child in _children(process.pid)]
    try:
        left = list(held)
        if not force:
            for fd in left:
                ends_cluster = held[fd].kind == "control" and not keep
                send_signal(fd, signal.SIGUSR1 if ends_cluster else signal.SIGTERM)
            left = wait_for_end(left, GOODBYE_S)
        for fd in left:
            send_signal(fd, signal.SIGKILL)
        left = wait_for_end(left, KILLED_S)
    finally:
        for fd in held:
            os.close(fd)
    _, alive = psutil.wait_procs(children, timeout=KILLED_S)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=KILLED_S)
    stuck = [held[fd] for fd in left]
    for process in group:
        if process not in stuck:
            _remove_rendezvous(process)
            if not keep:
                _mark_ended(process)
    return stuck


def _mark_ended(process: Running) -> None:
    """A service that was killed could not say in its store that the cluster is over."""
    store = store_of(process)
    if process.kind == "control" and store:
        from skate._control.opening import mark_ended
        from skate._control.storage.errors import StorageError, StorageLocked

        try:
            mark_ended(store, "it was stopped")
        except StorageLocked:  # by another command that ends the same cluster
            pass
        except StorageError as error:
            trouble = Trouble(
                f"the end of the cluster could not be written. {error.what} {error.why}",
                f"the next head with this store goes on with it; `skate store wipe --store {shlex.quote(store)}` "
                "removes it.",
            )
            sys.stderr.write(trouble.report())


def store_of(process: Running) -> str:
    """The directory in which a control service keeps its state; empty: in memory."""
    where = process.about().get("store")
    return where.replace(PORT_MARK, process.cluster.rpartition(":")[2]) if isinstance(where, str) else ""


def _children(pid: int) -> list[psutil.Process]:
    """But for a control service that a node has started again: that one has an end of its own."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if look(child.pid) is None]


def _remove_rendezvous(process: Running) -> None:
    """The file in which others found this cluster, unless it names another by now."""
    path = process.about().get("rendezvous")
    if process.kind == "control" and isinstance(path, str):
        from skate.cli.rendezvous import read_file

        found = read_file(path)
        if found is not None and found.address == process.cluster:
            with contextlib.suppress(OSError):
                os.unlink(path)
