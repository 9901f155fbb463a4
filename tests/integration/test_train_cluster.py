"""train.run on several nodes: where each rank stands, made-up GPUs, and nodes that come and go."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import skate
from host_cluster import HostCluster
from skate import train
from skate.cluster_utils import Cluster
from waiting import wait_for

#: What torchrun sets; `ROLE` and `GROUP` are its words for all workers and for a machine.
TORCHRUN = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("MASTER_ADDR", "MASTER_PORT"),
    *(f"TORCHELASTIC_{name}" for name in ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS", "USE_AGENT_STORE")),
]


def test_ranks_of_a_node_follow_each_other_and_each_has_its_gpus(tmp_path: Path) -> None:
    def fit() -> None:
        here = train.context()
        names = [*TORCHRUN, "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME"]
        train.report(
            {
                **{name: os.environ[name] for name in names},
                "node": skate.get_runtime_context().get_node_id(),
                "devices": list(here.devices),
            }
        )

    with Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 4}) as cluster:
        cluster.add_node(num_cpus=2, num_gpus=2)
        cluster.connect()
        result = train.run(fit, workers=3, failures=5, resources_per_worker={"CPU": 1, "GPU": 2}, path=tmp_path)
        skate.shutdown()
    rows = sorted(result.history, key=lambda row: row["rank"])
    assert [row["RANK"] for row in rows] == ["0", "1", "2"]
    assert {row["WORLD_SIZE"] for row in rows} == {"3"}
    sizes = [sum(other["node"] == row["node"] for other in rows) for row in rows]
    assert sorted(sizes) == [1, 2, 2]
    assert [row["LOCAL_WORLD_SIZE"] for row in rows] == [str(size) for size in sizes]
    places = [(row["GROUP_RANK"], row["LOCAL_RANK"]) for row in rows]
    assert places in ([("0", "0"), ("0", "1"), ("1", "0")], [("0", "0"), ("1", "0"), ("1", "1")])
    for row, size in zip(rows, sizes):
        visible = row["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(set(visible)) == 2 * size
        # The first GPU of a rank has the number that programs for torchrun expect, and ranks share none.
        local = int(row["LOCAL_RANK"])
        assert row["devices"] == [local, local + size]
        together = [other for other in rows if other["node"] == row["node"]]
        assert sorted(device for other in together for device in other["devices"]) == list(range(2 * size))
    assert {row["MASTER_ADDR"] for row in rows} == {"127.0.0.1"}
    assert {row["GLOO_SOCKET_IFNAME"] for row in rows} == {"lo"}
    assert len({(row["MASTER_PORT"], row["TORCHELASTIC_RUN_ID"]) for row in rows}) == 1
    assert {(row["TORCHELASTIC_RESTART_COUNT"], row["TORCHELASTIC_MAX_RESTARTS"]) for row in rows} == {("0", "5")}
    assert {(row["GROUP_WORLD_SIZE"], row["ROLE_NAME"]) for row in rows} == {("2", "default")}
    assert [(row["ROLE_RANK"], row["ROLE_WORLD_SIZE"]) for row in rows] == [(str(rank), "3") for rank in range(3)]


def test_an_elastic_run_goes_on_with_what_is_left_and_grows_again_after_a_checkpoint(tmp_path: Path) -> None:
    go_on = tmp_path / "there-is-room"

    def fit() -> None:
        here = train.context()
        for step in range(train.restore(), 100):
            if here.world_size == 1:
                wait_for(go_on.exists, 30, "room")
            train.report({"restarts": here.restarts}, checkpoint={"step": step})
            if here.restarts == 0 and step == 1:
                threading.Event().wait()
            if here.restarts == 2:
                return

    with Cluster(initialize_head=True) as cluster:
        lost = cluster.add_node(num_cpus=1)
        cluster.connect()

        def disturb(result: train.Result, row: dict[str, Any]) -> None:
            checkpoint = result.checkpoint
            if row["restarts"] == 0 and checkpoint is not None and checkpoint.step == 1 and lost in cluster.nodes:
                cluster.remove_node(lost, allow_graceful=False)

        def add() -> None:
            wait_for(lambda: len(result_attempts()) == 2, 30, "the second attempt")
            cluster.add_node(num_cpus=1)
            go_on.touch()

        training: list[train.Result] = []

        def remember(result: train.Result, row: dict[str, Any]) -> None:
            training[:] = [result]

        def result_attempts() -> list[train.Attempt]:
            return [each for each in training[0].attempts if each.workers] if training else []

        adder = threading.Thread(target=add)
        adder.start()
        result = train.run(fit, workers=(1, 2), failures=1, path=tmp_path / "run", callbacks=[remember, disturb])
        adder.join()
        skate.shutdown()
    assert [attempt.workers for attempt in result.attempts] == [2, 1, 2]
    assert isinstance(result.attempts[0].error, skate.exceptions.SkateError)
    assert result.attempts[1].error is None  # it made place, which is no failure
    by_step = {row["step"]: row["workers"] for row in result.history}
    assert [by_step[step] for step in sorted(by_step)] == [2, 2, *[1] * (len(by_step) - 3), 2]
    assert len(by_step) >= 4


def test_a_run_that_needs_a_node_that_has_died_says_so_and_what_killed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.group, "BACK_WITHIN_S", 0.0)

    def fit() -> None:
        train.report({"node": skate.get_runtime_context().get_node_id()})
        threading.Event().wait()

    with Cluster(initialize_head=True) as cluster:
        lost = cluster.add_node(num_cpus=1)
        cluster.connect()

        def kill(result: train.Result, row: dict[str, Any]) -> None:
            if len(result.history) == 2:
                cluster.remove_node(lost, allow_graceful=False)

        with pytest.raises(skate.exceptions.ActorDiedError) as raised:
            train.run(fit, failures=1, path=tmp_path, callbacks=[kill])
        assert "has room for 1 of these workers" in str(raised.value.__cause__)
        skate.shutdown()


ON_HOSTS = """
from skate import train

def fit():
    import os
    import torch
    train.torch.join()
    total = torch.tensor([train.context().rank + 1])
    torch.distributed.all_reduce(total)
    names = ("LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
    train.report({"total": total, **{name: os.environ[name] for name in names}})
"""


@pytest.mark.timeout(150)
def test_hosts_with_addresses_of_their_own_train_together(host_cluster: HostCluster, tmp_path: Path) -> None:
    """Here the name of each host stands for 127.0.0.1, as on many machines: gloo must not believe that."""
    driver = host_cluster.driver(host_cluster.second)
    driver.do(ON_HOSTS)
    driver.do(f"result = train.run(fit, resources_per_worker={{'CPU': 2}}, path={str(tmp_path / 'run')!r})", 120)
    rows = sorted(driver.do("result.history"), key=lambda row: row["rank"])
    assert [row["total"] for row in rows] == [3, 3]
    assert [(row["LOCAL_RANK"], row["GROUP_RANK"]) for row in rows] == [("0", "0"), ("0", "1")]
    assert {row["GLOO_SOCKET_IFNAME"] for row in rows} == {"eth0"}
    assert {row["MASTER_ADDR"] for row in rows} <= {host_cluster.second.address, host_cluster.third.address}
