"""Seals wait for the next message to the daemon, and nothing overtakes them."""

from __future__ import annotations

from skate._store.seals import UNSAID_MAX, Seals
from skate._wire.messages import Free, Message, Ready, Seal

OWNER = b"owner"


def recorded() -> tuple[Seals, list[Message]]:
    sent: list[Message] = []
    return Seals(lambda message, fds=(): sent.append(message)), sent


def test_a_seal_waits_for_the_next_message_and_goes_before_it() -> None:
    seals, sent = recorded()
    seals.add(b"a", OWNER, 0, 100)
    seals.add(b"b", OWNER, 128, 50)
    assert sent == []
    seals.send(Ready())
    assert sent == [Seal([(b"a", OWNER, 0, 100), (b"b", OWNER, 128, 50)]), Ready()]


def test_a_seal_is_said_once() -> None:
    seals, sent = recorded()
    seals.add(b"a", OWNER, 0, 100)
    seals.say()
    seals.say()
    seals.send(Ready())
    assert sent == [Seal([(b"a", OWNER, 0, 100)]), Ready()]


def test_not_many_wait() -> None:
    seals, sent = recorded()
    for number in range(UNSAID_MAX):
        assert sent == []
        seals.add(bytes([number]), OWNER, number * 128, 100)
    (message,) = sent
    assert isinstance(message, Seal)
    assert len(message.objects) == UNSAID_MAX


def test_what_was_never_said_is_withdrawn() -> None:
    seals, sent = recorded()
    seals.add(b"a", OWNER, 0, 100)
    seals.say()
    seals.add(b"b", OWNER, 128, 50)
    assert seals.withdraw([b"a", b"b"]) == ([b"a"], [(128, 50)])
    seals.send(Free([b"a"]))
    assert sent == [Seal([(b"a", OWNER, 0, 100)]), Free([b"a"])]


def test_a_second_seal_of_an_id_does_not_lose_the_first() -> None:
    seals, sent = recorded()
    seals.add(b"a", OWNER, 0, 100)
    seals.add(b"a", OWNER, 128, 100)
    seals.say()
    assert sent == [Seal([(b"a", OWNER, 0, 100)]), Seal([(b"a", OWNER, 128, 100)])]
