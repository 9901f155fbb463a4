"""The rows with more than one node. All nodes are on this machine: only the memory of the machine, its cores and the
loopback device are between them, and the CPUs of a node are a number that it was told.

Each row starts a cluster of its own, since that is part of what is measured or its stores have to have a certain size.
What bytes cost at least, `bare.py` shows in the same process and in turns with what is measured.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import processes
import tasks
from adapters import CLUSTER_ROWS
from bare import BareTransfer
from workloads import GIB, MB, MIB, ROWS, STRANGERS_CORES, Bench, Metric, now, row

REST_MOST_S = 60.0  # for processes to be neither started nor ended
SETTLE_S = 5.0  # for the stores to be empty again; after that a row goes on as it is


@contextmanager
def cluster(bench: Bench, nodes: int, *, cpus: int, store_bytes: int) -> Iterator[list[str]]:
    """A cluster that ends with the block; the ids of its nodes, beginning with the driver's. What is there of one that
    could not be started ends with this process."""
    ids = bench.adapter.start_cluster(nodes, cpus=cpus, store_bytes=store_bytes)
    try:
        yield ids
    finally:
        bench.adapter.stop_cluster()


def settle(bench: Bench) -> None:
    """Wait until the stores are empty: the next object then gets memory that was used before, whose pages are there."""
    end = now() + SETTLE_S
    while bench.adapter.stored_bytes() > MB and now() < end:
        time.sleep(0.01)


def rest(seconds: float) -> None:
    """Wait until no process has started or ended for so long: workers are started, or sent away, some time later."""
    end, until, known = now() + REST_MOST_S, now() + seconds, set[int]()
    while now() < min(until, end):
        time.sleep(0.1)
        there = set(processes.descendants(os.getpid()))
        if there != known:
            until, known = now() + seconds, there


# -- tasks and their data ----------------------------------------------------------------------------------------------

#: Size of an object and number of tasks. 100 KiB is the least that either runtime keeps in its store.
LOCALITY = {
    "locality_100kb": (100 << 10, 1_000),
    "locality_1mb": (1 * MIB, 1_000),
    "locality_10mb": (10 * MIB, 100),
    "locality_100mb": (100 * MIB, 20),
}
#: Room for the objects of all tasks at once.
LOCALITY_STORE_BYTES = 3 * GIB

_LOCALITY = (
    Metric("on p50", "ms", "lower"),
    Metric("on mean", "ms", "lower"),
    Metric("at data", "", "higher"),
    Metric("off p50", "ms", "lower"),
    Metric("off mean", "ms", "lower"),
)


def _locality(bench: Bench, row_name: str) -> dict[str, float]:
    size_bytes, count = LOCALITY[row_name]
    count = max(10, count // 10) if bench.quick else count
    adapter = bench.adapter
    with cluster(bench, 2, cpus=1, store_bytes=LOCALITY_STORE_BYTES) as (here, there):
        make = adapter.task_on(tasks.array_of, there)

        def latencies_s(read: Callable[[Any], Any], count: int) -> tuple[list[float], list[str]]:
            """Of tasks that read an object each, one after the other; and where they ran."""
            refs = [make(size_bytes) for _ in range(count)]
            adapter.wait_all(refs)
            times, places = [], []
            while refs:
                ref = refs.pop()
                begin = now()
                places.append(adapter.get(read(ref)))
                times.append(now() - begin)
            del ref
            settle(bench)
            return times, places

        with_data, with_driver = adapter.task(adapter.read_where), adapter.task_on(adapter.read_where, here)
        for read in (with_data, with_driver):
            latencies_s(read, 5)  # workers and connections are there, and so are the pages of both stores
        strangers = processes.Strangers()
        on, places = latencies_s(with_data, count)
        off, moved = latencies_s(with_driver, count)
        strangers_cores = round(strangers.cores(), 3)
    assert set(moved) == {here}
    return {
        "on p50": statistics.median(on) * 1e3,
        "on mean": statistics.fmean(on) * 1e3,
        "at data": places.count(there) / len(places),
        "off p50": statistics.median(off) * 1e3,
        "off mean": statistics.fmean(off) * 1e3,
        STRANGERS_CORES: strangers_cores,
    }


@row(*_LOCALITY, managed=False, limit_s=180)
def locality_100kb(bench: Bench) -> dict[str, float]:
    """Two nodes with one CPU each. 1,000 objects of 100 KiB lie on the second; tasks that read two bytes of one each
    are submitted at the first, one after the other: time from the call to the result. On: tasks run where the peer
    puts them, and "at data" is the part of them that it put beside their objects. Off: the same with 1,000 new objects
    and with tasks bound to the first node, so that every object is moved. Nothing runs in parallel."""
    return _locality(bench, "locality_100kb")


@row(*_LOCALITY, managed=False, limit_s=180)
def locality_1mb(bench: Bench) -> dict[str, float]:
    """As locality_100kb, with objects of 1 MiB."""
    return _locality(bench, "locality_1mb")


@row(*_LOCALITY, managed=False, limit_s=180)
def locality_10mb(bench: Bench) -> dict[str, float]:
    """As locality_100kb, with 100 tasks and objects of 10 MiB: all of them have to fit into the store."""
    return _locality(bench, "locality_10mb")


@row(*_LOCALITY, managed=False, limit_s=180)
def locality_100mb(bench: Bench) -> dict[str, float]:
    """As locality_100kb, with 20 tasks and objects of 100 MiB: all of them have to fit into the store."""
    return _locality(bench, "locality_100mb")


# -- more and more nodes -----------------------------------------------------------------------------------------------

NODE_TASKS = 10_000
NODE_CPUS = 2
NODE_STORE_BYTES = 16 * MIB
SYNC_TASKS = 500

_NODES = (
    Metric("joined", "s", "lower"),
    Metric("memory at first", "MB", "lower"),
    Metric("tasks/s", "1/s", "higher"),
    Metric("nodes used", "", "higher"),
    Metric("spread tasks/s", "1/s", "higher"),
    Metric("spread nodes used", "", "higher"),
    Metric("p50", "µs", "lower"),
    Metric("p99", "µs", "lower"),
    Metric("memory at last", "MB", "lower"),
)


def _nodes(bench: Bench, nodes: int) -> dict[str, float]:
    adapter = bench.adapter
    begin = now()
    with cluster(bench, nodes, cpus=NODE_CPUS, store_bytes=NODE_STORE_BYTES) as ids:
        joined_s = now() - begin
        strangers = processes.Strangers()
        rest(2)
        memory = _memory_of_a_node(bench)
        default = _over_all_nodes(bench, adapter.task(adapter.where))
        spread = _over_all_nodes(bench, adapter.task_spread(adapter.where))
        p50, p99 = _latency_elsewhere(bench, ids[1:])
        rest(2 if bench.quick else 8)
        memory_after = _memory_of_a_node(bench)
        strangers_cores = round(strangers.cores(), 3)
    return {
        "joined": joined_s,
        "memory at first": memory / MB,
        "tasks/s": default[0],
        "nodes used": default[1],
        "spread tasks/s": spread[0],
        "spread nodes used": spread[1],
        "p50": p50 * 1e6,
        "p99": p99 * 1e6,
        "memory at last": memory_after / MB,
        STRANGERS_CORES: strangers_cores,
    }


def _memory_of_a_node(bench: Bench) -> float:
    """Proportional set size of its processes, the mean over all nodes."""
    of_nodes = [
        processes.pss_bytes({pid for root in roots for pid in (root, *processes.descendants(root))})
        for roots in bench.adapter.node_processes()
    ]
    return statistics.fmean(of_nodes)


def _over_all_nodes(bench: Bench, submit: Callable[[], Any]) -> tuple[float, float]:
    """Tasks a second, and how many nodes ran some: medians."""
    rates, used = [], []
    for _ in range(2 if bench.quick else 6):
        begin = now()
        places = bench.adapter.get_all([submit() for _ in range(NODE_TASKS)])
        rates.append(NODE_TASKS / (now() - begin))
        used.append(len(set(places)))
    # The first time, nodes make each other's acquaintance.
    return statistics.median(rates[1:]), statistics.median(used[1:])


def _latency_elsewhere(bench: Bench, others: Sequence[str]) -> tuple[float, float]:
    """p50 and p99 of a task at a time on one of these nodes, chosen at random each time."""
    on = [bench.adapter.task_on(tasks.increment, node) for node in others]
    bench.adapter.get_all([submit(0) for submit in on])
    draw, times = random.Random(2018), []
    for i in range(SYNC_TASKS // 5 if bench.quick else SYNC_TASKS):
        submit = draw.choice(on)
        begin = now()
        value = bench.adapter.get(submit(i))
        times.append(now() - begin)
        assert value == i + 1
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


@row(*_NODES, managed=False, limit_s=180)
def nodes_2(bench: Bench) -> dict[str, float]:
    """Two nodes with two CPUs each (by name: the machine has what it has) and a store of 16 MiB, or the least that
    the peer takes. Joined: seconds from the beginning until the driver knows all nodes; Skate starts eight at a
    time. Memory: proportional set size of all processes of a node, the mean over the nodes. At first: after 2 s in
    which no process began or ended; a node may not have started a worker yet. At last: at the end of the row after
    8 such seconds, when every node has run tasks and its workers are idle. The control service, if it is a process
    of its own, and the driver are not counted. Tasks/s: 10,000 tasks that return the id of their node, submitted at
    once, and how many nodes ran some; then the same with the strategy SPREAD. Medians, without the first time. The
    nodes share the cores, so with more nodes no more tasks can run: what is measured is what scheduling over them
    costs. p50, p99: one task at a time, each bound to a node that is chosen at random among those that are not the
    driver's; every node has run one such task before."""
    return _nodes(bench, 2)


@row(*_NODES, managed=False, limit_s=180)
def nodes_4(bench: Bench) -> dict[str, float]:
    """As nodes_2, with 4 nodes."""
    return _nodes(bench, 4)


@row(*_NODES, managed=False, limit_s=180)
def nodes_16(bench: Bench) -> dict[str, float]:
    """As nodes_2, with 16 nodes."""
    return _nodes(bench, 16)


@row(*_NODES, managed=False, limit_s=300)
def nodes_64(bench: Bench) -> dict[str, float]:
    """As nodes_2, with 64 nodes."""
    return _nodes(bench, 64)


@row(*_NODES, managed=False, limit_s=420)
def nodes_100(bench: Bench) -> dict[str, float]:
    """As nodes_2, with 100 nodes."""
    return _nodes(bench, 100)


# -- bytes -------------------------------------------------------------------------------------------------------------


@row(
    Metric("get", "GiB/s", "higher"),
    Metric("sendfile", "GiB/s", "neither"),
    Metric("send", "GiB/s", "neither"),
    Metric("get/sendfile", "", "higher"),
    Metric("get/send", "", "higher"),
    managed=False,
    limit_s=240,
)
def transfer_1gib(bench: Bench) -> dict[str, float]:
    """Two nodes. A numpy array of 1 GiB was made on the second; the driver at the first gets it and reads two bytes.
    Beside it, in turns, two processes with a block of shared memory of 1 GiB each and one loopback connection: a bare
    loop of sendfile, and one of send. All pages are warm, since a first turn does not count. Medians."""
    adapter, size_bytes = bench.adapter, GIB
    with (
        BareTransfer(size_bytes) as bare,
        cluster(bench, 2, cpus=1, store_bytes=size_bytes + size_bytes // 2) as (_, there),
    ):
        make = adapter.task_on(tasks.array_of, there)

        def get_s() -> float:
            ref = make(size_bytes)
            adapter.wait_all([ref])
            begin = now()
            value = tasks.look_at(adapter.get(ref))
            elapsed = now() - begin
            assert value == 2
            del ref
            settle(bench)
            return elapsed

        strangers = processes.Strangers()
        seconds = [(get_s(), bare.sendfile(), bare.send()) for _ in range(3 if bench.quick else 8)]
        strangers_cores = round(strangers.cores(), 3)
    get, sendfile, send = (size_bytes / GIB / statistics.median(column) for column in zip(*seconds[1:], strict=True))
    return {
        "get": get,
        "sendfile": sendfile,
        "send": send,
        "get/sendfile": get / sendfile,
        "get/send": get / send,
        STRANGERS_CORES: strangers_cores,
    }


RECEIVERS = 8


@row(
    Metric("seconds", "s", "lower"),
    Metric("8 sendfile", "s", "neither"),
    Metric("8 send", "s", "neither"),
    Metric("of 8 sendfile", "×", "lower"),
    Metric("of 8 send", "×", "lower"),
    Metric("first sent", "copies", "lower"),
    managed=False,
    limit_s=300,
)
def broadcast_256mb(bench: Bench) -> dict[str, float]:
    """Nine nodes with one CPU and a store of 600 MB each. The driver puts a numpy array of 256 MB at the first and
    submits a task to each of the 8 others that reads two bytes of it: seconds until all 8 have answered. Beside it, in
    turns, eight bare transfers of 256 MB one after the other, as in transfer_1gib. First sent: the bytes that the
    processes of the first node handed to TCP meanwhile, by the kernel's count, in copies of the array; the largest of
    all turns. A first turn counts for nothing else, since it warms all pages. Medians."""
    import numpy as np

    adapter, size_bytes = bench.adapter, 256 * MB
    seconds: list[tuple[float, float, float]] = []
    copies: list[float] = []
    with (
        BareTransfer(size_bytes) as bare,
        cluster(bench, 1 + RECEIVERS, cpus=1, store_bytes=600 * MB) as (_, *others),
    ):
        array = np.ones(size_bytes, np.uint8)
        read = [adapter.task_on(tasks.look_at, node) for node in others]
        small = adapter.put(np.ones(MIB, np.uint8))
        adapter.get_all([submit(small) for submit in read])
        del small
        settle(bench)

        def sent_bytes() -> int:
            return sum(map(processes.tcp_sent_bytes, adapter.node_processes()[0]))

        def broadcast_s() -> float:
            ref = adapter.put(array)
            sent_before, begin = sent_bytes(), now()
            values = adapter.get_all([submit(ref) for submit in read])
            elapsed = now() - begin
            copies.append((sent_bytes() - sent_before) / size_bytes)
            assert values == [2] * RECEIVERS
            del ref
            settle(bench)
            return elapsed

        strangers = processes.Strangers()
        for _ in range(2 if bench.quick else 6):
            elapsed = broadcast_s()
            bare_s = [sum(way() for _ in range(RECEIVERS)) for way in (bare.sendfile, bare.send)]
            seconds.append((elapsed, bare_s[0], bare_s[1]))
        strangers_cores = round(strangers.cores(), 3)
    elapsed, sendfile, send = (statistics.median(column) for column in zip(*seconds[1:], strict=True))
    return {
        "seconds": elapsed,
        "8 sendfile": sendfile,
        "8 send": send,
        "of 8 sendfile": elapsed / sendfile,
        "of 8 send": elapsed / send,
        "first sent": max(copies),
        STRANGERS_CORES: strangers_cores,
    }


assert set(CLUSTER_ROWS) <= set(ROWS)
