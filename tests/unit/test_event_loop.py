"""The event loop of daemons."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from skate._wire.loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.mark.parametrize("deadline", [1e9, float("inf")])
def test_a_deadline_may_be_as_late_as_one_likes(loop: EventLoop, deadline: float) -> None:
    reader, writer = os.pipe()
    called: list[int] = []
    loop.watch(reader, called.append)
    os.write(writer, b"x")
    loop.run_once(deadline)
    assert called
    os.close(reader)
    os.close(writer)


def test_what_happened_to_a_closed_descriptor_is_not_told_to_the_next_one_of_that_number(loop: EventLoop) -> None:
    """A driver was held to have ended because the descriptor that tells had the number of a dead worker's pipe."""
    pipes = [os.pipe() for _ in range(2)]
    new = os.pipe()
    called: list[str] = []

    def close_the_other(index: int) -> None:
        called.append("old")
        loop.unwatch(pipes[index][0])
        reader = pipes[1 - index][0]
        loop.unwatch(reader)
        os.dup2(new[0], reader)  # closes it; the number now means a pipe in which there is nothing
        loop.watch(reader, lambda _: called.append("new"))

    for index, (reader, writer) in enumerate(pipes):
        loop.watch(reader, lambda _, index=index: close_the_other(index))
        os.write(writer, b"x")
    loop.run_once(0)
    assert called == ["old"]
    os.write(new[1], b"x")
    loop.run_once(0)
    assert called == ["old", "new"]
    for fd in {fd for pipe in (*pipes, new) for fd in pipe}:
        os.close(fd)
