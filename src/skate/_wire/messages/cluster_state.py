"""Messages between a process and the state that a whole cluster shares: actors, groups, keys, topics.

They travel over the control channel. The daemon of a lone node answers them; in a cluster the control service does.
"""

from __future__ import annotations

from skate._core.placement import Condition
from skate._core.task import ActorInfo, ActorSettings, Death, Failure, Task
from skate._wire.messages.direct import Define
from skate._wire.messages.message import Message

# -- actors ------------------------------------------------------------------------------------------------------------


class RegisterActor(Message, tag=100):
    """Creator → daemon: this actor exists from now on. Reply, if `request` is not 0: Answer.

    The answer says {"taken": False}, or, with another living actor of that name, {"taken": True, …} and how to reach
    that one; then nothing was registered.
    """

    request: int
    actor: bytes
    info: ActorInfo


class CreateActor(Message, tag=101):
    """Creator → daemon: everything that is needed to make it, now and after each end of its process. No reply."""

    actor: bytes
    #: The call of its class: its arguments are resolved.
    creation: Task
    settings: ActorSettings


class StartActor(Message, tag=102):
    """Daemon → worker: become this actor. Reply: ActorStarted or ActorEnded."""

    create: CreateActor
    define: Define
    info: ActorInfo
    owner: bytes
    #: 1 for its first process, 2 for the next, …
    life: int


class ActorStarted(Message, tag=103):
    """Worker → daemon: __init__ returned; calls may come."""


class ActorEnded(Message, tag=104):
    """Worker → daemon: the actor in this process is over, and the process leaves: do not start it again."""

    death: Death


class LeaveActor(Message, tag=105):
    """Daemon → worker: nobody can call you any more; leave as soon as nobody needs what you own."""


class WatchActor(Message, tag=106):
    """Caller → daemon: tell me how this actor is, now and whenever that changes. Reply: ActorState, again and again.

    `owner` created it: if that is gone and nobody knows the actor, it is dead.
    """

    actor: bytes
    owner: bytes


class UnwatchActor(Message, tag=107):
    """Caller → daemon: I have no handle to it any more. No reply."""

    actor: bytes


class ActorState(Message, tag=108):
    """Daemon → caller."""

    actor: bytes
    state: str  # of `_core/actors.py`
    #: Number of its life; while it is not alive, of the last one.
    life: int
    process_id: bytes
    #: Why it is dead, or why its last life is over.
    death: Death | None = None


class KillActor(Message, tag=109):
    """Process → daemon: end it now (`skate.kill`). No reply; watchers are told."""

    actor: bytes
    no_restart: bool
    by: str
    #: It cannot be made, because an argument of its creation is this error.
    failure: Failure | None = None
    #: The life that is meant if it may start again; 0: the present one.
    life: int = 0


class DropActor(Message, tag=110):
    """Owner → daemon: no handle to it is left anywhere, and no call is pending. No reply."""

    actor: bytes


class FindActor(Message, tag=111):
    """Process → daemon: who has this name? Reply: Answer with None, or how to reach it."""

    request: int
    name: str
    namespace: str


class KeyValue(Message, tag=122):
    """Process → daemon: "get", "put" or "delete" a key, or list the "keys" that begin so. Reply: Answer."""

    request: int
    what: str
    namespace: str
    key: bytes
    value: bytes = b""
    #: Put also if there is a value.
    overwrite: bool = True


class Needs(Message, tag=113):
    """Process → daemon, after Renewed: I may call these functions, which the control service has. No reply."""

    fns: list[bytes]


class Renewed(Message, tag=114):
    """Daemon → process: the control service was started again. Say what you watch, subscribe to and need."""


class Topic(Message, tag=123):
    """Process → daemon: "subscribe" me to a topic, "unsubscribe" me, or "publish" something there. Reply: Answer, with
    the number of subscribers; none if the request is 0."""

    request: int
    what: str
    namespace: str
    topic: str
    data: bytes = b""


class Published(Message, tag=124):
    """Control service → daemon → subscriber: this was published."""

    namespace: str
    topic: str
    #: None: nothing new, but that messages were missed.
    data: bytes | None
    #: Messages of the topic that were dropped on their way since the last one that came, because too much waited.
    missed: int = 0


class CreateGroup(Message, tag=120):
    """Process → daemon: reserve these bundles, together. Reply: Answer, {"taken": True} if another has its name."""

    request: int
    group: bytes
    bundles: list[dict[str, float]]
    strategy: str
    name: str = ""
    #: It outlives its job.
    detached: bool = False
    job: bytes = b""
    #: For each bundle the labels that its node must have; empty: none for any.
    required: list[tuple[Condition, ...]] = []


class RemoveGroup(Message, tag=121):
    """Process → daemon: give them back, and end what runs in them. No reply."""

    group: bytes
