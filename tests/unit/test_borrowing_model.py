"""References travel between processes, messages cross, and still nothing is freed too early or kept for ever.

A whole cluster in one thread: every process has the real `ObjectTable`, `Borrowing` and `Peers`; only the sockets, the
daemon and the running of tasks are played here. Every pipe delivers in order, and the test says (or hypothesis chooses)
which pipe is next, so any crossing of messages that the real system could see can be replayed here.

    Process ──Connect──▶ daemon ──PeerConnected, PeerGone──▶ Process
    Process ◀──────────── one pipe each way ──────────────▶ Process
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from skate._core.ids import node_of
from skate._core.ownership import Entry, ObjectTable
from skate._core.task import Extra, Failure, RefInfo, Result, ResultExtra, Task
from skate._serialize.failures import error_of
from skate._wire import messages as m
from skate._worker.borrow import Borrowing
from skate._worker.peers import Peer, Peers
from skate.exceptions import ObjectFetchTimedOutError, OwnerDiedError

END_OF_STREAM = None
Pipe = tuple[bytes, bytes]  # from, to
DAEMON = b"daemon"


class Wire:
    """One process's end of a channel."""

    def __init__(self, cluster: Cluster, me: bytes, other: bytes) -> None:
        self._send: Callable[[Any], None] = lambda message: cluster.carry((me, other), message)

    def send(self, message: m.Message) -> None:
        self._send(message)


@dataclass
class Running:
    """A task that an executor is in. Once it has returned it waits for `requests` before its result may leave."""

    task: Task
    owner: bytes
    #: References of the running function: its arguments, then what it returned.
    refs: list[bytes]
    result: Result | None = None
    requests: list[int] = field(default_factory=list)


class Process:
    """A process as far as references are concerned: it puts, gets, drops, submits tasks and runs them."""

    def __init__(self, cluster: Cluster, process_id: bytes) -> None:
        self.cluster = cluster
        self.process_id = process_id
        self.table = ObjectTable()
        self.peers = Peers(
            lambda message: cluster.carry((process_id, DAEMON), message),
            self.on_dead,
            lambda: None,
            lambda _: None,
            lambda _, channel: channel,  # type: ignore[arg-type,return-value]
        )
        self.borrowing = Borrowing(self)  # type: ignore[arg-type]
        #: References that user code holds, one count for each.
        self.refs: Counter[bytes] = Counter()
        #: Tasks sent: where to, and what is held for them.
        self.sent: dict[bytes, tuple[bytes, list[bytes]]] = {}
        self.queue: deque[tuple[bytes, Task]] = deque()
        self.running: Running | None = None

    # -- what user code does ---------------------------------------------------------------------------

    def put(self, inside: Iterable[bytes] = ()) -> bytes:
        id = self.cluster.new_id(self)
        inside = list(inside)
        for ref in inside:
            self.table.hold(ref)
        self.table.entries[id] = Entry(1, 0, b"value", contained=inside or None)
        self.cluster.inside[id] = inside
        self.refs[id] += 1
        return id

    def adopt(self, ids: Iterable[bytes]) -> list[bytes]:
        """References come out of a value that is deserialised."""
        loaded = list(ids)
        for id in loaded:
            owner = self.cluster.owner[id]
            self.table.adopt(id, b"" if owner == self.process_id else owner)
            self.refs[id] += 1
        return loaded

    def drop(self, ids: Iterable[bytes]) -> None:
        ids = list(ids)
        self.refs.subtract(ids)
        self.table.drop(ids)
        self.housekeeping()

    def get(self, id: bytes) -> list[bytes] | None:
        """The references inside the value, each now one of ours; None if the value has to be sent for first."""
        entry = self.table.entries[id]
        if entry.value is None:
            if entry.owner:
                self.borrowing.fetch(id, entry)
            return None
        return self.adopt(entry.contained or ())

    def submit(self, to: bytes, nested: Sequence[bytes] = (), arguments: Sequence[bytes] = ()) -> bytes:
        """A task with references inside its arguments, and arguments whose values (with references inside) are sent."""
        id = self.cluster.new_id(self)
        infos = self.borrowing.describe(nested)
        for argument in arguments:
            infos += self.borrowing.describe(self.table.entries[argument].contained or ())
        holds = [*nested, *arguments]
        for held in holds:
            self.table.hold(held)
        task = Task(id, b"f", b"", 0, Extra(refs=infos))
        self.table.entries[id] = Entry(1, 1, None, b"", task)
        self.refs[id] += 1
        self.sent[id] = (to, holds)
        self.peers.get(to).send(m.Tasks(0, [task]))
        return id

    # -- running tasks ---------------------------------------------------------------------------------

    def start_task(self) -> None:
        owner, task = self.queue.popleft()
        assert task.extra is not None
        self.running = Running(task, owner, self.adopt(ref.id for ref in task.extra.refs))

    def return_from_task(self, returned: Sequence[bytes] = (), stash: Sequence[bytes] = ()) -> None:
        """The function is over. It returns some references, and stashes some where the next task finds them."""
        running = self.running
        assert running is not None
        assert running.task.extra is not None
        self.cluster.inside[running.task.id] = list(returned)
        alive_until_sent = self.adopt(returned)
        self.adopt(stash)
        self.drop(running.refs)
        running.refs = alive_until_sent
        infos = self.borrowing.describe(returned)
        kept, running.requests = self.borrowing.settle_result(running.owner, running.task.extra.refs, infos)
        running.result = Result(running.task.id, b"value", ResultExtra(contained=[infos], kept=kept))

    def may_send_result(self) -> bool:
        running = self.running
        return (
            running is not None
            and running.result is not None
            and all(self.borrowing.answered(request) for request in running.requests)
        )

    def send_result(self) -> None:
        assert self.running is not None
        assert self.running.result is not None
        running, self.running = self.running, None
        self.peers.get(running.owner).send(m.Results([running.result]))
        self.drop(running.refs)

    # -- messages --------------------------------------------------------------------------------------

    def on_control(self, message: Any) -> None:
        if isinstance(message, m.PeerGone):
            self.peers.on_gone(message)
        else:
            channel: Any = Wire(self.cluster, self.process_id, message.process_id)
            self.peers.on_connected(message, channel)
        self.housekeeping()

    def on_message(self, peer: Peer, message: Any) -> None:
        match message:
            case m.Tasks():
                self.queue.extend((peer.process_id, task) for task in message.tasks)
            case m.Results():
                for result in message.results:
                    assert result.extra is not None
                    for kept in result.extra.kept:
                        self.table.add_borrower(kept, peer.process_id)
                    self.finish(result.id, result.value, result.extra.contained[0])
            case m.Fetch():
                self.borrowing.on_fetch(peer, message)
            case m.Fetched():
                self.borrowing.on_fetched(peer, message)
            case m.Borrow():
                self.borrowing.on_borrow(peer, message)
            case m.Borrowed():
                self.borrowing.on_borrowed(message)
            case m.Release():
                self.borrowing.on_release(peer, message)
            case _:
                raise AssertionError(message)
        self.housekeeping()

    def finish(self, id: bytes, value: Any, contained: Sequence[RefInfo] = ()) -> None:
        """A task of ours has ended: its value is there, and nothing is held for it any more."""
        _, holds = self.sent.pop(id)
        entry = self.table.entries[id]
        entry.task = None
        self.table.resolve(id, entry, value, self.borrowing.hold_contained(contained))
        self.table.unhold([id, *holds])

    def on_dead(self, peer: Peer) -> None:
        for id in [id for id, (to, _) in self.sent.items() if to == peer.process_id]:
            self.finish(id, Failure(b"the worker died"))
        self.queue = deque(item for item in self.queue if item[0] != peer.process_id)
        self.borrowing.on_peer_dead(peer)

    def housekeeping(self) -> None:
        borrowed = [(id, entry) for id, entry in self.table.take_freed() if entry.owner]
        if borrowed:
            self.borrowing.release(borrowed)


class Cluster:
    """Processes, the pipes between them, and a daemon that connects them."""

    def __init__(self, *names: bytes) -> None:
        self.pipes: dict[Pipe, deque[Any]] = {}
        self.connected: set[frozenset[bytes]] = set()
        self.owner: dict[bytes, bytes] = {}
        #: What lies inside each value, whoever knows it.
        self.inside: dict[bytes, list[bytes]] = {}
        self._numbers = itertools.count()
        self.processes = {name: Process(self, name) for name in names}

    def __getitem__(self, name: bytes) -> Process:
        return self.processes[name]

    def new_id(self, owner: Process) -> bytes:
        id = b"object-%03d" % next(self._numbers)
        self.owner[id] = owner.process_id
        return id

    def reaches(self, id: bytes, target: bytes) -> bool:
        return id == target or any(self.reaches(inner, target) for inner in self.inside.get(id, ()))

    # -- pipes -----------------------------------------------------------------------------------------

    def carry(self, pipe: Pipe, message: Any) -> None:
        if pipe[1] == DAEMON or pipe[1] in self.processes:
            self.pipes.setdefault(pipe, deque()).append(message)

    def waiting(self) -> list[Pipe]:
        """Pipes that have something to deliver to somebody who has heard of the channel."""
        return sorted(pipe for pipe, messages in self.pipes.items() if messages and self._is_heard(pipe))

    def _is_heard(self, pipe: Pipe) -> bool:
        sender, receiver = pipe
        if DAEMON in pipe:
            return True
        peer = self[receiver].peers.known(sender)
        return peer is not None and peer.channel is not None

    def deliver(self, sender: bytes, receiver: bytes) -> Any:
        """The oldest message from one to the other."""
        message = self.pipes[sender, receiver].popleft()
        if receiver == DAEMON:
            self._connect(sender, message.process_id)
        elif sender == DAEMON:
            self[receiver].on_control(message)
        else:
            process = self[receiver]
            peer = process.peers.known(sender)
            assert peer is not None
            if message is END_OF_STREAM:
                assert peer.channel is not None
                process.peers.on_closed(peer.channel)
                process.housekeeping()
            else:
                process.on_message(peer, message)
        self.validate()
        return message

    def deliver_all(self, *only: Pipe) -> None:
        """Until nothing moves (in the given pipes)."""
        while pipes := [pipe for pipe in self.waiting() if not only or pipe in only]:
            self.deliver(*pipes[0])

    # -- the daemon ------------------------------------------------------------------------------------

    def _connect(self, asker: bytes, target: bytes) -> None:
        pair = frozenset((asker, target))
        if pair in self.connected or asker not in self.processes:
            return
        if target not in self.processes:
            self.carry((DAEMON, asker), m.PeerGone(target, 0, -9, b""))
            return
        self.connected.add(pair)
        self.carry((DAEMON, asker), m.PeerConnected(target, 0))
        self.carry((DAEMON, target), m.PeerConnected(asker, 0))

    def connect_all(self) -> None:
        for one, other in itertools.combinations(self.processes, 2):
            self[one].peers.get(other)
        self.deliver_all()

    def kill(self, name: bytes) -> None:
        """A process dies; so does everyone who is in a task of it, as the daemon sees to."""
        del self.processes[name]
        for pipe in list(self.pipes):
            if pipe[1] == name:
                del self.pipes[pipe]
        for pair in [pair for pair in self.connected if name in pair]:
            self.connected.discard(pair)
            (other,) = pair - {name}
            self.carry((name, other), END_OF_STREAM)
            self.carry((DAEMON, other), m.PeerGone(name, 0, -9, b""))
        for process in list(self.processes.values()):
            process.queue = deque(item for item in process.queue if item[0] != name)
            if process.running is not None and process.running.owner == name:
                self.kill(process.process_id)

    # -- what must be true -----------------------------------------------------------------------------

    def validate(self) -> None:
        for process in self.processes.values():
            process.table.validate()

    def freed_too_early(self) -> list[tuple[bytes, bytes]]:
        """(process, object) for everything that a process refers to and its owner does not know any more."""
        return [
            (process.process_id, id)
            for process in self.processes.values()
            for id in process.table.entries
            if self.owner[id] in self.processes and id not in self[self.owner[id]].table.entries
        ]

    def let_go_of_everything(self) -> None:
        """Every task ends, every reference is dropped, every message arrives."""
        while True:
            self.deliver_all()
            busy = [process for process in self.processes.values() if process.running or process.queue]
            if not busy:
                break
            for process in busy:
                if process.may_send_result():
                    process.send_result()
                elif process.running is None:
                    process.start_task()
                elif process.running.result is None:
                    process.return_from_task()
        for process in self.processes.values():
            process.drop(list((+process.refs).elements()))
        self.deliver_all()

    def left(self) -> dict[bytes, Any]:
        """What is not as it was at the beginning."""
        state = {
            name: (sorted(process.table.entries), process.table.statistics(), process.borrowing.statistics())
            for name, process in self.processes.items()
        }
        clean = ObjectTable().statistics()
        return {name: found for name, found in state.items() if found[0] or found[1] != clean or any(found[2].values())}


# --- One crossing at a time -------------------------------------------------------------------------------------------

A, B, C = b"A", b"B", b"C"


def cluster_of(*names: bytes) -> Cluster:
    cluster = Cluster(*names)
    cluster.connect_all()
    return cluster


def run_task(cluster: Cluster, owner: bytes, executor: bytes, **ending: Sequence[bytes]) -> None:
    """Deliver a task that was submitted and run it to its result, which is sent but not delivered."""
    cluster.deliver_all((owner, executor))
    process = cluster[executor]
    process.start_task()
    process.return_from_task(**ending)
    if not process.may_send_result():
        cluster.deliver_all(*[(executor, other) for other in cluster.processes if other != owner])
        cluster.deliver_all(*[(other, executor) for other in cluster.processes if other != owner])
    process.send_result()


def assert_all_freed(cluster: Cluster) -> None:
    assert cluster.freed_too_early() == []
    cluster.let_go_of_everything()
    assert cluster.left() == {}


def test_an_executor_that_keeps_an_argument_keeps_it_alive() -> None:
    cluster = cluster_of(A, B)
    x = cluster[A].put()
    cluster[A].submit(B, [x])
    cluster[A].drop([x])
    assert x in cluster[A].table.entries, "the task needs it"
    run_task(cluster, A, B, stash=[x])
    cluster.deliver_all()
    assert x in cluster[A].table.entries, "the executor has it"
    cluster[B].drop([x])
    cluster.deliver_all()
    assert x not in cluster[A].table.entries
    assert_all_freed(cluster)


def test_an_argument_that_nobody_keeps_is_freed_with_its_task() -> None:
    cluster = cluster_of(A, B)
    x = cluster[A].put()
    cluster[A].submit(B, [x])
    cluster[A].drop([x])
    run_task(cluster, A, B)
    cluster.deliver_all()
    assert x not in cluster[A].table.entries
    assert_all_freed(cluster)


def test_a_returned_reference_is_alive_when_it_arrives() -> None:
    cluster = cluster_of(A, B)
    task = cluster[A].submit(B)
    cluster.deliver_all()
    cluster[B].start_task()
    x = cluster[B].put()
    cluster[B].return_from_task(returned=[x])
    cluster[B].drop([x])
    cluster[B].send_result()
    assert x in cluster[B].table.entries, "the receiver is a borrower before the result leaves"
    cluster.deliver_all()
    assert cluster[A].get(task) == [x]
    assert_all_freed(cluster)


def test_a_reference_of_a_third_party_is_registered_before_the_result_leaves() -> None:
    """A hands B's executor C a reference that B owns; C must not answer before B knows it."""
    cluster = cluster_of(A, B, C)
    task = cluster[A].submit(B)
    cluster.deliver_all()
    cluster[B].start_task()
    x = cluster[B].put()
    cluster[B].return_from_task(returned=[x])
    cluster[B].drop([x])
    cluster[B].send_result()
    cluster.deliver_all()
    cluster[A].get(task)
    cluster[A].submit(C, [x])
    cluster[A].drop([x, task])
    cluster.deliver_all()
    cluster[C].start_task()
    cluster[C].return_from_task(stash=[x])
    assert not cluster[C].may_send_result()
    cluster.deliver_all()
    assert cluster[C].may_send_result()
    cluster[C].send_result()
    cluster.deliver_all()
    assert x in cluster[B].table.entries
    assert_all_freed(cluster)


def test_a_fetched_container_is_held_until_its_content_is_registered() -> None:
    """C fetches from A a value in which lies a reference that B owns."""
    cluster = cluster_of(A, B, C)
    x = hand_over(cluster, B, A)
    container = cluster[A].put([x])
    cluster[A].drop([x])
    cluster[A].submit(C, [container])
    cluster[A].drop([container])
    run_task(cluster, A, C, stash=[container])
    cluster.deliver_all()
    cluster[C].get(container)
    cluster.deliver_all((C, A), (A, C))
    assert cluster[C].get(container) == [x]
    cluster[C].drop([container])
    assert container in cluster[A].table.entries, "it keeps x alive until B has answered"
    cluster.deliver_all()
    assert container not in cluster[A].table.entries
    assert x in cluster[B].table.entries
    assert_all_freed(cluster)


def hand_over(cluster: Cluster, owner: bytes, borrower: bytes, x: bytes = b"") -> bytes:
    """An object of `owner` to which only `borrower` has a reference, by a task that returned it."""
    task = cluster[borrower].submit(owner)
    cluster.deliver_all()
    cluster[owner].start_task()
    x = x or cluster[owner].put()
    cluster[owner].return_from_task(returned=[x])
    cluster[owner].drop([x])
    cluster[owner].send_result()
    cluster.deliver_all()
    cluster[borrower].get(task)
    cluster[borrower].drop([task])
    cluster.deliver_all()
    assert x in cluster[owner].table.entries
    return x


def test_letting_go_while_the_same_reference_is_returned_again_does_not_lose_it() -> None:
    """B returns its x twice. A drops the first while the second is on the way: the release must not undo the second."""
    cluster = cluster_of(A, B)
    first, second = cluster[A].submit(B), cluster[A].submit(B)
    cluster.deliver_all()
    x = cluster[B].put()
    for task in (first, second):
        cluster[B].start_task()
        cluster[B].return_from_task(returned=[x])
        cluster[B].send_result()
        if task == first:
            cluster.deliver_all()
            cluster[A].drop([first])  # A's release and B's second result cross
    cluster.deliver_all()
    cluster[B].drop([x])
    cluster.deliver_all()
    assert cluster.freed_too_early() == []
    assert cluster[A].get(second) == [x]
    assert_all_freed(cluster)


def test_letting_go_while_a_third_party_returns_the_same_reference_does_not_lose_it() -> None:
    """C has x of A. B, which has it too, returns it to C and registers C with A; C's release arrives after that."""
    cluster = cluster_of(A, B, C)
    x = cluster[A].put()
    for borrower in (B, C):
        cluster[A].submit(borrower, [x])
        run_task(cluster, A, borrower, stash=[x])
        cluster.deliver_all()
    cluster[A].drop([x])
    task = cluster[C].submit(B)
    cluster.deliver_all()
    cluster[B].start_task()
    cluster[B].return_from_task(returned=[x])
    cluster.deliver_all((B, A))  # B: C borrows x too
    cluster[C].drop([x])
    cluster.deliver_all((C, A))  # C: I have no x
    cluster.deliver_all((A, B))
    cluster[B].send_result()
    cluster[B].drop([x])
    cluster.deliver_all()
    assert cluster.freed_too_early() == []
    assert cluster[C].get(task) == [x]
    assert_all_freed(cluster)


def test_letting_go_while_the_same_reference_is_fetched_does_not_lose_it() -> None:
    """B drops x while a container with x inside is on the way to it."""
    cluster = cluster_of(A, B)
    x = cluster[A].put()
    container = cluster[A].put([x])
    cluster[A].submit(B, [x, container])
    run_task(cluster, A, B, stash=[x, container])
    cluster.deliver_all()
    cluster[B].get(container)
    cluster.deliver_all((B, A))  # the value leaves A
    cluster[B].drop([x])
    cluster.deliver_all()
    assert cluster[B].get(container) == [x]
    cluster[A].drop([x, container])
    cluster[B].drop([container])
    cluster.deliver_all()
    assert cluster.freed_too_early() == []
    assert_all_freed(cluster)


def test_what_is_inside_a_value_that_arrives_too_late_is_freed() -> None:
    """B asks for a container and drops it before the value comes: it must not stay a borrower of what was inside."""
    cluster = cluster_of(A, B)
    container = cluster[A].put([x := cluster[A].put()])
    cluster[A].submit(B, [container])
    run_task(cluster, A, B, stash=[container])
    cluster.deliver_all()
    cluster[B].get(container)
    cluster.deliver_all((B, A))
    cluster[B].drop([container])
    cluster.deliver_all()
    cluster[A].drop([x, container])
    cluster.deliver_all()
    assert x not in cluster[A].table.entries
    assert_all_freed(cluster)


def test_a_borrower_that_lets_go_before_it_knows_the_owner_is_not_waited_for() -> None:
    """A returns C's x to B. B drops it before the daemon has told it of its channel to C."""
    cluster = Cluster(A, B, C)
    x = hand_over(cluster, C, A)
    task = cluster[B].submit(A)
    cluster.deliver_all((B, DAEMON), (DAEMON, A), (DAEMON, B), (B, A))
    cluster[A].start_task()
    cluster[A].return_from_task(returned=[x])
    cluster.deliver_all((A, C), (C, DAEMON), (DAEMON, C), (C, A))
    cluster[A].send_result()
    cluster[A].drop([x])
    cluster.deliver_all((A, B))
    assert cluster[B].peers.known(C) is None
    cluster[B].drop([task])
    cluster.deliver_all()
    assert x not in cluster[C].table.entries
    assert_all_freed(cluster)


def test_a_borrower_that_was_refused_once_is_counted_the_next_time() -> None:
    """B finds an actor of A's by its name before A has an entry for it, gives up, and finds it again a moment later."""
    cluster = cluster_of(A, B)
    actor = cluster.new_id(cluster[A])
    borrower, owner = cluster[B], cluster[A]

    def find() -> bool:
        borrower.adopt([actor])
        request = borrower.borrowing.register(actor, A)
        cluster.deliver_all()
        return not borrower.borrowing.was_refused(request)

    assert not find()
    owner.table.entries[actor] = Entry(1, 0, b"actor")
    borrower.drop([actor])
    cluster.deliver_all()
    assert find()
    owner.table.drop([actor])
    assert actor in owner.table.entries, "the borrower has it"
    borrower.drop([actor])
    cluster.deliver_all()
    assert actor not in owner.table.entries
    assert_all_freed(cluster)


def test_a_dead_borrower_holds_nothing() -> None:
    cluster = cluster_of(A, B)
    x = hand_over(cluster, A, B)
    cluster.kill(B)
    cluster.deliver_all()
    assert x not in cluster[A].table.entries
    assert_all_freed(cluster)


def test_a_borrower_that_was_named_by_another_is_missed_when_it_dies() -> None:
    """A tells C that B borrows x. B dies before it has ever spoken to C."""
    cluster = Cluster(A, B, C)
    x = hand_over(cluster, C, A)
    cluster[B].submit(A)
    cluster.deliver_all()
    cluster[A].start_task()
    cluster[A].return_from_task(returned=[x])
    cluster.deliver_all((A, C))
    cluster[A].drop([x])
    cluster.kill(B)
    cluster.deliver_all()
    cluster.let_go_of_everything()
    assert cluster.left() == {}


def test_a_value_is_not_sent_to_the_dead() -> None:
    """B waits for the value of A's task and dies. The value comes later, with x inside: B must not borrow that."""
    cluster = cluster_of(A, B, C)
    x = cluster[A].put()
    task = cluster[A].submit(C, [x])
    cluster[A].submit(B, [task])
    cluster.deliver_all((A, B))
    cluster[B].start_task()
    cluster[B].get(task)
    cluster.deliver_all((B, A))
    cluster.kill(B)
    cluster.deliver_all((B, A), (DAEMON, A), (A, C))
    assert cluster[A].peers.known(B) is None
    run_task(cluster, A, C, returned=[x])
    assert_all_freed(cluster)


def test_the_values_of_a_dead_owner_are_errors() -> None:
    cluster = cluster_of(A, B)
    x = hand_over(cluster, A, B)
    cluster[B].get(x)
    cluster.kill(A)
    cluster.deliver_all()
    assert isinstance(cluster[B].table.entries[x].value, Failure)
    assert_all_freed(cluster)


def test_a_read_that_timed_out_tells_of_the_death_of_the_owner_once_that_is_known() -> None:
    cluster = cluster_of(A, B)
    cluster[A].submit(B)
    run_task(cluster, A, B, returned=[x := cluster[B].put()])
    cluster.deliver_all()
    (x,) = cluster[A].adopt([x])
    assert cluster[A].get(x) is None
    cluster[A].borrowing.on_unreachable(node_of(B), "the two nodes have not reached each other")
    value = cluster[A].table.entries[x].value
    assert isinstance(value, Failure)
    assert type(error_of(value)) is ObjectFetchTimedOutError
    cluster.kill(B)
    cluster.deliver_all()
    value = cluster[A].table.entries[x].value
    assert isinstance(value, Failure)
    assert type(error_of(value)) is OwnerDiedError


def test_a_result_does_not_wait_for_a_dead_owner() -> None:
    cluster = cluster_of(A, B, C)
    x = hand_over(cluster, C, A)
    cluster[A].submit(B, [x])
    cluster.deliver_all()
    cluster[B].start_task()
    cluster[B].return_from_task(returned=[x], stash=[x])
    cluster.kill(C)
    cluster.deliver_all()
    assert cluster[B].may_send_result()
    cluster.let_go_of_everything()
    assert cluster.left() == {}


# --- Any crossing -----------------------------------------------------------------------------------------------------


class Life:
    """Three processes do anything that they may do, and messages arrive whenever they arrive.

    A life is told by its seed alone, and notes what happened, so that a failure can be read and replayed.
    """

    #: Few objects, so that the same ones meet again and again.
    OBJECTS_MAX = 5

    def __init__(self, seed: str, *, deaths: bool) -> None:
        self.cluster = Cluster(A, B, C)
        self.deaths = deaths
        self.story = [f"seed {seed!r}"]
        self.choose = random.Random(seed).choice

    def some(self, options: Sequence[bytes]) -> list[bytes]:
        """None, one or two of them."""
        chosen = [self.choose(options) for _ in range(self.choose((0, 1, 1, 2)))] if options else []
        return list(dict.fromkeys(chosen))

    def live(self, steps: int) -> None:
        if self.choose((True, True, True, False)):
            self.cluster.connect_all()
        for _ in range(steps):
            possible = self.possible()
            if not possible:
                break
            action, *arguments = self.choose(possible)
            names = [getattr(about, "process_id", about) for about in arguments]
            self.story.append(f"{action.__name__}{tuple(name.decode() for name in names)}")
            action(*arguments)
            self.cluster.validate()
            if not self.deaths:
                assert self.cluster.freed_too_early() == [], "\n".join(self.story)
        self.cluster.let_go_of_everything()
        if not self.deaths:
            assert self.cluster.freed_too_early() == [], "\n".join(self.story)
        assert self.cluster.left() == {}, "\n".join(self.story)

    def possible(self) -> list[tuple[Any, ...]]:
        actions: list[tuple[Any, ...]] = [(self.cluster.deliver, *pipe) for pipe in self.cluster.waiting()] * 2
        for process in self.cluster.processes.values():
            if len({id for other in self.cluster.processes.values() for id in other.table.entries}) < self.OBJECTS_MAX:
                actions.append((self.put, process))
                if len(self.cluster.processes) > 1:
                    actions += [(self.submit, process)] * 2
            if +process.refs:
                actions += [(self.get, process), (self.drop, process), (self.drop, process)]
            if process.may_send_result():
                actions += [(self.send_result, process)] * 2
            elif process.running is not None and process.running.result is None:
                actions += [(self.return_from_task, process)] * 2
            elif process.running is None and process.queue:
                actions += [(self.start_task, process)] * 2
        if self.deaths and len(self.cluster.processes) > 1:
            actions += [(self.die, process) for process in self.cluster.processes.values()]
        return actions

    def put(self, process: Process) -> None:
        process.put(self.some(sorted(+process.refs)))

    def get(self, process: Process) -> None:
        process.get(self.choose(sorted(+process.refs)))

    def drop(self, process: Process) -> None:
        """Except what a running task still has: its references are dropped when it ends."""
        busy = Counter(process.running.refs) if process.running is not None else Counter()
        free = sorted(+(process.refs - busy))
        if free:
            process.drop([self.choose(free)])

    def submit(self, process: Process) -> None:
        executor = self.choose([name for name in self.cluster.processes if name != process.process_id])
        nested = self.some(sorted(+process.refs))
        there = [id for id in sorted(+process.refs) if isinstance(process.table.entries[id].value, bytes)]
        process.submit(executor, nested, self.some(there))

    def return_from_task(self, process: Process) -> None:
        """With anything but a reference that leads back to the task itself: counting does not free circles."""
        assert process.running is not None
        task = process.running.task.id
        may_return = [id for id in sorted(+process.refs) if not self.cluster.reaches(id, task)]
        process.return_from_task(self.some(may_return), self.some(sorted(+process.refs)))

    def start_task(self, process: Process) -> None:
        process.start_task()

    def send_result(self, process: Process) -> None:
        process.send_result()

    def die(self, process: Process) -> None:
        """Seldom; and not between naming a borrower and sending it the result, which has a test of its own."""
        naming = [p for p in self.cluster.processes.values() if p.running is not None and p.running.requests]
        if self.choose(range(8)) == 7 and not naming:
            self.cluster.kill(process.process_id)


#: Steps of a life, and how many such lives: the short ones first, because they make the better story if one goes wrong.
LIVES = [(15, 300), (30, 300), (60, 200), (120, 100), (400, 25)]


@pytest.mark.parametrize(("steps", "lives"), LIVES)
def test_whatever_crosses_nothing_is_freed_early_and_everything_in_the_end(steps: int, lives: int) -> None:
    for number in range(lives):
        Life(f"{steps}-{number}", deaths=False).live(steps)


@pytest.mark.parametrize(("steps", "lives"), LIVES)
def test_whoever_dies_the_others_free_everything_in_the_end(steps: int, lives: int) -> None:
    """What only a dead process kept alive is gone, so here the promise is that the others come to rest and free all."""
    for number in range(lives):
        Life(f"{steps}-{number}", deaths=True).live(steps)
