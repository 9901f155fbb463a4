"""Messages over connections that break: each arrives once, in order, whatever was lost on the way."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._core.journal import BYTES_PER_CONFIRMATION, FRAMES_PER_CONFIRMATION, Journal, MemoryLost


class End:
    """One of two ends, and what is on its way to it over the connection that there is."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.said = 0
        self.heard: list[int] = []
        self.coming: deque[tuple[str, bytes | int]] = deque()

    def say(self, other: End) -> None:
        frame = self.said.to_bytes(4, "big")
        self.said += 1
        self.journal.sent(frame)
        other.coming.append(("frame", frame))

    def hear(self, other: End) -> None:
        if not self.coming:
            return
        kind, content = self.coming.popleft()
        if kind == "confirm":
            assert isinstance(content, int)
            self.journal.confirm(content)
            return
        assert isinstance(content, bytes)
        self.heard.append(int.from_bytes(content, "big"))
        if self.journal.came(1, BYTES_PER_CONFIRMATION // 3):
            other.coming.append(("confirm", self.journal.tell()))

    def hear_all(self, other: End) -> None:
        while self.coming:
            self.hear(other)


def reconnect(a: End, b: End) -> None:
    """What was on its way is lost; each says how much it has."""
    a.coming.clear()
    b.coming.clear()
    has_a, has_b = a.journal.tell(), b.journal.tell()
    a.journal.confirm(has_b)
    b.journal.confirm(has_a)
    b.coming.extend(("frame", frame) for frame in a.journal.unconfirmed())
    a.coming.extend(("frame", frame) for frame in b.journal.unconfirmed())


@given(st.lists(st.sampled_from(["a says", "b says", "a hears", "b hears", "break"]), max_size=200))
def test_all_that_was_said_is_heard_once_and_in_order(story: list[str]) -> None:
    a, b = End(), End()
    for event in story:
        match event:
            case "a says":
                a.say(b)
            case "b says":
                b.say(a)
            case "a hears":
                a.hear(b)
            case "b hears":
                b.hear(a)
            case "break":
                reconnect(a, b)
    while a.coming or b.coming:
        a.hear_all(b)
        b.hear_all(a)
    assert a.heard == list(range(b.said))
    assert b.heard == list(range(a.said))


def test_what_is_confirmed_is_kept_no_longer() -> None:
    journal = Journal()
    for number in range(10):
        journal.sent(bytes([number]))
    journal.confirm(7)
    assert journal.unconfirmed() == [b"\x07", b"\x08", b"\x09"]
    journal.confirm(10)
    assert journal.unconfirmed() == []
    assert not journal.is_fresh


def test_the_other_end_is_told_after_so_many_frames_or_bytes() -> None:
    journal = Journal()
    told = [journal.came(1, 10) for _ in range(FRAMES_PER_CONFIRMATION)]
    assert told == [False] * (FRAMES_PER_CONFIRMATION - 1) + [True]
    assert journal.tell() == FRAMES_PER_CONFIRMATION
    assert not journal.came(1, 10)
    assert journal.came(1, BYTES_PER_CONFIRMATION)


@pytest.mark.parametrize("count", [2, 6])
def test_an_end_that_cannot_have_heard_so_much_or_so_little_is_not_ours(count: int) -> None:
    journal = Journal()
    for number in range(5):
        journal.sent(bytes([number]))
    journal.confirm(3)
    with pytest.raises(MemoryLost, match=f"has {count} messages; it should have from 3 to 5"):
        journal.confirm(count)
