"""What nodes say to each other and to the control service, over TCP and after the handshake.

Two kinds of connection stay: each node's to the control service, and one between two nodes that have to do with each
other. On both, messages of processes (`messages/`) travel inside an envelope: a node passes on what a process of its
own says to another node or to the control service, and delivers what these say to a process. A third kind is handed on:
after OpenChannel was answered, the connection belongs to the two processes.

The first message on a connection says what it is for: Join, Link, OpenChannel, OpenStream, OpenTransfer or Ask;
or Resume, if it takes the place of one that broke.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from skate._core.placement import NodeView
from skate._core.task import ActorInfo, Death, Job
from skate._wire.messages import AnyMessage, Confirm, Message, PeerGone, Resume


class Member(msgspec.Struct, array_like=True):
    """A node of the cluster, for the others."""

    view: NodeView
    #: Where its daemon listens; port 0: nowhere, it connects to others itself.
    host: str
    port: int
    name: str = ""


# -- node ↔ control service ------------------------------------------------------------------------------------------


class Join(Message, tag=1):
    """Node → control, first on the connection. Reply: Joined, or TellToEnd if that node is held to be dead.

    `view.id` is empty the first time. It is the id that the node has if the service does not know the session that the
    node wanted to go on with.
    """

    member: Member
    #: A connection that is made again begins with Resume and this.
    session: bytes = b""
    #: That the node is part of already.
    cluster_id: str = ""


class Joined(Message, tag=2):
    """Control → node: you are part of the cluster, under this id, with these others."""

    node_id: bytes
    members: list[Member]
    #: The same for all nodes of one cluster, for those who look which one that is.
    cluster_id: str = ""
    #: Nodes that died lately, the oldest first.
    departed: list[Member] = []
    #: Which service of the cluster this is: another number, another service.
    incarnation: int = 0


class Anew(Message, tag=77):
    """Control → node, for a Resume: I do not know that link. Join again, under the id that you have."""


class HeldProcess(msgspec.Struct, array_like=True):
    """A process that the control service knows of, or whose end it has yet to be told."""

    id: bytes
    pid: int
    job: Job


class HeldWorker(msgspec.Struct, array_like=True):
    """A worker that was found for an actor. Life 0: it has not been told to become it."""

    id: bytes
    pid: int
    actor: bytes
    life: int


class Holding(Message, tag=78):
    """Node → control, after Joined if it was part of the cluster before: what I have. No reply."""

    processes: list[HeldProcess] = []
    workers: list[HeldWorker] = []
    #: Actors for which it looks for workers.
    looking: list[bytes] = []
    #: Group, index, and whether the bundle counts or is only set aside.
    bundles: list[tuple[bytes, int, bool]] = []
    #: Objects that are here and others know of: those that were made here, with their owners, and copies.
    owned: list[tuple[bytes, bytes]] = []
    copies: list[bytes] = []


class Done(Message, tag=79):
    """Control → node: of these processes, what was said up to this number is durable. It need not be kept."""

    processes: list[tuple[bytes, int]]


class Report(Message, tag=3):
    """Node → control: how I am, every REPORT_PERIOD_S, and when much has changed. No reply."""

    view: NodeView
    #: The others should know at once.
    urgent: bool = False


class Heard(Message, tag=76):
    """Control → node, for each Report: I am there."""


class StoreTrouble(Message, tag=94):
    """Control → nodes: what I store cannot be written, and why; empty: it can be, again. What needs it waits."""

    why: str = ""


class News(Message, tag=4):
    """Control → nodes: who has joined or changed, and who is gone (id and why)."""

    members: list[Member] = []
    gone: list[tuple[bytes, str]] = []


class TellToEnd(Message, tag=5):
    """Control → node: you are held to be dead; end what you run, and join anew."""

    reason: str


class Leave(Message, tag=6):
    """Node → control: I end. No reply."""

    reason: str


class JobStarted(Message, tag=10):
    """Node → control: a driver has begun. No reply."""

    job: Job
    pid: int
    #: The command line that it was started with.
    entrypoint: str = ""


class JobEnded(Message, tag=11):
    """Node → control: it is over. No reply."""

    job: Job


class Ask(Message, tag=7):
    """Command line → control, first on the connection: a question. Reply: Reply."""

    what: str


class Reply(Message, tag=8):
    body: Any


class End(Message, tag=9):
    """Command line → control: end the cluster; control → node: end."""

    reason: str
    #: From the command line: the next service that has the store goes on with the cluster.
    keep: bool = False


# -- envelopes ---------------------------------------------------------------------------------------------------------


class Acquaint(Message, tag=19):
    """Node → node or control, before the first FromProcess: a process of mine will have to do with you."""

    process_id: bytes
    pid: int
    job: Job


class FromProcess(Message, tag=20):
    """Node → node or control: a process of mine says this to you."""

    process_id: bytes
    message: AnyMessage
    #: To control: counts the messages of this process. Until Done, a service that was started again is told it again.
    number: int = 0
    #: To control: the answers of messages up to this number have come.
    done_to: int = 0


class ToProcess(Message, tag=21):
    """Node or control → node: give this to your process. If that is gone, nobody misses it."""

    process_id: bytes
    message: AnyMessage


class ProcessGone(Message, tag=22):
    """Node → those who have to do with it: this process of mine is dead."""

    gone: PeerGone


# -- actors ------------------------------------------------------------------------------------------------------------


class PlaceActor(Message, tag=60):
    """Control → node: find a worker for it. Reply: ActorPlaced, or ActorNotPlaced."""

    actor: bytes
    info: ActorInfo
    job: Job


class UnplaceActor(Message, tag=61):
    """Control → node: it needs no worker any more. No reply."""

    actor: bytes


class ActorPlaced(Message, tag=62):
    actor: bytes
    worker: bytes
    pid: int


class ActorNotPlaced(Message, tag=63):
    """Node → control: this node can never run it."""

    actor: bytes
    death: Death


class KillProcess(Message, tag=64):
    """Control → node: end that worker."""

    process_id: bytes
    reason: str


class Introduce(Message, tag=65):
    """Control → node: I want to know of that process of yours. Reply: Acquaint, or ProcessGone."""

    process_id: bytes


# -- placement groups --------------------------------------------------------------------------------------------------


class PrepareBundle(Message, tag=70):
    """Control → node: set this bundle aside. Reply: BundlePrepared."""

    group: bytes
    index: int
    attempt: int
    needs: dict[str, int]


class BundlePrepared(Message, tag=71):
    group: bytes
    index: int
    attempt: int
    ok: bool


class CommitBundle(Message, tag=72):
    """Control → node: all nodes have done so; it counts from now on. No reply."""

    group: bytes
    index: int


class ReleaseBundle(Message, tag=73):
    """Control → node: give it back, and end what runs in it. No reply."""

    group: bytes
    index: int


class GroupRemoved(Message, tag=74):
    """Control → nodes: who waits for a place in it waits in vain."""

    group: bytes


class AskGroup(Message, tag=75):
    """Node → control: does it exist? Reply, if not: GroupRemoved."""

    group: bytes


# -- node ↔ node -------------------------------------------------------------------------------------------------------


class Link(Message, tag=30):
    """Node → node, first on the connection: I am that node; this connection is for all that we have to say."""

    node_id: bytes
    #: A connection that is made again begins with Resume and this.
    session: bytes = b""


class OpenChannel(Message, tag=31):
    """Node → node, first on the connection, which is to become the direct channel of two processes.

    Reply: ChannelOpened, after which each node hands its end over. If the target is dead, its PeerGone goes to the
    asker and the connection ends. A connection that just ends means: try again.
    """

    asker: bytes
    pid: int
    target: bytes
    #: It takes the place of one that is lost.
    again: bool = False


class ChannelOpened(Message, tag=32):
    pid: int


class OpenStream(Message, tag=39):
    """Node → node, first on the connection, which is for one of my processes and the one that listens under this key.

    Reply: StreamOpened, after which each node hands its end over, unless a reason says why that cannot be done.
    """

    node_id: bytes
    key: bytes


class StreamOpened(Message, tag=48):
    reason: str = ""


class PleaseLink(Message, tag=34):
    """Node → control → a node that listens nowhere: I have something to say to you; make a link to me."""

    #: The number of the node: of whom it is for, and then of whom it came from.
    node: int


class PleaseTransfer(Message, tag=35):
    """Node → a node that listens nowhere: make a connection over which you send me chunks (OfferTransfer)."""


class OfferTransfer(Message, tag=36):
    """Node that listens nowhere → node, first on the connection, over which it will send chunks.

    Reply: TransferOpened; from then on it is as if it had been asked for with OpenTransfer.
    """

    node_id: bytes


class PleaseOpen(Message, tag=33):
    """Node → a node that listens nowhere: open a channel between your process and mine."""

    asker: bytes
    pid: int
    target: bytes
    again: bool = False


class AskEvents(Message, tag=37):
    """Node → node: what have your workers done? Reply: NodeEvents with the same request."""

    request: int


class NodeEvents(Message, tag=38):
    request: int
    events: list[tuple[str, bytes, int, float, float, int]]


class Ping(Message, tag=90):
    """Node that made the link → node, every PING_S: do you hear me? Reply: Pong."""


class Pong(Message, tag=91):
    """Node → node that made the link."""


class Unreached(Message, tag=92):
    """Node → control: I cannot reach that node, or can again. No reply."""

    #: The number of the node.
    node: int
    is_cut: bool


# -- objects -----------------------------------------------------------------------------------------------------------


class Locate(Message, tag=40):
    """Node → control: from whom do I get this object, which was made at that place? Reply: Located.

    Asked again: the last source failed.
    """

    object: bytes
    place: int


class Located(Message, tag=41):
    """Control → node: the number of the node; 0: nobody has it."""

    object: bytes
    source: int


class Tracked(Message, tag=42):
    """Control → the node where it was made: others have it, too; tell me when it is freed. Reply then: Freed."""

    object: bytes


class Owned(Message, tag=47):
    """The node where it was made → control, before the first chunk of it goes out, and once Tracked: it belongs to that
    process, and ends with it, or with that process's node. All of it is there. Reply, when it is freed: Freed. Safe to
    resend."""

    object: bytes
    owner: bytes


class CopyStored(Message, tag=43):
    """Node → control: all of it is here now. No reply."""

    object: bytes


class CopyDropped(Message, tag=44):
    """Node → control: I have nothing of it any more, or gave up getting it. No reply."""

    object: bytes


class Freed(Message, tag=45):
    """Node → control: nobody refers to these any more. Those who have copies are told: DropCopies."""

    objects: list[bytes]


class DropCopies(Message, tag=46):
    """Control → node."""

    objects: list[bytes]


class OpenTransfer(Message, tag=50):
    """Node → node, first on the connection, over which the asked one is to send chunks (`_node/courier.py`).

    Reply: TransferOpened, and from then on chunks.
    """

    node_id: bytes


class TransferOpened(Message, tag=51):
    pass


class AskChunk(Message, tag=52):
    """Node → node, on their link: send me this part of an object, under that tag. Reply: the chunk, or ChunkFailed."""

    object: bytes
    start: int
    size: int
    tag: int


class ChunkFailed(Message, tag=53):
    object: bytes
    tag: int
    #: It was here, and is not any more: it was freed, or its owner has died.
    freed: bool = False


class DoneWith(Message, tag=54):
    """Node → node: I pull this object from you no more. No reply."""

    object: bytes


ClusterMessage = Union[  # noqa: UP007 - as in messages
    Join, Joined, Anew, Holding, Done, Report, News, TellToEnd, Leave, JobStarted, JobEnded, Ask, Reply, End,
    Acquaint, FromProcess, ToProcess, ProcessGone, Link, OpenChannel, ChannelOpened, PleaseOpen, PleaseLink, AskEvents,
    NodeEvents, PleaseTransfer, OfferTransfer, Locate, Located, Tracked, Owned, CopyStored, CopyDropped, Freed,
    DropCopies, OpenStream, StreamOpened, OpenTransfer, TransferOpened, AskChunk, ChunkFailed, DoneWith,
    PlaceActor, UnplaceActor, ActorPlaced, ActorNotPlaced, KillProcess, Introduce, PrepareBundle, BundlePrepared,
    CommitBundle, ReleaseBundle, GroupRemoved, AskGroup, Heard, StoreTrouble, Ping, Pong, Unreached, Resume, Confirm,
]  # fmt: skip

decode = msgspec.msgpack.Decoder(ClusterMessage).decode
