"""Several nodes: one program on all of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import skate
from shared_runtime import Sharing, wait_until_idle
from skate.cluster_utils import Cluster
from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from waiting import meet, wait_for


@contextlib.contextmanager
def two_nodes() -> Iterator[Cluster]:
    """A head with one CPU and a second node with two."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=2, resources={"second": 2})
        yield cluster


@pytest.fixture(scope="module")
def shared_nodes(sharing: Sharing) -> Iterator[Cluster]:
    """For tests that leave the nodes as they were: starting them takes longer than most of these tests."""
    assert not sharing.end()
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_nodes: Cluster) -> Iterator[Cluster]:
    """Two nodes, which other tests have had; this process is a driver at the head."""
    shared_nodes.connect()
    wait_until_idle()
    yield shared_nodes
    skate.shutdown()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Two nodes for a test that changes them, or has them busy when it ends; this process is a driver at the head."""
    with two_nodes() as cluster:
        cluster.connect()
        yield cluster
        skate.shutdown()


def living() -> set[str]:
    return {node["NodeID"] for node in skate.nodes() if node["Alive"]}


@skate.remote
def node_id(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return skate.get_runtime_context().get_node_id()


def test_what_ray_programs_pass_to_nodes_is_accepted() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": {"any": 1}})
    try:
        node = cluster.add_node(num_cpus=0, _system_config={"any": 1}, _labels=None, include_dashboard=False)
        assert node in cluster.nodes
        with pytest.raises(TypeError, match="no argument 'num_cpu'"):
            cluster.add_node(num_cpu=1)
        assert len(cluster.nodes) == 2
    finally:
        cluster.shutdown()


def test_a_task_that_fits_stays_on_its_node(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    assert {skate.get(node_id.remote()) for _ in range(20)} == {cluster.head_node.node_id}


def test_tasks_spread_over_all_nodes_when_there_are_enough_of_them(cluster: Cluster) -> None:
    where = Counter(skate.get([node_id.remote(0.1) for _ in range(30)]))
    assert set(where) == {node.node_id for node in cluster.nodes}
    assert where[cluster.worker_nodes[0].node_id] > where[cluster.nodes[0].node_id], "it has twice as many CPUs"


def test_leases_that_others_have_had_come_back_to_tasks_that_wait_behind_long_ones() -> None:
    """They were short, so many are sent to each worker; then they are long, and others need some of the workers."""

    @skate.remote
    def pid(seconds: float = 0.0) -> int:
        time.sleep(seconds)
        return os.getpid()

    @skate.remote(max_retries=0)
    def of_another_class() -> None:
        pass

    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        for _ in range(3):
            cluster.add_node(num_cpus=2)
        cluster.connect()
        least = []
        for _ in range(5):
            for _ in range(5):
                skate.get([pid.remote() for _ in range(200)])
            long = [pid.remote(0.2) for _ in range(40)]
            others = [of_another_class.remote() for _ in range(4)]
            least.append(min(Counter(skate.get(long)).values()))
            skate.get(others)
        skate.shutdown()
    assert median(least) >= 3, f"of 5 that each of eight workers could run, the idlest ran {least}"


def test_a_task_goes_to_the_node_that_has_what_it_asks_for(cluster: Cluster) -> None:
    second = node_id.options(resources={"second": 1}, num_cpus=0)
    assert set(skate.get([second.remote() for _ in range(10)])) == {cluster.worker_nodes[0].node_id}


def test_an_unknown_name_in_a_cluster_is_not_looked_for_on_another_node(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="there is no actor named 'unknown' in the namespace ''") as caught:
        skate.get_actor("unknown")
    assert "node of its own" not in str(caught.value)


def test_tasks_of_tasks_run_on_any_node(cluster: Cluster) -> None:
    @skate.remote
    def parent() -> list[str]:
        return skate.get([node_id.remote(0.1) for _ in range(12)])

    where = skate.get(parent.options(resources={"second": 1}).remote())
    assert set(where) == {node.node_id for node in cluster.nodes}


def test_an_error_comes_from_another_node(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def fail() -> None:
        raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        skate.get(fail.remote())


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 50_000, 100_001, 3_000_000, 30_000_000])
def test_values_of_any_size_come_from_another_node(cluster: Cluster, size: int) -> None:
    @skate.remote(resources={"second": 1})
    def make(seed: int) -> bytes:
        return random.Random(seed).randbytes(size)

    assert skate.get(make.remote(7)) == random.Random(7).randbytes(size)


def test_values_of_any_size_go_to_another_node(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def digest(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    for size in (1, 50_000, 100_001, 3_000_000, 30_000_000):
        data = random.Random(size).randbytes(size)
        assert skate.get(digest.remote(data)) == hashlib.sha256(data).hexdigest()
        assert skate.get(digest.remote(skate.put(data))) == hashlib.sha256(data).hexdigest()


def test_an_object_that_lies_on_one_node_is_read_by_many_tasks_on_another(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def length(data: bytes) -> int:
        return len(data)

    ref = skate.put(bytes(5_000_000))
    assert skate.get([length.remote(ref) for _ in range(50)]) == [5_000_000] * 50


def test_references_to_objects_elsewhere_travel(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def make() -> list[skate.ObjectRef[bytes]]:
        return [skate.put(bytes([index]) * 1_000_000) for index in range(3)]

    @skate.remote(num_cpus=1)
    def read(refs: list[skate.ObjectRef[bytes]]) -> list[bytes]:
        return [value[:1] for value in skate.get(refs)]

    refs = skate.get(make.remote())
    assert [value[:1] for value in skate.get(refs)] == [b"\0", b"\1", b"\2"]
    assert skate.get(read.remote(refs)) == [b"\0", b"\1", b"\2"]


def test_tasks_go_to_their_data_also_right_after_a_burst_there(cluster: Cluster) -> None:
    """The last report of that node counts what ran there for us; it is over, and we know."""
    there = cluster.worker_nodes[0].node_id

    @skate.remote(resources={"second": 1})
    def make(number: int) -> np.ndarray:
        return np.full(125_000, number)  # 1 MB: brought here sooner than a task there ends

    @skate.remote
    def read(array: np.ndarray) -> tuple[int, str]:
        return int(array[0]), skate.get_runtime_context().get_node_id()

    for _ in range(3):
        refs = [make.remote(number) for number in range(8)]
        skate.wait(refs, num_returns=8, fetch_local=False)
        assert [skate.get(read.remote(ref)) for ref in refs] == [(number, there) for number in range(8)]


def test_objects_are_freed_on_all_nodes(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def make() -> bytes:
        return bytes(5_000_000)

    @skate.remote(resources={"second": 1})
    def read(data: bytes) -> int:
        return len(data)

    # 100 MB fit into the store of each node: without freeing, the 21st would not.
    for _ in range(60):
        assert len(skate.get(make.remote())) == 5_000_000
        assert skate.get(read.remote(skate.put(bytes(5_000_000)))) == 5_000_000
    wait_for(lambda: skate.available_resources()["object_store_memory"] == 200 << 20, 10, "all memory to be free")


# -- actors ------------------------------------------------------------------------------------------------------------


@skate.remote
class Tally:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def where(self) -> tuple[str, int]:
        return skate.get_runtime_context().get_node_id(), os.getpid()


def test_a_full_store_names_holders_on_other_nodes() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=2, resources={"far": 2}, object_store_memory=64_000_000)
        cluster.connect()

        @skate.remote(resources={"far": 1}, num_cpus=0)
        class Holder:
            def make(self) -> np.ndarray[Any, Any]:
                return np.zeros(10_000_000, dtype=np.uint8)

            def hold(self, *arrays: np.ndarray[Any, Any]) -> None:
                self.arrays = arrays

            def fill(self) -> tuple[list[str], int]:
                with pytest.raises(skate.exceptions.ObjectStoreFullError) as caught:
                    skate.put(bytes(50_000_000))
                return [what for what, _ in caught.value.holders], os.getpid()

        holder = Holder.remote()
        near = skate.put(np.ones(10_000_000, dtype=np.uint8))
        made = holder.make.remote()
        skate.get(holder.hold.remote(made, near))
        holders, pid = skate.get(holder.fill.remote())
        assert cluster.head_node is not None
        head = cluster.head_node.node_id[:12]
        by = f": in use by worker pid {pid}"
        assert {what.partition(", owned by ")[2] for what in holders} == {
            f"driver pid {os.getpid()} on node {head} ({socket.gethostname()}){by}",
            f"this node, as a copy from another one{by}",
        }
        skate.shutdown()


def test_an_actor_lives_on_another_node(cluster: Cluster) -> None:
    actor = Tally.options(resources={"second": 1}).remote()
    assert skate.get([actor.add.remote() for _ in range(100)]) == list(range(1, 101))
    assert skate.get(actor.where.remote())[0] == cluster.worker_nodes[0].node_id


def test_a_named_actor_is_found_from_every_node(cluster: Cluster) -> None:
    actor = Tally.options(name="counter").remote()
    assert skate.get(actor.add.remote()) == 1

    @skate.remote(resources={"second": 1})
    def find() -> int:
        return skate.get(skate.get_actor("counter").add.remote())

    assert skate.get(find.remote()) == 2
    assert skate.util.list_named_actors() == ["counter"]


def test_a_handle_travels_to_another_node_and_keeps_its_actor(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def use(actor: skate.actor.ActorHandle) -> int:
        wait_for(lambda: skate.kv.get("dropped") is not None, 10, "the driver to have no handle any more")
        return skate.get(actor.add.remote())

    ref = use.remote(Tally.remote())
    skate.kv.put("dropped", b"")
    assert skate.get(ref) == 1


def test_an_actor_on_another_node_starts_again(cluster: Cluster) -> None:
    actor = Tally.options(resources={"second": 1}, max_restarts=1, max_task_retries=-1).remote()
    _, pid = skate.get(actor.where.remote())
    os.kill(pid, signal.SIGKILL)
    assert skate.get(actor.add.remote()) == 1
    assert skate.get(actor.where.remote())[1] != pid


def test_actors_are_placed_where_there_is_room(cluster: Cluster) -> None:
    actors = [Tally.options(num_cpus=1).remote() for _ in range(3)]
    where = Counter(node for node, _ in skate.get([actor.where.remote() for actor in actors]))
    assert where == {cluster.nodes[0].node_id: 1, cluster.nodes[1].node_id: 2}


@skate.remote
def occupy(me: int) -> int:
    """Keep a CPU until the key "go" is there."""
    skate.kv.put(f"occupied {me}", b"")
    wait_for(lambda: skate.kv.get("go") is not None, 40, "the CPU to be needed no longer")
    return me


def test_an_actor_without_options_starts_though_all_cpus_of_all_nodes_are_busy(own_cluster: Cluster) -> None:
    own_cluster.add_node(num_cpus=0)
    busy = [occupy.remote(me) for me in range(3)]
    wait_for(lambda: all(skate.kv.get(f"occupied {me}") is not None for me in range(3)), 20, "all CPUs to be in use")
    wait_for(lambda: "CPU" not in skate.available_resources(), 20, "all nodes to have reported that")
    actors = [Tally.remote() for _ in range(6)]
    where = Counter(node for node, _ in skate.get([actor.where.remote() for actor in actors], timeout=20))
    assert where == {own_cluster.nodes[0].node_id: 2, own_cluster.nodes[1].node_id: 4}, "in the proportion of the CPUs"
    with_cpu = Tally.options(num_cpus=1).remote().add.remote()
    assert skate.wait([with_cpu], timeout=0.5) == ([], [with_cpu])
    skate.kv.put("go", b"")
    assert skate.get([*busy, with_cpu], timeout=20) == [0, 1, 2, 1]


def test_actors_without_options_are_balanced_though_they_hold_nothing(cluster: Cluster) -> None:
    """One by one, so that nothing waits anywhere when the next one is placed."""
    actors = []
    where: Counter[str] = Counter()
    for _ in range(9):
        actors.append(Tally.remote())
        where[skate.get(actors[-1].where.remote())[0]] += 1
    assert where == {cluster.nodes[0].node_id: 3, cluster.nodes[1].node_id: 6}


# -- a node goes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gracefully", [True, False])
def test_tasks_of_a_node_that_is_gone_run_elsewhere(own_cluster: Cluster, gracefully: bool) -> None:
    third = own_cluster.add_node(num_cpus=4)
    refs = [node_id.remote(0.5) for _ in range(12)]
    wait_for(lambda: skate.available_resources().get("CPU", 0) == 0, 10, "all CPUs to be in use")
    own_cluster.remove_node(third, allow_graceful=gracefully)
    where = set(skate.get(refs))
    assert {node.node_id for node in own_cluster.nodes} <= where


def test_a_node_is_removed_once_however_it_ended(own_cluster: Cluster) -> None:
    third = own_cluster.add_node(num_cpus=1)
    os.kill(third.pid, signal.SIGKILL)
    own_cluster.remove_node(third)
    with pytest.raises(ValueError, match=r"is not in this cluster: it was removed already.*cluster\.nodes lists"):
        own_cluster.remove_node(third)
    assert third not in own_cluster.nodes


def test_a_task_without_retries_is_lost_with_its_node(own_cluster: Cluster) -> None:
    @skate.remote(resources={"third": 1}, max_retries=0)
    def hang() -> None:
        skate.kv.put("runs", b"")
        time.sleep(60)

    third = own_cluster.add_node(resources={"third": 1})
    ref = hang.remote()
    # Its resources are taken before it has arrived there, and until then it is not lost.
    wait_for(lambda: skate.kv.get("runs") is not None, 10, "the task to run")
    own_cluster.remove_node(third, allow_graceful=False)
    with pytest.raises(skate.exceptions.NodeDiedError, match="no retries left"):
        skate.get(ref)


def test_an_object_is_lost_with_the_only_node_that_had_it(own_cluster: Cluster) -> None:
    @skate.remote(resources={"third": 1})
    def make() -> bytes:
        return bytes(1_000_000)

    third = own_cluster.add_node(resources={"third": 1})
    kept, lost = make.remote(), make.remote()
    assert len(skate.get(kept)) == 1_000_000
    skate.wait([lost])
    own_cluster.remove_node(third, allow_graceful=False)
    with pytest.raises(skate.exceptions.ObjectLostError):
        skate.get(lost)
    assert len(skate.get(kept)) == 1_000_000, "there is a copy here"


def test_an_object_whose_owner_died_on_another_node_is_an_error_at_once(cluster: Cluster) -> None:
    """Also for those who know where it was."""

    @skate.remote(resources={"second": 1}, num_cpus=0)
    class Owner:
        def make(self) -> tuple[int, list[skate.ObjectRef[bytes]]]:
            self.ref = skate.put(bytes(3_000_000))
            return os.getpid(), [self.ref]

    @skate.remote
    def length(value: bytes) -> int:
        return len(value)

    owner = Owner.remote()
    pid, refs = skate.get(owner.make.remote())
    assert skate.wait(refs, fetch_local=False) == (refs, [])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(skate.exceptions.ActorDiedError):
        skate.get(owner.make.remote())
    began = time.monotonic()
    for attempt in (refs[0], length.remote(refs[0])):
        with pytest.raises(skate.exceptions.OwnerDiedError, match=str(pid)):
            skate.get(attempt, timeout=30)
    assert time.monotonic() - began < 4, "nothing was tried again and again"


def test_an_actor_of_a_node_that_is_gone_starts_on_another(own_cluster: Cluster) -> None:
    third = own_cluster.add_node(num_cpus=4)
    actor = Tally.options(num_cpus=3, max_restarts=1, max_task_retries=-1).remote()
    assert skate.get(actor.where.remote())[0] == third.node_id
    fourth = own_cluster.add_node(num_cpus=4)
    own_cluster.remove_node(third, allow_graceful=False)
    assert skate.get(actor.where.remote())[0] == fourth.node_id


def test_an_actor_that_may_not_start_again_is_dead(own_cluster: Cluster) -> None:
    third = own_cluster.add_node(num_cpus=4)
    actor = Tally.options(num_cpus=3).remote()
    assert skate.get(actor.where.remote())[0] == third.node_id
    own_cluster.remove_node(third, allow_graceful=False)
    with pytest.raises(skate.exceptions.ActorDiedError, match="its node is gone"):
        skate.get(actor.add.remote())


def test_what_no_node_can_run_is_an_error_that_says_why() -> None:
    with Cluster(initialize_head=True) as cluster:
        cluster.connect()
        with pytest.raises(skate.exceptions.TaskUnschedulableError, match="no node has so much of lamp"):
            skate.get(node_id.options(resources={"lamp": 1}).remote())
        skate.shutdown()


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_task_goes_to_its_data(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1}, num_cpus=0)
    def make() -> bytes:
        return bytes(30_000_000)

    @skate.remote
    def where(data: bytes) -> str:
        return skate.get_runtime_context().get_node_id()

    far, near = make.remote(), skate.put(bytes(30_000_000))
    skate.wait([far])
    for _ in range(3):
        assert skate.get(where.remote(far)) == cluster.worker_nodes[0].node_id
        assert skate.get(where.remote(near)) == cluster.nodes[0].node_id
    assert skate.get(node_id.remote()) == cluster.nodes[0].node_id, "tasks without data stay"


def test_a_task_goes_to_a_copy_of_its_data_too(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1}, num_cpus=0)
    def make() -> bytes:
        return bytes(30_000_000)

    @skate.remote
    def where(data: bytes) -> str:
        return skate.get_runtime_context().get_node_id()

    home, second = (node.node_id for node in cluster.nodes)
    read_by_driver, read_by_task = make.remote(), make.remote()
    skate.get(read_by_driver)
    assert skate.get(where.remote(read_by_driver)) == home
    assert skate.get(where.remote(read_by_task)) == second
    at_home = NodeAffinitySchedulingStrategy(home, soft=False)
    assert skate.get(where.options(scheduling_strategy=at_home).remote(read_by_task)) == home
    assert skate.get(where.remote(read_by_task)) == home


def test_tasks_that_read_the_same_data_run_on_all_nodes_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Two can run where the data is; the third waits for longer than it takes to bring the data to the other node."""

    @skate.remote(resources={"second": 1}, num_cpus=0)
    def make() -> bytes:
        return bytes(30_000_000)

    @skate.remote
    def read(data: bytes, me: int) -> int:
        return meet(tmp_path, me, 3)

    data = make.remote()
    skate.wait([data])
    assert skate.get([read.remote(data, me) for me in range(3)]) == [0, 1, 2]


def test_a_task_that_reads_data_elsewhere_can_be_cancelled(own_cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1}, num_cpus=0)
    def make() -> bytes:
        return bytes(1_000_000)

    @skate.remote
    def hang(data: bytes) -> None:
        time.sleep(60)

    data = make.remote()
    skate.wait([data])
    refs = [hang.remote(data) for _ in range(10)]
    for ref in reversed(refs):
        skate.cancel(ref)
    for ref in refs:
        with pytest.raises(skate.exceptions.TaskCancelledError):
            skate.get(ref)


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_what_is_printed_elsewhere_appears_at_the_driver(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    @skate.remote(resources={"second": 1})
    def say(text: str) -> None:
        print(text)

    skate.get(say.remote("hello from afar"))
    seen = ""

    def look() -> bool:
        nonlocal seen
        seen += "".join(capfd.readouterr())
        return "hello from afar" in seen

    wait_for(look, 10, "the line")


def test_all_processes_of_a_job_know_it(cluster: Cluster) -> None:
    @skate.remote
    def job() -> str:
        return skate.get_runtime_context().get_job_id()

    here = skate.get_runtime_context().get_job_id()
    assert set(skate.get([job.remote(), job.options(resources={"second": 1}).remote()])) == {here}


def test_a_driver_that_dies_takes_its_tasks_and_actors_along(own_cluster: Cluster, tmp_path: Path) -> None:
    program = f"""
import os, signal, time
import skate
skate.init(address={own_cluster.address!r}, log_to_driver=False)

@skate.remote(resources={{"second": 1}}, num_cpus=0)
def task(path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(600)

@skate.remote(resources={{"second": 1}}, num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

ref = task.remote({str(tmp_path / "task")!r})
actor = Actor.remote()
open({str(tmp_path / "actor")!r}, "w").write(str(skate.get(actor.pid.remote())))
while not os.path.exists({str(tmp_path / "task")!r}):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    for name in ("task", "actor"):
        pid = int((tmp_path / name).read_text())
        wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), 10, f"the end of the {name}")
    wait_for(lambda: skate.available_resources().get("second") == 2, 10, "what they held to be free")


def test_the_timeline_has_the_tasks_of_all_nodes(own_cluster: Cluster) -> None:
    skate.get([node_id.remote(0.1) for _ in range(12)])
    trace = skate.timeline()
    boxes = [event for event in trace if event["ph"] == "X"]
    titles = {event["pid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert len(boxes) == 12
    assert {titles[box["pid"]].partition(" of ")[2] for box in boxes} == {"node 1", "node 2"}


def test_nodes_that_join_at_the_same_time() -> None:
    with Cluster(initialize_head=True) as cluster:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: cluster.add_node(), range(8)))
        cluster.connect()
        everyone = {node.node_id for node in cluster.nodes}
        assert len(everyone) == 9
        wait_for(lambda: {node["NodeID"] for node in skate.nodes()} == everyone, 10, "all nodes")
        assert set(skate.get([node_id.remote(0.2) for _ in range(36)])) == everyone
        skate.shutdown()


def test_a_driver_that_connects_knows_of_all_nodes() -> None:
    with Cluster(initialize_head=True) as cluster:
        for _ in range(3):
            cluster.add_node()
        cluster.connect()
        for _ in range(3):
            assert {node["NodeID"] for node in skate.nodes()} == {node.node_id for node in cluster.nodes}
            cluster.add_node()
        skate.shutdown()
        cluster.add_node()  # no driver is told of it


@pytest.mark.parametrize("tls", [False, True])
def test_all_nodes_can_be_waited_for(tls: bool) -> None:
    with Cluster(initialize_head=True, shutdown_at_exit=False, tls=tls) as cluster:
        second = cluster.add_node(wait=False)
        cluster.wait_for_nodes()  # no driver is needed
        assert cluster.gcs_address == cluster.address
        skate.init(address=cluster.gcs_address)
        third = cluster.add_node(wait=False)
        cluster.wait_for_nodes(timeout=30)
        assert cluster.list_all_nodes() == [cluster.head_node, second, third]
        assert living() == {node.node_id for node in cluster.list_all_nodes()}
        cluster.remove_node(second, allow_graceful=False)
        cluster.wait_for_nodes()
        assert living() == {node.node_id for node in cluster.list_all_nodes()}
        os.kill(third.pid, signal.SIGKILL)
        wait_for(lambda: third.node_id not in living(), 20, "its end to be known")
        with pytest.raises(TimeoutError, match="2 nodes were added and not removed, and 1 and 1 of them are known"):
            cluster.wait_for_nodes(timeout=0.1)
        skate.shutdown()


def test_nodes_that_died_are_listed_as_dead() -> None:
    with Cluster(initialize_head=True) as cluster:
        second = cluster.add_node(num_cpus=2, labels={"zone": "b"}, node_name="second")
        third = cluster.add_node()
        cluster.remove_node(second, allow_graceful=False)
        cluster.wait_for_nodes()
        latecomer = cluster.add_node()  # it was not there when the second one died
        for place in (cluster.head_node, latecomer):
            assert place is not None
            skate.init(address=place._lobby)
            cluster.wait_for_nodes()
            dead = [node for node in skate.nodes() if not node["Alive"]]
            assert [(node["NodeID"], node["NodeName"], node["Labels"], node["Resources"]) for node in dead] == [
                (second.node_id, "second", {"zone": "b"}, {})
            ]
            assert living() == {node.node_id for node in cluster.nodes}
            assert skate.cluster_resources()["CPU"] == 3
            skate.shutdown()
        skate.init(address=cluster.address)
        cluster.remove_node(third)
        cluster.wait_for_nodes()
        assert [node["NodeID"] for node in skate.nodes() if not node["Alive"]] == [second.node_id, third.node_id]
        skate.shutdown()
