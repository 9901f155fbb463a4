"""Every message of the protocol on one machine, in one place.

Messages are msgpack arrays that begin with a tag; decoding checks types and refuses what does not fit. Each docstring
says who sends it to whom and what comes back. Nothing here is ever resent by itself: on one machine a channel either
delivers in order or ends, and its end is an event of its own.

Three kinds of conversation:

- `local.py`: process ↔ node daemon, on the control channel every driver and worker has from birth;
- `direct.py`: owner ↔ executor and borrower ↔ owner, on a direct channel that the daemon made for the two;
- `cluster_state.py`: process ↔ what a whole cluster shares, through the daemon.

What travels inside them (tasks, results, values) is described in `_core/task.py`.
"""

from __future__ import annotations

from typing import Union

import msgspec

from skate._wire.messages.cluster_state import (
    ActorEnded as ActorEnded,
)
from skate._wire.messages.cluster_state import (
    ActorStarted as ActorStarted,
)
from skate._wire.messages.cluster_state import (
    ActorState as ActorState,
)
from skate._wire.messages.cluster_state import (
    CreateActor as CreateActor,
)
from skate._wire.messages.cluster_state import (
    CreateGroup as CreateGroup,
)
from skate._wire.messages.cluster_state import (
    DropActor as DropActor,
)
from skate._wire.messages.cluster_state import (
    FindActor as FindActor,
)
from skate._wire.messages.cluster_state import (
    KeyValue as KeyValue,
)
from skate._wire.messages.cluster_state import (
    KillActor as KillActor,
)
from skate._wire.messages.cluster_state import (
    LeaveActor as LeaveActor,
)
from skate._wire.messages.cluster_state import (
    Needs as Needs,
)
from skate._wire.messages.cluster_state import (
    Published as Published,
)
from skate._wire.messages.cluster_state import (
    RegisterActor as RegisterActor,
)
from skate._wire.messages.cluster_state import (
    RemoveGroup as RemoveGroup,
)
from skate._wire.messages.cluster_state import (
    Renewed as Renewed,
)
from skate._wire.messages.cluster_state import (
    StartActor as StartActor,
)
from skate._wire.messages.cluster_state import (
    Topic as Topic,
)
from skate._wire.messages.cluster_state import (
    UnwatchActor as UnwatchActor,
)
from skate._wire.messages.cluster_state import (
    WatchActor as WatchActor,
)
from skate._wire.messages.direct import (
    AskRef as AskRef,
)
from skate._wire.messages.direct import (
    AskTask as AskTask,
)
from skate._wire.messages.direct import (
    Borrow as Borrow,
)
from skate._wire.messages.direct import (
    Borrowed as Borrowed,
)
from skate._wire.messages.direct import (
    Cancel as Cancel,
)
from skate._wire.messages.direct import (
    CancelRef as CancelRef,
)
from skate._wire.messages.direct import (
    CloseStream as CloseStream,
)
from skate._wire.messages.direct import (
    Confirm as Confirm,
)
from skate._wire.messages.direct import (
    Consumed as Consumed,
)
from skate._wire.messages.direct import (
    Define as Define,
)
from skate._wire.messages.direct import (
    Fetch as Fetch,
)
from skate._wire.messages.direct import (
    Fetched as Fetched,
)
from skate._wire.messages.direct import (
    Ready as Ready,
)
from skate._wire.messages.direct import (
    Recall as Recall,
)
from skate._wire.messages.direct import (
    Refused as Refused,
)
from skate._wire.messages.direct import (
    Release as Release,
)
from skate._wire.messages.direct import (
    Results as Results,
)
from skate._wire.messages.direct import (
    Resume as Resume,
)
from skate._wire.messages.direct import (
    Returned as Returned,
)
from skate._wire.messages.direct import (
    Taken as Taken,
)
from skate._wire.messages.direct import (
    Tasks as Tasks,
)
from skate._wire.messages.direct import (
    Undefine as Undefine,
)
from skate._wire.messages.direct import (
    Yielded as Yielded,
)
from skate._wire.messages.local import (
    Allocate as Allocate,
)
from skate._wire.messages.local import (
    Allocated as Allocated,
)
from skate._wire.messages.local import (
    Answer as Answer,
)
from skate._wire.messages.local import (
    Blocked as Blocked,
)
from skate._wire.messages.local import (
    CallListener as CallListener,
)
from skate._wire.messages.local import (
    Capacity as Capacity,
)
from skate._wire.messages.local import (
    CollectEvents as CollectEvents,
)
from skate._wire.messages.local import (
    CollectGarbage as CollectGarbage,
)
from skate._wire.messages.local import (
    Connect as Connect,
)
from skate._wire.messages.local import (
    DescriptorGiven as DescriptorGiven,
)
from skate._wire.messages.local import (
    DropDescriptor as DropDescriptor,
)
from skate._wire.messages.local import (
    Events as Events,
)
from skate._wire.messages.local import (
    FetchFailed as FetchFailed,
)
from skate._wire.messages.local import (
    Free as Free,
)
from skate._wire.messages.local import (
    GarbageCollected as GarbageCollected,
)
from skate._wire.messages.local import (
    GiveUpLease as GiveUpLease,
)
from skate._wire.messages.local import (
    Goodbye as Goodbye,
)
from skate._wire.messages.local import (
    Hello as Hello,
)
from skate._wire.messages.local import (
    KeepDescriptor as KeepDescriptor,
)
from skate._wire.messages.local import (
    KillWorker as KillWorker,
)
from skate._wire.messages.local import (
    LeaseDemand as LeaseDemand,
)
from skate._wire.messages.local import (
    LeaseGranted as LeaseGranted,
)
from skate._wire.messages.local import (
    LeaseInfeasible as LeaseInfeasible,
)
from skate._wire.messages.local import (
    LeaseReclaim as LeaseReclaim,
)
from skate._wire.messages.local import (
    LeaseReturn as LeaseReturn,
)
from skate._wire.messages.local import (
    LeasesShort as LeasesShort,
)
from skate._wire.messages.local import (
    LeaseStarted as LeaseStarted,
)
from skate._wire.messages.local import (
    Logs as Logs,
)
from skate._wire.messages.local import (
    PeerConnected as PeerConnected,
)
from skate._wire.messages.local import (
    PeerGone as PeerGone,
)
from skate._wire.messages.local import (
    Pin as Pin,
)
from skate._wire.messages.local import (
    Pinned as Pinned,
)
from skate._wire.messages.local import (
    Prefetch as Prefetch,
)
from skate._wire.messages.local import (
    Query as Query,
)
from skate._wire.messages.local import (
    Retire as Retire,
)
from skate._wire.messages.local import (
    ReturnSpace as ReturnSpace,
)
from skate._wire.messages.local import (
    Seal as Seal,
)
from skate._wire.messages.local import (
    Shutdown as Shutdown,
)
from skate._wire.messages.local import (
    StoreFull as StoreFull,
)
from skate._wire.messages.local import (
    TakeDescriptor as TakeDescriptor,
)
from skate._wire.messages.local import (
    Unblocked as Unblocked,
)
from skate._wire.messages.local import (
    Unpin as Unpin,
)
from skate._wire.messages.local import (
    Unreachable as Unreachable,
)
from skate._wire.messages.local import (
    Welcome as Welcome,
)
from skate._wire.messages.local import (
    decode_events as decode_events,
)
from skate._wire.messages.local import (
    encode_events as encode_events,
)
from skate._wire.messages.message import Message as Message
from skate._wire.messages.message import Refusal as Refusal

AnyMessage = Union[  # noqa: UP007 - fifty types joined by | would take fifty lines
    Hello, Welcome, Connect, PeerConnected, PeerGone, KillWorker, Retire, Shutdown, Goodbye, Logs, Capacity, Query,
    Answer, CollectEvents, Events, LeaseDemand, LeaseGranted, LeasesShort, LeaseReturn, LeaseReclaim, LeaseInfeasible,
    LeaseStarted, Blocked, Unblocked, Allocate, Allocated, StoreFull, Seal, ReturnSpace, Pin, Prefetch, Pinned, Unpin,
    Free, Define, Undefine, Tasks, Results, Recall, Returned, Ready, Cancel, Yielded, Consumed, CloseStream, AskTask,
    Fetch, Fetched, Borrow, Borrowed, Release, AskRef, CancelRef, RegisterActor, CreateActor, StartActor, ActorStarted,
    ActorEnded, LeaveActor, WatchActor, UnwatchActor, ActorState, KillActor, DropActor, FindActor, KeyValue, Topic,
    Published, CreateGroup, RemoveGroup, Taken, Resume, Confirm, Refused, CollectGarbage, GarbageCollected, Unreachable,
    FetchFailed, GiveUpLease, KeepDescriptor, TakeDescriptor, DescriptorGiven, DropDescriptor,
    CallListener, Needs, Renewed,
]  # fmt: skip

encoder = msgspec.msgpack.Encoder()
decode = msgspec.msgpack.Decoder(AnyMessage).decode
