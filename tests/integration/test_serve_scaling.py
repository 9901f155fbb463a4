"""Autoscaling in skate.serve: replicas come with the load and go with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from skate import serve
from waiting import wait_for


@pytest.fixture(scope="module", autouse=True)
def one_controller() -> Iterator[None]:
    """What tests have served is deleted after each; the controller ends after the last."""
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def serving(runtime: ModuleType) -> Iterator[None]:
    yield
    for name in serve.status().applications:
        serve.delete(name)


QUICK = {
    "target_ongoing_requests": 2,
    "upscale_delay_s": 0.05,
    "downscale_delay_s": 0.1,
    "metrics_interval_s": 0.05,
    "look_back_period_s": 0.1,
}


def run(app: Any, name: str = "default") -> Any:
    return serve.run(app, name=name, route_prefix=None)


def overview(deployment: str) -> Any:
    return serve.status().applications["default"].deployments[deployment]


@serve.deployment(max_ongoing_requests=4, graceful_shutdown_timeout_s=5)
class Worker:
    def wait(self, path: str) -> str:
        wait_for(Path(path).exists, 30, "the file of the test")
        return path

    async def __call__(self, value: int) -> int:
        return value


def test_replicas_come_with_the_load_and_go_after_it(tmp_path: Path) -> None:
    handle = run(Worker.options(autoscaling_config={**QUICK, "min_replicas": 1, "max_replicas": 3}).bind())
    assert overview("Worker").replica_states == {"RUNNING": 1}
    gate = tmp_path / "gate"
    held = [handle.wait.remote(str(gate)) for _ in range(20)]
    wait_for(lambda: overview("Worker").replica_states.get("RUNNING") == 3, 20, "all replicas to come")
    assert overview("Worker").wanted == 3
    gate.touch()
    assert {response.result(timeout_s=20) for response in held} == {str(gate)}
    wait_for(lambda: overview("Worker").replica_states == {"RUNNING": 1}, 20, "all but one to go")
    assert handle.remote(3).result() == 3


def test_a_deployment_without_replicas_holds_requests_until_one_has_started_and_goes_back_to_none() -> None:
    handle = run(Worker.options(autoscaling_config={**QUICK, "min_replicas": 0, "max_replicas": 2}).bind())
    assert overview("Worker").status == "HEALTHY"
    assert overview("Worker").replica_states == {}

    @skate.remote(num_cpus=0)
    def ask(handle: Any) -> list[int]:
        return [response.result(timeout_s=20) for response in [handle.remote(value) for value in range(5)]]

    for _ in range(2):
        elsewhere = ask.remote(handle)
        assert [response.result(timeout_s=20) for response in [handle.remote(value) for value in range(5)]] == [
            0, 1, 2, 3, 4,
        ]  # fmt: skip
        assert skate.get(elsewhere) == [0, 1, 2, 3, 4]
        wait_for(lambda: overview("Worker").replica_states == {}, 20, "all replicas to go")


def test_no_request_fails_while_replicas_come_and_go() -> None:
    handle = run(Worker.options(autoscaling_config={**QUICK, "min_replicas": 0, "max_replicas": 2}).bind())
    errors: list[BaseException] = []

    def ask() -> None:
        pause = threading.Event()
        for number in range(6):
            try:
                assert handle.remote(number).result(timeout_s=20) == number
            except BaseException as error:
                errors.append(error)
            pause.wait(0.05 * number)  # long enough for the replica to go, or not

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_a_request_to_none_wakes_what_is_below_too() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=5)
    class Top:
        def __init__(self, below: Any) -> None:
            self.below = below

        async def __call__(self, value: int) -> int:
            return 1 + int(await self.below.remote(value))

    config = {**QUICK, "min_replicas": 0, "max_replicas": 1}
    handle = run(Top.options(autoscaling_config=config).bind(Worker.options(autoscaling_config=config).bind()))
    assert handle.remote(1).result(timeout_s=20) == 2
    assert overview("Top").wanted == 1
