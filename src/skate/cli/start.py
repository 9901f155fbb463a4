"""`skate start`: a control service and a node (--head), a node (--address), or what is missing (--rendezvous).

What is started has a session and a log of its own, and lives on when this command ends; with --block the command stays,
and ends it. If anything fails, what was started before is ended again: there is either a node that serves, or nothing.

Closed by default: without --host or --node-ip-address a head listens on loopback only. A node that joins a head on
another machine listens on the one address from which it reaches that head, because the others have to reach it;
it was given the token for that. Nothing listens without a token.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import select
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from skate._config import cpu_count, default_store_bytes, store_warning, temporary_directory
from skate._control.config import ControlConfig, StoreConfig, Supervised
from skate._control.storage.errors import StorageError
from skate._control.storage.opening import address_of
from skate._control.storage.redis.connection.address import is_redis
from skate._control.storage.redis.connection.address import parse as parse_servers
from skate._core import environment
from skate._node.launch import LaunchError, start_control, start_node
from skate._node.main import ClusterConfig, NodeConfig
from skate._node.spill import open_nameless
from skate._wire.token import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, TokenError, create_token, default_path, find_token
from skate.cli import rendezvous
from skate.cli.asking import KNOCK_S, Asking, Silent, Unreachable, resolve, token_for, with_token
from skate.cli.parser import PORT, USAGE, Address, show_address
from skate.cli.parser import address as parse_address
from skate.cli.running import Log, Running, find_running, log_directory, tidy_logs
from skate.cli.signals import Signals, Told
from skate.cli.stop import PORT_MARK, end
from skate.cli.trouble import Trouble
from skate.cli.views import bytes_text, duration_text

LOOPBACK = "127.0.0.1"
WILDCARDS = ("0.0.0.0", "::")
#: Pause between two looks whether the head is there.
AGAIN_S = 0.1
#: How long one that has the port already may take to prove that it is a cluster of ours.
OURS_S = 2.0
#: Where the state of clusters is kept that were not told where, in a directory named after the port; and the name for
#: no place at all.
STORE_VARIABLE = "SKATE_STORE"
STORE_PARENT = "~/.skate/store"
MEMORY = "memory"
#: A node does not start where not even so much can be spilled.
SPILL_ROOM_BYTES = 64 << 10


class CannotListen(Trouble):
    """The control service could not start, most likely because somebody else has its address."""


@dataclass
class Started:
    """What this command has started."""

    signals: Signals
    processes: list[tuple[subprocess.Popen[bytes], Log]] = field(default_factory=list)
    #: Where the control service is reached.
    address: Address = ("", 0)
    #: Whether it was started here.
    is_head: bool = False
    #: The control service that was started, for the node that looks after it; and where its state is.
    supervised: Supervised | None = None
    store: str = ""
    node_id: str = ""
    #: Where the control service and the node listen, which need not be where others are told to go.
    head_host: str = ""
    node_host: str = ""
    #: All that was to be started is there.
    serves: bool = False

    def running(self) -> list[Running]:
        """Nodes first, as they are to end first. The control service may have been started again by its node."""
        logs = [log.path for _, log in reversed(self.processes)]
        return sorted((found for found in find_running() if found.log in logs), key=lambda found: logs.index(found.log))

    def end(self, *, keep: bool = False) -> None:
        for found in self.running():
            end([found], keep=keep)
        for process, log in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            log.close()


def start(options: argparse.Namespace) -> int:
    _check(options)
    tidy_logs()
    with Signals() as signals:
        started = Started(signals)
        try:
            _start(options, started)
            if options.block:
                return _stay(started)
        except Told as told:
            started.end(keep=started.serves and told.number == signal.SIGTERM)
            if options.block and started.serves:
                print("Ended.")
                return 0
            return 128 + told.number
        except BaseException:
            started.end()
            raise
        for process, log in started.processes:
            process.returncode = 0  # it is on its own now: nobody waits for it
            log.close()
    return 0


def _start(options: argparse.Namespace, started: Started) -> None:
    if options.head:
        token, source = _token_of_head(options.token_file)
        _start_head(options, started, _host(options), PORT if options.port is None else options.port, token)
    elif options.address is not None:
        token, source = token_for(options.token_file), ""
        _join(options, started, (resolve(options.address[0]), options.address[1]), token)
    elif isinstance(options.rendezvous, str):
        token, source = _meet_by_file(options, started)
    else:
        token, source = _meet_by_address(options, started)
    _tell(options, started, token, source)


def _check(options: argparse.Namespace) -> None:
    """What the parser cannot know."""
    try:
        environment.check(os.environ)
    except ValueError as error:
        raise Trouble(str(error), exit_code=USAGE) from None
    fixed = options.address is not None or isinstance(options.rendezvous, tuple)
    if fixed and options.port is not None:
        raise Trouble(
            "--port is the port of a head, and this command names one already.",
            "leave --port out; the port of this node is --node-port.",
            exit_code=USAGE,
        )
    if options.spill_directory is not None and not os.path.isdir(options.spill_directory):
        raise Trouble(f"--spill-directory {options.spill_directory} is not a directory.", "create it, or name another.")
    if options.token_file:
        options.token_file = os.path.abspath(options.token_file)
    options.spill_directory = os.path.abspath(options.spill_directory or temporary_directory())
    try:
        spill = open_nameless(options.spill_directory)
        with open(spill, "wb", buffering=0) as file:
            file.write(bytes(SPILL_ROOM_BYTES))
            os.fsync(spill)  # a full disk shows now
    except OSError as error:
        raise Trouble(
            f"no objects can be spilled to {options.spill_directory}: {error.strerror}.",
            "make room there, or name another directory with --spill-directory.",
        ) from None


# -- the parts ---------------------------------------------------------------------------------------------------------


def _token_of_head(token_file: str | None) -> tuple[bytes, str]:
    """The token, made if there is none yet, and where it is: a path, or the variable."""
    try:
        if token_file is None and TOKEN_VARIABLE in os.environ:
            return find_token(None), TOKEN_VARIABLE
        path = token_file or os.environ.get(TOKEN_FILE_VARIABLE) or default_path()
        return create_token(path), path
    except TokenError as error:
        raise Trouble(str(error)) from None


def _start_head(
    options: argparse.Namespace, started: Started, host: str, port: int, token: bytes, **about: Any
) -> None:
    """The control service, and the first node."""
    listens = resolve(host)
    reached = _reachable(options) if listens in WILDCARDS else listens
    store = _store(options, port)
    if store is not None:
        about["store"] = os.path.join(store.parent, PORT_MARK) if store.parent else store.address
    log = Log("control", show_address((reached, port)), about)
    try:
        with started.signals.held():
            config = ControlConfig(host=listens, port=port, token=token.decode(), tls=options.tls, store=store)
            process, _, port = start_control(config, log=log.fd)
            started.processes.append((process, log))
    except LaunchError as error:
        why = f"{error.why} {log.last_line()}".strip()
        log.discard()
        if error.of_store:
            raise Trouble(f"the head could not start: {error.why}", error.next) from None
        raise _cannot_listen(options, (reached, port), token, why, listens) from None
    started.address, started.is_head, started.head_host = (reached, port), True, listens
    log.name_cluster(show_address(started.address))
    if store is not None:
        config.port = port
        started.supervised = Supervised(pid=process.pid, config=config, log=log.path)
        started.store = _shown(store, port)
    _start_node(options, started, token, options.host or options.node_ip_address or host)


def _store(options: argparse.Namespace, port: int) -> StoreConfig | None:
    """Where the state of the cluster is kept; None: in memory."""
    try:
        where = address_of(options.store or "")
        servers = parse_servers(where) if is_redis(where) else None
    except StorageError as error:
        raise Trouble(f"the store cannot be used. {error.what} {error.why}", error.next, exit_code=USAGE) from None
    if where == MEMORY:
        return None
    durability = options.store_durability
    if servers is not None:
        return StoreConfig(address=where, parent=os.path.expanduser(STORE_PARENT))
    if where:
        return StoreConfig(address=os.path.abspath(os.path.expanduser(where)), durability=durability)
    # What was stored for a port that the kernel chose is of a cluster to which nothing leads back.
    return StoreConfig(
        parent=os.path.expanduser(STORE_PARENT), durability=durability, fresh=port == 0, passing=port == 0
    )


def _shown(store: StoreConfig, port: int) -> str:
    """Where the state is, without passwords."""
    if store.is_redis:
        return ", ".join(server.name for server in parse_servers(store.address).servers)
    return store.address or os.path.join(store.parent, str(port))


def _cannot_listen(options: argparse.Namespace, where: Address, token: bytes, why: str, listens: str) -> CannotListen:
    """Why the control service did not start; mostly because somebody was there before."""
    try:
        with Asking(where, token, OURS_S) as asking:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(asking.ask("cluster")["started_at"]))
    except Trouble:
        next = "choose another port with --port; `ss -ltnp` shows who has this one."
        if not _is_ours(listens):
            next = "this machine does not have that address; --host takes one that it has, or 0.0.0.0 for all."
        return CannotListen(f"the head could not start: {_without_advice(why)}", next)
    join = f"skate start --address {show_address(where)}{with_token(options)}"
    return CannotListen(
        f"a cluster of yours runs at {show_address(where)} already, since {since}.",
        f"add a node with `{join}`, end it with `skate stop`, or choose --port.",
    )


def _without_advice(why: str) -> str:
    """Ours is better: it knows the options."""
    return why.replace(" Choose another port.", "")


def _join(
    options: argparse.Namespace, started: Started, where: Address, token: bytes, patience_s: float = KNOCK_S
) -> None:
    """A node of a cluster that is there."""
    # However little is left: one that is there must be able to prove it.
    with Asking(where, token, min(KNOCK_S, max(OURS_S, patience_s))) as asking:
        asking.ask("cluster")
    started.address = where
    _start_node(options, started, token, options.host or options.node_ip_address or _address_towards(where[0]))


def _start_node(options: argparse.Namespace, started: Started, token: bytes, host: str) -> None:
    listens = resolve(host)
    advertise = options.node_ip_address or (_reachable(options) if listens in WILDCARDS else "")
    log = Log("node", show_address(started.address), {})
    config = NodeConfig(
        num_cpus=cpu_count() if options.num_cpus is None else options.num_cpus,
        num_gpus=options.num_gpus,
        resources=options.resources,
        memory=options.memory,
        labels=options.labels,
        is_head=started.is_head,
        supervises=started.supervised,
        object_store_memory=options.object_store_memory or default_store_bytes(),
        spill_directory=options.spill_directory,
        cluster=ClusterConfig(
            control=started.address,
            token=token.decode(),
            tls=options.tls or None,
            host=listens,
            port=options.node_port,
            advertise=advertise,
            name=options.name,
        ),
    )
    try:
        with started.signals.held():
            process, said = start_node(config, log=log.fd)
            started.processes.append((process, log))
    except LaunchError as error:
        why = f"{error} {log.last_line()}".strip()
        log.discard()
        raise Trouble(f"the node could not start: {_without_advice(why)}", _advice(options, why)) from None
    started.node_id, started.node_host = said["node_id"], listens


def _advice(options: argparse.Namespace, why: str) -> str:
    if "cannot listen" not in why:
        return ""
    if options.node_ip_address and not options.host:
        return (
            "--node-ip-address is where others connect to; if this machine does not have it itself (a container, NAT), "
            "add --host 0.0.0.0 to listen everywhere."
        )
    return "--node-port names another port, --host another address of this machine."


# -- addresses ---------------------------------------------------------------------------------------------------------


def _host(options: argparse.Namespace) -> str:
    """Where a head listens that was not told where by its rendezvous."""
    return str(options.host or options.node_ip_address or LOOPBACK)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address_towards(host: str) -> str:
    """Our address on the way to that one. Nothing is sent: the kernel looks into its routes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, 9))
            return str(sock.getsockname()[0])
        except OSError as error:
            raise Trouble(
                f"there is no way from here to {host}: {error.strerror}.", "say how others reach it: --node-ip-address."
            ) from None


def _reachable(options: argparse.Namespace) -> str:
    """How others reach a machine that listens everywhere."""
    if options.node_ip_address:
        return resolve(options.node_ip_address)
    # An address of the outer world (a documentation network), for which the kernel names the interface that leads out.
    for look_up, name in ((_address_towards, "192.0.2.1"), (resolve, socket.gethostname())):
        with contextlib.suppress(Trouble):
            if not is_loopback(address := look_up(name)):
                return address
    raise Trouble(
        "--host 0.0.0.0 listens everywhere, but it is not known at which address others reach this machine.",
        "say it with --node-ip-address, or name one address with --host.",
    )


def _is_ours(host: str) -> bool:
    """Whether this machine has that address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return False
    return True


# -- the same command everywhere ---------------------------------------------------------------------------------------


def _meet_by_address(options: argparse.Namespace, started: Started) -> tuple[bytes, str]:
    where = (resolve(options.rendezvous[0]), options.rendezvous[1])
    ours = _is_ours(where[0])
    # Only where the head can be is a token made: on any other machine it would be one that fits nothing.
    token, source = _token_of_head(options.token_file) if ours else (token_for(options.token_file), "")
    here = "this machine could not listen there" if ours else "this machine does not have that address"
    deadline = time.monotonic() + options.wait
    while True:
        next = "run the same command on the machine that has the address, and look what it says there."
        is_taken = False
        try:
            _join(options, started, where, token, deadline - time.monotonic())
            return token, source
        except Unreachable as unreachable:
            why = f"{here}. {unreachable.what}"
        except Silent as silent:
            why, next, is_taken = silent.what, silent.next, True
        if ours and not is_taken:
            try:
                _start_head(options, started, *where, token)
                return token, source
            except CannotListen as busy:  # somebody was faster, and will answer in a moment
                why = f"{here}. {busy.what}"
        if time.monotonic() > deadline:
            raise Trouble(f"no head at {show_address(where)} after {options.wait:g} s; {why}", next)
        time.sleep(AGAIN_S)


def _meet_by_file(options: argparse.Namespace, started: Started) -> tuple[bytes, str]:
    path = options.rendezvous
    deadline = time.monotonic() + options.wait
    why = "it has no address in it yet."
    while True:
        if rendezvous.claim(path):
            try:
                token, source = _token_of_head(options.token_file)
                # Any port will do: the others read it in the file, and other clusters may be on this machine.
                _start_head(options, started, _host(options), options.port or 0, token, rendezvous=path)
                rendezvous.publish(path, show_address(started.address))
                return token, source
            except BaseException:
                rendezvous.withdraw(path)
                raise
        found = rendezvous.read_file(path)
        if found is not None and found.address:
            where = parse_address(found.address)
            if is_loopback(where[0]) and found.machine != socket.gethostname():
                raise Trouble(
                    f"the head, {found.describe()}, listens on its loopback only.",
                    "add --host 0.0.0.0 to the command on every machine, so that they reach each other.",
                )
            try:
                token = token_for(options.token_file)
                _join(options, started, where, token, deadline - time.monotonic())
                return token, ""
            except (Unreachable, Silent) as not_there:
                why = not_there.what
        if time.monotonic() > deadline:
            by = found.describe() if found is not None else "somebody who removed it again"
            raise Trouble(
                f"no head after {options.wait:g} s: {path} was made by {by}, and {why}",
                f"if that was an earlier run, remove the file and start again: rm {shlex.quote(path)}",
            )
        time.sleep(AGAIN_S)


# -- what people see ---------------------------------------------------------------------------------------------------


def _tell(options: argparse.Namespace, started: Started, token: bytes, source: str) -> None:
    with Asking(started.address, token) as asking:
        node = next(node for node in asking.ask("nodes") if node["node_id"] == started.node_id)
        about = asking.ask("cluster")
    started.serves = True
    address = show_address(started.address)
    cpus = cpu_count() if options.num_cpus is None else options.num_cpus
    has = [f"{cpus:g} CPU{'s' if cpus != 1 else ''}"]
    has += [f"{options.num_gpus} GPU{'s' if options.num_gpus != 1 else ''}"] if options.num_gpus else []
    has += [f"{amount:g} {name}" for name, amount in options.resources.items()]
    has += [f"{bytes_text(options.object_store_memory or default_store_bytes())} for objects"]
    lines = [f"This machine is a node of the cluster at {address}.", ""]
    if started.is_head:
        lines = [f"A new cluster runs at {address}, with this machine as its first node.", ""]
    if started.is_head and about["incarnation"] > 1:
        since = duration_text(time.time() - about["began_at"])
        lines = [f"The cluster at {address} goes on: {about['cluster_id']}, begun {since} ago.", ""]
    listens = show_address((started.node_host, node["port"]))
    if node["host"] != started.node_host:
        listens += f", and is reached at {show_address((node['host'], node['port']))}"
    lines.append(f"  node     {node['name']}: {', '.join(has)}; listens on {listens}")
    if warning := store_warning(options.object_store_memory or 0):
        lines.append(f"  note     {warning}")
    if source:
        lines.append(f"  token    {source if source != TOKEN_VARIABLE else f'from {TOKEN_VARIABLE}'}")
    lines.append(f"  logs     {log_directory()}")
    if started.is_head:
        kept = (
            f"{started.store}: a head that is started again goes on"
            if started.store
            else "in memory: ends with the head"
        )
        lines.append(f"  state    {kept}")
    if started.is_head and is_loopback(started.head_host):
        lines.append("  open to  this machine only; --host ADDRESS lets others in")
    elif started.is_head and started.head_host in WILDCARDS:
        lines.append(f"  open to  all networks of this machine: it listens on {started.head_host}")
    end = "Ctrl-C" if options.block else "skate stop"
    lines += [
        "",
        f'  python   skate.init("auto"), or skate.init("{address}")',
        f"  look     skate status{with_token(options)}",
        f"  end      {end}{' (ends the cluster)' if started.is_head else ''}",
    ]
    if started.is_head:
        lines += ["", *_how_to_join(options, address, source, closed=is_loopback(started.address[0]))]
    with contextlib.suppress(BrokenPipeError):  # whether it is read or not, the cluster is there
        print(*lines, sep="\n", flush=True)


def _how_to_join(options: argparse.Namespace, address: str, source: str, *, closed: bool) -> list[str]:
    join = f"  skate start --address {address}"
    if closed:
        return ["One more node on this machine:", join + with_token(options)]
    if source == TOKEN_VARIABLE:
        return [f"On every other machine, with the same {TOKEN_VARIABLE}:", join]
    token = f"{address.rpartition(':')[0]}:{source}"
    return [
        "On every other machine, bring the token (who has it can run code on the cluster) and join:",
        f"  mkdir -p -m 700 ~/.skate && scp -p {shlex.quote(token)} ~/.skate/token",
        join,
    ]


# -- staying -----------------------------------------------------------------------------------------------------------


def _stay(started: Started) -> int:
    """Until something of it has ended, or we are told to (Told is raised)."""
    poll = select.poll()
    for process, _ in started.processes:
        if started.supervised is None or process.pid != started.supervised.pid:  # that one is started again
            poll.register(os.pidfd_open(process.pid), select.POLLIN)
    poll.poll()
    ended = [(process, log) for process, log in started.processes if process.poll() is not None]
    failed = next(((process, log) for process, log in ended if process.returncode), None)
    # What has ended it has decided whether the cluster is over, too. After a crash it goes on with the next start.
    started.end(keep=True)
    if failed is None:
        print("Ended: by `skate stop`, or because the cluster did.")
        return 0
    process, log = failed
    raise Trouble(
        f"pid {process.pid} ended with code {process.returncode}. {log.last_line()}".rstrip(),
        f"see its log, {log.path}",
    )
