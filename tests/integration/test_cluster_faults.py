"""Nodes that freeze, a control service that does not answer, drivers from outside."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import msgspec
import pytest

import skate
from skate._node.launch import command
from skate._node.lobby import enter, nodes_of, public_nodes
from skate._node.main import ClusterConfig, NodeConfig
from skate._wire.channel import Channel
from skate._wire.messages import Hello
from skate.cli.asking import Asking
from skate.cli.trouble import Trouble
from skate.cluster_utils import Cluster, ClusterNode
from skate.util import placement_group
from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote
def node_id(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return skate.get_runtime_context().get_node_id()


def ids() -> set[str]:
    return {node["NodeID"] for node in skate.nodes() if node["Alive"]}


class Frozen:
    """A process that stands still."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def test_a_node_that_freezes_is_dead_and_joins_anew_when_it_wakes(cluster: Cluster) -> None:
    node: ClusterNode = cluster.add_node(num_cpus=2)
    wait_for(lambda: node.node_id in ids(), 10, "the node")
    refs = [node_id.remote(1.0) for _ in range(8)]
    wait_for(lambda: skate.available_resources().get("CPU", 0) == 0, 10, "all CPUs to be in use")
    before = node.node_id
    with Frozen(node.pid):
        wait_for(lambda: node.node_id not in ids(), 10, "its death to be known")
        where = set(skate.get(refs))
        assert cluster.nodes[0].node_id in where
    cluster.wait_for_nodes()
    assert node.is_alive(), "it is the same process"
    assert before not in ids()
    assert node.node_id in ids(), "and is known by its new id"
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    assert skate.get(node_id.options(scheduling_strategy=there).remote()) == node.node_id
    assert set(skate.get([node_id.remote(0.3) for _ in range(8)])) == ids()


def test_running_work_goes_on_without_the_control_service(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    node = cluster.add_node(num_cpus=2, resources={"second": 2})
    far = node_id.options(resources={"second": 1})
    assert skate.get(far.remote()) == node.node_id

    @skate.remote(resources={"second": 0.1}, num_cpus=0)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    counter = Counter.remote()
    assert skate.get(counter.add.remote()) == 1
    with Frozen(cluster._control.pid):
        assert skate.get([counter.add.remote() for _ in range(100)]) == list(range(2, 102))
        assert skate.get(far.remote(0.1)) == node.node_id
        assert skate.get([node_id.remote() for _ in range(100)])
        late = Counter.remote()  # this needs it, and waits
        waiting = late.add.remote()
        assert skate.wait([waiting], timeout=0.5) == ([], [waiting])
        told = ""

        def is_told(what: str) -> bool:
            nonlocal told
            told += capfd.readouterr().err
            return f"the control service of the cluster, at {cluster.address}, {what}" in told

        wait_for(lambda: is_told("does not answer"), 10, "the driver to be told what its calls wait for")
        with pytest.raises(skate.exceptions.GetTimeoutError) as caught:
            skate.get(waiting, timeout=0.5)
        assert f"the control service of the cluster, at {cluster.address}, has not answered" in str(caught.value)
    assert skate.get(waiting) == 1
    with pytest.raises(skate.exceptions.GetTimeoutError) as caught:
        skate.get(far.remote(60.0), timeout=2.0)
    assert "control service" not in str(caught.value)
    wait_for(lambda: is_told("answers again"), 10, "the driver to be told that it is back")
    time.sleep(1.0)  # longer than a look at who is alive takes
    assert ids() == {node.node_id for node in cluster.nodes}, "nobody was taken for dead"


def test_values_move_between_nodes_without_the_control_service(cluster: Cluster) -> None:
    cluster.add_node(num_cpus=2, resources={"second": 2})

    @skate.remote(resources={"second": 1})
    def make(size: int) -> bytes:
        return bytes(size)

    @skate.remote(resources={"second": 1})
    def length(value: bytes) -> int:
        return len(value)

    before = make.remote(30_000_000)
    skate.wait([before], fetch_local=False)
    with Frozen(cluster._control.pid):
        assert len(skate.get(before, timeout=30)) == 30_000_000
        assert len(skate.get(make.remote(5_000_000), timeout=30)) == 5_000_000, "made meanwhile"
        assert skate.get(length.remote(skate.put(bytes(5_000_000))), timeout=30) == 5_000_000
    assert skate.get(length.remote(before), timeout=30) == 30_000_000


def test_calls_that_wait_for_the_control_service_hear_of_a_shutdown(cluster: Cluster) -> None:
    calls: list[Callable[[], object]] = [
        lambda: skate.kv.get("key"),
        lambda: skate.pubsub.publish("topic", b""),
        lambda: skate.pubsub.subscribe("topic"),
        lambda: skate.get_actor("nobody"),
        lambda: skate.remote(Cluster).options(name="somebody").remote(),
        lambda: placement_group([{"CPU": 1}]),
    ]
    with ThreadPoolExecutor(len(calls)) as pool, Frozen(cluster._control.pid):
        waiting = [pool.submit(call) for call in calls]
        assert not wait(waiting, 0.5).done
        skate.shutdown()
        for future in waiting:
            with pytest.raises(skate.exceptions.NodeDiedError, match=r"skate\.shutdown\(\) was called"):
                future.result(10)


def test_a_driver_on_a_machine_that_is_no_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens nowhere: all connections to it are its own."""
    cluster.add_node(num_cpus=2, resources={"second": 1})
    skate.shutdown()
    monkeypatch.setenv("SKATE_TOKEN", cluster._token)
    skate.init(address=f"skate://{cluster.address}")
    nodes = {node.node_id for node in cluster.nodes}
    assert ids() == nodes, "it gives nothing, and so is not counted"
    assert skate.get_runtime_context().get_node_id() in nodes, "that of the head"
    assert set(skate.get([node_id.options(num_cpus=0).remote() for _ in range(10)])) <= nodes
    assert set(skate.get([node_id.remote(0.2) for _ in range(12)])) == nodes

    @skate.remote(resources={"second": 1})
    def read(refs: list[skate.ObjectRef[bytes]]) -> int:
        return len(skate.get(refs[0]))

    @skate.remote
    def through(refs: list[skate.ObjectRef[bytes]]) -> int:
        return skate.get(read.remote(refs))

    assert skate.get(through.remote([skate.put(bytes(3_000_000))])) == 3_000_000

    def is_all_free() -> bool:
        return skate.available_resources()["object_store_memory"] == skate.cluster_resources()["object_store_memory"]

    @skate.remote(resources={"second": 1})
    def make() -> bytes:
        return bytes(3_000_000)

    assert len(skate.get(make.remote())) == 3_000_000
    kept = skate.put(bytes(3_000_000))
    assert skate.get(read.remote([kept])) == 3_000_000
    wait_for(lambda: not is_all_free(), 10, "the copy to be counted")
    skate.shutdown()
    cluster.connect()
    wait_for(lambda: {job["state"] for job in jobs(cluster)[:-1]} == {"ended"}, 10, "the end of the job to be known")

    wait_for(is_all_free, 10, "the copies of what the driver owned to be freed")


def jobs(cluster: Cluster) -> list[dict[str, Any]]:
    """As the command line has them, in the order in which they began."""
    with Asking(cluster._control_address, cluster._token.encode()) as asking:
        for _ in range(200):  # more often than it takes to be told that questions have come
            found: list[dict[str, Any]] = asking.ask("jobs")
    return found


@pytest.mark.parametrize(("address", "why"), [("skate://127.0.0.1:1", "refused"), ("skate://{}", "token")])
def test_a_driver_that_is_not_let_in_is_told_why(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    skate.shutdown()
    monkeypatch.setenv("SKATE_TOKEN", "a" * 64)
    with pytest.raises(ConnectionError, match=why):
        skate.init(address=address.format(cluster.address))
    assert not skate.is_initialized()


def test_a_node_outlives_drivers_that_leave_before_they_have_joined(cluster: Cluster) -> None:
    (name,) = nodes_of(cluster.address)
    for words in (b"", b"\0", b"x" * 1000):
        with enter(name) as sock:
            sock.send(words)
    with subprocess.Popen(["true"]) as process:
        pass
    channel = Channel(enter(name))
    channel.send(Hello(process.pid, "driver"))  # killed behind that
    channel.close()
    assert skate.get(node_id.remote()) == cluster.nodes[0].node_id


def test_a_node_whose_starter_is_killed_meanwhile_ends_in_silence(cluster: Cluster) -> None:
    nobody, report = os.pipe()
    os.close(nobody)
    joined = ClusterConfig(control=cluster._control_address, token=cluster._token, host="127.0.0.1")
    config = NodeConfig(num_cpus=1, object_store_memory=100 << 20, cluster=joined, report_fd=report)
    done = subprocess.run(
        command("skate._node.main"), input=msgspec.json.encode(config) + b"\n", pass_fds=[report], capture_output=True
    )
    os.close(report)
    assert (done.returncode, done.stderr) == (0, b"")
    wait_for(lambda: len(ids()) == 1, 10, "it to say goodbye")


def test_a_driver_of_another_version_is_told_so(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    skate.shutdown()
    monkeypatch.setattr("skate._wire.handshake.PROTOCOL", 999)
    with pytest.raises(ConnectionError, match=r"protocol 999.*: use the same on both"):
        skate.init(cluster.address)
    with pytest.raises(Trouble, match="use the same on both") as caught:
        Asking(cluster._control_address, cluster._token.encode())
    assert "token" not in caught.value.next
    monkeypatch.undo()
    cluster.connect()
    assert skate.get(node_id.remote()) == cluster.nodes[0].node_id


def test_a_get_that_times_out_says_that_its_value_is_on_another_node(cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=1, resources={"second": 1})

    @skate.remote(resources={"second": 1})
    def make() -> bytes:
        return bytes(5_000_000)

    ref = make.remote()
    skate.wait([ref], fetch_local=False)
    with Frozen(node.pid), pytest.raises(skate.exceptions.GetTimeoutError) as caught:
        skate.get(ref, timeout=0.5)
    (reason,) = caught.value.reasons
    assert reason.endswith(f"is on its way from node {node.node_id}: 0 bytes of 4.8 MiB are here")
    assert len(skate.get(ref, timeout=30)) == 5_000_000


def test_a_get_that_only_the_control_service_can_help_says_so(cluster: Cluster) -> None:
    """The node that made the value is dead; who else has it only the service knows."""
    maker = cluster.add_node(num_cpus=0, resources={"maker": 1})
    cluster.add_node(num_cpus=0, resources={"reader": 1})

    @skate.remote(resources={"maker": 1}, num_cpus=0)
    def make() -> bytes:
        return bytes(5_000_000)

    @skate.remote(resources={"reader": 1}, num_cpus=0)
    def length(value: bytes) -> int:
        return len(value)

    ref = make.remote()
    assert skate.get(length.remote(ref)) == 5_000_000
    cluster.remove_node(maker, allow_graceful=False)
    wait_for(lambda: len(ids()) == 2, 10, "its death to be known")
    with Frozen(cluster._control.pid):
        with pytest.raises(skate.exceptions.GetTimeoutError) as caught:
            skate.get(ref, timeout=2.0)
        (reason,) = caught.value.reasons
        assert "is on another node, and which of them has a copy is not known: the control service" in reason
        assert f"at {cluster.address}, has not answered for" in reason
    assert len(skate.get(ref, timeout=30)) == 5_000_000


def test_a_transfer_goes_on_from_another_copy(cluster: Cluster) -> None:
    source = cluster.add_node(resources={"source": 1}, object_store_memory=200 << 20)
    cluster.add_node(resources={"reader": 4}, object_store_memory=200 << 20)

    @skate.remote(resources={"source": 1}, num_cpus=0)
    def make(seed: int) -> bytes:
        return random.Random(seed).randbytes(40_000_000)

    @skate.remote(resources={"reader": 1}, num_cpus=0)
    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    refs = [make.remote(seed) for seed in (1, 2)]
    expected = [hashlib.sha256(value).hexdigest() for value in skate.get(refs)]  # now there is a copy here
    reading = [digest.remote(ref) for ref in refs]
    with Frozen(source.pid):
        assert skate.get(reading) == expected


def test_nodes_end_with_the_program_that_made_them_also_without_a_control_service() -> None:
    program = """
import os, signal
from skate.cluster_utils import Cluster
cluster = Cluster(initialize_head=True)
cluster.add_node()
print(*(node.pid for node in cluster.nodes), flush=True)
os.kill(cluster._control.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) == 2
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 10, "the end of the nodes")


def test_placement_groups_of_a_driver_end_with_its_node(cluster: Cluster) -> None:
    program = f"""
import os, signal, sys
import skate
from skate._worker import current
skate.init("skate://{cluster.address}")
assert skate.util.placement_group([{{"CPU": 2}}]).wait(30)
print(current.get_runtime().welcome.daemon_pid, flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "SKATE_TOKEN": cluster._token}
    driver = subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=-1, stdout=-1, text=True)
    with driver:
        assert driver.stdout is not None
        daemon_pid = int(driver.stdout.readline())
        wait_for(lambda: skate.available_resources().get("CPU", 0) == 0, 10, "the group to have both CPUs")
        os.kill(daemon_pid, signal.SIGKILL)
        wait_for(lambda: skate.available_resources().get("CPU", 0) == 2, 20, "the CPUs to be free")
        driver.kill()


@pytest.mark.parametrize("tls", [False, True])
def test_nodes_hear_that_their_cluster_ends(tls: bool) -> None:
    with Cluster(initialize_head=True, tls=tls) as cluster:
        node = cluster.add_node()
        cluster._control.terminate()
        wait_for(lambda: not node.is_alive(), 10, "the end of the node")


def test_who_does_not_say_which_cluster_is_not_led_to_that_of_a_program(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes_of(cluster.address)
    assert not set(nodes_of(cluster.address)) & set(public_nodes())
    skate.shutdown()
    monkeypatch.setenv("SKATE_ADDRESS", cluster.address)  # this says which
    skate.init("auto")
    assert ids() == {node.node_id for node in cluster.nodes}


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"num_cpus": -1}, "num_cpus=-1"),
        ({"num_cpus": "x"}, "num_cpus='x'"),
        ({"object_store_memory": 1}, "object_store_memory=1"),
        ({"resources": {"CPU": 3}}, "CPU"),
        ({"labels": "x"}, "labels"),
    ],
)
def test_a_node_with_wrong_arguments_is_an_error_that_names_them(
    cluster: Cluster, wrong: dict[str, Any], what: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=what):
        cluster.add_node(**wrong)
