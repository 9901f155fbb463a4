"""The command line, run as people run it: in processes of its own, each test with a home of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import netns
from machine import COMMAND_S, SMALL, Machine
from netns import Network
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

USAGE, NOTHING_RUNS = 2, 3

DRIVER = """
import sys, time
import skate

info = skate.init(sys.argv[1]) if len(sys.argv) > 1 else skate.init()


@skate.remote
def where(seconds):
    time.sleep(seconds)
    return skate.get_runtime_context().get_node_id()


nodes = set(skate.get([where.remote(0.1) for _ in range(20)]))
print(sum(node["Alive"] for node in skate.nodes()), len(nodes))
"""


# -- a cluster, from its start to its end ------------------------------------------------------------------------------


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts with addresses of their own."""
    if reason := netns.reason_to_skip():
        pytest.skip(reason)
    with Network(hosts=2) as network:
        yield network


def test_a_cluster_of_two_nodes_from_start_to_stop(machine: Machine, port: str) -> None:
    address = f"127.0.0.1:{port}"
    told = machine.well("start", "--head", "--port", port, *SMALL)
    assert f'skate.init("{address}")' in told
    assert f"skate start --address {address}" in told
    assert "this machine only" in told
    machine.well("start", "--address", f"localhost:{port}", "--num-cpus", "2", "--resources", '{"lamp": 2}',
                 "--labels", "zone=a,disk=fast", "--object-store-memory", "50MB", "--name", "second")  # fmt: skip

    status = json.loads(machine.well("status", "--json"))
    assert status["running"]
    assert status["address"] == address
    assert status["resources"]["total"]["CPU"] == 3
    assert status["resources"]["used"]["CPU"] == 0
    text = machine.well("status")
    assert f"Cluster at {address}: 2 nodes" in text
    assert "zone=a,disk=fast" in text
    first, second = json.loads(machine.well("list", "nodes", "--json"))
    assert (second["name"], second["total"]["lamp"], second["labels"]["zone"]) == ("second", 2, "a")
    assert second["node_id"][:12] in machine.well("list", "nodes")
    assert first["total"]["CPU"] == 1

    assert machine.python(DRIVER, address).split() == ["2", "2"], "tasks ran on both"
    assert machine.run([sys.executable, "program.py"], SKATE_ADDRESS=address).out.split() == ["2", "2"]

    assert len(machine.pids("node")) == 2
    assert len(machine.pids("control")) == 1
    ended = machine.well("stop")
    assert ended.count("Ended a node") == 2
    assert ended.count("Ended the control service") == 1
    assert machine.pids() == []
    assert "Nothing to stop" in machine.well("stop")
    left = sorted(path.relative_to(machine.home / ".skate").parts[0] for path in (machine.home / ".skate").rglob("*"))
    assert set(left) == {"logs", "store", "token"}, "what people may want to read, and the token of the next cluster"


def test_auto_joins_the_node_of_this_machine(tmp_path: Path, network: Network) -> None:
    # A network of its own has lobbies of its own: elsewhere the newest node may be that of another test.
    machine = Machine(tmp_path / "home", network.hosts[0])
    machine.well("start", "--head", *SMALL)
    machine.well("start", "--address", "127.0.0.1:6380", *SMALL)
    assert machine.python(DRIVER, "auto").split() == ["2", "2"]
    machine.well("stop")


def test_two_machines_as_the_output_says(tmp_path: Path, network: Network) -> None:
    first, second = (Machine(tmp_path / f"home{i}", host) for i, host in enumerate(network.hosts))
    address = f"{network.hosts[0].address}:6380"
    told = first.well("start", "--head", "--host", network.hosts[0].address, *SMALL)
    assert f"scp -p {network.hosts[0].address}:{first.token} ~/.skate/token" in told
    second.fails("start", "--address", address, says=["no token was given"])
    second.token.parent.mkdir(mode=0o700)
    second.token.touch(mode=0o600)
    second.token.write_bytes(first.token.read_bytes())
    told = second.well("start", "--address", address, *SMALL)
    assert f"listens on {network.hosts[1].address}:" in told, "the others have to reach it"
    assert first.python(DRIVER, address).split() == ["2", "2"]
    assert second.python(DRIVER, "auto").split() == ["2", "2"]

    # The second machine goes, and later the head, which takes the rest along.
    second.well("stop")
    assert len(json.loads(first.well("list", "nodes", "--json"))) == 1
    assert second.skate("status").code == NOTHING_RUNS
    assert len(json.loads(second.well("list", "nodes", "--json", "--address", address))) == 1
    second.well("start", "--address", address, *SMALL)
    first.well("stop")
    wait_for(lambda: second.pids() == [], WITHIN_S, "the node on the other machine to end with its cluster")


def test_a_head_that_listens_everywhere_tells_an_address_that_others_reach(tmp_path: Path, network: Network) -> None:
    first, second = (Machine(tmp_path / f"home{i}", host) for i, host in enumerate(network.hosts))
    # This network has no way out, so nothing tells which address the others use.
    first.fails("start", "--head", "--host", "0.0.0.0", says=["--node-ip-address"])
    first.well("start", "--head", "--host", "0.0.0.0", "--node-ip-address", network.hosts[0].address, *SMALL)
    second.token.parent.mkdir(mode=0o700)
    second.token.touch(mode=0o600)
    second.token.write_bytes(first.token.read_bytes())
    second.well("start", "--address", f"{network.hosts[0].address}:6380", *SMALL)
    assert first.python(DRIVER, "auto").split() == ["2", "2"]
    first.well("stop")
    wait_for(lambda: second.pids() == [], WITHIN_S, "the node on the other machine to end")


def test_a_head_says_where_it_listens_and_not_only_where_it_is_reached(tmp_path: Path, network: Network) -> None:
    machine = Machine(tmp_path / "home", network.hosts[0])
    for reached in ("127.0.0.1", network.hosts[0].address):
        said = machine.well("start", "--head", "--host", "0.0.0.0", "--node-ip-address", reached, *SMALL)
        assert f"A new cluster runs at {reached}:6380" in said
        assert "listens on 0.0.0.0:" in said
        assert f"is reached at {reached}:" in said
        assert "open to  all networks" in said
        assert "this machine only" not in said
        machine.well("stop")
    said = machine.well("start", "--head", *SMALL)
    assert "listens on 127.0.0.1:" in said
    assert "open to  this machine only" in said
    assert "is reached at" not in said
    machine.well("stop")


def test_every_node_knows_the_address_that_it_was_told_to_have(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.well("start", "--address", f"127.0.0.1:{port}", "--node-ip-address", "127.0.0.2", *SMALL)
    program = """
import sys, skate
from skate.util import get_node_ip_address
from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy
skate.init(sys.argv[1])
for node in skate.nodes():
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    found = skate.remote(get_node_ip_address).options(scheduling_strategy=there).remote()
    print(node["NodeManagerAddress"], skate.get(found))
"""
    said = machine.python(program, f"127.0.0.1:{port}").splitlines()
    assert sorted(said) == ["127.0.0.1 127.0.0.1", "127.0.0.2 127.0.0.2"]
    machine.well("stop")


def test_nothing_listens_beyond_loopback_unless_it_was_told_to(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    ours = machine.pids()
    listening = [each for each in psutil.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert {each.laddr.ip for each in listening if each.pid in ours} == {"127.0.0.1"}
    assert {each.pid for each in listening} >= set(ours)
    machine.well("stop")


def test_the_token_is_for_its_owner_only_and_is_in_no_list_of_processes(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    assert machine.token.stat().st_mode & 0o777 == 0o600
    token = machine.token.read_text().strip()
    for pid in machine.pids():
        process = psutil.Process(pid)
        assert token not in " ".join(process.cmdline()) + str(process.environ())
    for log in machine.logs.iterdir():
        assert token not in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
    machine.well("stop")


def test_a_cluster_starts_whether_its_output_is_read_or_not(machine: Machine, port: str) -> None:
    with machine.begin("start", "--head", "--port", port, *SMALL) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `| true` does
        process.wait(COMMAND_S)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read()) == (0, "")
    assert _serves(machine)
    machine.well("stop")


def test_status_without_a_cluster(machine: Machine) -> None:
    done = machine.skate("status")
    assert (done.code, done.err) == (NOTHING_RUNS, "")
    assert "skate start --head" in done.out
    done = machine.skate("status", "--json")
    assert (done.code, json.loads(done.out)) == (NOTHING_RUNS, {"running": False})
    machine.fails("list", "nodes", code=NOTHING_RUNS, says=["no cluster", "skate start --head"])


def test_tasks_name_a_node_by_its_address(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.well("start", "--address", f"127.0.0.1:{port}", "--host", "127.0.0.2", *SMALL)
    program = """
import sys, skate
skate.init(sys.argv[1])

@skate.remote
def where():
    return skate.util.get_node_ip_address()

names = ["node:127.0.0.1", "node:127.0.0.2", "node:__internal_head__"]
print(*(skate.cluster_resources()[name] for name in names))
print(*skate.get([where.options(resources={name: 0.001}).remote() for name in names]))
"""
    told = machine.python(program, f"127.0.0.1:{port}").splitlines()
    assert told == ["1.0 1.0 1.0", "127.0.0.1 127.0.0.2 127.0.0.1"]
    assert "node:" not in machine.well("status") + machine.well("list", "nodes", "--json")
    machine.well("stop")


def test_status_counts_what_is_used_and_what_waits(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    keep = machine.script(
        """
import sys, skate
skate.init(sys.argv[1], namespace="here")
@skate.remote(num_cpus=1)
class Holder:
    def hold(self): return 1
@skate.remote
def wait(): pass
holder = Holder.options(name="holder", lifetime="detached").remote()
assert skate.get(holder.hold.remote()) == 1
skate.put(bytes(10_000_000))
refs = [wait.remote() for _ in range(5)]
print("ready", flush=True)
sys.stdin.read()
"""
    )
    driver = subprocess.Popen(
        [sys.executable, keep, f"127.0.0.1:{port}"],
        env=machine.environment(),
        cwd=machine.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"

        def look() -> dict[str, Any]:
            return dict(json.loads(machine.well("status", "--json")))

        wait_for(lambda: look()["queued"], WITHIN_S, "the tasks to be reported as waiting")
        wait_for(lambda: look()["resources"]["used"]["CPU"] == 1, WITHIN_S, "what the actor holds to be reported")
        assert look()["actors"] == {"alive": 1}
        (actor,) = json.loads(machine.well("list", "actors", "--format", "json"))
        assert (actor["name"], actor["namespace"], actor["class_name"]) == ("holder", "here", "Holder")
        assert "holder" in machine.well("list", "actors")
        assert "1 alive" in machine.well("status")
        assert driver.stdin is not None
        driver.stdin.close()
    machine.well("stop")


def test_actors_of_one_program_are_listed_with_ids_that_tell_them_apart(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    program = """
import sys, skate
skate.init(sys.argv[1])
@skate.remote(num_cpus=0, lifetime="detached")
class Kept: pass
kept = [Kept.options(name=str(i)).remote() for i in range(3)]
skate.get([each.__ray_ready__.remote() for each in kept])
print(*[repr(each).split()[1].rstrip(")") for each in kept])
"""
    said = machine.python(program, f"127.0.0.1:{port}").split()
    assert len(set(said)) == 3
    assert sorted(line.split()[0] for line in machine.well("list", "actors").splitlines()[1:]) == sorted(said)
    whole = [actor["actor_id"] for actor in json.loads(machine.well("list", "actors", "--json"))]
    assert [len(bytes.fromhex(id)) for id in whole] == [16] * 3
    machine.well("stop")


def test_jobs_are_listed(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    assert machine.well("list", "jobs") == "No jobs.\n"
    machine.python(DRIVER, f"127.0.0.1:{port}")

    def ended() -> dict[str, Any]:
        (job,) = json.loads(machine.well("list", "jobs", "--json"))
        return dict(job) if job["state"] == "ended" else {}

    job = wait_for(ended, WITHIN_S, "the end of the job to be known")
    assert job["ended_at"] >= job["started_at"]
    assert job["entrypoint"].startswith(sys.executable)
    listed = machine.well("list", "jobs")
    assert job["job_id"][:12] in listed
    assert sys.executable in listed
    events = [event["text"] for event in json.loads(machine.well("list", "events", "--json"))]
    assert events[0] == "node 1 joined"
    assert f"job {job['job_id']} is over: ended" in events
    assert machine.well("list", "events").splitlines()[1].endswith("node  node 1 joined")
    assert machine.well("list", "functions") == "No functions.\n", "they are gone with their program"
    machine.well("stop")


# -- stop --------------------------------------------------------------------------------------------------------------


def test_stop_leaves_the_nodes_of_others_alone(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    with Cluster(initialize_head=True) as cluster:
        local = subprocess.Popen(
            [sys.executable, "-c", "import skate, sys; skate.init(num_cpus=1); print(1, flush=True); sys.stdin.read()"],
            env=machine.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with local:
            assert local.stdout is not None
            assert local.stdout.readline() == b"1\n"
            machine.well("stop", "--force")
            assert cluster.head_node is not None
            assert cluster.head_node.is_alive()
            assert local.poll() is None
            assert local.stdin is not None
            local.stdin.close()
    assert machine.pids() == []


def test_stop_kills_what_does_not_end_by_itself(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    (node,) = machine.pids("node")
    children = psutil.Process(node).children(recursive=True)
    os.kill(node, signal.SIGSTOP)  # it hears SIGTERM only when it goes on
    ended = machine.well("stop")
    assert "Ended a node" in ended
    assert machine.pids() == []
    assert not [child for child in children if child.is_running()]


def test_status_of_a_head_that_is_stopped_says_that_it_may_be(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    (control,) = machine.pids("control")
    os.kill(control, signal.SIGSTOP)
    try:
        done = machine.fails("status", says=[f"127.0.0.1:{port} did not answer within", "stopped or overloaded"])
    finally:
        os.kill(control, signal.SIGCONT)
    assert done.err.index("stopped or overloaded") < done.err.index("--tls"), "the likely reason comes first"
    assert "token" not in done.err
    machine.well("status")
    machine.well("stop")


def test_a_stopped_head_that_was_killed_leaves_nothing_stale(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    for pid in machine.pids():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: machine.pids() == [], WITHIN_S, "what was killed to be gone")
    assert machine.skate("status").code == NOTHING_RUNS
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.well("stop")


def test_a_node_that_outlived_its_head_can_be_stopped(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, "--store", "memory", *SMALL)
    (control,) = machine.pids("control")
    os.kill(control, signal.SIGKILL)
    wait_for(lambda: machine.pids("control") == [], WITHIN_S, "the control service to be gone")
    machine.fails("status", says=["nobody can be reached", "Connection refused", "skate stop"])
    assert "Ended a node" in machine.well("stop")
    assert machine.pids() == []


# -- --block -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_block_ends_the_node_when_it_is_told_to(machine: Machine, port: str, number: signal.Signals) -> None:
    with machine.begin("start", "--head", "--port", port, "--block", *SMALL) as process:
        _read_what_it_tells(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, err) == (0, ""), out + err
        assert out.endswith("Ended.\n")
    assert machine.pids() == []


def test_block_ends_with_its_node(machine: Machine, port: str) -> None:
    with machine.begin("start", "--head", "--port", port, "--block", *SMALL) as process:
        _read_what_it_tells(process)
        machine.well("stop")
        out, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, err) == (0, ""), out + err
    with machine.begin("start", "--head", "--port", port, "--block", *SMALL) as process:
        _read_what_it_tells(process)
        os.kill(machine.pids("node")[0], signal.SIGKILL)
        out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 1
        assert "ended with code -9" in err
        assert "see its log" in err
    assert machine.pids() == []


def test_a_start_that_is_interrupted_leaves_nothing(machine: Machine, port: str) -> None:
    with machine.begin("start", "--head", "--port", port, *SMALL) as process:
        wait_for(lambda: machine.pids("control"), WITHIN_S, "the control service to begin")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WITHIN_S)
        # It may have been just about to end by itself, and then the cluster stands.
        assert (process.returncode, err) in ((128 + signal.SIGTERM, ""), (-signal.SIGTERM, ""), (0, ""))
    if process.returncode == 128 + signal.SIGTERM:
        assert machine.pids() == []


def _read_what_it_tells(process: subprocess.Popen[str]) -> None:
    """Up to the last line that a head prints when it serves."""
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("  skate start --address"):
        assert line, process.communicate()


def _serves(machine: Machine) -> bool:
    return machine.skate("status").code == 0


# -- the same command everywhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "address"])
def test_three_ranks_that_start_at_once_have_one_head(machine: Machine, port: str, kind: str) -> None:
    file = machine.home / "meeting"
    where = f"file://{file}" if kind == "file" else f"127.0.0.1:{port}"
    ranks = [machine.begin("start", "--rendezvous", where, *SMALL) for _ in range(3)]
    said = [rank.communicate(timeout=COMMAND_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    assert sum("A new cluster" in out for out, _ in said) == 1
    assert len(machine.pids("control")) == 1
    assert len(machine.pids("node")) == 3
    status = json.loads(machine.well("status", "--json"))
    assert len(status["nodes"]) == 3
    if kind == "file":
        assert json.loads(file.read_text())["address"] == status["address"]
    machine.well("start", "--rendezvous", where, *SMALL)
    assert len(machine.pids("node")) == 4, "one that comes late joins, too"
    machine.well("stop")
    assert not file.exists()
    assert list(machine.home.glob("meeting*")) == []


def test_heads_that_are_found_by_a_file_take_any_port_as_the_help_says(machine: Machine) -> None:
    said = [machine.well("start", "--rendezvous", f"file://{machine.home}/{run}", *SMALL) for run in "ab"]
    ports = {each.partition("A new cluster runs at 127.0.0.1:")[2].partition(",")[0] for each in said}
    assert len(ports) == 2
    assert "6380" not in ports
    assert "by default 6380, or any with --rendezvous file" in " ".join(machine.well("start", "--help").split())
    machine.well("stop")


def test_ranks_on_two_machines_meet_by_file_and_by_address(tmp_path: Path, network: Network) -> None:
    first, second = (Machine(tmp_path / f"home{i}", host) for i, host in enumerate(network.hosts))
    token = tmp_path / "token"
    words = ["--token-file", str(token), *SMALL]
    where = f"{network.hosts[0].address}:7000"
    late = second.begin("start", "--rendezvous", where, *words)
    _, err = late.communicate(timeout=COMMAND_S)
    assert (late.returncode, "there is no file" in err) == (1, True), "no token is made where the head cannot be"

    first.well("start", "--rendezvous", where, *words)
    second.well("start", "--rendezvous", where, *words)
    assert second.python(DRIVER, where).split() == ["2", "2"]
    second.well("stop")
    first.well("stop")

    # A file, which both see; each is told the address that others reach it by.
    meeting = f"file://{tmp_path}/meeting"
    first.well("start", "--rendezvous", meeting, "--host", network.hosts[0].address, *words)
    second.well("start", "--rendezvous", meeting, *words)
    assert second.python(DRIVER, "auto").split() == ["2", "2"]
    second.well("stop")
    first.well("stop")
    assert not (tmp_path / "meeting").exists()


def test_a_rank_waits_for_the_head_and_then_says_what_to_look_at(machine: Machine, port: str) -> None:
    file = machine.home / "meeting"
    file.write_text("")  # somebody began, and was killed
    where = f"file://{file}"
    machine.fails("start", "--rendezvous", where, "--wait", "0.3", says=["no head after 0.3 s", f"rm {file}"])
    file.write_text(json.dumps({"address": f"127.0.0.1:{port}", "machine": socket.gethostname(), "pid": 1}))
    machine.token.parent.mkdir(mode=0o700)
    machine.token.touch(mode=0o600)
    machine.token.write_text("a" * 64)
    machine.fails("start", "--rendezvous", where, "--wait", "0.3", says=["Connection refused", f"rm {file}"])
    file.write_text(json.dumps({"address": f"127.0.0.1:{port}", "machine": "elsewhere", "pid": 1}))
    machine.fails("start", "--rendezvous", where, says=["loopback only", "--host 0.0.0.0"])
    machine.fails("start", "--rendezvous", f"192.0.2.1:{port}", "--wait", "0", says=["no head at", "does not have"])
    machine.fails("start", "--rendezvous", "file:///nowhere/at/all", says=["cannot be written: No such file"])


def test_a_rank_waits_as_long_as_it_was_told_for_one_that_listens_and_is_silent(machine: Machine, port: str) -> None:
    words = ["start", "--rendezvous", f"127.0.0.1:{port}", *SMALL]
    with socket.create_server(("127.0.0.1", int(port))):
        machine.fails(
            *words, "--wait", "1", says=[f"no head at 127.0.0.1:{port} after 1 s; ", "did not answer", "`ps`"]
        )
    with socket.create_server(("127.0.0.1", int(port))) as server:
        server.settimeout(COMMAND_S)
        rank = machine.begin(*words)
        silent = [server.accept()[0] for _ in range(3)]  # does it speak first? may I come in? and once more
    for sock in silent:
        sock.close()
    out, err = rank.communicate(timeout=COMMAND_S)
    assert (rank.returncode, err) == (0, ""), out
    assert "A new cluster" in out, "who was silent is gone, and it listens there itself"
    machine.well("stop")


def test_a_file_that_is_none_of_a_rendezvous_is_left_alone_and_said_to_be_none(machine: Machine) -> None:
    file = machine.home / "my notes"
    where = f"file://{file}"
    texts = ["buy milk", "127.0.0.1:6380", "[1]", json.dumps({"address": "here", "machine": "x", "pid": 1})]
    for text in texts:
        file.write_text(text)
        machine.fails("start", "--rendezvous", where, says=["was not written by Skate", "name one", f"rm '{file}'"])
        assert file.read_text() == text
    file.write_text('{"address": "127.0')
    machine.fails("start", "--rendezvous", where, "--wait", "0.3", says=["no head after 0.3 s", f"rm '{file}'"])


def test_a_head_that_cannot_start_lets_another_try(machine: Machine, port: str) -> None:
    file = machine.home / "meeting"
    with socket.create_server(("127.0.0.1", int(port))):
        words = ["start", "--rendezvous", f"file://{file}", "--port", port]
        machine.fails(*words, says=["Address already in use", "--port"])
    assert not file.exists()
    machine.well("start", "--rendezvous", f"file://{file}", "--port", port, *SMALL)
    machine.well("stop")


# -- submit ------------------------------------------------------------------------------------------------------------


def test_submit_passes_output_and_exit_code_on(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.script(DRIVER)
    assert machine.well("submit", "--", "python", "program.py").split() == ["1", "1"], "its init() joins"
    done = machine.skate("submit", "--", "sh", "-c", "echo out; echo err >&2; pwd; exit 7")
    assert (done.code, done.out) == (7, f"out\nerr\n{machine.home}\n")
    assert machine.well("submit", "--", sys.executable, "-c", "print('x' * 300_000)") == "x" * 300_000 + "\n"
    done = machine.skate("submit", "--", "sh", "-c", "kill -9 $$")
    assert done.code == 128 + signal.SIGKILL
    assert "signal 9" in done.err
    machine.fails("submit", "--", "no-such-program", says=["No such file", "no-such-program"])
    assert json.loads(machine.well("status", "--json"))["actors"].get("alive", 0) == 0, "supervisors leave"
    machine.well("stop")


def test_submit_sends_the_working_directory_along(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    project = machine.home / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "secret").touch()
    (project / "helper.py").write_text("WORD = 'helped'")
    (project / "main.py").write_text(
        "import os, helper; print(helper.WORD, sorted(os.listdir()), os.getcwd())\n"
        "for number in range(5000): open(f'made-{number}', 'w').close()  # takes a while to remove"
    )
    done = machine.well("submit", "--working-dir", "project", "--", "python", "main.py")
    word, *_, directory = done.split()
    assert word == "helped"
    assert ".git" not in done
    assert directory != str(project)
    assert not Path(directory).exists(), "the copy is gone with its job"
    machine.fails("submit", "--working-dir", "nowhere", "--", "true", says=["not a directory"])
    machine.well("stop")


def test_a_job_goes_on_without_its_submitter(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    go = machine.home / "go"
    told = machine.well(
        "submit", "--no-wait", "--", "sh", "-c", f"echo begun; until [ -e {go} ]; do sleep 0.02; done; exit 5"
    )
    job = told.split()[1]
    with machine.begin("submit", "--attach", job) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        go.touch()
        assert process.wait(WITHIN_S) == 5
    machine.fails("submit", "--attach", job, says=[f"there is no job {job}"])

    told = machine.well("submit", "--no-wait", "--", "sleep", "1000")
    job, pid = told.split()[1], int(told.partition("pid ")[2].partition(")")[0])
    assert "Ended job" in machine.well("submit", "--cancel", job)
    assert not psutil.pid_exists(pid)
    told = machine.well("submit", "--no-wait", "--", "sleep", "1000")
    pid = int(told.partition("pid ")[2].partition(")")[0])
    machine.well("stop")
    assert not psutil.pid_exists(pid), "it ends with its node"


def test_all_who_follow_a_job_are_told_how_it_ended(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    go = machine.home / "go"
    command = f"echo begun; until [ -e {go} ]; do sleep 0.02; done; echo over; exit 5"
    job = machine.well("submit", "--no-wait", "--", "sh", "-c", command).split()[1]
    with machine.begin("submit", "--attach", job) as quick, machine.begin("submit", "--attach", job) as slow:
        assert quick.stdout is not None
        assert slow.stdout is not None
        assert quick.stdout.readline() == slow.stdout.readline() == "begun\n"
        slow.send_signal(signal.SIGSTOP)
        go.touch()
        assert quick.wait(WITHIN_S) == 5
        slow.send_signal(signal.SIGCONT)
        assert slow.wait(WITHIN_S) == 5
        assert slow.stdout.read() == "over\n"
    machine.fails("submit", "--attach", job, says=[f"there is no job {job}"])
    machine.well("stop")


def test_a_submitted_job_has_one_id(machine: Machine, port: str) -> None:
    def listed() -> dict[str, Any]:
        (job,) = json.loads(machine.well("list", "jobs", "--json"))
        return dict(job)

    machine.well("start", "--head", "--port", port, *SMALL)
    go = machine.home / "go"
    program = (
        "import os, sys, time, skate\n"
        "for _ in range(2):\n"
        "    skate.init()\n"
        "    print(skate.get_runtime_context().get_job_id(), flush=True)\n"
        "    skate.shutdown()\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
        "sys.exit(5)\n"
    )
    (machine.home / "program.py").write_text(program)
    told = machine.well("submit", "--no-wait", "--", "python", "program.py", str(go))
    id = told.split()[1]
    assert listed()["job_id"] == id
    with machine.begin("submit", "--attach", id) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == [id, id]
        running = listed()
        assert (running["job_id"], running["state"]) == (id, "running")
        assert running["entrypoint"] == f"python program.py {go}"
        assert running["driver_pid"] == int(told.partition("pid ")[2].partition(")")[0])
        go.touch()
        assert process.wait(WITHIN_S) == 5
    ended = listed()
    assert (ended["job_id"], ended["state"], ended["exit_code"]) == (id, "ended", 5)
    assert machine.well("list", "jobs").splitlines()[1].startswith(f"{id}  ended")
    machine.well("stop")


def test_a_submitted_job_that_died_with_its_supervisor_is_lost(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    told = machine.well("submit", "--no-wait", "--", "sleep", "1000")
    pid = int(told.partition("pid ")[2].partition(")")[0])
    supervisor = psutil.Process(pid).parent()
    assert supervisor is not None
    supervisor.kill()
    wait_for(
        lambda: [job["state"] for job in json.loads(machine.well("list", "jobs", "--json"))] == ["lost"],
        WITHIN_S,
        "the loss of the job to be listed",
    )
    assert machine.well("list", "jobs").splitlines()[1].split()[4] == "?", "nobody knows how long it took"
    machine.well("stop")


def test_ctrl_c_ends_the_job(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    with machine.begin("submit", "--", "sh", "-c", "echo $$; exec sleep 1000") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, "Traceback" in err) == (130, False), err
    assert not psutil.pid_exists(pid)
    machine.well("stop")


def test_submit_from_a_machine_that_is_no_node_sends_its_files_along(tmp_path: Path, network: Network) -> None:
    first, second = (Machine(tmp_path / f"home{i}", host) for i, host in enumerate(network.hosts))
    first.well("start", "--head", "--host", network.hosts[0].address, *SMALL)
    address = f"{network.hosts[0].address}:6380"
    words = ["submit", "--address", address, "--token-file", str(first.token)]
    second.fails(*words, "--", "true", says=["no node of the cluster", "--working-dir", f"--address {address}"])
    project = tmp_path / "project"
    project.mkdir()
    (project / "program.py").write_text(DRIVER)
    done = second.well(*words, "--working-dir", str(project), "--", "python", "program.py")
    assert done.split() == ["1", "1"], "it ran on the only node"
    first.well("stop")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_second_head_on_the_same_port(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.fails("start", "--head", "--port", port, says=["runs at", "already", "skate stop"])
    assert len(machine.pids()) == 2, "the first is unharmed"
    assert _serves(machine)
    machine.well("stop")


def test_ports_that_others_have(machine: Machine, port: str) -> None:
    with socket.create_server(("127.0.0.1", int(port))):
        machine.fails("start", "--head", "--port", port, says=["Address already in use", "--port"])
        machine.fails("start", "--head", "--port", "0", "--node-port", port, says=["already in use", "--node-port"])
    assert machine.pids() == [], "the head has ended, too"
    machine.fails("start", "--head", "--host", "192.0.2.1", says=["does not have that address", "--host"])
    assert [path.name for path in machine.logs.iterdir() if path.name.startswith("node")] == []


@pytest.mark.parametrize("speaks_first", [True, False], ids=["like ssh", "like http"])
def test_the_address_of_another_service(machine: Machine, port: str, speaks_first: bool) -> None:
    machine.token.parent.mkdir(mode=0o700)
    machine.token.touch(mode=0o600)
    machine.token.write_text("a" * 64)

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                sock, _ = server.accept()
                with sock, contextlib.suppress(ConnectionError):
                    if speaks_first or sock.recv(4096):
                        sock.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                        sock.recv(4096)

    with socket.create_server(("127.0.0.1", int(port))) as server:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        for command in (["start"], ["status"]):
            done = machine.fails(
                *command, "--address", f"127.0.0.1:{port}", says=[f"127.0.0.1:{port} is not a head of Skate", "port is"]
            )
            assert "tls" not in done.err.lower(), done
        program = f"import skate; skate.init('skate://127.0.0.1:{port}')"
        done = machine.run([sys.executable, "-c", program])
        assert f"127.0.0.1:{port} is not a head of Skate" in done.err
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_wrong_address(machine: Machine, port: str) -> None:
    machine.token.parent.mkdir(mode=0o700)
    machine.token.touch(mode=0o600)
    machine.token.write_text("a" * 64)
    for command in (["start"], ["status"], ["list", "nodes"]):
        words = [*command, "--address", f"127.0.0.1:{port}"]
        machine.fails(*words, says=["nobody can be reached", "Connection refused", "check the address"])
    machine.fails("start", "--address", "no-such-host.invalid:1", says=["is not known", "check the name"])
    machine.fails("status", says=["is no address"], SKATE_ADDRESS="nonsense")
    with socket.create_server(("127.0.0.1", int(port))) as server:
        # Somebody who is not Skate: hangs up at once.
        process = machine.begin("status", "--address", f"127.0.0.1:{port}")
        for _ in range(2):  # it looks whether TLS is wanted, and then knocks
            server.accept()[0].close()
        _, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 1
        assert "did not let us in" in err
        assert "Traceback" not in err


def test_the_port_of_a_node_is_not_that_of_the_head(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", "0", "--node-port", port, *SMALL)
    machine.fails("start", "--address", f"127.0.0.1:{port}", says=["ended the conversation", "not the head's"])
    done = machine.run([sys.executable, "-c", f"import skate; skate.init('skate://127.0.0.1:{port}')"])
    assert "ConnectionError: init(address='skate://127.0.0.1:" in done.err
    assert "it may be a node's port and not the head's" in done.err
    machine.well("stop")


def test_a_wrong_token(machine: Machine, port: str) -> None:
    machine.well("start", "--head", "--port", port, *SMALL)
    address = f"127.0.0.1:{port}"
    wrong = machine.home / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("b" * 64)
    for command in (["start"], ["status"], ["list", "actors"]):
        machine.fails(*command, "--address", address, "--token-file", str(wrong), says=["did not let us in", "token"])
        machine.fails(*command, "--address", address, says=["token"], SKATE_TOKEN="b" * 64)
    wrong.chmod(0o644)
    machine.fails("status", "--token-file", str(wrong), says=["open to others", "chmod 600"])
    machine.fails("status", "--token-file", "nowhere", says=["there is no file"])
    assert machine.well("status", "--token-file", str(machine.token))
    assert machine.well("status", SKATE_TOKEN=machine.token.read_text())
    machine.well("stop")
    machine.fails("start", "--head", says=["SKATE_TOKEN", "could be guessed"], SKATE_TOKEN="short")


def test_a_head_with_a_token_that_was_given(machine: Machine, port: str) -> None:
    told = machine.well("start", "--head", "--port", port, *SMALL, SKATE_TOKEN="c" * 64)
    assert "from SKATE_TOKEN" in told
    assert not machine.token.exists()
    machine.fails("status", says=["no token was given"])
    assert machine.well("status", SKATE_TOKEN="c" * 64)
    machine.well("stop")
    named = machine.home / "named"
    machine.well("start", "--head", "--port", port, "--token-file", "named", *SMALL)
    assert named.stat().st_mode & 0o777 == 0o600
    assert machine.well("status", "--token-file", "named")
    machine.well("stop")


def test_what_a_head_tells_to_type_works_as_it_stands(machine: Machine, port: str) -> None:
    words = ["start", "--head", "--port", port, "--token-file", "a token", *SMALL]
    told = machine.well(*words)
    again = machine.fails(*words, says=["a cluster of yours runs at"]).err
    (look,) = (line.split(maxsplit=1)[1] for line in told.splitlines() if line.startswith("  look "))
    (join,) = (line for line in told.splitlines() if line.startswith("  skate start "))
    assert join.strip() in again
    for line in (look, join, look):
        program, *words = shlex.split(line)
        assert program == "skate"
        shown = machine.well(*words)
    assert "2 nodes" in shown
    machine.well("stop")


def test_no_room_for_logs(machine: Machine) -> None:
    machine.fails("start", "--head", says=["cannot be written", "SKATE_LOG_DIR"], SKATE_LOG_DIR="/proc/nowhere")
    (machine.home / "file").touch()
    machine.fails("start", "--head", says=["cannot be written", "SKATE_LOG_DIR"], SKATE_LOG_DIR=f"{machine.home}/file")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system that is full takes root")
def test_a_full_disk(machine: Machine) -> None:
    full = machine.home / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(OSError, match="No space"), open(full / "filler", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        says = ["No space left on device", "SKATE_LOG_DIR"]
        machine.fails("start", "--head", says=says, SKATE_LOG_DIR=str(full))
        assert os.listdir(full) == ["filler"]
        machine.fails("start", "--head", "--token-file", f"{full}/token", says=["No space left on device"])
        meeting = f"file://{full}/meeting"
        machine.fails("start", "--rendezvous", meeting, says=["No space left on device", "rendezvous"])
        says = ["No space left on device", "--spill-directory"]
        machine.fails("start", "--head", "--spill-directory", str(full), says=says)
        machine.fails("start", "--head", says=says, TMPDIR=str(full))
        assert os.listdir(full) == ["filler"]
    finally:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["strat"], ["there is no command 'strat'", "did you mean start?", "skate --help"]),
        (["start"], ["--head", "--address", "--rendezvous", "skate start --help"]),
        (["start", "--head", "--address", "a:1"], ["not allowed with"]),
        (["start", "--head", "--numcpus", "1"], ["there is no option --numcpus", "did you mean --num-cpus?"]),
        (["start", "--head", "--resources", "{lamp: 1}"], ["is no JSON", """'{"licence": 2}'"""]),
        (["start", "--head", "--resources", "[1]"], ["no object of names"]),
        (["start", "--head", "--resources", '{"lamp": -1}'], ["lamp", "negative"]),
        (["start", "--head", "--resources", '{"CPU": 1}'], ["--num-cpus"]),
        (["start", "--head", "--num-cpus", "many"], ["'many' is no amount"]),
        (["start", "--head", "--num-gpus", "0.5"], ["whole number"]),
        (["start", "--head", "--labels", "zone"], ["'zone' is no label", "zone=a"]),
        (["start", "--head", "--object-store-memory", "lots"], ["'lots' is no size"]),
        (["start", "--head", "--object-store-memory", "1K"], ["8388608"]),
        (["start", "--head", "--port", "70000"], ["is no port"]),
        (["start", "--address", "somewhere"], ["HOST:PORT"]),
        (["start", "--address", "a:1", "--port", "2"], ["--port", "--node-port"]),
        (["start", "--rendezvous", "file://relative"], ["file:///"]),
        (["list", "things"], ["things", "nodes"]),
        (["list"], ["what"]),
        (["submit"], ["no command was given", "skate submit -- python"]),
        (["submit", "--attach", "1", "--", "true"], ["a command and a job"]),
    ],
)
def test_mistakes_on_the_command_line(machine: Machine, words: list[str], says: list[str]) -> None:
    machine.fails(*words, code=USAGE, says=says)
    assert not (machine.home / ".skate").exists(), "nothing was begun"


@pytest.mark.parametrize("command", [[], ["start"], ["stop"], ["status"], ["list"], ["submit"]])
def test_help_is_short_and_has_an_example(machine: Machine, command: list[str]) -> None:
    said = machine.well(*command, "--help")
    assert len(said.splitlines()) < 60
    assert "example:" in said
    assert machine.well("--version").startswith("skate 0.")


def test_old_logs_make_room(machine: Machine, port: str) -> None:
    machine.logs.mkdir(parents=True)
    for number in range(60):
        old = machine.logs / f"node@127.0.0.1:1@here-{number:02}.log"
        old.touch()
        os.utime(old, (time.time() - 1000 + number,) * 2)
    machine.well("start", "--head", "--port", port, *SMALL)
    machine.well("stop")
    kept = sorted(path.name for path in machine.logs.glob("*here*"))
    assert len(kept) == 50
    assert "node@127.0.0.1:1@here-09.log" not in kept
