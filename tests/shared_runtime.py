"""One runtime for the tests that only use it: starting one for each took most of the time of the whole run.

A test gets it as it would get one of its own: idle, with every object freed. What a test leaves in it fails that test,
and what it leaves outside of it (processes, threads, descriptors) shows when the runtime ends. It ends before a
test that does not share it, after one that failed, and after one that ended it or started another.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass

import skate
from leaks import Footprint, end_processes_left
from skate._worker import current
from waiting import WITHIN_S, wait_for

#: How long what a test used may take to disappear. A promise about speed has a test of its own.
GONE_WITHIN_S = 5.0


@dataclass
class Sharing:
    """The runtime that is shared now, if one is, and which tests had it."""

    before: Footprint | None = None
    node_id: str = ""
    tests: list[str] | None = None

    def start(self, test: str) -> None:
        if self.before is None:
            self.before = Footprint.take()
            skate.init(num_cpus=2)
            self.node_id = _node_id()
            self.tests = []
        assert self.tests is not None
        self.tests.append(test)

    def left_in_it(self) -> list[str]:
        """Say what the test left in the runtime, one line each; wait until it is idle if it is about to be."""
        if not self.is_running() or not _in_use():
            return []
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not (collect() and _in_use()), GONE_WITHIN_S, "the shared runtime to be idle")
        return _in_use()

    def is_running(self) -> bool:
        """Whether it is still that which was started, and not ended, killed or replaced by a test."""
        if self.before is None or not skate.is_initialized() or current.get_runtime().broken:
            return False
        return _node_id() == self.node_id

    def end(self) -> list[str]:
        """Shut it down, and say what is left of it, one line each."""
        before, tests = self.before, self.tests
        self.before = self.tests = None
        shut_down()
        if before is None:
            return []
        leaks = left_after_shutdown(before)
        assert tests
        return [f"{leak}, after {len(tests)} tests from {tests[0]} to {tests[-1]}" for leak in leaks]


def wait_until_idle() -> None:
    """After `connect()` to nodes that another test has had: what it left busy there would change where tasks go."""

    def is_idle() -> bool:
        total, available = skate.cluster_resources(), skate.available_resources()
        return all(available.get(name, 0) >= amount for name, amount in total.items())

    wait_for(is_idle, WITHIN_S, "the nodes to be idle")


def shut_down() -> None:
    if skate.is_initialized():
        skate.shutdown()


def left_after_shutdown(before: Footprint) -> list[str]:
    """Wait for everything that was not there `before` to be gone; say what is not, one line each, and end it."""
    if not Footprint.take().left_behind(before):
        return []
    with contextlib.suppress(AssertionError):
        wait_for(
            lambda: not (collect() and Footprint.take().left_behind(before)), GONE_WITHIN_S, "everything to be gone"
        )
    now = Footprint.take()
    leaks = now.left_behind(before)
    end_processes_left(now, before)
    return leaks


def collect() -> bool:
    """Free what sits in reference cycles, with the exceptions that a test caught or with views of shared memory.

    Only if something seems to be left: there are thousands of tests, and this takes more time than most of them.
    """
    gc.collect()
    return True


def _node_id() -> str:
    return skate.get_runtime_context().get_node_id()


def _in_use() -> list[str]:
    total, available = skate.cluster_resources(), skate.available_resources()
    taken = {name: amount - available.get(name, 0) for name, amount in total.items()}
    lines = [f"{amount:g} of {name}, in use" for name, amount in taken.items() if amount > 0]
    entries = current.get_runtime().table.entries.copy()
    return lines + [f"object {id.hex()}: {str(entry)[:300]}" for id, entry in entries.items()]
