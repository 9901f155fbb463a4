"""Replicas that go on: what reaches them while they are busy, and what becomes of one that answers no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from serve_http import ask
from skate import serve
from skate.exceptions import ActorDiedError
from waiting import WITHIN_S, wait_for


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    serve.shutdown()


@serve.deployment(health_check_period_s=0.1, health_check_timeout_s=0.2, max_ongoing_requests=1)
class Busy:
    """Its plain methods take the only thread for requests."""

    def __init__(self) -> None:
        self.checks = self.here = 0

    def check_health(self) -> None:
        self.checks += 1

    def work(self, checks: int) -> int:
        """Be busy until the replica was found well so often."""
        before = self.checks
        wait_for(lambda: self.checks >= before + checks, WITHIN_S, "the checks")
        return self.checks - before

    def meet(self, others: int) -> bool:
        """Wait until so many are in this method at once."""
        self.here += 1
        wait_for(lambda: self.here >= others, WITHIN_S, "the others")
        return True

    def pid(self) -> int:
        return os.getpid()


def test_a_busy_replica_is_well() -> None:
    serve.run(Busy.bind(), route_prefix=None)
    checked = serve.get_deployment_handle("Busy").work.remote(4).result(timeout_s=WITHIN_S)
    assert checked > 3  # of a replica that is killed after three that do not return


def test_a_replica_that_is_frozen_is_replaced() -> None:
    serve.run(Busy.bind(), route_prefix=None)
    handle = serve.get_deployment_handle("Busy")
    pid = handle.pid.remote().result(timeout_s=WITHIN_S)
    os.kill(pid, signal.SIGSTOP)
    lost = handle.pid.remote()
    with pytest.raises(ActorDiedError):
        lost.result(timeout_s=WITHIN_S)
    assert handle.pid.remote().result(timeout_s=WITHIN_S) != pid


def test_more_requests_at_a_time_reach_the_threads_of_a_replica_that_goes_on() -> None:
    serve.run(Busy.bind(), route_prefix=None)
    handle = serve.get_deployment_handle("Busy")
    pid = handle.pid.remote().result(timeout_s=WITHIN_S)
    serve.run(Busy.options(max_ongoing_requests=8).bind(), route_prefix=None)
    met = [handle.meet.remote(8) for _ in range(8)]
    assert [each.result(timeout_s=WITHIN_S) for each in met] == [True] * 8
    assert handle.pid.remote().result(timeout_s=WITHIN_S) == pid


@serve.deployment(graceful_shutdown_timeout_s=1)
async def hello(request: Any) -> str:
    return str(request.url.path)


def test_another_prefix_takes_effect() -> None:
    serve.run(hello.bind(), route_prefix="/old", port=0)
    assert ask("/old/x").status == 200
    serve.run(hello.bind(), route_prefix="/new")
    assert (ask("/new/x").status, ask("/old/x").status) == (200, 404)
    handle = serve.run(hello.bind(), name="quiet", route_prefix=None)
    serve.run(hello.bind(), name="quiet", route_prefix="/quiet")
    assert ask("/quiet/x").status == 200
    assert handle.deployment_name == "hello"
