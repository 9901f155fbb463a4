"""`__ray_shutdown__`: what an actor does last, when it ends in order."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines, run_program
from waiting import WITHIN_S, value_of, wait_for

runtime = pytest.mark.usefixtures("runtime")


class Plain:
    def __init__(self, log: Path) -> None:
        self.log = log
        atexit.register(append, log, "atexit")

    def pid(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        skate.exit_actor()

    def exit_with(self, code: int) -> None:
        sys.exit(code)

    def __ray_shutdown__(self) -> None:
        append(self.log, "shutdown")

    def __del__(self) -> None:
        append(self.log, "del")


class Async(Plain):
    async def pid(self) -> int:  # type: ignore[override]
        return os.getpid()


class AsyncToTheEnd(Async):
    async def __ray_shutdown__(self) -> None:  # type: ignore[override]
        append(self.log, "shutdown")


def drop(actors: list[Any]) -> None:
    actors.clear()


def terminate(actors: list[Any]) -> None:
    actors[0].__ray_terminate__.remote()


def leave(actors: list[Any]) -> None:
    actors[0].leave.remote()


def exit_in_order(actors: list[Any]) -> None:
    actors[0].exit_with.remote(0)


def kill(actors: list[Any]) -> None:
    skate.kill(actors[0])


def crash(actors: list[Any]) -> None:
    actors[0].exit_with.remote(1)


def end(cls: Any, log: Path, how: Callable[[list[Any]], None]) -> None:
    """Make an actor, end it, and wait until its process is gone."""
    actors = [cls.remote(log)]
    pid = value_of(actors[0].pid.remote())
    how(actors)
    wait_for(lambda: not Path("/proc", str(pid)).exists(), WITHIN_S, "the actor's process to be gone")


@runtime
@pytest.mark.parametrize("how", [drop, terminate, leave, exit_in_order])
@pytest.mark.parametrize("cls", [Plain, Async, AsyncToTheEnd])
def test_it_is_called_once_before_anything_else_when_an_actor_ends_in_order(
    cls: type, how: Callable[[list[Any]], None], tmp_path: Path
) -> None:
    end(skate.remote(cls), tmp_path / "log", how)
    assert lines(tmp_path / "log") == ["shutdown", "del", "atexit"]


@runtime
def test_an_actor_with_threads_calls_it_too(tmp_path: Path) -> None:
    end(skate.remote(max_concurrency=2)(Plain), tmp_path / "log", drop)
    assert lines(tmp_path / "log") == ["shutdown", "del", "atexit"]


@runtime
@pytest.mark.parametrize("how", [kill, crash])
@pytest.mark.parametrize("cls", [Plain, Async])
def test_it_is_not_called_when_an_actor_is_killed_or_crashes(
    cls: type, how: Callable[[list[Any]], None], tmp_path: Path
) -> None:
    end(skate.remote(cls), tmp_path / "log", how)
    assert "shutdown" not in lines(tmp_path / "log")


@runtime
def test_it_is_not_called_when_init_raised(tmp_path: Path) -> None:
    @skate.remote
    class Unlucky(Plain):
        def __init__(self, log: Path) -> None:
            super().__init__(log)
            raise KeyError("no luck")

    unlucky = Unlucky.remote(tmp_path / "log")
    with pytest.raises(skate.exceptions.ActorDiedError):
        value_of(unlucky.pid.remote())
    wait_for(lambda: "atexit" in lines(tmp_path / "log"), WITHIN_S, "the process to end")
    assert "shutdown" not in lines(tmp_path / "log")


@runtime
def test_calls_that_were_made_come_first_and_it_may_use_tasks_and_actors(tmp_path: Path) -> None:
    @skate.remote
    class Ledger:
        def __init__(self) -> None:
            self.entries: list[Any] = []

        def write(self, entry: Any) -> int:
            self.entries.append(entry)
            return len(self.entries)

        def read(self) -> list[Any]:
            return self.entries

    @skate.remote
    class Writer:
        def __init__(self, ledger: Any) -> None:
            self.ledger = ledger

        def write(self, entry: Any) -> None:
            self.ledger.write.remote(entry)

        def __ray_shutdown__(self) -> None:
            size = skate.get(skate.remote(len).remote(skate.put(bytes(300_000))))
            skate.get(self.ledger.write.remote(size))

    ledger = Ledger.remote()
    writer = Writer.remote(ledger)
    for number in range(20):
        writer.write.remote(number)
    del writer
    wait_for(lambda: len(value_of(ledger.read.remote())) > 20, WITHIN_S, "the last entry")
    assert value_of(ledger.read.remote()) == [*range(20), 300_000]


def test_what_it_raises_is_shown_and_the_actor_ends() -> None:
    _, errors = run_program(
        """
import os, time
import skate
skate.init(num_cpus=1)

@skate.remote
class Sore:
    def pid(self): return os.getpid()
    def __ray_shutdown__(self): raise KeyError("sore")

sore = Sore.remote()
pid = skate.get(sore.pid.remote())
del sore
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
"""
    )
    assert "KeyError: 'sore'" in errors
    assert "in __ray_shutdown__" in errors
