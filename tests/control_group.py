"""A real control group with limits, nested in the group that the tests run in, so that it stays within its limits.

Making one needs rights that only root has, and a tree whose controllers may be used there; otherwise tests skip.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from programs import run_command
from skate._control_groups import control_groups
from waiting import wait_for

PROGRAM_TIMEOUT_S = 50
CPU_PERIOD_US = 100_000
_numbers = itertools.count()


@dataclass
class ControlGroup:
    """A group with a limit, and a group without one below it, in which programs run."""

    #: The folder with the limit of memory.
    memory: Path
    #: The inner groups, one for each tree.
    inner: list[Path]

    def run(self, program: str, *words: str, expect_code: int = 0) -> tuple[str, str]:
        """Run a program in the inner group; its stdout and stderr."""
        enter = "".join(f"echo 0 > '{folder}/cgroup.procs' && " for folder in self.inner)
        command = ["/bin/sh", "-c", f'{enter}exec "$@"', "sh", sys.executable, "-c", program, *words]
        return run_command(command, expect_code=expect_code, timeout_s=PROGRAM_TIMEOUT_S)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This process is in the inner group; what it starts meanwhile stays there."""
        try:
            for folder in self.inner:
                (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
            yield
        finally:
            for folder in self.inner:
                (folder.parent.parent / "cgroup.procs").write_text(f"{os.getpid()}\n")


@contextlib.contextmanager
def control_group(memory_bytes: int, cpus: float = 0) -> Iterator[ControlGroup]:
    """A group that may use that much; skips the test where none can be made."""
    name = f"skate-test-{os.getpid()}-{next(_numbers)}"
    made: list[Path] = []
    try:
        try:
            memory = _make(name, "memory", made, {"memory.limit_in_bytes": memory_bytes, "memory.max": memory_bytes})
            if cpus:
                quota = int(cpus * CPU_PERIOD_US)
                _make(name, "cpu", made, {"cpu.cfs_quota_us": quota, "cpu.max": f"{quota} {CPU_PERIOD_US}"})
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield ControlGroup(memory, [folder for folder in made if folder.name == "inner"])
    finally:
        for folder in reversed(made):
            wait_for(lambda folder=folder: not (folder / "cgroup.procs").read_text(), 10, f"{folder} to be empty")
            folder.rmdir()


def _make(name: str, controller: str, made: list[Path], limits: dict[str, object]) -> Path:
    """The group with the limit, below the group that this process is in; and one without a limit below that."""
    for group in control_groups(controller):
        own = Path(group.folder)
        if not any((own / limit).exists() for limit in limits) and not (own / "cgroup.controllers").exists():
            continue
        outer = own / name
        if outer not in made:
            outer.mkdir()
            made.append(outer)
        for limit, value in limits.items():
            if (outer / limit).exists():
                (outer / limit).write_text(f"{value}\n")
                if outer / "inner" not in made:
                    (outer / "inner").mkdir()
                    made.append(outer / "inner")
                return outer
    raise OSError(f"the controller {controller!r} is not available to groups made here")
