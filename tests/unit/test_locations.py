"""Copies of objects: everybody gets one, the first node is not asked by all, and no two wait for each other."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._core.locations import FANOUT, Locations

X = b"object-x"
FIRST = b"node-0"


def nodes(count: int) -> list[bytes]:
    return [b"node-%d" % number for number in range(1, count + 1)]


def test_it_comes_from_where_it_is() -> None:
    locations = Locations()
    assert locations.source_for(X, b"b") is None
    locations.stored(X, b"a")
    assert locations.source_for(X, b"b") == b"a"
    assert locations.source_for(X, b"a") == b"a", "it is there"
    locations.stored(X, b"b")
    assert locations.holders(X) == [b"a", b"b"]


def test_a_broadcast_is_a_tree() -> None:
    locations = Locations()
    locations.stored(X, FIRST)
    sources = Counter(locations.source_for(X, node) for node in nodes(8))
    assert sources[FIRST] <= 3, "the first node sends few of the copies itself"
    assert max(sources.values()) <= FANOUT
    locations.validate()


def test_a_broadcast_in_which_copies_arrive_meanwhile() -> None:
    locations = Locations()
    locations.stored(X, FIRST)
    served: Counter[bytes | None] = Counter()
    for node in nodes(8):
        served[locations.source_for(X, node)] += 1
        locations.stored(X, node)
    assert sum(served.values()) == 8
    assert locations.holders(X) == [FIRST, *nodes(8)]


def test_another_source_after_one_that_failed() -> None:
    locations = Locations()
    for node in (b"a", b"b"):
        locations.stored(X, node)
    assert locations.source_for(X, b"c") == b"a"
    assert locations.source_for(X, b"c") == b"b", "asked again"


def test_a_source_that_can_be_reached_comes_before_one_that_cannot() -> None:
    locations = Locations()
    locations.stored(X, b"a")
    assert locations.source_for(X, b"c", {b"a"}) == b"a", "there is no other"
    locations.stored(X, b"b")
    assert locations.source_for(X, b"c", {b"a"}) == b"b"
    assert locations.source_for(X, b"c", {b"a"}) == b"b", "asked again: still the only one within reach"
    locations.validate()


def test_a_node_that_dropped_its_copy_is_no_source_and_can_have_it_again() -> None:
    locations = Locations()
    for node in (b"a", b"b"):
        locations.stored(X, node)
    assert locations.source_for(X, b"c") == b"a"
    assert locations.dropped(X, b"a") == [b"c"], "who asks it in vain, and then asks for another"
    assert locations.source_for(X, b"c") == b"b"
    assert locations.source_for(X, b"a") == b"b"
    locations.validate()


def test_who_depends_on_a_dead_node_asks_again_and_is_not_sent_to_its_own_children() -> None:
    locations = Locations()
    locations.stored(X, FIRST)
    locations.stored(X, b"other")
    chain = nodes(4)
    for node in chain:
        locations.source_for(X, node)
    orphans, lost = locations.node_died(FIRST)
    assert lost == []
    for object, node in orphans:
        source = locations.source_for(object, node)
        assert source is not None
        locations.validate()


def test_the_last_whole_copy_is_lost_with_its_node() -> None:
    locations = Locations()
    locations.stored(X, b"a")
    locations.source_for(X, b"b")
    orphans, lost = locations.node_died(b"a")
    assert (orphans, lost) == ([(X, b"b")], [X])
    assert locations.source_for(X, b"b") is None
    locations.stored(X, b"c")
    assert locations.source_for(X, b"b") == b"c", "it was made again"


def test_freed_objects_are_nowhere() -> None:
    locations = Locations()
    locations.stored(X, b"a")
    locations.source_for(X, b"b")
    assert locations.freed(X) == [b"a", b"b"]
    assert locations.source_for(X, b"c") is None


def process(node: int, name: bytes = b"processs") -> bytes:
    return node.to_bytes(4, "big") + name


def node_numbered(number: int) -> bytes:
    return number.to_bytes(4, "big") + b"node-of-that"


def test_what_the_processes_of_a_node_own_is_known_by_that_node_wherever_it_was_made() -> None:
    locations = Locations()
    makers = [node_numbered(number) for number in (1, 2)]
    for object, maker, owner in ((b"x", 0, process(1)), (b"y", 1, process(1)), (b"z", 0, process(2))):
        locations.owned(object, owner, makers[maker])
    assert locations.owned_at(makers[0]) == [b"x", b"y"]
    assert locations.owned_by(process(2)) == [b"z"]
    assert locations.owned_by(process(2, b"another!")) == []
    assert locations.owners_at(makers[0]) == [process(1), process(2)], "they are asked after when it dies"


def test_the_owner_may_be_heard_of_before_the_first_copy_and_the_maker_dies_at_once() -> None:
    """A node that got no answer from the control service asked the maker, and told of its copy afterwards."""
    locations = Locations()
    locations.owned(X, process(1), b"maker")
    assert locations.holders(X) == [b"maker"]
    assert locations.source_for(X, b"puller") == b"maker"
    locations.stored(X, b"puller")
    assert locations.owners_at(b"maker") == [process(1)], "it is asked after, because the maker cannot tell of its end"
    locations.node_died(b"maker")
    locations.validate()
    assert locations.owned_by(process(1)) == [X]
    assert locations.freed(X) == [b"puller"]


def test_an_object_that_was_freed_has_no_owner() -> None:
    locations = Locations()
    locations.owned(X, process(1), b"a")
    locations.freed(X)
    locations.validate()
    assert locations.owned_by(process(1)) == []


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.locations = Locations()
        self.whole: set[bytes] = set()
        self.pulling: set[bytes] = set()
        self.waiting: set[bytes] = set()

    ids = st.sampled_from(nodes(7))

    @rule(node=ids)
    def it_is_made_there(self, node: bytes) -> None:
        self.locations.stored(X, node)
        self.whole.add(node)
        self.pulling.discard(node)
        self.waiting.discard(node)

    @rule(node=ids)
    def a_node_wants_it(self, node: bytes) -> None:
        source = self.locations.source_for(X, node)
        assert (source is None) == (not self.whole)
        if node in self.whole:
            assert source == node
        elif source is None:
            self.pulling.discard(node)
            self.waiting.add(node)
        else:
            assert source in self.whole | self.pulling
            self.waiting.discard(node)
            self.pulling.add(node)

    @rule(node=ids)
    def its_owner_is_told(self, node: bytes) -> None:
        self.locations.owned(X, process(9), node)
        assert self.locations.owned_by(process(9)) == [X]
        self.whole.add(node)
        for of in (self.pulling, self.waiting):
            of.discard(node)

    @rule(node=ids)
    def a_node_drops_it(self, node: bytes) -> None:
        orphans = self.locations.dropped(X, node)
        for of in (self.whole, self.pulling, self.waiting):
            of.discard(node)
        for orphan in orphans:
            self.pulling.discard(orphan)
            self.waiting.add(orphan)

    @rule()
    def it_is_freed(self) -> None:
        nodes = self.locations.freed(X)
        assert self.whole | self.pulling <= set(nodes), "nobody keeps what nobody refers to"
        for of in (self.whole, self.pulling, self.waiting):
            of.clear()

    @precondition(lambda self: self.pulling)
    @rule(data=st.data())
    def it_arrives(self, data: st.DataObject) -> None:
        self.it_is_made_there(data.draw(st.sampled_from(sorted(self.pulling))))

    @rule(node=ids)
    def a_node_dies(self, node: bytes) -> None:
        orphans, lost = self.locations.node_died(node)
        had = node in self.whole
        for of in (self.whole, self.pulling, self.waiting):
            of.discard(node)
        assert (lost == [X]) == (had and not self.whole), "told when the last whole copy is gone"
        for _, orphan in orphans:
            self.pulling.discard(orphan)
            self.waiting.add(orphan)
        for _, orphan in orphans:
            self.a_node_wants_it(orphan)

    @invariant()
    def nobody_waits_in_a_circle(self) -> None:
        self.locations.validate()
        assert set(self.locations.holders(X)) == self.whole
        assert self.locations.owned_by(process(9)) in ([], [X])


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
