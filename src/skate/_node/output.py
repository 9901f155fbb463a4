"""What workers print: read from their pipes, kept for those who ask why one died, and sent to drivers.

Owns:      the lines on their way to each driver that wants to see them.
Knows not: how they are shown; which lines are cut where is decided in `logs.py`.
"""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

from skate._core.ids import node_of
from skate._core.last_output import LastOutput
from skate._core.task import Line
from skate._node.logs import PARTIAL_LINE_S, LogQueue, Stream

if TYPE_CHECKING:
    from skate._node.daemon import Daemon, Process

#: Bytes read from a pipe at a time, and at most when its worker is dead (its children may hold the pipe open).
PIPE_BYTES = 64 << 10
PIPE_DRAIN_BYTES_MAX = 4 << 20


class Output:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._loop = daemon.loop
        #: Lines on their way to drivers on other nodes.
        self._elsewhere: dict[bytes, LogQueue] = {}
        #: Drivers that want to see what workers print, and the lines on their way to them.
        self._listeners: list[tuple[Process, LogQueue]] = []

    # -- workers ------------------------------------------------------------------------------------------------------

    def watch(self, process: Process, fd: int, stream: Stream) -> None:
        self._loop.watch(fd, lambda _: self._on_output(process, fd, stream))

    def _on_output(self, process: Process, fd: int, stream: Stream) -> None:
        if not self._read_pipe(process, fd, stream):
            self._loop.unwatch(fd)
        else:
            self._watch_partial_lines(process)

    def _read_pipe(self, process: Process, fd: int, stream: Stream) -> int:
        """Read once; the number of bytes, 0 at the end of the stream."""
        assert process.worker is not None
        # Not before there is something: a task may begin, and print, between the name and what is read.
        stream.native_name = self._daemon.store.printing_name(process.worker.slot)
        try:
            data = os.read(fd, PIPE_BYTES)
        except BlockingIOError:
            return 1
        self._show(process, stream, stream.feed(data))
        return len(data)

    def _watch_partial_lines(self, process: Process) -> None:
        if process.partial_timer is None and any(stream.has_partial for stream in process.streams):
            for stream in process.streams:
                stream.fed = False
            when = time.monotonic() + PARTIAL_LINE_S
            process.partial_timer = self._loop.call_at(when, lambda: self._flush_partial_lines(process))

    def _flush_partial_lines(self, process: Process) -> None:
        process.partial_timer = None
        worker = process.worker
        assert worker is not None
        for fd, stream in zip((worker.stdout, worker.stderr), process.streams):
            if _has_data(fd):  # the rest of the line may be there, and the daemon late
                self._read_pipe(process, fd, stream)
            if stream.has_partial and not stream.fed:
                self._show(process, stream, stream.flush())
        self._watch_partial_lines(process)

    def _show(self, process: Process, stream: Stream, lines: list[Line]) -> None:
        if not lines:
            return
        if process.last_output is None:
            process.last_output = LastOutput()
        process.last_output.add(lines, is_error=stream.is_error)
        job = process.job
        for driver, queue in self._listeners:
            # What belongs to a driver that is gone, or to none yet, is shown to all.
            if driver.id == job.driver or job.driver not in self._daemon.processes:
                queue.add(lines)
        if job.wants_output and node_of(job.driver) != self._daemon.number:
            self._elsewhere.setdefault(job.driver, LogQueue()).add(lines)

    def drain(self, process: Process) -> None:
        """Everything that the worker printed until now."""
        worker = process.worker
        assert worker is not None
        for fd, stream in zip((worker.stdout, worker.stderr), process.streams):
            stream.native_name = self._daemon.store.printing_name(worker.slot)
            left = PIPE_DRAIN_BYTES_MAX
            while left > 0:
                try:
                    data = os.read(fd, PIPE_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    break
                left -= len(data)
                self._show(process, stream, stream.feed(data))
            self._show(process, stream, stream.flush())

    def begin_actor(self, process: Process) -> None:
        """The worker becomes an actor: what tasks have printed there before is not the last output of the actor."""
        self.drain(process)
        process.last_output = None

    # -- drivers ------------------------------------------------------------------------------------------------------

    def listen(self, driver: Process) -> None:
        self._listeners.append((driver, LogQueue()))

    def stop_listening(self, process: Process) -> None:
        for driver, queue in self._listeners:
            if driver is process:
                self._send_all_of(driver, queue)
        self._listeners = [(driver, queue) for driver, queue in self._listeners if driver is not process]

    def tell_drivers(self, text: str) -> None:
        """Something that all drivers of this node should know."""
        for _, queue in self._listeners:
            queue.add([Line(os.getpid(), "skate", True, text)])
        self.send()

    def send(self) -> None:
        """What drivers take now."""
        for driver, queue in self._listeners:
            # What a driver does not take waits here, where there is a bound, and not in its channel.
            while not driver.channel.has_backlog and (message := queue.take()) is not None:
                driver.channel.send(message)
        if self._elsewhere:
            self._send_elsewhere()

    def _send_elsewhere(self) -> None:
        neighbours = self._daemon.neighbours
        for driver, queue in list(self._elsewhere.items()):
            while not neighbours.has_backlog(node_of(driver)) and (message := queue.take()) is not None:
                neighbours.send_to_process(driver, message)
            if not queue or node_of(driver) not in neighbours.members:
                del self._elsewhere[driver]

    def send_all(self) -> None:
        for driver, queue in self._listeners:
            self._send_all_of(driver, queue)
        if self._elsewhere:
            self._send_elsewhere()

    @staticmethod
    def _send_all_of(driver: Process, queue: LogQueue) -> None:
        while (logs := queue.take()) is not None:
            driver.channel.send(logs)


def _has_data(fd: int) -> bool:
    poll = select.poll()  # descriptors may have high numbers
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
