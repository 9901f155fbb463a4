"""Methods of a deployment: coroutines on the loop, plain functions in threads, generators as streams."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from skate.serve.handler import Handler, handler_of
from skate.serve.threads import Threads


class Brain:
    def __init__(self) -> None:
        self.closed: list[str] = []

    @property
    def broken(self) -> int:
        raise RuntimeError("a property that fails")

    async def on_loop(self, value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    def in_thread(self, value: int) -> tuple[int, int]:
        return value, threading.get_ident()

    def gives_coroutine(self, value: int) -> Any:
        return self.on_loop(value)

    def plain_items(self) -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            self.closed.append("plain")

    async def async_items(self) -> AsyncIterator[int]:
        try:
            for n in range(3):
                yield n
        finally:
            self.closed.append("async")

    def exits(self) -> None:
        sys.exit(3)

    async def exits_on_loop(self) -> None:
        sys.exit(3)

    def exits_after_an_item(self) -> Iterator[int]:
        yield 1
        sys.exit(3)

    async def exits_after_an_item_on_loop(self) -> AsyncIterator[int]:
        yield 1
        sys.exit(3)

    def returns_items(self) -> Iterator[int]:
        return iter(range(3))


class Callable:
    async def __call__(self, value: int) -> int:
        return threading.get_ident()


def handler(name: str, servable: Any = None) -> Handler:
    return handler_of(servable or Brain(), name, Threads(2))


def test_coroutines_run_on_the_loop_and_plain_functions_in_threads() -> None:
    async def run() -> None:
        here = threading.get_ident()
        assert await handler("on_loop").call((1,), {}) == (1, here)
        value, thread = await handler("in_thread").call((), {"value": 2})
        assert (value, thread != here) == (2, True)
        assert await handler("gives_coroutine").call((3,), {}) == (3, here)
        assert await handler("__call__", Callable()).call((1,), {}) == here
        partial = Handler(functools.partial(Brain().on_loop, 5), "partial", Threads(1))
        assert await partial.call((), {}) == (5, here)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["exits", "exits_on_loop", "exits_after_an_item", "exits_after_an_item_on_loop"])
def test_code_that_exits_fails_its_request_and_does_not_end_the_replica(name: str) -> None:
    async def run() -> None:
        found = handler(name)
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)") as caught:
            if found.yields:
                async for item in found.stream((), {}):
                    assert item == 1
            else:
                await found.call((), {})
        assert isinstance(caught.value.__cause__, SystemExit)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["plain_items", "async_items", "returns_items"])
def test_items_are_streamed(name: str) -> None:
    async def run() -> list[int]:
        return [item async for item in handler(name).stream((), {})]

    assert asyncio.run(run()) == [0, 1, 2]


@pytest.mark.parametrize("name", ["plain_items", "async_items"])
def test_a_stream_whose_reader_leaves_is_closed(name: str) -> None:
    async def run() -> list[str]:
        brain = Brain()
        stream: Any = handler(name, brain).stream((), {})
        assert await anext(stream) == 0
        await stream.aclose()
        return brain.closed

    assert asyncio.run(run()) == [name.partition("_")[0]]


def test_results_and_streams_are_not_mistaken_for_each_other() -> None:
    async def run() -> None:
        with pytest.raises(TypeError, match=r"plain_items yields(.|\n)*stream=True"):
            await handler("plain_items").call((), {})
        with pytest.raises(TypeError, match=r"in_thread returned tuple(.|\n)*stream=True"):
            [item async for item in handler("in_thread").stream((1,), {})]

    asyncio.run(run())


def test_a_function_is_its_own_method() -> None:
    def double(value: int) -> int:
        return 2 * value

    found = handler("__call__", double)
    assert (asyncio.run(found.call((4,), {})), found.name) == (8, "double")


def test_a_method_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"Brain has no method 'act'; it has async_items, .*returns_items\."):
        handler("act")
    with pytest.raises(AttributeError, match="no method 'act', nor any other"):
        handler("act", lambda: 1)
