"""Who may ask: which pages are foreign, and what browsers are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skate.serve.access import Access
from skate.serve.config import HTTPOptions

ELSEWHERE = b"https://elsewhere.example"
FRIEND = b"https://friend.example"


def scope_of(method: str = "POST", **headers: str) -> dict[str, Any]:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "headers": fields}


def is_foreign(origin: str, name: str, **options: Any) -> bool:
    """Whether a page of the origin is foreign in a request for the name."""
    return Access(HTTPOptions(**options)).is_foreign(scope_of(host=name), origin.encode())


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "app.localhost:8000", "127.0.0.1:8000", "192.168.1.7", "[::1]:8000"],
)
def test_a_page_from_an_address_or_from_localhost_is_our_own(host: str) -> None:
    assert not is_foreign(f"http://{host}", host)
    assert is_foreign(f"http://{host}", "other.example")


@pytest.mark.parametrize("host", ["name.example", "name.example:8000", "localhost.example", "127.0.0.1.example", ""])
def test_on_loopback_a_page_from_a_name_is_not_our_own_though_the_name_leads_here(host: str) -> None:
    assert is_foreign(f"http://{host}", host)
    assert is_foreign(f"http://{host}", host, host="localhost")
    assert is_foreign(f"http://{host}", host, host="::1")


@pytest.mark.parametrize(
    "options",
    [{"host": "0.0.0.0"}, {"host": "192.168.1.7"}, {"token": "t"}, {"allowed_origins": ("http://name.example",)}],
)
def test_a_page_from_our_name_is_our_own_where_names_lead_here_in_order(options: dict[str, Any]) -> None:
    assert not is_foreign("http://name.example", "name.example", **options)
    assert is_foreign("http://elsewhere.example", "name.example", **options)


def preflight(method: str = "OPTIONS", **headers: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    access = Access(HTTPOptions(allowed_origins=(FRIEND.decode(),), token="t"))
    answered = asyncio.run(access.answer_preflight(scope_of(method, **headers), send, FRIEND))
    assert answered == bool(sent)
    return sent


def test_a_browser_is_told_that_a_page_may_send_what_it_asks_for() -> None:
    start, _ = preflight(access_control_request_method="PUT", access_control_request_headers="authorization, x-a")
    headers = dict(start["headers"])
    assert start["status"] == 204
    assert headers[b"access-control-allow-origin"] == FRIEND
    assert headers[b"access-control-allow-methods"] == b"PUT"
    assert headers[b"access-control-allow-headers"] == b"authorization, x-a"


def test_other_requests_are_not_answered_for_the_app() -> None:
    assert preflight() == []
    assert preflight("POST", access_control_request_method="PUT") == []


def test_an_app_that_says_who_may_read_has_the_last_word() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    readable = Access(HTTPOptions(allowed_origins=("*",))).readable(send, ELSEWHERE)
    own = (b"Access-Control-Allow-Origin", b"null")
    for headers in ([], [own]):
        asyncio.run(readable({"type": "http.response.start", "status": 200, "headers": headers}))
    assert [each["headers"] for each in sent] == [[(b"access-control-allow-origin", ELSEWHERE)], [own]]
