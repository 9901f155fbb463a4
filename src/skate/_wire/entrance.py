"""What two ends do before the first message: TLS if the cluster uses it, then the handshake inside.

Owns:      the stream that encrypts, and the state of the handshake.
Knows not: sockets, clocks. `relay.py` goes on encrypting when this is done.
Invariant: nothing of what the other end sent is handed on before its proof was found right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._wire.handshake import Handshake, Versions

if TYPE_CHECKING:
    import ssl

    from skate._wire.tls import Certificate, TlsStream


class Tls:
    """What a process needs to encrypt its connections. A listener has a certificate, which it makes at its start."""

    def __init__(self, *, listens: bool) -> None:
        from skate._wire import tls  # loads OpenSSL: 20 ms, for those who use it

        self.certificate: Certificate | None = tls.make_certificate() if listens else None
        self._listening: ssl.SSLContext | None = None
        if self.certificate is not None:
            self._listening = tls.listener_context(self.certificate)
        self._connecting = tls.connector_context()

    def new_stream(self, *, listens: bool) -> TlsStream:
        from skate._wire.tls import TlsStream

        context = self._listening if listens else self._connecting
        assert context is not None, "who listens has a certificate"
        return TlsStream(context, listens)

    def binding(self, stream: TlsStream, *, listens: bool) -> bytes:
        from skate._wire.tls import binding_of

        return binding_of(stream.ssl_object, listens=listens, cert=self.certificate)


class Entrance:
    """One end of it: bytes in, bytes out, until `done`. Raises ConnectionError; then the connection is to be cut."""

    def __init__(self, token: bytes, *, listens: bool, tls: Tls | None = None) -> None:
        self._token = token
        self._listens = listens
        self._tls = tls
        #: Encrypts all that follows, too; None without TLS.
        self.stream = tls.new_stream(listens=listens) if tls is not None else None
        # With TLS it begins when the connection is secret: its proofs cover the listener's certificate.
        self._handshake = Handshake(token, listens=listens) if tls is None else None

    def begin(self) -> bytes:
        """What is sent before anything has come."""
        if self.stream is not None:
            return self.stream.begin()
        assert self._handshake is not None
        return self._handshake.begin()

    def receive(self, data: bytes) -> bytes:
        """Take what has come; what is to be sent now."""
        if self.stream is None:
            assert self._handshake is not None
            return self._handshake.receive(data)
        assert self._tls is not None
        plain, answer = self.stream.receive(data)
        if self._handshake is None and self.stream.established:
            binding = self._tls.binding(self.stream, listens=self._listens)
            self._handshake = Handshake(self._token, listens=self._listens, binding=binding)
            answer += self._encrypted(self._handshake.begin())
        if plain:
            assert self._handshake is not None
            answer += self._encrypted(self._handshake.receive(plain))
        return answer

    def _encrypted(self, plain: bytes) -> bytes:
        assert self.stream is not None
        return self.stream.send(plain) if plain else b""

    @property
    def done(self) -> bool:
        return self._handshake is not None and self._handshake.done

    @property
    def theirs(self) -> Versions | None:
        """The versions at the other end, as soon as they are known."""
        return self._handshake.theirs if self._handshake is not None else None

    @property
    def rest(self) -> bytes:
        """What came right behind the handshake."""
        assert self._handshake is not None
        return self._handshake.rest
