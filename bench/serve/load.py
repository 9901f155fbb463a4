"""The load of all HTTP rows, in a process of its own: the same program for every peer. Standard library alone.

It reads the name of a function and its arguments from its input, and prints the figures as JSON.
"""

from __future__ import annotations

import json
import pickle
import random
import select
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from http_client import Connection, Target, WrongAnswer
from websocket_client import CartPole, Socket

#: How many calls of one kind follow each other before it is the turn of the next kind.
BLOCK = 50
WARM_UP = 250
CONNECTIONS_MAX = 1000


def percentiles(seconds: list[float], scale: float = 1e6) -> dict[str, float]:
    """p50 and p99: in µs unless another scale is given."""
    ordered = sorted(seconds)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] * scale for p in (50, 99)}


def take_turns(calls: list[Callable[[], Any]], count: int) -> list[list[float]]:
    """The times of calls that follow each other. Several ones take turns, a block of calls each."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(min(count, WARM_UP)):
            call()
    while len(times[-1]) < count:
        for call, own in zip(calls, times):
            for _ in range(min(BLOCK, count - len(own))):
                began = time.perf_counter()
                call()
                own.append(time.perf_counter() - began)
    return times


def added(floor: list[float], found: list[float]) -> dict[str, float]:
    """What one kind of calls takes beyond another that it took turns with, in µs.

    p50 is the median difference of neighbouring blocks. The machine is slower for a while and then is not: neighbours
    have that in common, and two medians of all calls have not.
    """
    pairs = zip(_medians_of_blocks(floor), _medians_of_blocks(found))
    beyond = statistics.median(theirs - bare for bare, theirs in pairs) * 1e6
    return {"added p50": beyond, "added p99": percentiles(found)["p99"] - percentiles(floor)["p99"]}


def _medians_of_blocks(times: list[float]) -> list[float]:
    return [statistics.median(times[at : at + BLOCK]) for at in range(0, len(times), BLOCK)]


def latency(target: Target, bare: Target, count: int) -> dict[str, dict[str, float]]:
    """Requests one at a time on one connection to a target, and in turn with it to a bare server."""
    floor, found = take_turns([Connection(bare).ask, Connection(target).ask], count)
    return {"us": {**percentiles(found), **added(floor, found)}, "bare_us": percentiles(floor)}


def ask(target: Target, connections: int, count: int) -> dict[str, int]:
    """Requests on several connections, one at a time, without any figures."""
    for connection in [Connection(target) for _ in range(connections)]:
        for _ in range(count):
            connection.ask()
    return {"requests": connections * count}


def answer(target: Target) -> dict[str, Any]:
    """The body of one answer, as numbers of its bytes."""
    with Connection(target) as connection:
        return {"body": list(connection.ask())}


def closed(target: Target, width: int, seconds: float) -> dict[str, float]:
    """As many requests a second as clients get that each send the next request when they have an answer."""
    connections = [Connection(target) for _ in range(width)]
    poll = select.epoll()
    by_file = {connection.fileno(): connection for connection in connections}
    for connection in connections:
        poll.register(connection, select.EPOLLIN)
        connection.due = time.perf_counter()
        connection.send()
    began, times = time.perf_counter(), []
    warm = began + seconds / 4
    while (now := time.perf_counter()) < began + seconds:
        for file, _ in poll.poll(1):
            connection = by_file[file]
            if connection.receive() is not None:
                now = time.perf_counter()
                if connection.due >= warm:
                    times.append(now - connection.due)
                connection.due = now
                connection.send()
    return {"per_s": len(times) / (now - warm), **percentiles(times, 1e3)}


def poisson(target: Target, rate: float, seconds: float, seed: int = 1) -> dict[str, float]:
    """Requests that come at random times, whether or not earlier ones are answered.

    The time of a request begins when it was due: a server that is late makes those behind it late, too.
    """
    source = random.Random(seed)
    poll, by_file = select.epoll(), dict[int, Connection]()
    idle, queue = list[Connection](), deque[float]()
    times, lateness = list[float](), list[float]()
    began = time.perf_counter()
    due, end = began + source.expovariate(rate), began + seconds
    while due < end or queue or len(idle) < len(by_file):
        now = time.perf_counter()
        if now > end + 30:
            raise WrongAnswer(f"{len(by_file) - len(idle) + len(queue)} requests had no answer 30 s after the end")
        while due <= now and due < end:
            queue.append(due)
            due += source.expovariate(rate)
        while queue and (idle or len(by_file) < CONNECTIONS_MAX):
            if not idle:
                idle.append(Connection(target))
                by_file[idle[0].fileno()] = idle[0]
                poll.register(idle[0], select.EPOLLIN)
            connection = idle.pop()
            connection.due = queue.popleft()
            lateness.append(time.perf_counter() - connection.due)
            connection.send()
        wait = min(1.0, max(0.0, due - time.perf_counter())) if due < end else 0.1
        # epoll counts in milliseconds, which is more than what is measured here; select does not.
        if not select.select([poll.fileno()], [], [], wait)[0]:
            continue
        for file, _ in poll.poll(0):
            connection = by_file[file]
            if connection in idle:  # a server may close what it is not asked on
                idle.remove(connection)
                del by_file[file]
                connection.close()
            elif connection.receive() is not None:
                times.append(time.perf_counter() - connection.due)
                idle.append(connection)
    return {"rate": rate, "count": len(times), **percentiles(times, 1e3), "late": percentiles(lateness, 1e3)["p99"]}


def episodes(port: int, path: str, steps: int) -> dict[str, float]:
    """CartPole in a closed loop: the time from an observation to its action, and the mean length of episodes."""
    socket, game = Socket(port, path), CartPole(seed=1)
    times, lengths = list[float](), list[int]()
    for _ in range(min(steps, WARM_UP)):
        socket.act(game.state)
    while len(times) < steps:
        began = time.perf_counter()
        action = socket.act(game.state)
        times.append(time.perf_counter() - began)
        if game.step(action):
            lengths.append(game.steps)
            game.reset()
    socket.close()
    if lengths and statistics.mean(lengths) < CartPole.STEPS_MAX * 0.9:
        raise WrongAnswer(
            f"the pole falls after {statistics.mean(lengths):.0f} steps: these are not the policy's actions"
        )
    return {**percentiles(times), "episodes": len(lengths)}


if __name__ == "__main__":
    function, arguments = pickle.load(sys.stdin.buffer)
    rows = {row.__name__: row for row in (latency, ask, answer, closed, poisson, episodes)}
    print(json.dumps(rows[function](**arguments)))
