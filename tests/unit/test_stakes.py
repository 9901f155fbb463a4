"""What other nodes have reported, corrected by what this one has asked of them and given back since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate._core.placement import NodeView
from skate._core.stakes import REPORTED_WITHIN_S, Stakes

HERE, THERE, ELSEWHERE, OWNER = 1, b"there", b"elsewhere", b"owner"
CPU = {"CPU": 1}


def report(available: int, queued: int = 0, ours: tuple[int, list[int]] | None = None, node: bytes = THERE) -> NodeView:
    stakes = {HERE: ours} if ours is not None else {}
    return NodeView(id=node, total={"CPU": 4}, available={"CPU": available}, queued=queued, stakes=stakes)


def corrected(stakes: Stakes, view: NodeView, asked: int = 0, now: float = 0.0) -> NodeView:
    """After that report."""
    stakes.reported(view, now)
    views = {view.id: view}
    stakes.correct(views, {view.id: asked} if asked else {}, now)
    return views[view.id]


def cpus(stakes: Stakes, view: NodeView, now: float = 0.0) -> int:
    return corrected(stakes, view, now=now).available["CPU"]


def test_who_has_nothing_to_do_with_a_node_goes_by_its_report() -> None:
    view = report(2, queued=7)
    assert corrected(Stakes(HERE), view) is view


def test_a_lease_that_was_given_back_is_free_before_the_report_says_so() -> None:
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    busy = report(0, ours=(0, [5]))
    assert cpus(stakes, busy) == 0
    stakes.returned(5, THERE)
    assert cpus(stakes, busy) == 1
    assert cpus(stakes, report(1)) == 1, "this one does not count it any more"


def test_a_lease_that_was_got_is_taken_before_the_report_says_so() -> None:
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    assert cpus(stakes, report(1)) == 0
    assert cpus(stakes, report(0, ours=(0, [5]))) == 0
    assert cpus(stakes, report(1, node=ELSEWHERE)) == 1


def test_of_a_queue_only_the_part_of_others_is_believed() -> None:
    stakes = Stakes(HERE)
    view = report(0, queued=100, ours=(90, []))
    assert corrected(stakes, view).queued == 10
    assert corrected(stakes, view, asked=3).queued == 13


def test_what_ended_without_our_doing_is_forgotten() -> None:
    """Its worker died, or who held it did."""
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    assert cpus(stakes, report(1), now=REPORTED_WITHIN_S / 2) == 0, "it may be too new for the report"
    assert cpus(stakes, report(1), now=REPORTED_WITHIN_S * 2) == 1


def test_what_ended_is_forgotten_also_if_no_report_comes_any_more() -> None:
    """A node that is idle again says so once, perhaps too soon after the lease was got."""
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    view = report(1)
    stakes.reported(view, now=0.1)
    views = {THERE: view}
    stakes.correct(views, {}, now=REPORTED_WITHIN_S * 2)
    assert views[THERE].available["CPU"] == 1


def test_leases_of_a_process_that_died_are_free() -> None:
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    stakes.granted(6, THERE, b"another", CPU, now=0.0)
    busy = report(0, ours=(0, [5, 6]))
    stakes.process_died(OWNER)
    assert cpus(stakes, busy) == 1


def test_a_node_that_is_gone_is_forgotten() -> None:
    stakes = Stakes(HERE)
    stakes.granted(5, THERE, OWNER, CPU, now=0.0)
    stakes.node_died(THERE)
    assert stakes._stakes == {}


@given(st.lists(st.sampled_from(["grant", "return", "report"]), max_size=60), st.data())
def test_an_old_report_and_our_own_doing_are_the_truth_if_nobody_else_is_there(
    story: list[str], data: st.DataObject
) -> None:
    stakes = Stakes(HERE)
    held: list[int] = []
    view, number = report(4), 0
    for event in story:
        if event == "grant" and len(held) < 4:
            number += 1
            held.append(number)
            stakes.granted(number, THERE, OWNER, CPU, now=0.0)
        elif event == "return" and held:
            lease = held.pop(data.draw(st.integers(0, len(held) - 1)))
            stakes.returned(lease, THERE)
        elif event == "report":
            view = report(4 - len(held), ours=(0, list(held)))
            stakes.reported(view, now=0.0)
        views = {THERE: view}
        stakes.correct(views, {}, now=0.0)
        assert views[THERE].available["CPU"] == 4 - len(held)
    stakes.reported(report(4 - len(held), ours=(0, list(held))), now=0.0)
    assert set(stakes._stakes.get(THERE, {})) == set(held), "nothing is kept for ever"
