"""Where actors live, or are about to: what the one who places them knows before any node reports it.

Problem:   an actor lives long, so a wrong choice of its node is paid for long. A report is a fraction of a second old:
           it counts tasks that have ended, and does not count the actors that were placed since.
Owns:      for each actor that has a node, which, what it holds there, and whether it is to be spread.
Knows not: messages, time, and what an actor is otherwise.
Invariant: `on[node]` is the sum over the actors of that node, and is there only if there are any.
"""

from __future__ import annotations

import msgspec

from skate._core.placement import Residents
from skate._core.resources import Amounts, is_cpu


class Home(msgspec.Struct, frozen=True):
    node: bytes
    holds: Amounts
    spread: bool

    @property
    def without_cpu(self) -> bool:
        return not any(map(is_cpu, self.holds))


class Homes:
    def __init__(self) -> None:
        self._homes: dict[bytes, Home] = {}
        #: Actors by node.
        self._actors: dict[bytes, set[bytes]] = {}
        #: By node: for `placement.choose`.
        self.on: dict[bytes, Residents] = {}

    def move_in(self, actor: bytes, home: Home) -> None:
        self.move_out(actor)
        self._homes[actor] = home
        self._actors.setdefault(home.node, set()).add(actor)
        self._count(home, 1)

    def move_out(self, actor: bytes) -> None:
        home = self._homes.pop(actor, None)
        if home is None:
            return
        self._count(home, -1)
        actors = self._actors[home.node]
        actors.discard(actor)
        if not actors:
            del self._actors[home.node], self.on[home.node]

    def node_died(self, node: bytes) -> None:
        for actor in list(self._actors.get(node, ())):
            self.move_out(actor)

    def _count(self, home: Home, sign: int) -> None:
        residents = self.on.setdefault(home.node, Residents())
        residents.spread += sign * home.spread
        residents.without_cpu += sign * home.without_cpu
        for name, amount in home.holds.items():
            residents.held[name] = residents.held.get(name, 0) + sign * amount

    def validate(self) -> None:
        assert set(self.on) == set(self._actors) == {home.node for home in self._homes.values()}
        for node, residents in self.on.items():
            homes = [home for home in self._homes.values() if home.node == node]
            assert residents.spread == sum(home.spread for home in homes)
            assert residents.without_cpu == sum(home.without_cpu for home in homes)
            for name, amount in residents.held.items():
                assert amount == sum(home.holds.get(name, 0) for home in homes)
