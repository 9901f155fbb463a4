"""Strangers stay outside: both ends of a TCP connection prove that they know the token, before anything is believed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._wire.handshake import HELLO_BYTES, MAGIC, PROOF_BYTES, Handshake, HandshakeError, Versions

TOKEN = b"t" * 32
LISTENER_NONCE, CONNECTOR_NONCE = b"l" * 32, b"c" * 32


def pair(listener_token: bytes = TOKEN, connector_token: bytes = TOKEN) -> tuple[Handshake, Handshake]:
    return Handshake(listener_token, listens=True), Handshake(connector_token, listens=False)


def talk(listener: Handshake, connector: Handshake) -> None:
    hello_and_proof = connector.receive(listener.begin())
    connector.receive(listener.receive(hello_and_proof))


def test_two_that_know_the_token_let_each_other_in() -> None:
    listener, connector = pair()
    talk(listener, connector)
    assert listener.done
    assert connector.done
    assert listener.theirs == connector.theirs == Versions.ours()


def test_what_follows_the_handshake_is_kept() -> None:
    listener, connector = pair()
    hello_and_proof = connector.receive(listener.begin())
    answer = listener.receive(hello_and_proof + b"first frames")
    assert listener.rest == b"first frames"
    connector.receive(answer + b"others")
    assert connector.rest == b"others"


@pytest.mark.parametrize("size", [1, 7, 63])
def test_it_may_come_in_any_pieces(size: int) -> None:
    listener, connector = pair()
    to = {listener: listener.begin() and b"", connector: listener.begin()}
    for _ in range(3):
        for end, other in ((connector, listener), (listener, connector)):
            data, to[end] = to[end], b""
            for begin in range(0, len(data), size):
                to[other] += end.receive(data[begin : begin + size])
    assert listener.done
    assert connector.done


def test_who_does_not_know_the_token_is_found_out_by_the_listener() -> None:
    listener, stranger = pair(connector_token=b"guess")
    proof = stranger.receive(listener.begin())
    with pytest.raises(HandshakeError, match="does not know the token"):
        listener.receive(proof)
    assert not listener.done


def test_a_listener_that_does_not_know_the_token_is_found_out() -> None:
    listener, connector = pair()
    impostor = Handshake(b"guess", listens=True)
    connector.receive(impostor.begin())
    with pytest.raises(HandshakeError, match="does not know the token"):
        connector.receive(bytes(PROOF_BYTES))
    assert not connector.done
    assert not listener.done


def test_a_proof_that_was_overheard_is_worth_nothing() -> None:
    first, connector = pair()
    overheard = connector.receive(first.begin())
    first.receive(overheard)
    assert first.done
    second = Handshake(TOKEN, listens=True)
    second.begin()
    with pytest.raises(HandshakeError, match="does not know the token"):
        second.receive(overheard)


def test_a_proof_that_is_sent_back_is_worth_nothing() -> None:
    """A stranger connects to a listener while that connects to the stranger, and has each answer the other."""
    listener, connector = pair()
    theirs = connector.receive(listener.begin())
    mirror = Handshake(TOKEN, listens=False)
    with pytest.raises(HandshakeError):
        mirror.receive(theirs[:HELLO_BYTES] + theirs[HELLO_BYTES:])
    with pytest.raises(HandshakeError, match="our own words"):
        listener.receive(listener.begin())


def test_other_versions_are_one_clear_line() -> None:
    ours = Versions.ours()
    newer = Versions(ours.protocol + 1, ours.python, "9.9.9")
    other_python = Versions(ours.protocol, (3, 99), ours.skate)
    for versions in (newer, other_python, ours._replace(skate="99.0.0")):
        listener = Handshake(TOKEN, listens=True, versions=versions)
        connector = Handshake(TOKEN, listens=False)
        with pytest.raises(HandshakeError) as caught:
            connector.receive(listener.begin())
        assert str(versions) in str(caught.value)
        assert str(ours) in str(caught.value)
        assert "\n" not in str(caught.value)


@given(st.binary(min_size=1, max_size=20))
def test_what_a_stranger_calls_its_version_is_shown_as_harmless_text(said: bytes) -> None:
    greeting = Handshake(TOKEN, listens=True, versions=Versions.ours()._replace(protocol=99)).begin()
    at = len(MAGIC) + 4
    with pytest.raises(HandshakeError) as caught:
        Handshake(TOKEN, listens=False).receive(greeting[:at] + said.ljust(20, b"\0") + greeting[at + 20 :])
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_a_patch_version_may_differ() -> None:
    ours = Versions.ours()
    release = ".".join(ours.skate.split(".")[:2])
    listener = Handshake(TOKEN, listens=True, versions=ours._replace(skate=f"{release}.99"))
    connector = Handshake(TOKEN, listens=False)
    talk(listener, connector)
    assert connector.done


def test_a_handshake_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="token"):
        Handshake(b"", listens=True)


def test_ends_that_see_the_same_binding_let_each_other_in() -> None:
    listener = Handshake(TOKEN, listens=True, binding=b"one")
    connector = Handshake(TOKEN, listens=False, binding=b"one")
    talk(listener, connector)
    assert listener.done
    assert connector.done


DIFFERENT_BINDINGS = [(b"one", b"other"), (b"", b"one"), (b"one", b""), (b"one", b"one\0")]


@pytest.mark.parametrize(("listener_sees", "connector_sees"), DIFFERENT_BINDINGS)
def test_a_listener_refuses_a_proof_of_another_binding(listener_sees: bytes, connector_sees: bytes) -> None:
    listener = Handshake(TOKEN, listens=True, binding=listener_sees)
    connector = Handshake(TOKEN, listens=False, binding=connector_sees)
    with pytest.raises(HandshakeError, match="does not know the token") as caught:
        talk(listener, connector)
    assert not listener.done
    assert ("in the middle" in str(caught.value)) == bool(listener_sees), "said only where it can be"


@pytest.mark.parametrize(("listener_sees", "connector_sees"), DIFFERENT_BINDINGS)
def test_a_connector_refuses_a_proof_of_another_binding(listener_sees: bytes, connector_sees: bytes) -> None:
    """Its twin has the same words but the binding of the listener, so the listener answers with a proof."""
    listener = Handshake(TOKEN, listens=True, nonce=LISTENER_NONCE, binding=listener_sees)
    connector = Handshake(TOKEN, listens=False, nonce=CONNECTOR_NONCE, binding=connector_sees)
    twin = Handshake(TOKEN, listens=False, nonce=CONNECTOR_NONCE, binding=listener_sees)
    connector.receive(listener.begin())
    answer = listener.receive(twin.receive(listener.begin()))
    assert listener.done
    with pytest.raises(HandshakeError, match="does not know the token"):
        connector.receive(answer)
    assert not connector.done


def test_a_stranger_cannot_make_it_keep_much() -> None:
    listener = Handshake(TOKEN, listens=True)
    with pytest.raises(HandshakeError, match="does not speak"):
        listener.receive(b"GET / HTTP/1.1\r\n")
    listener = Handshake(TOKEN, listens=True)
    with pytest.raises(HandshakeError):
        listener.receive(MAGIC + bytes(1_000_000))


@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_garbage_is_never_let_in(pieces: list[bytes], listens: bool) -> None:
    end = Handshake(TOKEN, listens=listens)
    end.begin()
    try:
        for piece in pieces:
            end.receive(piece)
    except HandshakeError:
        pass
    assert not end.done


@given(st.integers(0, 3 * HELLO_BYTES), st.integers(1, 255))
def test_one_wrong_bit_is_enough(at: int, change: int) -> None:
    listener, connector = pair()
    parts = [bytearray(listener.begin())]
    try:
        for end in itertools.cycle((connector, listener)):
            data = parts[-1]
            position = at - sum(len(part) for part in parts[:-1])
            if 0 <= position < len(data):
                data[position] ^= change
            parts.append(bytearray(end.receive(bytes(data))))
            if not parts[-1]:
                break
    except HandshakeError:
        return
    untouched = at >= sum(len(part) for part in parts)
    assert untouched or not (listener.done and connector.done)
