"""A cluster on several hosts with addresses of their own, on a network that is cut, slow, or has strangers on it.

    head: control service, node ─┐
    second: node ────────────────┼─ switch          each host is a network namespace, see tests/netns.py
    third: node ─────────────────┤
    outside: no node ────────────┘

A cable that is pulled loses packets without a word: no connection is reset, so all that anybody notices is silence.
Drivers are programs on the hosts (tests/netns_programs.py), which the tests speak to.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from host_cluster import LARGE_BYTES, Driver, DriverError, HostCluster
from netns import Host, Unavailable
from netns_programs import digest, noise
from skate._wire.channel import HEADER
from skate._wire.cluster import Ask
from skate._wire.handshake import Handshake
from skate._wire.messages import encoder
from waiting import WITHIN_S, wait_for

#: A node that is cut off is declared dead within this time: that is promised.
DETECTED_WITHIN_S = 5.0
#: What a busy machine may add until a test sees it.
SLACK_S = 5.0
#: A cut that nobody is declared dead for. After it TCP is silent for a while: a packet that was lost is sent again
#: after 0.2, 0.6, 1.4 and 3 seconds, and then after 6.2, which is too late.
SHORT_CUT_S = 1.5
SHORT_CUT_S_MAX = 2.8


@pytest.fixture
def cluster(host_cluster: HostCluster) -> HostCluster:
    return host_cluster


def listeners(host: Host) -> set[tuple[str, int]]:
    """Where that host can be spoken to by whoever likes, as address and port: sockets that have no other end."""
    files = [
        f"/proc/net/{name}" for name in ("tcp", "udp", "tcp6", "udp6")
    ]  # those of who reads them; the last may lack
    tables = host.run(["cat", *files], check=False, capture_output=True, text=True).stdout
    rows = [line.split() for line in tables.splitlines() if "local_address" not in line]
    found = set()
    for _number, local, remote, *_ in rows:
        address, port = local.split(":")
        if remote.endswith(":0000"):
            octets = bytes.fromhex(address)[::-1]
            found.add((".".join(map(str, octets)) if len(octets) == 4 else address, int(port, 16)))
    return found


def error_of(driver: Driver, code: str = "") -> str:
    """The kind of the error that this code raises; without one, that which was said last."""
    if code:
        driver.say(code)
    with pytest.raises(DriverError) as raised:
        driver.hear()
    return raised.value.kind


def end_short_cut(host: Host, cut_at: float) -> None:
    """When it has lasted for SHORT_CUT_S."""
    time.sleep(max(0.0, cut_at + SHORT_CUT_S - time.monotonic()))
    host.restore()
    if time.monotonic() - cut_at > SHORT_CUT_S_MAX:
        pytest.skip(f"this machine is too busy to cut a host off for only {SHORT_CUT_S} s")


def assert_nobody_is_declared_dead(cluster: HostCluster, driver: Driver, cut_at: float) -> None:
    """Neither by now, nor until all silence of the cut has been noticed."""
    while time.monotonic() < cut_at + DETECTED_WITHIN_S:
        assert set(driver.nodes()) == set(cluster.ids.values())
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_tasks_actors_and_objects_on_hosts_with_addresses_of_their_own(cluster: HostCluster) -> None:
    driver = cluster.driver(cluster.second)
    assert driver.node_id == cluster.ids[cluster.second]
    assert driver.nodes() == {node_id: host.address for host, node_id in cluster.ids.items()}
    assert set(driver.do("skate.get([where.remote(0.3) for _ in range(15)])")) == set(cluster.ids.values())

    for seed, name in enumerate(("head", "second", "third")):
        data = digest(noise(seed, LARGE_BYTES))
        driver.do(f"there = {{'resources': {{{name!r}: 1}}, 'num_cpus': 0}}; data = noise({seed}, {LARGE_BYTES})")
        assert driver.do("skate.get(digest_of.options(**there).remote(data))") == data, f"to {name}"
        assert driver.do("skate.get(read.options(**there).remote([skate.put(data)]))") == data, f"to {name}, fetched"
        assert driver.do(f"digest(skate.get(make.options(**there).remote({seed}, {LARGE_BYTES})))") == data, (
            f"from {name}"
        )
        driver.do("counter = Counter.options(**there, name='counter').remote()")
        assert driver.do("skate.get([counter.add.remote() for _ in range(100)])") == list(range(1, 101))
        assert driver.do("skate.get(counter.where.remote())") == cluster.ids[cluster.by_name(name)]
        driver.do("skate.kill(counter); del counter")

    for host, ports in ((cluster.head, 2), (cluster.second, 1), (cluster.third, 1), (cluster.outside, 0)):
        where = listeners(host)
        assert {address for address, _port in where} <= {host.address}, "on no other address, as 0.0.0.0 would be"
        assert len(where) == ports, "a node has one port, and the control service one"
    assert (cluster.head.address, cluster.port) in listeners(cluster.head)


def test_a_host_that_is_cut_off_is_dead_and_joins_anew_when_its_cable_is_back(
    cluster: HostCluster, tmp_path: Path
) -> None:
    third = cluster.ids[cluster.third]
    pid = cluster.node_pid(cluster.third)
    driver, other, lost = (cluster.driver(host) for host in (cluster.head, cluster.second, cluster.third))
    mark = tmp_path / "mark"

    # What a job of the host that will be cut off has elsewhere:
    lost.do("far = Counter.options(resources={'second': 3}, num_cpus=0).remote()")
    far_pid = lost.do("skate.get(far.pid.remote())")
    # What others have there:
    driver.do(f"""
soft = dict(scheduling_strategy=at({third!r}, soft=True), num_cpus=0)
hard = dict(scheduling_strategy=at({third!r}), num_cpus=0)
again = Counter.options(**soft, max_restarts=1, max_task_retries=-1).remote()
once = Counter.options(**soft).remote()
kept, copied, gone = (make.options(**hard).remote(seed, {LARGE_BYTES}) for seed in (1, 2, 3))
skate.get(kept), skate.wait([gone])
skate.get(read.options(resources={{"second": 1}}, num_cpus=0).remote([copied]))
group = skate.util.placement_group([{{"CPU": 0.1}}] * 3, strategy="STRICT_SPREAD")
skate.get(group.ready())
tasks = [where.options(**soft).remote(2.0, {str(mark)!r} + str(index)) for index in range(3)]
doomed = where.options(**soft, max_retries=0).remote(60.0, {str(mark)!r} + "3")
""")
    assert driver.do("skate.get([again.where.remote(), once.where.remote()])") == [third, third]
    assert driver.do("skate.get([again.add.remote() for _ in range(3)])") == [1, 2, 3]
    marks = [Path(f"{mark}{index}") for index in range(4)]
    wait_for(lambda: all(mark.exists() for mark in marks), WITHIN_S, "the tasks to run")
    pids = [int(mark.read_text()) for mark in marks]

    cut_at = time.monotonic()
    cluster.third.cut()
    # What is begun while nobody knows yet:
    driver.do("""
late = where.options(**soft).remote()
call = again.where.remote()
away = dict(resources={"head": 1}, num_cpus=0)
read_copied, read_gone = read.options(**away).remote([copied]), digest_of.options(**away).remote(gone)
""")
    for witness in (driver, other):
        wait_for(
            lambda witness=witness: third not in witness.nodes(), DETECTED_WITHIN_S + SLACK_S, "its death to be known"
        )
    assert time.monotonic() - cut_at < DETECTED_WITHIN_S + SLACK_S
    rest = {cluster.ids[cluster.head], cluster.ids[cluster.second]}
    assert set(driver.nodes()) == set(other.nodes()) == rest

    assert set(driver.do("skate.get(tasks)")) <= rest
    assert driver.do("skate.get(late)") in rest
    assert error_of(driver, "skate.get(doomed)") == "NodeDiedError"
    assert driver.do("skate.get(call)") in rest
    assert driver.do("skate.get(again.add.remote())") == 1, "it began again"
    assert error_of(driver, "skate.get(once.add.remote())") == "ActorDiedError"
    assert driver.do("digest(skate.get(kept))") == digest(noise(1, LARGE_BYTES)), "there is a copy here"
    assert driver.do("skate.get(read_copied)") == digest(noise(2, LARGE_BYTES)), "there is a copy on the second host"
    assert error_of(driver, "skate.get(gone)") == "ObjectLostError"
    assert error_of(driver, "skate.get(read_gone)") == "ObjectLostError"
    wait_for(lambda: not is_alive(far_pid), WITHIN_S, "the actor of the job that is lost to end")
    wait_for(lambda: other.do("skate.available_resources().get('second')") == 4, WITHIN_S, "what it held to be free")
    assert is_alive(pids[3]), "over there nobody knows"

    cluster.third.restore()
    wait_for(lambda: len(driver.nodes()) == 3, 2 * WITHIN_S, "it to join anew")
    assert third not in driver.nodes(), "it is another node"
    assert cluster.node_pid(cluster.third) == pid
    assert cluster.is_running(cluster.third)
    assert not any(is_alive(pid) for pid in pids), "it has ended all that it ran"
    (anew,) = set(driver.nodes()) - rest
    assert driver.nodes()[anew] == cluster.third.address
    assert driver.do(f"skate.get(where.options(scheduling_strategy=at({anew!r})).remote())") == anew
    assert other.do("skate.get(where.options(resources={'third': 1}).remote())") == anew
    in_bundles = "where.options(scheduling_strategy=within(group, index), num_cpus=0.1).remote() for index in range(3)"
    assert set(driver.do(f"skate.get([{in_bundles}])")) == {anew, *rest}, "its bundle has a place again"
    assert error_of(lost, "skate.get(where.remote())") == "NodeDiedError", "its driver is told, too"


def test_a_job_whose_host_is_declared_dead_is_over_everywhere(cluster: HostCluster) -> None:
    """Also what it asked for while it was cut off, which arrives when the cable is back."""
    driver, lost = cluster.driver(cluster.head), cluster.driver(cluster.third)
    lost.do("pending = where.options(resources={'second': 1}, num_cpus=0).remote(60)")
    cluster.third.cut()
    wait_for(lambda: len(driver.nodes()) == 2, DETECTED_WITHIN_S + SLACK_S, "its death to be known")
    lost.do("ghost = Counter.options(resources={'second': 1}, num_cpus=0).remote()")
    lost.say("skate.util.placement_group([{'second': 1}]) and None")
    cluster.third.restore()
    wait_for(lambda: len(driver.nodes()) == 3, 2 * WITHIN_S, "it to join anew")
    assert error_of(lost) == "NodeDiedError"
    wait_for(lambda: driver.do("skate.available_resources()['second']") == 4, 5, "what the job held to be free")
    assert error_of(lost, "skate.get(pending, timeout=5)") == "NodeDiedError"


def test_a_short_cut_is_survived(cluster: HostCluster, tmp_path: Path) -> None:
    third = cluster.ids[cluster.third]
    driver = cluster.driver(cluster.head)
    mark = tmp_path / "mark"
    driver.do(f"""
hard = dict(scheduling_strategy=at({third!r}), num_cpus=0)
counter = Counter.options(**hard).remote()
made = make.options(**hard).remote(1, {LARGE_BYTES})
skate.wait([made]), skate.get(counter.add.remote())
task = where.options(**hard, max_retries=0).remote({SHORT_CUT_S / 2}, {str(mark)!r})
""")
    wait_for(mark.exists, WITHIN_S, "the task to run")

    cut_at = time.monotonic()
    cluster.third.cut()
    # Old connections and new ones, in both directions:
    driver.do(f"""
calls = [counter.add.remote() for _ in range(1000)]
given = digest_of.options(**hard).remote(noise(2, {LARGE_BYTES}))
more = [where.options(**hard).remote() for _ in range(20)]
late = Counter.options(**hard).remote()
first = late.add.remote()
""")
    driver.say("digest(skate.get(made))")
    end_short_cut(cluster.third, cut_at)

    assert driver.hear() == digest(noise(1, LARGE_BYTES))
    assert driver.do("skate.get(calls)") == list(range(2, 1002)), "each is made once, and the actor has its state"
    assert driver.do("skate.get(task)") == third
    assert driver.do("skate.get(given)") == digest(noise(2, LARGE_BYTES))
    assert set(driver.do("skate.get(more)")) == {third}
    assert driver.do("skate.get(first)") == 1
    assert_nobody_is_declared_dead(cluster, driver, cut_at)
    assert driver.do("skate.get(counter.add.remote())") == 1002


def test_a_host_that_is_spoken_to_for_the_first_time_in_a_short_cut_hears_it(cluster: HostCluster) -> None:
    """Nobody answers who has the address, so after three seconds the kernel says that there is no route to the host."""
    driver = cluster.driver(cluster.second)
    cut_at = time.monotonic()
    cluster.second.cut()
    driver.do("task = where.options(resources={'third': 1}).remote()")
    time.sleep(max(0.0, cut_at + 2.2 - time.monotonic()))
    cluster.second.restore()
    assert driver.do("skate.get(task, timeout=5)") == cluster.ids[cluster.third]
    assert (
        driver.do("skate.get(where.options(resources={'third': 1}).remote(), timeout=5)") == cluster.ids[cluster.third]
    )
    assert_nobody_is_declared_dead(cluster, driver, cut_at)


def test_work_goes_on_between_hosts_that_cannot_reach_the_control_service(cluster: HostCluster) -> None:
    third = cluster.ids[cluster.third]
    driver = cluster.driver(cluster.second)
    driver.do(f"""
hard = dict(scheduling_strategy=at({third!r}), num_cpus=0)
counter = Counter.options(**hard).remote()
skate.get([counter.add.remote(), where.options(**hard).remote()])
""")
    cut_at = time.monotonic()
    cluster.head.cut()
    driver.do("late = Counter.options(**hard).remote()")
    driver.do("first = late.add.remote()")
    assert driver.do("skate.get([counter.add.remote() for _ in range(200)])") == list(range(2, 202))
    assert set(driver.do("skate.get([where.options(**hard).remote() for _ in range(50)])")) == {third}
    here = cluster.ids[cluster.second]
    assert set(driver.do("skate.get([where.remote() for _ in range(50)])")) <= {here, third}
    assert driver.do("skate.wait([first], timeout=0.1)[0]") == [], "this needs the control service, and waits"
    end_short_cut(cluster.head, cut_at)

    assert driver.do("skate.get(first)") == 1
    assert driver.do(
        f"skate.get(digest_of.options(resources={{'head': 1}}).remote(noise(3, {LARGE_BYTES})))"
    ) == digest(noise(3, LARGE_BYTES))
    assert_nobody_is_declared_dead(cluster, driver, cut_at)
    assert driver.do("skate.get(counter.add.remote())") == 202


def test_a_driver_on_a_host_that_is_no_node_listens_nowhere(cluster: HostCluster) -> None:
    driver = cluster.remote_driver()
    assert driver.nodes() == {node_id: host.address for host, node_id in cluster.ids.items()}
    assert set(driver.do("skate.get([where.remote(0.3) for _ in range(15)])")) == set(cluster.ids.values())
    for seed, name in enumerate(("head", "second", "third")):
        data = digest(noise(seed, LARGE_BYTES))
        driver.do(f"there = {{'resources': {{{name!r}: 1}}, 'num_cpus': 0}}; data = noise({seed}, {LARGE_BYTES})")
        assert driver.do("skate.get(digest_of.options(**there).remote(data))") == data, f"to {name}"
        assert driver.do("skate.get(read.options(**there).remote([skate.put(data)]))") == data, f"to {name}, fetched"
        assert driver.do(f"digest(skate.get(make.options(**there).remote({seed}, {LARGE_BYTES})))") == data, (
            f"from {name}"
        )
    driver.do("counter = Counter.options(resources={'third': 1}).remote()")
    assert driver.do("skate.get([counter.add.remote() for _ in range(100)])") == list(range(1, 101))
    assert listeners(cluster.outside) == set()


def test_a_program_gives_the_same_results_on_a_slow_network(cluster: HostCluster) -> None:
    try:
        for host in (cluster.head, cluster.second, cluster.third):
            host.delay(10)
    except Unavailable as missing:
        pytest.skip(str(missing))
    driver = cluster.driver(cluster.second)
    assert set(driver.do("skate.get([where.remote(0.3) for _ in range(15)])")) == set(cluster.ids.values())
    driver.do("there = dict(resources={'third': 1}, num_cpus=0); counter = Counter.options(**there).remote()")
    assert driver.do("skate.get([counter.add.remote() for _ in range(100)])") == list(range(1, 101))
    data = digest(noise(1, LARGE_BYTES))
    assert driver.do(f"skate.get(digest_of.options(**there).remote(noise(1, {LARGE_BYTES})))") == data
    assert driver.do(f"digest(skate.get(make.options(**there).remote(1, {LARGE_BYTES})))") == data
    assert set(driver.nodes()) == set(cluster.ids.values())


#: Connects to a host and port, sends what its input has, and prints as hexadecimal digits all that comes back until
#: the other end hangs up.
STRANGER = """
import socket, sys

with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
    got = b""
    try:
        connection.sendall(sys.stdin.buffer.read())
        while data := connection.recv(4096):
            got += data
    except ConnectionError:
        pass
    print(got.hex())
"""


def test_a_stranger_without_the_token_gets_nothing(cluster: HostCluster) -> None:
    driver = cluster.driver(cluster.second)
    driver.do("counter = Counter.options(resources={'third': 1}).remote(); skate.get(counter.add.remote())")
    doors = [(host.address, port) for host in cluster.ids for _, port in listeners(host)]
    assert len(doors) == 4
    asked = encoder.encode(Ask("nodes"))
    message = HEADER.pack(len(asked)) + asked
    hello = Handshake(b"another token", listens=True).begin()
    proof = Handshake(b"another token", listens=False).receive(hello)
    words = {
        "what browsers say": b"GET / HTTP/1.1\r\nHost: head\r\n\r\n",
        "noise": noise(1, 100_000),
        "a message without a handshake": message,
        "a handshake with another token, and a message": proof + message,
    }
    for what, said in words.items():
        strangers = [
            cluster.outside.popen(
                [sys.executable, "-c", STRANGER, address, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for address, port in doors
        ]
        for stranger in strangers:
            got = bytes.fromhex(stranger.communicate(said, timeout=WITHIN_S)[0].decode())
            assert len(got) <= len(hello), f"{what} was answered with more than the versions in use"
            assert cluster.token.encode() not in got
    with pytest.raises(DriverError, match="token"):
        cluster.remote_driver(token="a" * 64)
    assert driver.do("skate.get(counter.add.remote())") == 2
    assert set(driver.nodes()) == set(cluster.ids.values())
    assert set(driver.do("skate.get([where.remote(0.2) for _ in range(15)])")) == set(cluster.ids.values())
