"""The tables of the control state, loaded from rows: of all that was stored, or of a part where shards differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skate._control.state import events, steps, tables
from skate._control.state.control import Control, Settings
from skate._control.state.events import EventLog
from skate._control.state.kv import KeyValues
from skate._core import actors, groups
from skate._core.ids import node_of
from skate._core.placement import NodeView
from skate._core.task import ActorInfo, Death, Job
from skate._wire import cluster
from skate._wire import messages as wire

# -- keys and values ---------------------------------------------------------------------------------------------------


class KeyValueHistories(RuleBasedStateMachine):
    """A service that starts again with the rows answers what the one before would have."""

    KEYS = st.sampled_from([b"a", b"b"])
    PROCESSES = st.sampled_from([b"p", b"q"])

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[bytes, bytes] = {}
        self.values: dict[bytes, bytes] = {}
        self.number = 0
        #: Writes whose answers are not known to have come: process, message, number, answer.
        self.open: list[tuple[bytes, wire.KeyValue, int, bool]] = []
        self.table = KeyValues(self.mark)

    def mark(self, table: str, key: bytes) -> None:
        self.marked.add(key)

    def act(self, *call: Any) -> Any:
        self.marked: set[bytes] = set()
        result = call[0](*call[1:])
        for key in self.marked:
            row = self.table.row(key)
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        return result

    @rule(what=st.sampled_from(["put", "add", "delete"]), key=KEYS, process=PROCESSES)
    def write(self, what: str, key: bytes, process: bytes) -> None:
        self.number += 1
        value = b"%d" % self.number
        message = wire.KeyValue(1, "delete" if what == "delete" else "put", "n", key, value, what == "put")
        done = what == "put" or (key in self.values) == (what == "delete")
        assert self.act(self.table.handle, message, process, self.number) is done
        if done and what == "delete":
            del self.values[key]
        elif done:
            self.values[key] = value
        if done:
            self.open.append((process, message, self.number, done))

    @rule(data=st.data())
    def said_again(self, data: st.DataObject) -> None:
        if self.open:
            process, message, number, answer = data.draw(st.sampled_from(self.open))
            assert self.act(self.table.handle, message, process, number) is answer

    @rule(process=PROCESSES, everything=st.booleans())
    def answers_have_come(self, process: bytes, everything: bool) -> None:
        numbers = [number for id, _, number, _ in self.open if id == process]
        up_to = None if everything else (numbers[len(numbers) // 2] if numbers else 0)
        self.act(self.table.forget_writes, process, up_to)
        self.open = [entry for entry in self.open if entry[0] != process or (up_to is not None and entry[2] > up_to)]

    @rule()
    def started_again(self) -> None:
        self.table = KeyValues(self.mark)
        unpack = tables.unpacker(tables.ValueRow)
        self.table.load((key, unpack(row)) for key, row in sorted(self.rows.items()))
        # Rows whose writers alone have changed are not written: a process that is not asked after again has them.
        for process in self.table.writers():
            if not any(entry[0] == process for entry in self.open):
                self.act(self.table.forget_writes, process)

    @invariant()
    def all_is_there(self) -> None:
        for key in (b"a", b"b"):
            assert self.table.handle(wire.KeyValue(1, "get", "n", key)) == self.values.get(key)
        assert self.table.values("n") == [self.values[key] for key in sorted(self.values)]
        assert set(self.table.writers()) >= {entry[0] for entry in self.open}
        if not self.open and not self.table.writers():
            assert len(self.rows) == len(self.values), "a tombstone is left"


TestKeyValueHistories = KeyValueHistories.TestCase

# -- groups ------------------------------------------------------------------------------------------------------------


def test_two_nodes_that_hold_one_bundle_are_told_apart() -> None:
    """One was given up, and its node could not be told so: that one is given back, and the other stays."""
    table = groups.GroupTable()
    table.create(b"g", [{"CPU": 1}], "PACK")
    bundle = table.groups[b"g"].bundles[0]
    bundle.node, bundle.prepared, bundle.committed = b"B", True, True
    table.groups[b"g"].state = groups.READY
    for held in ({(b"A", b"g", 0): False, (b"B", b"g", 0): True}, {(b"B", b"g", 0): True, (b"A", b"g", 0): False}):
        assert table.settle(held, {b"A", b"B"}) == [groups.Release(b"A", b"g", 0)]
        assert table.groups[b"g"].state == groups.READY


BUNDLES = st.tuples(st.sampled_from([b"", b"A", b"B", b"C"]), st.booleans(), st.booleans())


@given(
    bundles=st.lists(BUNDLES, min_size=1, max_size=3),
    held=st.dictionaries(
        st.tuples(st.sampled_from([b"A", b"B"]), st.sampled_from([b"g", b"h"]), st.integers(0, 2)), st.booleans()
    ),
)
def test_after_settling_nodes_hold_what_groups_have(
    bundles: list[tuple[bytes, bool, bool]], held: dict[tuple[bytes, bytes, int], bool]
) -> None:
    table = groups.GroupTable()
    table.create(b"g", [{"CPU": 1}] * len(bundles), "PACK")
    group = table.groups[b"g"]
    for bundle, (node, prepared, committed) in zip(group.bundles, bundles, strict=True):
        bundle.node = node
        bundle.prepared = bool(node) and (prepared or committed)
        bundle.committed = bool(node) and committed
    group.state = groups.READY if all(bundle.committed for bundle in group.bundles) else groups.RESCHEDULING
    for command in table.settle(held, {b"A", b"B"}):
        match command:
            case groups.Release(node, id, index):
                held.pop((node, id, index), None)
            case groups.Commit(node, id, index):
                held[node, id, index] = True
    table.validate()
    meant = {(bundle.node, b"g", index) for index, bundle in enumerate(group.bundles) if bundle.node in (b"A", b"B")}
    assert held.keys() == meant
    assert all(held.values()), "what is held for a group counts, or was given up"
    assert (group.state == groups.READY) == all(bundle.committed for bundle in group.bundles)


# -- events ------------------------------------------------------------------------------------------------------------


def test_the_newest_events_are_kept_and_go_on_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENTS_MAX", 3)
    log, rows = EventLog(), dict[bytes, bytes]()
    for count in range(10):
        if count % 4 == 3:  # another service
            log = EventLog()
            unpack = tables.unpacker(dict)
            log.load((key, unpack(row)) for key, row in sorted(rows.items()))
        for key in log.add({"count": count}):
            row = log.row(key)
            if row is None:
                rows.pop(key)
            else:
                rows[key] = row
        assert [event["count"] for event in log.all()] == list(range(max(0, count - 2), count + 1))
        assert len(rows) == len(log.all())


# -- a service that starts again ---------------------------------------------------------------------------------------


class Stored:
    """A control state with its rows, and one that starts again with them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], bytes] = {}
        self.said: list[Any] = []
        self.begin()

    def begin(self, without: str = "") -> None:
        """without: a table that has lost its rows, as if they lay on a shard that had not written them."""
        self.rows = {place: row for place, row in self.rows.items() if place[0] != without}
        self.control = Control(Settings(cluster_id="c", stores=True), 0.0)
        rows = self.rows
        self.carry_out(
            self.control.begin(lambda table: sorted((key, row) for (of, key), row in rows.items() if of == table))
        )

    def carry_out(self, commands: list[steps.Command]) -> None:
        for command in commands:
            match command:
                case steps.Save(table, key, row):
                    self.rows[table, key] = row
                case steps.Forget(table, key):
                    self.rows.pop((table, key), None)
                case steps.Send(_, message):
                    self.said.append(message)
                case steps.Defect(error) | steps.Cut(_, error):
                    raise error

    def hear(self, link: int, message: Any) -> None:
        self.carry_out(self.control.handle(steps.Said(link, message), 0.0))

    def join(self, link: int, id: bytes = b"") -> bytes:
        self.said.clear()
        view = NodeView(id=id, total={"CPU": 40_000}, available={"CPU": 40_000})
        self.hear(link, cluster.Join(cluster.Member(view, "h", 1), b"s", "c" if id else ""))
        joined = next(message for message in self.said if isinstance(message, cluster.Joined | cluster.TellToEnd))
        return joined.node_id if isinstance(joined, cluster.Joined) else b""


@pytest.mark.parametrize("lost", ["", tables.CLUSTER])
def test_a_number_is_given_to_one_node_ever(lost: str) -> None:
    stored = Stored()
    first, second = stored.join(1), stored.join(2)
    assert (node_of(first), node_of(second)) == (1, 2)
    stored.hear(1, cluster.Leave("it ends"))
    stored.begin(lost)
    assert node_of(stored.join(1)) == 3
    assert stored.join(2, second) == second
    assert stored.join(3, first) == b"", "it was declared dead"


def driver_of(node: bytes) -> Job:
    return Job(b"job1", node[:4] + b"driver01", "n", program=b"x")


def test_a_driver_that_ended_as_a_process_alone_is_no_driver_and_its_groups_go() -> None:
    stored = Stored()
    node = stored.join(1)
    job = driver_of(node)
    stored.hear(1, cluster.JobStarted(job, 1))
    stored.hear(1, cluster.Acquaint(job.driver, 1, job))
    create = wire.CreateGroup(1, b"g" * 16, [{"CPU": 1.0}], "PACK", job=job.driver)
    stored.hear(1, cluster.FromProcess(job.driver, create, 1))
    assert stored.control.groups.table.groups
    stored.begin()
    stored.join(1, node)
    stored.hear(1, cluster.Holding([cluster.HeldProcess(job.driver, 0, job)]))
    stored.hear(1, cluster.FromProcess(job.driver, wire.PeerGone(job.driver, 1, 0, b""), 2))
    assert not stored.control.jobs.drivers
    assert not stored.control.groups.table.groups
    assert stored.control.jobs.describe()[0]["state"] == "ended"
    stored.begin()  # and a worker of it asks for another one
    stored.join(1, node)
    stored.hear(1, cluster.Holding())
    worker = node[:4] + b"worker01"
    stored.hear(1, cluster.Acquaint(worker, 2, job))
    stored.hear(1, cluster.FromProcess(worker, wire.CreateGroup(1, b"h" * 16, [{"CPU": 1.0}], "PACK", job=job.driver)))
    assert not stored.control.groups.table.groups


def test_an_actor_waits_for_a_node_when_none_was_there_at_the_start() -> None:
    """All nodes had left when the cluster was stopped; what was detached starts again with the first that comes."""
    stored = Stored()
    node = stored.join(1)
    process = node[:4] + b"process1"
    stored.hear(1, cluster.Acquaint(process, 1, Job()))
    info = ActorInfo("A", "name", "n", detached=True, max_restarts=-1)
    stored.hear(1, cluster.FromProcess(process, wire.RegisterActor(1, b"a" * 16, info), 1))
    stored.hear(1, cluster.FromProcess(process, wire.Define(b"fn", "A", b""), 2))
    creation = wire.CreateActor(b"a" * 16, wire_task(), wire_settings())
    stored.hear(1, cluster.FromProcess(process, creation, 3))
    stored.hear(1, cluster.Leave("it ends"))
    stored.begin()
    stored.join(1)
    stored.carry_out(stored.control.handle(steps.Look(), 1.0))
    assert any(isinstance(message, cluster.PlaceActor) for message in stored.said)


def wire_task() -> Any:
    from skate._core.task import Task

    return Task(b"a" * 16 + bytes(4), b"fn", b"")


def wire_settings() -> Any:
    from skate._core.task import ActorSettings

    return ActorSettings()


def test_functions_are_kept_until_all_processes_have_said_what_they_need() -> None:
    stored = Stored()
    node = stored.join(1)
    process, other = node[:4] + b"process1", node[:4] + b"process2"
    for id in (process, other):
        stored.hear(1, cluster.Acquaint(id, 1, Job()))
    for fn in (b"f", b"g"):
        stored.hear(1, cluster.FromProcess(process, wire.Define(fn, "f", b"")))
    stored.begin()
    stored.join(1, node)
    stored.hear(1, cluster.Holding([cluster.HeldProcess(id, 1, Job()) for id in (process, other)]))
    assert not stored.control.recovery.is_under_way
    stored.hear(1, cluster.FromProcess(other, wire.Needs([])))
    assert len(stored.control.functions.describe()) == 2
    stored.hear(1, cluster.FromProcess(process, wire.Needs([b"g"])))
    assert [function["function_id"] for function in stored.control.functions.describe()] == [b"g"]


# -- actors ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaves_is_told_so_again_and_not_killed() -> None:
    table = actors.ActorTable()
    table.register(b"a", b"owner", ActorInfo("A"))
    table.created(b"a")
    table.granted(b"a", b"worker", 1)
    table.started(b"worker")
    assert actors.Leave(b"worker") in table.drop(b"a", b"owner")
    assert table.actors[b"a"].leaves
    table.register(b"b", b"owner", ActorInfo("A"))
    table.created(b"b")
    table.granted(b"b", b"starting", 1)
    table.drop(b"b", b"owner")
    assert not table.actors[b"b"].leaves, "it was killed: its __init__ may hang"


def rivals() -> tuple[actors.ActorTable, actors.Actor, actors.Actor]:
    """The death of the first was not stored, and the registration of the second was, on another shard."""
    info = ActorInfo("A", "name", "n")
    first = actors.Actor(b"first", b"owner", info, actors.ALIVE, b"worker", lives=1)
    second = actors.Actor(b"second", b"another", info)
    table = actors.ActorTable()
    table.load([second, first], [0, 0])
    return table, first, second


def test_a_name_goes_to_the_one_that_was_registered_when_the_death_is_told_again() -> None:
    table, first, second = rivals()
    assert table.named("n", "name") is first
    table.process_died(b"worker", Death("crash", "it was killed"))
    assert table.named("n", "name") is second
    assert table.register(b"second", b"another", second.info) == []


def test_a_name_stays_with_the_one_that_lives_when_the_other_registers_again() -> None:
    table, first, second = rivals()
    with pytest.raises(actors.NameTaken):
        table.register(b"second", b"another", second.info)
    assert second.state == actors.DEAD
    assert table.named("n", "name") is first
    table.validate()


def test_two_stored_groups_with_one_name_become_one() -> None:
    stored = Stored()
    node = stored.join(1)
    job = driver_of(node)
    stored.hear(1, cluster.JobStarted(job, 1))
    stored.hear(1, cluster.Acquaint(job.driver, 1, job))
    requests = [wire.CreateGroup(1, id * 16, [{"CPU": 1.0}], "PACK", "name", job=job.driver) for id in (b"g", b"h")]
    stored.hear(1, cluster.FromProcess(job.driver, requests[0], 1))
    first = stored.rows[tables.GROUPS, b"g" * 16]
    stored.hear(1, cluster.FromProcess(job.driver, wire.RemoveGroup(b"g" * 16), 2))
    stored.hear(1, cluster.FromProcess(job.driver, requests[1], 3))
    stored.rows[tables.GROUPS, b"g" * 16] = first  # its shard has not written that it was removed
    stored.begin()
    stored.join(1, node)
    stored.hear(1, cluster.Holding([cluster.HeldProcess(job.driver, 1, job)]))
    stored.hear(1, cluster.FromProcess(job.driver, wire.RemoveGroup(b"g" * 16), 2))
    stored.said.clear()
    stored.hear(1, cluster.FromProcess(job.driver, requests[1], 3))
    answers = [each.message.body for each in stored.said if isinstance(each, cluster.ToProcess)]
    assert answers == [{}]
    assert list(stored.control.groups.table.groups) == [b"h" * 16]
    assert stored.control.groups._names == {"name": b"h" * 16}


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), max_size=5))
def test_what_was_stored_is_loaded_with_its_indexes(kinds: list[tuple[int, bool, bool]]) -> None:
    states = (actors.WAITING, actors.PENDING, actors.STARTING, actors.ALIVE, actors.DEAD)
    rows, orders = [], []
    for count, (state, is_named, _) in enumerate(kinds):
        info = ActorInfo("A", f"name{count}" if is_named else "", "n")
        actor = actors.Actor(b"%d" % count, b"owner", info, states[state])
        if actor.state in (actors.STARTING, actors.ALIVE):
            actor.worker, actor.lives = b"worker%d" % count, 1
        if actor.state == actors.DEAD:
            actor.death = Death("kill", "it was killed")
        rows.append(actor)
        orders.append(count + 1 if actor.state == actors.DEAD else 0)
    table = actors.ActorTable()
    table.load(rows, orders)
    table.validate()
    for actor, order in zip(rows, orders, strict=True):
        assert table.order_of(actor.id) == order
        if actor.worker:
            assert table.of_worker(actor.worker) is actor
        if actor.info.name:
            assert (table.named("n", actor.info.name) is actor) == (actor.state != actors.DEAD)
