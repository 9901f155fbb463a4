"""Rows as the tail of a chain has them: what it has, every member has.

Each step looks, in one transaction, whether the server is still a member of the present epoch. If not, or if its
connection breaks, reading begins again with the tail that there is then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from skate._control.storage.errors import StorageClosed, StorageUnreachable
from skate._control.storage.redis.connection.requests import ROWS, escaped, executed
from skate._core.cluster.chain import State
from skate._core.cluster.chain_messages import Verdict

if TYPE_CHECKING:
    from skate._control.storage.redis.shard import RedisShard

T = TypeVar("T")

#: How long a reader waits for a chain that cannot be read.
READ_S = 30.0
#: Rows asked for at once: the first time, at most, and the bytes that this number is fitted to.
COUNT_FIRST = 100
COUNT_MAX = 5000
ANSWER_BYTES = 2 << 20


class _Interrupted(Exception):
    """The chain changed while it was read."""


def read(shard: RedisShard, table: str, prefix: bytes) -> dict[bytes, bytes]:
    """The rows of a table whose keys begin with `prefix`."""
    pattern = escaped(prefix)

    def scan() -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor, count = b"0", COUNT_FIRST
        while True:
            cursor, flat = _ask(shard, shard.requests.scan_rows(table, cursor, pattern, count))
            found.update(zip(flat[::2], flat[1::2]))
            if cursor == b"0":
                return found
            size = sum(map(len, flat)) or 1
            count = max(10, min(COUNT_MAX, count * 4, count * ANSWER_BYTES // size))

    return _again(shard, scan)


def tables(shard: RedisShard) -> set[str]:
    def scan() -> set[str]:
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, names = _ask(shard, shard.requests.scan_tables(cursor))
            found.update(name.decode()[len(ROWS) :] for name in names)
            if cursor == b"0":
                return found - {""}

    return _again(shard, scan)


def _again(shard: RedisShard, scan: Callable[[], T]) -> T:
    deadline = time.monotonic() + READ_S
    while True:
        shard.drive(lambda: shard.chain.state is State.RUNNING, deadline)
        if shard.error is not None:
            raise shard.error
        if shard.chain.state is not State.RUNNING:
            raise StorageUnreachable(
                f"Shard {shard.shard} of the store cannot be read.",
                f"Its servers did not agree within {READ_S:g} s: {shard.why_not_open()}.",
                "start these servers again.",
            )
        try:
            return scan()
        except _Interrupted:
            continue


def _ask(shard: RedisShard, request: bytes) -> Any:
    """The answer of the tail to one step."""
    if shard.is_closed:
        raise StorageClosed("Rows were read from a storage that is closed.")
    chain = shard.chain
    if chain.state is not State.RUNNING:
        raise _Interrupted
    epoch, answers = chain.epoch, []
    wire = shard.members.ask(chain.tail, request, lambda answer: answers.append(executed(answer)), unread=3)
    shard.members.flush()
    while not answers and not wire.is_closed and shard.error is None:
        heard_at = wire.heard
        shard.drive(lambda: bool(answers) or wire.is_closed, time.monotonic() + chain.silence_s)
        if not answers and not wire.is_closed and wire.heard == heard_at:
            wire.give_up(f"it was silent for {chain.silence_s:g} s while rows were read")
    if shard.error is not None:
        raise shard.error
    if not answers:
        raise _Interrupted
    look, found = answers[0]
    reply = shard.requests.as_looked(look)
    if reply.verdict is not Verdict.OK or reply.epoch != epoch or chain.epoch != epoch:
        wire.give_up("it is not the member that it was")
        raise _Interrupted
    return found
