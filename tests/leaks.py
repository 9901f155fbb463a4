"""What a test must not leave behind: processes, threads, descriptors, shared memory, files.

A `Footprint` is taken before and after a test; `left_behind` says, one line each, what is there now and was not then.
The machine is shared with other programs, so each kind is counted in a way that others cannot disturb:

- processes carry a mark: `RUN_MARK` is in this process's environment, every process started from here inherits it, and
  `/proc/<pid>/environ` shows it even after the process was orphaned, made a session of its own or forked again.
  Descendants count too, marked or not;
- descriptors, threads and mappings are those of this process;
- a new file in shared memory counts unless a process that is not ours holds it; temporary files count by their name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Set by conftest in os.environ, so that every process that this run starts can be recognised.
RUN_MARK_NAME = "SKATE_TEST_RUN"
RUN_MARK = f"{os.getpid()}-{os.urandom(4).hex()}"

#: Descriptors that libraries open once and keep: they are caches, not leaks.
CACHED_DESCRIPTORS = ("/dev/urandom", "/dev/random", "/dev/null")

#: Processes that the standard library starts once and keeps until the interpreter ends.
CACHED_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

#: The watch that pytest keeps over the test that runs.
WATCH_OF_PYTEST = "pytest_timeout"

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Footprint:
    """What this test process has at one moment, as texts that a person can read in a failure."""

    processes: dict[tuple[int, float], str]  # (pid, start time), since pids come round again
    threads: dict[int, str]  # thread ident → name
    descriptors: dict[tuple[int, str], str]  # (number, target): the same number may now be another file
    mappings: dict[str, str]  # address range → name, of memory shared with Skate's processes
    files: dict[str, str]  # in shared memory and the temporary directory

    @classmethod
    def take(cls) -> Footprint:
        return cls(
            processes=_processes(),
            threads=_threads(),
            descriptors=_descriptors(),
            mappings=_mappings(),
            files=_files(),
        )

    def left_behind(self, before: Footprint) -> list[str]:
        """Say what is here now and was not here before, one line each."""
        lines: list[str] = []
        lines += [f"process {text}" for key, text in self.processes.items() if key not in before.processes]
        lines += [f"thread {text}" for key, text in self.threads.items() if key not in before.threads]
        lines += [f"descriptor {text}" for key, text in self.descriptors.items() if key not in before.descriptors]
        lines += [f"mapping {text}" for key, text in self.mappings.items() if key not in before.mappings]
        new_files = [path for path in self.files if path not in before.files]
        lines += [f"file {path}" for path in new_files if not _held_by_others(path)]
        return lines


def end_processes_left(now: Footprint, before: Footprint) -> None:
    """Kill what a test left running, so that one leak does not fail every test after it."""
    for pid, started in now.processes.keys() - before.processes.keys():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.create_time() == started:
                process.kill()
    for process in psutil.Process().children():
        if (process.pid, process.create_time()) not in before.processes:
            with contextlib.suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
                process.wait(timeout=5)


# --- One function for each kind ---------------------------------------------------------------------------------------


def _processes() -> dict[tuple[int, float], str]:
    mark = f"{RUN_MARK_NAME}={RUN_MARK}".encode()
    own = psutil.Process()
    found = {process.pid: process for process in own.children(recursive=True)}
    for pid in psutil.pids():
        # Other people's processes cannot be read, and are not ours.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if pid not in found and pid != own.pid and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = psutil.Process(pid)
    alive: dict[tuple[int, float], str] = {}
    for pid, process in found.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            zombie = process.status() == psutil.STATUS_ZOMBIE
            command = process.name() if zombie else " ".join(process.cmdline())
            # A zombie of ours was never waited for; anyone else's waits for its own parent.
            if any(name in command for name in CACHED_PROCESSES) or (zombie and process.ppid() != own.pid):
                continue
            state = "ended, but never waited for" if zombie else process.status()
            alive[(pid, process.create_time())] = f"{pid} ({state}): {command[:160]}"
    return alive


def _threads() -> dict[int, str]:
    return {
        thread.ident: f"{thread.name!r} (daemon={thread.daemon})"
        for thread in threading.enumerate()
        if thread.ident is not None and thread.is_alive() and not thread.name.startswith(WATCH_OF_PYTEST)
    }


def _descriptors() -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for entry in list(Path("/proc/self/fd").iterdir()):
        # The descriptor of the listing itself is gone by the time it is looked at.
        with contextlib.suppress(FileNotFoundError):
            target = str(entry.readlink())
            # matplotlib keeps the fonts open that it has drawn with.
            if target not in CACHED_DESCRIPTORS and not target.endswith(".ttf"):
                found[(int(entry.name), target)] = f"{entry.name} → {target}"
    return found


def _mappings() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        name = fields[5] if len(fields) == 6 else ""
        if "skate" in name and name.startswith(("/memfd:", str(SHARED_MEMORY))):
            found[f"{fields[0]} {name}"] = f"{fields[0]} of {name}"
    return found


def _files() -> dict[str, str]:
    # Semaphores there are those of multiprocessing, maybe of another program: Skate has none.
    shared = [path for path in SHARED_MEMORY.iterdir() if not path.name.startswith("sem.")]
    paths = [*shared, *Path(tempfile.gettempdir()).glob("skate*")]
    return {str(path): path.name for path in paths}


def _held_by_others(path: str) -> bool:
    """Whether a process that is not of this run has the file open or mapped."""
    ours = {pid for pid, _ in _processes()} | {os.getpid()}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid not in ours:
                if any(mapping.path == path for mapping in psutil.Process(pid).memory_maps()):
                    return True
                if any(opened.path == path for opened in psutil.Process(pid).open_files()):
                    return True
    return False
