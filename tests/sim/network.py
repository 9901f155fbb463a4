"""Time, machines and the connections between them: one heap of events, one source of chance.

    Host ──Wire: requests in order──▶ Server        a Wire that was closed may still deliver what was sent over it
         ◀──────answers in order─────

A machine that is frozen does nothing, and then everything that has come for it, in order. A link that is cut delivers
nothing; when it heals, connections over it go on, or break.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

Action = Callable[[], None]


class Clockwork:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._count = itertools.count()

    def after(self, delay_s: float, action: Action) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._count), action))

    def run_until(self, end: float, is_over: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= end and not is_over():
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Machine:
    """What runs, stops and freezes. `state` is the server or voter on it; a host has none."""

    def __init__(self, clock: Clockwork, name: str, state: Any = None, rate: float = 1.0) -> None:
        self.clock = clock
        self.name = name
        self.state = state
        self.is_up = True
        self.is_frozen = False
        #: Of its life: what was sent to an earlier one is lost.
        self.life = 0
        self.slow_s = 0.0
        self._rate = rate
        self._waiting: list[tuple[int, Action]] = []

    @property
    def now(self) -> float:
        """Its own clock: a little too fast or too slow, and begun at some other time."""
        return 1000.0 + self.clock.now * self._rate

    def after(self, delay_s: float, action: Action) -> None:
        life = self.life
        self.clock.after(delay_s / self._rate, lambda: self.do(life, action))

    def do(self, life: int, action: Action) -> None:
        if life != self.life or not self.is_up:
            return
        if self.is_frozen:
            self._waiting.append((life, action))
        else:
            action()

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for life, action in waiting:
            self.do(life, action)

    def stop(self) -> None:
        self.is_up = False
        self.is_frozen = False
        self.life += 1
        self._waiting = []

    def start(self) -> None:
        self.is_up = True


class Network:
    def __init__(self, clock: Clockwork) -> None:
        self.clock = clock
        self._cut: set[frozenset[str]] = set()
        self._held: dict[frozenset[str], list[Action]] = {}
        self._wires: dict[tuple[str, str], Wire] = {}

    def is_cut(self, a: Machine, b: Machine) -> bool:
        return frozenset((a.name, b.name)) in self._cut

    def has_cuts(self, machine: Machine) -> bool:
        return any(machine.name in pair for pair in self._cut)

    def cut(self, a: Machine, b: Machine) -> None:
        self._cut.add(frozenset((a.name, b.name)))

    def heal(self, a: Machine, b: Machine) -> None:
        pair = frozenset((a.name, b.name))
        self._cut.discard(pair)
        for action in self._held.pop(pair, []):
            action()

    def carry(self, a: Machine, b: Machine, delay_s: float, action: Action) -> None:
        """Now or, over a link that is cut, when it has healed."""

        def arrive() -> None:
            if self.is_cut(a, b):
                self._held.setdefault(frozenset((a.name, b.name)), []).append(action)
            else:
                action()

        self.clock.after(delay_s, arrive)

    def wire(self, host: Machine, server: Machine) -> Wire:
        found = self._wires.get((host.name, server.name))
        if found is None or found.is_closed or found.host_life != host.life:
            found = self._wires[host.name, server.name] = Wire(self, host, server)
        return found

    def close(self, host: Machine, server: Machine) -> None:
        if wire := self._wires.pop((host.name, server.name), None):
            wire.is_closed = True

    def server_stopped(self, server: Machine) -> None:
        for wire in list(self._wires.values()):
            if wire.server is server:
                wire.break_off()


class Wire:
    """One connection, from the first request to the reset."""

    def __init__(self, network: Network, host: Machine, server: Machine) -> None:
        self.network = network
        self.host = host
        self.server = server
        self.host_life = host.life
        self.server_life = server.life
        self.is_closed = False
        self.on_broken: Action = lambda: None
        self._sent_at = self._answered_at = 0.0

    def delay(self) -> float:
        chance = self.network.clock.random
        usual = chance.uniform(0.0002, 0.002)
        return usual + (chance.random() * (self.server.slow_s + self.host.slow_s))

    def request(self, run: Callable[[], Any], then: Callable[[Any], None]) -> None:
        clock = self.network.clock
        self._sent_at = max(self._sent_at, clock.now + self.delay())
        self.network.carry(self.host, self.server, self._sent_at - clock.now, lambda: self._arrived(run, then))

    def _arrived(self, run: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if not self.server.is_up or self.server.life != self.server_life:
            self.break_off()
        else:
            self.server.do(self.server_life, lambda: self._answer(run(), then))

    def _answer(self, answer: Any, then: Callable[[Any], None]) -> None:
        def handed_in() -> None:
            if not self.is_closed:
                self.host.do(self.host_life, lambda: None if self.is_closed else then(answer))

        clock = self.network.clock
        self._answered_at = max(self._answered_at, clock.now + self.delay())
        self.network.carry(self.server, self.host, self._answered_at - clock.now, handed_in)

    def break_off(self) -> None:
        """The host hears of it, if it has not closed the connection itself by then."""

        def heard() -> None:
            if not self.is_closed:
                self.is_closed = True
                self.on_broken()

        self.network.carry(self.server, self.host, self.delay(), lambda: self.host.do(self.host_life, heard))
