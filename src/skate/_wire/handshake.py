"""Who may talk to us over TCP: both ends prove that they know the cluster's token before a message is decoded.

    who connects                         who listens
                ◀── hello: versions, nonce ──
     hello, proof ──────────────────────▶          proof = HMAC(token, role, both hellos, binding)
                ◀────────────────── proof ──

The one who connects proves itself first, so a stranger learns nothing but the versions in use. Each proof covers the
role of who makes it and both nonces: one that was overheard is worth nothing on another connection, nor is one that is
sent back to where it came from. All of it has a fixed size, so a stranger can make us keep a few hundred bytes and no
more; how long it may take is up to the caller.

Inside TLS (`_wire/tls.py`) the proofs also cover the binding: the fingerprint of the certificate that the listener
shows, as each end sees it. Somebody in the middle has to show another one, so what one end proves is wrong at the
other. Nor can an end that uses TLS be brought to talk to one that does not: the binding of that is empty.

Owns:      what has arrived of the next part.
Knows not: sockets, clocks, where the token comes from.
Invariant: nothing of what the other end sent is handed on before its proof was found right.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import sys
from typing import NamedTuple

from skate._core.version import VERSION
from skate._wire.complaints import harmless

#: Raised when messages change so that older versions would misread them.
PROTOCOL = 1
MAGIC = b"skate\r\n\0"
NONCE_BYTES = 32
PROOF_BYTES = 32
_HELLO = struct.Struct(f"<8sHBB20s{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size


class HandshakeError(ConnectionError):
    """The other end is not one of ours, or not one that we can talk to. Says why, in one line."""


class StrangerError(HandshakeError):
    """The other end is something else than Skate."""


class SilentError(HandshakeError):
    """The other end took the connection, which the kernel does for it, and said nothing."""


class VersionError(HandshakeError):
    """The other end is of another version."""


class Versions(NamedTuple):
    protocol: int
    python: tuple[int, int]
    skate: str

    @classmethod
    def ours(cls) -> Versions:
        return cls(PROTOCOL, sys.version_info[:2], VERSION)

    def go_with(self, other: Versions) -> bool:
        """Whether the two understand each other: patch releases do."""
        releases = [it.skate.split(".")[:2] for it in (self, other)]
        return (self.protocol, self.python) == (other.protocol, other.python) and releases[0] == releases[1]

    def __str__(self) -> str:
        return f"Skate {self.skate} (protocol {self.protocol}) on Python {self.python[0]}.{self.python[1]}"


class Handshake:
    """One end of it: bytes in, bytes out, until `done`."""

    def __init__(
        self,
        token: bytes,
        *,
        listens: bool,
        versions: Versions | None = None,
        nonce: bytes = b"",
        binding: bytes = b"",
    ) -> None:
        """`binding` says which connection this is, and must be the same at both ends: empty without TLS."""
        if not token:
            raise ValueError("a handshake without a token would let everybody in.")
        self._token = token
        self._binding = binding
        self._listens = listens
        self._versions = versions or Versions.ours()
        self._hello = _pack_hello(self._versions, nonce or os.urandom(NONCE_BYTES))
        self._their_hello = b""
        self._arrived = bytearray()
        self.theirs: Versions | None = None
        self.done = False

    def begin(self) -> bytes:
        """What is sent before anything has come."""
        return self._hello if self._listens else b""

    def receive(self, data: bytes) -> bytes:
        """Take what has come; what is to be sent now. Raises HandshakeError, and then the connection is to be cut.

        When `done`, `rest` has what came after it.
        """
        self._arrived += data
        answer = b""
        if not self._their_hello:
            if len(self._arrived) < HELLO_BYTES:
                self._check_begin()
                return b""
            self._on_hello(self._take(HELLO_BYTES))
            if not self._listens:
                answer = self._hello + self._proof("connects")
        if not self.done and len(self._arrived) >= PROOF_BYTES:
            self._on_proof(self._take(PROOF_BYTES))
            if self._listens:
                answer += self._proof("listens")
        return answer

    @property
    def rest(self) -> bytes:
        """Bytes behind the handshake: the first frames."""
        assert self.done
        return bytes(self._arrived)

    def _take(self, size: int) -> bytes:
        part = bytes(self._arrived[:size])
        del self._arrived[:size]
        return part

    def _check_begin(self) -> None:
        begin = self._arrived[: len(MAGIC)]
        if not MAGIC.startswith(begin):
            raise StrangerError("the other end does not speak Skate's protocol.")

    def _on_hello(self, hello: bytes) -> None:
        self.theirs, nonce = _unpack_hello(hello)
        if hmac.compare_digest(nonce, self._hello[-NONCE_BYTES:]):
            raise HandshakeError("the other end sent our own words back.")
        _check_versions(self.theirs, self._versions)
        self._their_hello = hello

    def _on_proof(self, proof: bytes) -> None:
        expected = self._proof("connects" if self._listens else "listens")
        if not hmac.compare_digest(proof, expected):
            # Both look alike from here: a proof that is right on another connection only is as good as a wrong token.
            in_the_middle = ", or somebody in the middle reads this connection" if self._binding else ""
            raise HandshakeError(f"the other end does not know the token of this cluster{in_the_middle}.")
        self.done = True

    def _proof(self, role: str) -> bytes:
        listener, connector = (self._hello, self._their_hello) if self._listens else (self._their_hello, self._hello)
        # All before the binding has a fixed size for each role, so no two conversations give the same bytes.
        words = role.encode() + listener + connector + self._binding
        return hmac.new(self._token, words, hashlib.sha256).digest()


def _pack_hello(versions: Versions, nonce: bytes) -> bytes:
    return _HELLO.pack(MAGIC, versions.protocol, *versions.python, versions.skate.encode("ascii", "replace"), nonce)


def _unpack_hello(hello: bytes) -> tuple[Versions, bytes]:
    magic, protocol, major, minor, version, nonce = _HELLO.unpack(hello)
    if magic != MAGIC:
        raise StrangerError("the other end does not speak Skate's protocol.")
    # It is shown to people, and a stranger may have written it.
    return Versions(protocol, (major, minor), harmless(version.rstrip(b"\0").decode("ascii", "replace"))), nonce


def _check_versions(theirs: Versions, ours: Versions) -> None:
    if not theirs.go_with(ours):
        raise VersionError(f"the other end runs {theirs}, and this one {ours}: use the same on both.")


# On one machine the kernel says who somebody is, and only the versions are left to be compared.


def greeting() -> bytes:
    """HELLO_BYTES with our versions."""
    return _pack_hello(Versions.ours(), b"")


def check_greeting(said: bytes) -> None:
    """Raises HandshakeError if we cannot talk to whoever said that."""
    _check_versions(_unpack_hello(said)[0], Versions.ours())
