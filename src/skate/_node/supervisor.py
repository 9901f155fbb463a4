"""The head's daemon starts the control service again whenever that has ended.

Owns:      the settings of the service, which have the token in them and are in no file; the pause before a start.
Knows not: why the service has ended. Its store says how it goes on.
Invariant: a service that is started here goes on with the cluster, or says why it cannot, to the log and to drivers. It
           never begins a new one, in a directory that is empty because a disk is not there, say.
Bounds:    the first start follows at once; while services end soon after their start, the pause doubles up to
           PAUSE_S_MAX.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec

from skate._control.crash_points import VARIABLE
from skate._node.interpreter import command
from skate._node.launch import start_control
from skate._node.remote_control import RemoteControl

if TYPE_CHECKING:
    from skate._control.config import ControlConfig, Supervised
    from skate._node.daemon import Daemon

log = logging.getLogger("skate")

PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
#: A service that has served for this time has started well: the next pause is the first one again.
WELL_S = 3.0


def settings(supervised: Supervised) -> ControlConfig:
    """Of a service that goes on with its cluster."""
    store = supervised.config.store
    if store is not None:
        store = msgspec.structs.replace(store, fresh=False, must_exist=True, cluster_id=supervised.cluster_id)
    return msgspec.structs.replace(supervised.config, store=store)


def start_if_gone(supervised: Supervised) -> None:
    """For a daemon that begins again, and cannot join because there is no service. Raises LaunchError or OSError."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(supervised.pid, os.WNOHANG)
    if os.path.exists(f"/proc/{supervised.pid}"):
        return
    log_fd = _open_log(supervised)
    try:
        process, _, _ = start_control(settings(supervised), log=log_fd)
    finally:
        os.close(log_fd)
    process.returncode = 0  # this daemon's next life waits for it
    supervised.pid = process.pid


def _open_log(supervised: Supervised) -> int:
    path = supervised.log or os.devnull
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


class Supervisor:
    def __init__(self, daemon: Daemon, supervised: Supervised) -> None:
        self._daemon = daemon
        self._supervised = supervised
        control = daemon.control
        assert isinstance(control, RemoteControl), "a node that is alone has no control service"
        self._control = control
        supervised.cluster_id = self._control.cluster_id
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = 0.0
        self._started_at = time.monotonic()
        #: Why the service could not be started when that was last tried.
        self._error = ""
        self._ended = False
        self._watch(supervised.pid)

    def _watch(self, pid: int) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._later()
            return

        def on_end(events: int) -> None:
            self._daemon.loop.unwatch(pidfd)
            os.close(pidfd)
            if self._process is not None and self._process.pid == pid:
                self._process.wait()
            else:
                with contextlib.suppress(ChildProcessError):  # the first one is a child of `skate start`
                    os.waitpid(pid, 0)
            if not self._ended:
                if not self._error:
                    log.warning("the control service, pid %d, has ended; it is started again", pid)
                self._later()

        self._daemon.loop.watch(pidfd, on_end)

    def _later(self) -> None:
        now = time.monotonic()
        if now - self._started_at > WELL_S:
            self._pause_s = 0.0
        self._daemon.loop.call_at(now + self._pause_s, self._start)
        self._pause_s = min(PAUSE_S_MAX, max(PAUSE_S, 2 * self._pause_s))

    def _start(self) -> None:
        """Without waiting for it: what it says, and its end, come as events."""
        if self._ended:
            return
        self._started_at = time.monotonic()
        supervised = self._supervised
        stderr = -1
        try:
            stderr = _open_log(supervised)
            process = self._process = subprocess.Popen(
                command("skate._control.main"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != VARIABLE},
            )
        except OSError as error:
            log.warning("the control service could not be started: %s", error.strerror)
            self._later()
            return
        finally:
            if stderr >= 0:
                os.close(stderr)
        supervised.pid = process.pid  # for this daemon, should it have to begin again
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(settings(supervised)) + b"\n")
            process.stdin.close()
        except BrokenPipeError:
            pass
        answer = process.stdout
        self._daemon.loop.watch(answer.fileno(), lambda events: self._on_answer(process))
        self._watch(process.pid)

    def _on_answer(self, process: subprocess.Popen[bytes]) -> None:
        answer = process.stdout
        assert answer is not None
        self._daemon.loop.unwatch(answer.fileno())
        line = answer.readline()
        answer.close()
        said = msgspec.json.decode(line) if line else {"error": "it ended before it was ready."}
        if said.get("is_over"):
            self._daemon.end(said["error"])
        elif "error" in said:
            if said["error"] != self._error:
                log.warning("the control service could not start: %s It is tried again.", said["error"])
            self._control.cannot_start(said["error"])
        self._error = said.get("error", "")

    def end(self) -> None:
        """The node ends. The service lives on, or is ended by who ends the cluster."""
        self._ended = True
