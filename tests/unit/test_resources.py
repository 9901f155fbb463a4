"""Exact arithmetic on resources: what is taken comes back whole, and nothing is handed out twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._config import node_resources
from skate._core.resources import (
    HEAD,
    PRECISION,
    Allocation,
    ResourcePool,
    in_bundle,
    marks_of_node,
    to_floats,
    to_units,
    without_marks,
)
from skate.exceptions import TaskUnschedulableError


def test_ten_tenths_are_one() -> None:
    pool = ResourcePool(to_units({"CPU": 1}))
    tenth = to_units({"CPU": 0.1})
    for _ in range(10):
        assert pool.fits(tenth)
        pool.take(tenth)
    assert pool.available == {"CPU": 0}
    assert not pool.fits(to_units({"CPU": 0.0001}))


def test_units_leave_out_what_is_zero() -> None:
    assert to_units({"CPU": 0, "memory": 1.5}) == {"memory": 15_000}
    assert to_floats({"memory": 15_000}) == {"memory": 1.5}


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), 1e-9, 1e300])
def test_what_is_no_amount_is_refused_by_name(amount: float) -> None:
    with pytest.raises(ValueError, match="'wheels'"):
        to_units({"wheels": amount})


def test_one_and_a_half_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        to_units({"GPU": 1.5})


def test_fractions_share_a_gpu_and_whole_ones_stay_whole() -> None:
    pool = ResourcePool(to_units({"GPU": 2}))
    half = to_units({"GPU": 0.5})
    first, second = pool.take(half), pool.take(half)
    assert first.gpu_ids == second.gpu_ids
    whole = pool.take(to_units({"GPU": 1}))
    assert whole.gpu_ids != first.gpu_ids
    assert not pool.fits(to_units({"GPU": 0.1}))


def test_a_fraction_needs_one_gpu_with_room_not_two_with_half_of_it() -> None:
    pool = ResourcePool(to_units({"GPU": 2}))
    pool.take(to_units({"GPU": 0.7}))
    pool.take(to_units({"GPU": 0.7}))
    assert pool.available["GPU"] == to_units({"GPU": 0.6})["GPU"]
    assert not pool.fits(to_units({"GPU": 0.5}))


def test_two_gpus_are_two_different_ones() -> None:
    pool = ResourcePool(to_units({"GPU": 3}))
    assert sorted(pool.take(to_units({"GPU": 2})).gpu_ids) == [0, 1]
    assert pool.take(to_units({"GPU": 1})).gpu_ids == [2]


def test_waiting_gives_cpus_back_and_only_cpus() -> None:
    pool = ResourcePool(to_units({"CPU": 1, "wheels": 1}))
    held = pool.take(to_units({"CPU": 1, "wheels": 1}))
    pool.give_back_cpus(held)
    assert pool.fits(to_units({"CPU": 1}))
    assert not pool.fits(to_units({"wheels": 1}))
    pool.take(to_units({"CPU": 1}))
    pool.take_cpus_again(held)
    assert pool.available["CPU"] == -PRECISION
    assert not pool.fits(to_units({"CPU": 0.1}))
    assert pool.fits({})


def test_leaving_keeps_what_somebody_else_waits_for() -> None:
    pool = ResourcePool(to_units({"CPU": 2, "wheels": 1}))
    assert not pool.fits(to_units({"CPU": 1}), leaving=to_units({"CPU": 4}))
    assert pool.fits(to_units({"wheels": 1}), leaving=to_units({"CPU": 4}))


requests = st.fixed_dictionaries(
    {
        "CPU": st.sampled_from([0, 0.1, 0.5, 1, 2]),
        "GPU": st.sampled_from([0, 0.3, 0.5, 1, 2]),
        "wheels": st.sampled_from([0, 1]),
    }
)


@given(st.lists(st.tuples(requests, st.integers(0, 5))))
def test_nothing_is_handed_out_twice_and_everything_comes_back(steps: list[tuple[dict[str, float], int]]) -> None:
    """Take what fits, give back at random; in between the books balance, in the end all is there."""
    pool = ResourcePool(to_units({"CPU": 4, "GPU": 2, "wheels": 2}))
    start = pool.copy()
    held: list[Allocation] = []
    for resources, choice in steps:
        request = to_units(resources)
        if pool.fits(request):
            held.append(pool.take(request))
        if choice < len(held):
            pool.give_back(held.pop(choice))
        pool.validate()
        for name in ("CPU", "GPU", "wheels"):
            assert pool.available[name] + sum(a.amounts.get(name, 0) for a in held) == pool.total[name]
    for allocation in held:
        pool.give_back(allocation)
    assert pool.available == start.available
    assert pool.gpus == start.gpus


def test_a_node_has_one_of_its_address_and_the_head_one_of_its_own() -> None:
    assert to_floats(marks_of_node("10.0.0.7", is_head=False)) == {"node:10.0.0.7": 1.0}
    assert to_floats(marks_of_node("::1", is_head=True)) == {"node:::1": 1.0, "node:__internal_head__": 1.0}


def test_people_are_told_of_the_marks_of_nodes_if_they_asked_for_one() -> None:
    has = {"CPU": 2.0, "node:10.0.0.7": 1.0, HEAD: 1.0}
    assert without_marks(has) == {"CPU": 2.0}
    assert "node:" not in str(TaskUnschedulableError(asked={"CPU": 4}, available=has))
    assert "node:10.0.0.7 1," in str(TaskUnschedulableError(asked={"node:10.0.0.8": 1}, available=has))


def test_the_mark_of_the_head_cannot_be_given_to_a_node() -> None:
    with pytest.raises(ValueError, match="marks the first node of a cluster"):
        node_resources({HEAD: 1})
    assert node_resources(None) == {}


def test_a_bundle_may_hold_the_mark_of_the_head() -> None:
    pool = ResourcePool({"CPU": PRECISION, **marks_of_node("10.0.0.7", is_head=True)})
    assert pool.prepare(b"group", 0, to_units({HEAD: 0.01}))
    pool.commit(b"group", 0)
    assert pool.available[HEAD] == PRECISION - 100
    assert pool.available[f"{HEAD}_group_{b'group'.hex()}"] == 100
    pool.release(b"group", 0)
    assert pool.available == pool.total == {"CPU": PRECISION, **marks_of_node("10.0.0.7", is_head=True)}


def test_what_is_asked_again_about_a_bundle_changes_nothing() -> None:
    """A control service that was started again repeats what it may have said before."""
    pool = ResourcePool(to_units({"CPU": 4}))
    assert pool.prepare(b"group", 0, to_units({"CPU": 3}), 1)
    assert pool.prepare(b"group", 0, to_units({"CPU": 3}), 1), "in the same attempt"
    assert not pool.prepare(b"group", 0, to_units({"CPU": 3}), 2), "that of the first attempt is still there"
    pool.commit(b"group", 0)
    once = dict(pool.total), dict(pool.available)
    pool.commit(b"group", 0)
    assert (pool.total, pool.available) == once
    pool.release(b"group", 0)
    pool.release(b"group", 0)
    pool.commit(b"group", 0)
    assert pool.available == pool.total == to_units({"CPU": 4})
    assert pool.prepare(b"group", 0, to_units({"CPU": 3}), 2)


def test_bundles_may_share_a_gpu_and_each_keeps_its_part() -> None:
    pool = ResourcePool(to_units({"GPU": 1}))
    for index in range(2):
        assert pool.prepare(b"group", index, to_units({"GPU": 0.5}))
        pool.commit(b"group", index)
    halves = [to_units(in_bundle({"GPU": 0.5}, b"group", index)) for index in range(2)]
    held = [pool.take(half) for half in halves if pool.fits(half)]
    assert [allocation.gpu_ids for allocation in held] == [[0], [0]]
    assert not any(pool.fits(half) for half in halves)
    pool.give_back(held[0])
    assert [pool.fits(half) for half in halves] == [True, False]
    any_of_them = pool.take(to_units(in_bundle({"GPU": 0.25}, b"group")))
    pool.give_back(held[1])
    pool.give_back(any_of_them)
    assert pool.bundle_gpus == {b"group": {(0, 0): PRECISION // 2, (1, 0): PRECISION // 2}}
    for index in range(2):
        pool.release(b"group", index)
    assert (pool.bundle_gpus, pool.gpus) == ({}, [PRECISION])
