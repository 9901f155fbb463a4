"""Every row of the benchmark: a function over an adapter, and what its figures mean.

A row runs in a process of its own, in the environment of the peer under test, with nothing else of the benchmark
running. The docstring of a row says what it measures and what it does not; `run.py --list` prints them. This module
imports only the standard library at its top, because `run.py` reads the list of rows outside of every environment.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import processes
import tasks
from adapters import Adapter

STRANGERS_CORES = "strangers_cores"  # what a row that is not managed may return besides its metrics
MB, MIB, GIB = 10**6, 1 << 20, 1 << 30
now = time.perf_counter


@dataclass(frozen=True)
class Bench:
    """What a row works with."""

    peer: str
    adapter: Adapter
    cpus: int
    quick: bool  # fewer repetitions; never another workload
    baseline_pss_bytes: int  # of this process before it imported the peer


@dataclass(frozen=True)
class Metric:
    """One figure that a row reports."""

    name: str
    unit: str
    better: Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Row:
    name: str
    run: Callable[[Bench], dict[str, float]]
    metrics: tuple[Metric, ...]
    limit_s: float  # a peer that takes longer is killed, and its cell says so
    managed: bool  # the runtime is started and warm when the row begins
    floor: bool  # the floor of `floor.py` can run it too
    after: str  # a row with a tenth of the tasks: if that was too slow, this one is not tried

    @property
    def text(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


ROWS: dict[str, Row] = {}


def row(
    *metrics: Metric, limit_s: float = 90.0, managed: bool = True, floor: bool = False, after: str = ""
) -> Callable[[Callable[[Bench], dict[str, float]]], Callable[[Bench], dict[str, float]]]:
    def register(run: Callable[[Bench], dict[str, float]]) -> Callable[[Bench], dict[str, float]]:
        ROWS[run.__name__] = Row(run.__name__, run, metrics, limit_s, managed, floor, after)
        return run

    return register


def warm_up(bench: Bench) -> None:
    """Return once every worker has run a task. A peer that starts its workers late pays for that before the clock
    starts."""
    sleep = bench.adapter.task(tasks.sleep)
    seen: set[int] = set()
    for _ in range(50):
        seen.update(bench.adapter.get_all([sleep(0.02) for _ in range(2 * bench.cpus)]))
        if len(seen) >= bench.cpus:
            break
    for _ in range(50):
        bench.adapter.get(sleep(0.0))


def repeat(run: Callable[[], float], *, budget_s: float, most: int) -> float:
    """Run at least once and until the budget is used up; return the median of what the runs returned."""
    values: list[float] = []
    end = now() + budget_s
    while not values or (now() < end and len(values) < most):
        values.append(run())
    return statistics.median(values)


def rate(call: Callable[[], Any], *, seconds: float, block: int) -> float:
    """How many calls a second, over `seconds`, looking at the clock once in `block` calls."""
    call()
    count, begin = 0, now()
    while (elapsed := now() - begin) < seconds:
        for _ in range(block):
            call()
        count += block
    return count / elapsed


# -- start -----------------------------------------------------------------------------------------------------------


@row(Metric("seconds", "s", "lower"), managed=False)
def first_result(bench: Bench) -> dict[str, float]:
    """A whole small program (`first/with_<peer>.py`) in a fresh interpreter: wall time from starting the process
    until it has the result of one task. Files are in the page cache and byte code is compiled. Does not include
    shutting down."""
    program = Path(__file__).parent / "first" / f"with_{bench.peer}.py"

    def once() -> float:
        begin = now()
        with subprocess.Popen([sys.executable, program, str(bench.cpus)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == "ready":
                    elapsed = now() - begin
                    process.communicate()
                    return elapsed
        raise RuntimeError(f"the program ended with exit code {process.returncode} and without a result")

    once()
    return {"seconds": repeat(once, budget_s=1 if bench.quick else 6, most=5)}


# -- tasks -----------------------------------------------------------------------------------------------------------

#: The rows that differ only in the number of their tasks.
ASYNC_TASKS = {"async_1k": 1_000, "async_10k": 10_000, "async_100k": 100_000, "async_1m": 1_000_000}

_THROUGHPUT = (Metric("tasks/s", "1/s", "higher"), Metric("driver peak RSS", "MB", "lower"))


def _async_tasks(bench: Bench, row_name: str, *, budget_s: float, most: int) -> dict[str, float]:
    count, submit = ASYNC_TASKS[row_name], bench.adapter.task(tasks.noop)

    def once() -> float:
        begin = now()
        refs = [submit() for _ in range(count)]
        bench.adapter.get_all(refs)
        return count / (now() - begin)

    per_second = repeat(once, budget_s=budget_s, most=most)
    return {"tasks/s": per_second, "driver peak RSS": processes.peak_rss_bytes() / MB}


@row(*_THROUGHPUT, floor=True)
def async_1k(bench: Bench) -> dict[str, float]:
    """1,000 no-op tasks, all submitted from one driver, then one get of all. The workers are up and idle; a run
    repeats it for a while and takes the median. Says nothing about tasks that do work or carry data."""
    return _async_tasks(bench, "async_1k", budget_s=0.5 if bench.quick else 2, most=50)


@row(*_THROUGHPUT, floor=True)
def async_10k(bench: Bench) -> dict[str, float]:
    """As async_1k, with 10,000 tasks: the usual throughput figure."""
    return _async_tasks(bench, "async_10k", budget_s=0.5 if bench.quick else 3, most=100)


@row(*_THROUGHPUT, floor=True, limit_s=240, after="async_10k")
def async_100k(bench: Bench) -> dict[str, float]:
    """As async_1k, with 100,000 tasks in flight."""
    return _async_tasks(bench, "async_100k", budget_s=0.5 if bench.quick else 3, most=5)


@row(*_THROUGHPUT, limit_s=300, after="async_100k")
def async_1m(bench: Bench) -> dict[str, float]:
    """As async_1k, with 1,000,000 tasks queued and all their futures held, once. The peak of the driver's resident
    memory includes the interpreter, the library and the list of futures, not the other processes."""
    return _async_tasks(bench, "async_1m", budget_s=0, most=1)


@row(Metric("p50", "µs", "lower"), Metric("p99", "µs", "lower"), floor=True)
def sync_task(bench: Bench) -> dict[str, float]:
    """One task at a time with an integer as argument: submit, get, check, 2,000 times. Latency while both sides are
    awake, since one call follows the other at once; a call after a pause costs a few wake-ups more."""
    return _latency(bench, bench.adapter.task(tasks.increment))


def _latency(bench: Bench, increment: Callable[[int], Any]) -> dict[str, float]:
    get, times = bench.adapter.get, []
    for i in range(500 if bench.quick else 2_000):
        begin = now()
        value = get(increment(i))
        times.append(now() - begin)
        assert value == i + 1
    times.sort()
    return {"p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6}


@row(Metric("tasks/s", "1/s", "higher"))
def nested(bench: Bench) -> dict[str, float]:
    """One task submits 1,000 no-op tasks and waits for them; timed at the driver from submitting the outer task to its
    result. The inner tasks need a CPU that the waiting outer task has to give back."""
    parent = bench.adapter.parent()

    def once() -> float:
        begin = now()
        assert bench.adapter.get(parent(1_000)) == 1_000
        return 1_000 / (now() - begin)

    once()
    return {"tasks/s": repeat(once, budget_s=1 if bench.quick else 3, most=50)}


@row(Metric("seconds", "s", "lower"))
def tree_reduce(bench: Bench) -> dict[str, float]:
    """1,024 leaf tasks and 1,023 tasks that add two futures each, submitted at once; time until the sum is there."""
    leaf, add = bench.adapter.task(tasks.increment), bench.adapter.task(tasks.add)

    def once() -> float:
        begin = now()
        level = [leaf(i) for i in range(1_024)]
        while len(level) > 1:
            level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        assert bench.adapter.get(level[0]) == 1_024 * 1_025 // 2
        return now() - begin

    return {"seconds": repeat(once, budget_s=1 if bench.quick else 4, most=20)}


@row(Metric("seconds", "s", "lower"))
def wait_1k(bench: Bench) -> dict[str, float]:
    """1,000 no-op tasks, then 1,000 waits for any one of those that are left. Includes submitting them."""
    submit = bench.adapter.task(tasks.noop)

    def once() -> float:
        begin = now()
        rest = [submit() for _ in range(1_000)]
        while rest:
            rest = list(bench.adapter.wait_one(rest))
        return now() - begin

    return {"seconds": repeat(once, budget_s=1 if bench.quick else 4, most=20)}


@row(Metric("efficiency", "", "higher"))
def simulations(bench: Bench) -> dict[str, float]:
    """4,000 tasks that each use CPU for a time drawn from a lognormal distribution with a mean of 2 ms (sigma 1, the
    same sequence for every peer), submitted at once. Efficiency is the CPU time of the simulations over cores × wall
    time: what the peer's own processes take from the cores counts against it. On more cores than --cpus the peer gets
    its own work for free."""
    draw, sigma, mean_s = random.Random(2018), 1.0, 0.002
    times = [mean_s * draw.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(1_000 if bench.quick else 4_000)]
    submit = bench.adapter.task(tasks.spin)
    begin = now()
    bench.adapter.get_all([submit(seconds) for seconds in times])
    return {"efficiency": sum(times) / (bench.cpus * (now() - begin))}


# -- actors ----------------------------------------------------------------------------------------------------------

ACTOR_CALLS = 10_000  # in one go, in the rows that measure throughput

_CALLS = Metric("calls/s", "1/s", "higher")
_CALLS_BY_N = {n: Metric(f"calls/s n={n}", "1/s", "higher") for n in (2, 4)}


def _call_rate(bench: Bench, call_many: Callable[[int], None]) -> float:
    """How many calls a second, if `call_many` makes that many, all at once, and waits for their results."""

    def once() -> float:
        begin = now()
        call_many(ACTOR_CALLS)
        return ACTOR_CALLS / (now() - begin)

    call_many(ACTOR_CALLS // 10)  # every connection is open, and every process has seen the method
    return repeat(once, budget_s=0.5 if bench.quick else 3, most=100)


def _call_round(bench: Bench, calls: Sequence[Callable[[], Any]]) -> float:
    """How many calls a second, if the driver makes them all, going round `calls`."""

    def call_many(count: int) -> None:
        turns = count // len(calls)
        assert len(bench.adapter.get_all([call() for _ in range(turns) for call in calls])) == count

    return _call_rate(bench, call_many)


def _noop_of_new_actor(bench: Bench, cls: type = tasks.Actor, max_concurrency: int | None = None) -> Callable[[], Any]:
    """An actor that is up, as the callable that calls its no-op method."""
    noop = bench.adapter.method(bench.adapter.actor(cls, max_concurrency=max_concurrency)(), "noop")
    bench.adapter.get(noop())
    return noop


@row(_CALLS, limit_s=120)
def actor_async(bench: Bench) -> dict[str, float]:
    """One driver, one actor with its default options: 10,000 calls of a no-op method, then one get of all; repeated
    for a while, the median. The actor is up and idle at first. Nothing runs in parallel besides driver and actor."""
    return {"calls/s": _call_round(bench, [_noop_of_new_actor(bench)])}


@row(Metric("p50", "µs", "lower"), Metric("p99", "µs", "lower"))
def actor_sync(bench: Bench) -> dict[str, float]:
    """One call at a time of one actor with an integer as argument: call, get, check, 2,000 times. As in sync_task, both
    sides are awake."""
    increment = bench.adapter.method(bench.adapter.actor(tasks.Actor)(), "increment")
    for i in range(50):
        bench.adapter.get(increment(i))
    return _latency(bench, increment)


@row(*_CALLS_BY_N.values(), limit_s=240)
def actor_1_n(bench: Bench) -> dict[str, float]:
    """As actor_async, with the 10,000 calls of the driver going round n = 2 and then n = 4 actors: what one caller can
    send and receive. With fewer than n + 1 cores the actors compete with the driver."""
    return {
        metric.name: _call_round(bench, [_noop_of_new_actor(bench) for _ in range(n)])
        for n, metric in _CALLS_BY_N.items()
    }


@row(*_CALLS_BY_N.values(), limit_s=240)
def actor_n_n(bench: Bench) -> dict[str, float]:
    """n callers and n actors, n = 2 and then n = 4: each caller is an actor itself and has one actor that only it
    calls. The driver asks every caller to make 10,000 / n calls of a no-op method and to get all their results;
    calls/s counts the calls of all callers, timed at the driver from asking the first to the answer of the last. With
    fewer than 2 n cores this is what a machine full of busy actors does in total, not what a pair can do."""

    def n_to_n(n: int) -> float:
        make_actor = bench.adapter.actor(tasks.Actor)
        callers = [bench.adapter.caller(make_actor()) for _ in range(n)]

        def call_many(count: int) -> None:
            assert sum(bench.adapter.get_all([caller(count // n) for caller in callers])) == count

        return _call_rate(bench, call_many)

    return {metric.name: n_to_n(n) for n, metric in _CALLS_BY_N.items()}


@row(_CALLS, limit_s=120)
def actor_asyncio(bench: Bench) -> dict[str, float]:
    """As actor_async, with an actor whose no-op method is `async def`, and as many calls at a time as is usual for such
    an actor. The method awaits nothing."""
    return {"calls/s": _call_round(bench, [_noop_of_new_actor(bench, tasks.AsyncActor)])}


@row(_CALLS, limit_s=120)
def actor_threaded(bench: Bench) -> dict[str, float]:
    """As actor_async, with max_concurrency=4: a method may run in four threads at once. A no-op never does for long, so
    this is the cost of handing calls to threads."""
    return {"calls/s": _call_round(bench, [_noop_of_new_actor(bench, max_concurrency=4)])}


def _create_actors(bench: Bench, count: int) -> tuple[float, list[int], list[Any]]:
    """Seconds until `count` new actors have answered a call each; the ids of their processes; their handles."""
    make_actor = bench.adapter.actor(tasks.Actor)
    begin = now()
    actors = [make_actor() for _ in range(count)]
    pids = bench.adapter.get_all([bench.adapter.method(actor, "pid")() for actor in actors])
    seconds = now() - begin
    assert len(set(pids)) == count, "actors share processes"
    return seconds, pids, actors


@row(Metric("actors/s", "1/s", "higher"), Metric("memory each", "MB", "lower"), limit_s=180)
def actor_create(bench: Bench) -> dict[str, float]:
    """50 actors of a small class, all created at once, then one call of each; actors/s until the last answer. Repeated
    for a while after the actors before are gone, the median. Memory: the private memory (USS) of an actor's process
    right after its call, the largest of the 50; neither what processes share nor what the runtime itself needs."""
    memory: list[int] = []

    def once() -> float:
        seconds, pids, actors = _create_actors(bench, 50)
        memory.append(max(map(processes.uss_bytes, pids)))
        del actors  # the last handles, so the actors end
        processes.wait_until_gone(pids)
        return 50 / seconds

    per_second = repeat(once, budget_s=0.5 if bench.quick else 4, most=10)
    return {"actors/s": per_second, "memory each": statistics.median(memory) / MB}


@row(Metric("seconds", "s", "lower"), limit_s=180)
def actor_idle(bench: Bench) -> dict[str, float]:
    """1,000 actors of a small class are created and answer one call each while all of them are alive: seconds until the
    last answer, once. They do nothing else; so many need processes, descriptors and memory rather than cores."""
    seconds, _pids, _actors = _create_actors(bench, 1_000)
    return {"seconds": seconds}


# -- objects ---------------------------------------------------------------------------------------------------------


def _put_small(bench: Bench, size_bytes: int) -> dict[str, float]:
    value, put = bytes(size_bytes), bench.adapter.put
    return {"puts/s": rate(lambda: put(value), seconds=0.5 if bench.quick else 2, block=20)}


@row(Metric("puts/s", "1/s", "higher"))
def put_100b(bench: Bench) -> dict[str, float]:
    """Put 100 bytes, over and over, each future dropped at once."""
    return _put_small(bench, 100)


@row(Metric("puts/s", "1/s", "higher"))
def put_10kb(bench: Bench) -> dict[str, float]:
    """Put 10 KB of bytes, over and over, each future dropped at once."""
    return _put_small(bench, 10_000)


_PUT = (Metric("put", "GiB/s", "higher"), Metric("memcpy", "GiB/s", "neither"), Metric("put/memcpy", "", "higher"))


def _put_array(bench: Bench, size_bytes: int) -> dict[str, float]:
    """Alternate blocks of puts with blocks of copies into a shared mapping whose pages are all present.

    The copies go round a mapping of at least 256 MiB: its pages are warm, the processor's caches are not, which is
    how a store finds its memory unless it happens to reuse what it freed a moment ago.
    """
    import mmap

    import numpy as np

    array, put = np.ones(size_bytes, np.uint8), bench.adapter.put
    slots = max(1, 256 * MIB // size_bytes)
    mapping = np.frombuffer(mmap.mmap(-1, slots * size_bytes), np.uint8).reshape(slots, size_bytes)
    mapping[:] = 1
    per_block = max(1, 64 * MIB // size_bytes)
    puts, copies, slot = [], [], 0
    for turn in range(6 if bench.quick else 20):
        begin = now()
        for _ in range(per_block):
            ref = put(array)
            del ref
        middle = now()
        for _ in range(per_block):
            slot = (slot + 1) % slots
            mapping[slot] = array
        end = now()
        if turn >= 2:  # the first puts find pages that nobody has touched yet
            puts.append(per_block * size_bytes / GIB / (middle - begin))
            copies.append(per_block * size_bytes / GIB / (end - middle))
    put_rate, copy_rate = statistics.median(puts), statistics.median(copies)
    return {"put": put_rate, "memcpy": copy_rate, "put/memcpy": put_rate / copy_rate}


@row(*_PUT)
def put_1mb(bench: Bench) -> dict[str, float]:
    """Put a numpy array of 1 MB, over and over, each future dropped at once: steady state, the store's pages warm.
    Beside it, in the same process and in turns, a plain copy of the same array into a shared mapping with warm
    pages."""
    return _put_array(bench, 1 * MB)


@row(*_PUT)
def put_100mb(bench: Bench) -> dict[str, float]:
    """As put_1mb, with 100 MB."""
    return _put_array(bench, 100 * MB)


@row(*_PUT, limit_s=180)
def put_1gib(bench: Bench) -> dict[str, float]:
    """As put_1mb, with 1 GiB."""
    return _put_array(bench, GIB)


@row(Metric("gets/s", "1/s", "higher"))
def get_small(bench: Bench) -> dict[str, float]:
    """Get the same 100 bytes again and again, put before by the same process."""
    get, ref = bench.adapter.get, bench.adapter.put(bytes(100))
    return {"gets/s": rate(lambda: get(ref), seconds=0.5 if bench.quick else 2, block=20)}


@row(Metric("gets/s", "1/s", "higher"))
def get_1mb(bench: Bench) -> dict[str, float]:
    """Get the same numpy array of 1 MB again and again, put before by the same process. The array is not read."""
    import numpy as np

    get, ref = bench.adapter.get, bench.adapter.put(np.ones(MB, np.uint8))
    return {"gets/s": rate(lambda: get(ref), seconds=0.5 if bench.quick else 2, block=20)}


_PASS = (Metric("seconds", "s", "lower"), Metric("rate", "GiB/s", "higher"))


def _pass_array(bench: Bench, once: Callable[[], None]) -> dict[str, float]:
    def timed() -> float:
        begin = now()
        once()
        return now() - begin

    for _ in range(2 * bench.cpus):  # every worker has its array, and the memory of the store is warm
        once()
    seconds = repeat(timed, budget_s=1 if bench.quick else 4, most=20)
    return {"seconds": seconds, "rate": 100 * MB / GIB / seconds}


@row(*_PASS)
def pass_100mb(bench: Bench) -> dict[str, float]:
    """Call a task with a numpy array of 100 MB as an ordinary argument; time until its result. The task reads two
    bytes of the array, so a peer that maps it need not copy it out."""
    import numpy as np

    array, submit = np.ones(100 * MB, np.uint8), bench.adapter.task(tasks.look_at)

    def once() -> None:
        assert bench.adapter.get(submit(array)) == 2

    return _pass_array(bench, once)


@row(*_PASS)
def return_100mb(bench: Bench) -> dict[str, float]:
    """A task returns a numpy array of 100 MB that its worker already had; time from the call until the driver has the
    array and has read two bytes of it."""
    submit = bench.adapter.task(tasks.array_of)

    def once() -> None:
        assert tasks.look_at(bench.adapter.get(submit(100 * MB))) == 2

    return _pass_array(bench, once)


# -- trouble and rest ------------------------------------------------------------------------------------------------


@row(Metric("after kill", "s", "lower"), Metric("undisturbed", "s", "neither"), Metric("ratio", "", "lower"))
def recovery(bench: Bench) -> dict[str, float]:
    """100 tasks of 20 ms of CPU each. When the first 50 results are there, the worker that made the 50th is killed with
    signal 9; time from there until all 100 results are there, and its ratio to the same without a kill."""
    submit = bench.adapter.task(tasks.spin)

    def second_half(kill: bool) -> float:
        refs = [submit(0.02) for _ in range(100)]
        pid = bench.adapter.get_all(refs[:50])[-1]
        begin = now()
        if kill:
            os.kill(pid, signal.SIGKILL)
        bench.adapter.get_all(refs)
        return now() - begin

    undisturbed = second_half(kill=False)
    killed = second_half(kill=True)
    return {"after kill": killed, "undisturbed": undisturbed, "ratio": killed / undisturbed}


@row(
    Metric("memory", "MB", "lower"),
    Metric("processes", "", "lower"),
    Metric("threads", "", "lower"),
    Metric("CPU", "% of a core", "lower"),
)
def idle(bench: Bench) -> dict[str, float]:
    """After each worker has run a task and 5 s have passed. Memory: proportional set size of the driver and all
    processes below it, less that of the driver before it imported the library; so it counts the import. Processes and
    threads: those besides the driver and its main thread. CPU: of all of them with the driver, over 10 s in which
    nothing is asked."""
    time.sleep(1 if bench.quick else 5)
    driver, others = [os.getpid()], processes.descendants(os.getpid())
    memory = processes.pss_bytes(driver + others) - bench.baseline_pss_bytes
    threads = processes.thread_count(driver + others)
    # The driver is read last at first and first at last, so that the reading itself is not counted.
    begin, used = now(), -processes.cpu_seconds(others) - processes.cpu_seconds(driver)
    time.sleep(3 if bench.quick else 10)
    elapsed = now() - begin
    used += processes.cpu_seconds(driver) + processes.cpu_seconds(others)
    return {
        "memory": memory / MB,
        "processes": len(others),
        "threads": threads - 1,
        "CPU": 100 * used / elapsed,
    }
