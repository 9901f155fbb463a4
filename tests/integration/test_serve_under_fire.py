"""Rolling updates and kills under load: only what was in flight on the killed replica fails.

`make chaos` and `make soak` run the same for longer: SKATE_FIRE_S, SKATE_FIRE_UPDATES and SKATE_SOAK_S say how long.
Their clients make no pauses.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psutil
import pytest

import skate
from serve_fire import Fire
from skate import serve
from skate.serve.records import NAMESPACE

FIRE_S = float(os.environ.get("SKATE_FIRE_S", "8"))
UPDATES = int(os.environ.get("SKATE_FIRE_UPDATES", "1"))
SOAK_S = float(os.environ.get("SKATE_SOAK_S", "2"))
#: Between two requests of a handle or a websocket.
PAUSE_S = 0.0 if {"SKATE_FIRE_S", "SKATE_SOAK_S"} & os.environ.keys() else 0.004
#: A death is noted after the kill: the process has to be scheduled to die.
SLACK_S = 0.5


class Echo:
    """Answers a number with its version and the number."""

    def __init__(self, version: str) -> None:
        self.version = version

    @serve.get("/")
    async def over_http(self, n: int) -> list[Any]:
        return [self.version, n]

    async def echo(self, n: int) -> list[Any]:
        return [self.version, n]

    @serve.websocket("/loop")
    async def loop(self, socket: serve.WebSocket) -> None:
        async for message in socket:
            await socket.send(f"{self.version} {message!s}")

    def pid(self) -> int:
        return os.getpid()


def deploy(version: str) -> None:
    echo = serve.deployment(name="Echo", num_replicas=2, graceful_shutdown_timeout_s=2)(Echo)
    serve.run(echo.bind(version), name="fire", port=0 if version == "v0" else None)


@pytest.fixture
def _serving(runtime: ModuleType) -> Iterator[None]:
    deploy("v0")
    yield
    serve.shutdown()


@pytest.mark.timeout(FIRE_S + 120)
@pytest.mark.usefixtures("_serving")
def test_updates_drop_nothing_and_a_kill_costs_only_what_was_in_flight_there() -> None:
    kills: list[float] = []
    with Fire(pause_s=PAUSE_S) as fire:
        began = time.monotonic()
        for number in range(1, UPDATES + 1):
            due = began + number * FIRE_S / (UPDATES + 2)
            time.sleep(max(0.0, due - time.monotonic()))
            deploy(f"v{number}")
        victim = serve.get_deployment_handle("Echo", "fire").pid.remote().result(timeout_s=10)
        kills.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)
        time.sleep(max(0.0, began + FIRE_S - time.monotonic()))
    outcome = fire.outcome
    assert outcome.wrong == []
    unexplained = [each for each in outcome.failures if not each.may_come_of(kills, SLACK_S)]
    assert unexplained == []
    assert len(outcome.failures) <= 10  # as many requests as there are clients can be in flight
    assert outcome.versions == [f"v{number}" for number in range(UPDATES + 1)]
    assert all(count > 20 for count in outcome.answered.values()), outcome.answered


def processes_of_serving() -> dict[str, psutil.Process]:
    """The replicas, the controller and the keeper, by the names of their actors."""
    names = [
        each["name"] for each in skate.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE
    ]
    pids = {name: skate.get_actor(name, NAMESPACE).__ray_call__.remote(lambda _: os.getpid()) for name in names}
    return {name: psutil.Process(skate.get(pid)) for name, pid in pids.items()}


def held(process: psutil.Process) -> tuple[int, int]:
    """Private bytes and descriptors of a process."""
    return process.memory_full_info().uss, process.num_fds()


@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.usefixtures("_serving")
def test_a_long_load_lets_nothing_grow() -> None:
    with Fire(pause_s=PAUSE_S) as fire:
        began, found = time.monotonic(), processes_of_serving()
        assert len(found) == 4, found
        time.sleep(SOAK_S / 5)
        before = {name: held(process) for name, process in found.items()}
        time.sleep(max(0.0, began + SOAK_S - time.monotonic()))
        grown = {
            name: tuple(after - first for after, first in zip(held(process), before[name]))
            for name, process in found.items()
        }
        assert all(size_bytes < 5 << 20 and descriptors <= 5 for size_bytes, descriptors in grown.values()), grown
    assert fire.outcome.failures == []
    assert fire.outcome.wrong == []
