"""The harness for tests with several hosts (tests/netns.py) does what it says, to the kernel and after itself."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import netns
import slow_cable
from netns import CommandFailed, Host, Network, Unavailable
from waiting import WITHIN_S, wait_for

#: A connection that has not answered for so long stalls: an answer takes less than a thousandth of that here.
STALL_S = 0.5

#: Answers every line with itself, on as many connections as there are; prints the port that it listens on.
ECHO = """
import socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

server = Server((sys.argv[1], 0), Echo)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

#: Sends each line of its input over one connection and prints the answer, or the error that ended the connection.
CLIENT = """
import socket, sys

with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection, connection.makefile("rb") as answers:
    print("connected", flush=True)
    for line in sys.stdin.buffer:
        try:
            connection.sendall(line)
            print(answers.readline().decode().strip(), flush=True)
        except OSError as error:
            print(repr(error), flush=True)
"""

#: For each line of its input, sends that many numbered datagrams, and says when it has.
COUNTER = """
import socket, sys

target = socket.socket(type=socket.SOCK_DGRAM)
for line in sys.stdin:
    for number in range(int(line)):
        target.sendto(b"%d" % number, (sys.argv[1], int(sys.argv[2])))
    print("sent", flush=True)
"""

#: Prints the port that it receives datagrams at, and for each line of its input, those that have come by then.
RECEIVER = """
import socket, sys

source = socket.socket(type=socket.SOCK_DGRAM)
source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
source.bind((sys.argv[1], 0))
source.setblocking(False)
print(source.getsockname()[1], flush=True)
for line in sys.stdin:
    came = []
    try:
        while True:
            came.append(source.recv(100).decode())
    except BlockingIOError:
        print(*came, flush=True)
"""

#: Starts a process in a session of its own, deaf to everything that can be ignored, prints both pids, and waits.
WITH_DAEMON = """
import os, signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), daemon.pid, flush=True)
signal.pause()
"""

#: A test process that makes a network, starts something on it, and is killed.
CRASHING_TEST = """
import os, signal, subprocess
from netns import Network

network = Network(hosts=2).__enter__()
sleeper = network.hosts[0].popen(["sh", "-c", "echo up; exec sleep 600"], stdout=subprocess.PIPE)
sleeper.stdout.readline()
print(sleeper.pid, *network.leftovers(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

#: A test process that slows down a cable by a program, and is killed.
CRASHING_SLOW_TEST = """
import os, signal
import netns

def no_netem(*_):
    raise netns.Unavailable("no netem")

netns.Host._set_netem = no_netem
network = netns.Network(hosts=1).__enter__()
host, = network.hosts
host.delay(1)
print(*[process.pid for process in host._started], *network.leftovers(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Boom(Exception):
    """What the body of a test may raise."""


class Program:
    """A Python program on a host, which is spoken to line by line."""

    def __init__(self, host: Host, text: str, *arguments: object) -> None:
        command = [sys.executable, "-c", text, *map(str, arguments)]
        self.process: subprocess.Popen[bytes] = host.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    def hear(self, timeout_s: float = WITHIN_S) -> str | None:
        """The next line that it prints, or None if it stays silent. Each line is printed at once, so none is split."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            return None
        return self.process.stdout.readline().decode().strip()

    def ask(self, line: str) -> str | None:
        self.say(line)
        return self.hear()


def echo_server(host: Host) -> tuple[str, str]:
    """Start one; its address and port."""
    port = Program(host, ECHO, host.address).hear()
    assert port, "the server did not start"
    return host.address, port


def connected(host: Host, server: tuple[str, str]) -> Program:
    client = Program(host, CLIENT, *server)
    assert client.hear() == "connected"
    return client


def round_trip_s(client: Program) -> float:
    """The shortest of some: what a busy machine adds is not of interest."""

    def once() -> float:
        start = time.monotonic()
        assert client.ask("again") == "again"
        return time.monotonic() - start

    return min(once() for _ in range(5))


def links_of_the_switch(network: Network) -> set[str]:
    links = netns._call("ip", "-n", network._switch, "-json", "link", "show")
    return {link["ifname"] for link in json.loads(links)}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def possible_here() -> None:
    if reason := netns.reason_to_skip():
        pytest.skip(reason)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(hosts=3) as made:
        yield made


@pytest.fixture
def without_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cables are slowed down by a program, on every machine that has TAP devices."""

    def no_netem(*_: Any) -> None:
        raise Unavailable("netem is not to be used")

    monkeypatch.setattr(Host, "_set_netem", no_netem)
    try:
        os.close(os.open(slow_cable.TUN, os.O_RDWR))
    except OSError as error:
        pytest.skip(f"there are no TAP devices here: {error}")


# --- The network ------------------------------------------------------------------------------------------------------


def test_every_host_reaches_every_host(network: Network) -> None:
    servers = [echo_server(host) for host in network.hosts]
    for i, host in enumerate(network.hosts):
        for j, server in enumerate(servers):
            assert connected(host, server).ask(f"from {i} to {j}") == f"from {i} to {j}"


def test_hosts_have_addresses_of_their_own_and_a_loopback(network: Network) -> None:
    assert len({host.address for host in network.hosts}) == 3
    loop = "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()).close()"
    for host in network.hosts:
        assert host.address.startswith("10.77.")
        host.run([sys.executable, "-c", loop], check=True, timeout=WITHIN_S)


def test_the_network_of_the_machine_is_not_touched() -> None:
    before = socket.if_nameindex()
    with Network(hosts=2) as network:
        assert socket.if_nameindex() == before
        # The host sees its own links and no others, and it has no way to anywhere but its neighbours.
        names = "import socket; print(*(name for _, name in socket.if_nameindex()))"
        assert network.hosts[0].run([sys.executable, "-c", names], capture_output=True, text=True).stdout == "lo eth0\n"
        routes = network.hosts[0].run(["cat", "/proc/net/route"], capture_output=True, text=True).stdout
        assert len(routes.splitlines()) == 2, routes
    assert socket.if_nameindex() == before


def test_networks_do_not_meet() -> None:
    with Network(hosts=1) as one, Network(hosts=1) as other:
        assert one.hosts[0].address != other.hosts[0].address
        assert one.leftovers() != other.leftovers()
        connect = f"import socket; socket.create_connection({echo_server(one.hosts[0])!r})"
        done = other.hosts[0].run([sys.executable, "-c", connect], capture_output=True, text=True, timeout=WITHIN_S)
        assert "Network is unreachable" in done.stderr


def test_the_pid_of_a_process_is_that_of_the_command(network: Network) -> None:
    program = Program(network.hosts[0], "import os; print(os.getpid(), os.getsid(0))")
    assert program.hear() == f"{program.process.pid} {os.getsid(0)}"


def test_options_of_subprocess_pass_through(network: Network, tmp_path: Path) -> None:
    command = ["sh", "-c", 'pwd; echo "$GREETING"; exit 3']
    options: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "GREETING": "hello"}, "start_new_session": True}
    done = network.hosts[0].run(command, capture_output=True, text=True, timeout=WITHIN_S, **options)
    assert (done.returncode, done.stdout) == (3, f"{tmp_path}\nhello\n")
    process = network.hosts[0].popen(["sleep", "600"], **options)
    assert os.getsid(process.pid) == process.pid
    with pytest.raises(subprocess.TimeoutExpired):
        network.hosts[0].run(["sleep", "600"], timeout=0.01)
    with pytest.raises(TypeError, match="shell"):
        network.hosts[0].popen(["true"], shell=True)


@pytest.mark.parametrize("hosts", [0, netns.HOSTS_MAX + 1])
def test_a_network_has_a_bounded_number_of_hosts(hosts: int) -> None:
    with pytest.raises(ValueError, match=f"got {hosts}"):
        Network(hosts=hosts)


# --- Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["server", "client"])
def test_a_connection_over_a_cut_cable_stalls_and_goes_on_when_it_is_restored(network: Network, end: str) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))
    assert connection.ask("before") == "before"

    cut = server if end == "server" else client
    cut.cut()
    connection.say("meanwhile")
    assert connection.hear(STALL_S) is None
    assert connection.process.poll() is None

    cut.restore()
    assert connection.hear() == "meanwhile"
    assert connection.ask("after") == "after"


def test_a_new_connection_to_a_cut_host_stalls_and_is_not_refused(network: Network) -> None:
    server, client = network.hosts[:2]
    echo = echo_server(server)
    assert connected(client, echo).ask("known to each other") == "known to each other"
    server.cut()
    connection = Program(client, CLIENT, *echo)
    assert connection.hear(STALL_S) is None
    server.restore()
    assert connection.hear() == "connected"


def test_cutting_one_host_leaves_the_others_connected(network: Network) -> None:
    first, second, third = network.hosts
    echo = echo_server(first)
    to_second, to_third = connected(second, echo), connected(third, echo)
    third.cut()
    to_third.say("lost")
    assert to_second.ask("still here") == "still here"
    assert connected(second, echo).ask("and anew") == "and anew"
    assert to_third.hear(STALL_S) is None


def test_two_hosts_can_be_cut_off_from_each_other_alone(network: Network) -> None:
    first, second, third = network.hosts
    echo = echo_server(first)
    to_second, to_third = connected(second, echo), connected(third, echo)
    other_way = connected(first, echo_server(third))
    assert [it.ask("before") for it in (to_second, to_third, other_way)] == ["before"] * 3
    first.cut_from(third)
    for connection in (to_third, other_way):
        connection.say("meanwhile")
    anew = Program(third, CLIENT, *echo)
    assert to_third.hear(STALL_S) is None
    assert other_way.hear(STALL_S) is None
    assert anew.hear(STALL_S) is None
    assert to_second.ask("still here") == "still here"
    assert connected(third, echo_server(second)).ask("as ever") == "as ever"
    third.rejoin(first)
    assert to_third.hear() == "meanwhile"
    assert other_way.hear() == "meanwhile"
    assert anew.hear() == "connected"


def test_a_cut_host_still_reaches_itself(network: Network) -> None:
    host = network.hosts[0]
    host.cut()
    assert connected(host, echo_server(host)).ask("alone") == "alone"


def test_cutting_and_restoring_twice_is_like_once(network: Network) -> None:
    host = network.hosts[0]
    connection = connected(network.hosts[1], echo_server(host))
    host.restore()
    host.cut()
    host.cut()
    connection.say("meanwhile")
    assert connection.hear(STALL_S) is None
    host.restore()
    host.restore()
    assert connection.hear() == "meanwhile"


def test_a_delay_slows_down_one_host_until_it_is_removed(network: Network) -> None:
    server, client, other = network.hosts
    echo = echo_server(server)
    slow, fast = connected(client, echo), connected(other, echo)
    without_s = round_trip_s(slow)
    delay_ms = 100 + 2000 * without_s  # Not to be mistaken for a busy machine.
    try:
        client.delay(delay_ms)
    except Unavailable as missing:
        pytest.skip(str(missing))
    with_s = round_trip_s(slow)
    assert with_s > without_s + delay_ms / 1000 / 2
    assert round_trip_s(fast) < with_s
    client.delay(0)
    assert round_trip_s(slow) < with_s


def test_loss_is_made_up_for_by_tcp_and_total_loss_is_like_a_cut(network: Network) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))
    try:
        client.delay(0, loss_percent=20)
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert connection.ask("some") == "some"
    client.delay(0, loss_percent=100)
    connection.say("none")
    assert connection.hear(STALL_S) is None
    client.delay(0)
    assert connection.hear() == "none"


def test_a_slow_cable_can_be_cut_and_a_cut_cable_slowed_down(network: Network) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))

    def assert_stalls_until_restored(text: str) -> None:
        connection.say(text)
        assert connection.hear(STALL_S) is None
        client.restore()
        assert connection.hear() == text

    try:
        client.delay(1)
    except Unavailable as missing:
        pytest.skip(str(missing))
    client.cut()
    assert_stalls_until_restored("cut while slow")
    client.cut()
    client.delay(0)
    assert_stalls_until_restored("no longer slow, but cut still")
    client.cut()
    client.delay(1)
    assert_stalls_until_restored("slow since it was cut")
    client.delay(0)
    assert connection.ask("as at first") == "as at first"


@pytest.mark.usefixtures("without_netem")
def test_a_program_slows_a_cable_down_and_takes_nothing_but_time(network: Network) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))
    links = links_of_the_switch(network)
    without_s = round_trip_s(connection)
    delay_s = 0.1 + 2 * without_s
    client.delay(delay_s * 1000)
    assert round_trip_s(connection) > 2 * delay_s
    client.delay(1)  # By the same program.
    assert round_trip_s(connection) < 2 * delay_s
    # The host's link lets the kernel send more at once than a frame holds, and leave out the checksums.
    assert connection.ask("large " * 50_000) == ("large " * 50_000).strip()
    assert links_of_the_switch(network) > links
    client.delay(0)
    assert links_of_the_switch(network) == links
    assert connection.ask("as before") == "as before"


@pytest.mark.usefixtures("without_netem")
@pytest.mark.parametrize("loss_percent", [0, 10])
def test_a_program_that_slows_a_cable_down_keeps_the_order(network: Network, loss_percent: float) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))
    receiver = Program(server, RECEIVER, server.address)
    sender = Program(client, COUNTER, server.address, receiver.hear())
    client.delay(50, loss_percent)
    count = 200
    assert sender.ask(str(count)) == "sent"
    client.delay(1, loss_percent)  # Those that were sent before still come first.
    assert connection.ask("after them") == "after them"
    came = [int(number) for number in (receiver.ask("which?") or "").split()]
    if loss_percent == 0:
        assert came == list(range(count))
    else:
        assert came == sorted(came)
        assert 0 < len(came) < count


def test_where_links_cannot_be_slowed_down_nothing_changes_and_it_says_why(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, client = network.hosts[:2]
    connection = connected(client, echo_server(server))
    links = links_of_the_switch(network)
    client.delay(0)  # There is none to remove.
    tool = netns._tool
    monkeypatch.setattr(netns, "_tool", lambda name: tool("no-such-tool" if name == "tc" else name))
    monkeypatch.setitem(netns.PACKAGES, "no-such-tool", "some-package")
    monkeypatch.setattr(slow_cable, "TUN", str(tmp_path / "no-such-device"))
    with pytest.raises(Unavailable, match=r"apt-get install some-package.*; and .*TAP devices.*no-such-device"):
        client.delay(1)
    client.delay(0)
    assert links_of_the_switch(network) == links
    assert connection.ask("as before") == "as before"


@pytest.mark.parametrize(("ms", "loss_percent"), [(-1, 0), (0, -1), (0, 101)])
def test_impossible_delays_are_refused(network: Network, ms: float, loss_percent: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        network.hosts[0].delay(ms, loss_percent)


# --- Afterwards -------------------------------------------------------------------------------------------------------


def test_everything_is_removed_afterwards_and_only_once() -> None:
    with Network(hosts=2) as network:
        assert len(network.leftovers()) == 3
    assert network.leftovers() == []
    network.close()
    assert network.leftovers() == []


def test_everything_is_removed_when_the_body_raises() -> None:
    with pytest.raises(Boom), Network(hosts=2) as network:
        pids = [int(pid) for pid in (Program(network.hosts[0], WITH_DAEMON).hear() or "").split()]
        network.hosts[1].cut()
        raise Boom
    assert network.leftovers() == []
    assert not any(is_running(pid) for pid in pids)


def test_a_network_that_cannot_be_made_leaves_nothing() -> None:
    network = Network(hosts=2)
    subprocess.run([netns._tool("ip"), "netns", "add", network.hosts[1].namespace], check=True)
    with pytest.raises(CommandFailed, match="File exists"), network:
        pass
    assert network.leftovers() == []


def test_processes_are_killed_with_their_daemons() -> None:
    with Network(hosts=1) as network:
        program = Program(network.hosts[0], WITH_DAEMON)
        pids = [int(pid) for pid in (program.hear() or "").split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
    assert program.process.returncode == -signal.SIGKILL
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.usefixtures("without_netem")
def test_the_program_of_a_slow_cable_is_killed() -> None:
    with Network(hosts=2) as network:
        for host in network.hosts:
            host.delay(1)
        programs = [process for host in network.hosts for process in host._started]
        assert len(programs) == 2
        network.hosts[0].delay(0)
        assert programs[0].returncode == -signal.SIGKILL
        assert programs[1].poll() is None
    assert programs[1].returncode == -signal.SIGKILL
    assert network.leftovers() == []


def test_a_process_that_has_only_just_started_is_killed_too() -> None:
    with Network(hosts=1) as network:
        process = network.hosts[0].popen(["sleep", "600"])
    assert process.returncode == -signal.SIGKILL


def assert_next_network_removes_what_is_left_of(program: str, namespaces: int) -> None:
    """The program is a test process that prints a pid and the names of its namespaces, and is killed."""
    crashed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(netns.__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert crashed.returncode == -signal.SIGKILL
    pid, *names = crashed.stdout.split()
    assert len(names) == namespaces
    Network(hosts=1)
    # A network of another test process may have been the next, and be at it still.
    wait_for(
        lambda: not is_running(int(pid)) and not any((netns.NAMESPACES / name).exists() for name in names),
        WITHIN_S,
        "everything of the killed test process to be gone",
    )


def test_what_a_killed_test_process_left_is_removed_by_the_next_network() -> None:
    assert_next_network_removes_what_is_left_of(CRASHING_TEST, namespaces=3)


@pytest.mark.usefixtures("without_netem")
def test_the_slow_cable_of_a_killed_test_process_is_removed_too() -> None:
    assert_next_network_removes_what_is_left_of(CRASHING_SLOW_TEST, namespaces=2)


def test_what_a_living_test_process_has_is_kept(network: Network) -> None:
    names = network.leftovers()
    assert not set(netns.remove_stale_namespaces()) & set(names)
    assert network.leftovers() == names


# --- Where it is not possible -----------------------------------------------------------------------------------------


def reason_of(*command: str) -> str:
    """What `reason_to_skip` says in a Python that this command starts."""
    program = "from netns import reason_to_skip; print(reason_to_skip())"
    done = subprocess.run(
        [*command, sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(netns.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_the_right_there_is_a_reason_to_skip() -> None:
    assert reason_of() == "None"
    if shutil.which("setpriv") is None:
        pytest.skip("there is no `setpriv` here to give up a right with")
    for right in ("sys_admin", "net_admin"):
        reason = reason_of("setpriv", f"--bounding-set=-{right}", f"--inh-caps=-{right}")
        assert "takes root" in reason
        assert "not permitted" in reason.lower() or "denied" in reason.lower()


def test_a_missing_tool_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(netns.PACKAGES, "no-such-tool", "some-package")
    with pytest.raises(Unavailable, match=r"no `no-such-tool` here.*apt-get install some-package"):
        netns._tool("no-such-tool")
