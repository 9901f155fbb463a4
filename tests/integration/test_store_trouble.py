"""A store that cannot be written while its cluster runs: what needs it waits, all else goes on, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skate
from skate._control.storage.errors import StorageLocked
from skate._control.storage.sqlite import SqliteStorage
from skate.cli.asking import Asking
from skate.cli.trouble import Trouble
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for


class Told:
    """What drivers are told, on the standard error of this one."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.text = ""

    def wait_for(self, what: str) -> None:
        def is_told() -> bool:
            self.text += self._capfd.readouterr().err
            return what in self.text

        wait_for(is_told, WITHIN_S, f"the driver to be told {what!r}, after {self.text!r}")


@contextmanager
def kept(store: Path) -> Iterator[Cluster]:
    with Cluster(initialize_head=True, store=str(store)) as cluster:
        cluster.connect()
        yield cluster
        skate.shutdown()


def ask(cluster: Cluster, what: str) -> Any:
    with Asking(cluster._control_address, cluster._token.encode()) as asking:
        return asking.ask(what)


def service(store: Path) -> int:
    """The process that has the store, as its lock says."""
    return int(json.loads((store / "lock").read_text())["pid"])


@skate.remote
def half(number: int) -> int:
    return number // 2


def test_what_needs_a_full_disk_waits_and_goes_on_when_there_is_room(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = Told(capfd)
    with ThreadPoolExecutor(1) as threads, kept(small_disk / "store") as cluster:
        assert skate.kv.put("before", b"1")
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1400 << 10))
        late = threads.submit(skate.kv.put, "late", os.urandom(900 << 10))
        told.wait_for("cannot keep what it is told. The store")
        told.wait_for("SQLite says: database or disk is full")
        assert skate.get([half.remote(number) for number in range(20)]) == [number // 2 for number in range(20)]
        assert not late.done()
        about = ask(cluster, "store")
        assert about["waiting"] >= 1
        assert about["trouble"]["next"] == "make room on that disk."
        assert len(ask(cluster, "nodes")) == 1, "people are answered all the same"
        with pytest.raises(skate.exceptions.GetTimeoutError, match="not been able to write its store"):
            skate.get(Keeper.remote().get.remote(), timeout=1.0)
        ballast.unlink()
        assert late.result(WITHIN_S)
        told.wait_for("can write its store again: what has waited goes on.")
        assert ask(cluster, "store")["trouble"] is None
        os.kill(service(small_disk / "store"), signal.SIGKILL)
        assert skate.kv.get("before") == b"1"
        assert len(skate.kv.get("late") or b"") == 900 << 10, "it was acknowledged, so it is there"
        events = [event["text"] for event in ask(cluster, "store")["events"]]
        assert "nothing could be written" in events[0]
        assert "goes on with the cluster, as number 2" in events[1]


@skate.remote(num_cpus=0)
class Keeper:
    def get(self) -> int:
        return 1


def test_a_cluster_whose_store_is_lost_does_not_begin_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    told = Told(capfd)
    with ThreadPoolExecutor(1) as threads, kept(store) as cluster:
        assert skate.kv.put("before", b"1")
        about = ask(cluster, "cluster")
        pid = service(store)
        os.rename(store, away)
        late = threads.submit(skate.kv.put, "late", b"2")
        told.wait_for("was removed while it was in use")
        os.kill(pid, signal.SIGKILL)
        told.wait_for(f"It could not be started again: There is no store in {store}.")
        assert skate.get(half.remote(4)) == 2
        assert not store.exists(), "an empty store would be that of a new cluster"
        assert not late.done()
        os.rename(away, store)
        assert late.result(WITHIN_S), "the driver's node says again what was not written"
        told.wait_for("answers again")
        assert skate.kv.get("before") == b"1"
        after = ask(cluster, "cluster")
        assert (after["cluster_id"], after["began_at"]) == (about["cluster_id"], about["began_at"])


def test_a_service_refuses_an_empty_directory_in_the_place_of_its_store(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    with kept(store) as cluster:
        pid, told = service(store), Told(capfd)
        os.rename(store, away)
        store.mkdir()
        os.kill(pid, signal.SIGKILL)
        told.wait_for("It could not be started again: There is no store in")
        with pytest.raises(Trouble):
            ask(cluster, "cluster")
        wait_for(lambda: make_store(store, "another"), WITHIN_S, "the store of another cluster")
        told.wait_for("belongs to another cluster")
        for name in os.listdir(store):
            os.unlink(store / name)
        os.rmdir(store)
        os.rename(away, store)
        told.wait_for("answers again")


def make_store(store: Path, cluster_id: str) -> bool:
    """Whether that worked: a service that looks whether it can start has the lock for a moment."""
    try:
        SqliteStorage(store, cluster_id).close()
    except StorageLocked:
        return False
    return True
