"""Several hosts on this machine: network namespaces on a switch of their own, with cables that a test can cut.

Loopback cannot show what a network does to a program: a peer that falls silent without a reset, an address that is not
127.0.0.1, a slow link. Here each host is a network namespace, and a cable (a veth pair) joins it to a switch (a bridge)
that has a namespace of its own:

    host0: eth0 10.77.5.1 ─── port0 ┐
    host1: eth0 10.77.5.2 ─── port1 ┼ br0 in the namespace "switch"
    host2: eth0 10.77.5.3 ─── port2 ┘

    with Network(hosts=3) as network:
        server = network.hosts[0].popen([sys.executable, "server.py", network.hosts[0].address])
        network.hosts[0].cut()

Only the network is apart: processes, files and shared memory are those of the machine.

A cable is slowed down by the kernel (netem) where it can do that. Where it cannot, a program in the namespace of the
switch (tests/slow_cable.py) carries the packets between two devices, near and far, and takes its time:

    host0: eth0 10.77.5.1 ─── port0 ─ port0-slow ─ port0-near ··· the program ··· port0-far ─ br0

port0-slow is a bridge with nothing else on it. The host's end stays as it is, so neither its address nor its routes nor
any connection notices the change.

Invariants, kept by tests/integration/test_netns_harness.py:

- The machine's own network is not touched: no link is ever made in its namespace, and no host has a way out.
  So networks never meet either, and those of parallel test processes could even share addresses; the third number of
  an address changes from network to network so that a log tells them apart.
- Nothing outlives the `with`: what still runs in a namespace is killed, whether the harness or one of its descendants
  started it, in whatever session, and the namespaces are removed.
- If the test process itself is killed, the next network that anyone makes removes what is left. Names say whose they
  are: `skate-test-<pid>-<start time of that process>-<number>-<role>`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import slow_cable
from waiting import wait_for

#: Where `ip netns` keeps a file for each namespace that has a name.
NAMESPACES = Path("/var/run/netns")

PREFIX = "skate-test"
NAME = re.compile(rf"{PREFIX}-(?P<pid>\d+)-(?P<started>\d+)-\d+-\w+")

#: The switch could carry more, but the last number of an address counts the hosts.
HOSTS_MAX = 254

#: Far more than one call of `ip`, or the end of a killed process, takes on a busy machine.
WITHIN_S = 20.0

#: Which Debian package has each tool that is needed.
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}

#: What `tc` says, today and in older versions, when the kernel was built without the scheduler that it was asked for.
NO_SUCH_SCHEDULER = ("qdisc kind is unknown", "Specified qdisc not found", "No such file or directory")

#: So many packets may wait for the program that is a slow cable: more than the windows of some busy connections, so
#: that none is lost but those that a test wants to lose.
SLOW_CABLE_QUEUE = 10_000

#: A hardware address that none of the hosts has.
NO_HOST = "02:00:00:00:00:ff"

_numbers = itertools.count()


class Unavailable(Exception):
    """This machine cannot do what was asked; the text is a reason to skip a test."""


class CommandFailed(Exception):
    """A command that sets up the network failed: `command`, `exit_code` and `stderr` say which and how."""

    def __init__(self, command: Sequence[str], exit_code: int, stderr: str) -> None:
        super().__init__(command, exit_code, stderr)
        self.command = command
        self.exit_code = exit_code
        self.stderr = stderr

    def __str__(self) -> str:
        return f"`{' '.join(self.command)}` ended with exit code {self.exit_code}: {self.stderr.strip()}"


@functools.cache
def reason_to_skip() -> str | None:
    """Why no network can be made here, in a sentence; None if one can. Found out once, by making one."""
    try:
        with Network(hosts=1) as network:
            network.hosts[0].run(["true"], check=True, capture_output=True, timeout=WITHIN_S)
    except Unavailable as missing:
        return str(missing)
    except (CommandFailed, subprocess.CalledProcessError) as failed:
        stderr = failed.stderr if isinstance(failed.stderr, str) else failed.stderr.decode(errors="replace")
        return (
            "network namespaces cannot be made here, which takes root, or CAP_SYS_ADMIN and CAP_NET_ADMIN: "
            + " ".join(stderr.split())
        )
    return None


def remove_stale_namespaces() -> list[str]:
    """Remove the namespaces of test processes that are gone, with what still runs in them; their names."""
    removed = []
    for path in _namespace_files():
        name = NAME.fullmatch(path.name)
        if name and _start_time(int(name["pid"])) != name["started"]:
            _end_processes(path.name)
            _remove_namespace(path.name)
            removed.append(path.name)
    return removed


class Host:
    """One host: commands run in its namespace, and its cable can be cut and slowed down."""

    def __init__(self, namespace: str, address: str, *, switch: str, port: str) -> None:
        self.namespace = namespace
        self.address = address
        #: The namespace that the other end of the cable is in, and the name of that end.
        self._switch = switch
        self._port = port
        #: Whether the cable is out of the switch.
        self._is_cut = False
        #: Whether a scheduler that delays was set, which has to go when the delay does.
        self._has_netem = False
        #: The program that delays, where the kernel has no such scheduler.
        self._slow_cable: _SlowCable | None = None
        #: Everything that `popen` started, and that program, for the network to end.
        self._started: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"Host({self.namespace!r}, {self.address!r})"

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on this host; `options` are those of `subprocess.Popen`, but `shell` and `executable`.

        The pid is that of the command. One that does not exist is no error here, but ends with exit code 127.
        """
        process = subprocess.Popen(self._inside(command, options), **options)
        self._started.append(process)
        return process

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command on this host until it ends; `options` are those of `subprocess.run`, as in `popen`."""
        return subprocess.run(self._inside(command, options), **options)

    def cut(self) -> None:
        """Pull the cable out of the switch: packets vanish, and nobody is told. The host's own link stays up."""
        _call("ip", "-n", self._switch, "link", "set", self._plug, "nomaster")
        self._is_cut = True

    def restore(self) -> None:
        """Put the cable back; when this returns, packets pass."""
        _call("ip", "-n", self._switch, "link", "set", self._plug, "master", "br0")
        self._is_cut = False
        self._wait_connected()

    def cut_from(self, other: Host) -> None:
        """Packets between the two vanish, and nobody is told; each still reaches all other hosts.

        Each believes that the other has a hardware address that no host has: the switch finds nobody to give them to.
        """
        for host, far in ((self, other), (other, self)):
            entry = ("replace", far.address, "lladdr", NO_HOST, "nud", "permanent", "dev", "eth0")
            _call("ip", "-n", host.namespace, "neighbour", *entry)

    def rejoin(self, other: Host) -> None:
        """Packets pass again between the two."""
        for host, far in ((self, other), (other, self)):
            _call("ip", "-n", host.namespace, "neighbour", "del", far.address, "dev", "eth0")

    def delay(self, ms: float, loss_percent: float = 0) -> None:
        """Hold up every packet for so long on the cable, in each direction, and lose some; with zeros, no longer.

        A round trip takes twice the delay more. What is on its way when the delay ends may be lost, and a cable that is
        cut stays so. Raises `Unavailable` where neither the kernel nor a program can do that.
        """
        if ms < 0 or not 0 <= loss_percent <= 100:
            raise ValueError(f"a delay is not negative and a loss is 0 to 100 percent; got {ms} ms, {loss_percent} %")
        if ms == 0 and loss_percent == 0:
            self._remove_netem()
            self._remove_slow_cable()
        elif self._slow_cable is not None:
            self._slow_cable.slow_down(ms, loss_percent)
        else:
            try:
                self._set_netem(ms, loss_percent)
            except Unavailable as without_netem:
                try:
                    self._lay_slow_cable(ms, loss_percent)
                except Unavailable as without_program:
                    raise Unavailable(f"{without_netem}; and {without_program}") from without_netem

    @property
    def _plug(self) -> str:
        """The end of the cable that is in the switch, unless it is cut."""
        return self._port if self._slow_cable is None else self._slow_cable.far

    def _set_netem(self, ms: float, loss_percent: float) -> None:
        for namespace, link in self._ends():
            change = ("qdisc", "replace", "dev", link, "root", "netem", "delay", f"{ms}ms", "loss", f"{loss_percent}%")
            try:
                _call("tc", "-n", namespace, *change)
            except CommandFailed as failed:
                if any(text in failed.stderr for text in NO_SUCH_SCHEDULER):
                    raise Unavailable(
                        "links cannot be slowed down here: this kernel has no netem (CONFIG_NET_SCH_NETEM): "
                        + failed.stderr.strip()
                    ) from failed
                raise
        self._has_netem = True

    def _remove_netem(self) -> None:
        if self._has_netem:
            for namespace, link in self._ends():
                _call("tc", "-n", namespace, "qdisc", "del", "dev", link, "root")
        self._has_netem = False

    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The ends of the cable: the namespace and the name of each."""
        return (self.namespace, "eth0"), (self._switch, self._port)

    def _lay_slow_cable(self, ms: float, loss_percent: float) -> None:
        cable = _SlowCable(self._switch, self._port, self._started)
        cable.slow_down(ms, loss_percent)
        # At no time do two ways lead from the host to the switch: packets would go round and round.
        _batch(
            self._switch,
            [
                f"link add {cable.bridge} type bridge",
                f"link set {cable.bridge} up",
                f"link set {cable.far} txqueuelen {SLOW_CABLE_QUEUE} up",
                f"link set {cable.near} txqueuelen {SLOW_CABLE_QUEUE} master {cable.bridge} up",
                f"link set {self._port} master {cable.bridge}",
                *([] if self._is_cut else [f"link set {cable.far} master br0"]),
            ],
        )
        self._slow_cable = cable
        self._wait_connected()

    def _remove_slow_cable(self) -> None:
        if self._slow_cable is None:
            return
        bridge = self._slow_cable.bridge
        self._slow_cable.end()
        self._slow_cable = None
        plug = "nomaster" if self._is_cut else "master br0"
        _batch(self._switch, [f"link set {self._port} {plug}", f"link delete {bridge}"])
        self._wait_connected()

    def _inside(self, command: Sequence[str], options: dict[str, Any]) -> list[str]:
        if refused := options.keys() & {"shell", "executable"}:
            raise TypeError(f"{refused.pop()}= would replace the program that enters the namespace")
        return _entering(self.namespace, command)

    def _wait_connected(self) -> None:
        """Wait until every link between the host and the switch forwards; or up to the cut, if there is one."""
        links = [] if self._is_cut else [self._plug]
        if self._slow_cable is not None:
            links += [self._port, self._slow_cable.near]
        for link in links:
            self._wait_forwarding(link)

    def _wait_forwarding(self, name: str) -> None:
        # A packet that comes before its port forwards is lost, and the next try of ARP is a second away.
        def forwards() -> bool:
            link = json.loads(_call("ip", "-n", self._switch, "-details", "-json", "link", "show", name))[0]
            info = link["linkinfo"]
            # A TAP device works from the start and never says so.
            works = info["info_kind"] == "tun" or link["operstate"] == "UP"
            return bool(works and info.get("info_slave_data", {}).get("state") == "forwarding")

        wait_for(forwards, WITHIN_S, f"the switch to forward what {self} sends")


class _SlowCable:
    """The program that is a slow cable, as long as it runs; its devices are there then, and lead nowhere at first."""

    def __init__(self, switch: str, port: str, started: list[subprocess.Popen[Any]]) -> None:
        #: The bridge that joins the host's own cable to this one, and the two ends of this one.
        self.bridge, self.near, self.far = f"{port}-slow", f"{port}-near", f"{port}-far"
        try:
            os.close(os.open(slow_cable.TUN, os.O_RDWR))
        except OSError as error:
            raise Unavailable(f"no program can do it either, which takes TAP devices: {error}") from error
        self._command = _entering(switch, [sys.executable, slow_cable.__file__, self.near, self.far])
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            self._command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the test.
            start_new_session=True,
        )
        #: What the network has to end: this process as well, unless it ends before.
        self._started = started
        self._started.append(self._process)

    def slow_down(self, ms: float, loss_percent: float) -> None:
        """When this returns, that is what happens to the packets."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended, and so has its output.
            process.stdin.write(f"{ms} {loss_percent}\n".encode())
        if not select.select([process.stdout], [], [], WITHIN_S)[0]:
            raise subprocess.TimeoutExpired(self._command, WITHIN_S)
        if not process.stdout.readline():
            raise CommandFailed(self._command, process.wait(WITHIN_S), "it wrote why to the stderr of the test")

    def end(self) -> None:
        """The devices are gone when this returns."""
        self._process.kill()
        _bury(self._process)
        self._started.remove(self._process)


class Network:
    """Some hosts on one switch, from entering the `with` until leaving it."""

    def __init__(self, hosts: int) -> None:
        if not 1 <= hosts <= HOSTS_MAX:
            raise ValueError(f"a network has 1 to {HOSTS_MAX} hosts; got {hosts}")
        remove_stale_namespaces()
        pid, number = os.getpid(), next(_numbers)
        self._name = f"{PREFIX}-{pid}-{_start_time(pid)}-{number}"
        self._switch = f"{self._name}-switch"
        subnet = 1 + (pid + number) % 254
        self.hosts = [
            Host(f"{self._name}-host{i}", f"10.77.{subnet}.{i + 1}", switch=self._switch, port=f"port{i}")
            for i in range(hosts)
        ]

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        _call("ip", "netns", "add", self._switch)
        _batch(self._switch, ["link set lo up", "link add br0 type bridge", "link set br0 up"])
        for host in self.hosts:
            _call("ip", "netns", "add", host.namespace)
            # Both ends are made where they belong: the machine's own namespace never sees them.
            _batch(
                self._switch,
                [
                    f"link add {host._port} type veth peer name eth0 netns {host.namespace}",
                    f"link set {host._port} master br0 up",
                ],
            )
            _batch(host.namespace, ["link set lo up", f"address add {host.address}/24 dev eth0", "link set eth0 up"])
        for host in self.hosts:
            host._wait_connected()

    def leftovers(self) -> list[str]:
        """The names of this network's namespaces that exist: all of them inside the `with`, none after it."""
        return [path.name for path in _namespace_files() if path.name.startswith(f"{self._name}-")]

    def close(self) -> None:
        """Kill what runs on the hosts and remove them; nothing happens if that was done.

        Pipes to what `popen` started are closed: what a test wants to read from them, it reads before.
        """
        started = [process for host in self.hosts for process in host._started]
        for process in started:
            # One that was started just now may not have entered its namespace, where the others are looked for.
            process.kill()
        try:
            for name in self.leftovers():
                _end_processes(name)
        finally:
            with contextlib.ExitStack() as removals:  # Each is tried, even if another fails.
                for name in self.leftovers():
                    removals.callback(_remove_namespace, name)
                for process in started:
                    removals.callback(_bury, process)


def _bury(process: subprocess.Popen[Any]) -> None:
    """Wait for a killed process and close its pipes."""
    process.wait(WITHIN_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # There may be unsent text for it.
                pipe.close()


# --- Namespaces and the processes in them -----------------------------------------------------------------------------


def _entering(namespace: str, command: Sequence[str]) -> list[str]:
    """A command that runs another one in a namespace."""
    # It enters and becomes the command, so the pid stays. `ip netns exec` would do so too, but also mount another /sys,
    # without the control groups that Skate reads its limits from.
    return [_tool("nsenter"), f"--net={NAMESPACES / namespace}", "--", *command]


def _namespace_files() -> list[Path]:
    """All of the machine's, whoever made them; there is no directory before the first."""
    return sorted(NAMESPACES.iterdir()) if NAMESPACES.exists() else []


def _remove_namespace(name: str) -> None:
    try:
        _call("ip", "netns", "del", name)
    except CommandFailed:
        # Two test processes may find the same stale namespace.
        if (NAMESPACES / name).exists():
            raise


def _end_processes(namespace: str) -> None:
    """Kill every process in a namespace of ours, and wait until none is left."""
    with contextlib.suppress(FileNotFoundError):
        identity = _identity(NAMESPACES / namespace)
        # Only the harness makes such names; but a mistake here would kill everything on the machine.
        if identity != _identity(Path("/proc/self/ns/net")):
            wait_for(lambda: _kill_all_in(identity) == 0, WITHIN_S, f"the processes in {namespace} to end")


def _kill_all_in(identity: tuple[int, int]) -> int:
    """Kill each process in a namespace that is seen now; how many there were."""
    found = 0
    for pid in _pids_in(identity):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # The pid may have changed hands since it was listed; what the descriptor means does not.
                if pid in _pids_in(identity, pid):
                    found += 1
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)
    return found


def _pids_in(identity: tuple[int, int], *candidates: int) -> Iterator[int]:
    """Those of the candidates, or of all processes, that are in the namespace. The dead are in none."""
    for pid in candidates or (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        # It may have ended, or be somebody else's.
        with contextlib.suppress(OSError):
            if _identity(Path(f"/proc/{pid}/ns/net")) == identity:
                yield pid


def _identity(namespace: Path) -> tuple[int, int]:
    """What tells one namespace from another, whichever file leads to it."""
    status = namespace.stat()
    return status.st_dev, status.st_ino


def _start_time(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None for one that has ended. Pids come round again."""
    try:
        # The name of the program, in parentheses, may hold anything; the fields after it are counted from the third.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


# --- Tools ------------------------------------------------------------------------------------------------------------


def _tool(name: str) -> str:
    # Where these tools are is not on the path of every user.
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
    if path is None:
        raise Unavailable(f"there is no `{name}` here; on Debian, `apt-get install {PACKAGES[name]}` brings it")
    return path


def _batch(namespace: str, lines: list[str]) -> None:
    """Run several commands of `ip` in a namespace, up to the first that fails."""
    _call("ip", "-n", namespace, "-batch", "-", stdin="\n".join(lines))


def _call(name: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool and return what it printed, or raise."""
    done = subprocess.run(
        [_tool(name), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode != 0:
        raise CommandFailed([name, *arguments], done.returncode, done.stderr)
    return done.stdout
