"""What waits for a subscriber: the newest messages, within bounds, and an exact count of those that were dropped."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from skate._control.mailboxes import Mailboxes
from skate._core.mailbox import Mailbox
from skate._wire import messages as wire

STEPS = st.lists(st.one_of(st.just("take"), st.tuples(st.sampled_from("ab"), st.integers(0, 40))), max_size=60)


@given(STEPS, st.integers(1, 6), st.integers(1, 60))
def test_every_message_is_taken_waits_or_is_counted(
    steps: list[str | tuple[str, int]], messages_max: int, bytes_max: int
) -> None:
    box: Mailbox[str] = Mailbox(messages_max, bytes_max)
    added: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    order: list[bytes] = []

    def take() -> None:
        topic, data, dropped = box.take()
        missed[topic] += dropped
        if data is not None:
            taken[topic] += 1
            order.append(data)

    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            topic, size = step
            box.add(topic, number.to_bytes(2, "big") + bytes(size))
            added[topic] += 1
        elif box:
            take()
        box.validate()
    while box:
        take()
        box.validate()
    assert taken + missed == added
    assert order == sorted(order)


def test_the_newest_is_kept_whatever_its_size() -> None:
    box: Mailbox[str] = Mailbox(bytes_max=10)
    box.add("a", b"small")
    box.add("b", bytes(100))
    assert box.take() == ("b", bytes(100), 0)
    assert box.take() == ("a", None, 1)
    assert not box


class Post:
    """Mailboxes, and processes that read or do not."""

    def __init__(self) -> None:
        self.congested: dict[bytes, bool | None] = {}
        self.sent: list[tuple[bytes, wire.Message]] = []
        self.boxes = Mailboxes(lambda process, message: self.sent.append((process, message)), self.congested.get)

    def publish(self, process: bytes, data: bytes, topic: str = "t") -> None:
        self.boxes.deliver(process, wire.Published("", topic, data))


def test_who_reads_is_told_at_once_and_who_does_not_when_it_reads_again() -> None:
    post = Post()
    post.congested = {b"fast": False, b"slow": True}
    post.boxes = Mailboxes(lambda process, message: post.sent.append((process, message)), post.congested.get)
    for data in (b"1", b"2"):
        post.publish(b"fast", data)
        post.publish(b"slow", data)
    assert [process for process, _ in post.sent] == [b"fast", b"fast"]
    post.congested[b"slow"] = False
    post.publish(b"slow", b"3")  # behind those that wait
    post.sent.clear()
    post.boxes.send_waiting()
    assert [message.data for _, message in post.sent] == [b"1", b"2", b"3"]  # type: ignore[attr-defined]
    assert not post.boxes


def test_what_waits_for_the_dead_is_forgotten() -> None:
    post = Post()
    post.congested[b"slow"] = True
    post.publish(b"slow", b"1")
    assert post.boxes.waiting_bytes() == 1
    post.congested[b"slow"] = None
    post.boxes.send_waiting()
    assert not post.boxes
    assert not post.sent


def test_what_was_missed_before_it_came_here_counts() -> None:
    post = Post()
    post.congested[b"slow"] = True
    post.boxes.deliver(b"slow", wire.Published("", "t", b"1", 5))
    post.boxes.deliver(b"slow", wire.Published("", "u", None, 2))
    post.congested[b"slow"] = False
    post.boxes.send_waiting()
    assert [message for _, message in post.sent] == [
        wire.Published("", "t", b"1", 5),
        wire.Published("", "u", None, 2),
    ]
