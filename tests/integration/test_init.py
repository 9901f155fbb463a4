"""The life of a runtime: init, implicit init, shutdown, and all of it again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from skate._config import STORE_BYTES_LEAST
from skate._no_effect import NO_EFFECT
from skate._wire.messages import Results
from skate._worker import current
from skate.cluster_utils import Cluster
from skate.exceptions import ActorDiedError, InternalError, NotInitializedError, ObjectLostError
from skate.threads import never_start
from waiting import WITHIN_S, value_of, wait_for


@skate.remote
def double(x: int) -> int:
    return 2 * x


def run_program(path: Path, source: str) -> subprocess.CompletedProcess[str]:
    path.write_text(source)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=50, check=False)


# --- starting and ending ----------------------------------------------------------------------------------------------


def test_init_and_shutdown_are_visible() -> None:
    assert not skate.is_initialized()
    skate.init(num_cpus=1)
    assert skate.is_initialized()
    skate.shutdown()
    assert not skate.is_initialized()


def test_references_of_an_earlier_runtime_are_an_error_and_no_hang() -> None:
    @skate.remote
    class Echo:
        def __init__(self, value: int = 0) -> None:
            self.value = value

        def say(self, value: int) -> int:
            return value

    @skate.remote
    def first(values: list[Any]) -> int:
        return int(value_of(values[0]))

    with skate.init(num_cpus=1):
        old = [double.remote(2), skate.put(4)]
        assert skate.get(old) == [4, 4]
    with skate.init(num_cpus=1):
        echo = Echo.remote()
        for ref in old:
            for call in (double.remote(ref), double.remote(x=ref), echo.say.remote(ref), first.remote([ref])):
                with pytest.raises(ObjectLostError):
                    value_of(call)
            with pytest.raises(ObjectLostError):
                value_of(first.remote(skate.put([ref])))
            with pytest.raises(ActorDiedError):
                value_of(Echo.remote(ref).say.remote(1))
            with pytest.raises(ObjectLostError, match="of an earlier session"):
                value_of(ref)
        assert value_of(echo.say.remote(5)) == 5, "calls behind such a one go on"


def test_init_again_after_shutdown_many_times() -> None:
    nodes = set()
    for i in range(5):
        info = skate.init(num_cpus=1)
        nodes.add(info["node_id"])
        assert skate.get(double.remote(i)) == 2 * i
        skate.shutdown()
    assert len(nodes) == 5


def test_init_without_use() -> None:
    for _ in range(3):
        skate.init(num_cpus=1)
        skate.shutdown()


def test_shutdown_is_safe_without_init_and_twice() -> None:
    skate.shutdown()
    skate.init(num_cpus=1)
    skate.shutdown()
    skate.shutdown()


def test_init_is_a_context_manager() -> None:
    with skate.init(num_cpus=1):
        assert skate.get(double.remote(4)) == 8
    assert not skate.is_initialized()


def test_the_context_manager_ends_the_runtime_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), skate.init(num_cpus=1):
        raise ZeroDivisionError
    assert not skate.is_initialized()


@pytest.mark.parametrize("use", ["remote", "put", "cluster_resources", "nodes", "context", "map"])
def test_first_use_starts_the_runtime(use: str) -> None:
    assert not skate.is_initialized()
    if use == "remote":
        assert skate.get(double.remote(1)) == 2
    elif use == "put":
        assert skate.get(skate.put("value")) == "value"
    elif use == "cluster_resources":
        assert skate.cluster_resources()["CPU"] >= 1
    elif use == "nodes":
        assert skate.nodes()[0]["Alive"]
    elif use == "context":
        assert skate.get_runtime_context().get_node_id()
    else:
        assert list(skate.map(abs, [-1])) == [1]
    assert skate.is_initialized()


def test_declaring_a_remote_function_starts_nothing() -> None:
    skate.remote(lambda: None)
    skate.remote(num_cpus=2)(lambda: None).options(name="other")
    assert not skate.is_initialized()


def test_a_second_init_is_an_error_that_says_what_to_do() -> None:
    skate.init(num_cpus=1)
    with pytest.raises(RuntimeError, match="ignore_reinit_error"):
        skate.init(num_cpus=1)
    assert skate.get(double.remote(1)) == 2, "the first runtime goes on"


def test_ignore_reinit_error_keeps_the_runtime_that_is_there() -> None:
    first = skate.init(num_cpus=1)
    second = skate.init(num_cpus=2, ignore_reinit_error=True)
    assert second["node_id"] == first["node_id"]
    assert skate.cluster_resources()["CPU"] == 1


def test_init_from_another_thread_serves_all_threads() -> None:
    starter = threading.Thread(target=lambda: skate.init(num_cpus=1))
    starter.start()
    starter.join()
    assert skate.get(double.remote(21)) == 42


def test_first_use_by_many_threads_at_once_starts_one_runtime() -> None:
    barrier = threading.Barrier(6)
    found: list[str] = []

    def use() -> None:
        barrier.wait()
        assert skate.get(double.remote(1)) == 2
        found.append(skate.get_runtime_context().get_node_id())

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_shutdown_stops_tasks_that_still_run(tmp_path: Path) -> None:
    """The leak check sees to it that the endless tasks and the one behind them are gone."""
    skate.init(num_cpus=1)

    @skate.remote
    def endless(started: Path) -> None:
        started.touch()
        threading.Event().wait()

    refs = [endless.remote(tmp_path / "started"), endless.remote(tmp_path / "never")]
    wait_for((tmp_path / "started").exists, 30, "the task to start")
    skate.shutdown()
    assert len(refs) == 2
    assert not (tmp_path / "never").exists()


def test_references_may_outlive_their_runtime() -> None:
    skate.init(num_cpus=1)
    old = [skate.put(1), double.remote(2)]
    skate.shutdown()
    skate.init(num_cpus=1)
    with pytest.raises(skate.exceptions.SkateError):
        skate.get(old[0], timeout=10)
    new = skate.put(3)
    del old
    assert skate.get(new) == 3


def test_get_without_a_runtime_of_the_reference_is_an_error() -> None:
    skate.init(num_cpus=1)
    ref = skate.put(1)
    skate.shutdown()
    with pytest.raises(skate.exceptions.SkateError):
        skate.get(ref, timeout=10)


def test_in_a_task_the_runtime_is_there() -> None:
    skate.init(num_cpus=1)

    @skate.remote
    def look() -> tuple[bool, str]:
        return skate.is_initialized(), skate.init(ignore_reinit_error=True)["node_id"]

    assert skate.get(look.remote()) == (True, skate.get_runtime_context().get_node_id())


# --- arguments --------------------------------------------------------------------------------------------------------


def test_resources_are_what_init_was_told() -> None:
    skate.init(num_cpus=3, num_gpus=2, resources={"licence": 1.5}, object_store_memory=64 << 20)
    total = skate.cluster_resources()
    assert total["CPU"] == 3
    assert total["GPU"] == 2
    assert total["licence"] == 1.5
    assert total["object_store_memory"] == 64 << 20


def test_numbers_of_numpy_and_paths_are_taken_as_what_they_are(tmp_path: Path) -> None:
    skate.init(
        num_cpus=np.float32(2),
        num_gpus=np.int64(1),
        object_store_memory=np.int64(64 << 20),
        memory_threshold=np.float64(0.9),
        infeasible_grace_s=np.float64(1.0),
        spill_directory=tmp_path,
        _memory=2e9,
    )
    total = skate.cluster_resources()
    assert [total[name] for name in ("CPU", "GPU", "memory")] == [2, 1, 2e9]


def test_without_arguments_there_is_a_cpu_for_each_core_and_no_gpu() -> None:
    skate.init()
    assert skate.cluster_resources()["CPU"] >= 1
    assert skate.cluster_resources().get("GPU", 0) == 0


def test_no_cpus_at_all_still_runs_tasks_that_need_none() -> None:
    skate.init(num_cpus=0)
    assert skate.get(double.options(num_cpus=0).remote(5)) == 10


def test_namespace() -> None:
    skate.init(num_cpus=1, namespace="mine")
    assert skate.get_runtime_context().namespace == "mine"
    inside = skate.remote(lambda: skate.get_runtime_context().namespace)
    assert skate.get(inside.remote()) == "mine"


def test_environment_of_the_whole_job() -> None:
    skate.init(num_cpus=1, runtime_env={"env_vars": {"COLOUR": "green", "SIZE": "9"}})
    look = skate.remote(lambda *names: [__import__("os").environ.get(name) for name in names])
    assert skate.get(look.remote("COLOUR", "SIZE")) == ["green", "9"]
    own = look.options(runtime_env={"env_vars": {"SIZE": "10"}})
    assert skate.get(own.remote("COLOUR", "SIZE")) == ["green", "10"], "a task's own variables are added to the job's"


def test_what_ray_programs_pass_is_accepted(tmp_path: Path) -> None:
    without_effect: dict[str, Any] = dict.fromkeys(NO_EFFECT["init"], None)
    skate.init(
        num_cpus=1,
        configure_logging=True,
        logging_level="error",
        _temp_dir=str(tmp_path / "ray makes it"),
        _memory=10**9,
        _node_ip_address="127.0.0.1",
        _metrics_export_port=8080,
        **without_effect | {"_system_config": {"any": 1}, "include_dashboard": False},
    )
    assert skate.get(double.remote(1)) == 2
    assert not (tmp_path / "ray makes it").exists()


def test_the_spill_directory_may_be_given_as_in_ray(tmp_path: Path) -> None:
    directory = tmp_path / "ray makes it"
    with skate.init(num_cpus=1, object_spilling_directory=str(directory), object_store_memory=STORE_BYTES_LEAST):
        kept = [skate.put(bytes(STORE_BYTES_LEAST // 2)) for _ in range(4)]
        daemon = Path(f"/proc/{current.get_runtime().welcome.daemon_pid}/fd")
        opened = [os.readlink(descriptor) for descriptor in daemon.iterdir()]
        assert any(path.startswith(str(directory)) for path in opened), opened
        del kept


def test_private_arguments_of_ray_have_no_effect() -> None:
    with skate.init(num_cpus=1):
        ref = skate.put(1, _owner=None, _tensor_transport="object_store")
        assert skate.get(ref, _use_object_store=True) == 1
        with pytest.raises(ValueError, match="the process that calls put"):
            skate.put(1, _owner=ref)


def test_the_documentation_says_which_arguments_have_no_effect_and_why() -> None:
    of_init = [f"| `{name}` | {why} |" for name, why in NO_EFFECT["init"].items()]
    others = [
        f"| `{call}({name}=)` | {why} |"
        for call, arguments in NO_EFFECT.items()
        if call != "init"
        for name, why in arguments.items()
    ]
    for page, rows in (("init.md", of_init), ("coming-from-ray.md", others)):
        text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text()
        table = text.partition("| argument | why it has no effect |\n|---|---|\n")[2].partition("\n\n")[0]
        assert table.splitlines() == rows


@pytest.mark.parametrize(
    ("arguments", "error", "names"),
    [
        ({"num_cpus": -1}, ValueError, "num_cpus"),
        ({"num_cpus": "2"}, (TypeError, ValueError), "num_cpus"),
        ({"num_cpus": True}, (TypeError, ValueError), "num_cpus"),
        ({"num_cpus": float("nan")}, ValueError, "num_cpus"),
        ({"num_cpus": float("inf")}, ValueError, "num_cpus"),
        ({"num_cpus": 1e17}, ValueError, "num_cpus"),
        ({"num_cpus": 0.00001}, ValueError, "num_cpus"),
        ({"num_gpus": -1}, ValueError, "num_gpus"),
        ({"num_gpus": 10**17}, ValueError, "num_gpus"),
        ({"_memory": -1}, ValueError, "_memory"),
        ({"_memory": "1GB"}, ValueError, "_memory"),
        ({"num_gpus": 1.5}, (TypeError, ValueError), "num_gpus"),
        ({"resources": {"CPU": 2}}, ValueError, "num_cpus"),
        ({"resources": {"licence": -2}}, ValueError, "licence"),
        ({"resources": ["licence"]}, (TypeError, ValueError), "resources"),
        ({"object_store_memory": 10}, ValueError, "object_store_memory"),
        ({"object_store_memory": "1GB"}, (TypeError, ValueError), "object_store_memory"),
        ({"object_store_memory": True}, (TypeError, ValueError), "object_store_memory"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, (TypeError, ValueError), "env_vars"),
        ({"logging_level": "loud"}, (TypeError, ValueError), "(?i)level"),
        ({"namespace": 3}, (TypeError, ValueError), "namespace"),
        ({"namespace": 0}, (TypeError, ValueError), "namespace"),
        ({"spill_directory": "/nonexistent/folder"}, ValueError, "spill_directory"),
        ({"spill_directory": 0}, TypeError, "spill_directory"),
        ({"memory_threshold": 7}, ValueError, "memory_threshold"),
        ({"infeasible_grace_s": "x"}, ValueError, "infeasible_grace_s"),
        ({"store_full_grace_s": float("inf")}, ValueError, "store_full_grace_s"),
        ({"idle_worker_s": -1}, ValueError, "idle_worker_s"),
        ({"log_to_driver": "no"}, TypeError, "log_to_driver"),
        ({"num_cpu": 2}, TypeError, "num_cpu"),
        ({"address": "somewhere"}, ValueError, "address"),
        ({"address": "ray://10.0.0.1"}, ValueError, "address='ray://10.0.0.1'.*skate://host:port"),
        ({"address": "ray://10.0.0.1:1", "num_cpus": 2}, ValueError, "num_cpus=2.*'ray://10.0.0.1:1'"),
        ({"address": 6380}, ValueError, "address=6380"),
        ({"job_config": {"runtime_env": {}}}, TypeError, "JobConfig"),
        ({"logging_config": "JSON"}, TypeError, "LoggingConfig"),
        ({"address": "10.0.0.1:6379", "num_cpus": 2}, ValueError, "num_cpus"),
        ({"address": "10.0.0.1:6379"}, ConnectionError, "skate start --address"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_named_and_starts_nothing(arguments: dict[str, Any], error: Any, names: str) -> None:
    with pytest.raises(error, match=names):
        skate.init(**arguments)
    assert not skate.is_initialized()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SKATE_WAIT_NOTICE_S", "banana"),
        ("SKATE_WAIT_NOTICE", "off"),
        ("SKATE_PARTITION_GRACE_S", "-1"),
        ("SKATE_TEST_SCHEDULING_DELAY_MS", "slow"),
        ("SKATE_ADDRESS", "nonsense"),
    ],
)
def test_a_bad_variable_is_named_and_starts_nothing(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable}={value}: it may be"):
        skate.init()
    assert not skate.is_initialized()


def test_an_address_that_a_variable_names_is_said_to_come_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKATE_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="the address is that of SKATE_ADDRESS"):
        skate.init()
    with pytest.raises(ValueError, match=r"init\(num_cpus=2\) with SKATE_ADDRESS=127.0.0.1:1: what the node has"):
        skate.init(num_cpus=2)
    with pytest.raises(ConnectionError) as error:
        skate.init("127.0.0.1:2")
    assert "SKATE_ADDRESS" not in str(error.value)


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_program_that_never_calls_shutdown_ends_in_silence(tmp_path: Path) -> None:
    done = run_program(
        tmp_path / "program.py",
        """
import skate

@skate.remote
def f(x):
    return x + 1

print(skate.get(f.remote(1)))
kept = f.remote(2)
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_a_program_that_ends_while_tasks_run_ends_in_silence(tmp_path: Path) -> None:
    done = run_program(
        tmp_path / "program.py",
        """
import threading
import skate

skate.init(num_cpus=1)

@skate.remote
def endless():
    threading.Event().wait()

refs = [endless.remote() for _ in range(3)]
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_raises_shows_its_own_error_and_exits_with_1(tmp_path: Path) -> None:
    done = run_program(tmp_path / "program.py", "import skate\nskate.init(num_cpus=1)\nraise RuntimeError('mine')\n")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: mine")
    assert done.stderr.count("Traceback") == 1


def test_the_exit_code_of_a_program_is_its_own(tmp_path: Path) -> None:
    done = run_program(tmp_path / "program.py", "import skate, sys\nskate.put(1)\nsys.exit(7)\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_skate_can_be_used_from_an_atexit_handler(tmp_path: Path) -> None:
    done = run_program(
        tmp_path / "program.py",
        """
import atexit
import skate

skate.init(num_cpus=1)

@atexit.register
def last():
    print(skate.get(skate.remote(abs).remote(-3)))
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_bug_in_the_io_thread_is_an_error_for_whoever_waits_and_no_hang() -> None:
    with skate.init(num_cpus=1):
        runtime = current.get_runtime()

        def fail(*_: Any) -> None:
            raise ZeroDivisionError("of the test")

        runtime._handlers[Results] = fail
        pending = skate.remote(lambda: 1).remote().future()
        with pytest.raises(InternalError, match="of the test"):
            pending.result(WITHIN_S)
        with pytest.raises(InternalError):
            skate.remote(lambda: 2).remote()
    with skate.init(num_cpus=1):
        assert skate.get(skate.remote(lambda: 3).remote()) == 3


#: What programs written for Ray look for in what init() returns; those that Skate has.
RAYS_KEYS = {
    "node_ip_address", "redis_address", "object_store_address", "raylet_socket_name", "webui_url", "session_dir",
    "metrics_export_port", "gcs_address", "address", "dashboard_agent_listen_port", "node_id",
}  # fmt: skip
THERE = {"node_ip_address", "gcs_address", "address", "node_id"}


@pytest.mark.parametrize("where", ["alone", "cluster", "outside"])
def test_the_context_has_the_keys_that_it_has_in_ray(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "alone":
        cluster, arguments = None, []
    else:
        cluster = Cluster(initialize_head=True)
        monkeypatch.setenv("SKATE_TOKEN", cluster._token)
        arguments = [("skate://" if where == "outside" else "") + cluster.address]
    with skate.init(*arguments) as context:
        assert set(context) >= RAYS_KEYS
        assert context.address_info == dict(context)
        for key in RAYS_KEYS:
            assert context[key] == context.address_info[key]
            assert (context[key] is not None) == (key in THERE), key
        assert context["node_ip_address"] == "127.0.0.1"
        assert context["gcs_address"] == (context["address"] if cluster is None else cluster.address)
        assert context["node_id"] == skate.get_runtime_context().get_node_id()
        assert context.dashboard_url is None
        assert context.python_version == platform.python_version()
        assert context.ray_version
    if cluster is not None:
        cluster.shutdown()


def test_nodes_tell_whether_they_live_by_both_names() -> None:
    with Cluster(initialize_head=True, connect=True) as cluster:
        second = cluster.add_node()
        assert [(node["Alive"], node["alive"]) for node in skate.nodes()] == [(True, True)] * 2
        cluster.remove_node(second)
        cluster.wait_for_nodes()
        assert {node["NodeID"]: (node["Alive"], node["alive"]) for node in skate.nodes()}[second.node_id] == (
            False,
            False,
        )
        skate.shutdown()
    with skate.init(num_cpus=1):
        assert [(node["Alive"], node["alive"]) for node in skate.nodes()] == [(True, True)]


def test_a_thread_of_a_library_does_not_bring_skate_back() -> None:
    """The program shuts Skate down between two calls of the thread."""
    used, shut_down, raised = threading.Event(), threading.Event(), []

    def work() -> None:
        never_start()
        assert skate.get(skate.put(1)) == 1
        used.set()
        shut_down.wait(WITHIN_S)
        try:
            skate.put(2)
        except NotInitializedError as error:
            raised.append(str(error))

    skate.init(num_cpus=1)
    thread = threading.Thread(target=work)
    thread.start()
    assert used.wait(WITHIN_S)
    skate.shutdown()
    shut_down.set()
    thread.join()
    assert len(raised) == 1
    assert not skate.is_initialized()
