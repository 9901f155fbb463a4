"""The control service: who is in the cluster, and what all of it must agree on.

    node ──Join──▶ Control ──Joined──▶ node           one link a node; those who ask from the command line come and go
         ──Report─▶        ──News────▶ all nodes      reports are gathered, and passed on together once every NEWS_S
         ──FromProcess─▶   ──ToProcess─▶              what processes have to do with it, through their nodes

Owns:      the membership, and the links to nodes.
Knows not: tasks and objects. A task whose node can run it never touches this service.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._control import commons
from skate._control.actors import ActorService
from skate._control.events import EventLog
from skate._control.groups import GROUP_REMOVED, GroupService
from skate._control.groups import MESSAGES as GROUP_MESSAGES
from skate._control.ledger import Ledger
from skate._control.mailboxes import Mailboxes
from skate._control.placing import Placing
from skate._control.refusals import instead_of
from skate._core import membership as core
from skate._core.ids import NUMBER_MAX, new_node_id, node_at, node_of
from skate._core.locations import Locations
from skate._core.placement import NodeView
from skate._core.reachability import CutPairs
from skate._core.resources import Amounts, group_of
from skate._core.task import ActorInfo, Job
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.complaints import harmless
from skate._wire.guard import ProtocolError
from skate._wire.link import Link
from skate._wire.loop import EventLoop

if TYPE_CHECKING:
    from skate._control.storage.interface import Storage

log = logging.getLogger("skate")

#: Reports are passed on together so often; who joined or died is told at once.
NEWS_S = 0.1
#: Jobs that are remembered; the oldest make room for the newest.
JOBS_MAX = 1000
#: What is published for a node that does not read is tried again after this time.
PUBLISH_AGAIN_S = 0.02


class Control:
    def __init__(self, loop: EventLoop, on_end: Callable[[str], None], storage: Storage | None = None) -> None:
        self._ledger = Ledger(storage, lambda action: loop.call_at(0.0, action), self._on_store_lost)
        if storage is not None:
            loop.watch(storage.fileno(), lambda events: self._ledger.collect())
        self._mailboxes = Mailboxes(self.send, self._is_congested)
        self._commons = commons.Commons(self.send, self._publish, self._ledger)
        self._events = EventLog()
        self._loop = loop
        self._end = on_end
        self.cluster_id = secrets.token_hex(8)
        self.membership = core.Membership(time.monotonic())
        self._links: dict[bytes, Link] = {}
        #: The same by what a node names when it goes on with its link over another connection.
        self._sessions: dict[bytes, Link] = {}
        #: Links of nodes that are held to be dead and were told so.
        self._told: weakref.WeakSet[Link] = weakref.WeakSet()
        self._names: dict[bytes, str] = {}
        self._by_number: dict[int, bytes] = {}
        self._locations = Locations()
        self._cuts = CutPairs()
        #: Processes that have to do with this service, and their jobs.
        self._processes: dict[bytes, Job] = {}
        #: Jobs, those of the past included, as far as they are remembered.
        self._jobs: dict[bytes, dict[str, Any]] = {}
        #: Drivers, and the jobs that they are part of: a submitted command may be several.
        self._drivers: dict[bytes, bytes] = {}
        self.actors = ActorService(self, self._commons.functions)
        self.groups = GroupService(self)
        self._placing = Placing(self._ask_for_worker, self._withdraw_actor, self.actors.infeasible)
        self._last_number = 0
        #: Nodes whose reports have not been passed on.
        self._changed: set[bytes] = set()
        self._started_at = time.time()
        self._look()
        self._pass_on()

    # -- connections --------------------------------------------------------------------------------------------------

    def new_link(self) -> Link:
        """For a connection that has been let in."""
        return Link(self._loop, self._on_message, self._on_closed, name="node")

    def _on_message(self, link: Link, message: Any) -> None:
        handler = HANDLERS.get(type(message))
        if handler is None or not (link.node_id or type(message) in FROM_VISITORS):
            raise ProtocolError(f"{type(message).__name__} is not for the control service, or came before Join")
        if link.node_id and link.node_id not in self.membership.members:
            # It was declared dead: what it still has to say is about what is lost already.
            if link not in self._told:
                self._told.add(link)
                link.send(cluster.TellToEnd("it was not heard of for too long, and was declared dead."))
            return
        try:
            handler(self, link, message)
        finally:
            self._ledger.commit()

    def _on_resume(self, visitor: Link, message: wire.Resume) -> None:
        link = self._sessions.get(message.session)
        if link is None:  # of a node that is held to be dead, or of another service before this one
            visitor.begin_anew()
        else:
            link.go_on_with(visitor, message)
            self._do(self.membership.heard(link.node_id, time.monotonic()), link)

    def _on_broken(self, link: Link, why: str) -> None:
        """It may come back, but has to be quick: the connection of a living node has no reason to end."""
        self.membership.suspect(link.node_id, time.monotonic())

    def _on_closed(self, link: Link, why: str) -> None:
        """What was no node's, or a node that has forgotten this service."""
        self._sessions.pop(link.session, None)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _on_join(self, link: Link, message: cluster.Join) -> None:
        member, now = message.member, time.monotonic()
        if not member.view.id:
            if self._last_number == NUMBER_MAX:
                raise ProtocolError("this cluster has had as many nodes as it can have")
            self._last_number += 1
            member.view.id = new_node_id(self._last_number)
        elif member.view.id not in self.membership.members:
            # It was declared dead, or belongs to a control service that is gone: its number may be somebody else's now.
            self._say(link, cluster.TellToEnd("the control service was started again and does not know it."))
            return
        node_id = link.node_id = member.view.id
        link.last(message.session)
        link.on_broken = self._on_broken
        link.on_refused = self._on_refused
        commands = self.membership.join(member.view, (member.host, member.port), now)
        if node_id in self.membership.members:
            self._forget_link(node_id)
            self._links[node_id] = self._sessions[link.session] = link
            self._names[node_id] = member.name
            self._by_number[node_of(node_id)] = node_id
            departed = [self._described(id, member) for id, member in self.membership.departed.items()]
            self._say(link, cluster.Joined(node_id, self._members(), self.cluster_id, departed))
        self._do(commands, link)

    def _on_report(self, link: Link, message: cluster.Report) -> None:
        message.view.id = link.node_id
        if self.membership.members[link.node_id].view != message.view:
            self._changed.add(link.node_id)
        self._do(self.membership.heard(link.node_id, time.monotonic(), message.view), link)
        link.send(cluster.Heard())
        self.groups.place(self.views)
        if message.urgent:
            self._pass_on_now()

    def _on_leave(self, link: Link, message: cluster.Leave) -> None:
        self._do(self.membership.leave(link.node_id, message.reason), link)

    def _look(self) -> None:
        now = time.monotonic()
        self._loop.call_at(now + core.LOOK_PERIOD_S, self._look)
        self._do(self.membership.look(now))
        self._placing.look(self.views, now)

    def _pass_on(self) -> None:
        self._loop.call_at(time.monotonic() + NEWS_S, self._pass_on)
        self._pass_on_now()

    def _pass_on_now(self) -> None:
        """What nodes have reported lately, to all others."""
        if self._changed:
            changed, self._changed = self._changed, set()
            members = [self._member(id) for id in changed if id in self.membership.members]
            self._tell_all(cluster.News(members))

    def _do(self, commands: list[core.Command], link: Link | None = None) -> None:
        for command in commands:
            match command:
                case core.Announce(node):
                    log.info("node %d joined", node_of(node))
                    self._events.add("node", f"node {node_of(node)} joined", node_id=node.hex())
                    self._tell_all(cluster.News([self._member(node)]), but=node)
                case core.DeclareDead(node, reason):
                    log.info("node %d is gone: %s", node_of(node), reason)
                    self._events.add("node", f"node {node_of(node)} is gone: {reason}", node_id=node.hex())
                    self._tell_all(cluster.News(gone=[(node, reason)]))
                    self._forget_link(node)
                    known = self.membership.members.keys() | self.membership.departed.keys()
                    self._names = {id: name for id, name in self._names.items() if id in known}
                    self._by_number.pop(node_of(node), None)
                    self._cuts.node_died(node)
                    self._forget_objects_of(node)
                    for driver in [driver for driver in self._drivers if node_of(driver) == node_of(node)]:
                        self._driver_ended(driver, "lost")
                    self._processes = {id: job for id, job in self._processes.items() if node_of(id) != node_of(node)}
                    self._commons.node_died(node_of(node))
                    self._placing.node_died(node, self.views)
                    self.groups.node_died(node, self.views)
                    self.actors.node_died(node_of(node), reason)
                case core.TellToEnd():
                    assert link is not None
                    self._say(link, cluster.TellToEnd("it was not heard of for too long, and was declared dead."))

    def _forget_link(self, node: bytes) -> None:
        """Over a connection that still stands the node can be told that it is held to be dead."""
        link = self._links.pop(node, None)
        if link is not None:
            self._sessions.pop(link.session, None)  # it may have ended by itself
            if not link.is_connected:
                link.close()

    def _tell_all(self, news: cluster.News, but: bytes = b"") -> None:
        for node, link in list(self._links.items()):
            if node != but:
                self._say(link, news)

    def _member(self, node: bytes) -> cluster.Member:
        return self._described(node, self.membership.members[node])

    def _described(self, node: bytes, member: core.Member) -> cluster.Member:
        return cluster.Member(member.view, *member.address, self._names.get(node, ""))

    def _members(self) -> list[cluster.Member]:
        return [self._member(node) for node in self.membership.members]

    @property
    def views(self) -> list[NodeView]:
        return self.membership.views

    def _on_please_link(self, link: Link, message: cluster.PleaseLink) -> None:
        node = self._by_number.get(message.node, b"")
        self._send_to_node(node, cluster.PleaseLink(node_of(link.node_id)))

    def _on_unreached(self, link: Link, message: cluster.Unreached) -> None:
        """One of two nodes tells; the other one may not have noticed yet."""
        other = self._by_number.get(message.node)
        if other is not None and self._cuts.said(link.node_id, other, is_cut=message.is_cut):
            what = "cannot reach each other" if message.is_cut else "reach each other again"
            names = " and ".join(f"node {id.hex()[:12]} ({self._names.get(id, '')})" for id in (link.node_id, other))
            log.info("%s %s", names, what)
            self._events.add("node", f"{names} {what}", node_id=link.node_id.hex())

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _on_job_started(self, link: Link, message: cluster.JobStarted) -> None:
        job = message.job
        self._drivers[job.driver] = job.id
        self._jobs[job.id] = {
            "job_id": job.id.hex(),
            "driver_pid": message.pid,
            "entrypoint": message.entrypoint,
            "node_id": link.node_id.hex(),
            "namespace": job.namespace,
            "started_at": time.time(),
            "ended_at": None,
            "state": "running",
        }
        self._events.add("job", f"job {job.id.hex()} began, with pid {message.pid}", job_id=job.id.hex())
        if len(self._jobs) > JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]

    def _on_job_ended(self, link: Link, message: cluster.JobEnded) -> None:
        self._driver_ended(message.job.driver, "ended")

    def _driver_ended(self, driver: bytes, state: str) -> None:
        job = self._drivers.pop(driver, b"")
        if job:
            self.groups.job_ended(driver)
        if job in self._jobs and job not in self._drivers.values():
            self._jobs[job].update(state=state, ended_at=time.time())
            self._events.add("job", f"job {job.hex()} is over: {state}", job_id=job.hex())

    # -- objects ------------------------------------------------------------------------------------------------------

    def _on_locate(self, link: Link, message: cluster.Locate) -> None:
        maker = self._by_number.get(node_at(message.place))
        if maker is not None and not self._locations.has_all(message.object, maker):
            self._locations.stored(message.object, maker)
            self._send_to_node(maker, cluster.Tracked(message.object))
        if self._locations.has_all(message.object, link.node_id):  # it would not ask
            self._locations.dropped(message.object, link.node_id)
        source = self._locations.source_for(message.object, link.node_id, self._cuts.of(link.node_id))
        link.send(cluster.Located(message.object, node_of(source) if source is not None else 0))

    def _on_copy_stored(self, link: Link, message: cluster.CopyStored) -> None:
        if self._locations.is_known(message.object):
            self._locations.stored(message.object, link.node_id)
        else:  # it was freed meanwhile
            self._say(link, cluster.DropCopies([message.object]))

    def _on_copy_dropped(self, link: Link, message: cluster.CopyDropped) -> None:
        self._locations.dropped(message.object, link.node_id)

    def _on_owned(self, link: Link, message: cluster.Owned) -> None:
        self._locations.owned(message.object, message.owner, link.node_id)
        if node_of(message.owner) not in self._by_number:
            self._drop([message.object])

    def _on_freed(self, link: Link, message: cluster.Freed) -> None:
        self._drop(message.objects)

    def _forget_objects_of(self, node: bytes) -> None:
        """A node is dead: what its processes owned goes. What was made there for others stays, if there are copies."""
        self._drop(self._locations.owned_at(node))
        # The dead one would have told of the ends of these owners. Now they are asked after (Introduce).
        for owner in self._locations.owners_at(node):
            if not self.lives(owner):
                self._drop(self._locations.owned_by(owner))
        self._locations.node_died(node)

    def _drop(self, objects: list[bytes]) -> None:
        """Wherever there is something of them."""
        drops: dict[bytes, list[bytes]] = {}
        for object in objects:
            for node in self._locations.freed(object):
                drops.setdefault(node, []).append(object)
        for node, objects in drops.items():
            if node in self._links:
                self._say(self._links[node], cluster.DropCopies(objects))

    # -- processes ----------------------------------------------------------------------------------------------------

    def _on_acquaint(self, link: Link, message: cluster.Acquaint) -> None:
        self._processes[message.process_id] = message.job

    def _on_from_process(self, link: Link, message: cluster.FromProcess) -> None:
        if message.process_id not in self._processes:
            raise ProtocolError(f"{type(message.message).__name__} is of a process that was not announced")
        try:
            self._handle(message.process_id, message.message)
        except ProtocolError as error:  # of the process: its node has only passed it on
            self.kill(message.process_id, f"it broke the protocol: {harmless(str(error))}")

    def _handle(self, process_id: bytes, inner: wire.Message) -> None:
        if isinstance(inner, wire.Query):
            self.send(process_id, wire.Answer(inner.request, self._answer(inner.what)))
        elif isinstance(inner, commons.MESSAGES):
            self._commons.handle(process_id, inner)
        elif isinstance(inner, GROUP_MESSAGES):
            self.groups.handle(process_id, inner, self.views)
        else:
            self.actors.handle(process_id, inner)

    def _on_refused(self, link: Link, refusal: wire.Refusal) -> None:
        """What a process said, in its envelope, was too large."""
        process_id = refusal.id
        reply = instead_of(refusal.values[2:], refusal.reason)
        if refusal.tag == cluster.FromProcess.__struct_config__.tag and process_id in self._processes:
            if isinstance(reply, wire.KillActor):
                self.actors.handle(process_id, reply)
            elif reply is not None:
                self.send(process_id, reply)

    def _on_process_gone(self, link: Link, message: cluster.ProcessGone) -> None:
        self._processes.pop(message.gone.process_id, None)
        self._drop(self._locations.owned_by(message.gone.process_id))
        self.actors.process_died(message.gone)
        self._commons.process_died(message.gone.process_id)

    # -- the outside of the actors ------------------------------------------------------------------------------------

    def send(self, process_id: bytes, message: wire.Message) -> None:
        node = self._by_number.get(node_of(process_id), b"")
        self._send_to_node(node, cluster.ToProcess(process_id, message))  # type: ignore[arg-type]

    def _publish(self, process_id: bytes, message: wire.Published) -> None:
        was_empty = not self._mailboxes
        self._mailboxes.deliver(process_id, message)
        if was_empty and self._mailboxes:
            self.call_later(PUBLISH_AGAIN_S, self._publish_waiting)

    def _publish_waiting(self) -> None:
        self._mailboxes.send_waiting()
        if self._mailboxes:
            self.call_later(PUBLISH_AGAIN_S, self._publish_waiting)

    def _is_congested(self, process_id: bytes) -> bool | None:
        link = self._links.get(self._by_number.get(node_of(process_id), b""))
        return link.has_backlog if link is not None else None

    def _send_to_node(self, node: bytes, message: wire.Message) -> None:
        link = self._links.get(node)
        if link is not None:
            self._say(link, message)

    def _say(self, link: Link, message: wire.Message) -> None:
        """Send it once all that it rests on is durable. Heard and Located rest on nothing that is kept."""
        if self._ledger.is_clear:
            link.send(message)
        else:
            self._ledger.say(functools.partial(link.send, message))

    def _on_store_lost(self, error: Exception) -> None:
        """Another service may have the store now: this one says nothing more."""
        log.error("the control service ends: %s", error)
        self._end(str(error))

    def place(self, actor: bytes, info: ActorInfo, job: Job) -> None:
        group = group_of(info.to_place or info.resources)
        if group and group not in self.groups.table.groups:
            self.call_later(0.0, lambda: self.actors.infeasible(actor, GROUP_REMOVED))
            return
        self._placing.place(actor, info, job, self.views, time.monotonic())

    def unplace(self, actor: bytes) -> None:
        self._placing.unplace(actor)

    def waits_for(self, actor: bytes) -> str:
        return self._placing.waits_for(actor, self.views)

    def kill(self, process_id: bytes, reason: str) -> None:
        self._send_to_node(self._by_number.get(node_of(process_id), b""), cluster.KillProcess(process_id, reason))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self._loop.call_at(time.monotonic() + seconds, action)

    def lives(self, process_id: bytes) -> bool:
        if process_id in self._processes:
            return True
        node = self._by_number.get(node_of(process_id))
        if node is None:
            return False
        self._send_to_node(node, cluster.Introduce(process_id))
        return True

    def outlives_drivers(self) -> None:
        """The cluster does in any case."""

    def actor_died(self, actor: bytes) -> None:
        self._placing.actor_died(actor)
        self.groups.job_ended(actor)

    def detached_in(self, process_id: bytes) -> bytes:
        return self.actors.detached_in(process_id)

    def job_of(self, process_id: bytes) -> Job:
        return self._processes[process_id]

    def _ask_for_worker(self, node: bytes, actor: bytes, info: ActorInfo, job: Job) -> None:
        living = job if job.driver in self._drivers else job.without_driver()
        self._send_to_node(node, cluster.PlaceActor(actor, info, living))

    def _withdraw_actor(self, node: bytes, actor: bytes) -> None:
        self._send_to_node(node, cluster.UnplaceActor(actor))

    def _on_actor_placed(self, link: Link, message: cluster.ActorPlaced) -> None:
        if self._placing.is_expected(message.actor, link.node_id):
            self.actors.granted(message.actor, message.worker, message.pid)
        else:
            self.kill(message.worker, "the actor that it was for does not need it any more")

    def _on_actor_not_placed(self, link: Link, message: cluster.ActorNotPlaced) -> None:
        if self._placing.is_expected(message.actor, link.node_id):
            self.actors.infeasible(message.actor, message.death)

    # -- the outside of the placement groups --------------------------------------------------------------------------

    def prepare(self, node: bytes, group: bytes, index: int, attempt: int, needs: Amounts) -> None:
        self._send_to_node(node, cluster.PrepareBundle(group, index, attempt, needs))

    def commit(self, node: bytes, group: bytes, index: int) -> None:
        self._send_to_node(node, cluster.CommitBundle(group, index))

    def release(self, node: bytes, group: bytes, index: int) -> None:
        self._send_to_node(node, cluster.ReleaseBundle(group, index))

    def removed(self, group: bytes) -> None:
        for node in list(self._links):
            self._send_to_node(node, cluster.GroupRemoved(group))
        for actor, waiting in list(self._placing.waiting.items()):
            if group_of(waiting.info.to_place) == group:
                self._placing.unplace(actor)
                self.actors.infeasible(actor, GROUP_REMOVED)

    def _on_bundle_prepared(self, link: Link, message: cluster.BundlePrepared) -> None:
        self.groups.prepared(link.node_id, message.group, message.index, message.attempt, ok=message.ok)

    def _on_ask_group(self, link: Link, message: cluster.AskGroup) -> None:
        if message.group not in self.groups.table.groups:
            self._say(link, cluster.GroupRemoved(message.group))

    # -- questions ----------------------------------------------------------------------------------------------------

    def _on_ask(self, link: Link, message: cluster.Ask) -> None:
        what, _, namespace = message.what.partition(" ")
        if what == "values":
            self._say(link, cluster.Reply(self._commons.key_values.values(namespace)))
        else:
            self._say(link, cluster.Reply(self._answer(what)))

    def _answer(self, what: str) -> Any:
        match what:
            case "nodes":
                return [self._describe(member) for member in self._members()]
            case "events":
                return self._events.all()
            case "groups":
                return self.groups.describe()
            case "jobs":
                return list(self._jobs.values())
            case "actors":
                return self.actors.describe()
            case "functions":
                return self._commons.functions.describe()
            case "cluster":
                return {"cluster_id": self.cluster_id, "started_at": self._started_at, "nodes": len(self._links)}
        raise ProtocolError(f"there is no answer to the question {what!r}")

    def _describe(self, member: cluster.Member) -> dict[str, Any]:
        view = member.view
        return {
            "node_id": view.id.hex(),
            "number": node_of(view.id),
            "name": member.name,
            "host": member.host,
            "port": member.port,
            "total": view.total,
            "available": view.available,
            "labels": view.labels,
            "queued": view.queued,
            "store_bytes": view.store_bytes,
            "store_used_bytes": view.store_used_bytes,
            "serves": view.serves,
            #: Ids of nodes that it cannot reach, or that cannot reach it.
            "cut_off_from": sorted(id.hex() for id in self._cuts.of(view.id)),
        }

    def _on_end(self, link: Link, message: cluster.End) -> None:
        self.end(message.reason)

    @property
    def is_listened_to(self) -> bool:
        """Whether a node has not gone yet."""
        return any(link.is_connected for link in self._links.values())

    def end(self, reason: str) -> None:
        """The cluster ends: all nodes do."""
        for link in self._links.values():
            link.send(cluster.End(reason))
            link.flush()
        self._end(reason)


HANDLERS: dict[type, Any] = {
    wire.Resume: Control._on_resume,
    cluster.Join: Control._on_join,
    cluster.Report: Control._on_report,
    cluster.Leave: Control._on_leave,
    cluster.PleaseLink: Control._on_please_link,
    cluster.Unreached: Control._on_unreached,
    cluster.JobStarted: Control._on_job_started,
    cluster.JobEnded: Control._on_job_ended,
    cluster.Acquaint: Control._on_acquaint,
    cluster.FromProcess: Control._on_from_process,
    cluster.ProcessGone: Control._on_process_gone,
    cluster.ActorPlaced: Control._on_actor_placed,
    cluster.ActorNotPlaced: Control._on_actor_not_placed,
    cluster.Locate: Control._on_locate,
    cluster.CopyStored: Control._on_copy_stored,
    cluster.CopyDropped: Control._on_copy_dropped,
    cluster.Owned: Control._on_owned,
    cluster.Freed: Control._on_freed,
    cluster.BundlePrepared: Control._on_bundle_prepared,
    cluster.AskGroup: Control._on_ask_group,
    cluster.Ask: Control._on_ask,
    cluster.End: Control._on_end,
}
#: What may be said over a link that is no node's, or not yet.
FROM_VISITORS = (wire.Resume, cluster.Join, cluster.Ask, cluster.End)
