"""What the head keeps: `skate start` goes on with it, `skate stop` decides about it, `skate store` shows it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from machine import COMMAND_S, SMALL, Machine
from netns import Network
from skate._control.state import tables
from skate._control.storage.interface import Put
from skate._control.storage.sqlite import SqliteStorage
from skate._control.storage.sqlite_file import FILE_NAME
from waiting import WITHIN_S, wait_for

WRITE = """
import sys
import skate

skate.init(sys.argv[1], namespace="here")


@skate.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Counter:
    def add(self):
        self.n = getattr(self, "n", 0) + 1
        return self.n


secret = {"env_vars": {"PASSWORD": "hunter2"}}
counter = Counter.options(name="counter", lifetime="detached", runtime_env=secret).remote()
skate.get(counter.add.remote())
skate.kv.put("rate", b"0.1")
skate.kv.put("blob", bytes(range(10)))
"""

ELSEWHERE = """
import sys
import skate

skate.init(sys.argv[1], namespace="here")


@skate.remote(num_cpus=0, resources={"other": 1})
class Counter:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n


counter = Counter.options(name="elsewhere", lifetime="detached", get_if_exists=True).remote()
print(skate.get(counter.add.remote(), timeout=30))
"""

READ = """
import sys
import skate

skate.init(sys.argv[1], namespace="here")
print(skate.kv.get("rate").decode())
if "actor" in sys.argv:
    print(skate.get(skate.get_actor("counter").add.remote(), timeout=30))
"""


def start(machine: Machine, port: str, *words: str, **more: str) -> str:
    """The cluster that runs then: "new", or the id of one that goes on."""
    told = machine.well("start", "--head", "--port", port, *SMALL, *words, **more)
    goes_on = re.search(r"goes on: ([0-9a-f]{16}), begun .* ago\.", told)
    assert goes_on or "A new cluster runs at" in told, told
    return goes_on[1] if goes_on else "new"


def kept(machine: Machine) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(machine.well("store", "status", "--json"))
    return about


def kill_all(machine: Machine) -> None:
    """As a power cut does: a node must not start the service again meanwhile."""
    for pid in [*machine.pids("node"), *machine.pids("control")]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: machine.pids() == [], WITHIN_S, "what was killed to be gone")


def change(store: Path, statement: str, *values: bytes) -> None:
    """As no service does it."""
    with contextlib.closing(sqlite3.connect(store / FILE_NAME, isolation_level=None)) as database:
        database.execute(statement, values)


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_head_that_was_killed_goes_on(machine: Machine, port: str) -> None:
    assert start(machine, port) == "new"
    machine.python(WRITE, f"127.0.0.1:{port}")
    id = kept(machine)["cluster_id"]
    kill_all(machine)
    assert start(machine, port) == id
    told = machine.python(READ, f"127.0.0.1:{port}", "actor").split()
    assert told == ["0.1", "1"], "the actor has started again, as max_restarts allows"
    machine.well("stop")


def test_a_head_that_was_stopped_goes_on_only_if_it_was_told_to_be_kept(machine: Machine, port: str) -> None:
    assert start(machine, port) == "new"
    machine.python(WRITE, f"127.0.0.1:{port}")
    id = kept(machine)["cluster_id"]
    assert "goes on" in machine.well("stop", "--keep")
    assert start(machine, port) == id
    value, count = machine.python(READ, f"127.0.0.1:{port}", "actor").split()
    assert (value, count.isdigit()) == ("0.1", True), "an actor with restarts begins again, although no node was left"
    about = kept(machine)
    assert about["incarnation"] == 2
    assert [event["text"] for event in about["events"]] == ["the control service goes on with the cluster, as number 2"]
    machine.well("stop")
    assert start(machine, port) == "new"
    assert kept(machine)["cluster_id"] != id
    machine.well("stop", "--force")
    assert start(machine, port) == "new", "a cluster that was stopped is over, however that was done"
    machine.well("stop")


def test_nodes_of_other_machines_wait_for_the_head(machine: Machine, port: str, tmp_path: Path) -> None:
    start(machine, port)
    other = Machine(tmp_path / "other")
    other.token.parent.mkdir(mode=0o700)
    other.token.touch(mode=0o600)
    other.token.write_bytes(machine.token.read_bytes())
    try:
        other.well("start", "--address", f"127.0.0.1:{port}", "--resources", '{"other": 1}', *SMALL)
        assert machine.python(ELSEWHERE, f"127.0.0.1:{port}").split() == ["1"]
        before = json.loads(other.well("list", "nodes", "--json"))
        machine.well("stop", "--force", "--keep")
        start(machine, port)
        assert other.python(ELSEWHERE, f"127.0.0.1:{port}").split() == ["2"], "it has lived on"
        after = json.loads(other.well("list", "nodes", "--json"))
        name = next(node["node_id"] for node in before if "other" in node["total"])
        assert name in {node["node_id"] for node in after}
        machine.well("stop")
        wait_for(lambda: other.pids() == [], WITHIN_S, "the node to end with its cluster")
    finally:
        other.skate("stop", "--force")


def test_a_service_that_was_killed_is_started_again_and_can_be_stopped(machine: Machine, port: str) -> None:
    start(machine, port)
    id = kept(machine)["cluster_id"]
    (control,) = machine.pids("control")
    os.kill(control, signal.SIGKILL)
    wait_for(lambda: machine.pids("control") not in ([], [control]), WITHIN_S, "another control service")
    about = wait_for(lambda: machine.skate("store", "status", "--json").out, WITHIN_S, "it to answer")
    assert (json.loads(about)["cluster_id"], json.loads(about)["incarnation"]) == (id, 2)
    assert "1 node" in machine.well("status")
    assert machine.well("stop").count("Ended the control service") == 1
    assert machine.pids() == []
    assert start(machine, port) == "new"
    os.kill(machine.pids("control")[0], signal.SIGKILL)
    machine.well("stop")  # while its node starts it again
    assert machine.pids() == []
    assert start(machine, port) == "new", "that cluster was stopped"
    machine.well("stop")


def test_a_head_that_stays_keeps_its_cluster_unless_it_is_interrupted(machine: Machine, port: str) -> None:
    id = "new"
    for number, says in ((signal.SIGTERM, "Ended."), (None, "ended with code -9"), (signal.SIGINT, "Ended.")):
        with machine.begin("start", "--head", "--port", port, "--block", *SMALL) as process:
            assert process.stdout is not None
            told = ""
            while "One more node" not in told:
                told += process.stdout.readline()
            assert "A new cluster runs" in told if id == "new" else f"goes on: {id}" in told
            id = kept(machine)["cluster_id"]
            if number is not None:
                process.send_signal(number)
            else:
                os.kill(machine.pids("node")[0], signal.SIGKILL)
            out, err = process.communicate(timeout=COMMAND_S)
            assert says in out + err
        assert machine.pids() == []
    assert start(machine, port) == "new", "Ctrl-C ends the cluster"
    machine.well("stop")


# -- as the page says --------------------------------------------------------------------------------------------------


def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path, network: Network) -> None:
    """Lines that begin with `$` are commands. Behind each is what it prints; … stands for anything."""
    machine = Machine(tmp_path / "home", network.hosts[0])  # a network of its own, in which the usual port is free
    page = (Path(__file__).resolve().parents[2] / "docs" / "high-availability.md").read_text()
    (code,) = re.findall(r"```python no-run\n(.*?)```", page, re.DOTALL)
    machine.script(code, "orders.py")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    commands = re.findall(r"^    \$ (.*)\n((?:(?:    (?!\$).*)?\n)*)", page, re.MULTILINE)
    assert len(commands) == 8
    for command, says in commands:
        done = machine.run(["bash", "-c", command], PATH=path)
        assert (done.code, done.err) == (0, ""), (command, done)
        expected = "\n".join(line[4:] for line in says.splitlines()).rstrip()
        assert re.fullmatch(re.escape(expected).replace("…", ".*"), done.out.rstrip(), re.DOTALL), (command, done)


# -- where -------------------------------------------------------------------------------------------------------------


def test_the_state_is_where_it_was_said_to_be(machine: Machine, port: str) -> None:
    assert start(machine, port, "--store", "memory") == "new"
    assert "in the memory of the control service" in machine.well("store", "status")
    machine.fails("store", "check", says=["keeps its state in memory"])
    assert "was in memory" in machine.well("stop", "--keep")
    assert not (machine.home / ".skate" / "store").exists()

    assert start(machine, port, "--port", "0") == "new"
    assert kept(machine)["engine"] == "sqlite"
    machine.well("stop")
    stores = machine.home / ".skate" / "store"
    assert not list(stores.rglob(FILE_NAME)), "nothing leads back to a port that the kernel chose"


def test_a_store_is_that_of_one_head_at_whatever_port(machine: Machine, port: str) -> None:
    there, elsewhere = machine.home / "there", machine.home / "elsewhere"
    start(machine, port, SKATE_STORE=str(there))
    assert kept(machine)["shards"][0]["members"][0]["address"] == str(there / FILE_NAME)
    (control,) = machine.pids("control")
    for command in ("check", "dump", "wipe"):
        machine.fails("store", command, says=["is in use", f"process {control} on", f"control service at port {port}"])
    machine.fails("start", "--head", "--port", "0", "--store", str(there), says=["is in use", f"process {control} on"])
    machine.fails("start", "--head", "--port", port, "--store", str(elsewhere), says=["runs at", "already"])
    assert not elsewhere.exists(), "it is not touched by a head that cannot listen"
    id = kept(machine)["cluster_id"]
    machine.well("stop", "--keep")
    other = str(int(port) + 1)
    assert start(machine, other, "--store", "there") == id, "a store has no port"
    machine.well("stop")


# -- what cannot be used -----------------------------------------------------------------------------------------------


def test_a_head_refuses_a_store_that_it_cannot_use(machine: Machine, port: str, small_disk: Path) -> None:
    def refuses(path: Path, *says: str) -> None:
        machine.fails("start", "--head", "--port", port, "--store", str(path), says=["could not start", *says])

    file = machine.home / "file"
    file.touch()
    refuses(file, "a file where a directory should be", "name a directory")
    refuses(file / "below", "a file where a directory should be")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refuses(small_disk / "store", "Read-only file system", "name another directory")
    store = machine.home / "store"
    SqliteStorage(store).close()
    change(store, "PRAGMA user_version = 99")
    refuses(store, "a later version of Skate", "start that version")
    change(store, "PRAGMA application_id = 1")
    refuses(store, "not a store of Skate", "name another directory")
    machine.fails("store", "wipe", "--yes", "--store", str(store), says=["another program made"])
    assert (store / FILE_NAME).exists()
    (store / FILE_NAME).write_bytes(b"x" * 10_000)
    refuses(store, "is damaged", "skate store check")
    machine.fails("store", "check", "--store", str(store), says=["is damaged"])
    assert machine.well("store", "wipe", "--yes", "--store", str(store)).startswith("Removed")
    assert not (store / FILE_NAME).exists()


def test_rows_that_cannot_be_read_are_named_and_can_be_taken_out(machine: Machine, port: str) -> None:
    start(machine, port)
    machine.python(WRITE, f"127.0.0.1:{port}")
    id = kept(machine)["cluster_id"]
    kill_all(machine)
    store = machine.home / ".skate" / "store" / port
    named = ("--store", str(store))
    assert "All rows can be read" in machine.well("store", "check", *named)

    storage = SqliteStorage(store, must_exist=True)
    blob = next(key for key, _ in storage.scan(tables.KV) if key.endswith(b"blob"))
    storage.write([Put(tables.KV, b"\0odd", b"\xc1")])
    assert storage.flush(WITHIN_S)
    storage.close()
    machine.fails(
        "start", "--head", "--port", port, says=["the key b'\\x00odd' of the table 'kv'", "skate store check"]
    )
    change(store, "UPDATE rows SET value = x'00' WHERE key = ?", blob)
    machine.fails(
        "start", "--head", "--port", port, says=["damaged: the key", "of the table 'kv'", "skate store check"]
    )

    done = machine.skate("store", "check", *named)
    assert (done.code, done.err) == (1, "")
    assert "Its checksum does not fit its bytes" in done.out
    assert "no record that this version of Skate knows" in done.out
    found = json.loads(machine.skate("store", "check", "--json", *named).out)
    assert {bytes.fromhex(row["key"]) for row in found["bad_rows"]} == {blob, b"\0odd"}
    dumped = machine.skate("store", "dump", *named)
    assert dumped.code == 1
    assert "2 rows could not be read" in dumped.err
    assert "hunter2" not in dumped.out, "variables of the environment are not shown"
    rows = [json.loads(line) for line in dumped.out.splitlines()]
    assert {"table": "kv", "key": {"namespace": "here", "key": "rate"}} in [
        {"table": row["table"], "key": row["key"]} for row in rows
    ]
    (actor,) = [row["value"]["actor"] for row in rows if row["table"] == "actors"]
    assert (actor["info"]["name"], actor["info"]["env"]) == ("counter", {"PASSWORD": "(hidden)"})

    assert "Removed 2 rows" in machine.well("store", "check", "--remove", *named)
    assert start(machine, port) == id
    assert machine.python(READ, f"127.0.0.1:{port}").split() == ["0.1"]
    machine.well("stop", "--keep")

    wipe = machine.fails("store", "wipe", *named, says=["nothing was removed"])
    assert f"Type {id} to remove it" in wipe.out
    asked = subprocess.run(
        machine.command("store", "wipe", *named), env=machine.environment(), input=f"{id}\n", text=True,
        capture_output=True, timeout=COMMAND_S, check=True,
    )  # fmt: skip
    assert f"Removed the store of cluster {id}" in asked.stdout
    machine.fails("store", "check", *named, says=["there is no store in"])
    assert start(machine, port) == "new"
    machine.well("stop")


def test_a_full_disk_keeps_no_node_out_without_a_reason_and_no_cluster_from_its_end(
    machine: Machine, port: str, small_disk: Path
) -> None:
    store = small_disk / "store"
    start(machine, port, "--store", str(store))
    id = kept(machine)["cluster_id"]
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(3 << 20))
    machine.fails(
        "start", "--address", f"127.0.0.1:{port}", *SMALL,
        says=["it cannot keep what it is told", "database or disk is full"],
    )  # fmt: skip
    status = machine.skate("store", "status")
    assert (status.code, status.err) == (1, "")
    assert re.search(r"trouble  since .*, tried \d+ times?: The store .* cannot be written\.", status.out)
    assert "next: make room on that disk." in status.out
    stopped = machine.skate("stop")
    assert (stopped.code, machine.pids()) == (0, []), "it ends all the same"
    assert "the end of the cluster could not be written" in stopped.err
    assert f"skate store wipe --store {store}" in stopped.err
    (small_disk / "ballast").unlink()
    assert start(machine, port, "--store", str(store)) == id, "as it was told"
    machine.well("stop")
