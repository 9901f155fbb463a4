"""Clusters with any store, and a node that is played: it speaks the protocol of nodes and has no processes.

A played node is a link, an outbox and a loop in this process. It takes every actor that it is asked for, says that it
lives, and when its owner drops it, that its process has ended. So a hundred thousand actors come and go in minutes, and
the control service does all that it would do for real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import processes
from skate import cluster_utils
from skate._control.config import ControlConfig, StoreConfig
from skate._control.storage.redis.connection.address import is_redis
from skate._core.ids import new_process_id, node_of
from skate._core.membership import REPORT_PERIOD_S
from skate._core.outbox import Outbox
from skate._core.placement import NodeView
from skate._core.task import ActorInfo, ActorSettings, Death, Job, Task
from skate._node import launch
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.gate import knock
from skate._wire.link import Link
from skate._wire.loop import EventLoop
from skate.cluster_utils import Cluster

HERE = Path(__file__).resolve().parent
#: Far more than any answer takes.
WITHIN_S = 60.0
#: How much of the resource FAR the played node has: more than anything asks for.
FAR, FAR_UNITS = "far", 10**13
#: What an actor is made of, in bytes: a small class, and its arguments.
CLASS_BYTES, ARGS_BYTES = 1000, 100
FN = b"bench-class-0001"


@contextmanager
def town(store: StoreConfig | None) -> Iterator[Cluster]:
    """A control service with that store, and no node yet. None: in memory."""

    def start(config: ControlConfig, *, log: int | None = None) -> tuple[subprocess.Popen[bytes], str, int]:
        config.store = store
        if store is None or not is_redis(store.address):
            return launch.start_control(config, log=log)
        process = subprocess.Popen(
            [sys.executable, str(HERE / "service.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        said = launch._tell(process, config)
        return process, said["host"], said["port"]

    with patch.object(cluster_utils, "start_control", start):
        made = Cluster()
    try:
        yield made
    finally:
        made.shutdown()


class PlayedNode:
    def __init__(self, made: Cluster) -> None:
        self._where, self._token = made._control_address, made._token.encode()
        self.loop = EventLoop()
        self.outbox: Outbox[Any] = Outbox()
        view = NodeView(id=b"", total={FAR: FAR_UNITS}, available={FAR: FAR_UNITS})
        self._member = cluster.Member(view, "127.0.0.1", 1, "played")
        self._cluster_id = ""
        self._is_in = False
        self._ends = False
        #: Processes that the service knows of: owners, and the workers that are actors.
        self._known: dict[bytes, Job] = {}
        self._actor_of: dict[bytes, bytes] = {}
        self._lives: dict[bytes, int] = {}
        #: Actors that it was asked for and finds no worker for, because it was told not to.
        self._looking: dict[bytes, None] = {}
        self.finds_workers = True
        self.requests = 0
        self.answers: dict[int, Any] = {}
        #: Actors whose process has ended.
        self.ended = 0
        #: What is said of objects.
        self.on_object: Callable[[Any], None] = lambda message: None
        self._link = self._new_link()
        sock, _, rest = knock(*self._where, self._token)
        self._link.adopt(sock, rest)
        self._link.connect(*self._where, self._token)
        self._link.send(cluster.Join(self._member, self._link.session))
        self.run_until(lambda: self._is_in, "to have joined")
        self._report()
        self.owner = self.process()
        self.pass_on(self.owner, wire.Define(FN, "Played", bytes(CLASS_BYTES)))

    # -- the link -----------------------------------------------------------------------------------------------------

    def _new_link(self) -> Link:
        link = Link(self.loop, self._on_message, self._on_lost, name="control")
        link.last()
        return link

    def _on_lost(self, link: Link, why: str) -> None:
        if link is self._link:
            self._join_again()

    def _join_again(self) -> None:
        """As a node does it: over another link, under the same id."""
        old, self._link = self._link, self._new_link()
        self._is_in = False
        old.close()
        self._link.send(cluster.Join(self._member, self._link.session, self._cluster_id))
        self._link.connect(*self._where, self._token)

    def _on_joined(self, message: cluster.Joined) -> None:
        is_back = bool(self._cluster_id)
        self._is_in, self._cluster_id = True, message.cluster_id
        self._member.view.id = message.node_id
        if is_back:
            held = [cluster.HeldProcess(id, 1, job) for id, job in self._known.items()]
            workers = [cluster.HeldWorker(id, 1, actor, self._lives[id]) for id, actor in self._actor_of.items()]
            self._link.send(cluster.Holding(held, workers, list(self._looking)))
            for process, number, done_to, kept in self.outbox.kept():
                self._link.send(cluster.FromProcess(process, kept, number, done_to))

    def _report(self) -> None:
        if self._is_in and self._link.is_connected:
            self._link.send(cluster.Report(self._member.view))
        self.loop.call_at(time.monotonic() + REPORT_PERIOD_S, self._report)

    def _on_message(self, link: Link, message: Any) -> None:
        if link is not self._link:
            return
        match message:
            case cluster.ToProcess(process, inner):
                self._on_told(process, inner)
            case cluster.PlaceActor(actor):
                self._on_place(actor)
            case cluster.UnplaceActor(actor):
                self._looking.pop(actor, None)
            case cluster.Done(done):
                for process, number in done:
                    if self.outbox.done(process, number) and process not in self._known:
                        self.outbox.forget(process)
            case cluster.KillProcess(process, _):
                self._end_process(process)
            case cluster.Joined():
                self._on_joined(message)
            case cluster.Anew():
                self._join_again()
            case cluster.End():
                self._ends = True
            case cluster.Located() | cluster.Tracked() | cluster.DropCopies() | cluster.Freed():
                self.on_object(message)

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return node_of(self._member.view.id)

    def process(self) -> bytes:
        id = new_process_id(self.number)
        self._known[id] = job = Job(b"jobb")
        self._link.send(cluster.Acquaint(id, 1, job))
        return id

    def tell(self, message: Any) -> None:
        self._link.send(message)

    def pass_on(self, process: bytes, message: Any, *, is_last: bool = False) -> None:
        request = getattr(message, "request", 0)
        number, done_to = self.outbox.say(process, message, 500, request=request, is_last=is_last)
        assert number, "the outbox is full"
        if self._is_in:
            self._link.send(cluster.FromProcess(process, message, number, done_to))

    def request(self, make: Callable[[int], Any]) -> int:
        """Ask for something; the number under which `answers` will have it."""
        self.requests += 1
        self.pass_on(self.owner, make(self.requests))
        return self.requests

    def _on_told(self, process: bytes, message: Any) -> None:
        match message:
            case wire.Answer(request, body):
                self.outbox.answered(process, request)
                self.answers[request] = body
            case wire.StartActor():
                self._lives[process] = message.life
                self.pass_on(process, wire.ActorStarted())
                self.pass_on(self.owner, wire.DropActor(message.create.actor))
            case wire.LeaveActor():
                self.pass_on(process, wire.ActorEnded(Death("exit", "it left.")))
                self._end_process(process)

    def _on_place(self, actor: bytes) -> None:
        if not self.finds_workers:
            self._looking[actor] = None
            return
        worker = self.process()
        self._actor_of[worker], self._lives[worker] = actor, 0
        self._link.send(cluster.ActorPlaced(actor, worker, 1))

    def _end_process(self, process: bytes) -> None:
        if self._known.pop(process, None) is not None:
            self._actor_of.pop(process, None)
            self._lives.pop(process, None)
            self.pass_on(process, wire.PeerGone(process, 1, 0, b""), is_last=True)
            self.ended += 1

    # -- what a program does ------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> int:
        return self.request(lambda request: wire.KeyValue(request, "put", "bench", key, value))

    def create_actor(self) -> tuple[int, bytes]:
        """The number of the request, and the actor."""
        actor = os.urandom(16)
        info = ActorInfo("Played", resources={FAR: 1.0})
        request = self.request(lambda request: wire.RegisterActor(request, actor, info))
        creation = Task(actor + b"\0\0\0\0", FN, bytes(ARGS_BYTES))
        self.pass_on(self.owner, wire.CreateActor(actor, creation, ActorSettings()))
        return request, actor

    def kill_actor(self, actor: bytes) -> None:
        self.pass_on(self.owner, wire.KillActor(actor, True, "the benchmark"))

    def run_until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {WITHIN_S:g} s for {what}")
            self.loop.run_once(min(deadline, time.monotonic() + 0.1))

    def wait_for(self, request: int) -> Any:
        self.run_until(lambda: request in self.answers, f"the answer to request {request}")
        return self.answers.pop(request)

    def many(self, count: int, window: int, begin: Callable[[int], int], on_done: Callable[[int], Any]) -> None:
        """`begin(n)` for each n, with so many requests under way; `on_done(n)` when n of them are answered."""
        under_way: list[int] = []
        done = 0
        for number in range(count):
            under_way.append(begin(number))
            if len(under_way) == window or number == count - 1:
                for request in under_way:
                    self.wait_for(request)
                done += len(under_way)
                under_way.clear()
                on_done(done)

    @contextmanager
    def goes_on(self) -> Iterator[None]:
        """Its loop is run by another thread until the end of the block."""
        over = threading.Event()

        def run() -> None:
            while not over.is_set():
                self.loop.run_once(time.monotonic() + 0.05)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self._link.close()
        self.loop.close()


# -- memory ------------------------------------------------------------------------------------------------------------


class Samples:
    """The memory of processes and the size of a folder, taken now and then while something else goes on."""

    def __init__(self, pids: dict[str, int], folder: Path | None, period_s: float) -> None:
        self._pids, self._folder = pids, folder
        self._period_s = period_s
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        #: How much of the work is done; the program that does it says so.
        self.done = 0
        #: Seconds, work done, and MB by name.
        self.taken: list[tuple[float, int, dict[str, float]]] = []

    def take(self) -> None:
        mb = {name: processes.pss_bytes([pid]) / 1e6 for name, pid in self._pids.items()}
        if self._folder is not None:
            mb["file"] = sum(path.stat().st_size for path in self._folder.iterdir()) / 1e6
        self.taken.append((round(time.monotonic() - self._began, 2), self.done, mb))

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            self.take()

    def __enter__(self) -> Samples:
        self.take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.take()

    def figures(self) -> dict[str, float]:
        """The size at the end, and how much of it has come since half of the work was done."""
        half = next(mb for _, done, mb in self.taken if done >= self.done / 2)
        last = self.taken[-1][2]
        found: dict[str, float] = {}
        for name, mb in last.items():
            found[f"{name}, MB at the end"] = mb
            found[f"{name}, MB grown since half"] = mb - half[name]
        return found

    def curve(self) -> list[tuple[float, int, dict[str, float]]]:
        """Two hundred points at most."""
        step = max(1, len(self.taken) // 200)
        return [
            (at, done, {name: round(mb, 2) for name, mb in taken.items()}) for at, done, taken in self.taken[::step]
        ]
