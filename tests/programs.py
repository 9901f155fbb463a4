"""What tests share that run programs of their own, and tasks that leave marks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM_TIMEOUT_S = 40
#: With PYTHONUNBUFFERED a print() is two writes, and a line of a worker may come between them.
UNBUFFERED = "PYTHONUNBUFFERED"


def run_program(
    program: str | Path,
    *,
    expect_code: int = 0,
    options: tuple[str, ...] = (),
    timeout_s: float = PROGRAM_TIMEOUT_S,
) -> tuple[str, str]:
    """Run a program in an interpreter of its own; its stdout and stderr. A script runs in the directory it lies in."""
    what = [program] if isinstance(program, Path) else ["-c", program]
    directory = program.parent if isinstance(program, Path) else None
    return run_command(
        [sys.executable, *options, *what], expect_code=expect_code, timeout_s=timeout_s, directory=directory
    )


def run_command(
    command: Sequence[str | Path], *, expect_code: int = 0, timeout_s: float, directory: Path | None = None
) -> tuple[str, str]:
    """The stdout and stderr of a command that has to end in time, with that exit code."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={name: value for name, value in os.environ.items() if name != UNBUFFERED},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"it hung; stdout: {str(expired.stdout)[-2000:]}, stderr: {str(expired.stderr)[-2000:]}")
    assert done.returncode == expect_code, (
        f"exit code {done.returncode}; stdout {done.stdout[-3000:]}; stderr {done.stderr[-3000:]}"
    )
    return done.stdout, done.stderr


def append(path: Path, line: object) -> None:
    """Append a line; atomic, as it is one short write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
