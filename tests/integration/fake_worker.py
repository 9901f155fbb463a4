"""A worker that runs Python text, so that the node daemon can be tested without the runtime.

A task's `fn` is the text. It sees `daemon` (its control channel), `start`, `said` (what the daemon sent so far) and
`owner`, and what it calls `value` is the result.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import sys
from typing import Any

from skate._core.task import Result
from skate._node.zygote import WorkerStart
from skate._store.layout import arena_file_bytes, slot_offset
from skate._wire import messages as wire
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed


def run(start: WorkerStart) -> None:
    daemon = Channel(socket.socket(fileno=start.control_fd), carries_fds=True)
    daemon.send(wire.Hello(os.getpid(), "worker"))
    arena = mmap.mmap(start.arena_fd, arena_file_bytes(start.arena_bytes))
    peers: dict[Channel, bytes] = {}
    said: list[Any] = []
    buffer = bytearray(RECEIVE_BYTES)
    stays = False
    while True:
        readable, _, _ = select.select([daemon, *peers], [], [])
        for channel in readable:
            try:
                messages = channel.receive(buffer)
            except ChannelClosed:
                if channel is daemon:
                    return
                del peers[channel]
                channel.close()
                continue
            for message in messages:
                if isinstance(message, wire.PeerConnected):
                    peers[Channel(socket.socket(fileno=daemon.fds.popleft()))] = message.process_id
                elif isinstance(message, wire.CollectEvents):
                    events = [("step", b"t" * 20, 1.0, 2.0)]
                    daemon.send(wire.Events(message.request, len(events), wire.encode_events(events)))
                elif isinstance(message, wire.Retire):
                    said.append(message)
                    daemon.send(wire.Ready() if stays else wire.Retire())
                    if not stays:
                        return
                elif isinstance(message, wire.Tasks):
                    for task in message.tasks:
                        at = slot_offset(start.slot)
                        arena[at : at + 20] = task.id
                        space: dict[str, Any] = {
                            "daemon": daemon,
                            "start": start,
                            "said": said,
                            "owner": channel,
                            "wire": wire,
                            "value": None,
                        }
                        with contextlib.redirect_stdout(sys.__stdout__):
                            exec(task.fn.decode(), space)
                        stays = space.get("stays", stays)
                        arena[at : at + 20] = bytes(20)
                        channel.send(wire.Results([Result(task.id, repr(space["value"]).encode())]))
                else:
                    said.append(message)


def fail(start: WorkerStart) -> None:
    """A worker that dies before it is ready."""
    raise RuntimeError("the worker has a bad day")
