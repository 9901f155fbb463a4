"""The record that the authority keeps: who may change it, and how a store is adopted when the record is lost."""

from __future__ import annotations

import pytest

from skate._core.cluster.configuration import (
    AdoptionRefused,
    Changed,
    Configuration,
    LeaderID,
    MemberID,
    Refused,
    ShardChain,
    Stamp,
    adopt,
    compare_and_set,
)
from skate._core.cluster.lease import LeaderLease, SuccessorLease

R1, R2, R3 = MemberID("r1"), MemberID("r2"), MemberID("r3")
FIRST = Configuration("c", 4, LeaderID("A"), "", (ShardChain(4, (R1, R2)), ShardChain(2, (R3,))))


def test_a_change_of_one_chain_leaves_the_epoch_of_the_others() -> None:
    after = FIRST.with_members(0, (R1,))
    assert after.epoch == 5
    assert after.shards == (ShardChain(5, (R1,)), ShardChain(2, (R3,)))


def test_a_take_over_concerns_all_chains() -> None:
    after = FIRST.taken_over(LeaderID("B"), "there")
    assert after.leader == "B"
    assert [shard.epoch for shard in after.shards] == [5, 5]


def test_of_two_that_take_over_one_wins_and_an_attempt_may_be_repeated() -> None:
    mine, other = FIRST.taken_over(LeaderID("B"), ""), FIRST.taken_over(LeaderID("C"), "")
    assert compare_and_set(FIRST, FIRST, mine) == Changed(mine)
    assert compare_and_set(mine, FIRST, mine) == Changed(mine)
    assert compare_and_set(mine, FIRST, other) == Refused(mine)


def test_a_store_is_adopted_only_if_all_of_the_newest_configuration_answer() -> None:
    old, new = Stamp("c", 3, (R1, R2, R3)), Stamp("c", 5, (R1, R2))
    assert adopt({R1: new, R2: new, R3: old}) == new
    assert adopt({R1: new, R2: old}) == new
    with pytest.raises(AdoptionRefused, match="r2"):
        adopt({R1: new, R2: None, R3: old})
    with pytest.raises(AdoptionRefused, match="2 clusters"):
        adopt({R1: new, R2: Stamp("d", 9, (R2,))})
    with pytest.raises(AdoptionRefused, match="none of r1, r2"):
        adopt({R1: None, R2: None})


def test_a_lease_is_counted_from_before_the_renewal_was_sent() -> None:
    lease = LeaderLease(2.0)
    lease.renewing(1, now=10.0)
    assert not lease.holds(10.1)
    lease.acknowledged(1, now=11.5)
    assert lease.holds(11.9)
    assert not lease.holds(12.0)


def test_the_successor_waits_for_the_renewal_that_it_reads_after_the_seal() -> None:
    successor = SuccessorLease(now=0.0, lease_s=2.0)
    successor.saw(b"1", 10.0)
    assert not successor.has_expired(12.0)
    assert successor.has_expired(12.1)
    assert successor.sealed(b"1", 12.1) < 12.1
    assert successor.sealed(b"2", 12.1) > 14.1
