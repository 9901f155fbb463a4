"""Who may answer from memory: the lease of a leader that others may take over from, and the standby that waits for it.

    leader    renewal 1, renewal 2, … in a row of the storage's own        holds_lease: may answer reads
    standby   sees the same renewal for longer than a lease ─▶ takes over

Only with voters: with a file as the authority, its lock keeps other services away. The decisions are in
`skate._core.cluster.lease`. Writes need no lease: they are fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from skate._control.storage.errors import StorageError
from skate._control.storage.redis.authority.majority import MajorityAuthority, voters_of
from skate._control.storage.redis.connection.address import RedisAddress, Server
from skate._control.storage.redis.connection.handshake import ask_once
from skate._control.storage.redis.connection.requests import ROWS, packed
from skate._control.storage.redis.identity import META_TABLE
from skate._control.storage.redis.shard import RedisShard
from skate._core.cluster.configuration import LeaderID
from skate._core.cluster.lease import LEASE_S, RENEW_PERIOD_S, LeaderLease, SuccessorLease

RENEWAL_KEY = b"renewal"
#: How long a standby waits for a server that it asks for the renewal.
ASK_S = 0.5


class Renewals:
    """The leader's side: an ordinary write now and then, in the first shard."""

    def __init__(self, shard: RedisShard, leader: LeaderID, lease_s: float = LEASE_S) -> None:
        self._shard = shard
        self._leader = leader
        self._lease = LeaderLease(lease_s)
        self._period_s = RENEW_PERIOD_S * lease_s / LEASE_S
        self._count = 0
        self._is_under_way = False
        self._renew()

    def holds(self) -> bool:
        return self._shard.error is None and self._lease.holds(time.monotonic())

    def _renew(self) -> None:
        if self._shard.error is not None or self._shard.is_closed:
            return
        self._shard.after(self._period_s, self._renew)
        if self._is_under_way:
            return
        self._is_under_way = True
        self._count += 1
        renewal = self._count
        self._lease.renewing(renewal, time.monotonic())
        self._shard.write_own(RENEWAL_KEY, f"{self._leader} {renewal}".encode(), lambda: self._renewed(renewal))

    def _renewed(self, renewal: int) -> None:
        self._is_under_way = False
        self._lease.acknowledged(renewal, time.monotonic())


class Standby:
    """The side that waits. `wait` returns when it is time to open the store, with this object as `standby`."""

    def __init__(self, address: RedisAddress, witnesses: Sequence[Server] = (), *, lease_s: float = LEASE_S) -> None:
        self._servers = {server.name: server for server in address.servers}
        self._authority = MajorityAuthority(LeaderID(""), voters_of(address.servers, witnesses))
        self._period_s = RENEW_PERIOD_S / 2 * lease_s / LEASE_S
        self.lease = SuccessorLease(time.monotonic(), lease_s)

    def wait(
        self,
        is_over: Callable[[], bool] = lambda: False,
        *,
        begins: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Wait until the leader is silent. False: `is_over` said so before.

        begins: do not wait for a store to be begun. The service that is to begin it waits like this, too: when its
        machine comes back after another one took over, it steps aside.
        """
        try:
            while not is_over():
                if self._look(begins):
                    return True
                pause(self._period_s)
            return False
        finally:
            self._authority.close()

    def _look(self, begins: bool) -> bool:
        """Whether there is a store whose leader is silent, or none."""
        newest = self._authority.newest_heard_of()
        if newest is None or newest.epoch == 0:
            self.lease = SuccessorLease(time.monotonic(), self.lease.lease_s)
            return begins
        tail = newest.shards[0].members[-1]
        server = self._servers.get(tail)
        if server is not None:
            try:
                renewal = ask_once(server, packed("HGET", ROWS + META_TABLE, RENEWAL_KEY), ASK_S)
            except StorageError:
                renewal = None  # the next configuration names another tail
            if isinstance(renewal, bytes):
                self.lease.saw(renewal, time.monotonic())
        return self.lease.has_expired(time.monotonic())
