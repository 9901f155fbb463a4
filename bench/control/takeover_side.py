"""A standby takes over the store of a service that is gone: how long nothing could be written.

leader (a process)   fills the store, then writes without a pause
standby (a process)  `stand_by(…).wait()`, then `open_storage(…, standby=…)`, reads all rows, writes one
this process         kills or freezes the leader, and compares the moments: all clocks are CLOCK_MONOTONIC
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

import tools
from clients import STUCK_S, StorageClient
from tools import TABLE, VALUE_BYTES, key_of

from redis_servers import WITHIN_S
from skate._control.storage.errors import StorageError
from skate._control.storage.interface import Put
from skate._control.storage.opening import open_storage, stand_by
from waiting import wait_for

#: Rows of a batch while the store is filled.
FILL_ROWS = 100


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def lead(address: str, keys: int) -> dict[str, Any]:
    """Until another service has taken over."""
    storage = open_storage(address, directory="", has_standby=True, reachable_at="first")
    value = bytes(VALUE_BYTES)
    for first in range(0, keys, FILL_ROWS):
        storage.write([Put(TABLE, key_of(number), value) for number in range(first, min(keys, first + FILL_ROWS))])
        storage.flush(STUCK_S)
        storage.completed()
    _say(leads=True)
    client = StorageClient(storage)
    try:
        while True:
            client.write(key_of(0), value)
            storage.flush(STUCK_S)
            client.completed()
    except StorageError as error:
        return {"fenced": type(error).__name__}


def follow(address: str) -> dict[str, Any]:
    """Wait for the leader to be gone, and go on with its store."""
    standby = stand_by(address)
    _say(waits=True)
    standby.wait()
    silent_at = time.monotonic()
    storage = open_storage(address, directory="", has_standby=True, standby=standby, reachable_at="second")
    open_at = time.monotonic()
    rows = sum(1 for table in storage.tables() for _ in storage.scan(table))
    read_at = time.monotonic()
    storage.write([Put(TABLE, key_of(0), b"second")])
    storage.flush(STUCK_S)
    errors = [done.error for done in storage.completed() if done.error is not None]
    written_at = time.monotonic()
    storage.close()
    if errors:
        raise errors[0]
    return {"silent": silent_at, "open": open_at, "read": read_at, "written": written_at, "rows": rows}


class _Program:
    """This file in a process of its own."""

    def __init__(self, row: str, **arguments: Any) -> None:
        words = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
        self.process = subprocess.Popen([sys.executable, __file__, row, *words], stdout=subprocess.PIPE)

    def heard(self) -> dict[str, Any]:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def take_over(kind: str, how: str, keys: int, seconds: float) -> dict[str, Any]:
    """how: the service is "killed" or "frozen", or a "machine" is gone: the service and one of three servers."""
    with tools.chains(kind, 1, 3) as ((chain,), address):
        leader, standby = _Program("lead", address=address, keys=keys), _Program("follow", address=address)
        try:
            leader.heard()
            standby.heard()
            time.sleep(seconds)
            struck_at = time.monotonic()
            leader.process.send_signal(signal.SIGSTOP if how == "frozen" else signal.SIGKILL)
            if how == "machine":
                chain[0].kill()
            moments = standby.heard()
            found = {
                "silence noticed, s": moments["silent"] - struck_at,
                "store open, s": moments["open"] - struck_at,
                "rows read, s": moments["read"] - struck_at,
                "first write acknowledged, s": moments["written"] - struck_at,
            }
            return {"found": found, "rows": moments["rows"], **(_thawed(leader) if how == "frozen" else {})}
        finally:
            leader.end()
            standby.end()


def _thawed(leader: _Program) -> dict[str, Any]:
    """The old leader goes on, and has to find that it leads no more."""
    leader.process.send_signal(signal.SIGCONT)
    found = leader.heard()
    wait_for(lambda: leader.process.poll() is not None, WITHIN_S, "the old leader to end")
    return found


if __name__ == "__main__":
    tools.main({"take_over": take_over, "lead": lead, "follow": follow})
