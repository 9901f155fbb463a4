"""Carries out what the control state says: rows go to the ledger, messages to links, timers to the loop.

    event ──▶ Control.handle ──▶ Save, Forget ──▶ the ledger, as one batch
                             ──▶ Send, …      ──▶ leave now, or when the rows before them are durable

Owns:      the events that wait while another one is carried out.
Knows not: what events mean. How a link is reached is said by who derives from this: the control service, or a node that
           is alone and has the state in its own process.
"""

from __future__ import annotations

import functools
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from skate._control.ledger import Ledger
from skate._control.mailboxes import Mailboxes
from skate._control.state import steps
from skate._control.state.control import Control, Settings
from skate._wire.guard import survive
from skate._wire.loop import EventLoop
from skate._wire.messages import Message

if TYPE_CHECKING:
    from skate._control.storage.interface import Storage, Trouble

log = logging.getLogger("skate")

#: How long the end of the cluster waits for a storage that cannot be written.
END_S = 2.0
#: What is published for a subscriber that does not read is tried again after this time.
PUBLISH_AGAIN_S = 0.02


class Host(ABC):
    def __init__(self, loop: EventLoop, settings: Settings, storage: Storage | None = None) -> None:
        self._loop = loop
        self.ledger = Ledger(storage, lambda action: None, self.on_store_lost)
        if storage is not None:
            loop.watch(storage.fileno(), lambda events: self._on_storage())
        #: Why the storage could not be written when that was last looked at.
        self._trouble: Trouble | None = None
        self._mailboxes = Mailboxes(self._send_to_process, self._is_congested)
        self._events: deque[steps.Event] = deque()
        self._is_busy = False
        self.control = Control(settings, time.monotonic())

    def _on_storage(self) -> None:
        self.ledger.collect()
        assert self.ledger.storage is not None
        before, self._trouble = self._trouble, self.ledger.storage.trouble
        if (before and before.error.why) != (self._trouble and self._trouble.error.why):
            self.on_trouble(before, self._trouble)

    def begin(self) -> None:
        """Take over what is stored. Raises RowUnreadable."""
        self._carry_out(self.control.begin(self.ledger.rows))

    def give(self, event: steps.Event) -> None:
        """An event for the state. Those that come while another one is carried out wait for that."""
        self._events.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._events:
                self._carry_out(self.control.handle(self._events.popleft(), time.monotonic()))
        finally:
            self._is_busy = False

    def _carry_out(self, commands: list[steps.Command]) -> None:
        try:
            for command in commands:
                self._act(command)
        finally:
            self.ledger.commit()

    def _act(self, command: steps.Command) -> None:
        match command:
            case steps.Send(link, message, at_once):
                if at_once or self.ledger.is_clear:
                    self.send(link, message)
                else:
                    self.before_sent(link, message)
                    self.ledger.say(functools.partial(self.send, link, message))
            case steps.Save(table, key, row, lazy):
                self.ledger.put(table, key, row, lazy=lazy)
            case steps.Forget(table, key, lazy):
                self.ledger.forget(table, key, lazy=lazy)
            case steps.Publish(process, message):
                self._publish(process, message)
            case steps.After(seconds, event):
                self._loop.call_at(time.monotonic() + seconds, functools.partial(self.give, event))
            case steps.Disconnect(link):
                self.disconnect(link)
            case steps.Cut(link, error):
                self.cut(link, error)
            case steps.Defect(error, doing):
                survive(error, doing)
            case steps.Note(text):
                self.note(text)
            case steps.EndService(reason):
                self.ledger.say(functools.partial(self.end, reason))
                if not self.ledger.is_clear:
                    self._later(END_S, functools.partial(self.end_anyway, reason))

    def _publish(self, process_id: bytes, message: Message) -> None:
        was_empty = not self._mailboxes
        self._mailboxes.deliver(process_id, message)  # type: ignore[arg-type]
        if was_empty and self._mailboxes:
            self._later(PUBLISH_AGAIN_S, self._publish_waiting)

    def _publish_waiting(self) -> None:
        self._mailboxes.send_waiting()
        if self._mailboxes:
            self._later(PUBLISH_AGAIN_S, self._publish_waiting)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._loop.call_at(time.monotonic() + seconds, action)

    def _send_to_process(self, process_id: bytes, message: Message) -> None:
        self._act(steps.Send(self.control.link_of(process_id), self.enveloped(process_id, message)))

    def _is_congested(self, process_id: bytes) -> bool | None:
        return self.has_backlog(self.control.link_of(process_id))

    # -- how the outside is reached -----------------------------------------------------------------------------------

    @abstractmethod
    def send(self, link: int, message: Message) -> None:
        """Over a link; if that is gone, the message is not missed."""

    @abstractmethod
    def before_sent(self, link: int, message: Message) -> None:
        """The message will be sent, but has to wait for the storage."""

    @abstractmethod
    def enveloped(self, process_id: bytes, message: Message) -> Message:
        """As it is told to the node of that process."""

    @abstractmethod
    def has_backlog(self, link: int) -> bool | None:
        """Whether what is sent would only pile up; None: the link is gone."""

    @abstractmethod
    def disconnect(self, link: int) -> None:
        """The state has forgotten the link."""

    @abstractmethod
    def cut(self, link: int, error: Exception) -> None:
        """The peer has broken the protocol."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A line for the log."""

    @abstractmethod
    def end(self, reason: str) -> None:
        """The cluster is over."""

    @abstractmethod
    def end_anyway(self, reason: str) -> None:
        """The cluster is over, and the storage could not be told so in time."""

    @abstractmethod
    def on_trouble(self, before: Trouble | None, now: Trouble | None) -> None:
        """The storage cannot be written, for another reason than before; None: it can be, again."""

    @abstractmethod
    def on_store_lost(self, error: Exception) -> None:
        """Another service may have the store now."""
