"""The register alone: proposers that compete all the time, voters that forget, links that are cut.

Whatever is reported as decided, as a change or with a refusal, must be one history: one value an epoch.
"""

from __future__ import annotations

import random
from typing import Any

from authorities import Answer, RegisterAuthority
from network import Clockwork, Machine, Network

from skate._core.cluster.chain import State
from skate._core.cluster.configuration import Configuration, LeaderID, MemberID, ShardChain, VoterID

RUN_S = 6.0
HEAL_S = 4.0
VOTERS = 3


class Proposer:
    """Takes over whenever it can: what `RegisterAuthority` needs of a service, and no more."""

    def __init__(self, world: RegisterWorld, name: str, known: Configuration) -> None:
        self.world = world
        self.me = LeaderID(name)
        self.host = Machine(world.clock, name)
        self.configuration = known
        self.state = State.RUNNING
        self.changes = 0
        self._propose()

    @property
    def chain(self) -> Proposer:
        return self

    def _propose(self) -> None:
        before = self.configuration
        service: Any = self
        self.world.authority.change(service, before, before.taken_over(self.me, ""), self._decided)

    def _decided(self, answer: Answer) -> None:
        self.told(answer.configuration)
        self.changes += 1
        self.host.after(self.world.random.uniform(0, 0.2), self._propose)

    def told(self, configuration: Configuration) -> None:
        self.world.decided(configuration)
        if configuration.epoch > self.configuration.epoch:
            self.configuration = configuration


class RegisterWorld:
    def __init__(self, seed: int) -> None:
        self.clock = Clockwork(seed)
        self.random: random.Random = self.clock.random
        self.network = Network(self.clock)
        self.history: dict[int, Configuration] = {}
        voters = tuple((VoterID(f"v{i}"), f"first token of v{i}") for i in range(VOTERS))
        first = Configuration("c", 0, LeaderID("nobody"), "", (ShardChain(0, (MemberID("r"),)),), voters)
        world: Any = self
        self.authority = RegisterAuthority(world, first)
        self.proposers = [Proposer(self, name, first) for name in "ABC"]
        self.is_healing = False

    def decided(self, value: Configuration) -> None:
        assert self.history.setdefault(value.epoch, value) == value, f"epoch {value.epoch} has two values"

    def run(self) -> None:
        self.clock.after(0.1, self._fault)
        self.clock.run_until(RUN_S)
        self.is_healing = True
        before = sum(proposer.changes for proposer in self.proposers)
        self.clock.run_until(RUN_S + HEAL_S)
        after = sum(proposer.changes for proposer in self.proposers)
        assert after > before, "nothing was decided after everything was healed"

    def _fault(self) -> None:
        if self.is_healing:
            return
        self.clock.after(self.random.uniform(0, 0.1), self._fault)
        machine = self.random.choice(self.authority.machines)
        if self.random.random() < 0.6:
            host = self.random.choice(self.proposers).host
            self.network.cut(host, machine)
            self.clock.after(self.random.uniform(0, 0.5), lambda: self.network.heal(host, machine))
        elif not any(
            not other.is_up or self.authority.is_forgetful(voter) for voter, other in self.authority.voters.items()
        ):
            machine.stop()
            machine.state.restart(self.random.choice(("all", "none")))
            self.network.server_stopped(machine)
            self.clock.after(self.random.uniform(0, 0.1), machine.start)
