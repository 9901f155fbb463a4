"""A floor for the task hot path: what moving tiny tasks and their results costs in plain Python on this machine.

It is no runtime: one driver, a few forked workers and a socket pair to each. Nobody schedules, counts references,
keeps lineage or survives an error. What remains is the work that no runtime can leave out: give the task an id,
encode it, write it, decode it, call the function, and the same on the way back. Skate's figures are divided by these,
measured by the same loops in the same run.

Three ideas make the floor as low as it is, and Skate shares them:

- A task leaves at once while some worker is idle. While all are busy tasks collect, and the next full batch or the next
  reply takes them along in one write.
- The thread that waits is the thread that reads. All sockets are in one epoll set, and the I/O thread sleeps on a
  second set that holds only the first, armed for one event. `get` disarms that, reads for itself, and arms it again
  at the end.
- Both sides look again for a short while before they sleep, because waking a sleeping core costs more than the whole
  trip.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

_HEADER = struct.Struct("<I")
_ARMED = select.EPOLLIN | select.EPOLLONESHOT
_READ_BYTES = 1 << 20
_SPIN_S = 50e-6
_BATCH = 256  # tasks in one write
# Tasks on their way to one worker. The replies to so many small tasks fit into a socket's buffer: a worker never waits
# for the driver to read, so it always goes on reading itself, and a send of the driver always ends.
_DEPTH = 4000
_FLUSH_S = 1e-3  # a worker sends what it has done at least this often


class Task(msgspec.Struct, array_like=True, gc=False):
    """Driver → worker: run function number `function` with these pickled arguments."""

    id: bytes
    function: int
    args: bytes


class Done(msgspec.Struct, array_like=True, gc=False):
    """Worker → driver: the pickled value of a task, or its error."""

    id: bytes
    ok: bool
    value: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_tasks = msgspec.msgpack.Decoder(list[Task]).decode
_decode_done = msgspec.msgpack.Decoder(list[Done]).decode
_NONE = pickle.dumps(None, 5)


class Channel:
    """Frames over a socket: four bytes of length, then the payload."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unread = bytearray()

    def send(self, payload: bytes) -> None:
        self.sock.sendall(_HEADER.pack(len(payload)) + payload)

    def receive(self, spin_s: float = 0.0) -> list[bytes]:
        """Read once, after looking for up to `spin_s`, and return every frame that is whole by now."""
        unread = self._unread
        unread += self._read(spin_s)
        frames, start = [], 0
        while len(unread) - start >= _HEADER.size:
            body = start + _HEADER.size
            end = body + _HEADER.unpack_from(unread, start)[0]
            if end > len(unread):
                break
            frames.append(bytes(unread[body:end]))
            start = end
        del unread[:start]
        return frames

    def _read(self, spin_s: float) -> bytes:
        data = None
        until = time.perf_counter() + spin_s
        while data is None and spin_s and time.perf_counter() < until:
            try:
                data = self.sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        if data is None:
            data = self.sock.recv(_READ_BYTES)
        if not data:
            raise EOFError
        return data


def _run_worker(sock: socket.socket, functions: Sequence[Callable[..., Any]]) -> None:
    """Run tasks until the driver closes its end."""
    channel = Channel(sock)
    now, loads, dumps = time.perf_counter, pickle.loads, pickle.dumps
    while True:
        for frame in channel.receive(_SPIN_S):
            done: list[Done] = []
            since = now()
            for task in _decode_tasks(frame):
                try:
                    value = functions[task.function](*(loads(task.args) if task.args else ()))
                    done.append(Done(task.id, True, _NONE if value is None else dumps(value, 5)))
                except Exception as error:
                    done.append(Done(task.id, False, dumps(error, 5)))
                if now() - since > _FLUSH_S:
                    channel.send(_encode(done))
                    done, since = [], now()
            if done:
                channel.send(_encode(done))


class Ref:
    """A future. Its finalizer only notes that it is gone; the reader drops the value."""

    __slots__ = ("_dropped", "id")

    def __init__(self, task_id: bytes, dropped: deque[bytes]) -> None:
        self.id = task_id
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.id)


class Driver:
    """Submits tasks to `workers` forked processes and collects their results."""

    def __init__(self, workers: int, functions: Sequence[Callable[..., Any]]) -> None:
        self._prefix, self._counter = os.urandom(12), 0
        self._values: dict[bytes, Done] = {}
        self._waiting: deque[Task] = deque()
        self._dropped: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._channels: list[Channel] = []
        for _ in range(workers):
            self._channels.append(Channel(self._fork(functions)))
        self._in_flight = [0] * workers
        self._index = {channel.sock.fileno(): i for i, channel in enumerate(self._channels)}
        self._sockets, self._wake = select.epoll(), select.epoll()
        for fd in self._index:
            self._sockets.register(fd, select.EPOLLIN)
        self._wake.register(self._sockets.fileno(), _ARMED)
        threading.Thread(target=self._read_when_nobody_waits, daemon=True).start()

    def _fork(self, functions: Sequence[Callable[..., Any]]) -> socket.socket:
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                ours.close()
                for channel in self._channels:  # otherwise an earlier worker would never see the end of its socket
                    channel.sock.close()
                _run_worker(theirs, functions)
            finally:
                os._exit(0)
        theirs.close()
        return ours

    def submit(self, function: int, *args: Any) -> Ref:
        self._counter += 1
        task_id = self._prefix + self._counter.to_bytes(4, "big") + b"\0\0\0\0"
        self._waiting.append(Task(task_id, function, pickle.dumps(args, 5) if args else b""))
        if 0 in self._in_flight or len(self._waiting) >= _BATCH:
            self._flush()
        return Ref(task_id, self._dropped)

    def get(self, refs: Iterable[Ref]) -> list[Any]:
        self._flush()
        values, out = self._values, []
        with self._reading:
            self._wake.modify(self._sockets.fileno(), 0)
            try:
                for ref in refs:
                    until = time.perf_counter() + _SPIN_S
                    while (done := values.get(ref.id)) is None:
                        self._poll(0 if time.perf_counter() < until else -1)
                    value = pickle.loads(done.value)
                    if not done.ok:
                        raise value
                    out.append(value)
            finally:
                self._wake.modify(self._sockets.fileno(), _ARMED)
        return out

    def close(self) -> None:
        for channel in self._channels:
            channel.sock.shutdown(socket.SHUT_WR)

    def _flush(self) -> None:
        with self._sending:
            waiting, in_flight = self._waiting, self._in_flight
            while waiting:
                i = min(range(len(in_flight)), key=in_flight.__getitem__)
                count = min(_DEPTH - in_flight[i], _BATCH, len(waiting))
                if count <= 0:
                    break
                in_flight[i] += count
                self._channels[i].send(_encode([waiting.popleft() for _ in range(count)]))

    def _poll(self, timeout_s: float) -> None:
        values = self._values
        for fd, _ in self._sockets.poll(timeout_s):
            i = self._index[fd]
            for frame in self._channels[i].receive():
                results = _decode_done(frame)
                # Without the lock, which would make the reader wait for the sender: CPython switches threads at calls
                # and jumps, and there is none between reading this number and writing it back.
                count = len(results)
                self._in_flight[i] -= count
                for done in results:
                    values[done.id] = done
        if self._waiting:
            self._flush()
        while self._dropped:
            values.pop(self._dropped.popleft(), None)

    def _read_when_nobody_waits(self) -> None:
        while True:
            self._wake.poll()
            if self._reading.acquire(blocking=False):  # else a caller reads, and arms the set when it is done
                try:
                    self._poll(0)
                except EOFError:
                    return
                finally:
                    self._reading.release()
                self._wake.modify(self._sockets.fileno(), _ARMED)
