"""The two authorities of a cluster, over the network of the simulation: a file, and a register among voters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from network import Machine
from voter import SimVoter

from skate._core.cluster import register
from skate._core.cluster.configuration import Changed, Configuration, LeaderID, Refused, VoterID, compare_and_set
from skate._core.cluster.register import Ballot, Ballotted, Proposal

if TYPE_CHECKING:
    from service import Service
    from world import World

Answer = Changed | Refused
AGAIN_S = 0.15
LOOK_S = 0.4


class Authority(Protocol):
    machines: list[Machine]

    def present(self) -> list[Configuration]:
        """For the checks: every configuration that is decided last or may still be."""

    def read(self, service: Service, then: Callable[[Configuration], None]) -> None: ...

    def change(
        self, service: Service, expected: Configuration, new: Configuration, then: Callable[[Answer], None]
    ) -> None: ...

    def look(self, service: Service) -> None: ...


class FileAuthority:
    """One record, with a lock around it. Whoever changes it tries until the answer is certain."""

    def __init__(self, world: World, first: Configuration) -> None:
        self.world = world
        self.value = first
        self.machines = [Machine(world.clock, "authority", self)]

    def present(self) -> list[Configuration]:
        return [self.value]

    def read(self, service: Service, then: Callable[[Configuration], None]) -> None:
        self.world.network.wire(service.host, self.machines[0]).request(lambda: self.value, then)

    def change(
        self, service: Service, expected: Configuration, new: Configuration, then: Callable[[Answer], None]
    ) -> None:
        is_certain = False

        def decide() -> Answer:
            answer = compare_and_set(self.value, expected, new)
            if isinstance(answer, Changed):
                self.value = answer.configuration
            return answer

        def answered(answer: Answer) -> None:
            nonlocal is_certain
            if not is_certain:
                is_certain = True
                then(answer)

        def attempt() -> None:
            if not is_certain:
                self.world.network.wire(service.host, self.machines[0]).request(decide, answered)
                service.host.after(AGAIN_S, attempt)

        attempt()

    def look(self, service: Service) -> None:
        """A leader looks now and then whether it still is one."""
        if service.chain is not None:
            self.read(service, service.told)
        service.host.after(LOOK_S, lambda: self.look(service))


class RegisterAuthority:
    def __init__(self, world: World, first: Configuration) -> None:
        self.world = world
        self.voters: dict[VoterID, Machine] = {}
        self._proposals = 0
        for voter, token in first.voters:
            state = SimVoter()
            state.admit(token, (1, ""), first)
            self.voters[voter] = Machine(world.clock, voter, state)
        self.machines = list(self.voters.values())

    def present(self) -> list[Configuration]:
        values = [machine.state.value for machine in self.machines if machine.state.value is not None]
        return [value for value in values if sum(other.epoch <= value.epoch for other in values) >= 2]

    def is_forgetful(self, voter: VoterID) -> bool:
        newest = max(self.present(), key=lambda value: value.epoch)
        return dict(newest.voters)[voter] != self.voters[voter].state.token

    def read(self, service: Service, then: Callable[[Configuration], None]) -> None:
        """Of any voter: perhaps an old value. Good enough to try a take-over with."""
        machine = self.world.random.choice(self.machines)

        def answered(value: Configuration | None) -> None:
            if value is not None:
                then(value)

        self.world.network.wire(service.host, machine).request(lambda: machine.state.value, answered)

    def change(
        self, service: Service, expected: Configuration, new: Configuration | None, then: Callable[[Answer], None]
    ) -> None:
        self._proposals += 1
        name = LeaderID(f"{service.me}.{self._proposals}")
        proposal = Proposal(name, expected, new, self.world.random.random)

        def carry_out(commands: list[register.Command]) -> None:
            for command in commands:
                match command:
                    case register.Prepare(voter, token, ballot):
                        self._ask(service, voter, token, ballot, None, lambda *a: carry_out(proposal.on_prepared(*a)))
                    case register.Accept(voter, token, ballot, value):
                        self._ask(service, voter, token, ballot, value, lambda *a: carry_out(proposal.on_accepted(*a)))
                    case register.Again(delay_s, attempt):
                        service.host.after(delay_s, lambda attempt=attempt: carry_out(proposal.retry(attempt)))
                    case _:
                        for voter in proposal.forgetful:
                            self._admit(service, voter, command.configuration)
                        then(command)

        carry_out(proposal.start())

    def _ask(
        self,
        service: Service,
        voter: VoterID,
        token: str,
        ballot: Ballot,
        value: Configuration | None,
        then: Callable[[VoterID, Ballot, Ballotted], None],
    ) -> None:
        state = self.voters[voter].state
        wire = self.world.network.wire(service.host, self.voters[voter])
        if value is None:
            wire.request(lambda: state.prepare(token, ballot), lambda answer: then(voter, ballot, answer))
        else:
            wire.request(lambda: state.accept(token, ballot, value), lambda answer: then(voter, ballot, answer))

    def _admit(self, service: Service, voter: VoterID, present: Configuration) -> None:
        """By the leader alone: a new token, and then, once, what is decided by now."""
        if service.chain is None or present.leader != service.me:
            return
        self._proposals += 1
        token = f"token {self._proposals}"
        name = LeaderID(f"{service.me}.{self._proposals}")
        new = present.with_voter(voter, token)
        proposal = Proposal(name, present, new, self.world.random.random)

        def install(ballot: Ballot, value: Configuration) -> None:
            machine = self.voters[voter]
            wire = self.world.network.wire(service.host, machine)
            wire.request(lambda: machine.state.admit(token, ballot, value), lambda _: None)

        def carry_out(commands: list[register.Command]) -> None:
            for command in commands:
                match command:
                    case register.Prepare(of, old, ballot):
                        self._ask(service, of, old, ballot, None, lambda *a: carry_out(proposal.on_prepared(*a)))
                    case register.Accept(of, old, ballot, value):
                        self._ask(service, of, old, ballot, value, lambda *a: carry_out(proposal.on_accepted(*a)))
                    case register.Again(delay_s, attempt):
                        service.host.after(delay_s, lambda attempt=attempt: carry_out(proposal.retry(attempt)))
                    case Changed(value):
                        install(proposal.ballot, value)
                        service.told(value)
                    case Refused(value):
                        service.told(value)

        carry_out(proposal.start())

    def look(self, service: Service) -> None:
        """A linearisable read, now and then: it finds voters without memory."""
        if service.chain is not None and service.chain.state is not service.chain.state.ENDED:
            self.change(service, service.chain.configuration, None, lambda answer: service.told(answer.configuration))
        service.host.after(LOOK_S, lambda: self.look(service))
