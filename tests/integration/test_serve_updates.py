"""Rolling updates of skate.serve, and replicas that die: what callers see of it under constant load."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from serve_load import Load, LoadElsewhere
from skate import serve
from skate.exceptions import ActorDiedError
from skate.serve import blobs
from skate.serve.records import NAMESPACE
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


def run(app: Any) -> Any:
    return serve.run(app, route_prefix=None)


def overview(deployment: str) -> Any:
    return serve.status().applications["default"].deployments[deployment]


@serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=5)
class Model:
    """Answers with its version, its settings and its process."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.settings = 0

    def reconfigure(self, settings: int) -> None:
        self.settings = settings

    async def __call__(self) -> tuple[int, int]:
        await asyncio.sleep(0.002)
        return self.version, self.settings

    async def pid(self) -> int:
        return os.getpid()

    async def exit(self) -> None:
        os._exit(1)

    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()

    def wait_for_file(self, path: str) -> int:
        wait_for(lambda: Path(path).exists(), 20, "the file of the test")
        return os.getpid()

    async def count(self, until: int) -> Any:
        for number in range(until):
            await asyncio.sleep(0.002)
            yield number


@serve.deployment(graceful_shutdown_timeout_s=5)
class Top:
    def __init__(self, model: Any) -> None:
        self.model = model

    async def __call__(self) -> Any:
        return await self.model.remote()


def pids(handle: Any) -> set[int]:
    return {response.result() for response in [handle.pid.remote() for _ in range(20)]}


class Below:
    """Says what it was made with."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self) -> str:
        await asyncio.sleep(0.002)
        return self.name


def deployments() -> dict[str, Any]:
    found: dict[str, Any] = serve.status().applications["default"].deployments
    return found


def test_updates_of_every_kind_drop_no_request_and_are_there_when_run_returns() -> None:
    handle = run(Top.bind(Model.options(user_config=0).bind(1)))
    model = serve.get_deployment_handle("Model")
    elsewhere = LoadElsewhere.remote(model)
    skate.get(elsewhere.start.remote())
    streams: list[list[int]] = []
    with (
        Load(lambda: handle.remote().result()) as load,
        Load(lambda: streams.append(list(model.options(stream=True).count.remote(20))), threads=1) as streaming,
    ):
        before = pids(model)
        run(Top.bind(Model.options(user_config=1).bind(1)))
        assert handle.remote().result() == (1, 1)
        assert pids(model) == before, "other settings need no other process"

        run(Top.bind(Model.options(user_config=1, num_replicas=3).bind(1)))
        assert overview("Model").replica_states.get("RUNNING") == 3
        wait_for(lambda: pids(model) > before, 20, "the third replica to be asked")

        run(Top.bind(Model.options(user_config=2, num_replicas=1).bind(2)))
        assert {handle.remote().result() for _ in range(10)} == {(2, 2)}
        assert not pids(model) & before
        load.wait_for_more()
        streaming.wait_for_more(2)
    answers, errors = skate.get(elsewhere.stop.remote())
    assert not load.errors
    assert not streaming.errors
    assert not errors
    assert set(load.answers) == answers == {(1, 0), (1, 1), (2, 2)}
    assert all(stream == list(range(20)) for stream in streams)


def test_a_replica_that_drains_finishes_what_it_has(tmp_path: Path) -> None:
    handle = run(Model.options(num_replicas=1, graceful_shutdown_timeout_s=20).bind(1))
    old = handle.pid.remote().result()
    held = handle.wait_for_file.remote(str(tmp_path / "gate"))
    stream = handle.options(stream=True).count.remote(150)
    assert next(stream) == 0
    run(Model.options(num_replicas=1, graceful_shutdown_timeout_s=20).bind(2))
    assert handle.remote().result() == (2, 0)
    (tmp_path / "gate").touch()
    assert held.result(timeout_s=20) == old
    assert list(stream) == list(range(1, 150))


def test_a_replica_that_does_not_finish_in_time_is_ended() -> None:
    handle = run(Model.options(num_replicas=1, graceful_shutdown_timeout_s=0.2).bind(1))
    stuck = handle.wait_for_ever.remote()
    run(Model.options(num_replicas=1, graceful_shutdown_timeout_s=0.2).bind(2))
    with pytest.raises(ActorDiedError):
        stuck.result(timeout_s=20)
    wait_for(lambda: overview("Model").replica_states == {"RUNNING": 1}, 20, "the old replica to be gone")


def test_a_replica_that_is_killed_is_replaced_and_takes_only_what_it_had() -> None:
    handle = run(Model.options(max_ongoing_requests=2).bind(1))
    victim, other = sorted(pids(handle))
    held = [handle.wait_for_ever.remote() for _ in range(4)]
    queued = [handle.remote() for _ in range(20)]
    os.kill(victim, signal.SIGKILL)
    assert [response.result(timeout_s=20) for response in queued] == [(1, 0)] * 20
    wait_for(lambda: overview("Model").replica_states == {"RUNNING": 2}, 20, "the successor")
    os.kill(other, signal.SIGKILL)
    for response in held:
        with pytest.raises(
            ActorDiedError, match=r"wait_for_ever of default#Model died\.(.|\n)*signal 9(.|\n)*idempotent"
        ):
            response.result(timeout_s=20)
    wait_for(lambda: overview("Model").replica_states == {"RUNNING": 2}, 20, "the other successor")
    assert not pids(handle) & {victim, other}


def test_requests_that_may_run_twice_outlive_their_replicas() -> None:
    handle = run(Model.bind(1)).options(idempotent=True)
    elsewhere = LoadElsewhere.remote(handle)
    skate.get(elsewhere.start.remote())
    with Load(lambda: handle.remote().result(), threads=4) as load:
        for _ in range(2):
            before = pids(handle)
            os.kill(min(before), signal.SIGKILL)
            wait_for(lambda before=before: len(pids(handle) - before) == 1, 20, "the successor to answer")
            load.wait_for_more()
    assert not load.errors
    assert skate.get(elsewhere.stop.remote()) == ({(1, 0)}, [])
    with pytest.raises(ActorDiedError, match=r"next: 3 replicas were tried\. Perhaps the request itself ends them"):
        handle.exit.remote().result()


def test_an_error_of_a_deployment_below_is_not_the_end_of_the_one_above() -> None:
    handle = run(Top.bind(Model.options(num_replicas=1).bind(1)))

    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Above:
        def __init__(self, model: Any) -> None:
            self.model = model

        async def __call__(self) -> None:
            await self.model.wait_for_ever.remote()

        async def pid(self) -> int:
            return int(await self.model.pid.remote())

    handle = run(Above.bind(Model.options(num_replicas=1).bind(1)))
    held = handle.remote()
    os.kill(handle.pid.remote().result(), signal.SIGKILL)
    with pytest.raises(ActorDiedError):
        held.result(timeout_s=20)
    above = overview("Above")
    assert above.replica_states == {"RUNNING": 1}
    wait_for(lambda: overview("Model").replica_states == {"RUNNING": 1}, 20, "the successor below")
    assert handle.options(idempotent=True).pid.remote().result(timeout_s=20)


def test_an_update_while_another_one_is_under_way_wins(tmp_path: Path) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Slow:
        def __init__(self, version: int) -> None:
            if version == 2:
                wait_for(lambda: (tmp_path / "gate").exists(), 20, "the file of the test")
            self.version = version

        def __call__(self) -> int:
            return self.version

    handle = run(Slow.bind(1))

    @skate.remote(num_cpus=0)
    def deploy(app: Any) -> None:
        run(app)

    second = deploy.remote(Slow.bind(2))
    wait_for(lambda: overview("Slow").replica_states.get("STARTING"), 20, "the second version to start")
    run(Slow.bind(3))
    with pytest.raises(serve.DeployFailedError, match="another version was deployed meanwhile"):
        skate.get(second)
    assert handle.remote().result() == 3


def test_a_deployment_below_may_have_another_name_and_no_request_is_dropped() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=5)
    class First(Below):
        pass

    @serve.deployment(graceful_shutdown_timeout_s=5)
    class Second(Below):
        pass

    handle = run(Top.bind(First.bind("first")))
    with Load(lambda: handle.remote().result(timeout_s=20)) as load:
        run(Top.bind(Second.bind("second")))
        assert handle.remote().result() == "second"
        load.wait_for_more()
    assert not load.errors
    assert set(load.answers) == {"first", "second"}
    wait_for(lambda: set(deployments()) == {"Top", "Second"}, 20, "the deployment that is called no more to be gone")


def test_an_update_whose_new_deployment_does_not_start_leaves_the_version_before_whole() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=5)
    class Good(Below):
        pass

    @serve.deployment(graceful_shutdown_timeout_s=5)
    class Bad(Below):
        def __init__(self) -> None:
            raise OSError("no model")

    handle = run(Top.bind(Good.bind("good")))
    with Load(lambda: handle.remote().result(timeout_s=20)) as load:
        with pytest.raises(serve.DeployFailedError, match=r"(?s)no model.*The version before it serves on"):
            run(Top.bind(Bad.bind()))
        load.wait_for_more()
    assert not load.errors
    assert set(load.answers) == {"good"}
    wait_for(lambda: set(deployments()) == {"Top", "Good"}, 20, "the deployment that did not start to be gone")


def test_replicas_that_cannot_all_start_are_an_error_and_those_of_the_version_before_stay(tmp_path: Path) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Lonely:
        def __init__(self) -> None:
            os.close(os.open(tmp_path / "taken", os.O_CREAT | os.O_EXCL))

        def __call__(self) -> int:
            return os.getpid()

    with pytest.raises(serve.DeployFailedError, match=r"(?s)Lonely.*has 1 of 2 replicas.*FileExistsError"):
        run(Lonely.options(num_replicas=2).bind())
    (tmp_path / "taken").unlink()
    handle = run(Lonely.bind())
    pid = handle.remote().result()
    with pytest.raises(serve.DeployFailedError, match=r"(?s)FileExistsError.*The version before it serves on"):
        run(Lonely.options(num_replicas=2).bind())
    assert handle.remote().result() == pid


def test_a_new_version_that_dies_right_after_its_start_does_not_replace_the_one_before() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Fragile:
        def __init__(self, lives: bool) -> None:
            if not lives:
                threading.Timer(0.02, os._exit, (1,)).start()

        def __call__(self) -> int:
            return os.getpid()

    handle = run(Fragile.bind(True))
    pid = handle.remote().result()
    with pytest.raises(serve.DeployFailedError, match="The version before it serves on"):
        run(Fragile.bind(False))
    assert handle.options(idempotent=True).remote().result() == pid


def test_of_a_version_that_failed_nothing_is_kept() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Big:
        def __init__(self, data: bytes, is_bad: bool) -> None:
            if is_bad:
                raise OSError("a bad model")

        def __call__(self) -> None:
            pass

    before = set(blobs.digests())
    run(Big.bind(b"small", False))
    kept = set(blobs.digests())
    with pytest.raises(serve.DeployFailedError):
        run(Big.bind(bytes(3 << 20), True))
    assert set(blobs.digests()) == kept
    serve.delete("default")
    with pytest.raises(serve.DeployFailedError):
        run(Big.bind(bytes(3 << 20), True))
    assert set(blobs.digests()) == before


def test_blobs_of_which_only_a_part_was_written_are_removed_with_the_next_change() -> None:
    skate.kv.put(f"{blobs.PIECE}broken/0000", b"a part", namespace=NAMESPACE)
    assert "broken" in blobs.digests()
    run(Model.bind(1))
    assert "broken" not in blobs.digests()
