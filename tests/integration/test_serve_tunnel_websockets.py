"""Websockets that are forwarded to an application in another process."""

from __future__ import annotations

import pytest

from serve_tunnels import (
    App,
    Run,
    Talk,
    Visit,
    run,
    serving,
    until,
)

pytestmark = pytest.mark.usefixtures("runtime")

__all__ = ["run"]  # a fixture


def test_messages_of_a_websocket_pass_both_ways_and_its_connection_is_used_again(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, address, client):
            for _ in range(2):
                talk = Talk()
                talking = talk.through(client)
                accepted = {"type": "websocket.accept", "subprotocol": "raw", "headers": [(b"a", b"1")]}
                assert await talk.hears.get() == accepted
                for content in ({"text": "é"}, {"text": ""}, {"bytes": b"\0"}, {"bytes": b"\1" * 2_000_000}):
                    assert await talk.say(**content) == {"type": "websocket.send", **content}
                assert await talk.say(text="bye") == {"type": "websocket.close", "code": 1012, "reason": "restart"}
                await talking
            assert app.seen == [{"type": "websocket.connect"}] * 2
            assert address.connects == 1

    run(main)


def test_long_messages_of_several_tasks_arrive_whole(run: Run) -> None:
    async def main() -> None:
        async with serving(App()) as (_, _, client):
            talk = Talk("/choir")
            await talk.through(client)
            accepted, *messages, closed = [talk.hears.get_nowait() for _ in range(talk.hears.qsize())]
            assert (accepted["type"], closed["type"]) == ("websocket.accept", "websocket.close")
            assert sorted(message["bytes"] for message in messages) == [bytes([n]) * 1_000_000 for n in range(8)]

    run(main)


@pytest.mark.parametrize("code", [1000, 1011, 1012])
def test_the_application_learns_how_a_websocket_was_closed(run: Run, code: int) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, address, client):
            talk = Talk()
            talking = talk.through(client)
            await talk.hears.get()
            closed = {"type": "websocket.disconnect", "code": code, "reason": "why"}
            talk.says.put_nowait(closed)
            await talking
            assert app.seen == [{"type": "websocket.connect"}, closed]
            await Visit("/echo").through(client)
            assert address.connects == 1

    run(main)


def test_a_websocket_whose_client_breaks_off_ends_with_1006(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            talk = Talk()
            talking = talk.through(client)
            await talk.hears.get()
            talking.cancel()
            await until(lambda: not app.running, "the application to end")
            assert app.seen[1:] == [{"type": "websocket.disconnect", "code": 1006, "reason": ""}]

    run(main)


def test_an_application_that_does_not_hear_the_end_of_its_websocket_is_cancelled(run: Run) -> None:
    async def main() -> None:
        app = App()
        async with serving(app) as (_, _, client):
            talk = Talk("/hang")
            talking = talk.through(client)
            await until(lambda: app.running, "the application to run")
            talk.says.put_nowait({"type": "websocket.disconnect", "code": 1001, "reason": ""})
            await talking
            assert app.seen == ["cancelled"]

    run(main)
