"""The leak check sees what it is there to see: each test leaks one thing on purpose."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from leaks import Footprint, end_processes_left
from waiting import wait_for


@pytest.fixture
def before() -> Footprint:
    return Footprint.take()


def test_nothing_is_reported_when_nothing_is_left(before: Footprint) -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    with socket.socket():
        pass
    assert Footprint.take().left_behind(before) == []


def test_a_child_is_seen_until_it_is_ended_and_waited_for(before: Footprint) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert any(f"process {child.pid} " in line for line in Footprint.take().left_behind(before))
        child.kill()
        wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 5, "the child to have ended")
        assert any("never waited for" in line for line in Footprint.take().left_behind(before))
    assert Footprint.take().left_behind(before) == []


@pytest.fixture
def orphan(before: Footprint) -> Iterator[int]:
    """The pid of a process in a session of its own, whose parent has ended."""
    code = (
        "import subprocess, sys;"
        "command = [sys.executable, '-c', 'import signal; signal.pause()'];"
        "print(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL).pid)"
    )
    pid = int(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout)
    yield pid
    if psutil.pid_exists(pid):
        os.kill(pid, signal.SIGKILL)


def test_an_orphan_in_another_session_is_seen_and_can_be_ended(before: Footprint, orphan: int) -> None:
    def seen() -> bool:
        return any(f"process {orphan} " in line for line in Footprint.take().left_behind(before))

    wait_for(seen, 5, "the orphan to show")
    end_processes_left(Footprint.take(), before)
    wait_for(lambda: not seen(), 5, "the orphan to be gone")


def test_a_thread_is_seen(before: Footprint) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler", daemon=True)
    thread.start()
    assert [line for line in Footprint.take().left_behind(before) if "straggler" in line]
    stop.set()
    thread.join()
    assert Footprint.take().left_behind(before) == []


def test_a_descriptor_is_seen_even_if_its_number_is_an_old_one() -> None:
    first = os.open("/dev/zero", os.O_RDONLY)
    before = Footprint.take()
    os.close(first)
    left, right = socket.socketpair()
    with left, right:
        assert first in (left.fileno(), right.fileno())
        assert len([line for line in Footprint.take().left_behind(before) if "descriptor" in line]) == 2


def test_a_mapping_is_seen_after_its_descriptor_is_closed(before: Footprint) -> None:
    descriptor = os.memfd_create("skate-leak-test")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    assert [line for line in Footprint.take().left_behind(before) if "mapping" in line and "skate-leak-test" in line]
    memory.close()
    assert Footprint.take().left_behind(before) == []


@pytest.mark.parametrize("folder", ["leaks.SHARED_MEMORY", "tempfile.tempdir"])
def test_a_file_is_seen(before: Footprint, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in the real ones: other tests may run at the same time, and would see it too.
    monkeypatch.setattr(folder, tmp_path if folder.startswith("leaks") else str(tmp_path))
    path = tmp_path / "skate-leak-test"
    path.touch()
    try:
        assert f"file {path}" in Footprint.take().left_behind(before)
    finally:
        path.unlink()
    assert Footprint.take().left_behind(before) == []
