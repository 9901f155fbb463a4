"""The control service as a node of its cluster sees it: joining, reporting, and what has to be said again.

    join ──Join──▶ Joined ──▶ reports, and whatever this node and its processes have to say
    the service was started again ──Anew──▶ Join ──▶ Joined ──▶ Holding (what is here), and all that is not Done

A service that was started again is told what this node has: resources, actors, bundles, copies of objects.
What processes have asked for is kept until it is durable there (`_core/outbox.py`) and said again, in order. So a
request is lost neither with the service nor with the connection, and none counts twice.

Owns:      the link to the control service, the outbox, and since when the service is silent.
Invariant: over one link the service hears Join, then Holding if it has to be told, then everything else.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from skate._core.membership import REPORT_PERIOD_S
from skate._core.outbox import Outbox
from skate._core.task import Death, Job
from skate._node.control_port import ControlPort
from skate._node.main import JoinError
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.entrance import Tls
from skate._wire.gate import knock
from skate._wire.handshake import HandshakeError, StrangerError
from skate._wire.link import Link

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.main import ClusterConfig
    from skate._node.neighbours import Neighbours

JOIN_S = 10.0
#: How often it is looked whether the others should know of something.
LOOK_S = 0.1
#: After this time without a word from the control service, drivers are told.
SILENT_S = 3.0
#: After this time during which the service could not write its store, drivers are told.
TROUBLE_S = 1.0
#: What drivers are told.
SILENT = "does not answer"
WAITS = "Tasks and calls go on; what needs it (new actors and placement groups, names, skate.kv) waits."
ANSWERS = "answers again."
WRITES = "can write its store again: what has waited goes on."
#: After this time, those who ask are told: two reports were not answered.
UNHEARD_S = 2 * REPORT_PERIOD_S
#: Messages that wait in a link without a connection. Beyond them the link is given up: the state is described again
#: over the next one, and what processes have said is in the outbox.
WAITING_MAX = 10_000
#: Facts that cannot be seen in what is here later, and are said behind Holding. The oldest make room for the newest.
FACTS_MAX = 10_000


class RemoteControl(ControlPort):
    def __init__(self, daemon: Daemon, neighbours: Neighbours, config: ClusterConfig, tls: Tls | None) -> None:
        super().__init__(daemon)
        self._neighbours = neighbours
        self._config = config
        self._token = config.token.encode()
        self._tls = tls
        self._loop = daemon.loop
        #: What processes have said and may have to be said again.
        self._outbox: Outbox[Any] = Outbox()
        #: The jobs of processes that are dead, as long as something that they have said is kept.
        self._jobs_of_dead: dict[bytes, Job] = {}
        #: What is no state, and was not said while there was no service to say it to.
        self._facts: deque[wire.Message] = deque(maxlen=FACTS_MAX)
        #: Which service this is; another number, another service.
        self.incarnation = 0
        self.cluster_id = ""
        #: The service has taken this node in, over the present link.
        self._is_in = False
        self._begun = False
        #: It was taken in more than once before it had begun: the service waits for what it has.
        self._owes_description = False
        #: What came before the daemon was built.
        self._early: list[Any] = []
        self._report_at = 0.0
        #: When the service was heard of, and when that was last looked at.
        self._heard_at = self._looked_at = time.monotonic()
        #: What drivers were told last of why they have to wait; empty: they need not.
        self._told = ""
        #: Since when the service cannot write its store, and why; why it could not be started again.
        self._trouble: tuple[float, str] | None = None
        self._cannot_start = ""
        self._link = self._new_link()

    def _new_link(self) -> Link:
        link = Link(self._loop, self._on_message, self._on_lost, name="control")
        link.last()
        return link

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self) -> str:
        """Become part of the cluster, and return our address on the way to it.

        Blocks: before it is part of its cluster a node has nothing to do.
        """
        host, port = self._config.control
        try:
            sock, _versions, rest = knock(host, port, self._token, JOIN_S, self._tls)
        except StrangerError as error:
            raise JoinError(f"cannot join the cluster: {error} Check the host and the port.") from None
        except HandshakeError as error:
            raise JoinError(f"cannot join the cluster: {error}") from None
        except OSError as error:
            raise unreachable(self._config, error) from None
        self._link.adopt(sock, rest)
        self._link.connect(host, port, self._token, self._tls)
        self._neighbours.prepare_member(host, port)
        self._link.send(cluster.Join(self._neighbours.member, self._link.session))
        deadline = time.monotonic() + JOIN_S
        while not self._is_in:
            self._loop.run_once(deadline)
            if time.monotonic() > deadline or self._link.closed:
                why = f"it cannot keep what it is told. {self._trouble[1]}" if self._trouble else ""
                why = why or f"it did not answer within {JOIN_S:g} s."
                raise JoinError(f"cannot join the cluster at {host}:{port}: {why}")
        return host

    def _on_lost(self, link: Link, why: str) -> None:
        """The service does not remember the link."""
        if link is self._link:
            self._join_again()

    def _join_again(self) -> None:
        """Over another link. The service says whether this node is still part of the cluster."""
        old, self._link = self._link, self._new_link()
        self._is_in = False
        self._trouble = None  # a service that is in trouble says so to those that join
        old.close()
        self._link.send(cluster.Join(self._neighbours.member, self._link.session, self.cluster_id))
        self._link.connect(*self._config.control, self._token, self._tls)

    def _on_joined(self, message: cluster.Joined) -> None:
        self._is_in = True
        self.cluster_id = message.cluster_id
        self.incarnation = message.incarnation
        self._cannot_start = ""
        was_part = bool(self._neighbours.node_id)
        self._neighbours.on_joined(message)
        if self._begun:
            self._describe_all()
        else:
            self._owes_description = was_part

    def _describe_all(self) -> None:
        """All that the service has to know, to one that may know nothing of it."""
        link, daemon = self._link, self._daemon
        for fact in self._facts:
            link.send(fact)
        self._facts.clear()
        for process in daemon.processes.values():
            if process.worker is None and process.ready:
                self.job_started(process.job, daemon.pids[process.id])
                self._known.setdefault(process.id, process.job)  # its end is to be told, whatever it has said
        link.send(self._holding())
        for process in daemon.processes.values():
            if process.id in self._known:
                daemon.send(process.id, wire.Renewed())
        for process_id, number, done_to, message in self._outbox.kept():
            link.send(cluster.FromProcess(process_id, message, number, done_to))
        self._neighbours.on_joined_again()
        self._report_at = 0.0

    def _holding(self) -> cluster.Holding:
        daemon = self._daemon
        pids = daemon.pids
        processes = [
            cluster.HeldProcess(id, pids.get(id, 0), job) for id, job in self._known.items() if id in daemon.processes
        ]
        processes += [cluster.HeldProcess(id, 0, job) for id, job in self._jobs_of_dead.items()]
        owned, copies = self._neighbours.transfers.held()
        return cluster.Holding(
            processes,
            daemon.actors.held(),
            daemon.actors.looking(),
            daemon.groups.held(),
            owned,
            copies,
        )

    # -- what this node says ------------------------------------------------------------------------------------------

    def tell(self, message: wire.Message) -> None:
        if self._is_in:
            self._link.send(message)
            if not self._link.is_connected and self._link.unconfirmed > WAITING_MAX:
                self._join_again()
        elif isinstance(message, cluster.Freed | cluster.JobEnded):
            self._facts.append(message)

    def pass_on(self, process_id: bytes, message: wire.Message) -> None:
        self.introduce(process_id)
        self._say(process_id, message)

    def _say(self, process_id: bytes, message: wire.Message, *, is_last: bool = False) -> None:
        request = getattr(message, "request", 0)
        number, done_to = self._outbox.say(process_id, message, _size(message), request=request, is_last=is_last)
        if number:
            self.tell(cluster.FromProcess(process_id, message, number, done_to))  # type: ignore[arg-type]
        else:
            self._refuse(process_id, message)

    def _refuse(self, process_id: bytes, message: wire.Message) -> None:
        """The process has said more than can be kept for a service that does not answer."""
        host, port = self._config.control
        why = f"the control service at {host}:{port} does not answer, and too much waits for it already"
        request = getattr(message, "request", 0)
        if request:
            self._daemon.send(process_id, wire.Answer(request, None, why, is_unavailable=True))
        elif isinstance(message, wire.CreateActor):
            death = Death("unavailable", f"it could not be created: {why}.")
            self._daemon.send(process_id, wire.ActorState(message.actor, "dead", 0, b"", death))
        elif not isinstance(message, wire.Undefine | wire.UnwatchActor | wire.Needs):
            self._daemon.pool.kill(process_id, f"{why}: a {type(message).__name__} of it was lost")

    def process_died(self, gone: wire.PeerGone) -> None:
        job = self._known.pop(gone.process_id, None)
        if job is not None:
            self._jobs_of_dead[gone.process_id] = job
            self._say(gone.process_id, gone, is_last=True)

    def _on_done(self, processes: list[tuple[bytes, int]]) -> None:
        for process_id, number in processes:
            if self._outbox.done(process_id, number) and process_id not in self._daemon.processes:
                self._outbox.forget(process_id)
                self._jobs_of_dead.pop(process_id, None)

    def resources_changed(self) -> None:
        """The next report says so."""

    def leave(self, reason: str) -> None:
        self._link.send(cluster.Leave(reason))
        self._link.flush()

    # -- what the service says ----------------------------------------------------------------------------------------

    def _on_message(self, link: Link, message: Any) -> None:
        if link is not self._link:
            return
        if not self._begun and not isinstance(message, cluster.Joined | cluster.StoreTrouble | cluster.Anew):
            self._early.append(message)
            return
        self._heard_at = time.monotonic()
        match message:
            case cluster.Joined():
                self._on_joined(message)
            case cluster.Anew():
                self._join_again()
            case cluster.StoreTrouble(why):
                self._trouble = (time.monotonic(), why) if why else None
            case cluster.Done(processes):
                self._on_done(processes)
            case cluster.ToProcess(process_id, wire.Answer(request)):
                if number := self._outbox.answered(process_id, request):
                    self._on_done([(process_id, number)])
                self.on_order(message)
            case cluster.TellToEnd(reason):
                self._daemon.end(reason, joins_anew=True)
            case cluster.End(reason):
                self._daemon.end(reason)
            case _:
                if not self._neighbours.on_control(message):
                    self.on_order(message)

    def begin(self) -> None:
        """The daemon is built: tell how it is, from now on."""
        self._begun = True
        if self._is_in and self._owes_description:
            self._describe_all()
        early, self._early = self._early, []
        for message in early:
            self._on_message(self._link, message)
        self._report()

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        """Regularly, as a sign of life; and sooner if something was taken or given back."""
        now = time.monotonic()
        self._loop.call_at(now + LOOK_S, self._report)
        self._look(now)
        self._neighbours.reach.look(now)
        view = self._daemon.view()
        if now >= self._report_at or view.available != self._neighbours.member.view.available:
            self._report_at = now + REPORT_PERIOD_S
            self._neighbours.member.view = view
            if self._is_in and self._link.is_connected:
                self._link.send(cluster.Report(view))

    def _look(self, now: float) -> None:
        """Drivers whose calls wait for the control service are told why."""
        if now - self._looked_at > 1.0:  # it was us who stood still
            self._heard_at = now
        self._looked_at = now
        if self.silence() is not None:
            self._neighbours.transfers.on_control_silent()
        why = self._why(now)
        if why != self._told:
            before, self._told = self._told, why
            host, port = self._config.control
            text = f"{why} {WAITS}" if why else ANSWERS if before.startswith(SILENT) else WRITES
            self._daemon.output.tell_drivers(f"the control service of the cluster, at {host}:{port}, {text}")

    def _why(self, now: float) -> str:
        """Why drivers that need the service have to wait; empty if they need not."""
        if now - self._heard_at > SILENT_S:
            return (
                f"{SILENT}. It could not be started again: {self._cannot_start}" if self._cannot_start else f"{SILENT}."
            )
        if self._trouble is not None and now - self._trouble[0] > TROUBLE_S:
            return f"cannot keep what it is told. {self._trouble[1]}"
        return ""

    def cannot_start(self, why: str) -> None:
        """The head of the cluster, which is this node, has tried to start the service again."""
        self._cannot_start = why

    def trouble(self) -> dict[str, Any] | None:
        """Since when and why the service cannot write its store."""
        if self._trouble is None:
            return None
        since, why = self._trouble
        host, port = self._config.control
        return {"address": f"{host}:{port}", "silent_s": time.monotonic() - since, "trouble": why}

    def silence(self) -> dict[str, Any] | None:
        """Since when nothing was heard of the control service, if that is longer than it should be."""
        silent_s = time.monotonic() - self._heard_at
        host, port = self._config.control
        return {"address": f"{host}:{port}", "silent_s": silent_s} if silent_s > UNHEARD_S else None


def _size(message: Any) -> int:
    """About as many bytes as the message keeps in memory."""
    match message:
        case wire.KeyValue():
            return 300 + len(message.key) + len(message.value)
        case wire.Define():
            return 500 + len(message.definition)
        case wire.CreateActor():
            return 1000 + len(message.creation.args)
        case wire.Topic():
            return 300 + len(message.data)
        case wire.RegisterActor():
            return 1000 + len(message.info.about)
    return 500


def unreachable(config: ClusterConfig, error: OSError) -> JoinError:
    host, port = config.control
    return JoinError(
        f"cannot join the cluster at {host}:{port}: {error.strerror or error}. Check the address, and that "
        "`skate start --head` runs there."
    )
