"""The ring among nodes, run over lists of numbers in random order, against the plain sum; and the end of a node."""

from __future__ import annotations

import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.collective import RankDiedError
from skate.collective.between import Member
from skate.collective.remote import Remote
from skate.collective.ring import Plan, make_plan
from skate.connections import Listener


class Leader:
    def __init__(self, plan: Plan, values: list[float]) -> None:
        self.plan, self.values = plan, values
        self.sent = self.received = 0

    def can_send(self) -> bool:
        return self.sent < self.plan.may_send(self.received)

    def send(self) -> list[float]:
        chunk = self.plan.sends[self.sent]
        self.sent += 1
        return self.values[chunk.start : chunk.stop]

    def receive(self, data: list[float]) -> None:
        chunk = self.plan.receives[self.received]
        assert len(data) == chunk.stop - chunk.start, "both ends cut the array in the same way"
        if self.received < self.plan.combined:
            data = [mine + theirs for mine, theirs in zip(self.values[chunk.start : chunk.stop], data)]
        self.values[chunk.start : chunk.stop] = data
        self.received += 1


@given(
    leaders=st.integers(1, 7),
    size=st.integers(0, 40),
    chunk=st.integers(1, 50),
    window=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_every_order_of_events_ends_with_the_sum_in_the_same_bits_everywhere(
    leaders: int, size: int, chunk: int, window: int, seed: int
) -> None:
    """At most `window` chunks are on their way to a leader: a stream that is full stops its sender, and no more."""
    chance = random.Random(seed)
    inputs = [[chance.uniform(-1e6, 1e6) for _ in range(size)] for _ in range(leaders)]
    ring = [Leader(make_plan(p, leaders, size, chunk), list(values)) for p, values in enumerate(inputs)]
    wires: list[list[list[float]]] = [[] for _ in ring]
    while any(each.sent < len(each.plan.sends) or each.received < len(each.plan.receives) for each in ring):
        acts = [(p, "send") for p in range(leaders) if ring[p].can_send() and len(wires[(p + 1) % leaders]) < window]
        acts += [(p, "receive") for p in range(leaders) if wires[p]]
        assert acts, "nothing can happen any more, and the ring has not ended"
        position, act = chance.choice(acts)
        if act == "send":
            wires[(position + 1) % leaders].append(ring[position].send())
        else:
            ring[position].receive(wires[position].pop(0))
    assert not any(wires)
    assert all(each.values == ring[0].values for each in ring), "the same bits"
    for index, value in enumerate(ring[0].values):
        exact = sum(values[index] for values in inputs)
        assert abs(value - exact) <= 1e-6 * leaders * 1e6


@given(leaders=st.integers(2, 16), size=st.integers(0, 300), chunk=st.integers(1, 100))
def test_a_leader_sends_its_share_and_no_more(leaders: int, size: int, chunk: int) -> None:
    for position in range(leaders):
        plan = make_plan(position, leaders, size, chunk)
        sent = sum(stop - start for start, stop in plan.sends)
        assert sent <= 2 * (leaders - 1) * -(-size // leaders)
        assert all(0 < stop - start <= chunk for start, stop in plan.sends)


def test_a_rank_whose_node_has_ended_says_that_it_is_dead() -> None:
    """Its process lives a moment longer, and may find that out before it is ended."""
    listener = Listener.__new__(Listener)
    listener._door, of_the_daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    members = [Member(rank, f"node {rank}", 100 + rank, "host") for rank in range(2)]
    remote = Remote(1, members, listener, [], lambda: None)
    of_the_daemon.close()
    with pytest.raises(RankDiedError, match=r"rank 1 \(pid 101 on host\) died") as caught:
        remote.check()
    assert caught.value.rank == 1
    listener._door.close()
