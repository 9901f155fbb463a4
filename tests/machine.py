"""The command line, run as people run it: in processes of its own, in a home of its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from netns import Host

#: The whole of a command: it starts processes, or waits for others.
COMMAND_S = 40.0
#: Options of a node that takes little.
SMALL = ("--num-cpus", "1", "--object-store-memory", "50MB")


class Done:
    """A command that has ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Machine:
    """A home, in which commands run; with `host`, on a network of its own."""

    def __init__(self, home: Path, host: Host | None = None) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self._run: Callable[..., Any] = subprocess.run if host is None else host.run
        self._popen: Callable[..., Any] = subprocess.Popen if host is None else host.popen
        self._unset = {"SKATE_TOKEN", "SKATE_TOKEN_FILE", "SKATE_ADDRESS", "SKATE_LOG_DIR", "SKATE_STORE"}

    @property
    def token(self) -> Path:
        return self.home / ".skate" / "token"

    @property
    def logs(self) -> Path:
        return self.home / ".skate" / "logs"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in self._unset}
        # A script's own folder is on its path, and these programs lie in the home of the test.
        return {**kept, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home), **more}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "skate.cli", *words]

    def skate(self, *words: str, **more: str) -> Done:
        return self.run(self.command(*words), **more)

    def well(self, *words: str, **more: str) -> str:
        """A command that is to succeed, and to complain of nothing."""
        done = self.skate(*words, **more)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    def fails(self, *words: str, code: int = 1, says: Sequence[str], **more: str) -> Done:
        """A command that is to fail, with one line that says why and one that says what to do."""
        done = self.skate(*words, **more)
        assert done.code == code, done
        assert "Traceback" not in done.err + done.out, done
        assert len(done.err.splitlines()) <= 2, done
        for text in says:
            assert text in done.err, done
        return done

    def run(self, command: Sequence[str], **more: str) -> Done:
        done = self._run(
            command,
            env=self.environment(**more),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = self._popen(
            self.command(*words),
            env=self.environment(),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return process

    def script(self, code: str, name: str = "program.py") -> str:
        (self.home / name).write_text(code)
        return name

    def python(self, code: str, *words: str) -> str:
        done = self.run([sys.executable, self.script(code), *words])
        assert done.code == 0, done
        return done.out

    def pids(self, kind: str = "") -> list[int]:
        """Of what was started here, by their logs."""
        found = []
        for process in psutil.process_iter():
            try:
                target = os.readlink(f"/proc/{process.pid}/fd/2")
                leads = os.getsid(process.pid) == process.pid
            except OSError:
                continue
            if leads and target.startswith(f"{self.logs}/{kind}"):
                found.append(process.pid)
        return sorted(found)


def free_port() -> str:
    """One that is free, and not among those that the kernel gives to whoever asks for any."""
    while True:
        with socket.socket() as sock:
            number = random.randrange(20_000, 30_000)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", number))
                return str(number)
