"""What goes into the writer of a chain, and what comes out.

    control service ──Submit──▶ Chain ──Apply, Seal, …──▶ connections to the members ──▶ Redis
                    ◀─Acknowledge─    ◀─Applied, Sealed, …─
                                      ──ChangeAuthority──▶ authority
                                      ◀─AuthorityChanged, AuthorityRefused─

Rules for whoever carries these:

- A member has one connection. Its requests are executed in the order of the commands, and answered in that order.
- `Reset(member)` closes the connection. Its answers are void from then on and are not handed in. Requests that were
  sent over it may still be executed, at any time. The next command for the member opens a new connection.
- A connection that breaks or is refused is handed in once, as `Broken`.
"""

from __future__ import annotations

import enum

import msgspec

from skate._core.cluster.configuration import Configuration, MemberID

#: What the conditional operations of a batch came to, in their order: 1 for done, 0 for not done.
Results = tuple[int, ...]


class Verdict(enum.Enum):
    OK = "OK"
    #: The server holds no data of any cluster: it restarted empty, was flushed, or is new.
    NOTHING = "NOTHING"
    #: The server holds the data of another cluster.
    STRANGER = "STRANGER"
    #: The request came from another epoch than the one the server was sealed with.
    FENCED = "FENCED"
    #: The batch does not follow the last one that the server has.
    GAP = "GAP"
    #: The server is a replica of another one and takes no writes.
    REPLICA = "REPLICA"


class Reply(msgspec.Struct, frozen=True):
    """The answer of a server to any of our scripts."""

    verdict: Verdict
    #: The epoch that the server was sealed with, before this request.
    epoch: int = 0
    #: The last batch that the server has.
    seq: int = 0
    #: The log of the server begins after this batch.
    trim: int = 0
    results: Results = ()


# -- events ------------------------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True):
    """The control service wants a batch of operations written. It gets the next number."""

    batch: bytes


class Applied(msgspec.Struct, frozen=True):
    """The answer to Apply."""

    member: MemberID
    epoch: int
    seq: int
    reply: Reply


class Sealed(msgspec.Struct, frozen=True):
    """The answer to Seal."""

    member: MemberID
    epoch: int
    reply: Reply


class LogRead(msgspec.Struct, frozen=True):
    """The answer to ReadLog: batches `first`, `first + 1`, … as far as the server has them."""

    member: MemberID
    epoch: int
    first: int
    batches: tuple[bytes, ...]


class Loaded(msgspec.Struct, frozen=True):
    """All rows were read, as Load asked."""

    member: MemberID
    epoch: int


class Heard(msgspec.Struct, frozen=True):
    """A part of the rows came: a long Load is not silence."""

    member: MemberID


class Broken(msgspec.Struct, frozen=True):
    """The connection to a server was reset, or could not be made."""

    member: MemberID
    reason: str = "the connection was reset"


class AuthorityChanged(msgspec.Struct, frozen=True):
    """The change was made; or this is what the authority says when a leader looks, as it does now and then.

    Without that look, a leader whose successor died before it sealed a member would go on for long: safe, but unable to
    change its chain.
    """

    configuration: Configuration


class AuthorityRefused(msgspec.Struct, frozen=True):
    """Somebody changed the configuration before us: another chain of this control service, or another leader."""

    configuration: Configuration


class Tick(msgspec.Struct, frozen=True):
    """Handed in every `Chain.tick_s`: who has been silent for too long?"""


class Join(msgspec.Struct, frozen=True):
    """A server is there that shall become a member."""

    member: MemberID


class Replicated(msgspec.Struct, frozen=True):
    """The answer to Replicate: the server began to copy."""

    member: MemberID
    reply: Reply


class Look(msgspec.Struct, frozen=True):
    """A timer of the writer itself: how far is the joiner?"""

    attempt: int


class Inspected(msgspec.Struct, frozen=True):
    """The answer to Inspect."""

    member: MemberID
    reply: Reply


class Detached(msgspec.Struct, frozen=True):
    """The answer to StopReplicating: what the server has, now that it copies no more."""

    member: MemberID
    reply: Reply


Event = (
    Submit
    | Applied
    | Sealed
    | LogRead
    | Loaded
    | Heard
    | Broken
    | AuthorityChanged
    | AuthorityRefused
    | Tick
    | Join
    | Replicated
    | Look
    | Inspected
    | Detached
)


# -- commands ----------------------------------------------------------------------------------------------------------


class Apply(msgspec.Struct, frozen=True):
    """Run the batch on one server, in one script. Safe to repeat: the server knows the batch by its number."""

    member: MemberID
    epoch: int
    seq: int
    #: Every member has the batches up to this one: the log need not keep them.
    acked: int
    batch: bytes


class Seal(msgspec.Struct, frozen=True):
    """From now on the server takes nothing of an earlier epoch. Answer: what it has. Safe to repeat."""

    member: MemberID
    epoch: int
    #: The chain of this epoch, to be noted on the server (`configuration.Stamp`). Empty for a server that may become a
    #: member: the authority was not asked yet, so its note stays what it is.
    members: tuple[MemberID, ...] = ()


class ReadLog(msgspec.Struct, frozen=True):
    member: MemberID
    epoch: int
    first: int
    last: int


class Load(msgspec.Struct, frozen=True):
    """Read all rows from this server. A later Load replaces this one."""

    member: MemberID
    epoch: int


class Open(msgspec.Struct, frozen=True):
    """All members agree and the rows are read: batches may be submitted. `seq` is the last one that exists."""

    seq: int


class ChangeAuthority(msgspec.Struct, frozen=True):
    """Compare and set. Whoever carries this out tries until the answer is certain."""

    expected: Configuration
    new: Configuration


class Acknowledge(msgspec.Struct, frozen=True):
    """Every member of the chain has the batch. Given in the order of the numbers, once each."""

    seq: int
    results: Results


class Reset(msgspec.Struct, frozen=True):
    """Close the connection."""

    member: MemberID


class Replicate(msgspec.Struct, frozen=True):
    """Make the server a copy of `source`. What it holds is discarded, in the same transaction.

    Refused by the server if it holds another cluster's data, or was sealed with a later epoch than `epoch`: a writer
    that was frozen for long must not turn a member of the present chain into a replica.
    """

    member: MemberID
    epoch: int
    source: MemberID


class Inspect(msgspec.Struct, frozen=True):
    """What does the server have? It may be a replica."""

    member: MemberID


class StopReplicating(msgspec.Struct, frozen=True):
    member: MemberID


class Removed(msgspec.Struct, frozen=True):
    """A notice: the server is no longer a member. It may come back with Join."""

    member: MemberID
    reason: str
    #: The server lost data that it had confirmed.
    is_lost: bool


class Joined(msgspec.Struct, frozen=True):
    """A notice: the server is a member."""

    member: MemberID


class RefuseJoin(msgspec.Struct, frozen=True):
    """A notice: the server will not be tried again by itself."""

    member: MemberID
    reason: str


class After(msgspec.Struct, frozen=True):
    """Hand the event in after so many seconds."""

    delay_s: float
    event: Event


class Fenced(msgspec.Struct, frozen=True):
    """Another leader has taken over. The process ends at once: what it has not acknowledged may or may not happen."""

    reason: str


class Stop(msgspec.Struct, frozen=True):
    """Going on would mean to begin anew over a known cluster. The process ends and says why."""

    reason: str


Command = (
    Apply
    | Seal
    | ReadLog
    | Load
    | Open
    | ChangeAuthority
    | Acknowledge
    | Reset
    | Replicate
    | Inspect
    | StopReplicating
    | Removed
    | Joined
    | RefuseJoin
    | After
    | Fenced
    | Stop
)
