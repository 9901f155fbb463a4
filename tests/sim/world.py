"""A cluster's control store in one thread: servers, voters, two control services, clients, and everything that fails.

    World(seed).run()      the same seed, the same history, to the last digit

Real: Chain, Proposal, the leases. Played: the servers' scripts (`redis_member`), voters, network, clients.

The first RUN_S seconds clients work while machines crash, freeze and lose data, links are cut, and standbys take over
when they should and when they should not. Then everything is healed, and after a while the checks are made:

- no acknowledged batch is missing on any member, or has become another batch
- every operation on every key fits into one order (`linearizable`), last reads included
- there is one leader, its members agree, and it owes no client an answer
- nobody was accused of having lost data who had not

What may fail at once is bounded by the promise: of the members that the authority names, one is left that is there and
has everything (`may_lose_data`), and a majority of the voters.
"""

from __future__ import annotations

from collections.abc import Callable

from authorities import Authority, FileAuthority, RegisterAuthority
from linearizable import Operation, is_linearizable
from network import Clockwork, Machine, Network
from redis_member import SimRedis
from service import SILENCE_S, Service

from skate._core.cluster.chain import Standing, State
from skate._core.cluster.chain_messages import Join, Reply
from skate._core.cluster.configuration import Configuration, LeaderID, MemberID, ShardChain, VoterID

RUN_S = 4.0
HEAL_S = 15.0
CLUSTER = "cluster"
KEYS = tuple("abcdefgh")
HOSTS = ("A", "B")
#: The checker of histories takes longer with every operation that is under way at once.
HURRY = 8
OPERATIONS_MAX = 24 * len(KEYS)

#: Worlds without a list, half of them, draw their faults from all; the others have what is dangerous together.
PROFILES: dict[str, tuple[str, ...]] = {
    "any": (),
    "many": (),
    "few": (),
    "voters": ("voter", "voter", "cut a voter", "cut a voter", "take over", "crash a host"),
    "lease": ("slow a host", "freeze a host"),
    "rejoin": ("restart a server", "freeze a host", "freeze a server", "take over"),
}


class Violation(AssertionError):
    """The promise was broken."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = Clockwork(seed)
        self.random = self.clock.random
        self.network = Network(self.clock)
        self.cluster = CLUSTER
        self.failures: list[str] = []
        self.operations: list[Operation] = []
        #: Every batch that any leader has acknowledged, by its number.
        self.ledger: dict[int, bytes] = {}
        #: Servers that lost data since they became members.
        self.losers: set[MemberID] = set()
        self.is_healing = False
        self._lives = 0
        self._values = 0
        self._healthy_since: dict[str, float] = {}

        members_count = self.random.choice((2, 2, 3, 3, 3))
        self.members_min = self.random.choice((1, 1, 1, 2))
        self.window = self.random.choice((1, 2, 8))
        names = [MemberID(f"r{i}") for i in range(1, members_count + 2)]
        self.servers = {name: Machine(self.clock, name, SimRedis(name)) for name in names}
        members = tuple(names[:members_count])
        for name in members:
            self.servers[name].state.found(CLUSTER, 0, members)
        voters = tuple((VoterID(f"v{i}"), f"first token of v{i}") for i in range(3))
        first = Configuration(CLUSTER, 0, LeaderID("nobody"), "", (ShardChain(0, members),), voters)
        self.authority: Authority
        self.profile = self.random.choice(list(PROFILES))
        if self.profile != "voters" and self.random.random() < 0.5:
            self.authority = FileAuthority(self, first)
        else:
            self.authority = RegisterAuthority(self, first)
        self.hosts = {name: Machine(self.clock, name, rate=self.random.uniform(0.99, 1.01)) for name in HOSTS}
        self.services: dict[str, Service] = {}
        for name in HOSTS:
            self.clock.after(self.random.uniform(0, 0.2), lambda name=name: self.begin(name))
        #: Which faults this world has, and the mean time between two of them.
        self.faults = list(PROFILES[self.profile])
        if not self.faults:
            self.faults = self.random.sample(list(self.all_faults()), k=self.random.randint(2, len(self.all_faults())))
        self.fault_period_s = self.random.choice((0.05, 0.1) if self.profile == "voters" else (0.1, 0.2, 0.5))
        self.request_period_s = self.random.choice((0.02, 0.05, 0.1))
        #: Whether a new leader lets all servers join that are not members.
        self.takes_all = self.profile == "rejoin" or self.random.random() < 0.5
        self.burst_max = self.random.choice((1, 1, 6))

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.clock.after(0.3, self._client)
        self.clock.after(0.5, self._fault)
        self.clock.after(0.05, self._save)
        self.clock.run_until(RUN_S, self._has_failed)
        self.heal()
        self.clock.run_until(RUN_S + 0.5, self._has_failed)
        self.clock.run_until(RUN_S + HEAL_S, lambda: self._has_failed() or self.is_calm())
        if not self.failures and not self.is_calm():
            self.fail(f"not calm {HEAL_S} s after everything was healed: {self.unrest()}")
        if not self.failures:
            self._last_reads()
        if not self.failures:
            self.check()
        if self.failures:
            raise Violation(f"seed {self.seed}: {'; '.join(self.failures)}")

    def _has_failed(self) -> bool:
        return bool(self.failures)

    def fail(self, reason: str) -> None:
        self.failures.append(f"at {self.clock.now:.4f}: {reason}")

    def begin(self, host: str) -> None:
        """A new process on the host: a leader id of its own."""
        machine = self.hosts[host]
        machine.start()
        self._lives += 1
        self.services[host] = Service(self, machine, LeaderID(f"{host}{self._lives}"))
        self.authority.look(self.services[host])

    def end(self, service: Service) -> None:
        """The process ends, and another one is started after a while."""
        host = service.host
        if self.services.get(host.name) is service:
            del self.services[host.name]
            host.stop()
            self.clock.after(self.random.uniform(0.05, 0.5), lambda: self.begin(host.name))

    def leaders(self) -> list[Service]:
        return [service for service in self.services.values() if service.is_open]

    # -- clients -------------------------------------------------------------------------------------------------------

    def _client(self) -> None:
        if self.is_healing:
            return
        self.clock.after(self.random.uniform(0, 2 * self.request_period_s), self._client)
        for _ in range(self.random.randint(1, self.burst_max)):
            self._request()

    def _request(self) -> None:
        """To any service that answers, be it the leader or not."""
        open_services = [service for service in self.leaders() if not service.host.is_frozen]
        if self.is_healing or not open_services:
            return
        service = self.random.choice(open_services)
        keys = self.random.sample(KEYS, k=self.random.choice((1, 1, 2, 3)))
        if self.random.random() < 0.4:
            operations = [self._operation("read", key) for key in keys]
        else:
            kinds = ("put", "cas", "cas", "append", "delete")
            operations = [self._operation(self.random.choice(kinds), key, service) for key in keys]
        if len(self.operations) + len(operations) > OPERATIONS_MAX:
            return
        self.operations += operations
        service.perform(operations)

    def _operation(self, kind: str, key: str, service: Service | None = None) -> Operation:
        self._values += 1
        arguments: tuple[object, ...] = ()
        if service is not None:
            present = service.rows.get(key)
            new = f"{self._values}."
            if kind == "put":
                arguments = (new,)
            elif kind == "cas":
                arguments = (self.random.choice((present, present, None)), new)
            elif kind == "append":
                arguments = (self.random.choice((len(present or ""), 0)), new)
        return Operation(kind, key, arguments, self.clock.now)

    def acknowledged(self, service: Service, seq: int) -> None:
        entry = service.encoded.pop(seq)
        if self.ledger.setdefault(seq, entry) != entry:
            self.fail(f"batch {seq} was acknowledged twice, with different content")

    # -- members -------------------------------------------------------------------------------------------------------

    def replicate(self, server: SimRedis, epoch: int, source: MemberID) -> Reply:
        reply = server.replicate(CLUSTER, epoch, source)
        if server.source is not None:
            self.clock.after(self.random.uniform(0.005, 0.1), lambda: self._follow(server, source))
        return reply

    def _follow(self, server: SimRedis, source: MemberID) -> None:
        """What replication brings, every few milliseconds."""
        if server.source != source:
            return
        self.clock.after(self.random.uniform(0.0005, 0.004), lambda: self._follow(server, source))
        replica, other = self.servers[server.name], self.servers[source]
        runs = all(machine.is_up and not machine.is_frozen for machine in (replica, other))
        if runs and not self.network.is_cut(replica, other) and other.state.source is None:
            server.follow(other.state)

    def removed(self, service: Service, member: MemberID, is_lost: bool) -> None:
        if is_lost and member not in self.losers and self.is_present(service):
            self.fail(f"{service.me} removed {member} because of lost data, and it has lost none")
        self.losers.discard(member)

    def joined(self, member: MemberID) -> None:
        self.losers.discard(member)

    def is_present(self, service: Service) -> bool:
        return all(configuration.leader == service.me for configuration in self.authority.present())

    def members_present(self) -> list[tuple[MemberID, ...]]:
        return [configuration.shards[0].members for configuration in self.authority.present()]

    def has_everything(self, member: MemberID) -> bool:
        history = self.servers[member].state.data.history
        last = max(self.ledger, default=0)
        return len(history) >= last and all(history[seq - 1] == batch for seq, batch in self.ledger.items())

    def is_healthy(self, member: MemberID) -> bool:
        machine = self.servers[member]
        is_well = machine.is_up and not machine.is_frozen and not machine.slow_s and not self.network.has_cuts(machine)
        since = self._healthy_since.setdefault(member, 0.0)
        return is_well and self.clock.now - since > 2 * SILENCE_S

    def may_lose_data(self, member: MemberID) -> bool:
        """Whether a member is left that is there, has everything, and that nobody is about to remove."""
        doubted = {
            name
            for service in self.services.values()
            if service.chain is not None and service.chain.state is not State.ENDED
            for name, link in service.chain.links.items()
            if link.standing is Standing.FAILED or service.chain.state is State.CHANGING
        }
        return all(
            any(
                other != member
                and other not in doubted
                and other not in self.losers
                and self.is_healthy(other)
                and self.has_everything(other)
                for other in members
            )
            for members in self.members_present()
        )

    def is_guard(self, member: MemberID) -> bool:
        """A member lost its data and is still one: whoever has them all must not fail as well."""
        return any(
            member in members and any(loser in members and not self.has_everything(loser) for loser in self.losers)
            for members in self.members_present()
        )

    # -- faults --------------------------------------------------------------------------------------------------------

    def all_faults(self) -> dict[str, Callable[[], None]]:
        return {
            "restart a server": self._restart_server,
            "lose data": self._lose_data,
            "freeze a server": self._freeze_server,
            "cut a link": self._cut_link,
            "slow": lambda: self._slow(self.random.choice([*self.servers.values(), *self.hosts.values()])),
            "slow a host": lambda: self._slow(self.random.choice(list(self.hosts.values()))),
            "reset connections": self._reset_connections,
            "crash a host": self._crash_host,
            "freeze a host": self._freeze_host,
            "take over": self._take_over,
            "join a spare": self._join_spare,
            "voter": self._fail_voter,
            "cut a voter": self._cut_voter,
        }

    def _fault(self) -> None:
        if self.is_healing:
            return
        self.clock.after(self.random.uniform(0, 2 * self.fault_period_s), self._fault)
        self.all_faults()[self.random.choice(self.faults)]()

    def _save(self) -> None:
        """Every server saves now and then: what a restart with old data will find."""
        if self.is_healing:
            return
        self.clock.after(self.random.uniform(0.02, 0.2), self._save)
        machine = self.random.choice(list(self.servers.values()))
        if machine.is_up and not machine.is_frozen:
            machine.state.save()

    def _any_server(self) -> Machine | None:
        machine = self.random.choice(list(self.servers.values()))
        name = MemberID(machine.name)
        return None if self.is_guard(name) or not machine.is_up else machine

    def _restart_server(self) -> None:
        if machine := self._any_server():
            self._stop_server(machine, "all")

    def _lose_data(self) -> None:
        machine = self._any_server()
        if machine is not None and self.may_lose_data(MemberID(machine.name)):
            self.losers.add(MemberID(machine.name))
            self._stop_server(machine, self.random.choice(("old", "none")))

    def _stop_server(self, machine: Machine, found: str) -> None:
        machine.stop()
        machine.state.restart(found)
        self.network.server_stopped(machine)
        down_s = self.random.choice((0.001, 0.1, 1.0)) * self.random.random()
        self.clock.after(down_s, lambda: self._start_server(machine))

    def _start_server(self, machine: Machine) -> None:
        machine.start()
        self._healthy_since[machine.name] = self.clock.now

    def _freeze_server(self) -> None:
        if machine := self._any_server():
            machine.freeze()
            self.clock.after(self.random.choice((0.05, 0.5, 1.0)) * self.random.random(), lambda: self._thaw(machine))

    def _thaw(self, machine: Machine) -> None:
        self._healthy_since[machine.name] = self.clock.now
        if machine.is_frozen:
            machine.thaw()

    def _cut_voter(self) -> None:
        self._cut_for_a_while(
            self.random.choice(self.authority.machines), self.random.choice(list(self.hosts.values()))
        )

    def _cut_link(self) -> None:
        pool = [*self.servers.values(), *self.authority.machines]
        a = self.random.choice(pool)
        b = self.random.choice([*self.hosts.values(), *self.servers.values()])
        if a is b or any(MemberID(m.name) in self.servers and self.is_guard(MemberID(m.name)) for m in (a, b)):
            return
        self._cut_for_a_while(a, b)

    def _cut_for_a_while(self, a: Machine, b: Machine) -> None:
        self.network.cut(a, b)

        def heal() -> None:
            self._healthy_since[a.name] = self._healthy_since[b.name] = self.clock.now
            if self.random.random() < 0.5:
                self._break(a, b)
            self.network.heal(a, b)

        self.clock.after(self.random.choice((0.1, 0.5, 1.0)) * self.random.random(), heal)

    def _break(self, a: Machine, b: Machine) -> None:
        for host, server in ((a, b), (b, a)):
            if host.name in self.hosts:
                self.network.wire(host, server).break_off()

    def _reset_connections(self) -> None:
        machine = self.random.choice([*self.servers.values(), *self.hosts.values()])
        for other in [*self.servers.values(), *self.hosts.values()]:
            if (machine.name in self.hosts) != (other.name in self.hosts):
                self._break(machine, other)

    def _slow(self, machine: Machine) -> None:
        if machine.name in self.servers and self.is_guard(MemberID(machine.name)):
            return
        machine.slow_s = self.random.choice((0.005, 0.03, 0.1))

        def usual() -> None:
            machine.slow_s = 0.0
            self._healthy_since[machine.name] = self.clock.now

        self.clock.after(self.random.uniform(0.1, 1.0), usual)

    def _crash_host(self) -> None:
        if self.services:
            self.end(self.random.choice(list(self.services.values())))

    def _freeze_host(self) -> None:
        host = self.random.choice(list(self.hosts.values()))
        if host.is_up and not host.is_frozen:
            host.freeze()
            delay_s = self.random.choice((0.1, 0.5, 1.0, 2.0)) * self.random.uniform(0.4, 1.0)
            self.clock.after(delay_s, lambda: self._thaw_host(host))

    def _thaw_host(self, host: Machine) -> None:
        """It may not know that another one leads: now clients hurry."""
        if host.is_frozen:
            host.thaw()
            for _ in range(HURRY):
                self.clock.after(self.random.uniform(0, 0.01), self._request)

    def _take_over(self) -> None:
        """Much too early: the leader is there."""
        for service in self.services.values():
            if service.chain is None and not service.host.is_frozen:
                service.take_over()

    def _join_spare(self) -> None:
        name = self.random.choice(list(self.servers))
        for service in self.leaders():
            if not service.host.is_frozen:
                service.handle(Join(name))

    def _fail_voter(self) -> None:
        """One of three at a time."""
        authority = self.authority
        if not isinstance(authority, RegisterAuthority):
            return
        if any(not machine.is_up or authority.is_forgetful(voter) for voter, machine in authority.voters.items()):
            return
        machine = self.random.choice(authority.machines)
        machine.stop()
        machine.state.restart(self.random.choice(("all", "none", "none")))
        self.network.server_stopped(machine)
        self.clock.after(self.random.uniform(0.001, 0.3), machine.start)

    # -- the end -------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.is_healing = True
        machines = [*self.servers.values(), *self.authority.machines]
        for machine in [*machines, *self.hosts.values()]:
            machine.slow_s = 0.0
            if machine.is_frozen:
                machine.thaw()
        for a in machines:
            for b in [*self.hosts.values(), *self.servers.values()]:
                if self.network.is_cut(a, b):
                    self.network.heal(a, b)
        for machine in machines:
            if not machine.is_up:
                machine.start()

    def unrest(self) -> str:
        """What is missing to be calm."""
        present = [service for service in self.leaders() if self.is_present(service)]
        if len(present) != 1 or len(self.leaders()) != 1:
            return f"{len(self.leaders())} services lead, the authority knows {len(present)} of them"
        service = present[0]
        assert service.chain is not None
        if service.chain.state is not State.RUNNING:
            return f"the chain is {service.chain.state.value}"
        if service.requests:
            return f"clients of the leader wait for {len(service.requests)} answers"
        return ""

    def is_calm(self) -> bool:
        return not self.unrest()

    def _last_reads(self) -> None:
        """Of whoever leads: a take-over may have been under way."""
        operations = [self._operation("read", key) for key in KEYS]
        self.operations += operations
        done: list[Service] = []

        def ask() -> None:
            if not done:
                self.clock.after(1.0, ask)
                for service in self.leaders():
                    service.submit([], lambda _, service=service: done.append(service))

        ask()
        self.clock.run_until(self.clock.now + HEAL_S, lambda: bool(done) or self._has_failed())
        if not done:
            self.fail("the last batch was not acknowledged")
            return
        for operation in operations:
            operation.returned_at = self.clock.now
            operation.result = done[0].rows.get(operation.key)

    def check(self) -> None:
        histories = {}
        for member in self.authority.present()[0].shards[0].members:
            data = self.servers[member].state.data
            histories[member] = data.history
            for seq, batch in self.ledger.items():
                if len(data.history) < seq or data.history[seq - 1] != batch:
                    self.fail(f"{member} lacks batch {seq}, which was acknowledged")
                    return
        shortest = min(len(history) for history in histories.values())
        if len({tuple(history[:shortest]) for history in histories.values()}) != 1:
            self.fail("the members disagree")
        for key in KEYS:
            operations = [op for op in self.operations if op.key == key]
            if not is_linearizable(operations):
                self.fail(f"the operations on {key!r} fit into no order")
