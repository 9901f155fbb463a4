"""Corners of Ray's API, as programs written for it use them."""

from __future__ import annotations

import json
import logging
import pickle
import platform
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from programs import run_program
from skate._wire.token import create_token, default_path
from skate.cluster_utils import Cluster
from skate.job_config import JobConfig
from skate.runtime_env import RuntimeEnv, RuntimeEnvConfig
from skate.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from waiting import wait_for


class Connection:
    """Cannot be pickled, because of its lock."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lock = threading.Lock()


# --- serialisers of users ---------------------------------------------------------------------------------------------


@skate.remote
def address_of(connection: Any) -> str:
    return str(connection.address)


@pytest.mark.usefixtures("runtime")
def test_a_registered_serializer_serves_put_and_arguments() -> None:
    with pytest.raises(skate.exceptions.SerializationError):
        skate.put(Connection("a"))
    skate.util.register_serializer(Connection, serializer=lambda it: it.address, deserializer=Connection)
    try:
        assert skate.get(skate.put(Connection("a"))).address == "a"
        assert skate.get(address_of.remote(Connection("b"))) == "b", "a reader needs no registration"
    finally:
        skate.util.deregister_serializer(Connection)
    with pytest.raises(skate.exceptions.SerializationError):
        skate.put(Connection("a"))


# --- references -------------------------------------------------------------------------------------------------------


def test_a_reference_tells_the_job_while_there_is_one() -> None:
    with skate.init(num_cpus=1):
        ref = skate.put(1)
        assert ref.job_id() == skate.get_runtime_context().job_id
        assert skate.ObjectRef.nil().job_id().is_nil()
    assert ref.job_id().is_nil()
    assert not skate.is_initialized()


@pytest.mark.usefixtures("runtime")
def test_a_callback_gets_the_value_or_the_error() -> None:
    got: list[Any] = []
    ref = skate.put(7)
    assert ref._on_completed(got.append) is ref
    wait_for(lambda: got == [7], 20, "the value")
    skate.remote(lambda: 1 // 0).remote()._on_completed(got.append)
    wait_for(lambda: len(got) == 2, 20, "the error")
    assert isinstance(got[1], ZeroDivisionError)
    del ref


@pytest.mark.usefixtures("runtime")
def test_get_of_what_is_no_reference_is_a_value_error_as_in_ray() -> None:
    for wrong in ("x", None, ["x"], [None]):
        with pytest.raises(ValueError, match="get"):
            skate.get(wrong)  # type: ignore[call-overload]


@pytest.mark.usefixtures("runtime")
def test_an_actor_id_tells_the_job_of_this_process() -> None:
    actor = skate.remote(Connection).remote("a")
    assert actor._actor_id.job_id == skate.get_runtime_context().job_id
    assert skate.ActorID.nil().job_id.is_nil()


# --- the runtime context ----------------------------------------------------------------------------------------------


def facts() -> dict[str, Any]:
    context = skate.get_runtime_context()
    return {
        "mode": context.worker.mode,
        "worker_id": context.worker.worker_id,
        "job_id": context.job_id,
        "node_id": context.node_id,
        "task_id": context.task_id,
        "actor_id": context.actor_id,
        "group_id": context.current_placement_group_id,
        "captures": context.should_capture_child_tasks_in_placement_group,
        "runtime_env": context.runtime_env,
        "function": context.get_task_function_name(),
        "session": context.get_session_name(),
        "again": context.was_current_actor_reconstructed,
    }


@skate.remote
class Asker:
    def ask(self) -> dict[str, Any]:
        return facts()


def test_the_properties_of_the_context_are_ids_as_objects() -> None:
    skate.init(num_cpus=2, runtime_env={"env_vars": {"COLOUR": "blue"}})
    here = facts()
    context = skate.get_runtime_context()
    assert here["mode"] == skate.SCRIPT_MODE
    assert (here["task_id"], here["actor_id"]) == (None, None)
    assert here["group_id"] == skate.PlacementGroupID.nil()
    assert here["job_id"] == skate.JobID.from_hex(context.get_job_id())
    assert here["node_id"] == skate.NodeID.from_hex(context.get_node_id())
    assert here["worker_id"] == skate.WorkerID.from_hex(context.get_worker_id())
    assert here["runtime_env"] == RuntimeEnv(env_vars={"COLOUR": "blue"})
    assert context.gcs_address.startswith("skate-")

    ref = skate.remote(facts).remote()
    there = skate.get(ref)
    assert there["mode"] == skate.WORKER_MODE
    assert there["task_id"] == ref.task_id()
    assert there["function"] == f"{__name__}.facts"
    assert here["function"] is None
    assert (there["job_id"], there["node_id"]) == (here["job_id"], here["node_id"])
    assert there["worker_id"] != here["worker_id"]
    assert there["runtime_env"] == here["runtime_env"]
    assert there["session"] == here["session"]

    asker = Asker.remote()
    assert skate.get(asker.ask.remote())["actor_id"] == asker._actor_id
    assert skate.get(asker.ask.remote())["function"] == f"{__name__}.Asker.ask"
    assert skate.get(asker.ask.remote())["again"] is False


def test_the_context_tells_the_placement_group() -> None:
    skate.init(num_cpus=1)
    group = skate.util.placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    told = skate.get(skate.remote(facts).options(scheduling_strategy=strategy).remote())
    assert (told["group_id"], told["captures"]) == (group.id, True)
    assert isinstance(group.id, skate.PlacementGroupID)


def test_errors_have_the_members_that_programs_look_at() -> None:
    skate.init(num_cpus=1)

    @skate.remote
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no")

        def call(self) -> None: ...

    with pytest.raises(skate.exceptions.RayActorError) as raised:
        skate.get(Broken.remote().call.remote())
    assert raised.value.actor_init_failed
    assert not raised.value.preempted
    assert not pickle.loads(pickle.dumps(skate.exceptions.ActorDiedError())).actor_init_failed
    assert pickle.loads(pickle.dumps(raised.value)).actor_init_failed

    @skate.remote
    def fail() -> None:
        raise KeyError("key")

    with pytest.raises(skate.exceptions.RayTaskError) as failed:
        skate.get(fail.remote())
    assert isinstance(failed.value.as_instanceof_cause(), KeyError)
    assert failed.value.traceback_str == failed.value.remote_traceback
    assert (failed.value.ip, failed.value.actor_id) == (None, None)

    class Located(Exception):
        ip = "10.0.0.7"

        def __init__(self) -> None:
            self.traceback_str = "mine"

        def __getattr__(self, name: str) -> str:
            if name != "other":
                raise AttributeError(name)
            return f"by name: {name}"

    @skate.remote
    def fail_somewhere() -> None:
        raise Located

    with pytest.raises(skate.exceptions.RayTaskError) as located:
        skate.get(fail_somewhere.remote())
    assert (located.value.traceback_str, located.value.ip) == ("mine", "10.0.0.7"), "nothing of the original is hidden"
    assert (located.value.other, located.value.actor_id) == ("by name: other", None)
    assert not hasattr(failed.value, "other")


def test_a_group_that_is_none_says_so() -> None:
    from skate.util.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES, PlacementGroup

    assert PlacementGroup.empty().is_empty
    assert PlacementGroup.empty().bundle_count == 0
    assert "STRICT_SPREAD" in VALID_PLACEMENT_GROUP_STRATEGIES
    assert not skate.util.client.ray.is_connected()


def test_a_group_is_found_by_its_id() -> None:
    from skate.util.placement_group import PlacementGroup, placement_group, remove_placement_group

    with skate.init(num_cpus=2):
        made = placement_group([{"CPU": 1}, {"CPU": 1}])
        again = PlacementGroup(made.id)
        assert again == made
        assert "bundles" not in repr(again), "to print it asks no other process"
        assert again.wait(30)
        assert (again.bundle_specs, again.bundle_count) == ([{"CPU": 1}, {"CPU": 1}], 2)
        assert PlacementGroup(made.id, bundle_cache=made.bundle_specs).bundle_count == 2
        second = PlacementGroupSchedulingStrategy(PlacementGroup(made.id), placement_group_bundle_index=1)
        inside = skate.remote(skate.util.get_current_placement_group).options(scheduling_strategy=second)
        found = skate.get(inside.remote())
        assert (found, found.bundle_count) == (made, 2)
        with pytest.raises(ValueError, match="one of 0 to 1"):
            PlacementGroupSchedulingStrategy(PlacementGroup(made.id), placement_group_bundle_index=2)
        remove_placement_group(made)
        wait_for(lambda: not PlacementGroup(made.id).bundle_specs, 20, "the group to be removed")


def test_a_node_of_a_cluster_has_variables_of_its_own() -> None:
    with Cluster(initialize_head=True, head_node_args={"env_vars": {"COLOUR": "green"}}) as cluster:
        cluster.connect()
        assert skate.get(skate.remote(lambda: __import__("os").environ["COLOUR"]).remote()) == "green"
        skate.shutdown()


def test_a_cluster_tells_whether_its_processes_run() -> None:
    with Cluster(initialize_head=True) as cluster:
        node = cluster.add_node()
        assert cluster.remaining_processes_alive()
        node._process.kill()
        node._process.wait()
        assert not cluster.remaining_processes_alive()


# --- experimental -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_the_internal_keys_follow_ray() -> None:
    from skate.experimental import internal_kv as it

    assert it._internal_kv_initialized()
    assert it._internal_kv_put("a/1", b"one") is False
    assert it._internal_kv_put("a/1", "uno") is True, "there was a value before"
    assert it._internal_kv_get(b"a/1") == b"uno"
    assert it._internal_kv_put("a/1", b"eins", overwrite=False) is True
    assert it._internal_kv_get("a/1") == b"uno"
    assert it._internal_kv_put("a/2", b"two") is False
    assert it._internal_kv_put("a/1", b"other", namespace=b"space") is False
    assert it._internal_kv_list("a/") == [b"a/1", b"a/2"]
    assert it._internal_kv_exists("a/2")
    assert not it._internal_kv_exists("a/3")
    assert skate.kv.get("a/1") is None, "they are not among the keys of the job"
    assert skate.get(skate.remote(lambda: it._internal_kv_get("a/1")).remote()) == b"uno"
    assert it._internal_kv_del("a/1", namespace="space") == 1
    assert it._internal_kv_del("a/", del_by_prefix=True) == 2
    assert it._internal_kv_del("a/1") == 0


def test_a_bar_in_a_task_is_seen_in_the_driver(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import skate
from skate.experimental import tqdm_ray
skate.init(num_cpus=1)

@skate.remote
def work():
    for _ in tqdm_ray.tqdm(range(4), desc="items"):
        pass

skate.get(work.remote())
"""
    )
    _, errors = run_program(program)
    assert "(work pid=" in errors
    assert "items [##############################] 4/4" in errors


def test_objects_are_located_on_their_nodes() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        second = cluster.add_node(num_cpus=1, resources={"second": 1})
        cluster.connect()
        assert cluster.head_node is not None

        @skate.remote(resources={"second": 1})
        class Maker:
            def make(self) -> bytes:
                return bytes(1_000_000)

            def wrap(self) -> list[skate.ObjectRef[bytes]]:
                return [skate.put(bytes(2_000_000))]

        maker = Maker.remote()
        made, small, unknown = maker.make.remote(), skate.put(b"small"), skate.ObjectRef.from_random()
        skate.wait([made])
        (inner,) = skate.get(maker.wrap.remote())
        found = skate.experimental.get_object_locations([made, small, inner, unknown])
        assert unknown not in found, "no such object"
        assert not any(about["did_spill"] for about in found.values())
        assert found[made]["node_ids"] == found[inner]["node_ids"] == [second.node_id]
        assert 1_000_000 <= found[made]["object_size"] < 1_001_000
        assert 2_000_000 <= found[inner]["object_size"] < 2_001_000
        assert found[small]["node_ids"] == []
        assert found[small]["object_size"] > 0
        skate.get(made)
        copies = skate.experimental.get_object_locations([made])[made]["node_ids"]
        assert copies == [second.node_id, cluster.head_node.node_id], "reading it has made a copy here"
        with pytest.raises(TypeError, match="list of references"):
            skate.experimental.get_object_locations(made)  # type: ignore[arg-type]
        for locate in (skate.experimental.get_object_locations, skate.experimental.get_local_object_locations):
            with pytest.raises(ValueError, match=r"ObjectRef\.nil\(\)"):
                locate([skate.ObjectRef.nil()])
        skate.shutdown()


@pytest.mark.usefixtures("runtime")
def test_what_does_not_exist_yet_has_no_location(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ref = skate.remote(lambda: wait_for(gate.exists, 40, "the gate to open")).remote()
    assert skate.experimental.get_object_locations([ref])[ref] == {
        "node_ids": [],
        "object_size": None,
        "did_spill": False,
    }
    gate.touch()
    skate.get(ref)


# --- joining from outside ---------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with Cluster(initialize_head=True) as cluster:
        monkeypatch.setenv("SKATE_TOKEN", cluster._token)
        yield cluster
        skate.shutdown()


def test_an_address_of_ray_leads_to_the_cluster(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    node = cluster.head_node.node_id
    where = skate.remote(lambda: skate.get_runtime_context().get_node_id())
    with skate.init(f"ray://{cluster.address}", namespace="a"):
        assert skate.get(where.remote()) == node
        assert skate.get_runtime_context().gcs_address == cluster.address
    with skate.client(cluster.address).namespace("b").env({"env_vars": {"COLOUR": "blue"}}).connect() as connection:
        assert skate.get(where.remote()) == node
        assert skate.get_runtime_context().namespace == "b"
        assert (connection.python_version, connection.ray_version) == (platform.python_version(), skate.__version__)
    assert not skate.is_initialized()
    told = skate.util.connect(cluster.address, namespace="c")
    assert told["namespace"] == skate.get_runtime_context().namespace == "c"
    assert skate.get(where.remote()) == node
    skate.util.disconnect()
    assert not skate.is_initialized()


def test_every_form_of_the_address_leads_to_a_cluster_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token of a `Cluster` is known to its nodes alone; that in the home directory is of another cluster."""
    for name in ("SKATE_TOKEN", "SKATE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    create_token(default_path())
    with Cluster(initialize_head=True) as cluster:
        for connect in (
            lambda: skate.init(f"ray://{cluster.address}"),
            lambda: skate.init(f"skate://{cluster.address}"),
            lambda: skate.init(cluster.address),
            lambda: skate.client(cluster.address).connect(),
            lambda: skate.client(f"ray://{cluster.address}").connect(),
            lambda: skate.util.connect(cluster.address),
            lambda: skate.util.connect(f"ray://localhost:{cluster.address.rpartition(':')[2]}"),
        ):
            connect()
            assert [node["NodeID"] for node in skate.nodes()] == [node.node_id for node in cluster.nodes]
            assert skate.get(skate.remote(lambda: 1).remote()) == 1
            skate.shutdown()
        monkeypatch.setenv("SKATE_TOKEN", "a" * 64)  # this driver says that it comes from outside, with this token
        with pytest.raises(ConnectionError, match="token"):
            skate.init(f"ray://{cluster.address}")


def test_a_driver_on_no_node_is_told_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    client = skate.util.client
    address_of_this_machine = skate.util.get_node_ip_address()
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node()
        with skate.init(cluster.address):
            assert (client.ray.is_connected(), client.num_connected_contexts()) == (False, 0)
        monkeypatch.setenv("SKATE_TOKEN", cluster._token)
        with skate.init(f"ray://{cluster.address}") as facts:
            assert (client.ray.is_connected(), client.num_connected_contexts()) == (True, 1)
            assert cluster.head_node is not None
            head = cluster.head_node.node_id
            assert facts["node_id"] == skate.get_runtime_context().get_node_id() == head
            assert skate.get_runtime_context().node_id.hex() == head
            there = skate.remote(lambda: skate.get_runtime_context().get_node_id())
            assert skate.get(there.options(resources={f"node:{facts['node_ip_address']}": 0.01}).remote(), timeout=30)
            assert skate.util.get_node_ip_address() == address_of_this_machine
    assert not client.ray.is_connected()


def test_a_client_knows_the_version_that_ray_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = ModuleType("ray")
    ray.__dict__["__version__"] = "2.9.3"
    monkeypatch.setitem(sys.modules, "ray", ray)
    with skate.client().connect() as connection:
        assert connection.ray_version == connection.facts.ray_version == "2.9.3"
    assert skate.util.connect("local")["ray_version"] == "2.9.3"
    skate.util.disconnect()


@pytest.mark.parametrize("address", [5, "hostonly", "", b"127.0.0.1:1"])
def test_what_is_no_address_of_a_client_is_named(address: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"address={address!r}): it may be")):
        skate.client(address).connect()


def test_a_client_without_an_address_starts_a_node() -> None:
    with skate.client().connect():
        assert skate.is_initialized()
    assert not skate.is_initialized()


# --- settings as objects ----------------------------------------------------------------------------------------------


def test_a_runtime_env_is_a_dict_that_names_what_is_not_there() -> None:
    env = RuntimeEnv(env_vars={"COLOUR": "blue"}, pip=None)
    assert env == {"env_vars": {"COLOUR": "blue"}}
    assert RuntimeEnv.deserialize(env.serialize()) == env
    assert type(pickle.loads(pickle.dumps(env))) is RuntimeEnv
    assert (env.env_vars(), env.to_dict()) == ({"COLOUR": "blue"}, dict(env))
    for others in ({"working_dir": "."}, {"pip": ["numpy"]}, {"config": RuntimeEnvConfig()}):
        with pytest.raises(ValueError, match=f"'{next(iter(others))}'"):
            RuntimeEnv(**others)
    assert RuntimeEnvConfig(setup_timeout_seconds=-1)["setup_timeout_seconds"] == -1
    with pytest.raises(ValueError, match="setup_timeout_seconds"):
        RuntimeEnvConfig(setup_timeout_seconds=0)


def test_init_follows_a_job_config() -> None:
    config = JobConfig(runtime_env={"env_vars": {"COLOUR": "blue"}}, metadata={"owner": "me"})
    config.set_ray_namespace("train")
    colour = skate.remote(lambda: __import__("os").environ.get("COLOUR"))
    with skate.init(num_cpus=1, job_config=config):
        assert skate.get_runtime_context().namespace == "train"
        assert skate.get(colour.remote()) == "blue"
    with skate.init(num_cpus=1, job_config=config, namespace="mine"):
        assert skate.get_runtime_context().namespace == "mine"
    assert JobConfig.from_json('{"ray_namespace": "a"}').ray_namespace == "a"
    with pytest.raises(ValueError, match="lifetime='detached'"):
        JobConfig(default_actor_lifetime="detached")
    with pytest.raises(TypeError, match="'colour'"):
        JobConfig(colour="blue")


def test_log_records_look_as_configured_in_the_driver_and_in_workers(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import logging, skate
skate.init(num_cpus=1, logging_config=skate.LoggingConfig(
    encoding="JSON", log_level="DEBUG", additional_log_standard_attrs=["name"]))

@skate.remote
def work():
    logging.getLogger("mine").debug("in a %s", "task")
    return skate.get_runtime_context().get_task_id()

logging.getLogger("mine").info("in the driver")
print(skate.get_runtime_context().get_job_id(), skate.get(work.remote()))
""",
    )
    out, errors = run_program(program)
    job, task = out.split()
    records = {}
    for line in errors.splitlines():
        if "{" in line:
            record = json.loads(line[line.index("{") :])
            records[record["message"]] = record
    driver, worker = records["in the driver"], records["in a task"]
    assert (driver["levelname"], driver["name"], driver["job_id"]) == ("INFO", "mine", job)
    assert (worker["levelname"], worker["job_id"], worker["task_id"]) == ("DEBUG", job, task)
    assert worker["task_name"] == "work"
    assert "task_id" not in driver


def test_a_logging_config_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="TEXT, JSON"):
        skate.LoggingConfig(encoding="XML")
    with pytest.raises(ValueError, match="log_level"):
        skate.LoggingConfig(log_level="LOUD")
    with pytest.raises(ValueError, match="no such attribute"):
        skate.LoggingConfig(additional_log_standard_attrs=["colour"])
    config = skate.LoggingConfig(additional_log_standard_attrs=["process"])
    assert skate.LoggingConfig.from_dict({**config.to_dict(), "later": 1}) == config


def test_text_records_have_the_error_behind_them(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        skate.LoggingConfig(additional_log_standard_attrs=["process"]).apply()
        skate.LoggingConfig(log_level="WARNING").apply()
        assert len(root.handlers) == len(before) + 1, "the second takes the place of the first"
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logging.getLogger("mine").exception("it failed")
        logging.getLogger("mine").info("not shown")
        text = capsys.readouterr().err
        assert "ERROR test_ray_programs.py:" in text
        assert "-- it failed" in text
        assert "ZeroDivisionError" in text
        assert "not shown" not in text
    finally:
        root.handlers[:] = before
        root.setLevel(level)
