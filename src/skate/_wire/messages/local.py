"""Messages between a process (driver, worker or actor) and the daemon of its node, on its control channel.

Every process has that channel from birth. `cluster_state.py` has the messages about actors, groups, keys and topics,
which the daemon answers itself when its node is alone and hands to the control service otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skate._core.placement import Where
from skate._core.policy_memory import MemoryKill
from skate._core.task import Job, Line
from skate._wire.messages.message import Message

# -- process ↔ node daemon: birth, connections, death ----------------------------------------------


class Hello(Message, tag=1):
    """Driver or worker → daemon, the first message on its control channel. Reply: Welcome."""

    pid: int
    kind: str  # "driver" or "worker"
    #: Environment that workers are started with: the driver's sys.path, working directory, variables.
    sys_path: list[str] = []
    cwd: str = ""
    preload: list[str] = []
    log_to_driver: bool = True
    #: What concerns the whole job, for its workers to know.
    namespace: str = ""
    #: The job that the driver is part of; empty: it is one of its own.
    job_id: bytes = b""
    #: What `ray.__version__` says in the driver, if Skate has Ray's name there: its workers follow.
    ray_version: str = ""
    #: How log records look in the driver, as JSON, if `init` was told: its workers follow.
    logging: str = ""


class Welcome(Message, tag=2):
    """Daemon → driver or worker: who you are. For a driver the arena's file descriptor comes with it."""

    process_id: bytes
    node_id: bytes
    job_id: bytes
    arena_bytes: int
    #: What all nodes of the cluster have together.
    resources: dict[str, float]
    daemon_pid: int
    namespace: str = ""
    #: Of the node, for other drivers that may join it.
    address: str = ""
    #: How other machines reach the node; 127.0.0.1 for a node that is alone.
    host: str = ""
    #: A test setting: how long each task of the process waits between being ready and being scheduled.
    test_scheduling_delay_ms: float = 0.0


class Connect(Message, tag=3):
    """Process → daemon: make me a direct channel to that process. Reply: PeerConnected, or PeerGone if it is dead.

    Safe to repeat: there is at most one channel between two processes, and its PeerConnected was sent before.
    """

    process_id: bytes
    #: The connection of the channel that there was is lost.
    again: bool = False


class PeerConnected(Message, tag=4):
    """Daemon → each of two processes, with one end of a socket pair: your direct channel to `process_id`."""

    process_id: bytes
    pid: int


class PeerGone(Message, tag=5):
    """Daemon → every process that has (or asked for) a channel to it: that process is dead, and this is why."""

    process_id: bytes
    pid: int
    exit_code: int  # as in subprocess: negative is a signal
    running: bytes  # id of the task it was in, or of the last one if it was in none; b"" if it had none
    stderr: list[str] = []  # last lines of that alone
    reason: str = ""  # why the daemon killed it, if it did: "cancelled", "memory: …", "idle", …
    memory: MemoryKill | None = None  # if memory was short
    #: Its whole node is gone: nothing more will come over its channel, not even its end.
    node_lost: bool = False
    #: What it printed last, to stdout and stderr: a few lines (`_core/last_output.py`).
    output: str = ""


class KillWorker(Message, tag=6):
    """Owner → daemon: kill the worker that I lease (force-cancel). Answered by PeerGone with this reason."""

    process_id: bytes
    reason: str
    #: Only if this is the task that it runs now.
    running: bytes = b""


class Retire(Message, tag=7):
    """Daemon → worker: you are idle and not needed; leave if nobody needs what you own. Reply: Retire, or Ready to
    stay.

    Worker → daemon: I leave (asked to, or max_calls is reached); lend me to nobody. The worker exits by itself.
    """

    #: Daemon → worker: begin no more tasks in any case, and leave as soon as no other process needs what you own.
    at_once: bool = False


class Shutdown(Message, tag=8):
    """Driver → daemon: end everything of mine. The daemon flushes the log lines it has and sends Goodbye. It exits,
    unless another driver uses the node, or `skate start` started it."""


class Goodbye(Message, tag=9):
    """Daemon → driver, its last message."""

    #: The node goes on without this driver: another driver uses it, or `skate start` started it.
    stays: bool = False
    #: What users call the detached actors that end with the node.
    detached: list[str] = []
    #: Set if the node could not be started because of a limit of the system: which.
    limit: str = ""


class Logs(Message, tag=10):
    """Daemon → driver: what workers printed."""

    lines: list[Line]


class Capacity(Message, tag=15):
    """Daemon → process: what all nodes of the cluster have together has changed."""

    resources: dict[str, float]


class Query(Message, tag=11):
    """Process → daemon: a question. Reply: Answer with the same request.

    `what` is one of "resources" (total and available), "nodes", "workers", "actors", "functions", "demands" (why leases
    are not granted), "room" (why there can be no more workers), "store" (what holds memory), "events" (task events,
    gathered from all workers), "statistics".
    """

    request: int
    what: str


class Answer(Message, tag=12):
    """Daemon → process, or executor → owner: the reply to Query or AskTask."""

    request: int
    body: Any
    #: Why there is no body: it is too large for a message, or the question was.
    error: str = ""
    #: There is none because the control service does not answer.
    is_unavailable: bool = False


class CollectEvents(Message, tag=13):
    """Daemon → worker: send the task events that you hold. Reply: Events with the same request."""

    request: int


class Events(Message, tag=14):
    """Worker → daemon: finished tasks for the timeline, encoded: most are never looked at.

    `request` is 0 when the worker sends them of its own accord.
    """

    request: int
    count: int
    events: bytes
    #: What to add to their times to have seconds of the wall clock.
    epoch: float = 0.0


#: (name, id, start, end) of each task.
encode_events = msgspec.msgpack.Encoder().encode
decode_events = msgspec.msgpack.Decoder(list[tuple[str, bytes, float, float]]).decode


# -- process ↔ node daemon: leases -------------------------------------------------------------------


class LeaseDemand(Message, tag=20):
    """Owner → daemon: I could use `count` more workers of this shape (absolute; a later message replaces it).

    Reply: LeaseGranted as often as workers become free, each counting the demand down by one; or LeaseInfeasible.
    `key` is the owner's number for this scheduling class.
    """

    key: int
    resources: dict[str, float]
    env: dict[str, str]
    count: int
    #: Nesting of the task that asks: deeper ones go first, because shallower ones wait for them.
    depth: int
    #: Tasks of this class may be run again: when memory is short, their workers are ended first.
    retriable: bool = True
    #: Where they want to run.
    where: Where | None = None
    #: What the next of them reads: size of each object, and the numbers of the nodes that have it.
    inputs: list[tuple[int, list[int]]] = []
    #: How long one of them takes; 0 if that is not known.
    task_s: float = 0.0


class LeaseGranted(Message, tag=21):
    """Daemon → owner: this worker is yours until you return it. Its direct channel came before (PeerConnected)."""

    key: int
    lease: int
    process_id: bytes
    pid: int


class LeasesShort(Message, tag=28):
    """Daemon → owner of what is to be spread: so many of the leases that you want are not free, so do not wait."""

    key: int
    count: int


class Unreachable(Message, tag=116):
    """Daemon → its processes: that node could not be reached for longer than the grace. What waits for it is decided
    on: run again elsewhere, or failed. Said again after each further grace for as long as the cut lasts; and in
    between, for what has begun to wait meanwhile. No reply."""

    #: The number of the node.
    node: int
    #: Names the two nodes.
    reason: str
    #: In between: what has retries left uses none of them up.
    again: bool = False


class LeaseReturn(Message, tag=22):
    """Owner → daemon: I do not need it any more; nothing of mine is on it."""

    lease: int


class GiveUpLease(Message, tag=29):
    """Owner → daemon: I could not reach that worker for too long, and have given up these tasks of mine. The worker is
    killed if it is in one of them (PeerGone with this reason). Otherwise the lease is returned, and the worker begins
    no more tasks (Retire)."""

    lease: int
    process_id: bytes
    reason: str
    tasks: list[bytes]


class LeaseReclaim(Message, tag=23):
    """Daemon → owner: others wait; return these leases as soon as the tasks that run on them have ended."""

    leases: list[int]


class LeaseInfeasible(Message, tag=24):
    """Daemon → owner: no node can ever serve that class (sent after a grace period); its demand is dropped."""

    key: int
    asked: dict[str, float]
    total: dict[str, float]
    #: Set when workers for its environment could not be started: what went wrong.
    reason: str = ""
    #: Set when no node of the cluster can serve it: why.
    nowhere: str = ""
    #: The placement group that it was to run in was removed.
    removed: bool = False
    #: Set when the only node that can serve it could not be reached for too long: names the two nodes.
    unreachable: str = ""
    #: That was so before: the demand stays, for tasks that were sent there once and may be sent again.
    again: bool = False
    #: Set when its node can have no more workers, and none of those that it has will be free: the limit.
    limit: str = ""


class LeaseStarted(Message, tag=25):
    """Daemon → worker: you now work for that owner, with these resources. Sent before the owner hears of it."""

    lease: int
    owner: bytes
    resources: dict[str, float]
    gpu_ids: list[int]
    #: The job that you work for from now on; None: the same as before.
    job: Job | None = None
    #: The placement group that what you start is in, too.
    captures: bytes = b""


class Blocked(Message, tag=26):
    """Worker → daemon: my task waits for others; my CPUs are free until Unblocked."""


class Unblocked(Message, tag=27):
    """Worker → daemon: my task goes on; count my CPUs again (even if that overbooks the machine for a while)."""


# -- process ↔ node daemon: object store ----------------------------------------------------------------


class Allocate(Message, tag=40):
    """Process → daemon: lend me `size` bytes of the arena to fill. Reply: Allocated or StoreFull.

    What is not sealed is taken back when the process dies. With `least` the process carves several small objects out of
    the space, and the daemon may lend less than asked, but not less than that, when memory is short.
    """

    request: int
    size: int
    least: int = 0


class Allocated(Message, tag=41):
    """Daemon → process: [offset, offset + size) is yours to fill."""

    request: int
    offset: int
    size: int


class StoreFull(Message, tag=42):
    """Daemon → process: after waiting, there is still no room to allocate, or to bring back what was to be pinned.

    `report` lists what holds the memory.
    """

    request: int
    report: str
    #: The disk, not the memory, is what is full.
    disk: bool = False
    #: What holds the memory, largest first: (what and for whom, bytes).
    holders: list[tuple[str, int]] = []


class Seal(Message, tag=43):
    """Process → daemon: these objects are complete and lie at their offsets, inside space lent to me. No reply.

    A second Seal of the same id (a task that ran again) replaces the first.
    """

    #: Id, owner, offset and size of each.
    objects: list[tuple[bytes, bytes, int, int]]


class ReturnSpace(Message, tag=44):
    """Process → daemon: I do not need [offset, offset + size) of what you lent me. No reply."""

    offset: int
    size: int


class Pin(Message, tag=45):
    """Process → daemon: keep these in memory while I look at them; bring them back from disk if need be.

    Reply: Pinned with (offset, size) for each, once all are there; an object unknown or freed has offset -1. An object
    that is not sealed yet is waited for: its Seal may be on the way. Pins are counted per process.
    """

    request: int
    ids: list[bytes]
    #: Where each of them lies; empty if all were made on this node.
    places: list[int] = []
    #: They are arguments of a task: if they lie on a node out of reach, a whole grace is waited for them, because each
    #: failure costs a retry.
    is_patient: bool = False


class Prefetch(Message, tag=49):
    """Process → daemon: I shall read these soon; bring them from the nodes where they lie. No reply."""

    ids: list[bytes]
    places: list[int]


class Pinned(Message, tag=46):
    """Daemon → process."""

    request: int
    at: list[tuple[int, int]]


class FetchFailed(Message, tag=117):
    """Daemon → process, instead of Pinned: only a node that could not be reached for too long has that object."""

    request: int
    id: bytes
    reason: str


class Unpin(Message, tag=47):
    """Process → daemon: one pin less for each. No reply."""

    ids: list[bytes]


class CollectGarbage(Message, tag=58):
    """Daemon → process: the store is short of memory; drop references that are in cycles. Reply: GarbageCollected."""

    round: int


class GarbageCollected(Message, tag=59):
    """Process → daemon: done, or not worth it. What was freed was said before, on the same channel."""

    round: int


class Free(Message, tag=48):
    """Owner → daemon: nobody refers to these, nor to what these tasks, whose process died, have stored. No reply."""

    ids: list[bytes]
    node: int = 0  # the number of the node where they lie; 0: this one
    tasks: list[bytes] = []


# -- process ↔ node daemon: file descriptors ------------------------------------------------------------


class KeepDescriptor(Message, tag=16):
    """Process → daemon, with a file descriptor: keep a copy for processes of this node that ask for the key.

    Reply: Answer; its body says why there is none, or is empty. The copy is closed with DropDescriptor or at the end of
    the process.
    """

    request: int
    key: bytes
    #: It is the end of a socket pair, and takes the connections that other nodes make to its process (CallListener).
    accepts: bool = False


class TakeDescriptor(Message, tag=17):
    """Process → daemon: give me a copy of that descriptor. Reply: DescriptorGiven."""

    request: int
    key: bytes


class DescriptorGiven(Message, tag=18):
    """Daemon → process: the copy comes with this message, unless the reason says why there is none."""

    request: int
    reason: str = ""


class DropDescriptor(Message, tag=19):
    """Process → daemon: close the copy that you keep for me. No reply."""

    key: bytes


class CallListener(Message, tag=50):
    """Process → daemon: connect me to the process of another node that keeps a descriptor with this key there.

    Reply: DescriptorGiven, with the connection. The other process receives the other end of it over what it keeps.
    """

    request: int
    #: The number of the other node.
    node: int
    key: bytes
