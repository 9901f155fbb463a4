"""Load by the handles of deployments. Skate and Ray Serve have the same names, so this is one program for both."""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import models
import numpy as np
import tools
from load import added, percentiles, take_turns

Array = np.ndarray[Any, Any]


def ok(remote: Callable[[], Any]) -> Callable[[], None]:
    """A call that waits for its answer, and looks whether it is right."""

    def call() -> None:
        assert remote().result() == "ok"

    return call


def noop(call: Callable[[], None], count: int) -> dict[str, Any]:
    """The row `handle`."""
    return tools.flat({"us": percentiles(take_turns([call], count)[0])}, "us")


def composed(inner: Any, outer: Any, count: int) -> dict[str, Any]:
    """The row `composed`: a deployment that calls another one, beside that other one alone."""
    alone, both = take_turns([ok(inner.remote), ok(outer.remote)], count)
    return tools.flat({"us": {"added p50": added(alone, both)["added p50"], "p50": percentiles(both)["p50"]}}, "us")


def states_per_s(remote: Callable[[Array], Any], given: list[Array], width: int, seconds: float) -> float:
    """States a second of calls that get these states in turn, with `width` of them in flight."""
    began, done, at = time.perf_counter(), 0, 0
    warm = began + min(1.0, seconds / 2)
    end = warm + seconds
    flying = deque(remote(given[i % len(given)]) for i in range(width))
    while (now := time.perf_counter()) < end:
        flying.popleft().result()
        done += now >= warm
        flying.append(remote(given[at % len(given)]))
        at += 1
    for each in flying:
        each.result()
    return done * (len(given[0]) if given[0].ndim > 1 else 1) / (now - warm)


def of_batches(
    deploy: Callable[[dict[str, Any]], Any], loads: dict[str, Any], states: int, widths: dict[str, int], seconds: float
) -> dict[str, Any]:
    """The row `batches`: many states in each call. deploy: serves a model, and gives a handle to it."""
    found = {}
    for name, one in loads.items():
        given = models.states(states, one["bytes"])
        handle = deploy(one["model"])
        tools.check(np.asarray(handle.whole.remote(given).result()), one["model"], given)
        for suffix, width in widths.items():
            found[name + suffix] = states_per_s(handle.whole.remote, [given], width, seconds)
    return {"states_per_s": found}


def of_singles(
    deploy: Callable[[dict[str, Any]], Any], loads: dict[str, Any], width: int, seconds: float
) -> dict[str, Any]:
    """The row `one_by_one`: one state in each call, put together to batches by the peer."""
    found = {}
    for name, one in loads.items():
        given = models.states(256, one["bytes"])
        handle = deploy(one["model"])
        answers = [handle.act.remote(state) for state in given]
        tools.check(np.array([answer.result() for answer in answers], np.float32), one["model"], given)
        found[name] = states_per_s(handle.act.remote, list(given), width, seconds)
    return {"states_per_s": found}


# -- open loop ---------------------------------------------------------------------------------------------------------


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run it in a loop whose timers are exact to the microsecond: epoll counts in milliseconds, select does not.

    Python's collector of garbage rests meanwhile: it would stop the load for 20 ms now and then, and that would count
    as the time of an answer.
    """
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
            return runner.run(coroutine)
    finally:
        gc.enable()


async def closed(remote: Callable[[Array], Any], given: Array, width: int, seconds: float) -> dict[str, float]:
    """As many answers a second as callers get that each call again when they have one."""
    times: list[float] = []
    began = time.perf_counter()
    warm, end = began + seconds / 4, began + seconds

    async def caller(place: int) -> None:
        while (sent := time.perf_counter()) < end:
            await remote(given[place])
            if sent >= warm:
                times.append(time.perf_counter() - sent)

    await asyncio.gather(*(caller(place % len(given)) for place in range(width)))
    return {"per_s": len(times) / (time.perf_counter() - warm), **percentiles(times, 1e3)}


async def poisson(
    remote: Callable[[Array], Any], given: Array, rate: float, seconds: float, seed: int = 1
) -> dict[str, float]:
    """Calls that come at random times, whether or not earlier ones are answered; each begins when it was due."""
    source, loop = random.Random(seed), asyncio.get_running_loop()
    times, lateness, calls = list[float](), list[float](), set[asyncio.Task[None]]()

    async def call(due: float, state: Array) -> None:
        lateness.append(loop.time() - due)
        await remote(state)
        times.append(loop.time() - due)

    sent, due = 0, loop.time()
    end = due + seconds
    while (due := due + source.expovariate(rate)) < end:
        while (early := due - loop.time()) > 0:
            await asyncio.sleep(early)
        sent += 1
        one = loop.create_task(call(due, given[sent % len(given)]))
        calls.add(one)
        one.add_done_callback(calls.discard)
    await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert len(times) == sent, "a call failed"
    return {"rate": rate, "count": len(times), **percentiles(times, 1e3), "late": percentiles(lateness, 1e3)["p99"]}


def open_loop(
    remote: Callable[[Array], Any], size_bytes: int, shares: list[int], low_rate: float, seconds: float, width: int
) -> dict[str, Any]:
    """The row `open_loop` by handle."""
    given = models.states(256, size_bytes)
    return tools.open_loop(
        lambda: run(closed(remote, given, width, seconds)),
        lambda rate: run(poisson(remote, given, rate, seconds)),
        shares,
        low_rate,
    )
