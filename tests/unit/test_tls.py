"""TLS between machines: both ends see the same certificate, or find out by the token that somebody is in between."""

from __future__ import annotations

import hashlib
import os
import pickle
import ssl
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skate._wire.handshake import MAGIC, PROOF_BYTES, Handshake, HandshakeError
from skate._wire.tls import (
    HANDSHAKE_BYTES_MAX,
    Certificate,
    TlsError,
    TlsStream,
    TlsUnavailableError,
    binding_of,
    connector_context,
    listener_context,
    make_certificate,
)

TOKEN = b"the token of this cluster"
CERTIFICATE = make_certificate()
LISTENER = listener_context(CERTIFICATE)
CONNECTOR = connector_context()
#: Examples that each make a TLS connection take a millisecond or two.
THOROUGH = settings(max_examples=300, deadline=None)


def pair(listener: ssl.SSLContext = LISTENER) -> tuple[TlsStream, TlsStream]:
    return TlsStream(listener, listens=True), TlsStream(CONNECTOR, listens=False)


def meet(listener: TlsStream, connector: TlsStream) -> None:
    to_listener = listener.begin() + connector.begin()
    for _ in range(4):
        _, to_connector = listener.receive(to_listener)
        _, to_listener = connector.receive(to_connector)
    assert listener.established
    assert connector.established


def established(listener: ssl.SSLContext = LISTENER) -> tuple[TlsStream, TlsStream]:
    ends = pair(listener)
    meet(*ends)
    return ends


def listener_flight() -> bytes:
    """What a listener answers to a hello, from a connection of its own."""
    listener, connector = pair()
    return listener.receive(connector.begin())[1]


# --- certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_does_not_show_its_key() -> None:
    text = repr(CERTIFICATE) + str(CERTIFICATE)
    assert "KEY" not in text
    assert b"PRIVATE KEY" in CERTIFICATE.key_pem


def test_its_fingerprint_is_of_what_the_other_end_gets() -> None:
    der = ssl.PEM_cert_to_DER_cert(CERTIFICATE.certificate_pem.decode())
    assert CERTIFICATE.fingerprint == hashlib.sha256(der).digest()
    assert pickle.loads(pickle.dumps(CERTIFICATE)) == CERTIFICATE


def test_every_node_has_another_one() -> None:
    assert make_certificate().fingerprint != CERTIFICATE.fingerprint


def test_loading_it_leaves_no_descriptor_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    listener_context(CERTIFICATE)
    assert not any("skate-certificate" in os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir())
    assert not list(tmp_path.iterdir())


def test_a_key_of_another_certificate_is_refused() -> None:
    wrong = Certificate(CERTIFICATE.certificate_pem, make_certificate().key_pem, CERTIFICATE.fingerprint)
    with pytest.raises(ssl.SSLError):
        listener_context(wrong)


def test_without_cryptography_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TlsUnavailableError, match=r"pip install 'skate\[tls\]'"):
        make_certificate()


def test_who_only_connects_does_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    connector = TlsStream(connector_context(), listens=False)
    meet(TlsStream(LISTENER, listens=True), connector)
    assert binding_of(connector.ssl_object, listens=False) == CERTIFICATE.fingerprint


# --- the stream -------------------------------------------------------------------------------------------------------


def test_both_ends_see_the_same_certificate() -> None:
    listener, connector = established()
    assert binding_of(listener.ssl_object, listens=True, cert=CERTIFICATE) == CERTIFICATE.fingerprint
    assert binding_of(connector.ssl_object, listens=False) == CERTIFICATE.fingerprint


@pytest.mark.parametrize("size", [0, 1, 1000, 16 << 10, (16 << 10) + 1, 3_000_000])
def test_what_one_says_the_other_hears(size: int) -> None:
    listener, connector = established()
    words = os.urandom(size)
    for end, other in ((listener, connector), (connector, listener)):
        sent = end.send(memoryview(words))
        assert other.receive(sent) == (words, b"")
        assert size < 16 or words not in sent, "and nobody else"


@pytest.mark.parametrize("size", [1, 7, 500])
def test_it_may_come_in_any_pieces(size: int) -> None:
    listener, connector = pair()
    to = {listener: connector.begin(), connector: b""}
    heard = {listener: b"", connector: b""}
    said = False
    for _ in range(6):
        for end, other in ((listener, connector), (connector, listener)):
            data, to[end] = to[end], b""
            for begin in range(0, len(data), size):
                plain, answer = end.receive(data[begin : begin + size])
                heard[end] += plain
                to[other] += answer
        if listener.established and connector.established and not said:
            said = True
            to[listener] += connector.send(b"from the connector" * 100)
            to[connector] += listener.send(b"from the listener" * 100)
    assert heard == {listener: b"from the connector" * 100, connector: b"from the listener" * 100}


def test_words_right_behind_the_tls_handshake_are_heard_however_many() -> None:
    listener, connector = pair()
    _, flight = listener.receive(connector.begin())
    _, last_part = connector.receive(flight)
    words = os.urandom(4 * HANDSHAKE_BYTES_MAX)
    assert listener.receive(last_part + connector.send(words)) == (words, b"")


def test_only_tls_1_3_is_spoken() -> None:
    listener, connector = established()
    assert listener.ssl_object.version() == connector.ssl_object.version() == "TLSv1.3"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsError, match="unsupported protocol"):
        TlsStream(LISTENER, listens=True).receive(TlsStream(old, listens=False).begin())
    old = listener_context(CERTIFICATE)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(TlsError, match="unsupported protocol"):
        TlsStream(old, listens=True).receive(TlsStream(CONNECTOR, listens=False).begin())


def test_the_end_of_what_the_other_says_is_noticed() -> None:
    listener, connector = established()
    last = connector.send(b"the last words")
    with pytest.raises(ssl.SSLWantReadError):
        connector.ssl_object.unwrap()
    farewell = connector._outgoing.read()
    assert listener.receive(last + farewell)[0] == b"the last words"
    assert listener.ended
    assert listener.receive(b"anything") == (b"", b"")


# --- the handshake inside it ------------------------------------------------------------------------------------------


def inside(end: TlsStream, *, listens: bool, token: bytes = TOKEN, cert: Certificate = CERTIFICATE) -> Handshake:
    return Handshake(token, listens=listens, binding=binding_of(end.ssl_object, listens=listens, cert=cert))


def test_two_that_know_the_token_let_each_other_in() -> None:
    tls_listener, tls_connector = established()
    listener = inside(tls_listener, listens=True)
    connector = inside(tls_connector, listens=False)
    hello, _ = tls_connector.receive(tls_listener.send(listener.begin()))
    proof, _ = tls_listener.receive(tls_connector.send(connector.receive(hello)))
    answer, _ = tls_connector.receive(tls_listener.send(listener.receive(proof)))
    connector.receive(answer)
    assert listener.done
    assert connector.done


def test_somebody_in_the_middle_is_found_out_by_both_ends() -> None:
    """Two TLS connections, and between them somebody who hands on every word. Both ends know the token; he does not."""
    middle_certificate = make_certificate()
    middle_to_connector, tls_connector = established(listener_context(middle_certificate))
    tls_listener, middle_to_listener = established()
    listener = inside(tls_listener, listens=True)
    connector = inside(tls_connector, listens=False)

    hello, _ = middle_to_listener.receive(tls_listener.send(listener.begin()))
    hello, _ = tls_connector.receive(middle_to_connector.send(hello))
    proof, _ = middle_to_connector.receive(tls_connector.send(connector.receive(hello)))
    proof, _ = tls_listener.receive(middle_to_listener.send(proof))
    with pytest.raises(HandshakeError, match="in the middle"):
        listener.receive(proof)
    # The listener has said nothing that the connector would believe. Back go its own proof, and one made up.
    for answer in (proof[-PROOF_BYTES:], bytes(PROOF_BYTES)):
        with pytest.raises(HandshakeError, match="in the middle"):
            connector.receive(answer)
    assert not listener.done
    assert not connector.done


def test_somebody_in_the_middle_cannot_take_tls_away() -> None:
    """He speaks TLS to one end and plain text to the other, which would do without."""
    middle, tls_connector = established(listener_context(make_certificate()))
    listener = Handshake(TOKEN, listens=True)
    connector = inside(tls_connector, listens=False)
    hello, _ = tls_connector.receive(middle.send(listener.begin()))
    proof, _ = middle.receive(tls_connector.send(connector.receive(hello)))
    with pytest.raises(HandshakeError, match="does not know the token"):
        listener.receive(proof)


def test_who_does_not_know_the_token_is_found_out_inside_tls() -> None:
    tls_listener, tls_connector = established()
    listener = inside(tls_listener, listens=True)
    stranger = inside(tls_connector, listens=False, token=b"guess")
    with pytest.raises(HandshakeError, match="does not know the token"):
        listener.receive(stranger.receive(listener.begin()))


# --- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\0", b"\xff" * 100])
def test_plain_text_is_an_error_that_says_so(listens: bool, words: bytes) -> None:
    end = TlsStream(LISTENER if listens else CONNECTOR, listens)
    end.begin()
    with pytest.raises(TlsError, match="plain text, not TLS"):
        end.receive(words)
    assert not end.established


@pytest.mark.parametrize("size", [1, 8, 1000])
def test_skate_without_tls_is_an_error_that_says_so(size: int) -> None:
    connector = TlsStream(CONNECTOR, listens=False)
    connector.begin()
    with pytest.raises(HandshakeError, match="without TLS: use --tls on both, or on neither"):
        connector.receive(Handshake(TOKEN, listens=True).begin()[:size])


def test_tls_is_refused_by_a_listener_without_it() -> None:
    hello = TlsStream(CONNECTOR, listens=False).begin()
    for size in (1, 5, len(hello)):
        with pytest.raises(HandshakeError, match="does not speak Skate's protocol"):
            Handshake(TOKEN, listens=True).receive(hello[:size])


@pytest.mark.parametrize("piece", [1000, HANDSHAKE_BYTES_MAX, 10 * HANDSHAKE_BYTES_MAX])
def test_a_stranger_cannot_make_it_keep_much(piece: int) -> None:
    """A hello that claims to be long, in records that are as TLS wants them, and never ends."""
    record = b"\x16\x03\x01\x02\x00" + bytes(512)
    endless = b"\x16\x03\x01\x02\x00" + b"\x01\x01\xff\x00" + bytes(508) + record * 400
    listener = TlsStream(LISTENER, listens=True)
    with pytest.raises(TlsError, match=rf"within {HANDSHAKE_BYTES_MAX} bytes"):
        for begin in range(0, len(endless), piece):
            assert begin <= HANDSHAKE_BYTES_MAX
            listener.receive(endless[begin : begin + piece])
    assert not listener.established
    with pytest.raises(TlsError):
        listener.receive(record)


def feed(end: TlsStream, pieces: list[bytes]) -> bytes:
    """What it makes of them; after an error they go on coming, and it must not come to life again."""
    heard = b""
    failed = False
    for piece in pieces:
        try:
            plain, _ = end.receive(piece)
        except HandshakeError:
            failed = True
        else:
            assert not (failed and plain)
            heard += plain
    return heard


TLS_BEGINS = st.sampled_from(
    [b"", b"\x16", b"\x15\x03\x03\x00\x02", b"\x16\x03\x01\x00\x40\x01", b"\x16\x03\x03\xff\xff"]
)


@THOROUGH
@given(TLS_BEGINS, st.lists(st.binary(max_size=300), max_size=5), st.booleans())
@example(b"", [MAGIC[:1]], False)
def test_garbage_is_an_error_or_nothing(begin: bytes, pieces: list[bytes], listens: bool) -> None:
    end = TlsStream(LISTENER if listens else CONNECTOR, listens)
    end.begin()
    assert feed(end, [begin, *pieces]) == b""
    assert not end.established


@THOROUGH
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 255)), min_size=1, max_size=3),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_changed_hello_or_answer_is_an_error_or_nothing(
    changes: list[tuple[int, int]], cut: int, listens: bool
) -> None:
    """Positions are taken modulo the size, which differs: the signature in an answer has 70 to 72 bytes."""
    end = TlsStream(LISTENER if listens else CONNECTOR, listens)
    words = bytearray(TlsStream(CONNECTOR, listens=False).begin())
    if not listens:
        words = bytearray(TlsStream(LISTENER, listens=True).receive(end.begin())[1])
    for at, change in changes:
        words[at % len(words)] ^= change
    cut %= len(words)
    assert feed(end, [bytes(words[:cut]), bytes(words[cut:]), b"more"]) == b""


@THOROUGH
@given(st.integers(0, 500), st.integers(1, 255), st.booleans())
def test_a_changed_word_is_never_heard(at: int, change: int, listens: bool) -> None:
    listener, connector = established()
    end, other = (listener, connector) if listens else (connector, listener)
    record = bytearray(other.send(b"the words" * 50))
    record[at % len(record)] ^= change
    assert feed(end, [bytes(record), other.send(b"more")]) == b""


def test_an_answer_from_another_connection_is_refused() -> None:
    connector = TlsStream(CONNECTOR, listens=False)
    connector.begin()
    with pytest.raises(TlsError):
        connector.receive(listener_flight())
