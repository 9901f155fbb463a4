"""Jobs: the drivers that run, and what is remembered of those that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skate._control.state.tables import JOBS, JobRow, pack
from skate._core.ids import node_of
from skate._wire import cluster

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: Jobs that are remembered; the oldest make room for the newest.
JOBS_MAX = 1000
#: Drivers of one job that are known to have ended, the last ones.
ENDED_MAX = 100


class Jobs:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._jobs: dict[bytes, JobRow] = {}
        #: Drivers, and the jobs that they are part of: a submitted command may be several.
        self.drivers: dict[bytes, bytes] = {}
        #: Drivers that have ended lately, the oldest first: their workers may not know yet.
        self.ended: dict[bytes, None] = {}

    def load(self, rows: Iterable[tuple[bytes, JobRow]]) -> None:
        for id, row in sorted(rows, key=lambda entry: float(entry[1].facts["started_at"])):
            self._jobs[id] = row
            self.drivers.update(dict.fromkeys(row.drivers, id))
            for driver in row.ended:
                self._note_end(driver)

    def row(self, id: bytes) -> bytes | None:
        row = self._jobs.get(id)
        return None if row is None else pack(row)

    def on_started(self, link: int, message: cluster.JobStarted) -> None:
        job = message.job
        self._control.recovery.process_came(link, job.driver, message.pid, job)
        if job.driver in self.drivers:  # said again
            return
        self.drivers[job.driver] = job.id
        drivers = [driver for driver, id in self.drivers.items() if id == job.id]
        facts = {
            "job_id": job.id.hex(),
            "driver_pid": message.pid,
            "entrypoint": message.entrypoint,
            "node_id": self._control.nodes.by_link[link].hex(),
            "namespace": job.namespace,
            "started_at": self._control.wall,
            "ended_at": None,
            "state": "running",
        }
        before = self._jobs.get(job.id)
        self._jobs[job.id] = JobRow(facts, drivers, before.ended if before is not None else [])
        self._control.mark(JOBS, job.id)
        self._control.event("job", f"job {job.id.hex()} began, with pid {message.pid}", job_id=job.id.hex())
        if len(self._jobs) > JOBS_MAX:
            oldest = next(iter(self._jobs))
            del self._jobs[oldest]
            self._control.mark(JOBS, oldest)

    def on_ended(self, link: int, message: cluster.JobEnded) -> None:
        self.driver_ended(message.job.driver, "ended")

    def node_died(self, number: int) -> None:
        for driver in [driver for driver in self.drivers if node_of(driver) == number]:
            self.driver_ended(driver, "lost")

    def driver_ended(self, driver: bytes, state: str) -> None:
        self._control.groups.job_ended(driver)  # also of one that began and ended while nothing could be said
        self._note_end(driver)
        id = self.drivers.pop(driver, b"")
        if not id:
            return
        row = self._jobs.get(id)
        if row is None:
            return
        row.drivers = [other for other in row.drivers if other != driver]
        row.ended = [*row.ended, driver][-ENDED_MAX:]
        if not row.drivers:
            row.facts.update(state=state, ended_at=self._control.wall)
            self._control.event("job", f"job {id.hex()} is over: {state}", job_id=id.hex())
        self._control.mark(JOBS, id)

    def _note_end(self, driver: bytes) -> None:
        self.ended[driver] = None
        if len(self.ended) > JOBS_MAX:
            del self.ended[next(iter(self.ended))]

    def describe(self) -> list[dict[str, Any]]:
        return [row.facts for row in self._jobs.values()]
