"""Placement groups: every bundle has a node, none is overfull, and each strategy keeps its word."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._core.bundles import Strategy, assign, can_ever_be
from skate._core.placement import Condition, NodeView
from skate._core.resources import Amounts, to_units

STRATEGIES: list[Strategy] = ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


def node(name: str, cpus: float, gpus: float = 0, *, used: float = 0) -> NodeView:
    total = to_units({"CPU": cpus, "GPU": gpus})
    return NodeView(id=name.encode(), total=total, available=to_units({"CPU": cpus - used, "GPU": gpus}))


def cpus(*amounts: float) -> list[Amounts]:
    return [to_units({"CPU": amount}) for amount in amounts]


def test_pack_uses_one_node_if_one_is_enough() -> None:
    nodes = [node("a", 2), node("b", 8), node("c", 4)]
    assert assign(cpus(2, 2, 2), nodes, "PACK") == [b"b"] * 3


def test_pack_uses_few_nodes_if_one_is_not_enough() -> None:
    nodes = [node(name, 4) for name in "abcd"]
    places = assign(cpus(2, 2, 2, 2), nodes, "PACK")
    assert places is not None
    assert len(set(places)) == 2


def test_spread_uses_many_nodes_and_then_some_twice() -> None:
    nodes = [node(name, 4) for name in "abc"]
    places = assign(cpus(1, 1, 1, 1), nodes, "SPREAD")
    assert places is not None
    assert sorted(Counter(places).values()) == [1, 1, 2]


def test_strict_pack_is_one_node_or_none() -> None:
    nodes = [node("a", 4), node("b", 4)]
    assert assign(cpus(2, 2), nodes, "STRICT_PACK") == [b"a", b"a"]
    assert assign(cpus(3, 3), nodes, "STRICT_PACK") is None
    assert not can_ever_be(cpus(3, 3), nodes, "STRICT_PACK")


def test_strict_spread_is_a_node_each_or_none() -> None:
    nodes = [node("a", 4), node("b", 4)]
    assert assign(cpus(1, 1), nodes, "STRICT_SPREAD") == [b"a", b"b"]
    assert assign(cpus(1, 1, 1), nodes, "STRICT_SPREAD") is None


def test_the_bundle_that_fits_only_there_gets_that_node() -> None:
    nodes = [node("a", 4, gpus=1), node("b", 4)]
    bundles = [to_units({"CPU": 1}), to_units({"GPU": 1})]
    assert assign(bundles, nodes, "STRICT_SPREAD") == [b"b", b"a"]


def test_what_does_not_fit_now_may_fit_later() -> None:
    nodes = [node("a", 4, used=3)]
    assert assign(cpus(2), nodes, "PACK") is None
    assert can_ever_be(cpus(2), nodes, "PACK")
    assert not can_ever_be(cpus(5), nodes, "PACK")


def test_no_bundles_and_no_nodes() -> None:
    assert assign([], [], "PACK") == []
    assert assign(cpus(1), [], "PACK") is None


def test_a_difficult_group_is_given_up_and_not_searched_for_ever() -> None:
    nodes = [node(str(index), 10) for index in range(30)]
    assert assign(cpus(*[7] * 31), nodes, "PACK") is None


clusters = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=4).map(
    lambda sizes: [node(f"n{index}", *size) for index, size in enumerate(sizes)]
)
groups = st.lists(
    st.builds(lambda cpu, gpu: to_units({"CPU": cpu, "GPU": gpu}), st.integers(0, 4), st.integers(0, 2)), max_size=4
)


def is_good(places: tuple[bytes, ...], bundles: list[Amounts], nodes: list[NodeView], strategy: Strategy) -> bool:
    for view in nodes:
        for name in ("CPU", "GPU"):
            taken = sum(bundle.get(name, 0) for bundle, place in zip(bundles, places, strict=True) if place == view.id)
            if taken > view.available.get(name, 0):
                return False
    if strategy == "STRICT_PACK":
        return len(set(places)) <= 1
    if strategy == "STRICT_SPREAD":
        return len(set(places)) == len(places)
    return True


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(bundles=groups, nodes=clusters)
def test_a_place_is_found_if_and_only_if_there_is_one(
    strategy: Strategy, bundles: list[Amounts], nodes: list[NodeView]
) -> None:
    places = assign(bundles, nodes, strategy)
    every = itertools.product([view.id for view in nodes], repeat=len(bundles))
    good = [all_places for all_places in every if is_good(all_places, bundles, nodes, strategy)]
    if places is None:
        assert not good
        return
    assert tuple(places) in good
    counts = {len(set(places_)) for places_ in good}
    if strategy == "PACK" and 1 in counts:
        assert len(set(places)) == 1


def labelled(name: str, cpus: float, zone: str) -> NodeView:
    total = to_units({"CPU": cpus})
    return NodeView(id=name.encode(), total=total, available=total, labels={"zone": zone})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bundle_goes_to_a_node_with_its_labels(strategy: Strategy) -> None:
    nodes = [labelled("a", 4, "x"), labelled("b", 4, "y")]
    in_y = (Condition("zone", frozenset(["y"])),)
    assert assign(cpus(1), nodes, strategy, required=[in_y]) == [b"b"]
    assert assign(cpus(1), nodes, strategy, required=[(Condition("zone", frozenset(["z"])),)]) is None
    assert can_ever_be(cpus(4), nodes, strategy, required=[in_y])
    assert not can_ever_be(cpus(5), nodes, strategy, required=[in_y])
    free_and_bound = assign(cpus(4, 4), nodes, strategy, required=[(), in_y])
    assert free_and_bound == (None if strategy == "STRICT_PACK" else [b"a", b"b"])


def test_nodes_with_labels_are_kept_for_the_bundles_that_need_them() -> None:
    nodes = [labelled("a", 4, "y"), labelled("b", 4, "x")]
    in_y = (Condition("zone", frozenset(["y"])),)
    assert assign(cpus(3, 2), nodes, "STRICT_SPREAD", required=[(), in_y]) == [b"b", b"a"]
