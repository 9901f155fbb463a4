"""What processes have said and is not known to be durable is said again, in order, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skate._core import outbox as core
from skate._core.outbox import Outbox

PROCESSES = st.sampled_from([b"p", b"q"])


class Histories(RuleBasedStateMachine):
    """Against a list a process: number, message, and the request that it is."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[str] = Outbox()
        self.said: dict[bytes, list[tuple[int, str, int]]] = {}
        self.done: dict[bytes, int] = {}

    @rule(process=PROCESSES, size=st.integers(0, 9), is_request=st.booleans(), is_last=st.booleans())
    def say(self, process: bytes, size: int, is_request: bool, is_last: bool) -> None:
        said = self.said.setdefault(process, [])
        number = len(said) + 1
        request = 100 + number if is_request else 0
        told = self.outbox.say(process, f"{number}", size, request=request, is_last=is_last)
        assert told == (number, self.done.get(process, 0))
        said.append((number, f"{number}", request))

    @rule(process=PROCESSES, share=st.floats(0, 1))
    def is_done(self, process: bytes, share: float) -> None:
        number = int(share * len(self.said.get(process, [])))
        self.done[process] = max(self.done.get(process, 0), number)
        assert self.outbox.done(process, number) == (self.done[process] == len(self.said.get(process, [])))

    @rule(process=PROCESSES, data=st.data())
    def is_answered(self, process: bytes, data: st.DataObject) -> None:
        requests = [(number, request) for number, _, request in self.said.get(process, []) if request]
        if requests:
            number, request = data.draw(st.sampled_from(requests))
            expected = number if number > self.done.get(process, 0) else 0
            assert self.outbox.answered(process, request) == expected

    @rule(process=PROCESSES)
    def is_forgotten(self, process: bytes) -> None:
        self.outbox.forget(process)
        self.said.pop(process, None)
        self.done.pop(process, None)

    @invariant()
    def what_is_not_done_is_kept(self) -> None:
        self.outbox.validate()
        kept = {
            (process, number, self.done.get(process, 0), message)
            for process, said in self.said.items()
            for number, message, _ in said
            if number > self.done.get(process, 0)
        }
        assert set(self.outbox.kept()) == kept
        assert self.outbox.statistics()["messages"] == len(kept)
        for process in self.said:
            assert self.outbox.holds(process) == any(entry[0] == process for entry in kept)


TestHistories = Histories.TestCase


@given(st.lists(PROCESSES, max_size=20))
def test_each_process_is_said_again_in_the_order_of_its_numbers(order: list[bytes]) -> None:
    outbox: Outbox[int] = Outbox()
    for count, process in enumerate(order):
        outbox.say(process, count, 1)
    for process in set(order):
        kept = [(number, message) for id, number, _, message in outbox.kept() if id == process]
        assert [number for number, _ in kept] == list(range(1, len(kept) + 1))
        assert [message for _, message in kept] == sorted(message for _, message in kept)


def test_at_the_bound_nothing_is_taken_but_the_end_of_the_process() -> None:
    outbox: Outbox[str] = Outbox()
    assert outbox.say(b"p", "large", core.BYTES_MAX) == (1, 0)
    assert outbox.say(b"p", "more", 1) == (0, 0)
    assert outbox.say(b"p", "gone", 1, is_last=True) == (2, 0)
    outbox.done(b"p", 1)
    assert outbox.say(b"p", "again", 1) == (3, 1)
    outbox.validate()
