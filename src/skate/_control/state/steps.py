"""What comes into the control state, and what goes out of it.

    handle(event, now) ──▶ [Save, Forget, …] then [Send, After, …]

The rows of an event come before everything that it says. The one who carries the commands out gives the rows to the
storage as one batch, and lets no message leave before the rows that were issued before it are durable.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from skate._core.task import Death
from skate._wire.messages import Message, Published, Refusal

# -- events ------------------------------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True, gc=False):
    """Something came over a link."""

    link: int
    message: Any


class TooLong(msgspec.Struct, frozen=True, gc=False):
    """What came over a link was too large to be taken; its first values are known."""

    link: int
    refusal: Refusal


class Back(msgspec.Struct, frozen=True, gc=False):
    """A link whose connection had broken has another one."""

    link: int


class Broke(msgspec.Struct, frozen=True, gc=False):
    """The connection of a node's link has ended. Its node may make another one."""

    link: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A link is gone for good."""

    link: int


class Look(msgspec.Struct, frozen=True, gc=False):
    """It is time to look who was not heard of, and which actors still wait for a node."""


class PassOn(msgspec.Struct, frozen=True, gc=False):
    """It is time to tell all nodes what the others have reported."""


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """It is time to tell nodes which messages of their processes need not be kept."""


class PlaceAgain(msgspec.Struct, frozen=True, gc=False):
    """The pause before the next start of an actor is over."""

    actor: bytes


class ForgetProcess(msgspec.Struct, frozen=True, gc=False):
    """The node of a process that is dead says nothing of it again, unless it has announced it once more."""

    process: bytes


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """No worker will be found for an actor."""

    actor: bytes
    death: Death


class SettleAnyway(msgspec.Struct, frozen=True, gc=False):
    """Nodes have had long enough to come back after a restart."""


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """The storage can be written again."""

    what: str
    why: str
    seconds: float


Event: TypeAlias = (
    Said
    | TooLong
    | Back
    | Broke
    | Ended
    | Look
    | PassOn
    | Confirm
    | PlaceAgain
    | ForgetProcess
    | Refuse
    | SettleAnyway
    | Recovered
)

# -- commands ----------------------------------------------------------------------------------------------------------


class Save(msgspec.Struct, frozen=True, gc=False):
    """Write a row. `lazy`: it may wait for another batch, and no message waits for it."""

    table: str
    key: bytes
    row: bytes
    lazy: bool = False


class Forget(msgspec.Struct, frozen=True, gc=False):
    """Remove a row."""

    table: str
    key: bytes
    lazy: bool = False


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a message over a link. `at_once`: it rests on nothing that is stored."""

    link: int
    message: Message
    at_once: bool = False


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Send what was published to a subscriber. It may read slowly: what waits for it is bounded."""

    process: bytes
    message: Published


class After(msgspec.Struct, frozen=True, gc=False):
    """Give this event back after that time."""

    seconds: float
    event: Event


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    """Forget a link. Over a connection that still stands its node can be told why."""

    link: int


class Cut(msgspec.Struct, frozen=True, gc=False):
    """The peer has broken the protocol: end its link."""

    link: int
    error: Exception


class Defect(msgspec.Struct, frozen=True, gc=False):
    """A mistake of ours, made while an event was handled. It is logged, and the service goes on."""

    error: Exception
    doing: str


class Note(msgspec.Struct, frozen=True, gc=False):
    """A line for the log of the service."""

    text: str


class EndService(msgspec.Struct, frozen=True, gc=False):
    """The cluster has ended, and all nodes have been told."""

    reason: str


Command: TypeAlias = Save | Forget | Send | Publish | After | Disconnect | Cut | Defect | Note | EndService
