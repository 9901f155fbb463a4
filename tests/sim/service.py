"""A control service as far as its store is concerned: it stands by, takes over, leads, and answers clients.

Real: the writer of the chain, the lease, the proposals to the voters. Played: the connections, and clients' requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from linearizable import Operation
from redis_member import Op, encode

from skate._core.cluster import chain_messages as m
from skate._core.cluster.chain import Chain
from skate._core.cluster.configuration import Changed, Configuration, LeaderID, MemberID, Refused
from skate._core.cluster.lease import LeaderLease, SuccessorLease

if TYPE_CHECKING:
    from network import Machine
    from world import World

SILENCE_S = 0.2
LEASE_S = 0.6
RENEW_S = 0.15
RENEWAL = "renewal"


class Service:
    def __init__(self, world: World, host: Machine, me: LeaderID) -> None:
        self.world = world
        self.host = host
        self.me = me
        self.chain: Chain | None = None
        self.lease: LeaderLease = LeaderLease(LEASE_S)
        self.successor: SuccessorLease = SuccessorLease(host.now, LEASE_S)
        self.configuration: Configuration | None = None
        #: The rows as of the last acknowledged batch.
        self.rows: dict[str, str] = {}
        self.is_open = False
        self.is_taking_over = False
        #: What each batch under way is for: called with its results.
        self.under_way: dict[int, Callable[[m.Results], None]] = {}
        self.batches: dict[int, list[Op]] = {}
        self.encoded: dict[int, bytes] = {}
        #: Batches of clients without an answer.
        self.requests: set[int] = set()
        self._renewals = 0
        self._changes: list[m.ChangeAuthority] = []
        self._poll()

    # -- standing by ---------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        if self.chain is not None:
            return
        self.host.after(RENEW_S / 2, self._poll)
        self.world.authority.read(self, self._on_configuration)

    def _on_configuration(self, configuration: Configuration) -> None:
        self.configuration = configuration
        if self.chain is not None or self.is_taking_over:
            return
        if configuration.epoch == 0 or self.successor.has_expired(self.host.now):
            self.take_over()
            return
        tail = configuration.shards[0].members[-1]
        cluster = self.world.cluster
        self._ask(tail, lambda server: server.read(cluster, None), self._on_rows, lambda: None)

    def _on_rows(self, rows: dict[str, str] | None) -> None:
        if rows is not None:
            self.successor.saw(rows.get(RENEWAL, "").encode(), self.host.now)

    def take_over(self) -> None:
        if self.chain is not None or self.is_taking_over or self.configuration is None:
            return
        self.is_taking_over = True
        before = self.configuration
        self.world.authority.change(self, before, before.taken_over(self.me, ""), self._on_taken_over)

    def _on_taken_over(self, answer: Changed | Refused) -> None:
        self.is_taking_over = False
        if isinstance(answer, Refused):
            self.configuration = answer.configuration
            return
        self.chain = Chain(
            answer.configuration,
            now=self.host.now,
            silence_s=SILENCE_S,
            members_min=self.world.members_min,
            window=self.world.window,
        )
        self._carry_out(self.chain.start(self.host.now))
        self._tick()

    # -- leading -------------------------------------------------------------------------------------------------------

    def handle(self, event: m.Event) -> None:
        chain = self.chain
        if chain is None or self.world.services.get(self.host.name) is not self:
            return
        commands = chain.handle(event, self.host.now)
        chain.validate()
        self._carry_out(commands)

    def _tick(self) -> None:
        assert self.chain is not None
        self.host.after(self.chain.tick_s, self._tick)
        self.handle(m.Tick())

    def _carry_out(self, commands: list[m.Command]) -> None:
        for command in commands:
            self._carry_out_one(command)

    def _carry_out_one(self, command: m.Command) -> None:
        world, cluster = self.world, self.world.cluster
        match command:
            case m.Apply(member, epoch, seq, acked, batch):
                self._send(
                    member,
                    lambda server: server.apply(cluster, epoch, seq, acked, batch),
                    lambda reply: m.Applied(member, epoch, seq, reply),
                )
            case m.Seal(member, epoch, members):
                self._send(
                    member,
                    lambda server: server.seal(cluster, epoch, members),
                    lambda reply: m.Sealed(member, epoch, reply),
                )
            case m.ReadLog(member, epoch, first, last):
                self._send(
                    member,
                    lambda server: server.read_log(cluster, epoch, first, last),
                    lambda batches: m.LogRead(member, epoch, first, batches),
                )
            case m.Load(member, epoch):
                self._send(
                    member, lambda server: server.read(cluster, epoch), lambda rows: self._loaded(member, epoch, rows)
                )
            case m.Replicate(member, epoch, source):
                self._send(
                    member,
                    lambda server: world.replicate(server, epoch, source),
                    lambda reply: m.Replicated(member, reply),
                )
            case m.Inspect(member):
                self._send(member, lambda server: server.inspect(), lambda reply: m.Inspected(member, reply))
            case m.StopReplicating(member):
                self._send(member, lambda server: server.stop_replicating(), lambda reply: m.Detached(member, reply))
            case m.Reset(member):
                world.network.close(self.host, world.servers[member])
            case m.ChangeAuthority():
                self._changes.append(command)
                if len(self._changes) == 1:
                    self._change_next()
            case m.Acknowledge(seq, results):
                self._acknowledged(seq, results)
            case m.After(delay_s, event):
                self.host.after(delay_s, lambda: self.handle(event))
            case m.Open():
                self._opened()
            case m.Removed(member, _, is_lost):
                world.removed(self, member, is_lost)
                self.host.after(world.random.uniform(0.1, 0.6), lambda: self.handle(m.Join(member)))
            case m.Fenced():
                world.end(self)
            case m.Stop(reason):
                world.fail(f"{self.me} stopped: {reason}")
                world.end(self)
            case m.Joined(member):
                world.joined(member)
            case _:
                pass

    def _send(self, member: MemberID, run: Callable[[Any], Any], event: Callable[[Any], m.Event | None]) -> None:
        def then(answer: Any) -> None:
            made = event(answer)
            if made is not None:
                self.handle(made)

        self._ask(member, run, then, lambda: self.handle(m.Broken(member)))

    def _ask(
        self, member: MemberID, run: Callable[[Any], Any], then: Callable[[Any], None], broken: Callable[[], None]
    ) -> None:
        machine = self.world.servers[member]
        wire = self.world.network.wire(self.host, machine)
        wire.on_broken = broken
        wire.request(lambda: run(machine.state), then)

    def _change_next(self) -> None:
        change = self._changes[0]

        def then(answer: Changed | Refused) -> None:
            if isinstance(answer, Changed):
                self.handle(m.AuthorityChanged(answer.configuration))
            else:
                self.handle(m.AuthorityRefused(answer.configuration))
            self._changes.pop(0)
            if self._changes:
                self._change_next()

        self.world.authority.change(self, change.expected, change.new, then)

    def told(self, configuration: Configuration) -> None:
        """The configuration changed for another reason than the chain: a voter was admitted again."""
        self.handle(m.AuthorityChanged(configuration))

    def _loaded(self, member: MemberID, epoch: int, rows: dict[str, str] | None) -> m.Event:
        if rows is None:
            return m.Broken(member)
        self.rows = rows
        return m.Loaded(member, epoch)

    def _opened(self) -> None:
        renewal = self.rows.get(RENEWAL)
        opens_at = self.successor.sealed(None if renewal is None else renewal.encode(), self.host.now)
        self.host.after(max(0.0, opens_at - self.host.now), self._serve)

    def _serve(self) -> None:
        self.is_open = True
        self._renew()
        for member in self.world.servers if self.world.takes_all else ():
            self.host.after(self.world.random.uniform(0.05, 0.5), lambda member=member: self.handle(m.Join(member)))

    def _renew(self) -> None:
        self.host.after(RENEW_S, self._renew)
        self._renewals += 1
        renewal = self._renewals
        self.lease.renewing(renewal, self.host.now)
        self.submit(
            [("put", RENEWAL, f"{self.me} {renewal}")], lambda _: self.lease.acknowledged(renewal, self.host.now)
        )

    # -- clients -------------------------------------------------------------------------------------------------------

    def submit(self, ops: list[Op], then: Callable[[m.Results], None]) -> None:
        assert self.chain is not None
        if self.chain.state is self.chain.state.ENDED or self.chain.is_full:
            return
        seq = self.chain.last + 1
        self.under_way[seq] = then
        self.batches[seq] = ops
        self.encoded[seq] = encode(self.prepared(ops))
        if RENEWAL not in [op[1] for op in ops]:
            self.requests.add(seq)
        self.handle(m.Submit(self.encoded[seq]))

    def prepared(self, ops: list[Op]) -> list[Op]:
        """What is written. (Conditional operations are evaluated by the servers.)"""
        return ops

    def _acknowledged(self, seq: int, results: m.Results) -> None:
        self.world.acknowledged(self, seq)
        self.requests.discard(seq)
        done = list(results)
        for op in self.batches.pop(seq):
            kind, key = op[0], str(op[1])
            if kind == "put":
                self.rows[key] = str(op[2])
            elif not done.pop(0):
                continue
            elif kind == "delete":
                self.rows.pop(key)
            else:
                self.rows[key] = str(op[3]) if kind == "cas" else self.rows.get(key, "") + str(op[3])
        self.under_way.pop(seq)(results)

    def perform(self, operations: list[Operation]) -> None:
        """One request of a client: all in one batch, or reads alone."""
        writes: list[Any] = [(op.kind, op.key, *op.arguments) for op in operations if op.kind != "read"]

        def answer(results: m.Results) -> None:
            done = list(results)
            for op in operations:
                op.returned_at = self.world.clock.now
                if op.kind == "read":
                    op.result = self.rows.get(op.key)
                elif op.kind != "put":
                    op.result = done.pop(0)

        if not writes and self.lease.holds(self.host.now):
            answer(())
        else:
            self.submit(writes, answer)  # a batch of nothing is the proof that we lead
