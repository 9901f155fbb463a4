"""The control service: the links of nodes and visitors, and the state of the cluster behind them.

Owns:      the links, by number, and the sessions by which nodes go on with theirs.
Knows not: what is decided; see `state/control.py`. A task whose node can run it never touches this service.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._control.host import Host
from skate._control.state import steps
from skate._control.state.control import Settings
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.link import Link
from skate._wire.loop import EventLoop

if TYPE_CHECKING:
    from skate._control.storage.interface import Storage, Trouble

log = logging.getLogger("skate")

#: The last restarts and troubles that `skate store status` shows.
EVENTS_SHOWN = 10


class ControlService(Host):
    def __init__(self, loop: EventLoop, on_end: Callable[[str], None], storage: Storage | None = None) -> None:
        self._end = on_end
        #: All nodes have been told that the cluster is over.
        self.has_said_goodbye = False
        self._links: dict[int, Link] = {}
        self._numbers: dict[Link, int] = {}
        self._last_number = 0
        #: The links of nodes, by what a node names when it goes on with its link over another connection.
        self._sessions: dict[bytes, Link] = {}
        #: By link: the session of a node that wants to join; and what a peer has done wrong.
        self._joining: dict[int, bytes] = {}
        self._wrongs: dict[int, Exception] = {}
        meta = storage.meta if storage is not None else None
        settings = Settings(
            cluster_id=meta.cluster_id if meta is not None else secrets.token_hex(8),
            incarnation=meta.incarnation if meta is not None else 1,
            epoch=time.time() - time.monotonic(),
            stores=storage is not None,
            pid=os.getpid(),
        )
        super().__init__(loop, settings, storage)
        self.begin()

    # -- links --------------------------------------------------------------------------------------------------------

    def new_link(self) -> Link:
        """For a connection that has been let in."""
        link = Link(self._loop, self._on_message, self._on_closed, name="node")
        self._last_number += 1
        self._links[self._last_number] = link
        self._numbers[link] = self._last_number
        return link

    def _on_message(self, link: Link, message: Any) -> None:
        if isinstance(message, wire.Resume):
            self._on_resume(link, message)
            return
        number = self._numbers[link]
        if isinstance(message, cluster.Join):
            self._joining[number] = message.session
        if isinstance(message, cluster.Ask) and message.what == "store":
            link.send(cluster.Reply(self.describe_store()))  # what keeps others waiting does not keep this
            return
        self.give(steps.Said(number, message))
        if self._trouble is not None and isinstance(message, cluster.Join) and link.session in self._sessions:
            link.send(_told(self._trouble))
        wrong = self._wrongs.pop(number, None)
        if wrong is not None:
            raise wrong  # the link is cut by who reads it

    def _on_resume(self, visitor: Link, message: wire.Resume) -> None:
        link = self._sessions.get(message.session)
        if link is None:  # of a node that was declared dead, or that knows another service before this one
            visitor.send(cluster.Anew())
            return
        self._forget(visitor)
        link.go_on_with(visitor, message)
        if link in self._numbers:
            self.give(steps.Back(self._numbers[link]))

    def _on_broken(self, link: Link, why: str) -> None:
        if link.session in self._sessions:
            self.give(steps.Broke(self._numbers[link]))
        else:
            self._drop(link)

    def _on_closed(self, link: Link, why: str) -> None:
        """It was no node's, or that node has forgotten this service."""
        self._sessions.pop(link.session, None)
        self._forget(link)

    def _drop(self, link: Link) -> None:
        link.close()
        self._forget(link)

    def _forget(self, link: Link) -> None:
        number = self._numbers.pop(link, 0)
        if number:
            del self._links[number]
            self._joining.pop(number, None)
            self.give(steps.Ended(number))

    # -- what the state says ------------------------------------------------------------------------------------------

    def send(self, link: int, message: wire.Message) -> None:
        self.before_sent(link, message)
        known = self._links.get(link)
        if known is not None:
            known.send(message)

    def before_sent(self, link: int, message: wire.Message) -> None:
        """A node that joins may go on with its link from now on."""
        if isinstance(message, cluster.Joined) and link in self._joining:
            known = self._links[link]
            known.node_id = message.node_id
            known.last(self._joining.pop(link))
            known.on_broken = self._on_broken
            known.on_refused = lambda refused, refusal: self.give(steps.TooLong(link, refusal))
            self._sessions[known.session] = known

    def enveloped(self, process_id: bytes, message: wire.Message) -> wire.Message:
        return cluster.ToProcess(process_id, message)  # type: ignore[arg-type]

    def has_backlog(self, link: int) -> bool | None:
        known = self._links.get(link)
        return known.has_backlog if known is not None else None

    def disconnect(self, link: int) -> None:
        """Over a connection that still stands the node can be told that it was declared dead."""
        known = self._links.get(link)
        if known is not None:
            self._sessions.pop(known.session, None)
            if not known.is_connected:
                self._drop(known)

    def cut(self, link: int, error: Exception) -> None:
        self._wrongs[link] = error

    def note(self, text: str) -> None:
        log.info("%s", text)

    # -- the storage --------------------------------------------------------------------------------------------------

    def describe_store(self) -> dict[str, Any]:
        """The answer to the question "store"."""
        row = self.control.nodes.cluster
        about: dict[str, Any] = {
            "cluster_id": row.cluster_id,
            "began_at": row.began_at,
            "incarnation": self.control.incarnation,
            "messages_waiting": self.ledger.waiting,
            "events": [event for event in self.control.answer("events") if event["kind"] == "store"][-EVENTS_SHOWN:],
        }
        storage = self.ledger.storage
        if storage is None:
            return {**about, "engine": "none", "shards": [], "tables": {}, "trouble": None}
        from skate._control.describing import describe  # asked for by people, now and then

        return {**about, **describe(storage)}

    def on_trouble(self, before: Trouble | None, now: Trouble | None) -> None:
        if now is not None:
            log.warning("%s %s What needs it waits.", now.error.what, now.error.why)
        elif before is not None:
            for_s = time.time() - before.since
            log.warning("the store can be written again, after %.1f s", for_s)
            self.give(steps.Recovered(before.error.what, before.error.why, for_s))
        for link in self.control.nodes.links.values():
            self.send(link, _told(now))  # without waiting for the storage, of all things

    # -- the end ------------------------------------------------------------------------------------------------------

    def on_store_lost(self, error: Exception) -> None:
        """Another service may have the store now: this one says nothing more."""
        log.error("the control service ends: %s", error)
        self._end(str(error))

    def end_cluster(self, reason: str, *, keep: bool = False) -> None:
        """All nodes end. keep: a service that has the same store goes on with the cluster one day."""
        self._carry_out(self.control.end_now(reason, time.monotonic(), keep=keep))

    def end(self, reason: str) -> None:
        self.has_said_goodbye = True
        for link in self._links.values():
            link.flush()
        self._end(reason)

    def end_anyway(self, reason: str) -> None:
        if not self.has_said_goodbye:
            log.warning("the cluster ends, and its store could not be told so")
            for link in self.control.nodes.links.values():
                self.send(link, cluster.End(reason))
            self.end(reason)

    @property
    def is_listened_to(self) -> bool:
        """Whether a node has not gone yet."""
        return any(link.is_connected for link in self._sessions.values())


def _told(trouble: Trouble | None) -> cluster.StoreTrouble:
    return (
        cluster.StoreTrouble() if trouble is None else cluster.StoreTrouble(f"{trouble.error.what} {trouble.error.why}")
    )
