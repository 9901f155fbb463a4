"""Fixtures for every test: a small runtime, and the check that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import netns
import skate
from leaks import RUN_MARK, RUN_MARK_NAME, Footprint
from machine import Machine, free_port
from shared_runtime import Sharing, left_after_shutdown, shut_down
from skate._wire.guard import DEFECTS_VARIABLE
from skate.cluster_utils import Cluster
from teardown_watch import pytest_runtest_teardown

__all__ = ["pytest_runtest_teardown"]  # a hook, which pytest finds here

if TYPE_CHECKING:
    from host_cluster import HostCluster

#: Tests in these folders start nothing, and are thousands: they do without the check.
WITHOUT_LEAK_CHECK = {"unit", "typing", "sim"}

_call_failed = pytest.StashKey[bool]()


#: What processes of this run note of mistakes of their own that they have survived.
_defects = Path(tempfile.gettempdir(), f"defects-{RUN_MARK}")


def pytest_configure() -> None:
    os.environ[RUN_MARK_NAME] = RUN_MARK
    os.environ[DEFECTS_VARIABLE] = str(_defects)
    # A script that runs the tests in the background has them ignore Ctrl-C, and nohup the end of the terminal; so would
    # every program that they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    # Modules and thousands of tests are no garbage. Looking through all of them again and again took half of the time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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


@pytest.fixture(scope="session")
def sharing() -> Iterator[Sharing]:
    """The runtime that tests share one after the other; there is one at most."""
    shared = Sharing()
    yield shared
    _fail_if(shared.end())


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, sharing: Sharing) -> Iterator[None]:
    """Assert that no process, thread, descriptor, memory or file of Skate remains after the test.

    Tests that share a runtime are charged for what they leave in it, and together for what they leave around it.
    A test that failed holds its values in its traceback, so it is cleaned up after and not charged a second time.
    """
    folder = Path(request.node.path).relative_to(Path(__file__).parent).parts[0]
    if folder in WITHOUT_LEAK_CHECK:
        yield
        return

    leaks: list[str] = []
    if "runtime" in request.fixturenames and "fresh_runtime" not in request.fixturenames:
        sharing.start(request.node.name)
        yield
        failed = request.node.stash.get(_call_failed, False)
        leaks = [] if failed else sharing.left_in_it()
        if failed or leaks or not sharing.is_running():
            leaks += sharing.end()
    else:
        _fail_if(sharing.end())
        before = Footprint.take()
        yield
        failed = request.node.stash.get(_call_failed, False)
        shut_down()
        leaks = left_after_shutdown(before)
    if _defects.exists():
        leaks = [_defects.read_text(), *leaks]
        _defects.unlink()
        failed = False
    if not failed:
        _fail_if(leaks)


@pytest.fixture
def runtime() -> ModuleType:
    """Skate with two CPUs, idle and empty, which other tests had before."""
    return skate


@pytest.fixture
def fresh_runtime() -> Iterator[ModuleType]:
    """Skate with two CPUs, which no other test had or will have; also for a test in a file whose tests share one."""
    skate.init(num_cpus=2)
    yield skate
    skate.shutdown()


@pytest.fixture(params=["alone", "cluster"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """A node with the resource "second": that of the driver, or another one."""
    if request.param == "alone":
        with skate.init(num_cpus=2, resources={"second": 2}):
            yield
        return
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node(num_cpus=2, resources={"second": 2})
        cluster.connect()
        yield
        skate.shutdown()


@pytest.fixture
def network() -> Iterator[netns.Network]:
    """Four hosts with addresses of their own."""
    if reason := netns.reason_to_skip():
        pytest.skip(reason)
    with netns.Network(hosts=4) as network:
        yield network


@pytest.fixture
def host_cluster(network: netns.Network, tmp_path: Path) -> Iterator[HostCluster]:
    """A cluster on these hosts: a head, two nodes, and a host that is none."""
    from host_cluster import HostCluster  # few tests need it

    cluster = HostCluster(network, tmp_path)
    yield cluster
    cluster.end()


def _fail_if(leaks: list[str]) -> None:
    if leaks:
        pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home")
    yield machine
    machine.skate("stop", "--force")


@pytest.fixture
def port() -> str:
    return free_port()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    path = tmp_path / "small-disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
