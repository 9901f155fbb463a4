"""Deployments and applications of skate.serve: what starts, what does not, what is said of it, and where it runs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from serve_load import Load
from skate import serve
from skate.cluster_utils import Cluster
from skate.strategies import NodeAffinitySchedulingStrategy
from waiting import wait_for


@pytest.fixture(autouse=True)
def serving(request: pytest.FixtureRequest) -> Iterator[None]:
    if "runtime" in request.fixturenames:
        yield
        for name in serve.status().applications:
            serve.delete(name)
    else:
        yield


def run(app: Any, name: str = "default") -> Any:
    return serve.run(app, name=name, route_prefix=None)


def overview(deployment: str, app: str = "default") -> Any:
    return serve.status().applications[app].deployments[deployment]


@serve.deployment(graceful_shutdown_timeout_s=1)
class Where:
    """Says which process it is."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def __call__(self) -> tuple[int, str]:
        return os.getpid(), skate.get_runtime_context().get_node_id()

    def __repr__(self) -> str:
        return f"Where({self.version})"


def test_every_replica_is_a_process_and_works(runtime: ModuleType) -> None:
    handle = run(Where.options(num_replicas=3).bind())
    pids = set()
    wait_for(lambda: pids.add(handle.remote().result()[0]) or len(pids) == 3, 20, "all replicas to be asked")
    found = overview("Where")
    assert found.status == "HEALTHY"
    assert found.replica_states == {"RUNNING": 3}
    assert found.wanted == 3
    assert serve.status().applications["default"].status == "RUNNING"


def test_several_applications_have_deployments_of_the_same_name(runtime: ModuleType) -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self) -> str:
            return self.name

    first, second = run(Named.bind("one"), "first"), run(Named.bind("two"), "second")
    assert (first.remote().result(), second.remote().result()) == ("one", "two")
    serve.delete("first")
    assert second.remote().result() == "two"
    assert list(serve.status().applications) == ["second"]


def test_user_config_is_given_after_the_constructor(runtime: ModuleType) -> None:
    @serve.deployment(user_config={"threshold": 3}, graceful_shutdown_timeout_s=1)
    class Configured:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def reconfigure(self, config: dict[str, int]) -> None:
            self.seen.append(config)

        def __call__(self) -> list[Any]:
            return self.seen

    assert run(Configured.bind()).remote().result() == [{"threshold": 3}]


@pytest.mark.parametrize("where", ["constructor", "reconfigure", "check_health"])
def test_a_first_version_that_does_not_start_is_an_error_with_its_traceback(runtime: ModuleType, where: str) -> None:
    @serve.deployment(user_config=1, graceful_shutdown_timeout_s=1)
    class Broken:
        def __init__(self) -> None:
            self.at("constructor")

        def reconfigure(self, config: int) -> None:
            self.at("reconfigure")

        def check_health(self) -> None:
            self.at("check_health")

        def at(self, here: str) -> None:
            if here == where:
                raise OSError(f"no model in {here}")

    with pytest.raises(
        serve.DeployFailedError, match=f"(?s)Broken of application default.*no model in {where}"
    ) as caught:
        run(Broken.bind())
    assert 'raise OSError(f"no model in {here}")' in str(caught.value)
    found = serve.status().applications["default"]
    assert found.status == "DEPLOY_FAILED"
    assert "no model" in found.message
    serve.delete("default")


def test_a_module_that_replicas_do_not_have_is_named(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_module.py").write_text("class Model:\n    def __call__(self): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here_module

    app = serve.deployment(only_here_module.Model).options(graceful_shutdown_timeout_s=1).bind()
    assert run(app, "found").remote().result() == 1, "replicas import from where the script does"
    (tmp_path / "only_here_module.py").unlink()
    monkeypatch.undo()
    with pytest.raises(serve.DeployFailedError, match="only_here_module"):
        run(app, "lost")


def test_what_cannot_be_sent_says_which_deployment_and_why(runtime: ModuleType) -> None:
    with pytest.raises(TypeError, match=r"(?s)deployment Where cannot be sent.*lock"):
        run(Where.bind(threading.Lock()))


def test_an_update_that_does_not_start_leaves_the_version_before_and_says_why(runtime: ModuleType) -> None:
    @serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=1)
    class Model:
        def __init__(self, path: str) -> None:
            if path == "missing":
                raise FileNotFoundError(path)
            self.path = path

        def reconfigure(self, config: str) -> None:
            if config == "bad":
                raise ValueError("a bad config")

        def __call__(self) -> str:
            return self.path

    handle = run(Model.options(user_config="good").bind("there"))
    with Load(lambda: handle.remote().result()) as load:
        with pytest.raises(serve.DeployFailedError, match=r"(?s)FileNotFoundError.*missing.*The version before it"):
            run(Model.options(user_config="good").bind("missing"))
        with pytest.raises(serve.DeployFailedError, match=r"(?s)a bad config.*The version before it serves on"):
            run(Model.options(user_config="bad").bind("there"))
        assert "a bad config" in serve.status().applications["default"].message
        wait_for(lambda: overview("Model").status == "HEALTHY", 20, "the version before to have all its replicas")
        load.wait_for_more()
    assert not load.errors
    assert set(load.answers) == {"there"}
    run(Model.options(user_config="good").bind("elsewhere"))
    assert handle.remote().result() == "elsewhere"


def test_a_replica_that_is_not_well_is_replaced(runtime: ModuleType, tmp_path: Path) -> None:
    sick = tmp_path / "sick"

    @serve.deployment(health_check_period_s=0.01, graceful_shutdown_timeout_s=1)
    class Patient:
        def check_health(self) -> None:
            if sick.exists() and sick.read_text() == str(os.getpid()):
                raise RuntimeError("not well")

        def __call__(self) -> int:
            return os.getpid()

    handle = run(Patient.bind())
    first = handle.remote().result()
    sick.write_text(str(first))
    call = handle.options(idempotent=True)
    wait_for(lambda: call.remote().result(timeout_s=20) != first, 20, "another replica")


def test_a_placement_group_is_made_for_each_replica_and_removed_after_it(runtime: ModuleType) -> None:
    app = Where.options(
        placement_group_bundles=[{"CPU": 1}], placement_group_strategy="PACK", ray_actor_options={"num_cpus": 1}
    )
    handle = run(app.bind())
    assert skate.available_resources().get("CPU", 0) == 1
    os.kill(handle.remote().result()[0], 9)
    wait_for(lambda: overview("Where").replica_states == {"RUNNING": 1}, 20, "a successor")
    handle.options(idempotent=True).remote().result()
    assert groups() == 1
    serve.delete("default")
    wait_for(lambda: groups() == 0, 20, "the groups to be removed")
    wait_for(lambda: skate.available_resources()["CPU"] == 2, 20, "all resources to be free")


def groups() -> int:
    table = skate.util.placement_group_table()
    return sum(each["state"] != "REMOVED" for each in table.values())


def test_options_that_no_replica_can_have_are_said_by_run(runtime: ModuleType) -> None:
    app = Where.options(ray_actor_options={"scheduling_strategy": "NOWHERE"})
    with pytest.raises(serve.DeployFailedError, match="NOWHERE"):
        run(app.bind())


def test_nodes_have_no_more_replicas_than_may_and_a_dead_one_has_successors_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skate.serve.api.SAY_EVERY_S", 0.05)
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        cluster.connect()
        home = skate.get_runtime_context().get_node_id()
        handle = run(Where.options(max_replicas_per_node=1).bind())
        deploying = threading.Thread(target=run, args=(Where.options(max_replicas_per_node=1, num_replicas=2).bind(),))
        deploying.start()
        wait_for(
            lambda: "max_replicas_per_node=1" in overview("Where").message, 20, "the status to say what is missing"
        )
        assert overview("Where").replica_states == {"RUNNING": 1, "STARTING": 1}
        wait_for(lambda: "max_replicas_per_node=1" in caplog.text, 20, "the deployer to hear why it has to wait")
        other = cluster.add_node(num_cpus=2)
        deploying.join(20)
        assert not deploying.is_alive()
        assert caplog.text.count("serve.run waits for deployment Where of application default: ") == 1
        assert nodes_of(handle) == {home, other.node_id}

        for full, roomy in ((home, other.node_id), (other.node_id, home)):
            there = NodeAffinitySchedulingStrategy(full, soft=False)
            holder = Holder.options(num_cpus=2, scheduling_strategy=there).remote()
            skate.get(holder.ready.remote())
            wait_for(
                lambda full=full: free_cpus() == {home: 2, other.node_id: 2} | {full: 0}, 20, "the reports of nodes"
            )
            app = Where.options(max_replicas_per_node=2, ray_actor_options={"num_cpus": 1}).bind()
            assert nodes_of(run(app, "roomy")) == {roomy}, "not on the node that has no room"
            serve.delete("roomy")
            skate.kill(holder)
            wait_for(lambda: free_cpus() == {home: 2, other.node_id: 2}, 20, "all CPUs to be free")

        run(Where.options(num_replicas=3, ray_actor_options={"scheduling_strategy": "SPREAD"}).bind(2))
        call = handle.options(idempotent=True)
        assert nodes_of(call) == {home, other.node_id}
        with Load(lambda: call.remote().result()) as load:
            cluster.remove_node(other, allow_graceful=False)
            wait_for(
                lambda: overview("Where").replica_states == {"RUNNING": 3} and nodes_of(call) == {home},
                30,
                "successors at home",
            )
            load.wait_for_more()
        assert not load.errors
        serve.shutdown()
        skate.shutdown()


@skate.remote
class Holder:
    """Takes what a node has."""

    def ready(self) -> None: ...


def free_cpus() -> dict[str, float]:
    return {node["NodeID"]: node["Available"].get("CPU", 0) for node in skate.nodes()}


def nodes_of(handle: Any) -> set[str]:
    """The nodes that answer when there is more than one replica can do."""
    return {response.result()[1] for response in [handle.remote() for _ in range(20)]}


def test_what_a_script_serves_ends_with_it_after_its_requests_and_without_a_word(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import pathlib, time
        from skate import serve

        @serve.deployment
        class Slow:
            def __call__(self, seconds):
                pathlib.Path({str(tmp_path / "begun")!r}).touch()
                time.sleep(seconds)
                pathlib.Path({str(tmp_path / "done")!r}).touch()

        handle = serve.run(Slow.bind(), route_prefix=None)
        handle.remote(0.2)
        while not pathlib.Path({str(tmp_path / "begun")!r}).exists():
            time.sleep(0.001)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "done").exists()


def test_what_a_script_serves_in_a_cluster_that_it_has_joined_stays() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        script = textwrap.dedent(f"""
            import skate
            from skate import serve

            @serve.deployment(graceful_shutdown_timeout_s=1)
            def double(value):
                return 2 * value

            skate.init(address={cluster.address!r})
            serve.run(double.bind(), route_prefix=None)
        """)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        cluster.connect()
        assert serve.get_app_handle().remote(4).result() == 8
        serve.shutdown()
        skate.shutdown()
