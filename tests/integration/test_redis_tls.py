"""A store on servers that are spoken to with TLS. Those of the wheels have none: something in front of them adds it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from redis_load import Load
from redis_servers import KINDS, WITHIN_S, Server
from skate._control.storage import errors
from skate._control.storage.interface import Put
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.store import RedisStorage

pytestmark = pytest.mark.skipif(not KINDS, reason="no redis-server and no valkey-server")


class TlsInFront:
    """Takes connections with TLS and passes on what they carry, in threads that end with them."""

    def __init__(self, server: Server, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = dt.datetime.now(dt.timezone.utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .sign(key, hashes.SHA256())
        )
        self.certificate = folder / "certificate.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = folder / "key.pem"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, private)
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._carry, args=(plain,))
            self._threads.append(thread)
            thread.start()

    def _carry(self, plain: socket.socket) -> None:
        try:
            outside = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        inside = socket.create_connection(("127.0.0.1", self._server.port))
        back = threading.Thread(target=self._pass_on, args=(inside, outside))
        back.start()
        self._pass_on(outside, inside)
        back.join()
        inside.close()
        outside.close()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        try:
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WITHIN_S)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[TlsInFront]:
    server = Server(KINDS[0], "--requirepass", "secret")
    front = TlsInFront(server, tmp_path)
    yield front
    server.end()
    front.end()


def test_rows_travel_over_tls(front: TlsInFront, tmp_path: Path) -> None:
    text = f"rediss://:secret@127.0.0.1:{front.port}?ssl_ca_certs={front.certificate}"
    storage = RedisStorage(parse(text), tmp_path / "store")
    try:
        load = Load(storage)
        load.run_more(200)
        load.check()
        value = bytes(range(256)) * 4096 * 3
        storage.write([Put("t", b"large", value)])
        assert storage.flush(WITHIN_S)
        assert dict(storage.scan("t")) == {b"large": value}
    finally:
        storage.close()


def test_a_certificate_that_is_not_trusted_is_no_connection(front: TlsInFront, tmp_path: Path) -> None:
    with pytest.raises(errors.StorageUnreachable, match="certificate"):
        RedisStorage(parse(f"rediss://:secret@127.0.0.1:{front.port}"), tmp_path / "store", open_s=WITHIN_S)
