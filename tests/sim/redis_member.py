"""What the scripts mean: a Redis server that is a member of a chain, without Redis.

The data of a server is one value, so that a restart with old data, or a copy by replication, is one assignment:

    meta   cluster, epoch, seq, trim          rows   key → value
    stamp  the chain that it was sealed with  log    seq → (batch, results), the batches behind `trim`

Each method is one script, or one MULTI/EXEC, and so happens at one moment.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import msgspec

from skate._core.cluster.chain_messages import Reply, Results, Verdict
from skate._core.cluster.configuration import MemberID, Stamp

#: ("put", key, value), ("delete", key), ("cas", key, expected or None, value), ("append", key, length, value)
Op = tuple[str, ...] | tuple[str, str, "str | None", str] | tuple[str, str, int, str]


def encode(ops: list[Op]) -> bytes:
    return msgspec.msgpack.encode(ops)


@functools.lru_cache(maxsize=4096)
def decode(batch: bytes) -> tuple[tuple[object, ...], ...]:
    return tuple(tuple(op) for op in msgspec.msgpack.decode(batch))


def run(rows: dict[str, str], batch: bytes) -> Results:
    """The operations of a batch, in order. All but put have a result."""
    results = []
    for op in decode(batch):
        kind, key = op[0], str(op[1])
        if kind == "put":
            rows[key] = str(op[2])
        elif kind == "delete":
            results.append(int(rows.pop(key, None) is not None))
        elif kind == "cas":
            done = rows.get(key) == op[2]
            if done:
                rows[key] = str(op[3])
            results.append(int(done))
        else:
            done = len(rows.get(key, "")) == op[2]
            if done:
                rows[key] = rows.get(key, "") + str(op[3])
            results.append(int(done))
    return tuple(results)


@dataclass(frozen=True)
class Meta:
    cluster: str
    epoch: int
    seq: int
    trim: int = 0


@dataclass
class Data:
    meta: Meta | None = None
    stamp: Stamp | None = None
    rows: dict[str, str] = field(default_factory=dict)
    log: dict[int, tuple[bytes, Results]] = field(default_factory=dict)
    #: For the checks alone: all batches that made these rows.
    history: list[bytes] = field(default_factory=list)

    def copy(self) -> Data:
        return Data(self.meta, self.stamp, dict(self.rows), dict(self.log), list(self.history))


class SimRedis:
    def __init__(self, name: MemberID) -> None:
        self.name = name
        self.data = Data()
        #: What a restart with old data finds.
        self.disk = Data()
        self.source: MemberID | None = None

    # -- scripts -------------------------------------------------------------------------------------------------------

    def found(self, cluster: str, epoch: int, members: tuple[MemberID, ...]) -> Reply:
        """The first start of a cluster: an empty server becomes a member. Anything else is left as it is."""
        if self.data.meta is not None:
            return Reply(Verdict.OK if self.data.meta == Meta(cluster, epoch, 0) else Verdict.STRANGER)
        self.data = Data(Meta(cluster, epoch, 0), Stamp(cluster, epoch, members))
        return Reply(Verdict.OK, epoch)

    def apply(self, cluster: str, epoch: int, seq: int, acked: int, batch: bytes) -> Reply:
        meta = self.data.meta
        if self.source is not None:
            return Reply(Verdict.REPLICA)
        if meta is None:
            return Reply(Verdict.NOTHING)
        if meta.cluster != cluster:
            return Reply(Verdict.STRANGER)
        if meta.epoch != epoch:
            return Reply(Verdict.FENCED, meta.epoch, meta.seq)
        if seq <= meta.seq:
            return Reply(Verdict.OK, epoch, meta.seq, meta.trim, self.data.log.get(seq, (b"", ()))[1])
        if seq > meta.seq + 1:
            return Reply(Verdict.GAP, meta.epoch, meta.seq)
        results = run(self.data.rows, batch)
        self.data.log[seq] = batch, results
        self.data.history.append(batch)
        trim = max(meta.trim, min(acked, seq))
        for old in range(meta.trim + 1, trim + 1):
            self.data.log.pop(old, None)
        self.data.meta = Meta(cluster, epoch, seq, trim)
        return Reply(Verdict.OK, epoch, seq, trim, results)

    def seal(self, cluster: str, epoch: int, members: tuple[MemberID, ...]) -> Reply:
        if (refusal := self._refusal(cluster)) is not None:
            return refusal
        meta = self.data.meta
        assert meta is not None
        if meta.epoch > epoch:
            return Reply(Verdict.FENCED, meta.epoch, meta.seq)
        self.data.meta = replace(meta, epoch=epoch)
        if members:
            self.data.stamp = Stamp(cluster, epoch, members)
        return Reply(Verdict.OK, meta.epoch, meta.seq, meta.trim)

    def read_log(self, cluster: str, epoch: int, first: int, last: int) -> tuple[bytes, ...]:
        meta = self.data.meta
        if self._refusal(cluster) is not None or meta is None or meta.epoch != epoch:
            return ()
        found = []
        for seq in range(first, last + 1):
            if seq not in self.data.log:
                break
            found.append(self.data.log[seq][0])
        return tuple(found)

    def read(self, cluster: str, epoch: int | None) -> dict[str, str] | None:
        """All rows, for whom the server is sealed; without an epoch for anyone, with no promise."""
        meta = self.data.meta
        if meta is None or meta.cluster != cluster or (epoch is not None and meta.epoch != epoch):
            return None
        return dict(self.data.rows)

    def _refusal(self, cluster: str) -> Reply | None:
        if self.source is not None:
            return Reply(Verdict.REPLICA)
        if self.data.meta is None:
            return Reply(Verdict.NOTHING)
        if self.data.meta.cluster != cluster:
            return Reply(Verdict.STRANGER)
        return None

    # -- replication ---------------------------------------------------------------------------------------------------

    def replicate(self, cluster: str, epoch: int, source: MemberID) -> Reply:
        """WATCH meta, look, MULTI, DEL meta, REPLICAOF source, EXEC."""
        meta = self.data.meta
        if meta is not None and meta.cluster != cluster:
            return Reply(Verdict.STRANGER)
        if meta is not None and meta.epoch > epoch:
            return Reply(Verdict.FENCED, meta.epoch, meta.seq)
        self.data.meta = None
        self.source = source
        return Reply(Verdict.OK)

    def stop_replicating(self) -> Reply:
        self.source = None
        return self.inspect()

    def inspect(self) -> Reply:
        meta = self.data.meta
        return Reply(Verdict.NOTHING) if meta is None else Reply(Verdict.OK, meta.epoch, meta.seq, meta.trim)

    def follow(self, source: SimRedis) -> None:
        """Replication: what the source has now. A source that restarted empty empties its replicas."""
        self.data = source.data.copy()

    # -- restarts ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.disk = self.data.copy()

    def restart(self, found: str) -> None:
        """With "all" data, with "old" data as they were saved last, or with "none". It is a master afterwards."""
        self.source = None
        if found == "old":
            self.data = self.disk.copy()
        elif found == "none":
            self.data = Data()
            self.disk = Data()
