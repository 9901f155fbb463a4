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


class Jobs:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._jobs: dict[bytes, JobRow] = {}
        #: Drivers, and the jobs that they are part of: a submitted command may be several.
        self.drivers: dict[bytes, bytes] = {}

    def load(self, rows: Iterable[tuple[bytes, JobRow]]) -> None:
        for id, row in sorted(rows, key=lambda entry: float(entry[1].facts["started_at"])):
            self._jobs[id] = row
            self.drivers.update(dict.fromkeys(row.drivers, id))

    def row(self, id: bytes) -> bytes | None:
        row = self._jobs.get(id)
        return None if row is None else pack(row)

    def on_started(self, link: int, message: cluster.JobStarted) -> None:
        job = message.job
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
        self._jobs[job.id] = JobRow(facts, drivers)
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
        id = self.drivers.pop(driver, b"")
        if not id:
            return
        self._control.groups.job_ended(driver)
        row = self._jobs.get(id)
        if row is None:
            return
        row.drivers = [other for other in row.drivers if other != driver]
        if not row.drivers:
            row.facts.update(state=state, ended_at=self._control.wall)
            self._control.event("job", f"job {id.hex()} is over: {state}", job_id=id.hex())
        self._control.mark(JOBS, id)

    def describe(self) -> list[dict[str, Any]]:
        return [row.facts for row in self._jobs.values()]
