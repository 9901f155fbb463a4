"""Answers that no app gives: a request is refused, or its app has failed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skate.serve.responses import JSON, Scope, Send, send_whole

__all__ = ["RETRY_AFTER", "refuse", "send_unless_started"]

#: What a client that was refused may wait before it asks again.
RETRY_AFTER = {"retry-after": "1"}
#: Close codes of websockets for statuses of HTTP: try again later, connect again, the policy forbids it.
CLOSE_CODES = {503: 1013, 502: 1012}
POLICY = 1008
HTTP_ANSWER = "websocket.http.response"


async def refuse(scope: Scope, send: Send, status: int, why: str, headers: Mapping[str, str] | None = None) -> None:
    """Answer with an error and its reason, as JSON. A websocket is refused, or closed if it was accepted."""
    body = msgspec.json.encode({"error": why})
    if scope["type"] == "http":
        return await send_unless_started(scope, send, status, JSON, body, headers)
    try:
        if HTTP_ANSWER in (scope.get("extensions") or {}):
            fields = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
            fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
            await send({"type": f"{HTTP_ANSWER}.start", "status": status, "headers": fields})
            await send({"type": f"{HTTP_ANSWER}.body", "body": body})
            return None
    except RuntimeError:  # it was accepted
        pass
    await send({"type": "websocket.close", "code": CLOSE_CODES.get(status, POLICY), "reason": why[:100]})
    return None


async def send_unless_started(
    scope: Scope, send: Send, status: int, kind: bytes, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Answer, unless the app has begun to: then the connection breaks off, so that the client sees it is not whole."""
    try:
        await send_whole(send, scope, status, kind, body, headers)
    except RuntimeError:
        raise ConnectionAbortedError("the app failed in the middle of its answer") from None
    except OSError:  # the client has gone
        pass
