"""Nodes join, are heard of, and are dead for everybody once they were not; nobody comes back from the dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate._core.membership import (
    DEAD_AFTER_S,
    DEPARTED_MAX,
    LOOK_PERIOD_S,
    REPORT_PERIOD_S,
    Announce,
    DeclareDead,
    Membership,
    TellToEnd,
)
from skate._core.placement import NodeView

A, B = b"node-a", b"node-b"
ADDRESS = ("127.0.0.1", 7000)


def view(id: bytes, cpus: int = 2) -> NodeView:
    return NodeView(id=id, total={"CPU": cpus}, available={"CPU": cpus})


def membership_of(*ids: bytes) -> Membership:
    membership = Membership(0.0)
    for id in ids:
        assert membership.join(view(id), ADDRESS, 0.0) == [Announce(id)]
    return membership


def look_until(membership: Membership, begin: float, end: float, heard: tuple[bytes, ...] = ()) -> list[object]:
    commands: list[object] = []
    now = begin
    while now < end:
        now += LOOK_PERIOD_S
        for id in heard:
            commands += membership.heard(id, now)
        commands += membership.look(now)
    return commands


def test_the_silent_one_is_dead_and_the_other_is_not() -> None:
    membership = membership_of(A, B)
    commands = look_until(membership, 0.0, 2 * DEAD_AFTER_S, heard=(A,))
    assert [command.node for command in commands if isinstance(command, DeclareDead)] == [B]
    assert list(membership.members) == [A]


def test_death_is_noticed_within_five_seconds() -> None:
    membership = membership_of(A)
    assert look_until(membership, 0.0, 5.0)
    assert DEAD_AFTER_S + LOOK_PERIOD_S <= 5.0
    assert REPORT_PERIOD_S * 4 <= DEAD_AFTER_S, "a few reports may be lost"


def test_who_comes_back_is_told_to_end_and_joins_anew() -> None:
    membership = membership_of(A)
    look_until(membership, 0.0, 2 * DEAD_AFTER_S)
    assert membership.heard(A, 20.0) == [TellToEnd(A)]
    assert membership.join(view(A), ADDRESS, 20.0) == [TellToEnd(A)], "not under the same id"
    assert membership.join(view(B), ADDRESS, 20.0) == [Announce(B)]


def test_a_stranger_that_reports_without_joining_is_told_to_end() -> None:
    assert membership_of().heard(A, 1.0) == [TellToEnd(A)]


def test_who_leaves_is_dead_at_once() -> None:
    membership = membership_of(A)
    member = membership.members[A]
    assert membership.leave(A, "it was stopped.") == [DeclareDead(A, "it was stopped.", member)]
    assert membership.leave(A, "again") == []


def test_to_join_twice_is_to_be_heard_of() -> None:
    membership = membership_of(A)
    assert membership.join(view(A, 4), ADDRESS, 3.0) == []
    assert membership.members[A].view.total == {"CPU": 4}


def test_reports_are_kept() -> None:
    membership = membership_of(A)
    membership.heard(A, 1.0, view(A, 1))
    assert membership.views == [view(A, 1)]


def test_the_last_of_the_dead_are_described() -> None:
    membership = membership_of()
    ids = [index.to_bytes(2, "big") for index in range(DEPARTED_MAX + 5)]
    for id in ids:
        membership.join(view(id, 1), ADDRESS, 0.0)
        membership.leave(id, "it left.")
        membership.leave(id, "it left again.")
    assert list(membership.departed) == ids[5:]
    membership.join(NodeView(id=A, total={}, available={}, serves=False), ADDRESS, 0.0)
    membership.leave(A, "its driver has ended.")
    assert A not in membership.departed, "there was nothing for people to see"


def test_whoever_was_frozen_itself_declares_nobody_dead_for_that() -> None:
    membership = membership_of(A, B)
    look_until(membership, 0.0, 1.0, heard=(A, B))
    assert membership.look(1.0 + 60.0) == [], "what they sent meanwhile has not been read yet"
    commands = look_until(membership, 61.0, 61.0 + 2 * DEAD_AFTER_S, heard=(A,))
    assert [command.node for command in commands if isinstance(command, DeclareDead)] == [B]


@given(
    st.lists(st.sampled_from(["a", "b", "look", "leave a", "leave b"]), max_size=60),
    st.lists(st.floats(0.01, 2.0), min_size=60, max_size=60),
)
def test_nobody_is_declared_dead_twice_or_returns(events: list[str], pauses: list[float]) -> None:
    membership = membership_of(A, B)
    dead: set[bytes] = set()
    now = 0.0
    for event, pause in zip(events, pauses, strict=False):
        now += pause
        id = A if event.endswith("a") else B
        if event == "look":
            commands = membership.look(now)
        elif event.startswith("leave"):
            commands = membership.leave(id, "it left.")
        else:
            commands = membership.heard(id, now)
            assert (commands == [TellToEnd(id)]) == (id in dead)
        for command in commands:
            if isinstance(command, DeclareDead):
                assert command.node not in dead
                dead.add(command.node)
        assert set(membership.members) == {A, B} - dead
