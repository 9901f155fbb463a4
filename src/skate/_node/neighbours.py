"""The other nodes of the cluster, and the control service, as a daemon sees them: links, and who can be reached where.

    Daemon ──send(process, message)──▶ is it here? ──no──▶ Neighbours ──ToProcess──▶ the daemon of its node
    a process of another node ──▶ its daemon ──FromProcess──▶ Neighbours ──▶ the daemon's handlers, as a *guest*

A guest is a process of another node that has to do with this one: it leases workers here, or owns objects here. Its own
daemon introduces it (Acquaint), passes on what it says, and tells when it is gone; when its node is gone, so is it.

A link to another node is made when there is something to say to it, by whoever has that first; two that cross are both
kept, and each side sends on the one it made. Links outlast their connections; only the control service says that a node
is dead.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._config import partition_grace_s
from skate._core import lease_events as leases
from skate._core.ids import node_of
from skate._core.membership import DEAD_MAX, DEPARTED_MAX
from skate._core.placement import NodeView
from skate._core.resources import marks_of_node
from skate._node.bridges import Bridges, lost_with_node
from skate._node.callers import Callers
from skate._node.main import JoinError
from skate._node.reach import ID_SHOWN, Reach
from skate._node.remote_control import RemoteControl, unreachable
from skate._node.transfers import Transfers
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.entrance import Tls
from skate._wire.gate import Gate, speaks_tls
from skate._wire.guard import ProtocolError
from skate._wire.handshake import Versions
from skate._wire.link import Link

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.main import ClusterConfig

log = logging.getLogger("skate")

#: Why a node is gone whose death was not heard.
GONE_MEANWHILE = "it was declared dead while this node had no connection to the control service."
#: What processes of other nodes may say, besides what they demand.
GUEST_MESSAGES = (wire.LeaseReturn, wire.KillWorker, wire.GiveUpLease, wire.Free)


class Guest:
    """A process of another node, with what handlers need of a process."""

    def __init__(self, neighbours: Neighbours, message: cluster.Acquaint) -> None:
        self.id = message.process_id
        self.pid = message.pid
        self.job = message.job
        self.channel = Envelope(neighbours, self.id)
        self.worker = None
        self.ready = True


class Envelope:
    """What is sent to a guest goes to its node."""

    def __init__(self, neighbours: Neighbours, process_id: bytes) -> None:
        self._neighbours = neighbours
        self._process_id = process_id
        self.has_backlog = False

    def send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        assert not fds, "descriptors stay on their machine"
        self._neighbours.send_to_process(self._process_id, message)


class Neighbours:
    #: Other nodes may come, and what waits here can go there.
    may_come = True

    def __init__(self, daemon: Daemon, config: ClusterConfig) -> None:
        self._daemon = daemon
        self._config = config
        self.token = config.token.encode()
        self._loop = daemon.loop
        self.members: dict[int, cluster.Member] = {}
        self.guests: dict[bytes, Guest] = {}
        #: Nodes that know of a process of ours.
        self._acquainted: dict[bytes, set[int]] = {}
        self._links: dict[int, Link] = {}
        #: Links that other nodes have made, by their sessions.
        self._made_by_others: dict[bytes, Link] = {}
        #: Numbers of nodes that are held to be dead; no other node will ever have them.
        self._dead: dict[int, None] = {}
        #: Those that died last, for people.
        self.departed: deque[cluster.Member] = deque(maxlen=DEPARTED_MAX)
        self.tls = Tls(listens=bool(config.host)) if self._wants_tls(config) else None
        self._gate: Gate | None = None
        if config.host:
            try:
                self._gate = Gate(self._loop, self.token, config.host, config.port, self._on_visitor, self.tls)
            except OSError as error:
                raise JoinError(error.strerror) from None
        self.bridges = Bridges(daemon, self)
        self.callers = Callers(daemon, self)
        self.reach = Reach(daemon, self, partition_grace_s(daemon.config.partition_grace_s))
        self._begun = False
        #: What came before the daemon was built.
        self._early: list[Callable[[], None]] = []
        self.node_id = b""
        self.number = 0
        listens = config.host if config.host not in ("0.0.0.0", "::") else ""
        self.member = cluster.Member(
            NodeView(
                id=b"",
                total=daemon.total,
                available=daemon.total,
                labels=daemon.config.labels,
                serves=daemon.config.serves,
                store_bytes=daemon.config.object_store_memory,
            ),
            config.advertise or listens,
            self._gate.address[1] if self._gate is not None else 0,
            config.name or socket.gethostname(),
        )
        self.control = RemoteControl(daemon, self, config, self.tls)
        self.control.join()

    # -- joining ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _wants_tls(config: ClusterConfig) -> bool:
        if config.tls is not None:
            return config.tls
        try:
            return speaks_tls(*config.control)
        except OSError as error:
            raise unreachable(config, error) from None

    # -- the control service ------------------------------------------------------------------------------------------

    def prepare_member(self, host: str, port: int) -> None:
        """The control service at this address is there: how this node will be described to it."""
        if not self.member.host:
            self.member.host = _address_towards(host, port)
        if self._daemon.config.serves:
            is_head = self._daemon.config.is_head
            self._daemon.total.update(marks_of_node(self.member.host, is_head=is_head))  # the member has the same dict

    def on_joined(self, message: cluster.Joined) -> None:
        if not self.node_id:
            self.node_id = self.member.view.id = message.node_id
            self.number = node_of(message.node_id)
        there = {member.view.id for member in message.members}
        for member in [member for member in self.members.values() if member.view.id not in there]:
            self._on_node_gone(member.view.id, GONE_MEANWHILE)
        self._learn(message.members)
        known = {member.view.id for member in self.departed}
        self.departed.extend(member for member in message.departed if member.view.id not in known)

    def on_joined_again(self) -> None:
        """The service may have forgotten what was under way."""
        for node, link in self._links.items():
            if not link.is_connecting:
                self.control.tell(cluster.PleaseLink(node))
        self.transfers.on_control_back()

    def on_control(self, message: Any) -> bool:
        """Whether it was about other nodes, and is done."""
        match message:
            case cluster.News():
                self._learn(message.members)
                for node, reason in message.gone:
                    self._on_node_gone(node, reason)
                self._daemon.demands.on_news()
            case cluster.PleaseLink(node):
                self.link_to(node)
            case cluster.Located():
                self.transfers.on_located(message)
            case cluster.Tracked(object):
                self.transfers.on_tracked(object)
            case cluster.DropCopies(objects):
                self.transfers.on_drop_copies(objects)
            case _:
                return False
        return True

    def _learn(self, members: list[cluster.Member]) -> None:
        known = set(self.members)
        for member in members:
            number = node_of(member.view.id)
            if number != self.number and number not in self._dead:
                self.members[number] = member
                if self._begun:
                    self._daemon.demands.on_report(member.view)
        if self._begun and known != set(self.members):
            self._tell_capacity()

    def begin(self) -> None:
        """The daemon is built."""
        self.transfers = Transfers(self._daemon, self)
        self._begun = True
        early, self._early = self._early, []
        for act in early:
            act()
        self.control.begin()

    # -- links to nodes -----------------------------------------------------------------------------------------------

    def send(self, node: int, message: wire.Message) -> None:
        """To another node; if that is gone, the message is not missed."""
        link = self.link_to(node)
        if link is not None:
            link.send(message)

    def ask_events(self, node: int, request: int) -> None:
        self.send(node, cluster.AskEvents(request))

    def send_events(self, node: int, request: int, events: list[Any]) -> None:
        self.send(node, cluster.NodeEvents(request, events))

    def has_backlog(self, node: int) -> bool:
        """Whether the other end does not read as fast as we send."""
        link = self._links.get(node)
        return link is not None and link.has_backlog

    def link_to(self, node: int) -> Link | None:
        link = self._links.get(node)
        if link is not None:
            return link
        member = self.members.get(node)
        if member is None:
            return None
        link = self._links[node] = Link(self._loop, self._on_message, self._on_link_lost, name=f"node {node}")
        link.node_id = member.view.id
        if member.port:
            link.last()
            link.send(cluster.Link(self.node_id, link.session))
            link.connect(member.host, member.port, self.token, self.tls)
        else:  # what is said meanwhile waits until it has made one
            self.control.tell(cluster.PleaseLink(node))
        self.reach.watch(link)
        return link

    @property
    def host(self) -> str:
        """By which others reach this node."""
        return self.member.host

    @property
    def name(self) -> str:
        return self.member.name

    def views(self) -> list[NodeView]:
        """The other nodes."""
        return [member.view for member in self.members.values()]

    def links(self) -> list[Link]:
        """One for each node that this one has to do with: that on which it sends."""
        return list(self._links.values())

    def links_of(self, node: int) -> list[Link]:
        """The link that this node has made, and the one that the other has."""
        links = [self._links.get(node), *self._made_by_others.values()]
        return list({id(link): link for link in links if link is not None and node_of(link.node_id) == node}.values())

    def _on_link_lost(self, link: Link, why: str) -> None:
        """The other node holds us to be dead: the control service will say what is to be done."""
        log.warning("node %d does not know its link to this one any more: %s", node_of(link.node_id), why)

    def _on_visitor(self, sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        if not self._begun:
            self._early.append(lambda: self._on_visitor(sock, theirs, rest))
            return
        Link(self._loop, self._on_first, lambda link, why: None, name="visitor").adopt(sock, rest)

    def _on_first(self, link: Link, message: Any) -> None:
        """What a connection is for."""
        sender = message.asker if isinstance(message, cluster.OpenChannel) else getattr(message, "node_id", b"")
        if node_of(sender) in self._dead:  # it was on its way while that node was cut off
            raise ProtocolError(f"node {node_of(sender)} is held to be dead")
        match message:
            case wire.Resume(session):
                known = self._made_by_others.get(session)
                if known is not None:
                    known.go_on_with(link, message)
                else:
                    link.begin_anew()
            case cluster.Link(node_id, session):
                link.node_id = node_id
                link.rebind(self._on_message, self._on_link_lost)
                link.last(session)
                self._made_by_others[session] = link
                self.reach.watch(link)
                known = self._links.get(node_of(node_id))
                if known is None or not known.is_connecting:
                    self._links[node_of(node_id)] = link
                    if known is not None:
                        known.hand_waiting_to(link)
            case cluster.OpenChannel():
                self.bridges.on_asked(message, link)
            case cluster.OpenStream():
                self.callers.on_called(message, link)
            case cluster.OfferTransfer(node_id):
                link.send(cluster.TransferOpened())
                self.transfers.on_offered(node_id, link.hand_over())
            case cluster.OpenTransfer(node_id):
                link.send(cluster.TransferOpened())
                self.transfers.on_opened(node_id, link.hand_over())
            case _:
                raise ProtocolError(f"{type(message).__name__} does not begin a conversation")

    def _on_message(self, link: Link, message: Any) -> None:
        match message:
            case cluster.ToProcess(process, inner):
                self._deliver(process, inner)
            case cluster.FromProcess(process, inner):
                guest = self.guests.get(process)
                if guest is not None:  # otherwise it is gone already
                    self._on_guest_says(guest, inner)
            case cluster.Acquaint():
                self._on_guest(message)
            case cluster.ProcessGone(gone):
                self._on_guest_gone(gone)
            case cluster.PleaseOpen(asker, _pid, target, again):
                self.bridges.on_please_open(target, asker, again)
            case cluster.AskEvents(request):
                self._daemon.inquiries.gather(node_of(link.node_id), request)
            case cluster.NodeEvents(request, events):
                self._daemon.inquiries.on_node_events(node_of(link.node_id), request, events)
            case cluster.PleaseTransfer():
                self.transfers.offer(node_of(link.node_id))
            case cluster.AskChunk():
                self.transfers.on_ask_chunk(node_of(link.node_id), message)
            case cluster.ChunkFailed():
                self.transfers.on_chunk_failed(node_of(link.node_id), message)
            case cluster.DoneWith():
                self.transfers.on_done_with(node_of(link.node_id), message)
            case cluster.Ping():
                self.reach.on_ping(link)
            case cluster.Pong():
                self.reach.on_pong(link)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for a node")

    # -- guests -------------------------------------------------------------------------------------------------------

    def _on_guest(self, message: cluster.Acquaint) -> None:
        """A process of another node will have to do with this one."""
        self.guests[message.process_id] = Guest(self, message)
        self._daemon.post(leases.JobStarted())

    def stakes_of_others(self) -> dict[int, tuple[int, list[int]]]:
        """For each node whose processes are guests: how many leases they wait for here, and which they hold."""
        stakes: dict[int, tuple[int, list[int]]] = {}
        for demand in self._daemon.scheduler.demands.values():
            if demand.process in self.guests:
                queued, held = stakes.get(node_of(demand.process), (0, []))
                stakes[node_of(demand.process)] = (queued + demand.count, held)
        for lease in self._daemon.scheduler.leases.values():
            if lease.owner in self.guests:
                stakes.setdefault(node_of(lease.owner), (0, []))[1].append(lease.number)
        return stakes

    def _on_guest_says(self, guest: Guest, message: wire.Message) -> None:
        if type(message) is wire.LeaseDemand:
            self._daemon.demands.ask_here(guest.id, message)
        elif type(message) in GUEST_MESSAGES:
            self._daemon.handle(guest, message)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for another node")

    def _deliver(self, process_id: bytes, message: wire.Message) -> None:
        """Another node has something for a process of this one."""
        if isinstance(message, wire.LeaseGranted):
            self._daemon.demands.on_granted(process_id, message)
        elif isinstance(message, wire.PeerGone):
            self.bridges.on_told_of_death(process_id, message.process_id)
        self._daemon.send(process_id, message)

    def _tell_capacity(self) -> None:
        """Nodes came or went: processes that submit tasks count on what there is."""
        message = wire.Capacity(self._daemon.capacity())
        for process in self._daemon.processes.values():
            if process.ready:
                process.channel.send(message)

    # -- processes ----------------------------------------------------------------------------------------------------

    def send_to_process(self, process_id: bytes, message: wire.Message) -> None:
        self.send(node_of(process_id), cluster.ToProcess(process_id, message))  # type: ignore[arg-type]

    def describe(self, process_id: bytes) -> str:
        """How a process of another node is called in reports, and what acts for all of them; "" if it is not known."""
        if process_id == self.transfers.keeper:
            return "this node, as a copy from another one"
        if process_id == self.transfers.server:
            return "other nodes, which copy it"
        member = self.members.get(node_of(process_id))
        if member is None:
            return ""
        guest = self.guests.get(process_id)
        kind = "a process" if guest is None else "driver" if guest.job.driver == process_id else "worker"
        pid = f" pid {guest.pid}" if guest is not None else ""
        return f"{kind}{pid} on node {member.view.id.hex()[:ID_SHOWN]} ({member.name})"

    def pass_on(self, process_id: bytes, node: int, message: wire.Message) -> None:
        """What a process of ours says to another node."""
        self.acquaint(process_id, node)
        self.send(node, cluster.FromProcess(process_id, message))  # type: ignore[arg-type]

    def acquaint(self, process_id: bytes, node: int) -> None:
        """That node is to know of a process of ours, and of its end."""
        known = self._acquainted.setdefault(process_id, set())
        if node not in known:
            known.add(node)
            job = self._daemon.processes[process_id].job
            self.send(node, cluster.Acquaint(process_id, self._daemon.pids[process_id], job))

    def on_process_died(self, gone: wire.PeerGone) -> None:
        """A process of ours: the nodes that know of it are told."""
        for node in self._acquainted.pop(gone.process_id, ()):
            self.send(node, cluster.ProcessGone(gone))

    def _on_node_gone(self, node_id: bytes, reason: str) -> None:
        number = node_of(node_id)
        if number == self.number:
            self._daemon.end(f"the control service says that this node is dead: {reason}", joins_anew=True)
            return
        self._dead[number] = None
        if len(self._dead) > DEAD_MAX:
            del self._dead[next(iter(self._dead))]
        member = self.members.pop(number, None)
        if member is None:
            return
        if member.view.serves:
            self.departed.append(member)
        for link in (self._links.pop(number, None), *self._made_by_others.values()):
            if link is not None and link.node_id == node_id:
                self._made_by_others.pop(link.session, None)
                link.close()
        for known in self._acquainted.values():
            known.discard(number)
        self.reach.forget(number)
        self._tell_capacity()
        self.bridges.on_node_gone(number, reason)
        self.transfers.on_node_gone(number)
        self._daemon.inquiries.on_node_gone(number)
        self._daemon.demands.on_node_gone(node_id)
        for guest in [guest for guest in self.guests.values() if node_of(guest.id) == number]:
            self._on_guest_gone(lost_with_node(guest.id, reason, guest.pid))

    def _on_guest_gone(self, gone: wire.PeerGone) -> None:
        if self.guests.pop(gone.process_id, None) is not None:
            self.bridges.on_guest_gone(gone)
            self._daemon.store.process_died(gone.process_id, time.monotonic())
            self.transfers.sweep()
            self._daemon.post(leases.ProcessDied(gone.process_id))


def _address_towards(host: str, port: int) -> str:
    """By which that host reaches this one. Nothing is sent: the kernel is asked which way it would go."""
    family, kind, _proto, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
        return own
