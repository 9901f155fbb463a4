"""The controller of skate.serve is killed, and what it serves does not notice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import skate
from serve_load import Load
from skate import serve
from skate.serve import client, directory, publishing
from skate.serve.deployments import pack
from skate.serve.records import CONTROLLER, NAMESPACE
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


def run(app: Any, name: str = "default") -> Any:
    return serve.run(app, name=name, route_prefix=None)


def overview(deployment: str) -> Any:
    return serve.status().applications["default"].deployments[deployment]


def controller() -> int:
    """The process of the controller."""
    found: int = skate.get(skate.get_actor(CONTROLLER, NAMESPACE).__ray_call__.remote(lambda _: os.getpid()))
    return found


@serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=2)
class Brain:
    def __init__(self) -> None:
        self.weights = np.zeros(1)

    def reconfigure(self, config: dict[str, np.ndarray[Any, Any]]) -> None:
        self.weights = config["weights"]

    def __call__(self) -> tuple[float, int]:
        return float(self.weights[0]), len(self.weights)

    def total(self) -> float:
        return float(self.weights.sum())

    def pid(self) -> int:
        return os.getpid()


def pids(handle: Any) -> set[int]:
    return {response.result() for response in [handle.pid.remote() for _ in range(20)]}


def weights(value: float, megabytes: int = 10) -> dict[str, Any]:
    return {"weights": np.full(megabytes * 131_072, value)}


def test_new_weights_outlive_the_controller_and_reach_the_successor_of_a_replica() -> None:
    handle = run(Brain.options(user_config=weights(1.0)).bind())
    with Load(lambda: handle.options(idempotent=True).remote().result()) as load:
        before = pids(handle)
        run(Brain.options(user_config=weights(2.0)).bind())
        assert handle.remote().result() == (2.0, 1_310_720)
        os.kill(controller(), signal.SIGKILL)
        load.wait_for_more()
        assert overview("Brain").replica_states == {"RUNNING": 2}
        assert pids(handle) == before, "the replicas are found, and none is replaced"
        assert handle.total.remote().result() == 2 * 1_310_720
        os.kill(min(before), signal.SIGKILL)
        call = handle.options(idempotent=True)
        wait_for(lambda: len(pids(call) - before) == 1, 20, "the successor to answer")
        assert {response.result() for response in [handle.total.remote() for _ in range(20)]} == {2 * 1_310_720}
        load.wait_for_more()
    assert not load.errors
    assert {answer[0] for answer in load.answers} == {1.0, 2.0}


def test_an_update_goes_on_after_the_controller_was_killed_and_is_one_update(tmp_path: Path) -> None:
    gate, begun = tmp_path / "gate", tmp_path / "begun"

    @serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=2)
    class Model:
        def __init__(self, version: int) -> None:
            if version == 2:
                begun.mkdir(exist_ok=True)
                (begun / str(os.getpid())).touch()
                wait_for(gate.exists, 20, "the file of the test")
            self.version = version

        def __call__(self) -> int:
            return self.version

    handle = run(Model.bind(1))
    with Load(lambda: handle.remote().result()) as load:
        errors: list[BaseException] = []

        def deploy() -> None:
            try:
                run(Model.bind(2))
            except BaseException as error:
                errors.append(error)

        deploying = threading.Thread(target=deploy)
        deploying.start()
        wait_for(begun.exists, 20, "a replica of the new version to start")
        for _ in range(2):
            os.kill(controller(), signal.SIGKILL)
            assert overview("Model").replica_states == {"RUNNING": 2, "STARTING": 1}
        assert deploying.is_alive()
        gate.touch()
        deploying.join(20)
        assert not deploying.is_alive()
        assert not errors
        assert handle.remote().result() == 2
        wait_for(lambda: overview("Model").replica_states == {"RUNNING": 2}, 20, "the old replicas to be gone")
    assert not load.errors
    assert len(list(begun.iterdir())) == 2, "none of the replicas that were starting was lost or made twice"


def test_what_is_deleted_while_the_controller_dies_is_gone_afterwards(tmp_path: Path) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=20)
    def wait(path: str) -> str:
        wait_for(Path(path).exists, 20, "the file of the test")
        return path

    handle = run(wait.bind())
    held = handle.remote(str(tmp_path / "gate"))
    deleting = threading.Thread(target=serve.delete, args=("default",))
    deleting.start()
    wait_for(lambda: overview("wait").replica_states == {"DRAINING": 1}, 20, "the replica to drain")
    os.kill(controller(), signal.SIGKILL)
    assert serve.status().applications["default"].status == "DELETING"
    (tmp_path / "gate").touch()
    deleting.join(20)
    assert held.result(timeout_s=20)
    assert not serve.status().applications
    with pytest.raises(serve.DeploymentUnavailableError):
        handle.remote("")


def test_a_replica_that_dies_while_there_is_no_controller_is_replaced() -> None:
    handle = run(Brain.bind())
    before = pids(handle)
    killed = controller()
    os.kill(killed, signal.SIGSTOP)
    os.kill(min(before), signal.SIGKILL)
    os.kill(killed, signal.SIGKILL)
    call = handle.options(idempotent=True)
    wait_for(lambda: len(pids(call) - before) == 1, 20, "the successor to answer")
    assert overview("Brain").replica_states == {"RUNNING": 2}


def test_autoscaled_replicas_and_the_number_that_is_wanted_are_kept() -> None:
    app = Brain.options(
        num_replicas=None,
        autoscaling_config={"min_replicas": 1, "initial_replicas": 3, "max_replicas": 4, "downscale_delay_s": 600},
    )
    handle = run(app.bind())
    before = pids(handle)
    os.kill(controller(), signal.SIGKILL)
    found = overview("Brain")
    assert found.wanted == 3
    assert found.replica_states == {"RUNNING": 3}
    assert pids(handle) == before


def test_the_address_of_http_is_kept_and_dead_replicas_hold_no_socket() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=2)
    class Page:
        def __call__(self, request: Any = None) -> str:
            return str(os.getpid())

    handle = serve.run(Page.bind(), port=0)
    address = serve.status().http_address
    assert address is not None
    first = int(handle.remote().result())
    killed = controller()
    os.kill(killed, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    os.kill(killed, signal.SIGKILL)
    assert serve.status().http_address == address
    call = handle.options(idempotent=True)
    wait_for(lambda: int(call.remote().result()) != first, 20, "the successor to answer")
    node = skate.get_runtime_context().get_node_id()
    keeper = skate.get_actor(f"SERVE_KEEPER::{node}", NAMESPACE)
    wait_for(lambda: len(skate.get(keeper.holders.remote())) == 1, 20, "the keeper to know who accepts connections")
    import urllib.request

    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/", timeout=20) as answer:
        assert int(answer.read()) == int(call.remote().result())
    serve.run(Page.options(num_replicas=2).bind(), port=0)
    assert serve.status().http_address == address


def test_a_version_before_outlives_the_controller_while_an_update_without_its_deployments_goes_on(
    tmp_path: Path,
) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=2)
    def below() -> str:
        return "before"

    @serve.deployment(graceful_shutdown_timeout_s=2)
    class Other:
        def __init__(self) -> None:
            wait_for((tmp_path / "gate").exists, 20, "the file of the test")

        def __call__(self) -> str:
            return "after"

    @serve.deployment(graceful_shutdown_timeout_s=2)
    class Above:
        def __init__(self, model: Any) -> None:
            self.model = model

        async def __call__(self) -> Any:
            return await self.model.remote()

    handle = run(Above.bind(below.bind()))
    with Load(lambda: handle.remote().result(timeout_s=20)) as load:
        deploying = threading.Thread(target=run, args=(Above.bind(Other.bind()),))
        deploying.start()
        wait_for(lambda: "Other" in serve.status().applications["default"].deployments, 20, "the update to begin")
        os.kill(controller(), signal.SIGKILL)
        assert overview("below").replica_states == {"RUNNING": 1}
        load.wait_for_more()
        (tmp_path / "gate").touch()
        deploying.join(20)
        assert handle.remote().result() == "after"
    assert not load.errors
    assert set(load.answers) == {"before", "after"}


def test_a_shutdown_whose_caller_dies_leaves_no_controller_that_is_over() -> None:
    handle = run(Brain.bind())
    first = controller()
    client.ask_controller("shutdown")  # the caller dies here
    run(Brain.bind())
    assert controller() != first
    assert len(pids(handle)) == 2


def test_what_a_controller_says_is_later_than_what_the_one_before_said_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(Brain.options(num_replicas=0).bind())
    latest = directory.highest_number()
    assert latest > 0
    monkeypatch.setattr(publishing, "time", SimpleNamespace(time=lambda: 0.0))
    publishing.Publisher().routes([])
    assert directory.highest_number() > latest


def test_what_cannot_be_kept_is_the_error_of_its_caller_and_of_no_other_application() -> None:
    run(Brain.options(num_replicas=0).bind(), "other")
    spec, blobs = pack(Brain.options(num_replicas=0).bind(), "default", None)
    for path, error in ((Path("/"), "PosixPath"), (3, "Expected `str`")):  # one cannot be written, one not be read
        with pytest.raises(Exception, match=error):
            client.ask_controller("deploy", msgspec.structs.replace(spec, import_path=[path]), blobs)
    assert list(serve.status().applications) == ["other"]
    os.kill(controller(), signal.SIGKILL)
    assert list(serve.status().applications) == ["other"]


def test_a_deploy_outlives_controllers_that_are_killed_long_after_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=2)
    class Slow:
        def __init__(self) -> None:
            wait_for((tmp_path / "gate").exists, 20, "the file of the test")

        def __call__(self) -> int:
            return 1

    run(Brain.options(num_replicas=0).bind(), "other")
    now = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    errors: list[BaseException] = []

    def deploy() -> None:
        try:
            run(Slow.bind())
        except BaseException as error:
            errors.append(error)

    deploying = threading.Thread(target=deploy)
    deploying.start()
    for _ in range(3):
        wait_for(lambda: "default" in serve.status().applications, 20, "the application to be known")
        os.kill(controller(), signal.SIGKILL)
        wait_for(lambda: overview("Slow").replica_states == {"STARTING": 1}, 20, "the successor to answer")
        now[0] += 2 * client.PATIENCE_S
    (tmp_path / "gate").touch()
    deploying.join(20)
    assert not deploying.is_alive()
    assert not errors
