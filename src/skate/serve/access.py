"""Who may ask: clients that show the token, and pages that come from here."""

from __future__ import annotations

import hmac

from skate.serve.config import HTTPOptions
from skate.serve.responses import Scope

__all__ = ["Access"]

#: Methods that change nothing, so any page may make a browser send them.
READING = frozenset({"GET", "HEAD", "OPTIONS"})
#: A browser leaves the port out of both headers if it is that of the scheme; other clients may not.
USUAL_PORTS = {b"http": b":80", b"https": b":443"}


class Access:
    """The rules of HTTPOptions."""

    def __init__(self, http: HTTPOptions) -> None:
        self._token = None if http.token is None else b"Bearer " + http.token.encode()
        self._origins = frozenset(each.rstrip("/").lower().encode() for each in http.allowed_origins)

    def lacks_token(self, scope: Scope) -> bool:
        """Whether a token is asked for that the client has not shown. The comparison takes equally long for each."""
        if self._token is None:
            return False
        for name, value in scope["headers"]:
            if name == b"authorization":
                return not hmac.compare_digest(value, self._token)
        return True

    def is_foreign(self, scope: Scope, origin: bytes) -> bool:
        """Whether a page of another site makes a browser send this, and might change something by it."""
        if scope.get("method", "") in READING or b"*" in self._origins:
            return False
        origin = origin.lower()
        scheme, _, site = origin.partition(b"://")
        port = USUAL_PORTS.get(scheme, b"")
        host = next((value.lower() for name, value in scope["headers"] if name == b"host"), b"")
        is_own = bool(site) and site.removesuffix(port) == host.removesuffix(port)
        return not is_own and origin not in self._origins
