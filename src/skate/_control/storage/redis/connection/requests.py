"""What is said to a server, and what it answers: RESP out, the writer's words back.

    APPLY, SEAL       EVALSHA of the scripts beside this package
    the others        short transactions, so that what they look at and what they do is one moment

Pure but for reading the scripts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hiredis import ReplyError

from skate._core.cluster.chain_messages import Reply, Verdict

META = "skate:meta"
LOG = "skate:log"
ROWS = "skate:rows:"
VOTE = "skate:vote"

_SCRIPTS = Path(__file__).parents[2] / "scripts"


def packed(*words: str | bytes | int) -> bytes:
    """A request as the servers read it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(text), text))
    return b"".join(parts)


def script(name: str) -> str:
    return (_SCRIPTS / f"{name}.lua").read_text()


def sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_TEXTS = [script(name) for name in ("apply", "seal", "found", "vote")]
SHAS = [sha(text) for text in _TEXTS]
LOADS = [packed("SCRIPT", "LOAD", text) for text in _TEXTS]
_APPLY, _SEAL, _FOUND, VOTE_SHA = SHAS

#: The fields of every answer that tells what a server has.
_LOOK = packed("HMGET", META, "cluster", "epoch", "seq", "trim")
_MULTI, _EXEC = packed("MULTI"), packed("EXEC")


class Broken(Exception):
    """The answer is none that the writer knows: the connection is given up."""


class Requests:
    """For one cluster: what does not change is encoded once."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        head = packed("EVALSHA", _APPLY, 2, META, LOG, cluster)
        self._apply_head = b"*11\r\n" + head.partition(b"\r\n")[2]
        self._apply_tail = b"$%d\r\n%s\r\n" % (len(ROWS), ROWS.encode())

    def apply(self, epoch: int, seq: int, acked: int, batch: bytes) -> bytes:
        e, s, a = b"%d" % epoch, b"%d" % seq, b"%d" % acked
        return b"%s$%d\r\n%s\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n%s" % (
            self._apply_head,
            len(e),
            e,
            len(s),
            s,
            len(a),
            a,
            len(batch),
            batch,
            self._apply_tail,
        )

    def seal(self, epoch: int, stamp: str) -> bytes:
        return packed("EVALSHA", _SEAL, 1, META, self.cluster, epoch, stamp)

    def found(self, epoch: int, stamp: str) -> bytes:
        return packed("EVALSHA", _FOUND, 1, META, self.cluster, epoch, stamp)

    def look(self) -> bytes:
        return _LOOK

    def as_looked(self, answer: Any) -> Reply:
        """What a server has, from the answer to `look`."""
        if isinstance(answer, ReplyError):
            raise Broken(str(answer))
        cluster, epoch, seq, trim = answer
        if cluster is None:
            return Reply(Verdict.NOTHING)
        if cluster.decode() != self.cluster:
            return Reply(Verdict.STRANGER)
        return Reply(Verdict.OK, int(epoch), int(seq), int(trim))

    # -- transactions: several answers, of which the last one counts --------------------------------------------------

    def transaction(self, *requests: bytes) -> bytes:
        """`look` and the requests, at one moment. Answers: OK, one QUEUED each, and those of all."""
        return b"".join((_MULTI, _LOOK, *requests, _EXEC))

    def read_log(self, first: int, last: int) -> bytes:
        return self.transaction(packed("HMGET", LOG, *range(first, last + 1)))

    def scan_rows(self, table: str, cursor: bytes, pattern: bytes, count: int) -> bytes:
        return self.transaction(packed("HSCAN", ROWS + table, cursor, "MATCH", pattern, "COUNT", count))

    def scan_tables(self, cursor: bytes) -> bytes:
        return self.transaction(packed("SCAN", cursor, "MATCH", f"{ROWS}*", "COUNT", 1000))


def executed(answer: Any) -> list[Any]:
    """The answers to what a transaction had queued."""
    if isinstance(answer, ReplyError):
        raise Broken(str(answer))
    if answer is None:
        raise Broken("the server gave up a transaction that nothing had disturbed")
    for each in answer:
        if isinstance(each, ReplyError):
            raise Broken(str(each))
    found: list[Any] = answer
    return found


_VERDICTS = {verdict.value.encode(): verdict for verdict in Verdict}
_OK = Verdict.OK


def as_reply(answer: Any) -> Reply:
    """The answer of a script."""
    if isinstance(answer, list):
        verdict, epoch, seq, trim, results = answer
        return Reply(_OK if verdict == b"OK" else _VERDICTS[verdict], epoch, seq, trim, tuple(results))
    if isinstance(answer, ReplyError):
        text = str(answer)
        if "READONLY" in text:
            return Reply(Verdict.REPLICA)
        raise Broken(text)
    raise Broken(f"the server answered a script with {answer!r}")


def as_batches(values: Sequence[bytes | None]) -> tuple[bytes, ...]:
    """Batches of a log, up to the first one that is not there. Their results stand before the colon."""
    batches: list[bytes] = []
    for value in values:
        if value is None:
            break
        batches.append(value.partition(b":")[2])
    return tuple(batches)


def escaped(prefix: bytes) -> bytes:
    """A pattern for the keys that begin with `prefix`."""
    return b"".join(b"\\" + bytes((byte,)) if byte in b"*?[]\\^" else bytes((byte,)) for byte in prefix) + b"*"
