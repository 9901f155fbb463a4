"""The state of a cluster as one machine: an event comes in, and what is to be stored, said and done comes out.

    node ──Join──▶ Control ──Joined──▶ node           one link a node; those who ask from the command line come and go
         ──Report─▶        ──News────▶ all nodes      reports are gathered, and passed on together once every NEWS_S
         ──FromProcess─▶   ──ToProcess─▶              what processes have to do with it, through their nodes

Owns:      the tables (nodes, processes, jobs, objects, functions, keys, topics, actors, groups), and the order of what
           it says.
Knows not: sockets, clocks and disks; tasks. A task whose node can run it never touches this machine.
Invariant: what `handle` returns are first the rows that the event has changed, then what may be said once they are
           durable. A mistake of a peer cuts its link; a mistake of ours is a `Defect`, and the machine goes on.
Idea:      a node that is alone is a cluster of one, with this machine in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from skate._control.state import functions, groups, tables
from skate._control.state.actors import ActorService
from skate._control.state.events import EventLog
from skate._control.state.functions import Functions
from skate._control.state.groups import GROUP_REMOVED, GroupService
from skate._control.state.jobs import Jobs
from skate._control.state.kv import KeyValues
from skate._control.state.nodes import Nodes
from skate._control.state.objects import Objects
from skate._control.state.placing import NOWHERE_GRACE_S, Placing
from skate._control.state.processes import Processes
from skate._control.state.recovery import NOT_NEEDED, Recovery
from skate._control.state.refusals import instead_of
from skate._control.state.steps import (
    After,
    Back,
    Broke,
    Command,
    Confirm,
    Cut,
    Defect,
    Ended,
    EndService,
    Event,
    Forget,
    ForgetProcess,
    Look,
    Note,
    PassOn,
    PlaceAgain,
    Publish,
    Recovered,
    Refuse,
    Said,
    Save,
    Send,
    SettleAnyway,
    TooLong,
)
from skate._control.state.tables import ClusterRow
from skate._control.state.topics import Topics
from skate._core import membership as core
from skate._core.ids import node_of
from skate._core.resources import group_of
from skate._core.task import ActorInfo, Death, Job
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.complaints import harmless
from skate._wire.protocol_error import ProtocolError

Rows = Callable[[str], Iterable[tuple[bytes, bytes]]]


class Settings(msgspec.Struct, kw_only=True):
    cluster_id: str
    #: Counts the services that have had this state: a node knows by it whether it speaks to the same one as before.
    incarnation: int = 1
    #: What has to be added to the time of events to get seconds since the epoch, for people.
    epoch: float = 0.0
    #: How long an actor that no node can run waits for one that can.
    nowhere_grace_s: float = NOWHERE_GRACE_S
    #: Nodes may vanish, and are looked after; a node that is alone lives as long as this machine does.
    watches_nodes: bool = True
    #: Changes are stored.
    stores: bool = False
    #: Of the process that has this state, for people.
    pid: int = 0


class Control:
    def __init__(self, settings: Settings, now: float) -> None:
        self.settings = settings
        self.now = now
        self.out: list[Command] = []
        self._marked: dict[tuple[str, bytes], None] = {}
        self._looks = False
        self.started_at = self.wall
        self._events = EventLog()
        self.nodes = Nodes(self, ClusterRow(settings.cluster_id, self.wall))
        self.processes = Processes(self)
        self.jobs = Jobs(self)
        self.objects = Objects(self)
        self.functions = Functions(self.mark)
        self.key_values = KeyValues(self.mark)
        self._topics = Topics(self._publish)
        self.recovery = Recovery(self)
        self.placing = Placing(
            self._ask_for_worker,
            self._withdraw_actor,
            self._give_up,
            nowhere_grace_s=settings.nowhere_grace_s,
            nodes_refuse=not settings.watches_nodes,
        )
        self.actors = ActorService(self)
        self.groups = GroupService(self)
        self._row_of: dict[str, Callable[[bytes], bytes | None]] = {
            tables.CLUSTER: self.nodes.cluster_row,
            tables.NODES: self.nodes.row,
            tables.JOBS: self.jobs.row,
            tables.ACTORS: self.actors.row,
            tables.GROUPS: self.groups.row,
            tables.FUNCTIONS: self.functions.row,
            tables.KV: self.key_values.row,
            tables.EVENTS: self._events.row,
        }

    @property
    def incarnation(self) -> int:
        return self.settings.incarnation

    @property
    def wall(self) -> float:
        """Seconds since the epoch, for people."""
        return self.now + self.settings.epoch

    def begin(self, rows: Rows = lambda table: ()) -> list[Command]:
        """Take over what was stored by the services before this one. Raises RowUnreadable."""

        def records(table: str) -> Iterator[tuple[bytes, Any]]:
            return tables.unpacked(table, rows(table))

        for _, row in records(tables.CLUSTER):
            self.nodes.cluster = row
        self.functions.load(records(tables.FUNCTIONS))
        self.key_values.load(records(tables.KV))
        self._events.load(records(tables.EVENTS))
        self.nodes.load(records(tables.NODES))
        self.jobs.load(records(tables.JOBS))
        self.actors.load(records(tables.ACTORS))
        self.groups.load(records(tables.GROUPS))
        self.mark(tables.CLUSTER, b"")
        if self.incarnation > 1:
            self.event("store", f"the control service goes on with the cluster, as number {self.incarnation}")
        self.recovery.begin()
        self.look_soon()
        return self._taken()

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        self.now = now
        try:
            self._handle(event)
        except ProtocolError as error:
            if isinstance(event, Said):
                self.out.append(Cut(event.link, error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the machine goes on, and says what happened
            what = type(event.message).__name__ if isinstance(event, Said) else type(event).__name__
            self.out.append(Defect(error, f"handling {what}"))
        return self._taken()

    def _taken(self) -> list[Command]:
        """What has gathered: rows first."""
        said, self.out = self.out, []
        if not self._marked:
            return said
        marked, self._marked = self._marked, {}
        return [*(self._row(table, key) for table, key in marked), *said] if self.settings.stores else said

    def _row(self, table: str, key: bytes) -> Save | Forget:
        row, lazy = self._row_of[table](key), table == tables.EVENTS
        return Save(table, key, row, lazy) if row is not None else Forget(table, key, lazy)

    def _handle(self, event: Event) -> None:
        match event:
            case Said(link, message):
                self._on_message(link, message)
            case Look():
                self._look()
            case PassOn():
                self.nodes.on_time_to_pass_on()
            case Confirm():
                self.processes.confirm()
            case Back(link):
                self.nodes.heard(link)
            case Broke(link):
                self.nodes.broke(link)
            case Ended(link):
                self.nodes.link_ended(link)
            case TooLong(link, refusal):
                self._on_refused(link, refusal)
            case PlaceAgain(actor):
                if actor not in self.placing.waiting:
                    self.actors.place(actor)
            case ForgetProcess(process_id):
                if process_id not in self.processes:
                    self.key_values.forget_writes(process_id)
            case Refuse(actor, death):
                self.actors.infeasible(actor, death)
            case SettleAnyway():
                self.recovery.settle_anyway()
            case Recovered(what, why, seconds):
                self.event("store", f"for {seconds:.0f} s nothing could be written: {what} {why}")

    def _on_message(self, link: int, message: Any) -> None:
        if link in self.nodes.replaced:  # its node has said all of it again, over another link, but for this
            if isinstance(message, cluster.Freed):
                self.objects.on_freed(link, message)
            return
        handler = HANDLERS.get(type(message))
        if handler is None or not (link in self.nodes.by_link or type(message) in FROM_VISITORS):
            raise ProtocolError(f"{type(message).__name__} is not for the control service, or came before Join")
        if self.nodes.is_member(link):
            handler(self, link, message)

    # -- what goes out ------------------------------------------------------------------------------------------------

    def mark(self, table: str, key: bytes) -> None:
        """That row has changed."""
        self._marked[table, key] = None

    def say(self, link: int, message: wire.Message, *, at_once: bool = False) -> None:
        self.out.append(Send(link, message, at_once))

    def send_to_node(self, node: bytes, message: wire.Message) -> None:
        """If it is gone, the message is not missed."""
        link = self.nodes.links.get(node)
        if link is not None:
            self.say(link, message)

    def send(self, process_id: bytes, message: wire.Message) -> None:
        node = self.nodes.by_number.get(node_of(process_id), b"")
        self.send_to_node(node, cluster.ToProcess(process_id, message))  # type: ignore[arg-type]

    def _publish(self, process_id: bytes, message: wire.Published) -> None:
        self.out.append(Publish(process_id, message))

    def link_of(self, process_id: bytes) -> int:
        """Over which its node is reached; -1: it is gone."""
        return self.nodes.links.get(self.nodes.by_number.get(node_of(process_id), b""), -1)

    def after(self, seconds: float, event: Event) -> None:
        self.out.append(After(seconds, event))

    def note(self, text: str) -> None:
        self.out.append(Note(text))

    def event(self, kind: str, text: str, **facts: Any) -> None:
        """Something that people may want to know, now or later."""
        self.note(text)
        for key in self._events.add({"at": self.wall, "kind": kind, "text": text, **facts}):
            self.mark(tables.EVENTS, key)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _on_join(self, link: int, message: cluster.Join) -> None:
        if self.nodes.joins(link, message):
            self.look_soon()

    def _on_report(self, link: int, message: cluster.Report) -> None:
        self.nodes.on_report(link, message)
        self.say(link, cluster.Heard(), at_once=True)
        self.groups.place(self.nodes.views)

    def _on_leave(self, link: int, message: cluster.Leave) -> None:
        self.nodes.do(self.nodes.membership.leave(self.nodes.by_link[link], message.reason))

    def look_soon(self) -> None:
        """As long as there is something to look at."""
        if not self._looks and (self.settings.watches_nodes or self.placing.waiting):
            self._looks = True
            self.after(core.LOOK_PERIOD_S, Look())

    def _look(self) -> None:
        self._looks = False
        self.look_soon()
        if self.recovery.is_under_way:
            return
        if self.settings.watches_nodes:
            self.nodes.do(self.nodes.membership.look(self.now))
        self.placing.look(self.nodes.views, self.now)

    def node_died(self, node: bytes, reason: str) -> None:
        """What else was lost with it."""
        number, views = node_of(node), self.nodes.views
        self.objects.node_died(node)
        self.jobs.node_died(number)
        self.processes.node_died(number)
        self.functions.node_died(number)
        self._topics.node_died(number)
        for writer in self.key_values.writers():
            if node_of(writer) == number:
                self.key_values.forget_writes(writer)
        self.placing.node_died(node, views)
        self.groups.node_died(node, views)
        self.actors.node_died(number, reason)
        self.recovery.node_left(node)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _on_from_process(self, link: int, message: cluster.FromProcess) -> None:
        process_id = message.process_id
        if process_id not in self.processes:
            raise ProtocolError(f"{type(message.message).__name__} is of a process that was not announced")
        if message.done_to:
            self.key_values.forget_writes(process_id, message.done_to)
        if not self.processes.is_new(process_id, message.number):
            return
        try:
            self._on_said(process_id, message.message, message.number)
        except ProtocolError as error:  # of the process: its node has only passed it on
            self.kill(process_id, f"it broke the protocol: {harmless(str(error))}")

    def _on_said(self, process_id: bytes, inner: wire.Message, number: int) -> None:
        match inner:
            case wire.PeerGone():
                self.process_gone(inner)
            case wire.Query(request, what):
                self.send(process_id, wire.Answer(request, self.answer(what)))
            case wire.KeyValue(request):
                self.send(process_id, wire.Answer(request, self.key_values.handle(inner, process_id, number)))
            case wire.Topic(request):
                told = self._topics.handle(process_id, inner)
                if request:
                    self.send(process_id, wire.Answer(request, told))
            case _ if isinstance(inner, functions.MESSAGES):
                self.functions.handle(process_id, inner)
            case _ if isinstance(inner, groups.MESSAGES):
                self.groups.handle(process_id, inner, self.nodes.views)
            case _:
                self.actors.handle(process_id, inner)

    def _on_refused(self, link: int, refusal: wire.Refusal) -> None:
        """What a process said, in its envelope, was too large."""
        process_id = refusal.id
        reply = instead_of(refusal.values[2:], refusal.reason)
        if refusal.tag == cluster.FromProcess.__struct_config__.tag and process_id in self.processes:
            if isinstance(reply, wire.KillActor):
                self.actors.handle(process_id, reply)
            elif reply is not None:
                self.send(process_id, reply)

    def _on_process_gone(self, link: int, message: cluster.ProcessGone) -> None:
        self.process_gone(message.gone)

    def process_gone(self, gone: wire.PeerGone) -> None:
        job = self.processes.jobs.get(gone.process_id)
        if gone.process_id in self.jobs.drivers or (job is not None and job.driver == gone.process_id):
            self.jobs.driver_ended(gone.process_id, "ended")
        self.processes.died(gone.process_id)
        self.recovery.process_gone(gone.process_id)
        self.objects.process_died(gone.process_id)
        self.actors.process_died(gone)
        self.functions.process_died(gone.process_id)
        self._topics.process_died(gone.process_id)

    def lives(self, process_id: bytes) -> bool:
        """Whether it is not known to be dead. If nothing is known of it, its node is asked."""
        if process_id in self.processes:
            return True
        node = self.nodes.by_number.get(node_of(process_id))
        if node is None:
            return False
        self.send_to_node(node, cluster.Introduce(process_id))
        return True

    def kill(self, process_id: bytes, reason: str) -> None:
        self.send_to_node(self.nodes.by_number.get(node_of(process_id), b""), cluster.KillProcess(process_id, reason))

    # -- where actors live --------------------------------------------------------------------------------------------

    def place(self, actor: bytes, info: ActorInfo, job: Job) -> None:
        """Find a worker for it."""
        group = group_of(info.to_place or info.resources)
        if group and group not in self.groups.table.groups:
            self.after(0.0, Refuse(actor, GROUP_REMOVED))
        elif not self.recovery.is_under_way:
            self.placing.place(actor, info, job, self.nodes.views, self.now)
            self.look_soon()

    def unplace(self, actor: bytes) -> None:
        """The actor no longer needs a worker. One that is found all the same is ended."""
        self.placing.unplace(actor)

    def waits_for(self, actor: bytes) -> str:
        """Why no worker was found for it yet, for people; empty if that is not known here."""
        return self.placing.waits_for(actor, self.nodes.views)

    def job_of(self, process_id: bytes) -> Job:
        return self.processes.jobs[process_id]

    def actor_died(self, actor: bytes) -> None:
        """For good."""
        self.placing.actor_died(actor)
        self.groups.job_ended(actor)

    def _ask_for_worker(self, node: bytes, actor: bytes, info: ActorInfo, job: Job) -> None:
        living = job if job.driver in self.jobs.drivers else job.without_driver()
        self.send_to_node(node, cluster.PlaceActor(actor, info, living))

    def _withdraw_actor(self, node: bytes, actor: bytes) -> None:
        self.send_to_node(node, cluster.UnplaceActor(actor))

    def _give_up(self, actor: bytes, death: Death) -> None:
        self.actors.infeasible(actor, death)

    def _on_actor_placed(self, link: int, message: cluster.ActorPlaced) -> None:
        node = self.nodes.by_link[link]
        if self.recovery.actor_placed(node, message):
            return
        if self.placing.is_expected(message.actor, node):
            self.actors.granted(message.actor, message.worker, message.pid)
        else:
            self.kill(message.worker, NOT_NEEDED)

    def _on_actor_not_placed(self, link: int, message: cluster.ActorNotPlaced) -> None:
        self.recovery.actor_not_placed(self.nodes.by_link[link], message.actor)
        if self.placing.is_expected(message.actor, self.nodes.by_link[link]):
            self.actors.infeasible(message.actor, message.death)

    # -- placement groups ---------------------------------------------------------------------------------------------

    def group_removed(self, group: bytes) -> None:
        """What waits for a place in it is refused."""
        self.nodes.tell_all(cluster.GroupRemoved(group))
        for actor, waiting in list(self.placing.waiting.items()):
            if group_of(waiting.info.to_place) == group:
                self.placing.unplace(actor)
                self.actors.infeasible(actor, GROUP_REMOVED)

    def _on_bundle_prepared(self, link: int, message: cluster.BundlePrepared) -> None:
        node = self.nodes.by_link[link]
        self.groups.prepared(node, message.group, message.index, message.attempt, ok=message.ok)

    def _on_ask_group(self, link: int, message: cluster.AskGroup) -> None:
        if message.group not in self.groups.table.groups:
            self.say(link, cluster.GroupRemoved(message.group))

    # -- questions ----------------------------------------------------------------------------------------------------

    def _on_ask(self, link: int, message: cluster.Ask) -> None:
        what, _, namespace = message.what.partition(" ")
        body = self.key_values.values(namespace) if what == "values" else self.answer(what)
        # For people, who want an answer above all when the storage is in trouble. Processes ask by Query, and wait.
        self.say(link, cluster.Reply(body), at_once=True)

    def answer(self, what: str) -> Any:
        match what:
            case "nodes":
                return self.nodes.describe()
            case "events":
                return self._events.all()
            case "groups":
                return self.groups.describe()
            case "jobs":
                return self.jobs.describe()
            case "actors":
                return self.actors.describe()
            case "functions":
                return self.functions.describe()
            case "cluster":
                row = self.nodes.cluster
                return {
                    "cluster_id": row.cluster_id,
                    "began_at": row.began_at,
                    "started_at": self.started_at,
                    "incarnation": self.incarnation,
                    "pid": self.settings.pid,
                    "recovering": self.recovery.is_under_way,
                    "nodes": len(self.nodes.links),
                }
        raise ProtocolError(f"there is no answer to the question {what!r}")

    def _on_end(self, link: int, message: cluster.End) -> None:
        self.end(message.reason, keep=message.keep)

    def end(self, reason: str, *, keep: bool = False) -> None:
        """The cluster ends: all nodes do. keep: the next service that has its store goes on with it."""
        if not keep:
            self.nodes.cluster.ended = reason
            self.mark(tables.CLUSTER, b"")
        self.nodes.tell_all(cluster.End(reason))
        self.out.append(EndService(reason))

    def end_now(self, reason: str, now: float, *, keep: bool = False) -> list[Command]:
        self.now = now
        self.end(reason, keep=keep)
        return self._taken()

    def validate(self) -> None:
        self.actors.table.validate()
        self.groups.table.validate()
        self.objects.locations.validate()


HANDLERS: dict[type, Callable[[Control, int, Any], None]] = {
    cluster.Join: Control._on_join,
    cluster.Holding: lambda self, link, message: self.recovery.on_holding(link, message),
    cluster.Report: Control._on_report,
    cluster.Leave: Control._on_leave,
    cluster.PleaseLink: lambda self, link, message: self.nodes.on_please_link(link, message),
    cluster.Unreached: lambda self, link, message: self.nodes.on_unreached(link, message),
    cluster.JobStarted: lambda self, link, message: self.jobs.on_started(link, message),
    cluster.JobEnded: lambda self, link, message: self.jobs.on_ended(link, message),
    cluster.Acquaint: lambda self, link, message: self.processes.on_acquaint(link, message),
    cluster.FromProcess: Control._on_from_process,
    cluster.ProcessGone: Control._on_process_gone,
    cluster.ActorPlaced: Control._on_actor_placed,
    cluster.ActorNotPlaced: Control._on_actor_not_placed,
    cluster.Locate: lambda self, link, message: self.objects.on_locate(link, message),
    cluster.CopyStored: lambda self, link, message: self.objects.on_copy_stored(link, message),
    cluster.CopyDropped: lambda self, link, message: self.objects.on_copy_dropped(link, message),
    cluster.Owned: lambda self, link, message: self.objects.on_owned(link, message),
    cluster.Freed: lambda self, link, message: self.objects.on_freed(link, message),
    cluster.BundlePrepared: Control._on_bundle_prepared,
    cluster.AskGroup: Control._on_ask_group,
    cluster.Ask: Control._on_ask,
    cluster.End: Control._on_end,
}
#: What may be said over a link that is no node's, or not yet.
FROM_VISITORS = (cluster.Join, cluster.Ask, cluster.End)
