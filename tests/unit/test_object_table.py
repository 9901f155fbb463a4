"""Every byte has one use, pinned bytes stay, every request is answered once, and nothing is lost in the end."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._core import object_room, object_table, policy_garbage
from skate._core.object_records import (
    AskForGarbage,
    Command,
    Discard,
    Place,
    ReplyAllocated,
    ReplyFull,
    ReplyPinned,
    ReportDropped,
    StartReserve,
    StartRestore,
    StartSpill,
)
from skate._core.object_table import ObjectTable, StoreProtocolError

UNIT = 64
HEAD = 4 * UNIT
A, B, C = b"process-a", b"process-b", b"process-c"


class Bench:
    """A table with ten units of space, and short words for what tests do with it."""

    def __init__(self, units: int = 10, *, collects_garbage: bool = False) -> None:
        self.table = ObjectTable(
            HEAD,
            HEAD + units * UNIT,
            full_grace_s=10,
            unsealed_grace_s=10,
            describe=lambda process: process.decode(),
            collects_garbage=collects_garbage,
        )
        self.now = 100.0
        self.requests = 0
        #: What would lie beyond this in the spill file cannot be written.
        self.disk_limit = 2**62
        #: Commands that were not looked at yet.
        self.commands: list[Command] = []

    def do(self, commands: object) -> list[Command]:
        assert isinstance(commands, (list, tuple))
        self.table.validate()
        seen: list[Command] = []
        for command in commands:
            if isinstance(command, StartReserve):
                error = "disk full" if command.disk + command.size > self.disk_limit else ""
                seen.extend(self.table.reserve_ended(command.job, error, self.now))
                self.table.validate()
            else:
                seen.append(command)
        self.commands.extend(seen)
        return seen

    def allocate(self, process: bytes, units: int, chunk: bool = False) -> list[Command]:
        self.requests += 1
        least = units * UNIT // 8 if chunk else units * UNIT
        return self.do(self.table.allocate(process, self.requests, units * UNIT, least, self.now))

    def put(self, process: bytes, object_id: bytes, units: int, owner: bytes | None = None) -> int:
        """Allocate and seal; returns the offset."""
        (reply,) = self.allocate(process, units)
        assert isinstance(reply, ReplyAllocated)
        self.do(self.table.seal(process, object_id, owner or process, reply.offset, units * UNIT, self.now))
        return reply.offset

    def pin(self, process: bytes, *ids: bytes) -> list[Command]:
        self.requests += 1
        return self.do(self.table.pin(process, self.requests, list(ids), self.now))

    def unpin(self, process: bytes, *ids: bytes) -> list[Command]:
        return self.do(self.table.unpin(process, ids, self.now))

    def free(self, process: bytes, *ids: bytes) -> list[Command]:
        return self.do(self.table.free(process, ids, self.now))

    def die(self, process: bytes) -> list[Command]:
        return self.do(self.table.process_died(process, self.now))

    def tick(self, after: float) -> list[Command]:
        self.now += after
        return self.do(self.table.tick(self.now))

    def end_io(self, error: str = "") -> list[Command]:
        """End the oldest job."""
        job = min(self.table.room.jobs)
        spilling = self.table.room.jobs[job][0].place is Place.SPILLING
        end = self.table.spill_ended if spilling else self.table.restore_ended
        return self.do(end(job, error, self.now))

    def all_io_ends(self, commands: list[Command]) -> list[Command]:
        """End all jobs, as the disk's limit wants it; all that was said since."""
        while self.table.room.jobs:
            obj, disk = self.table.room.jobs[min(self.table.room.jobs)]
            full = obj.place is Place.SPILLING and disk + obj.size > self.disk_limit
            commands = commands + self.end_io("disk full" if full else "")
        return commands

    def where(self, object_id: bytes) -> Place:
        return self.table.objects[object_id].place


def test_space_is_lent_at_once_and_sealed_in_parts() -> None:
    bench = Bench()
    assert bench.allocate(A, 6) == [ReplyAllocated(A, 1, HEAD, 6 * UNIT)]
    table = bench.table
    bench.do(table.seal(A, b"second", A, HEAD + 2 * UNIT, UNIT + 1, bench.now))
    bench.do(table.seal(A, b"first", A, HEAD, 1, bench.now))
    assert table.statistics()["lent_bytes"] == 3 * UNIT
    bench.do(table.return_space(A, HEAD + 4 * UNIT, 2 * UNIT, bench.now))
    assert table.statistics()["lent_bytes"] == UNIT
    bench.die(A)
    assert table.statistics()["available_bytes"] == 10 * UNIT


@pytest.mark.parametrize(
    ("process", "offset", "size"),
    [
        (B, HEAD, UNIT),  # lent to another process
        (A, HEAD, 3 * UNIT),  # more than was lent
        (A, HEAD + 2 * UNIT, UNIT),  # not lent at all
        (A, HEAD + 1, UNIT),  # not aligned
        (A, HEAD, 0),
        (A, HEAD, -1),
        (A, 0, UNIT),  # the head of the arena
        (A, -UNIT, UNIT),
    ],
)
def test_a_seal_outside_of_lent_space_breaks_the_protocol(process: bytes, offset: int, size: int) -> None:
    bench = Bench()
    bench.allocate(A, 2)
    with pytest.raises(StoreProtocolError):
        bench.table.seal(process, b"x", process, offset, size, bench.now)
    with pytest.raises(StoreProtocolError):
        bench.table.return_space(process, offset, size, bench.now)
    bench.table.validate()
    assert bench.table.statistics()["lent_bytes"] == 2 * UNIT


def test_an_allocation_of_nothing_breaks_the_protocol() -> None:
    bench = Bench()
    with pytest.raises(StoreProtocolError):
        bench.allocate(A, 0)


def test_a_process_cannot_have_any_number_of_requests_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_table, "WAITING_PER_PROCESS_MAX", 3)
    bench = Bench()
    bench.pin(A, b"u")
    bench.allocate(B, 10)
    bench.allocate(A, 1)
    bench.allocate(A, 1)
    with pytest.raises(StoreProtocolError):
        bench.allocate(A, 1)
    with pytest.raises(StoreProtocolError):
        bench.pin(A, b"v")


def test_what_can_never_fit_is_refused_at_once() -> None:
    bench = Bench()
    (refusal,) = bench.allocate(A, 11)
    assert isinstance(refusal, ReplyFull)
    assert "object_store_memory" in refusal.report
    assert "can never fit" in refusal.report


def test_a_chunk_may_be_smaller_than_asked_for() -> None:
    bench = Bench()
    bench.allocate(A, 7)
    assert bench.allocate(B, 8, chunk=True) == [ReplyAllocated(B, 2, HEAD + 7 * UNIT, 3 * UNIT)]
    assert bench.allocate(B, 8, chunk=True) == []


def test_the_least_recently_used_objects_leave() -> None:
    bench = Bench()
    for name in (b"1", b"2", b"3", b"4", b"5"):
        bench.put(A, name, 2)
    bench.pin(B, b"1")
    bench.unpin(B, b"1")
    (spill,) = bench.allocate(C, 1)
    assert isinstance(spill, StartSpill)
    assert bench.where(b"2") is Place.SPILLING
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    assert reply.offset == HEAD + 2 * UNIT


def full_bench() -> Bench:
    """A table whose space is taken by five objects, and whose processes are asked to collect garbage."""
    bench = Bench(collects_garbage=True)
    for name in (b"1", b"2", b"3", b"4", b"5"):
        bench.put(A, name, 2)
    return bench


def test_processes_collect_garbage_before_anything_leaves() -> None:
    bench = full_bench()
    assert bench.allocate(B, 2) == [AskForGarbage()]
    assert bench.allocate(C, 2) == [], "they are asked once"
    assert isinstance(bench.free(A, b"3")[0], ReplyAllocated), "what they free is given at once"
    assert isinstance(bench.free(A, b"4")[0], ReplyAllocated)
    assert bench.tick(10) == []
    assert bench.table.counters["spilled"] == 0


def test_objects_leave_a_moment_after_all_have_answered() -> None:
    bench = full_bench()
    bench.allocate(B, 2)
    assert bench.do(bench.table.garbage_collected(bench.now)) == []
    assert bench.table.next_deadline() == bench.now + policy_garbage.SETTLE_S
    (spill,) = bench.tick(policy_garbage.SETTLE_S)
    assert isinstance(spill, StartSpill)


def test_who_does_not_answer_is_not_waited_for_longer() -> None:
    bench = full_bench()
    bench.allocate(B, 2)
    assert bench.table.next_deadline() == bench.now + policy_garbage.WAIT_S
    (spill,) = bench.tick(policy_garbage.WAIT_S)
    assert isinstance(spill, StartSpill)


def test_a_request_is_not_refused_while_garbage_is_collected() -> None:
    bench = full_bench()
    bench.table.room._full_grace_s = 0.0
    assert bench.allocate(B, 2) == [AskForGarbage()]
    assert bench.tick(policy_garbage.WAIT_S / 2) == []
    assert isinstance(bench.tick(policy_garbage.WAIT_S)[0], StartSpill)


def test_short_memory_of_the_machine_is_too_urgent_to_wait_for_garbage() -> None:
    bench = full_bench()
    commands = bench.do(bench.table.limit_memory(6 * UNIT, bench.now))
    assert [type(command) for command in commands] == [AskForGarbage, StartSpill, StartSpill]


def test_a_request_beyond_what_memory_is_left_waits_for_garbage() -> None:
    bench = Bench(collects_garbage=True)
    bench.put(A, b"1", 2)
    bench.put(A, b"2", 2)
    bench.do(bench.table.limit_memory(4 * UNIT, bench.now))
    assert bench.allocate(B, 2) == [AskForGarbage()]
    (spill,) = bench.tick(policy_garbage.WAIT_S)
    assert isinstance(spill, StartSpill)


def test_objects_leave_when_memory_of_the_machine_is_short_though_the_arena_has_room() -> None:
    bench = Bench()
    for name in (b"1", b"2", b"3"):
        bench.put(A, name, 2)
    bench.pin(B, b"1")
    (spill,) = bench.do(bench.table.limit_memory(5 * UNIT, bench.now))
    assert isinstance(spill, StartSpill)
    assert spill.uncached, "what the system caches of the file is memory, too"
    assert bench.where(b"2") is Place.SPILLING, "the one that was used longest ago, of those that nobody looks at"
    assert bench.do(bench.table.limit_memory(5 * UNIT, bench.now)) == [], "it is on its way"
    bench.end_io()
    assert bench.where(b"2") is Place.DISK
    assert bench.table.statistics()["used_bytes"] == 4 * UNIT


def test_a_request_beyond_what_memory_is_left_waits_for_objects_to_leave() -> None:
    bench = Bench()
    bench.put(A, b"1", 2)
    bench.put(A, b"2", 2)
    assert bench.do(bench.table.limit_memory(4 * UNIT, bench.now)) == []
    (spill,) = bench.allocate(B, 2)
    assert isinstance(spill, StartSpill)
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    assert bench.where(b"1") is Place.DISK
    assert bench.table.statistics()["used_bytes"] == 4 * UNIT


def test_a_chunk_is_cut_to_what_memory_is_left() -> None:
    bench = Bench()
    bench.do(bench.table.limit_memory(3 * UNIT, bench.now))
    assert bench.allocate(B, 8, chunk=True) == [ReplyAllocated(B, 1, HEAD, 3 * UNIT)]


@pytest.mark.parametrize("disk_works", [True, False])
def test_short_memory_of_the_machine_refuses_nothing(disk_works: bool) -> None:
    """What cannot leave stays, and the request is served from the arena: the memory monitor has other means."""
    bench = Bench()
    bench.put(A, b"1", 4)
    if disk_works:
        bench.pin(B, b"1")
    bench.do(bench.table.limit_memory(UNIT, bench.now))
    commands = bench.allocate(C, 2)
    if not disk_works:
        assert commands == []
        commands = bench.end_io("disk full")
    (reply,) = [command for command in commands if not isinstance(command, Discard)]
    assert isinstance(reply, ReplyAllocated)
    assert bench.where(b"1") is Place.MEMORY


def test_what_is_on_its_way_when_memory_is_not_short_any_more_leaves_alone() -> None:
    bench = Bench()
    for name in (b"1", b"2", b"3"):
        bench.put(A, name, 2)
    bench.do(bench.table.limit_memory(4 * UNIT, bench.now))
    bench.do(bench.table.limit_memory(2**40, bench.now))
    bench.end_io()
    assert [bench.where(name) for name in (b"1", b"2", b"3")] == [Place.DISK, Place.MEMORY, Place.MEMORY]
    assert isinstance(bench.allocate(B, 4)[0], ReplyAllocated)


def test_what_arrived_for_a_waiting_pin_does_not_leave_again_for_short_memory() -> None:
    bench = Bench()
    bench.put(A, b"1", 4)
    bench.put(A, b"2", 4)
    bench.do(bench.table.limit_memory(0, bench.now))
    bench.end_io()
    bench.end_io()
    commands = bench.all_io_ends(bench.pin(B, b"1", b"2"))
    assert isinstance(commands[-1], ReplyPinned)
    assert bench.where(b"1") is bench.where(b"2") is Place.MEMORY


def test_a_copy_that_comes_too_late_for_a_pin_is_not_dropped_while_that_waits_for_others() -> None:
    bench = Bench()
    bench.table.keeper = C
    bench.table.is_redundant = lambda object_id: True
    bench.put(A, b"1", 4)
    bench.do(bench.table.limit_memory(0, bench.now))
    bench.end_io()
    assert bench.pin(B, b"1", b"late") == []
    (restore,) = bench.tick(10)
    assert isinstance(restore, StartRestore), "it does not wait for the other one any more"
    bench.do(bench.table.limit_memory(10 * UNIT, bench.now))
    bench.put(C, b"late", 2)
    assert not any(isinstance(said, ReportDropped) for said in bench.do(bench.table.limit_memory(0, bench.now)))
    pinned = bench.all_io_ends([])[-1]
    assert isinstance(pinned, ReplyPinned)
    assert all(offset >= 0 for offset, _ in pinned.at), "it came in time after all"
    bench.unpin(B, b"1", b"late")
    bench.do(bench.table.limit_memory(0, bench.now + 1))
    assert b"late" not in bench.table.objects, "nobody waits for it any more"


def test_a_copy_is_dropped_for_another_request_once_the_pin_that_hoped_for_it_is_refused() -> None:
    """What is dropped is said first."""
    bench = Bench()
    bench.table.keeper = C
    bench.table.is_redundant = lambda object_id: True
    bench.put(A, b"1", 6)
    bench.do(bench.table.limit_memory(0, bench.now))
    bench.end_io()
    bench.do(bench.table.limit_memory(10 * UNIT, bench.now))
    bench.put(C, b"copy", 4)
    bench.allocate(A, 6)
    assert bench.pin(B, b"1", b"copy") == []
    assert bench.allocate(A, 4) == [], "it may not take what an older request hopes for"
    assert [type(command) for command in bench.tick(10)] == [ReportDropped, ReplyFull, ReplyAllocated]


def test_only_objects_in_the_hole_leave() -> None:
    """Least recently used are 1, 4 and 2; 1 and 2 are neighbours and make the hole, so 4 may stay."""
    bench = Bench()
    for name in (b"1", b"2", b"3", b"4", b"5"):
        bench.put(A, name, 2)
    for name in (b"1", b"4", b"2", b"3", b"5"):
        bench.pin(B, name)
        bench.unpin(B, name)
    commands = bench.allocate(C, 4)
    assert all(isinstance(command, StartSpill) for command in commands)
    assert {name for name in (b"1", b"2", b"3", b"4", b"5") if bench.where(name) is Place.SPILLING} == {b"1", b"2"}
    assert bench.end_io() == []
    assert bench.end_io() == [ReplyAllocated(C, bench.requests, HEAD, 4 * UNIT)]


def test_a_spilled_object_comes_back_for_a_pin() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.allocate(A, 6)
    bench.end_io()
    assert bench.where(b"1") is Place.DISK
    assert bench.pin(B, b"1") == []
    (restore,) = bench.do(bench.table.return_space(A, HEAD, 6 * UNIT, bench.now))
    assert isinstance(restore, StartRestore)
    assert bench.end_io() == [ReplyPinned(B, bench.requests, [(HEAD, 6 * UNIT)])]


def test_a_restored_object_leaves_again_without_being_written() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.put(A, b"2", 4)
    bench.allocate(A, 6)
    bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 6 * UNIT, bench.now))
    bench.pin(B, b"1")
    bench.end_io()
    bench.unpin(B, b"1")
    bench.pin(B, b"2")
    assert bench.allocate(A, 6) == [ReplyAllocated(A, bench.requests, HEAD, 6 * UNIT)]
    assert [type(command) for command in bench.free(A, b"1")] == [Discard, Discard], "the copy and the spare"
    assert bench.table.statistics()["disk_bytes"] == 0


def test_an_object_pinned_while_it_leaves_stays_and_others_leave_instead() -> None:
    bench = Bench()
    bench.put(A, b"1", 5)
    bench.put(A, b"2", 5)
    bench.allocate(C, 5)
    assert bench.where(b"1") is Place.SPILLING
    reply, spill = bench.pin(B, b"1")
    assert reply == ReplyPinned(B, bench.requests, [(HEAD, 5 * UNIT)])
    assert isinstance(spill, StartSpill)
    assert bench.where(b"2") is Place.SPILLING
    assert bench.end_io() == []
    assert bench.where(b"1") is Place.MEMORY
    (allocated,) = bench.end_io()
    assert isinstance(allocated, ReplyAllocated)


def test_an_object_freed_while_it_leaves_makes_room_when_the_disk_is_done_with_it() -> None:
    bench = Bench()
    bench.put(A, b"1", 10)
    bench.allocate(C, 5)
    assert bench.free(A, b"1") == []
    reply, *discards = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    assert [type(discard) for discard in discards] == [Discard, Discard], "the copy and the spare"
    assert bench.table.statistics()["objects"] == 0


def test_an_object_freed_while_it_comes_back_is_answered_as_gone() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.put(A, b"2", 4)
    bench.allocate(A, 6)
    bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 6 * UNIT, bench.now))
    bench.pin(B, b"1", b"2")
    (reply,) = bench.free(A, b"1")
    assert reply == ReplyPinned(B, bench.requests, [(-1, 0), (HEAD + 6 * UNIT, 4 * UNIT)])
    assert [type(command) for command in bench.end_io()] == [Discard, Discard], "the copy and the spare"
    assert bench.table.statistics()["available_bytes"] == 6 * UNIT


def test_an_object_that_cannot_be_read_is_answered_as_gone() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.allocate(A, 6)
    bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 6 * UNIT, bench.now))
    bench.pin(B, b"1")
    commands = bench.end_io("input/output error")
    assert ReplyPinned(B, bench.requests, [(-1, 0)]) in commands
    assert bench.table.statistics()["lost"] == 1
    assert bench.table.statistics()["available_bytes"] == 10 * UNIT


def test_memory_of_a_freed_object_is_reused_after_the_last_unpin() -> None:
    bench = Bench()
    bench.put(A, b"1", 10)
    bench.pin(B, b"1", b"1")
    bench.pin(C, b"1")
    bench.free(A, b"1")
    bench.allocate(A, 1)
    assert bench.unpin(B, b"1") == []
    assert bench.unpin(C, b"1") == []
    (reply,) = bench.unpin(B, b"1")
    assert isinstance(reply, ReplyAllocated)
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(-1, 0)])]


def test_a_pin_of_an_object_not_yet_sealed_waits_for_its_seal() -> None:
    bench = Bench()
    bench.put(A, b"1", 1)
    assert bench.pin(B, b"1", b"2") == []
    assert bench.table.next_deadline() == bench.now + 10
    bench.put(A, b"2", 2)
    assert bench.commands[-1] == ReplyPinned(B, 2, [(HEAD, UNIT), (HEAD + UNIT, 2 * UNIT)])


def test_a_pin_of_an_unknown_object_ends_after_a_grace_period() -> None:
    bench = Bench()
    bench.put(A, b"1", 1)
    bench.pin(B, b"1", b"?")
    assert bench.tick(9.9) == []
    assert bench.tick(0.1) == [ReplyPinned(B, 2, [(HEAD, UNIT), (-1, 0)])]
    assert bench.table.next_deadline() is None


def test_a_free_that_overtakes_its_seal_is_not_forgotten() -> None:
    bench = Bench()
    bench.pin(B, b"1")
    assert bench.free(A, b"1") == [ReplyPinned(B, 1, [(-1, 0)])]
    bench.put(C, b"1", 5, owner=A)
    assert bench.table.statistics()["available_bytes"] == 10 * UNIT
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(-1, 0)])]


def test_a_free_that_came_early_counts_for_one_seal_only() -> None:
    bench = Bench()
    bench.free(A, b"1")
    bench.put(B, b"1", 1)
    bench.put(A, b"1", 2)
    (reply,) = bench.pin(C, b"1")
    assert isinstance(reply, ReplyPinned)
    assert reply.at[0][1] == 2 * UNIT


def test_an_id_that_was_freed_can_be_sealed_again() -> None:
    """The owner died, its task runs again elsewhere and makes the same ids."""
    bench = Bench()
    bench.put(A, b"1", 1)
    bench.die(A)
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(-1, 0)])]
    bench.put(C, b"1", 2)
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(HEAD, 2 * UNIT)])]
    bench.unpin(B, b"1")
    bench.free(C, b"1")
    bench.put(C, b"1", 3)
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(HEAD, 3 * UNIT)])]


def test_a_seal_for_a_dead_owner_is_freed_at_once() -> None:
    bench = Bench()
    bench.put(A, b"1", 1)
    bench.die(A)
    bench.put(B, b"2", 5, owner=A)
    assert bench.table.statistics()["used_bytes"] == 0


def test_a_second_seal_replaces_the_first_which_stays_for_those_who_look_at_it() -> None:
    bench = Bench()
    bench.put(A, b"1", 2)
    bench.pin(B, b"1")
    offset = bench.put(A, b"1", 2)
    assert bench.pin(C, b"1") == [ReplyPinned(C, bench.requests, [(offset, 2 * UNIT)])]
    assert bench.table.statistics()["used_bytes"] == 4 * UNIT
    bench.unpin(B, b"1")
    bench.unpin(C, b"1")
    assert bench.table.statistics()["used_bytes"] == 2 * UNIT
    bench.free(A, b"1")
    assert bench.table.statistics()["used_bytes"] == 0


def test_a_second_seal_answers_those_who_wait_for_the_first() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.allocate(A, 4)
    bench.allocate(A, 3)
    bench.end_io()
    assert bench.pin(B, b"1") == []
    offset = bench.table.processes[A].lent.first_fit(UNIT)
    assert offset is not None
    commands = bench.do(bench.table.seal(A, b"1", A, offset, UNIT, bench.now))
    assert ReplyPinned(B, bench.requests, [(offset, UNIT)]) in commands


def test_when_all_is_pinned_a_request_waits_then_fails_with_a_report() -> None:
    bench = Bench()
    bench.put(A, b"\1" * 20, 6)
    bench.pin(B, b"\1" * 20)
    bench.allocate(A, 3)
    assert bench.allocate(C, 2) == []
    assert bench.table.next_deadline() == bench.now + 10
    assert bench.tick(9) == []
    (refusal,) = bench.tick(1)
    assert isinstance(refusal, ReplyFull)
    assert refusal.process == C
    assert not refusal.disk
    for text in ("010101:", "in use by process-b", "owned by process-a", "being filled by process-a", "10.0 s"):
        assert text in refusal.report


def test_a_pin_of_more_than_there_is_room_for_is_refused_at_once() -> None:
    bench = Bench()
    bench.put(A, b"1", 4)
    bench.put(A, b"2", 4)
    bench.allocate(A, 4)
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    bench.do(bench.table.seal(A, b"3", A, reply.offset, reply.size, bench.now))
    (refusal,) = bench.pin(B, b"1", b"2", b"3")
    assert isinstance(refusal, ReplyFull)
    assert refusal.process == B
    assert not refusal.disk
    assert "3 objects" in refusal.report
    assert "can never fit" in refusal.report
    replies = bench.all_io_ends(bench.pin(B, b"1", b"2", b"1"))
    assert isinstance(replies[-1], ReplyPinned), "two of them fit, and one that is wanted twice counts once"


def test_waiting_goes_on_while_the_disk_works() -> None:
    bench = Bench()
    bench.put(A, b"1", 5)
    bench.put(A, b"2", 5)
    bench.pin(A, b"2")
    bench.allocate(B, 4)
    bench.allocate(C, 4)
    assert bench.where(b"1") is Place.SPILLING
    assert bench.tick(60) == []
    bench.end_io()
    assert bench.tick(9) == []
    (refusal,) = bench.tick(1)
    assert isinstance(refusal, ReplyFull)
    assert refusal.process == C


def test_a_full_disk_keeps_objects_in_memory_and_is_reported() -> None:
    bench = Bench()
    bench.put(A, b"1", 10)
    bench.allocate(B, 1)
    bench.end_io("No space left on device")
    assert bench.where(b"1") is Place.MEMORY
    refusals = []
    retries = 0
    while not refusals:
        deadline = bench.table.next_deadline()
        assert deadline is not None
        refusals = [c for c in bench.tick(deadline - bench.now) if isinstance(c, ReplyFull)]
        while bench.table.room.jobs:
            retries += 1
            bench.end_io("No space left on device")
    assert refusals[0].disk
    assert "No space left on device" in refusals[0].report
    assert 5 < retries < 12


def test_a_disk_that_takes_data_again_is_used_again() -> None:
    bench = Bench()
    bench.put(A, b"1", 10)
    bench.allocate(B, 1)
    bench.end_io("No space left on device")
    bench.tick(1)
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    assert bench.table.statistics()["disk_error"] == ""


def test_requests_are_served_in_order_but_small_ones_may_pass_one_that_cannot_be_served() -> None:
    bench = Bench()
    bench.put(A, b"pinned", 5)
    bench.pin(A, b"pinned")
    assert bench.allocate(B, 8) == []
    for _ in range(object_room.OVERTAKES_MAX):
        (reply,) = bench.allocate(C, 1)
        assert isinstance(reply, ReplyAllocated)
        bench.do(bench.table.return_space(C, reply.offset, reply.size, bench.now))
    assert bench.allocate(C, 1) == [], "now all wait for the large one"
    first, second = bench.free(A, b"pinned") + bench.unpin(A, b"pinned")
    assert isinstance(first, ReplyAllocated)
    assert first.process == B
    assert isinstance(second, ReplyAllocated)
    assert second.process == C


def test_two_pins_that_do_not_fit_together_are_served_one_after_the_other() -> None:
    """Each wants two objects of 4 units; only two fit. Nobody ends up with one half each."""
    bench = Bench()
    for name in (b"1", b"2", b"3", b"4"):
        (reply, *_) = bench.allocate(A, 4) or [None]
        while not isinstance(reply, ReplyAllocated):
            (reply, *_) = bench.end_io() or [None]
        bench.do(bench.table.seal(A, name, A, reply.offset, 4 * UNIT, bench.now))
    bench.allocate(A, 10)
    while bench.table.room.jobs:
        bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 10 * UNIT, bench.now))
    bench.pin(B, b"1", b"2")
    of_b = bench.requests
    bench.pin(C, b"3", b"4")
    of_c = bench.requests
    while bench.table.room.jobs:
        bench.end_io()
    answered = [c.request for c in bench.commands if isinstance(c, ReplyPinned)]
    assert answered == [of_b]
    bench.unpin(B, b"1", b"2")
    while bench.table.room.jobs:
        bench.end_io()
    answered = [c.request for c in bench.commands if isinstance(c, ReplyPinned)]
    assert answered == [of_b, of_c]


def test_a_pin_without_room_fails_and_lets_go_of_what_it_had() -> None:
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.allocate(A, 6)
    bench.end_io()
    bench.pin(B, b"1")
    (refusal,) = bench.tick(10)
    assert isinstance(refusal, ReplyFull)
    assert refusal.request == bench.requests
    assert "back from disk" in refusal.report
    assert bench.table.next_deadline() is None
    assert bench.where(b"1") is Place.DISK


def test_death_takes_back_everything() -> None:
    bench = Bench()
    bench.put(A, b"1", 3)
    bench.put(B, b"2", 3)
    bench.pin(A, b"2")
    bench.pin(B, b"1")
    bench.allocate(A, 2)
    bench.allocate(A, 9)
    bench.pin(A, b"?")
    bench.die(A)
    statistics = bench.table.statistics()
    assert statistics["waiting_for_room"] == statistics["waiting_for_seal"] == statistics["lent_bytes"] == 0
    assert statistics["used_bytes"] == 6 * UNIT, "object 1 is freed, and stays while B looks at it"
    bench.unpin(B, b"1")
    bench.free(B, b"2")
    assert bench.table.statistics()["used_bytes"] == 0


def test_a_request_whose_process_died_lets_the_others_have_its_hole() -> None:
    bench = Bench()
    bench.put(A, b"1", 10)
    bench.allocate(B, 6)
    bench.allocate(C, 6)
    bench.die(B)
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyAllocated)
    assert reply.process == C


def test_an_object_that_need_not_leave_any_more_stays_and_is_the_next_to_leave() -> None:
    bench = Bench()
    bench.put(A, b"1", 5)
    bench.put(A, b"2", 5)
    bench.allocate(B, 4)
    bench.die(B)
    bench.end_io()
    assert bench.where(b"1") is Place.MEMORY
    (reply,) = bench.allocate(C, 4)
    assert isinstance(reply, ReplyAllocated), "its copy on disk is complete, so it leaves at once"


def test_a_pin_of_many_spilled_objects_asks_for_room_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_table, "RESTORES_AHEAD", 2)
    bench = Bench()
    names = [bytes([i]) for i in range(8)]
    for name in names:
        bench.put(A, name, 1)
    (*_, spill) = bench.allocate(A, 10)
    assert isinstance(spill, StartSpill)
    while bench.table.room.jobs:
        bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 10 * UNIT, bench.now))
    bench.pin(B, *names)
    assert len(bench.table.room.jobs) == 2
    while bench.table.room.jobs:
        assert len(bench.table.room.jobs) <= 3
        bench.end_io()
    assert isinstance(bench.commands[-1], ReplyPinned)


def test_a_vain_search_of_a_large_table_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_room, "SEARCH_MAX", 2)
    bench = Bench()
    for name in (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"):
        bench.put(A, name, 1)
    bench.pin(B, b"3", b"6")
    assert bench.allocate(C, 4) == []
    bench.unpin(B, b"6")
    assert not bench.table.room.jobs
    deadline = bench.table.next_deadline()
    assert deadline == pytest.approx(bench.now + 8 * object_room.SEARCH_PAUSE_S)
    bench.tick(deadline - bench.now)
    assert bench.table.room.jobs


def test_among_many_scattered_objects_neighbours_make_the_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two used longest ago do not touch; the first of them has neighbours on one side only, up to a pinned one."""
    monkeypatch.setattr(object_room, "SEARCH_MAX", 2)
    bench = Bench()
    names = [b"%d" % i for i in range(10)]
    for name in names:
        bench.put(A, name, 1)
    for name in (b"3", b"7", b"0", b"9", b"1", b"8", b"2", b"6", b"5", b"4"):
        bench.pin(B, name)
        bench.unpin(B, name)
    bench.pin(B, b"1", b"5")
    bench.free(A, b"8")
    bench.allocate(C, 2)
    spilling = {name for name in names if name != b"8" and bench.where(name) is Place.SPILLING}
    assert spilling == {b"7"}, "7 and the free space beside it"
    bench.allocate(C, 3)
    spilling = {name for name in names if name != b"8" and bench.where(name) is Place.SPILLING}
    assert spilling == {b"7", b"2", b"3", b"4"}


def spilled(*names: bytes) -> Bench:
    """A bench with these objects of A, two units each, all on disk, and nothing in memory."""
    bench = Bench()
    for name in names:
        bench.put(A, name, 2)
    bench.allocate(A, 10)
    while bench.table.room.jobs:
        bench.end_io()
    bench.do(bench.table.return_space(A, HEAD, 10 * UNIT, bench.now))
    bench.commands.clear()
    return bench


def test_an_object_wanted_by_an_older_pin_takes_its_place_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pin asks for one object at a time; when it gets to 2, another has asked for it, after B's request."""
    monkeypatch.setattr(object_table, "RESTORES_AHEAD", 1)
    bench = spilled(b"1", b"2")
    bench.allocate(A, 7)
    bench.pin(C, b"1", b"2")
    of_c = bench.requests
    bench.allocate(B, 2)
    bench.pin(B, b"2")
    while bench.table.room.jobs:
        bench.end_io()
    bench.commands.clear()
    bench.do(bench.table.return_space(A, HEAD + 5 * UNIT, 2 * UNIT, bench.now))
    while bench.table.room.jobs:
        bench.end_io()
    answered = [command for command in bench.commands if isinstance(command, (ReplyPinned, ReplyAllocated))]
    assert answered[0].request == of_c


def test_objects_that_left_for_an_older_request_come_back_for_a_waiting_pin() -> None:
    """C waits for 1 and 2; when 1 is there, B's older request needs its place."""
    bench = spilled(b"1", b"2")
    bench.put(A, b"held", 5)
    bench.pin(A, b"held")
    bench.allocate(B, 6)
    bench.pin(C, b"1", b"2")
    of_c = bench.requests
    restore_1, restore_2 = bench.table.room.jobs
    bench.do(bench.table.restore_ended(restore_1, "", bench.now))
    bench.free(A, b"held")
    (reply,) = bench.unpin(A, b"held")
    assert reply == ReplyAllocated(B, of_c - 1, HEAD, 6 * UNIT)
    assert bench.where(b"1") is Place.DISK
    bench.do(bench.table.restore_ended(restore_2, "", bench.now))
    assert not bench.table.room.jobs, "there is no room for 1"
    bench.do(bench.table.return_space(B, HEAD, 6 * UNIT, bench.now))
    (reply,) = bench.end_io()
    assert isinstance(reply, ReplyPinned)
    assert reply.request == of_c


def test_when_memory_and_disk_are_full_objects_on_disk_can_still_be_read() -> None:
    """One after the other they change places with what is in memory, through the spare part of the spill file."""
    bench = Bench()
    bench.disk_limit = 3 * object_room.DISK_ALIGNMENT
    names = []
    while not any(isinstance(command, ReplyFull) for command in bench.commands):
        commands = bench.all_io_ends(bench.allocate(A, 2))
        while bench.table.room.queue:
            deadline = bench.table.next_deadline()
            assert deadline is not None
            commands = bench.all_io_ends(bench.tick(deadline - bench.now))
        for command in commands:
            if isinstance(command, ReplyAllocated):
                names.append(b"%d" % len(names))
                bench.do(bench.table.seal(A, names[-1], A, command.offset, 2 * UNIT, bench.now))
    assert len(names) == 7, "five fit into memory, two to disk, and one place on disk is spare"
    bench.allocate(A, 2)
    for name in [*names, *reversed(names)]:
        answers = bench.all_io_ends(bench.pin(B, name))
        assert [command.request for command in answers if isinstance(command, ReplyPinned)] == [bench.requests]
        bench.unpin(B, name)
    bench.free(A, *names)
    assert bench.table.statistics()["disk_bytes"] == 0


def test_objects_freed_together_are_gone_together() -> None:
    """A pin that waits for both must not get one of them because the other one went first."""
    for end in ("free", "death"):
        bench = spilled(b"1", b"2", b"3")
        bench.allocate(B, 10)
        bench.pin(C, b"1", b"2")
        commands = bench.free(A, b"1", b"2") if end == "free" else bench.die(A)
        assert ReplyPinned(C, bench.requests, [(-1, 0), (-1, 0)]) in commands


def test_an_object_sealed_again_and_spilled_again_while_a_pin_waits_is_waited_for() -> None:
    bench = spilled(b"1", b"2")
    bench.pin(C, b"1", b"2")
    of_c = bench.requests
    restore_1, restore_2 = bench.table.room.jobs
    bench.free(A, b"1")
    bench.put(A, b"1", 2)
    bench.allocate(B, 6)
    spills = [job for job in bench.table.room.jobs if job > restore_2]
    for job in spills:
        bench.do(bench.table.spill_ended(job, "", bench.now))
    assert bench.where(b"1") is Place.DISK
    bench.do(bench.table.restore_ended(restore_1, "", bench.now))
    bench.do(bench.table.restore_ended(restore_2, "", bench.now))
    while bench.table.room.jobs:
        bench.end_io()
    (reply,) = [command for command in bench.commands if isinstance(command, ReplyPinned)]
    assert reply.request == of_c
    assert [size for _, size in reply.at] == [2 * UNIT, 2 * UNIT]
    assert all(offset >= HEAD for offset, _ in reply.at)


def test_an_old_version_that_nobody_looks_at_leaves_whoever_pins_the_new_one() -> None:
    """The old version was pinned and on its way to disk when the object was sealed again."""
    bench = Bench()
    bench.put(A, b"1", 6)
    bench.allocate(B, 6)  # for which the object leaves
    bench.pin(C, b"1")
    bench.put(A, b"1", 2)
    bench.unpin(C, b"1")
    (of_b,) = bench.table.room.queue
    assert len(of_b.leaving) == 1, "the old version is on its way for B again"
    bench.pin(C, b"1")
    assert ReplyAllocated(B, 2, HEAD, 6 * UNIT) in bench.end_io()
    bench.unpin(C, b"1")
    bench.free(A, b"1")
    bench.die(B)
    assert bench.table.statistics()["available_bytes"] == 10 * UNIT


def test_stray_unpins_are_counted_and_harmless() -> None:
    bench = Bench()
    bench.put(A, b"1", 1)
    bench.pin(B, b"1")
    bench.unpin(A, b"1")
    bench.unpin(B, b"1", b"1", b"?")
    assert bench.table.statistics()["stray_unpins"] == 3


# -- copies of what lies elsewhere ----------------------------------------------------------------------------------

KEEPER = b"keeper"


def with_copies(*names: bytes) -> Bench:
    """Copies of three units each, which can all be had again."""
    bench = Bench()
    bench.table.keeper = KEEPER
    bench.table.is_redundant = lambda object_id: object_id in names
    for name in names:
        bench.put(KEEPER, name, 3)
    return bench


def test_a_redundant_copy_is_dropped_and_others_hear_of_it_first() -> None:
    bench = with_copies(b"1", b"2", b"3")
    (dropped, reply) = bench.allocate(A, 3)
    assert dropped == ReportDropped(b"1"), "and nothing is written"
    assert isinstance(reply, ReplyAllocated)
    assert b"1" not in bench.table.objects
    assert bench.pin(A, b"1") == [ReplyPinned(A, bench.requests, [(-1, 0)])], (
        "at once: it is to be looked for elsewhere"
    )


def test_copies_are_dropped_before_anything_is_written_to_disk() -> None:
    bench = Bench()
    bench.table.keeper = KEEPER
    bench.table.is_redundant = lambda object_id: True
    bench.put(A, b"1", 3)
    bench.put(A, b"2", 3)
    bench.put(KEEPER, b"3", 3)
    assert bench.allocate(A, 3)[0] == ReportDropped(b"3"), "although the others were used longer ago"
    bench.table.validate()


def test_a_copy_that_cannot_be_had_again_goes_to_disk() -> None:
    bench = with_copies(b"1", b"2", b"3")
    bench.table.is_redundant = lambda object_id: object_id == b"2"
    assert bench.allocate(A, 3)[0] == ReportDropped(b"2")
    assert isinstance(bench.allocate(A, 3)[0], StartSpill)
    assert bench.where(b"1") is Place.SPILLING


def test_only_copies_are_dropped() -> None:
    """An id alone says nothing: what was a copy may have been made here since."""
    bench = Bench()
    bench.table.keeper = KEEPER
    bench.table.is_redundant = lambda object_id: True
    for name in (b"1", b"2", b"3"):
        bench.put(A, name, 3)
    assert isinstance(bench.allocate(A, 3)[0], StartSpill)


def test_copies_make_room_when_the_disk_takes_nothing() -> None:
    bench = with_copies(b"1", b"2", b"3")
    bench.disk_limit = 0
    bench.table.is_redundant = lambda object_id: False
    bench.allocate(A, 3)
    bench.all_io_ends([])
    assert bench.table.room.queue, "nothing can leave"
    bench.table.is_redundant = lambda object_id: True
    commands = bench.tick(2.0)
    assert [type(command) for command in commands] == [ReportDropped, ReplyAllocated]


def test_a_copy_in_use_is_not_dropped() -> None:
    bench = with_copies(b"1", b"2", b"3")
    bench.pin(B, b"1", b"2", b"3")
    assert bench.allocate(A, 3) == []
    assert bench.unpin(B, b"2")[0] == ReportDropped(b"2")


def test_a_copy_that_a_pin_waits_for_is_not_dropped() -> None:
    """The pin was let in because the copy is here; the other object's seal is on its way."""
    bench = with_copies(b"1", b"2", b"3")
    assert bench.pin(B, b"1", b"late") == []
    assert bench.allocate(A, 3)[0] == ReportDropped(b"2")
    bench.put(C, b"small", 1)
    assert not any(command == ReportDropped(b"1") for command in bench.allocate(A, 6))
    bench.free(C, b"late")
    (at,) = [command.at for command in bench.all_io_ends(bench.commands) if isinstance(command, ReplyPinned)]
    assert at[0][0] >= 0
    assert at[1] == (-1, 0)


def test_a_copy_that_is_here_for_a_waiting_pin_stays_until_the_rest_is_here() -> None:
    bench = Bench()
    bench.table.keeper = KEEPER
    bench.table.is_redundant = lambda object_id: True
    bench.put(A, b"on disk", 5)
    bench.allocate(b"process-d", 10)
    bench.all_io_ends([])
    bench.die(b"process-d")
    bench.put(KEEPER, b"copy", 3)
    bench.put(C, b"large", 6)
    bench.pin(C, b"large")
    assert bench.pin(B, b"copy", b"on disk") == []
    assert bench.allocate(A, 3) == [], "whoever comes later waits"
    bench.free(C, b"large")
    commands = bench.all_io_ends(bench.unpin(C, b"large"))
    (at,) = [command.at for command in commands if isinstance(command, ReplyPinned)]
    assert all(offset >= 0 for offset, _ in at)


def test_a_dropped_copy_can_come_again() -> None:
    bench = with_copies(b"1", b"2", b"3")
    bench.allocate(A, 3)
    bench.die(A)
    offset = bench.put(KEEPER, b"1", 3)
    assert bench.pin(B, b"1") == [ReplyPinned(B, bench.requests, [(offset, 3 * UNIT)])]


# -- random histories -----------------------------------------------------------------------------------------------

UNITS = 24
IDS = [bytes([i]) * 20 for i in range(8)]
SLOTS = 3


class StoreModel(RuleBasedStateMachine):
    """Processes, an arena and a disk whose bytes are words: each sealed object has a word of its own, unit by unit.

    What a process may look at must hold its word at all times; a wrong reuse of memory or disk shows as a wrong word.
    """

    collects_garbage = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        #: Processes were asked to collect garbage, and have not answered.
        self.asked = False
        self.arena = ["free"] * (HEAD // UNIT + UNITS)
        self.disk: dict[int, str] = {}
        self.table = ObjectTable(
            HEAD,
            HEAD + UNITS * UNIT,
            full_grace_s=10,
            unsealed_grace_s=10,
            collects_garbage=self.collects_garbage,
        )
        self.table.keeper = KEEPER
        #: Copies that can be had again.
        self.redundant: set[bytes] = set()
        self.table.is_redundant = self.redundant.__contains__
        #: Of each pin that waits: what it may hope for, because it was not freed since.
        self.hopes: dict[int, set[bytes]] = {}
        self.processes = [b"p%d" % i for i in range(SLOTS)]
        self.born = SLOTS
        self.words = 0
        self.requests = 0
        #: Request → (process, size, ids): not answered yet.
        self.waiting: dict[int, tuple[bytes, int, list[bytes]]] = {}
        #: What each process may fill: (first unit, units).
        self.lent: dict[bytes, list[tuple[int, int]]] = {process: [] for process in self.processes}
        #: What each process looks at: id → list of (first unit, units, word).
        self.views: dict[bytes, dict[bytes, list[tuple[int, int, str]]]] = {process: {} for process in self.processes}
        #: Objects that are sealed and not freed: id → (owner, units, word).
        self.live: dict[bytes, tuple[bytes, int, str]] = {}
        #: Freed before sealed: id → process.
        self.early: dict[bytes, bytes] = {}
        self.freed: set[bytes] = set()
        #: I/O in order.
        self.io: list[StartSpill | StartRestore | StartReserve | Discard] = []
        self.ticked = False

    # -- what the table says ------------------------------------------------------------------------------------------

    def carry_out(self, commands: object) -> None:
        assert isinstance(commands, (list, tuple))
        # What is dropped is said first, though a pin that hoped for it may have been refused before, in the same step.
        refused = {command.request for command in commands if isinstance(command, ReplyFull)}
        for command in commands:
            if isinstance(command, ReplyAllocated):
                process, size, ids = self.waiting.pop(command.request)
                assert process == command.process
                assert not ids
                assert 0 < command.size <= size
                first, units = command.offset // UNIT, command.size // UNIT
                self.lent[process].append((first, units))
                self.arena[first : first + units] = [f"lent to {process!r}"] * units
            elif isinstance(command, ReplyPinned):
                process, _, ids = self.waiting.pop(command.request)
                assert process == command.process
                for object_id, (offset, size) in zip(ids, command.at, strict=True):
                    if offset < 0:
                        assert object_id not in self.live
                        continue
                    _, units, word = self.live[object_id]
                    first = offset // UNIT
                    assert units == -(-size // UNIT)
                    assert self.arena[first : first + units] == [word] * units
                    self.views[process].setdefault(object_id, []).append((first, units, word))
            elif isinstance(command, ReplyFull):
                process, size, ids = self.waiting.pop(command.request)
                assert process == command.process
                wanted = sum(self.live[object_id][1] for object_id in set(ids) if object_id in self.live)
                assert self.ticked or size > UNITS * UNIT or wanted > UNITS, "what can be served one day waits"
            elif isinstance(command, ReportDropped):
                owner, _, _ = self.live.pop(command.id)
                assert owner == KEEPER
                assert command.id in self.redundant
                assert not any(command.id in views for views in self.views.values()), "somebody looks at it"
                hoping = self.waiting.keys() & self.hopes.keys() - refused
                assert not any(command.id in self.hopes[request] for request in hoping)
                self.freed.add(command.id)
            elif isinstance(command, AskForGarbage):
                self.asked = True
            else:
                self.io.append(command)

    def hope_no_more(self, object_id: bytes) -> None:
        for hopes in self.hopes.values():
            hopes.discard(object_id)

    # -- what processes do --------------------------------------------------------------------------------------------

    slots = st.integers(0, SLOTS - 1)
    #: The last one is the keeper of copies.
    owner_slots = st.integers(0, SLOTS)

    @rule(
        slot=slots,
        units=st.integers(1, 12) | st.sampled_from([UNITS, UNITS + 1]),
        slack=st.integers(0, UNIT - 1),
        chunk=st.booleans(),
    )
    def allocate(self, slot: int, units: int, slack: int, chunk: bool) -> None:
        self.requests += 1
        process = self.processes[slot]
        self.waiting[self.requests] = process, units * UNIT, []
        size = units * UNIT - slack
        least = max(1, size // 8) if chunk else size
        self.carry_out(self.table.allocate(process, self.requests, size, least, self.now))

    @rule(object_id=st.sampled_from(IDS), yes=st.booleans())
    def its_original_is_out_of_reach_or_back(self, object_id: bytes, yes: bool) -> None:
        (self.redundant.add if yes else self.redundant.discard)(object_id)

    @rule(slot=slots, units=st.integers(2, 9), object_id=st.sampled_from(IDS), owner_slot=owner_slots)
    def put(self, slot: int, units: int, object_id: bytes, owner_slot: int) -> None:
        """Allocate and, if that is served at once, seal: so that the arena fills up with objects."""
        lent = self.lent[self.processes[slot]]
        before = len(lent)
        self.allocate(slot, units, slack=0, chunk=False)
        if len(lent) > before:
            self.seal(slot, before, 0, units, 0, object_id, owner_slot)

    @rule(
        slot=slots,
        which=st.integers(0, 3),
        skip=st.integers(0, 3),
        units=st.integers(1, 8),
        slack=st.integers(0, UNIT - 1),
        object_id=st.sampled_from(IDS),
        owner_slot=owner_slots,
    )
    def seal(self, slot: int, which: int, skip: int, units: int, slack: int, object_id: bytes, owner_slot: int) -> None:
        process, owner = self.processes[slot], [*self.processes, KEEPER][owner_slot]
        lent = self.lent[process]
        if not lent:
            with pytest.raises(StoreProtocolError):
                self.table.seal(process, object_id, owner, HEAD, UNIT, self.now)
            return
        first, length = lent.pop(which % len(lent))
        skip = min(skip, length - 1)
        units = min(units, length - skip)
        self.words += 1
        word = f"word {self.words}"
        self.arena[first + skip : first + skip + units] = [word] * units
        if skip:
            lent.append((first, skip))
        if skip + units < length:
            lent.append((first + skip + units, length - skip - units))
        if self.early.pop(object_id, None) == owner:
            self.live.pop(object_id, None)
            self.freed.add(object_id)
            self.hope_no_more(object_id)
        else:
            self.live[object_id] = owner, units, word
            self.freed.discard(object_id)
        self.carry_out(
            self.table.seal(process, object_id, owner, (first + skip) * UNIT, units * UNIT - slack, self.now)
        )

    @rule(slot=slots, which=st.integers(0, 3), units=st.integers(1, 8))
    def return_space(self, slot: int, which: int, units: int) -> None:
        process = self.processes[slot]
        lent = self.lent[process]
        if lent:
            first, length = lent.pop(which % len(lent))
            units = min(units, length)
            if units < length:
                lent.append((first, length - units))
            start = first + length - units
            self.arena[start : start + units] = ["returned"] * units
            self.carry_out(self.table.return_space(process, start * UNIT, units * UNIT, self.now))

    @rule(slot=slots, ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=4))
    def pin(self, slot: int, ids: list[bytes]) -> None:
        self.requests += 1
        self.waiting[self.requests] = self.processes[slot], 0, ids
        self.hopes[self.requests] = {object_id for object_id in ids if object_id not in self.freed}
        self.carry_out(self.table.pin(self.processes[slot], self.requests, ids, self.now))

    @rule(slot=slots, which=st.integers(0, 7), version=st.integers(0, 3))
    def unpin(self, slot: int, which: int, version: int) -> None:
        process = self.processes[slot]
        views = self.views[process]
        if views:
            object_id = sorted(views)[which % len(views)]
            views[object_id].pop(version % len(views[object_id]))
            if not views[object_id]:
                del views[object_id]
            self.carry_out(self.table.unpin(process, [object_id], self.now))

    @rule(slot=slots)
    def unpin_all(self, slot: int) -> None:
        process = self.processes[slot]
        ids = [object_id for object_id, views in self.views[process].items() for _ in views]
        self.views[process] = {}
        self.carry_out(self.table.unpin(process, ids, self.now))

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True), slot=slots)
    def free(self, ids: list[bytes], slot: int) -> None:
        """By the owner; or, if the object is not sealed yet, by the one who will be."""
        for object_id in ids:
            if object_id in self.live:
                process = self.live.pop(object_id)[0]
                self.freed.add(object_id)
                self.hope_no_more(object_id)
            else:
                process = self.processes[slot]
                if object_id not in self.freed and object_id not in self.early:
                    self.early[object_id] = process
            self.carry_out(self.table.free(process, [object_id], self.now))

    @rule(slot=slots)
    def die(self, slot: int) -> None:
        process = self.processes[slot]
        for first, units in self.lent.pop(process):
            self.arena[first : first + units] = ["left by the dead"] * units
        del self.views[process]
        for request in [request for request, (who, _, _) in self.waiting.items() if who == process]:
            del self.waiting[request]
        for object_id in [object_id for object_id, (owner, _, _) in self.live.items() if owner == process]:
            del self.live[object_id]
            self.freed.add(object_id)
            self.hope_no_more(object_id)
        self.processes[slot] = born = b"p%d" % self.born
        self.born += 1
        self.lent[born] = []
        self.views[born] = {}
        self.carry_out(self.table.process_died(process, self.now))

    @rule(slot=slots, units=st.sampled_from([UNITS // 2, UNITS]))
    def press(self, slot: int, units: int) -> None:
        """Ask for much and return it at once: what can leave, leaves."""
        lent = self.lent[self.processes[slot]]
        before = len(lent)
        self.allocate(slot, units, slack=0, chunk=False)
        self.all_io_ends()
        while len(lent) > before:
            self.return_space(slot, before, UNITS)

    @rule(units=st.sampled_from([0, 3, UNITS // 2, UNITS, 2 * UNITS]))
    def memory_is_short_or_no_longer(self, units: int) -> None:
        self.carry_out(self.table.limit_memory(units * UNIT + 1, self.now))

    @precondition(lambda self: self.asked)
    @rule()
    def all_have_collected_their_garbage(self) -> None:
        self.asked = False
        self.carry_out(self.table.garbage_collected(self.now))

    @rule(slot=slots)
    def pin_what_is_on_disk(self, slot: int) -> None:
        ids = [object_id for object_id, obj in self.table.objects.items() if obj.place is Place.DISK]
        if ids:
            self.pin(slot, ids[:3])

    # -- what the disk and time do ------------------------------------------------------------------------------------

    @precondition(lambda self: self.io)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def io_ends(self, fails: bool) -> None:
        job = self.io.pop(0)
        units = range(-(-job.size // UNIT))
        if isinstance(job, Discard):
            for unit in units:
                self.disk.pop(job.disk + unit * UNIT, None)
        elif isinstance(job, StartReserve):
            self.carry_out(self.table.reserve_ended(job.job, "disk full" if fails else "", self.now))
        elif isinstance(job, StartSpill):
            if not fails:
                for unit in units:
                    self.disk[job.disk + unit * UNIT] = self.arena[job.offset // UNIT + unit]
            self.carry_out(self.table.spill_ended(job.job, "disk full" if fails else "", self.now))
        else:
            # The memory that it is read into belongs to the I/O: whatever is there in between is nobody's business.
            for unit in units:
                self.arena[job.offset // UNIT + unit] = self.disk[job.disk + unit * UNIT]
            lost = self.table.room.jobs[job.job][0]
            if fails and not lost.freed:
                del self.live[lost.id]
                self.freed.add(lost.id)
                self.hope_no_more(lost.id)
            self.carry_out(self.table.restore_ended(job.job, "broken" if fails else "", self.now))

    @rule()
    def all_io_ends(self) -> None:
        while self.io:
            self.io_ends(fails=False)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tick()

    def tick(self) -> None:
        self.ticked = True
        self.carry_out(self.table.tick(self.now))
        self.ticked = False
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.now

    # -- what must be true --------------------------------------------------------------------------------------------

    @invariant()
    def the_table_is_consistent(self) -> None:
        self.table.validate()
        assert {i for i, obj in self.table.objects.items() if not obj.freed} == set(self.live)

    @invariant()
    def what_a_process_looks_at_does_not_change(self) -> None:
        for views in self.views.values():
            for versions in views.values():
                for first, units, word in versions:
                    assert self.arena[first : first + units] == [word] * units

    @invariant()
    def every_request_is_answered_or_waits(self) -> None:
        rooms = {room.request for room in self.table.room.queue if room.object is None}
        waits = {wait.request for holder in self.table.processes.values() for wait in holder.waits}
        assert rooms | waits == set(self.waiting)

    @invariant()
    def nothing_waits_that_could_be_served(self) -> None:
        room_maker = self.table.room
        blocked = next((room for room in room_maker.queue if room.start < 0), None)
        if blocked is None or blocked.search_after > self.now:
            return
        if room_maker.limit_bytes < UNITS * UNIT and room_maker.shedding:
            return  # it waits until memory of the machine is not so short
        if room_maker.garbage is not None and room_maker.garbage.waits_until:
            assert room_maker.garbage.waits_until > self.now or not self.ticked
            return
        usable = [False] * len(self.arena)
        for start, end in room_maker.arena.free_ranges:
            usable[start // UNIT : end // UNIT] = [True] * ((end - start) // UNIT)
            assert end - start < blocked.minimum, "there is room, and it is not given"
        for obj in room_maker.evictable:
            may_leave = obj.disk >= 0 or room_maker.disk_retry_at <= self.now
            if may_leave and all(wait.sequence > blocked.sequence for wait in obj.wanted_by):
                first, units = obj.offset // UNIT, -(-obj.size // UNIT)
                usable[first : first + units] = [True] * units
        runs = "".join("x" if unit else " " for unit in usable).split()
        assert max(map(len, runs), default=0) * UNIT < blocked.size, "room could be made, and it is not"

    def teardown(self) -> None:
        """However the history went: when all is done and freed, all space is free, and nobody waits."""
        while self.waiting:
            for slot in range(SLOTS):
                self.unpin_all(slot)
            self.all_io_ends()
            deadline = self.table.next_deadline()
            if deadline is not None:
                self.now = max(self.now, deadline)
                self.tick()
            assert deadline is not None or self.io or not self.waiting, "somebody waits for nothing"
        for slot in range(SLOTS):
            self.unpin_all(slot)
        self.all_io_ends()
        self.table.validate()
        for object_id, (owner, _, _) in self.live.items():
            self.carry_out(self.table.free(owner, [object_id], self.now))
        self.live.clear()
        self.all_io_ends()
        for process in self.processes:
            self.carry_out(self.table.process_died(process, self.now))
        self.table.validate()
        statistics = self.table.statistics()
        assert statistics["available_bytes"] == UNITS * UNIT
        assert statistics["disk_bytes"] == statistics["objects"] == 0
        self.all_io_ends()
        assert not self.disk


class CollectingStoreModel(StoreModel):
    """The same, when processes are asked to collect garbage before anything leaves."""

    collects_garbage = True


class LargeStoreModel(StoreModel):
    """The same, when a store counts as large with three objects: holes are made of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.search_max = object_room.SEARCH_MAX
        self.search_pause_s = object_room.SEARCH_PAUSE_S
        object_room.SEARCH_MAX = 2
        object_room.SEARCH_PAUSE_S = 0.1

    def teardown(self) -> None:
        super().teardown()
        object_room.SEARCH_MAX = self.search_max
        object_room.SEARCH_PAUSE_S = self.search_pause_s


# To shrink a history of 80 steps takes longer than a test may: a failing one is printed as it is.
SETTINGS = settings(
    max_examples=120,
    stateful_step_count=80,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = SETTINGS
TestCollectingStoreModel = CollectingStoreModel.TestCase
TestCollectingStoreModel.settings = SETTINGS
TestLargeStoreModel = LargeStoreModel.TestCase
TestLargeStoreModel.settings = SETTINGS
