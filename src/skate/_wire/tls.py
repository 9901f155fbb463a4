"""Nobody reads along: TLS between machines, trusted because of the token and not because of an authority.

    who connects                                     who listens
     ── TLS 1.3, certificate made at start, checked by nobody ──
     ══ inside it: the handshake of `_wire/handshake.py`, whose proofs cover the fingerprint of that certificate ══

TLS alone keeps a connection secret from those who only listen; to know who is at the other end it needs certificates
that somebody vouches for, and handing those out is what makes clusters painful to set up. But both ends know the token
already. So each node makes itself a certificate that nobody else has signed, and the two ends prove to each other, with
the token, which certificate they see (the binding). TLS itself makes sure that whoever shows a certificate has its key.
Who stands in the middle must show one of his own: then the ends see different ones, and the proof of each is wrong at
the other. Nothing is to be renewed, copied or revoked, and no private key is ever in a file system.

`TlsStream` is the connection itself, without sockets: bytes in, bytes out, as the handshake above it.

Owns:      the certificate and its key, in memory; the state of one TLS connection.
Knows not: sockets, clocks, the token.
Invariant: nothing is trusted before the handshake inside is done: until then, `established` only means secret.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timezone

from skate._wire.handshake import MAGIC, HandshakeError, StrangerError

#: Bytes that are taken before the TLS handshake is done; who sends more is refused. Ours need less than 1 KB in each
#: direction, and one or two more with the larger keys that newer versions of OpenSSL begin with.
HANDSHAKE_BYTES_MAX = 16 << 10
#: The first byte of every TLS connection: a handshake record, or the alert of somebody who gives up at once.
_FIRST_BYTES = b"\x16\x15"
#: What one TLS record holds at most, so what a read can give.
_RECORD_BYTES = 16 << 10


class TlsError(StrangerError):
    """The TLS connection cannot go on and is to be cut: ours do not end so. Says why, in one line."""


class TlsUnavailableError(ImportError):
    """What makes certificates is not installed."""


@dataclass(frozen=True)
class Certificate:
    """What a node shows when others connect to it, for as long as it runs."""

    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    #: sha256 of the certificate in DER, which is how the other end gets it.
    fingerprint: bytes


def make_certificate() -> Certificate:
    """A new key and a certificate for it, signed by itself. Raises TlsUnavailableError without `cryptography`."""
    try:  # here and not above: it is an extra, and takes 50 ms to import
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise TlsUnavailableError(
            f"--tls needs the package cryptography to make a certificate, and it cannot be imported ({error}). "
            "Run: pip install 'skate[tls]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "skate")])
    # Nobody looks at names and dates. These are always right, even where the clock is wrong.
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=timezone.utc))
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(
        certificate.public_bytes(serialization.Encoding.PEM), key_pem, certificate.fingerprint(hashes.SHA256())
    )


def listener_context(cert: Certificate) -> ssl.SSLContext:
    """For all connections that come to a node."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A session that is taken up again shows no certificate. Ours live long: there is nothing to save.
    context.num_tickets = 0
    # The module `ssl` reads keys from files only. This one is in memory, and gone when it is closed.
    with open(os.memfd_create("skate-certificate"), "wb") as file:
        file.write(cert.key_pem + cert.certificate_pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


def connector_context() -> ssl.SSLContext:
    """For all connections to other nodes.

    It accepts every certificate. Elsewhere that is a hole; here no authority knows our certificates, and that the right
    one was shown is checked afterwards, inside, by proofs that cover it. Without those this context protects nobody.
    TLS 1.3 only: older versions are weaker, and there is no older Skate that would need them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def binding_of(ssl_object: ssl.SSLObject, *, listens: bool, cert: Certificate | None = None) -> bytes:
    """What the proofs of this connection have to cover: the fingerprint of the listener's certificate.

    A listener knows which one it shows, `cert`; who connects takes the one that it was shown.
    """
    if listens:
        assert cert is not None, "a listener has a certificate"
        return cert.fingerprint
    shown = ssl_object.getpeercert(binary_form=True)
    if not shown:
        raise TlsError("the other end showed no certificate, so nobody could tell who it is.")
    return hashlib.sha256(shown).digest()


class TlsStream:
    """One end of a TLS connection: bytes in, bytes out. Both ends may send as soon as it is `established`.

    After a TlsError the connection is to be cut. It may be cut without a farewell: frames have lengths, so what is
    missing is seen.
    """

    def __init__(self, context: ssl.SSLContext, listens: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._listens = listens
        #: Bytes that came before the handshake was done, at most HANDSHAKE_BYTES_MAX.
        self._taken = 0
        #: For `binding_of`, once established.
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_side=listens)
        #: What is sent from now on is secret; who reads it is not known yet.
        self.established = False
        #: The other end has said that nothing more will come.
        self.ended = False

    def begin(self) -> bytes:
        """What is sent before anything has come: who connects speaks first."""
        if not self._listens:
            self._shake_hands()
        return self._outgoing.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take what has come: what the other end said, and what is to be sent now. Raises TlsError."""
        if self.ended or not data:
            return b"", b""
        if not self.established:
            if not self._taken:
                _check_begin(data)
            room = HANDSHAKE_BYTES_MAX - self._taken
            self._taken += self._incoming.write(data[:room])
            self._shake_hands()
            data = data[room:]
            if not self.established:
                if data:
                    raise TlsError(f"no TLS connection was made within {HANDSHAKE_BYTES_MAX} bytes.")
                return b"", self._outgoing.read()
        self._incoming.write(data)
        return self._read(), self._outgoing.read()

    def send(self, plain: bytes | memoryview) -> bytes:
        """What is to be sent for the other end to get `plain`."""
        assert self.established, "nothing can be said before the other end has answered"
        left = memoryview(plain).cast("B")
        try:
            while left:
                left = left[self.ssl_object.write(left) :]
        except ssl.SSLError as error:
            raise _as_tls_error(error) from error
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise _as_tls_error(error) from error
        self.established = True

    def _read(self) -> bytes:
        parts = []
        try:
            while part := self.ssl_object.read(_RECORD_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise _as_tls_error(error) from error
        return b"".join(parts)


def _check_begin(data: bytes) -> None:
    """Say what is wrong before OpenSSL calls everything that is not TLS a wrong version number."""
    if data[0] in _FIRST_BYTES:
        return
    if MAGIC.startswith(data[: len(MAGIC)]):
        raise HandshakeError("the other end speaks Skate's protocol without TLS: use --tls on both, or on neither.")
    raise TlsError("the other end sent plain text, not TLS.")


def _as_tls_error(error: ssl.SSLError) -> TlsError:
    reason = (error.reason or "no reason is known").replace("_", " ").lower()
    return TlsError(f"TLS with the other end failed: {reason}.")
