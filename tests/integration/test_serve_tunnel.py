"""Requests that are forwarded to an application in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

import skate
from serve_tunnels import (
    CHUNK,
    LARGE,
    UNDER_WAY,
    App,
    Far,
    Message,
    Run,
    Talk,
    Visit,
    calling,
    open_files,
    run,
    serving,
    until,
)
from skate.cluster_utils import Cluster
from skate.serve import tunnel_client
from skate.serve.tunnel import RemoteAppError
from skate.serve.tunnel_client import IDLE_MAX

pytestmark = pytest.mark.usefixtures("runtime")

__all__ = ["run"]  # a fixture


def test_a_large_body_is_streamed_both_ways_with_little_under_way() -> None:
    far = Far.remote()
    address = skate.get(far.serve.remote())

    async def main() -> None:
        pieces = [bytes([number % 256]) * CHUNK for number in range(LARGE // CHUNK)]
        visit = Visit("/echo", *pieces)
        most = 0

        async def send(message: Message) -> None:
            nonlocal most
            await visit.send(message)
            most = max(most, visit.received * CHUNK - visit.got)

        with calling(address) as client:
            await client(visit.scope, visit.receive, send)
        assert visit.body == b"".join(pieces)
        assert most < 2 * UNDER_WAY
        assert visit.answers[0] == {
            "type": "http.response.start",
            "status": 201,
            "headers": [(b"pid", str(await far.pid.remote()).encode())],
        }

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_application_may_be_on_another_machine(tls: bool, fresh_runtime: None) -> None:
    skate.shutdown()
    with Cluster(tls=tls) as cluster:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1, resources={"b": 1})
        skate.init(address=cluster.address)
        far = Far.options(resources={"b": 1}).remote()
        address = skate.get(far.serve.remote())

        async def main() -> None:
            with calling(address) as client:
                for _ in range(3):
                    visit = await Visit("/echo", b"one", b"x" * 3_000_000).through(client)
                    assert visit.body == b"one" + b"x" * 3_000_000
                talk = Talk()
                talking = talk.through(client)
                await talk.hears.get()
                assert await talk.say(bytes=b"far") == {"type": "websocket.send", "bytes": b"far"}
                ended = far.end.remote()
                assert (await talk.say(text="bye"))["code"] == 1012
                await talking
                await ended

        asyncio.run(main())
        skate.shutdown()


def test_the_application_sees_the_scope_of_the_client(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            visit = Visit(
                "/describe",
                raw_path=b"/describe",
                query_string=b"a=1",
                headers=[(b"host", b"here")],
                client=("10.0.0.1", 5),
                state={"database": object()},
                extensions={"x": {}},
            )
            await visit.through(client)
        (scope,) = app.seen
        assert scope.pop("asgi")["version"] == "3.0"
        assert scope.pop("server") is None
        assert list(scope.pop("extensions")) == ["skate.disconnect"]
        assert scope == {key: value for key, value in visit.scope.items() if key not in ("state", "extensions")}

    run(main)


def test_one_connection_serves_one_exchange_after_the_other(run: Run) -> None:
    async def main() -> None:
        async with serving(App()) as (_, address, client):
            for number in range(50):
                assert (await Visit("/echo", b"%d" % number).through(client)).body == b"%d" % number
            with pytest.raises(RemoteAppError):
                await Visit("/raise_early").through(client)
            assert (await Visit("/echo", b"again").through(client)).body == b"again"
            assert address.connects == 1

    run(main)


def test_fifty_exchanges_run_at_once_and_few_connections_are_kept(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, address, client):
            await Visit("/echo").through(client)
            # Both ends of each connection are here.
            others = open_files() - 2
            for connects in (50, 50 + 50 - IDLE_MAX):
                visits = [Visit("/echo", b"%d " % number, b"end") for number in range(50)]
                for visit in visits:
                    visit.may_send.clear()
                done = asyncio.gather(*(visit.through(client) for visit in visits))
                connected = partial(lambda wanted: app.running == 0 and address.connects == wanted, connects)
                await until(connected, "all to be answered")
                for visit in visits:
                    visit.may_send.set()
                await done
                assert [visit.body for visit in visits] == [b"%d end" % number for number in range(50)]
                await until(lambda: open_files() == others + 2 * IDLE_MAX, "the rest to be closed")

    run(main)


def test_connections_that_stay_idle_are_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_client, "IDLE_S", 0.01)

    async def main() -> None:
        async with serving(App()) as (_, address, client):
            for connects in (1, 2):
                await Visit("/echo").through(client)
                connected = open_files()
                await until(lambda: open_files() == connected - 2, "both ends to be closed")  # noqa: B023
                assert address.connects == connects

    run(main)


def test_a_client_that_reads_slowly_lets_the_application_wait(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            visit = Visit("/flood")
            visit.may_send.clear()
            visiting = asyncio.ensure_future(visit.through(client))
            await settled(lambda: app.sent)
            assert 0 < app.sent < UNDER_WAY
            visit.may_send.set()
            assert (await visiting).got == app.sent == LARGE // CHUNK * CHUNK

    run(main)


def test_an_application_that_reads_nothing_lets_the_client_wait(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            visit = Visit("/hang", *[b"x" * CHUNK] * (LARGE // CHUNK))
            visiting = asyncio.ensure_future(visit.through(client))
            await settled(lambda: visit.received)
            assert 0 < visit.received * CHUNK < UNDER_WAY
            visiting.cancel()

    run(main)


async def settled(count: Callable[[], int]) -> None:
    """Wait until a number that only this loop changes stays the same for many of its turns."""
    still, before = 0, 0
    while still < 200:
        await asyncio.sleep(0)
        still, before = (still + 1, before) if before and count() == before else (0, count())


def test_an_answer_before_the_request_was_read_is_complete_and_its_connection_is_not_used_again(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, address, client):
            visit = await Visit("/refuse", *[b"x" * CHUNK] * (LARGE // CHUNK)).through(client)
            assert (visit.answers[0]["status"], visit.body) == (413, b"too much")
            assert visit.received * CHUNK < UNDER_WAY
            assert (await Visit("/echo", b"next").through(client)).body == b"next"
            assert address.connects == 2
            assert app.seen == [{"type": "http.disconnect"}]

    run(main)
