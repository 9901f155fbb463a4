"""The supervisor of a submitted command: an actor beside it, which keeps its output and tells how it ended.

    skate submit ──Supervisor(command)──▶ on a node: command ──stdout, stderr──▶ ~/.skate/logs/jobs/<job>.log
                 ◀──read(from here)──────                                             │ read

The actor is detached: the job outlives the terminal that it was submitted from. It leaves when the command has ended
LINGER_S ago and nobody has asked since, so that whoever asks late still gets the exit code (`Vigil`). The command stays
in the process group of the actor's worker: when the node ends, or kills the worker, the command dies with it.

What `skate list jobs` shows of it is kept in the cluster's key-value store (`skate.kv`). The drivers that the command
starts are part of the same job, by JOB_VARIABLE.

Otherwise it is built on the public API alone: any program could do the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

import skate
from skate._worker.driver import JOB_VARIABLE
from skate.cli.running import log_directory

NAMESPACE = "skate-jobs"
#: Jobs that are remembered; the oldest make room for the newest.
RECORDS_MAX = 1000
#: Whoever asks how a job ended waits so long until its files are gone and that can be read in the list of jobs, too.
NOTED_S = 5.0
#: Output in one answer; more is asked for again. Answers below 100 KB need no shared memory.
READ_BYTES = 64 << 10
#: How long a question for output waits for some, and how often it looks.
READ_WAIT_S = 1.0
LOOK_S = 0.02
#: A supervisor leaves when its command has ended so long ago, and nobody has asked anything since.
LINGER_S = 60.0
#: A command that is cancelled has so long to end by itself.
TERMINATE_S = 5.0
#: Jobs whose output is kept on a node; the oldest make room.
OUTPUTS_KEPT_MAX = 50
#: Files that go along with a job, packed; what is larger belongs on a disk that the nodes share.
WORKING_DIR_BYTES_MAX = 100 << 20
LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def name_of(job: str) -> str:
    """Of the actor."""
    return f"job-{job}"


class CannotRun(Exception):
    """The command could not be started; says why."""


class TooLarge(Exception):
    """The working directory."""


class Vigil:
    """When a supervisor may leave: some time after its command's end and the last answer, and never during one.

    Plain data, with the time as an argument; the supervisor holds a lock around it.
    """

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._answering = 0
        self._ended = False
        self._last = 0.0

    def on_end(self, now: float) -> None:
        """Of the command. Whoever has asked before it, however long ago, could not be told how it ended."""
        self._ended = True
        self._last = now

    def on_question(self) -> None:
        self._answering += 1

    def on_answer(self, now: float) -> None:
        """It has still to be sent, and those who asked may have another question."""
        self._answering -= 1
        self._last = now

    def is_over(self, now: float) -> bool:
        return self._ended and not self._answering and now >= self._last + self._linger_s


@skate.remote(num_cpus=0, max_concurrency=8, max_restarts=0)
class Supervisor:
    """Runs one command."""

    def __init__(
        self,
        job: str,
        command: Sequence[str],
        address: str,
        directory: str,
        packed: bytes | None,
        linger_s: float = LINGER_S,
    ) -> None:
        self._command = list(command)
        folder = os.path.join(log_directory(), "jobs")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _tidy(folder)
        self._path = os.path.join(folder, f"{job}.log")
        self._copy = os.path.join(folder, job) if packed is not None else ""
        self._vigil = Vigil(linger_s)
        self._vigil_lock = threading.Lock()
        output = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Kept open for as long as the job runs: `_tidy` of another one sees by this that it does.
        fcntl.flock(output, fcntl.LOCK_SH)
        try:
            if packed is not None:
                _unpack(packed, self._copy)
                directory = self._copy
            self._process = subprocess.Popen(
                self._command,
                cwd=directory,
                env={**_environment(address), JOB_VARIABLE: job},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._remove_copy()
            os.close(output)
            os.unlink(self._path)
            where = f"in {directory}" if os.path.isdir(directory) else f"there is no directory {directory} on its node"
            raise CannotRun(f"{error.strerror}: {self._command[0]} ({where}).") from None
        self._noted = threading.Event()
        #: Who reads the output or cancels the job, and has not said (`release`) that it knows how it ended.
        self._readers: set[str] = set()
        self._readers_lock = threading.Lock()
        self._record: dict[str, Any] = {
            "job_id": job,
            "driver_pid": self._process.pid,
            "entrypoint": shlex.join(self._command),
            "node_id": skate.get_runtime_context().get_node_id(),
            "namespace": "",
            "started_at": time.time(),
            "ended_at": None,
            "state": "running",
        }
        self._note()
        threading.Thread(target=self._watch, args=(output,), name="watch", daemon=True).start()

    def _note(self, **news: Any) -> None:
        self._record.update(news)
        # Sorted by time.
        key = f"{self._record['started_at']:017.6f}-{self._record['job_id']}"
        skate.kv.put(key, json.dumps(self._record).encode(), namespace=NAMESPACE)

    def _watch(self, output: int) -> None:
        for old in skate.kv.keys(namespace=NAMESPACE)[:-RECORDS_MAX]:
            skate.kv.delete(old, namespace=NAMESPACE)
        self._process.wait()
        ended_at = time.time()
        # First, for whoever has heard that the command ended may end this actor at once.
        self._remove_copy()
        os.close(output)
        self._note(state="ended", ended_at=ended_at, exit_code=self._process.returncode)
        with self._vigil_lock:
            self._vigil.on_end(time.monotonic())
        self._noted.set()
        while True:
            with self._vigil_lock:
                if self._vigil.is_over(time.monotonic()):
                    os._exit(0)
            time.sleep(LOOK_S)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Around every answer: this process does not leave before it was given."""
        with self._vigil_lock:
            self._vigil.on_question()
        try:
            yield
        finally:
            with self._vigil_lock:
                self._vigil.on_answer(time.monotonic())

    def _remove_copy(self) -> None:
        if self._copy:
            shutil.rmtree(self._copy, ignore_errors=True)

    def about(self) -> dict[str, Any]:
        with self._answering():
            return {
                "command": self._command,
                "pid": self._process.pid,
                "output": self._path,
                "node_id": skate.get_runtime_context().get_node_id(),
            }

    def read(self, reader: str, start: int) -> tuple[bytes, int | None]:
        """Output from that byte on, as soon as there is some, and the exit code once all of it was read."""
        with self._answering():
            return self._read(reader, start)

    def _read(self, reader: str, start: int) -> tuple[bytes, int | None]:
        with self._readers_lock:
            self._readers.add(reader)
        deadline = time.monotonic() + READ_WAIT_S
        while True:
            code = self._process.poll()  # before the file is read: what comes after is none of the command's
            with open(self._path, "rb") as file:
                file.seek(start)
                data = file.read(READ_BYTES)
            if data:
                return data, None
            if code is not None:
                self._noted.wait(NOTED_S)
            if code is not None or time.monotonic() > deadline:
                return b"", code
            time.sleep(LOOK_S)

    def release(self, reader: str) -> bool:
        """That one has heard how it ended; whether all have, so that this actor can be ended."""
        with self._answering(), self._readers_lock:
            self._readers.discard(reader)
            return not self._readers

    def cancel(self, reader: str) -> int:
        """End the command and what it has started; its exit code."""
        with self._answering():
            # Others hear of the command's end sooner. They must not end this actor while what ignores SIGTERM runs.
            with self._readers_lock:
                self._readers.add(reader)
            return self._cancel()

    def _cancel(self) -> int:
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            command = psutil.Process(self._process.pid)
            processes = [command, *command.children(recursive=True)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            deadline = time.monotonic() + TERMINATE_S
            while any(map(_runs, processes)) and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        code = self._process.wait()
        self._noted.wait(NOTED_S)
        return code


def _runs(process: psutil.Process) -> bool:
    """What has lost its parent may be a zombie for long: the node reaps it when it has something else to reap."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _environment(address: str) -> dict[str, str]:
    """Of the node, with the way to the cluster; `python` is the one that Skate runs with."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "SKATE_ADDRESS": address, "PATH": path, "PYTHONUNBUFFERED": "1"}


# -- files that go along -----------------------------------------------------------------------------------------------


def pack(directory: str) -> bytes:
    """The files of a directory, but for what LEFT_OUT names."""

    def filter(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if os.path.basename(member.name) in LEFT_OUT:
            return None
        if buffer.tell() > WORKING_DIR_BYTES_MAX:
            raise TooLarge
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(directory, arcname=".", filter=filter)
    if buffer.tell() > WORKING_DIR_BYTES_MAX:
        raise TooLarge
    return buffer.getvalue()


def _unpack(packed: bytes, directory: str) -> None:
    os.makedirs(directory, mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        # The files are ours, but newer versions of Python want to be told so.
        safely: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(directory, **safely)


def _tidy(folder: str) -> None:
    """Remove the output of the oldest jobs that have ended, and what a node that was killed left of their files."""
    with contextlib.suppress(OSError):
        logs = [entry.path for entry in os.scandir(folder) if entry.name.endswith(".log")]
        for path in sorted(logs, key=os.path.getmtime)[:-OUTPUTS_KEPT_MAX]:
            with open(path, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue  # it runs
                os.unlink(path)
                shutil.rmtree(path.removesuffix(".log"), ignore_errors=True)
