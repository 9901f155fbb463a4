"""What goes wrong between an application and the process that forwards requests to it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

import skate
from serve_tunnels import (
    App,
    Far,
    Message,
    Run,
    Visit,
    calling,
    run,
    serving,
    until,
)
from skate.serve.tunnel import RemoteAppError, TunnelBroken
from skate.serve.tunnel_frames import FROM_SERVER, FrameDecoder, encode
from waiting import WITHIN_S, wait_for

pytestmark = pytest.mark.usefixtures("runtime")

__all__ = ["run"]  # a fixture


@pytest.mark.parametrize(
    ("path", "says", "started"),
    [
        ("/raise_early", "KeyError: 'early'", False),
        ("/raise_late", "KeyError: 'late'", True),
        ("/raise_at_once", "KeyError: 'at once'", False),
        ("/silent", "returned before its response was complete", False),
        ("/wrong", "'http.response.pathsend' are not forwarded", False),
    ],
)
def test_an_exception_of_the_application_is_raised_where_it_was_called(
    run: Run, path: str, says: str, started: bool
) -> None:
    async def main() -> None:
        async with serving(App()) as (_, _, client):
            visit = Visit(path)
            with pytest.raises(RemoteAppError, match=says):
                await visit.through(client)
            assert bool(visit.answers) == started

    run(main)


def test_a_response_that_failed_at_its_start_leaves_nothing_for_the_next_one(run: Run) -> None:
    async def main() -> None:
        async with serving(App()) as (server, _, _):
            sock = await asyncio.to_thread(server.address.connect)
            reader, writer = await asyncio.open_connection(sock=sock)
            decoder = FrameDecoder(FROM_SERVER)
            kinds: list[str] = []
            for path, last in (("/raise_at_once", "tunnel.error"), ("/echo", "http.response.body")):
                for message in (Visit(path).scope, {"type": "http.request", "body": b"", "more_body": False}):
                    writer.writelines(encode(message)[0])
                while last not in kinds:
                    data = await asyncio.wait_for(reader.read(1 << 16), WITHIN_S)
                    kinds += [message["type"] for message in decoder.feed(data)]
            writer.close()
            await writer.wait_closed()
            assert kinds == ["tunnel.error", "http.response.start", "http.response.body"]

    run(main)


@pytest.mark.parametrize(
    ("path", "sees"),
    [
        ("/listen", [{"type": "http.disconnect"}, "nothing can be sent"]),
        ("/watch", ["told again", "told"]),
    ],
)
def test_an_application_is_told_that_its_client_is_gone(run: Run, path: str, sees: list[Any]) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            visit = Visit(path, b"some", b"more")
            visiting = asyncio.ensure_future(visit.through(client))
            await until(lambda: app.running and visit.received == 2, "the application to run")
            visit.gone.set()
            await visiting
            await until(lambda: not app.running, "the application to end")
            assert app.seen == sees
            assert not visit.answers

    run(main)


@pytest.mark.parametrize("how", ["gone", "told", "cancelled"])
def test_an_application_that_goes_on_without_its_client_is_cancelled(run: Run, how: str) -> None:
    async def main() -> None:
        app = App()
        callbacks: list[Callable[[], None]] = []
        extensions = {"skate.disconnect": callbacks.append} if how == "told" else {}
        async with serving(app) as (_, _, client):
            visit = Visit("/hang", b"a", b"b", extensions=extensions)
            visiting = asyncio.ensure_future(visit.through(client))
            await until(lambda: app.running and visit.received == 2, "the application to run")
            if how == "cancelled":
                visiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await visiting
            else:
                await until(lambda: callbacks or how == "gone", "the callback to be registered")
                callbacks[0]() if how == "told" else visit.gone.set()
                await visiting
            await until(lambda: not app.running, "the application to end")
            assert app.seen == ["cancelled"]

    run(main)


def test_the_error_of_a_broken_tunnel_keeps_its_facts_when_it_is_pickled() -> None:
    broken = pickle.loads(pickle.dumps(TunnelBroken("it broke", started=True)))
    assert (str(broken), broken.started) == ("it broke", True)


def test_the_death_of_the_other_process_says_if_the_answer_had_started() -> None:
    async def main() -> None:
        for path, started in (("/flood", True), ("/hang", False)):
            far = Far.remote()
            address = await far.serve.remote()
            with calling(address) as client:
                visit = Visit(path)
                visiting = asyncio.ensure_future(visit.through(client))
                while not (visit.answers if started else await far.running.remote()):
                    await asyncio.sleep(0)
                visit.may_send.clear()
                os.kill(await far.pid.remote(), signal.SIGKILL)
                visit.may_send.set()
                with pytest.raises(TunnelBroken, match="ended in the middle") as broken:
                    await visiting
                assert broken.value.started == started
                with pytest.raises(TunnelBroken) as broken:
                    await Visit("/echo").through(client)
                assert not broken.value.started

    asyncio.run(main())


def test_an_idle_connection_that_has_ended_is_replaced(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (first, address, client), serving(app) as (second, _, _):
            await Visit("/echo").through(client)
            address.address = second.address
            first.close()
            await first.drain()
            assert (await Visit("/echo", b"a", b"b").through(client)).body == b"ab"
            assert address.connects == 2

    run(main)


@pytest.mark.parametrize(("method", "repeated"), [("GET", True), ("POST", False)])
def test_a_request_that_may_have_arrived_is_repeated_only_if_that_does_no_harm(
    run: Run, method: str, repeated: bool
) -> None:
    """The other process is one that ends when it reads its second request, and those after it answer again."""
    answer = b"".join(
        b"".join(encode(message)[0])
        for message in (
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.body", "body": b"answer"},
        )
    )

    async def answer_once(sock: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=sock)
        await reader.read(1000)
        writer.write(answer)
        await reader.read(1000)
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        loop, servers = asyncio.get_running_loop(), []

        class Fragile:
            def connect(self) -> socket.socket:
                ours, theirs = socket.socketpair()
                servers.append(asyncio.run_coroutine_threadsafe(answer_once(theirs), loop))
                return ours

        with calling(Fragile()) as client:
            assert (await Visit("/", method=method).through(client)).body == b"answer"
            if repeated:
                assert (await Visit("/", method=method).through(client)).body == b"answer"
            else:
                with pytest.raises(TunnelBroken) as broken:
                    await Visit("/", method=method).through(client)
                assert not broken.value.started
            assert len(servers) == 1 + repeated
        await asyncio.gather(*map(asyncio.wrap_future, servers))

    run(main)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\0\0\0\0\xc1", b"\xff" * 100_000])
def test_a_connection_with_bad_frames_is_closed_and_others_go_on(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with serving(App()) as (server, _, client):
            await Visit("/echo").through(client)
            with await asyncio.to_thread(server.address.connect) as sock:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(sock, data)
                try:
                    assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
                except ConnectionResetError:
                    pass  # the rest of the data was not read
            assert (await Visit("/echo", b"well").through(client)).body == b"well"

    run(main)


def test_a_server_that_drains_ends_what_runs_and_then_its_connections(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (server, _, client):
            idle, slow = Visit("/echo"), Visit("/echo", b"a", b"b")
            pieces: asyncio.Queue[Message] = asyncio.Queue()
            slowly = asyncio.ensure_future(client(slow.scope, pieces.get, slow.send))  # type: ignore[arg-type]
            pieces.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
            await idle.through(client)
            await until(lambda: slow.got == 1, "the first piece to come back")
            drained = asyncio.ensure_future(server.drain())
            await asyncio.sleep(0)
            with pytest.raises(TunnelBroken, match="cannot be reached"), calling(server.address) as late:
                await Visit("/echo").through(late)
            assert not drained.done()
            pieces.put_nowait({"type": "http.request", "body": b"b", "more_body": False})
            await slowly
            await drained
            assert slow.body == b"ab"

    run(main)


def test_nothing_stays_open_in_the_other_process() -> None:
    far = Far.remote()
    address = skate.get(far.serve.remote())
    before = skate.get(far.files.remote())

    async def main() -> None:
        with calling(address) as client:
            visits = [asyncio.ensure_future(Visit(path).through(client)) for path in ["/echo", "/hang"] * 10]
            await asyncio.gather(*visits[::2])
            for visiting in visits:
                visiting.cancel()

    asyncio.run(main())
    wait_for(lambda: skate.get(far.files.remote()) == before, WITHIN_S, "all connections to be closed")
