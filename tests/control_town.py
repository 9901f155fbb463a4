"""A control service on an event loop in the thread of the test, and peers that say to it what they are told."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from skate._control.service import ControlService
from skate._core.placement import NodeView
from skate._core.task import Job
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.channel import Channel, ChannelClosed
from skate._wire.loop import EventLoop

#: Far more than anything here takes.
WITHIN_S = 5.0


class Peer:
    """The other end of a link of the control service: it sees what it is sent, and the end."""

    def __init__(self, town: Town) -> None:
        self._town = town
        sock, theirs = socket.socketpair()
        for each in (sock, theirs):
            each.setblocking(False)
        self._buffer = bytearray(1 << 20)
        self.channel = Channel(sock, decode=cluster.decode)
        self.heard: list[Any] = []
        self.is_cut = False
        self.link = town.service.new_link()
        self.link.adopt(theirs)
        town.loop.watch_channel(self.channel, self._on_readable)

    def _on_readable(self) -> None:
        try:
            self.heard += self.channel.receive(self._buffer)
        except ChannelClosed:
            self._town.loop.unwatch(self.channel.fileno())
            self.channel.close()
            self.is_cut = True

    def say(self, message: Any) -> None:
        self.channel.send(message)
        self._town.settle()

    def ask(self) -> Any:
        """What the service says of its nodes."""
        self.heard.clear()
        self.say(cluster.Ask("nodes"))
        self._town.run_until(lambda: any(isinstance(each, cluster.Reply) for each in self.heard), "a reply")
        return next(each.body for each in self.heard if isinstance(each, cluster.Reply))

    def join(self) -> bytes:
        """Become a node; its id."""
        view = NodeView(id=b"", total={"CPU": 10_000}, available={"CPU": 10_000})
        self.say(cluster.Join(cluster.Member(view, "127.0.0.1", 1, "n"), b"session"))
        self._town.run_until(lambda: any(isinstance(each, cluster.Joined) for each in self.heard), "to have joined")
        return next(each.node_id for each in self.heard if isinstance(each, cluster.Joined))


class Process:
    """A process of a node, which asks the service through it."""

    def __init__(self, town: Town) -> None:
        self._town, self._node = town, town.peer()
        self.id = self._node.join()[:8] + b"process1"
        self._requests = 0
        self._node.say(cluster.Acquaint(self.id, 1, Job()))

    def key_value(self, what: str, key: bytes, value: bytes = b"", *, overwrite: bool = True) -> int:
        """Say it, and return the number of the request."""
        self._requests += 1
        message = wire.KeyValue(self._requests, what, "n", key, value, overwrite)
        self._node.say(cluster.FromProcess(self.id, message))
        return self._requests

    def answers(self) -> dict[int, Any]:
        """What has come, by request."""
        inner = [each.message for each in self._node.heard if isinstance(each, cluster.ToProcess)]
        return {each.request: each.body for each in inner if isinstance(each, wire.Answer)}

    def answer(self, request: int) -> Any:
        self._town.run_until(lambda: request in self.answers(), f"the answer to request {request}")
        return self.answers()[request]


class Town:
    def __init__(self, storage: Any = None) -> None:
        self.loop = EventLoop()
        self.ends: list[str] = []
        self.service = ControlService(self.loop, self.ends.append, storage)
        self.peers: list[Peer] = []

    def peer(self) -> Peer:
        self.peers.append(Peer(self))
        return self.peers[-1]

    def run_until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {WITHIN_S:g} s for {what}"
            self.loop.run_once(deadline)

    def settle(self) -> None:
        for _ in range(4):
            self.loop.run_once(time.monotonic())

    def close(self) -> None:
        for peer in self.peers:
            peer.channel.close()
            peer.link.close()
        self.loop.close()
