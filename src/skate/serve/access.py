"""Who may ask: clients that show the token, and pages that come from here or from an origin that is allowed."""

from __future__ import annotations

import hmac
import ipaddress

from skate.serve.config import HTTPOptions
from skate.serve.responses import Message, Scope, Send

__all__ = ["Access"]

#: Methods that change nothing, so any page may make a browser send them.
READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: A browser leaves the port out of both headers if it is that of the scheme; other clients may not.
USUAL_PORTS = {b"http": b":80", b"https": b":443"}
#: How a browser asks, before a request, whether a page may send it, and what it is answered.
MAY_I = {
    b"access-control-request-method": b"access-control-allow-methods",
    b"access-control-request-headers": b"access-control-allow-headers",
}
ALLOW_ORIGIN = b"access-control-allow-origin"
VARY = (b"vary", b"origin")
#: Seconds for which a browser may remember the answer to a preflight.
REMEMBERED = (b"access-control-max-age", b"600")


class Access:
    """The rules of HTTPOptions."""

    def __init__(self, http: HTTPOptions) -> None:
        self._token = None if http.token is None else http.token.encode()
        self._origins = frozenset(each.rstrip("/").lower().encode() for each in http.allowed_origins)
        #: Whether any host name may be ours. On loopback without a token it may not: the owner of another site can have
        #: its name lead to this machine, and its pages would then seem to come from here.
        self._knows_no_names = http.token is None and _is_loopback(http.host)
        #: What every answer has: a cache may not give that for one origin to another.
        self.headers = [VARY] if self._origins else []

    def lacks_token(self, scope: Scope) -> bool:
        """Whether a token is asked for that the client has not shown. The comparison takes equally long for each."""
        if self._token is None:
            return False
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, shown = value.partition(b" ")
                return not hmac.compare_digest(shown, self._token) or scheme.lower() != b"bearer"
        return True

    def is_foreign(self, scope: Scope, origin: bytes) -> bool:
        """Whether a page of another site makes a browser send this, and might change something by it."""
        if scope.get("method", "") in READING or self.allows(origin):
            return False
        scheme, _, site = origin.lower().partition(b"://")
        port = USUAL_PORTS.get(scheme, b"")
        host = next((value.lower() for name, value in scope["headers"] if name == b"host"), b"")
        is_own = bool(site) and site.removesuffix(port) == host.removesuffix(port)
        return not is_own or (self._knows_no_names and not _is_local(host))

    def allows(self, origin: bytes) -> bool:
        """Whether the options name the origin."""
        return bool(self._origins) and (origin.lower() in self._origins or b"*" in self._origins)

    async def answer_preflight(self, scope: Scope, send: Send, origin: bytes) -> bool:
        """Answer a browser that asks whether a page of an origin that is allowed may send a request; if it does."""
        found = [(MAY_I[name], value) for name, value in scope["headers"] if name in MAY_I]
        if scope.get("method") != "OPTIONS" or not found:
            return False
        headers = [(ALLOW_ORIGIN, origin), *found, REMEMBERED]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return True

    def readable(self, send: Send, origin: bytes) -> Send:
        """What lets pages of an origin that is allowed read the answer, unless the app says who may."""

        async def send_readable(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers") or ())
                if all(name.lower() != ALLOW_ORIGIN for name, _ in headers):
                    message = {**message, "headers": [*headers, (ALLOW_ORIGIN, origin)]}
            await send(message)

        return send_readable


def _is_loopback(host: str | None) -> bool:
    """Whether only this machine can connect."""
    return host is None or host == "localhost" or _is_address(host, loopback=True)


def _is_local(host: bytes) -> bool:
    """Whether the header Host has an address, or a name that always leads to the machine of the browser itself."""
    text = host.decode("latin-1")
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name == "localhost" or name.endswith(".localhost") or _is_address(name)


def _is_address(text: str, *, loopback: bool = False) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback or not loopback
    except ValueError:
        return False
