"""The control service dies, and is started again by its head: what it knew is there, and nothing else notices.

The service is killed with kill -9 at any moment, or kills itself at a named one. The test keeps its own account of what
was acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis_servers
import skate
from skate import kv
from skate._control.crash_points import VARIABLE
from skate.cli.asking import Asking
from skate.cli.trouble import Trouble
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

#: More than a journal keeps unconfirmed: a service that comes back empty could pass for healthy below that.
FRAMES = 80


@skate.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value

    def pid(self) -> int:
        return os.getpid()


@skate.remote
def put_many(prefix: str, count: int) -> list[bool]:
    """From the node that runs it."""
    return [kv.put(f"{prefix}{number}", b"v", overwrite=False) for number in range(count)]


@skate.remote
def here() -> str:
    return skate.get_runtime_context().get_node_id()


class Town:
    """A cluster of two nodes, and its control service, whichever process that is."""

    def __init__(self, store: Path | str) -> None:
        self.cluster = Cluster(store=str(store))
        self.head = self.cluster.add_node(num_cpus=2, resources={"head": 100})
        self.other = self.cluster.add_node(num_cpus=2, resources={"other": 100})
        self.cluster.connect(namespace="town")
        self.about = self.ask()

    def ask(self, what: str = "cluster") -> Any:
        with Asking(self.cluster._control_address, self.cluster._token.encode()) as asking:
            return asking.ask(what)

    def ask_again(self) -> Any:
        """Of a service that may not be there yet."""
        try:
            return self.ask()
        except Trouble:
            return None

    def kill(self) -> int:
        """The service; its pid."""
        pid: int = self.ask()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_successor(self, pid: int) -> dict[str, Any]:
        def look() -> Any:
            about = self.ask_again()
            return about if about and about["pid"] != pid and not about["recovering"] else None

        about: dict[str, Any] = wait_for(look, WITHIN_S, "the next control service to know everything")
        return about

    def node_ids(self) -> list[str]:
        return sorted(node["node_id"] for node in self.ask("nodes") if node["serves"])

    def close(self) -> None:
        skate.shutdown()
        self.cluster.shutdown()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "redis"])
def stored_town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    """With its state in a file, and on a chain of two servers."""
    servers = []
    if request.param == "redis":
        if not redis_servers.KINDS:
            pytest.skip("no redis-server and no valkey-server")
        servers = [redis_servers.Server(redis_servers.KINDS[number % len(redis_servers.KINDS)]) for number in range(2)]
    try:
        made = Town(redis_servers.address(servers) if servers else tmp_path / "store")
        yield made
        made.close()
    finally:
        for server in servers:
            server.end()


def test_after_two_deaths_of_the_service_all_is_as_it_was(stored_town: Town) -> None:
    """Values, names, actors, groups, and the ids of nodes; calls and tasks go on meanwhile."""
    town = stored_town
    kept = Counter.options(name="kept", lifetime="detached", resources={"other": 1}).remote()
    owned = Counter.options(name="owned").remote()
    group = skate.util.placement_group([{"other": 1, "CPU": 1}, {"head": 1}], strategy="SPREAD", name="pair")
    assert group.wait(WITHIN_S)
    inside = Counter.options(placement_group=group, placement_group_bundle_index=0, resources={"other": 0.5}).remote()
    pids = skate.get([each.pid.remote() for each in (kept, owned, inside)])
    for where in ("head", "other"):
        assert all(skate.get(put_many.options(resources={where: 1}).remote(where, FRAMES)))
    ids = town.node_ids()

    for death in (1, 2):
        before = skate.get(kept.add.remote())
        if death == 1:  # the head, which starts the service again, is back first
            os.kill(town.other.pid, signal.SIGSTOP)
        pid = town.kill()
        wait_for(lambda pid=pid: (about := town.ask_again()) and about["pid"] != pid, WITHIN_S, "the next service")
        os.kill(town.other.pid, signal.SIGCONT)
        assert skate.get(kept.add.remote()) == before + 1, "a call does not need the service"
        made = Counter.options(name=f"made {death}").remote()  # while not all nodes are back
        assert skate.get(made.add.remote(), timeout=WITHIN_S) == 1
        about = town.wait_for_successor(pid)
        assert about["cluster_id"] == town.about["cluster_id"]
        assert about["incarnation"] == town.about["incarnation"] + death
        assert town.node_ids() == ids
        found = [skate.get_actor(name) for name in ("kept", "owned", f"made {death}")]
        assert skate.get([found[0].pid.remote(), found[1].pid.remote(), inside.pid.remote()]) == pids
        assert not any(skate.get(put_many.options(resources={"other": 1}).remote("head", FRAMES))), "they are there"
        assert kv.put(f"after {death}", b"v", overwrite=False)
        assert skate.util.get_placement_group("pair").id == group.id
        assert (
            skate.get(here.options(placement_group=group, placement_group_bundle_index=0).remote())
            == town.other.node_id
        )
    skate.kill(kept)
    wait_for(lambda: "kept" not in skate.util.list_named_actors(), WITHIN_S, "the name to be free")
    skate.util.remove_placement_group(group)
    wait_for(lambda: skate.available_resources().get("other") == 100, WITHIN_S, "the bundle to be given back")


def test_actors_that_were_being_made_are_made_once(town: Town) -> None:
    """Two hundred at once, and the service dies twice while they come to life."""
    actors = [Counter.options(name=f"one of many {number}").remote() for number in range(60)]
    first = town.kill()
    actors += [Counter.remote() for _ in range(60)]
    town.wait_for_successor(first)
    town.kill()
    assert skate.get([actor.add.remote() for actor in actors], timeout=3 * WITHIN_S) == [1] * len(actors)
    pids = skate.get([actor.pid.remote() for actor in actors])
    assert len(set(pids)) == len(actors)
    alive = [it for it in town.ask("actors") if it["state"] == "alive"]
    assert len(alive) == len(actors)
    workers = [it["pid"] for it in town.ask("actors") if it["pid"]]
    assert sorted(workers) == sorted(pids)


@pytest.mark.parametrize("point", ["ledger.before_write", "storage.before_commit", "ledger.before_saying"])
def test_what_is_asked_for_while_the_service_dies_happens_once(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a named moment between a request and its answer."""
    monkeypatch.setenv(VARIABLE, f"{point}:{random.Random(point).randint(10, 25)}")
    town = Town(tmp_path / "store")
    try:
        for number in range(20):
            assert kv.put(f"k{number}", b"first", overwrite=False), "it was ours alone"
            assert not kv.put(f"k{number}", b"second", overwrite=False)
            assert kv.delete(f"k{number}") is True
            assert kv.get(f"k{number}") is None
        named = Counter.options(name="named").remote()
        with pytest.raises(ValueError, match="named"):
            Counter.options(name="named").remote()
        assert skate.get(named.add.remote()) == 1
        assert town.wait_for_successor(0)["incarnation"] == 2, "the moment came once"
    finally:
        town.close()


def test_names_are_given_once_however_often_the_service_dies(town: Town) -> None:
    """Killed between a registration and its answer, or near that."""
    kills = int(os.environ.get("SKATE_CONTROL_KILLS", "5"))
    chance = random.Random(7)
    made: list[Any] = []

    def register(number: int) -> None:
        made.append(Counter.options(name=f"killed at {number}").remote())

    for number in range(kills):
        pid = town.ask()["pid"]
        thread = threading.Thread(target=register, args=(number,))
        timer = threading.Timer(chance.uniform(0.0, 0.004), os.kill, (pid, signal.SIGKILL))
        timer.start()
        thread.start()
        thread.join()
        timer.join()
        town.wait_for_successor(pid)
    assert skate.get([actor.add.remote() for actor in made], timeout=WITHIN_S) == [1] * kills
    assert sorted(skate.util.list_named_actors()) == sorted(f"killed at {number}" for number in range(kills))
