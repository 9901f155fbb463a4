"""Rolling updates and kills under load: only what was in flight on the killed replica fails.

`make chaos` and `make soak` run the same for longer: SKATE_FIRE_S, SKATE_FIRE_UPDATES and SKATE_SOAK_S say how long.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import skate
from serve_fire import Fire
from skate import serve

FIRE_S = float(os.environ.get("SKATE_FIRE_S", "8"))
UPDATES = int(os.environ.get("SKATE_FIRE_UPDATES", "1"))
SOAK_S = float(os.environ.get("SKATE_SOAK_S", "0"))
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
def _serving() -> Iterator[None]:
    skate.init(num_cpus=2)
    deploy("v0")
    yield
    serve.shutdown()
    skate.shutdown()


@pytest.mark.timeout(FIRE_S + 120)
@pytest.mark.usefixtures("_serving")
def test_updates_drop_nothing_and_a_kill_costs_only_what_was_in_flight_there() -> None:
    kills: list[float] = []
    with Fire() as fire:
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


def memory_of_serving() -> dict[int, int]:
    """Private bytes of each process below this one: replicas, controller, keeper, and those of the node."""
    found: dict[int, int] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            found[process.pid] = process.memory_full_info().uss
        except psutil.Error:  # it has just ended
            continue
    return found


@pytest.mark.skipif(not SOAK_S, reason="it takes minutes: make soak")
@pytest.mark.timeout(SOAK_S + 300)
@pytest.mark.usefixtures("_serving")
def test_a_long_load_lets_nothing_grow() -> None:
    with Fire() as fire:
        began, before, descriptors = time.monotonic(), {}, {}
        while (now := time.monotonic() - began) < SOAK_S:
            time.sleep(5)
            if now > SOAK_S / 5 and not before:
                before = memory_of_serving()
                descriptors = {pid: psutil.Process(pid).num_fds() for pid in before}
        after = memory_of_serving()
        assert before.keys() <= after.keys(), "a process has ended"
        grown = {pid: after[pid] - before[pid] for pid in before}
        assert len(grown) > 4, "two replicas, the controller, the keeper, and those of the node"
        assert all(growth < 5 << 20 for growth in grown.values()), grown
        assert all(psutil.Process(pid).num_fds() <= count + 5 for pid, count in descriptors.items())
    assert fire.outcome.failures == []
    assert fire.outcome.wrong == []
