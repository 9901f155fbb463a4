"""Objects between this node and others: what is wanted here is brought, what is wanted there is served.

    a process ──Pin of what lies elsewhere──▶ Transfers ──▶ Pulls (decides; pure)
                                                 │ Locate ──▶ control service: from whom? (silent: from its maker)
                                                 │ AskChunk ──▶ that node ══chunks══▶ Inlet, into the arena
                                                 └ sealed; the Pin goes on to the store as if it had been here all along

    another node ──AskChunk──▶ Transfers: pinned here, or on its own way here ──▶ Outlet ══chunks══▶ that node

A copy belongs to this module, under a name of its own among the store's processes, until the control service says that
its object is gone, or the store drops it because memory is short: only while the node that made the object lives. Who
made an object is told once somebody asks for it (Tracked), and tells when it is freed.

Owns:      pulls, the connections that carry chunks, and which objects of this node others know of.
Knows not: which chunk comes next, or from whom; see `_core/pulls.py` and `_core/locations.py`.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from skate._core import pulls as core
from skate._core.ids import NODE_BYTES, node_at, node_of, size_at
from skate._node.courier import Done, Inlet, Outlet
from skate._node.transfer_records import Chunk, Room, Serving
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.guard import ProtocolError
from skate._wire.link import Link
from skate._wire.loop import Timer

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.neighbours import Neighbours


#: After a source has failed, the next one is asked for after a pause, which grows: ten of them take longer than it
#: takes to know that a node is dead.
LOCATE_AGAIN_S = 0.05
LOCATE_AGAIN_S_MAX = 1.0
#: A connection that was to be made for another node and failed is tried again after this time.
OFFER_AGAIN_S = 0.2
#: From objects of at least this size it is learnt how fast they arrive.
MEASURED_BYTES = 1 << 20
#: An object that others know of, and this node does not, is taken to be freed after this time.
SEAL_GRACE_S = 10.0


class Transfers:
    def __init__(self, daemon: Daemon, neighbours: Neighbours) -> None:
        self._daemon = daemon
        self._neighbours = neighbours
        self._pulls = core.Pulls(daemon.config.object_store_memory)
        prefix = daemon.node_id[:NODE_BYTES]
        #: Names among the processes of the store: whose copies are, who pins what is served, who says "not here".
        self.keeper, self.server, self._nobody = prefix + b"-copies-", prefix + b"-serves-", prefix + b"-nobody-"
        self._places: dict[bytes, int] = {}
        self._rooms: dict[int, Room] = {}
        self._room_of: dict[bytes, int] = {}
        #: Nodes that an object was asked of.
        self._asked_of: dict[bytes, set[int]] = {}
        #: Nodes that were sent chunks of an object that was on its own way here.
        self._passed_on: dict[bytes, set[int]] = {}
        #: Rooms that such chunks are read from until they are sent, by node and tag.
        self._sends: dict[tuple[int, int], int] = {}
        #: Pins that wait for objects: what each still lacks.
        self._pins: dict[tuple[bytes, int], tuple[wire.Pin, set[bytes]]] = {}
        #: The ids in those pins, how many times each: what is here already must still be here when the rest has come.
        self._awaited_ids: Counter[bytes] = Counter()
        #: Copies here, and the nodes where they were made.
        self._makers: dict[bytes, int] = {}
        self._inlets: dict[int, Inlet] = {}
        self._opening: dict[int, Link] = {}
        #: Nodes that listen nowhere and were asked to make a connection.
        self._invited: set[int] = set()
        self._unasked: dict[int, list[cluster.AskChunk]] = {}
        #: Questions for a source that are asked after a pause.
        self._locate_later: dict[bytes, Timer] = {}
        #: Why pins fail that wait for a node that could not be reached for too long.
        self._out_of_reach = ""
        self._chunks: dict[int, Chunk] = {}
        self._tags = itertools.count(1)
        self._outlets: dict[int, Outlet] = {}
        self._unsent: dict[int, list[tuple[int, int, int]]] = {}
        self._serving: dict[bytes, Serving] = {}
        self._pin_requests: dict[int, bytes] = {}
        self._numbers = itertools.count(1)
        #: Chunks that others asked for before they were here: (node, start, size, tag), by object and chunk.
        self._awaited: dict[tuple[bytes, int], list[tuple[int, int, int, int]]] = {}
        #: Objects made here that the control service knows of.
        self._tracked: set[bytes] = set()
        #: From couriers' threads: (node, received?, tags or None).
        self._reports: deque[tuple[int, object, list[int] | None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        daemon.loop.watch(self._wake_fd, self._on_wake)
        daemon.store.let_drop(self.keeper, self._is_redundant, self._on_dropped)

    # -- wanting ------------------------------------------------------------------------------------------------------

    def on_pin(self, process_id: bytes, message: wire.Pin) -> bool:
        """Whether the pin waits here, because something of it lies elsewhere."""
        missing = self._want(process_id, message.ids, message.places, core.NOW)
        if not missing:
            return False
        self._pins[process_id, message.request] = (message, missing)
        self._awaited_ids.update(message.ids)
        self._do(self._commands)
        return True

    def on_prefetch(self, process_id: bytes, message: wire.Prefetch) -> None:
        if self._want(process_id, message.ids, message.places, core.SOON):
            self._do(self._commands)

    def _want(self, process_id: bytes, ids: list[bytes], places: list[int], urgency: int) -> set[bytes]:
        """Those that are not here; what is to be done about them is in `_commands`."""
        missing = set()
        self._commands: list[core.Command] = []
        for id, place in zip(ids, places):
            if node_at(place) != self._daemon.number and not self._daemon.store.has(id):
                missing.add(id)
                self._places[id] = place
                self._commands += self._pulls.want(id, size_at(place), process_id, urgency)
        return missing

    def on_process_died(self, process_id: bytes) -> None:
        for key in [key for key in self._pins if key[0] == process_id]:
            self._end_pin(key)
        self._do(self._pulls.forget_all(process_id))
        self.sweep()

    def _settle(self, object: bytes) -> None:
        """It is here, or cannot be had: pins that lack nothing else go on."""
        for key, (message, missing) in list(self._pins.items()):
            missing.discard(object)
            if not missing:
                self._end_pin(key)
                self._daemon.store.handle(key[0], message, time.monotonic())

    def _end_pin(self, key: tuple[bytes, int]) -> None:
        message, _ = self._pins.pop(key)
        for id in message.ids:
            self._awaited_ids[id] -= 1
            if not self._awaited_ids[id]:
                del self._awaited_ids[id]

    def _refuse(self, object: bytes, why: core.Refusal) -> None:
        """There is no room for it: pins that lack it are answered as the store itself would. What else they lack may
        come: they are likely to be asked for again."""
        for key, (message, missing) in list(self._pins.items()):
            if object in missing:
                self._end_pin(key)
                self._daemon.send(key[0], wire.StoreFull(message.request, why.report, why.disk, why.holders))

    def _do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Reserve(room, object, size):
                    self._rooms[room] = Room(object, size)
                    self._room_of[object] = room
                    self._daemon.store.handle(self.keeper, wire.Allocate(room, size), time.monotonic())
                case core.Locate(object):
                    pull = self._pulls.pulls[object]
                    if pull.failures or pull.beyond:  # it may be out of reach for a moment only
                        pause_s = LOCATE_AGAIN_S_MAX if pull.beyond else LOCATE_AGAIN_S * 2**pull.failures
                        when = time.monotonic() + min(LOCATE_AGAIN_S_MAX, pause_s)
                        timer = self._daemon.loop.call_at(when, functools.partial(self._locate, object))
                        self._locate_later[object] = timer
                    else:
                        self._locate(object)
                case core.Ask(source, object, chunk):
                    self._ask(source, object, chunk)
                case core.Arrived(object):
                    self._on_arrived(object)
                case core.Unavailable(object):
                    self._places.pop(object, None)
                    self._daemon.store.handle(self._nobody, wire.Free([object]), time.monotonic())
                    self._settle(object)
                case core.Refused(object, _, why):
                    self._places.pop(object, None)
                    self._refuse(object, why)
                case core.OutOfReach(object):
                    self._places.pop(object, None)
                    self._fail_pins(object)
                case core.FreeRoom(room):
                    self._give_up(room)

    def _locate(self, object: bytes) -> None:
        self._locate_later.pop(object, None)
        if object in self._places:  # otherwise it was given up meanwhile
            self._neighbours.control.tell(cluster.Locate(object, self._places[object]))
            if self._neighbours.control.silence() is not None:
                self._pull_from_maker(object)

    def on_control_back(self) -> None:
        """A service that was started again does not know what was asked."""
        for object in self._pulls.locating():
            if object not in self._locate_later:
                self._locate(object)

    def held(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """For a control service that was started again: what was made here and others know of, with the owners, and
        the copies that are here."""
        store = self._daemon.store
        return [(id, store.owner_of(id)) for id in self._tracked if store.has(id)], list(self._makers)

    def on_control_silent(self) -> None:
        """The control service, which knows where copies are, does not answer: what waits for that goes on."""
        for object in self._pulls.locating():
            self._pull_from_maker(object)

    def _pull_from_maker(self, object: bytes) -> None:
        number = node_at(self._places[object])
        maker = self._neighbours.members.get(number)
        if maker is not None and not self._neighbours.reach.is_cut(number):  # otherwise only the control service helps
            self._do(self._pulls.not_answered(object, maker.view.id))

    def on_store_reply(self, process_id: bytes, message: wire.Message) -> None:
        """From the store, to one of our names in it."""
        match message:
            case wire.Allocated(number, offset, _):
                room = self._rooms[number]
                room.offset = offset
                self._do(self._pulls.reserved(number, room.object))
            case wire.StoreFull(number, report, disk, holders) if process_id == self.keeper:
                room = self._rooms.pop(number)
                if self._room_of.get(room.object) == number:
                    del self._room_of[room.object]
                self._do(self._pulls.refused(number, room.object, core.Refusal(report, disk, holders)))
            case wire.Pinned(number, [(offset, size)]):
                self._on_pinned(self._pin_requests.pop(number), offset, size)
            case wire.StoreFull(number):
                self._on_pinned(self._pin_requests.pop(number), -1, 0)

    def on_located(self, message: cluster.Located) -> None:
        member = self._neighbours.members.get(message.source)
        source = member.view.id if member is not None else None
        if source is not None and self._neighbours.reach.is_cut(message.source):
            self._do(self._pulls.out_of_reach(message.object, source))
        else:
            self._do(self._pulls.located(message.object, source))

    def _on_arrived(self, object: bytes) -> None:
        number = self._room_of.pop(object)
        room = self._rooms.pop(number)
        maker = node_at(self._places.pop(object, 0))
        if room.size >= MEASURED_BYTES:
            self._daemon.bytes_per_s.learn(room.size / max(1e-6, time.monotonic() - room.since))
        self._makers.pop(object, None)
        seal = wire.Seal([(object, self.keeper, room.offset, room.size)])
        self._daemon.store.handle(self.keeper, seal, time.monotonic())
        passed_on = self._passed_on.pop(object, None)
        if passed_on is not None:  # they may still want the rest, and what was sent may still be read
            self._begin_serving(object).nodes |= passed_on
        self._neighbours.control.tell(cluster.CopyStored(object))
        self._tell_sources(object)
        self._settle(object)
        # Not earlier: until those for whom it came have pinned it, it must not be dropped.
        if self._daemon.store.has(object):
            self._makers[object] = maker

    def _is_redundant(self, id: bytes) -> bool:
        """Whether a copy can be had again, as far as is known here, and no pin waits for it."""
        return id not in self._awaited_ids and self._makers.get(id) in self._neighbours.members

    def _on_dropped(self, id: bytes) -> None:
        self._makers.pop(id, None)
        self._neighbours.control.tell(cluster.CopyDropped(id))

    def _tell_sources(self, object: bytes) -> None:
        for node in self._asked_of.pop(object, ()):
            self._neighbours.send(node, cluster.DoneWith(object))

    def _give_up(self, number: int) -> None:
        """The room goes back to the store as soon as nobody writes into it."""
        room = self._rooms[number]
        room.given_up = True
        if self._room_of.get(room.object) == number:
            del self._room_of[room.object]
            self._passed_on.pop(room.object, None)
            self._neighbours.control.tell(cluster.CopyDropped(room.object))
            self._tell_sources(room.object)
            self._refuse_awaited(room.object)
        for tag, chunk in list(self._chunks.items()):
            if chunk.room == number and chunk.wanted:
                chunk.wanted = False
                inlet = self._inlets.get(node_of(chunk.source))
                if inlet is None or inlet.forget(tag):
                    del self._chunks[tag]
                    room.busy -= 1
        self._return_if_idle(number)

    def _return_if_idle(self, number: int) -> None:
        room = self._rooms.get(number)
        if room is not None and room.given_up and not room.busy and number not in self._sends.values():
            del self._rooms[number]
            if room.offset >= 0:
                space = wire.ReturnSpace(room.offset, room.size)
                self._daemon.store.handle(self.keeper, space, time.monotonic())

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _ask(self, source: bytes, object: bytes, index: int) -> None:
        number = self._room_of[object]
        room = self._rooms[number]
        node = node_of(source)
        start = index * core.CHUNK_BYTES
        tag = next(self._tags)
        self._chunks[tag] = Chunk(object, index, source, number)
        self._asked_of.setdefault(object, set()).add(node)
        room.busy += 1
        ask = cluster.AskChunk(object, start, min(core.CHUNK_BYTES, room.size - start), tag)
        if node in self._inlets:
            self._send_ask(node, ask)
        else:
            self._unasked.setdefault(node, []).append(ask)
            self._open_inlet(node)

    def _send_ask(self, node: int, ask: cluster.AskChunk) -> None:
        room = self._rooms[self._chunks[ask.tag].room]
        self._inlets[node].expect(ask.tag, room.offset + ask.start, ask.size)
        self._neighbours.send(node, ask)

    def _open_inlet(self, node: int) -> None:
        if node in self._opening:
            return
        member = self._neighbours.members.get(node)
        if member is None:
            self._source_failed(node)
            return
        if not member.port:
            if node not in self._invited:
                self._invited.add(node)
                self._neighbours.send(node, cluster.PleaseTransfer())
            return

        def on_message(link: Link, message: object) -> None:
            if not isinstance(message, cluster.TransferOpened):
                raise ProtocolError(f"{type(message).__name__} came instead of TransferOpened")
            del self._opening[node]
            self._begin_receiving(node, link.hand_over())

        def on_lost(link: Link, why: str) -> None:
            if self._opening.pop(node, None) is link:
                self._source_failed(node)

        self._neighbours.link_to(node)  # its heartbeats tell whether that node can be reached
        link = self._opening[node] = Link(self._daemon.loop, on_message, on_lost, name="transfer", one_by_one=True)
        link.send(cluster.OpenTransfer(self._daemon.node_id))
        link.connect(member.host, member.port, self._neighbours.token, self._neighbours.tls)

    def _begin_receiving(self, node: int, sock: socket.socket) -> None:
        done = self._on_done(node, Inlet)
        self._inlets[node] = Inlet(sock, self._daemon.store.view, done, asked_before=next(self._tags))
        for ask in self._unasked.pop(node, []):
            if ask.tag in self._chunks and self._chunks[ask.tag].wanted:
                self._send_ask(node, ask)
            else:
                self._forget_chunk(ask.tag)

    def on_offered(self, node_id: bytes, sock: socket.socket) -> None:
        """A node that listens nowhere has made a connection to send chunks over."""
        node = node_of(node_id)
        self._invited.discard(node)
        old = self._inlets.pop(node, None)
        if old is not None:
            old.close()
            self._source_failed(node)
        self._begin_receiving(node, sock)

    def offer(self, node: int) -> None:
        """A node that cannot reach us wants chunks of ours."""
        member = self._neighbours.members.get(node)
        if member is None:
            return

        def on_message(link: Link, message: object) -> None:
            self.on_opened(member.view.id, link.hand_over())

        def on_lost(link: Link, why: str) -> None:
            self._daemon.loop.call_at(time.monotonic() + OFFER_AGAIN_S, lambda: self.offer(node))

        link = Link(self._daemon.loop, on_message, on_lost, name="transfer", one_by_one=True)
        link.send(cluster.OfferTransfer(self._daemon.node_id))
        link.connect(member.host, member.port, self._neighbours.token, self._neighbours.tls)

    def _on_received(self, tag: int) -> None:
        chunk = self._chunks.get(tag)
        if chunk is None:
            return
        wanted, object, index = chunk.wanted, chunk.object, chunk.index
        number = chunk.room
        self._forget_chunk(tag)
        if wanted and self._room_of.get(object) == number:
            for ask in self._awaited.pop((object, index), []):
                self._send_part(object, *ask)
            self._do(self._pulls.received(object, index, chunk.source))

    def _forget_chunk(self, tag: int) -> None:
        chunk = self._chunks.pop(tag, None)
        if chunk is not None:
            room = self._rooms.get(chunk.room)
            if room is not None:
                room.busy -= 1
                self._return_if_idle(chunk.room)

    def _source_failed(self, node: int) -> None:
        """Nothing more comes from there over this connection. What was asked is asked of others, or again."""
        counts = not self._neighbours.reach.is_cut(node)
        self._unasked.pop(node, None)
        lost = [(tag, chunk) for tag, chunk in self._chunks.items() if node_of(chunk.source) == node]
        objects = {chunk.object: chunk.source for _, chunk in lost if chunk.wanted}
        for tag, _ in lost:
            self._forget_chunk(tag)
        for object, source in objects.items():
            self._do(self._pulls.failed(object, source, counts=counts))

    def on_chunk_failed(self, node: int, message: cluster.ChunkFailed) -> None:
        """The source has it no more."""
        chunk = self._chunks.get(message.tag)
        if chunk is None:
            return
        for tag, other in list(self._chunks.items()):
            if other.object == chunk.object and other.source == chunk.source:
                inlet = self._inlets.get(node)
                other.wanted = False
                if tag == message.tag or inlet is None or inlet.forget(tag):
                    if tag == message.tag and inlet is not None:
                        inlet.forget(tag)
                    self._forget_chunk(tag)
        if message.freed and node == node_at(self._places.get(chunk.object, 0)):
            # Its maker keeps it for as long as anybody may have it: there is no other source to look for.
            self._do(self._pulls.lost(chunk.object))
        else:
            self._do(self._pulls.failed(chunk.object, chunk.source))

    # -- serving ------------------------------------------------------------------------------------------------------

    def on_opened(self, node_id: bytes, sock: socket.socket) -> None:
        """Another node has made a connection to have chunks sent over."""
        node = node_of(node_id)
        old = self._outlets.pop(node, None)
        if old is not None:
            old.close()
        outlet = self._outlets[node] = Outlet(sock, self._daemon.store.fd, self._on_done(node, Outlet))
        for tag, offset, size in self._unsent.pop(node, []):
            outlet.send(tag, offset, size)

    def on_ask_chunk(self, node: int, message: cluster.AskChunk) -> None:
        object = message.object
        ask = (node, message.start, message.size, message.tag)
        if object in self._room_of:  # it is on its own way here
            index = message.start // core.CHUNK_BYTES
            if self._pulls.can_serve(object, index):
                self._send_part(object, *ask)
            else:
                self._awaited.setdefault((object, index), []).append(ask)
            return
        serving = self._serving.get(object)
        if serving is None:
            serving = Serving()
            serving.waiting.append(ask)
            serving.nodes.add(node)
            self._begin_serving(object, serving)
            return
        serving.nodes.add(node)
        if serving.offset < 0:
            serving.waiting.append(ask)
        else:
            self._send_part(object, *ask)

    def _begin_serving(self, object: bytes, serving: Serving | None = None) -> Serving:
        serving = self._serving[object] = serving or Serving()
        number = next(self._numbers)
        self._pin_requests[number] = object
        self._daemon.store.handle(self.server, wire.Pin(number, [object]), time.monotonic())
        return serving

    def _on_pinned(self, object: bytes, offset: int, size: int) -> None:
        serving = self._serving[object]
        serving.offset, serving.size = offset, size
        waiting, serving.waiting = serving.waiting, []
        if offset < 0:
            del self._serving[object]
            freed = self._daemon.store.was_freed(object)
            for node, _start, _size, tag in waiting:
                self._neighbours.send(node, cluster.ChunkFailed(object, tag, freed))
            return
        self._tell_owner(object)
        for ask in waiting:
            self._send_part(object, *ask)

    def _send_part(self, object: bytes, node: int, start: int, size: int, tag: int) -> None:
        number = self._room_of.get(object)
        if number is not None:
            offset, whole = self._rooms[number].offset, self._rooms[number].size
            self._sends[node, tag] = number
            self._passed_on.setdefault(object, set()).add(node)
        else:
            serving = self._serving.get(object)
            if serving is None:
                self._neighbours.send(node, cluster.ChunkFailed(object, tag))
                return
            offset, whole = serving.offset, serving.size
        if start + size > whole:
            raise ProtocolError(f"a chunk behind the end of {object.hex()} was asked for")
        outlet = self._outlets.get(node)
        if outlet is not None:
            outlet.send(tag, offset + start, size)
        else:
            self._unsent.setdefault(node, []).append((tag, offset + start, size))

    def on_done_with(self, node: int, message: cluster.DoneWith) -> None:
        """That node pulls it no more."""
        serving = self._serving.get(message.object)
        if serving is not None:
            serving.nodes.discard(node)
            if not serving.nodes and serving.offset >= 0:
                self._stop_serving(message.object)

    def _stop_serving(self, object: bytes) -> None:
        del self._serving[object]
        self._daemon.store.handle(self.server, wire.Unpin([object]), time.monotonic())

    def _refuse_awaited(self, object: bytes) -> None:
        for key in [key for key in self._awaited if key[0] == object]:
            for node, _start, _size, tag in self._awaited.pop(key):
                self._neighbours.send(node, cluster.ChunkFailed(object, tag))

    # -- couriers -----------------------------------------------------------------------------------------------------

    def _on_done(self, node: int, kind: object) -> Done:
        def done(tags: list[int] | None) -> None:
            self._reports.append((node, kind, tags))
            os.eventfd_write(self._wake_fd, 1)

        return done

    def _on_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)
        while self._reports:
            node, kind, tags = self._reports.popleft()
            if tags is not None:
                for tag in tags:
                    if kind is Inlet:
                        self._on_received(tag)
                    else:
                        self._on_sent(node, tag)
            elif kind is Inlet:
                self._inlets.pop(node, None)
                self._source_failed(node)
            else:
                self._outlets.pop(node, None)
                self._node_asks_no_more(node)

    def _on_sent(self, node: int, tag: int) -> None:
        number = self._sends.pop((node, tag), None)
        if number is not None:
            self._return_if_idle(number)

    def on_cut(self, node: int) -> None:
        """It cannot be reached: what it sends comes from others, if there are any. What it wants it asks for again."""
        self.on_node_gone(node)

    def on_healed(self, node: int) -> None:
        """What only that node has is asked for at once."""
        member = self._neighbours.members.get(node)
        for object in self._pulls.beyond(member.view.id) if member is not None else []:
            timer = self._locate_later.pop(object, None)
            if timer is not None:  # otherwise the question is on its way
                timer.cancel()
                self._locate(object)

    def on_unreachable(self, node: int, reason: str, *, again: bool) -> None:
        """The node could not be reached for too long: processes that wait for what only that node has are told.

        again: those were told that waited when the grace was over. It is the turn of those that have asked since, but
        for tasks, whose arguments are waited for until the next grace is over.
        """
        member = self._neighbours.members.get(node)
        if member is None:
            return
        self._out_of_reach = reason
        if not again:
            self._do(self._pulls.grace_over(member.view.id))
            return
        for object in self._pulls.beyond(member.view.id):
            self._fail_pins(object, only_impatient=True)

    def _fail_pins(self, object: bytes, *, only_impatient: bool = False) -> None:
        for key, (message, missing) in list(self._pins.items()):
            if object in missing and not (only_impatient and message.is_patient):
                self._end_pin(key)
                self._daemon.send(key[0], wire.FetchFailed(message.request, object, self._out_of_reach))

    def on_node_gone(self, node: int) -> None:
        self._invited.discard(node)
        inlet = self._inlets.pop(node, None)
        if inlet is not None:
            inlet.close()
        self._source_failed(node)
        opening = self._opening.pop(node, None)
        if opening is not None:
            opening.close()
        outlet = self._outlets.pop(node, None)
        if outlet is not None:
            outlet.close()
        self._node_asks_no_more(node)

    def _node_asks_no_more(self, node: int) -> None:
        self._unsent.pop(node, None)
        for key in [key for key in self._sends if key[0] == node]:
            self._on_sent(*key)
        for nodes in self._passed_on.values():
            nodes.discard(node)
        for wanted, asks in list(self._awaited.items()):
            self._awaited[wanted] = [ask for ask in asks if ask[0] != node]
        for object, serving in list(self._serving.items()):
            serving.waiting = [ask for ask in serving.waiting if ask[0] != node]
            self.on_done_with(node, cluster.DoneWith(object))

    # -- seeing inside ------------------------------------------------------------------------------------------------

    def describe(self) -> dict[bytes, tuple[str, bytes, int]]:
        return self._pulls.describe()

    # -- the ends of objects ------------------------------------------------------------------------------------------

    def on_tracked(self, object: bytes) -> None:
        """The control service knows of it, and wants to hear of its end."""
        self._tracked.add(object)
        if self._daemon.store.has(object):
            self._tell_owner(object)  # again: that it was pulled may have been heard only now
        else:  # it is gone, or its seal is on the way
            self._daemon.loop.call_at(time.monotonic() + SEAL_GRACE_S, self.sweep)

    def _tell_owner(self, object: bytes) -> None:
        owner = self._daemon.store.owner_of(object)
        if owner != self.keeper:
            self._tracked.add(object)  # what it is told of counts as a copy until it is told of the end, too
            self._neighbours.control.tell(cluster.Owned(object, owner))

    def on_freed(self, ids: list[bytes]) -> None:
        gone = self._tracked.intersection(ids)
        if gone:
            self._tracked -= gone
            self._neighbours.control.tell(cluster.Freed(list(gone)))

    def sweep(self) -> None:
        """Tell of the ends of those that are gone."""
        gone = [id for id in self._tracked if not self._daemon.store.has(id)]
        if gone:
            self._tracked.difference_update(gone)
            self._neighbours.control.tell(cluster.Freed(gone))

    def free_copies(self, ids: list[bytes]) -> None:
        """Of objects whose own node is gone."""
        self._neighbours.control.tell(cluster.Freed(ids))

    def on_drop_copies(self, ids: list[bytes]) -> None:
        for id in ids:
            self._makers.pop(id, None)
        self._daemon.store.handle(self.keeper, wire.Free(ids), time.monotonic())
