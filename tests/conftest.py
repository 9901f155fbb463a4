"""Fixtures for every test: a small runtime, and the check that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from leaks import RUN_MARK, RUN_MARK_NAME, Footprint, end_processes_left
from waiting import wait_for

#: Tests in these folders start nothing, and are thousands: they do without the check.
WITHOUT_LEAK_CHECK = {"unit", "typing"}

#: How long what a test used may take to disappear after shutdown. A promise about speed has a test of its own.
GONE_WITHIN_S = 5.0

_call_failed = pytest.StashKey[bool]()


def pytest_configure() -> None:
    os.environ[RUN_MARK_NAME] = RUN_MARK
    # A script that runs the tests in the background has them ignore Ctrl-C, and nohup the end of the terminal; so would
    # every program that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    # What is loaded by now stays for the whole run. Not looking at it again makes each collection of garbage, and there
    # are several for every test, a hundred times cheaper.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[_call_failed] = report.failed
    return report


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shut Skate down after the test and assert that no process, thread, descriptor, memory or file of it remains.

    A test that failed holds its values in its traceback, so it is cleaned up after and not charged a second time.
    """
    folder = Path(request.node.path).relative_to(Path(__file__).parent).parts[0]
    if folder in WITHOUT_LEAK_CHECK:
        yield
        return

    before = Footprint.take()
    yield
    _shut_down_skate()
    if request.node.get_closest_marker("no_leak_check"):
        return
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not Footprint.take().left_behind(before), GONE_WITHIN_S, "everything to be gone")
    now = Footprint.take()
    leaks = now.left_behind(before)
    end_processes_left(now, before)
    if leaks and not request.node.stash.get(_call_failed, False):
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def runtime() -> Iterator[ModuleType]:
    """Skate with two CPUs."""
    import skate

    skate.init(num_cpus=2)
    yield skate
    skate.shutdown()


def _shut_down_skate() -> None:
    skate = sys.modules.get("skate")
    if skate is not None and skate.is_initialized():
        skate.shutdown()
