"""What the node daemon does with the descriptors that processes leave with it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from skate._node.descriptors import CLOSED_MAX, PER_PROCESS_MAX, Descriptors
from skate._wire.channel import LOST
from skate._wire.guard import ProtocolError
from skate._wire.messages import Answer, DescriptorGiven, DropDescriptor, KeepDescriptor, Message, TakeDescriptor

Sent = list[tuple[bytes, Message, tuple[int, ...]]]


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def table(sent: Sent) -> Iterator[Descriptors]:
    table = Descriptors(lambda *each: sent.append(each), files_max=8 * 1000)
    yield table
    for process in (b"a", b"b", b"c"):
        table.process_died(process)


def keep(table: Descriptors, sent: Sent, process: bytes, key: bytes, fd: int | None = None) -> str:
    table.on_message(process, KeepDescriptor(1, key), deque([os.dup(0) if fd is None else fd]))
    receiver, answer, _ = sent.pop()
    assert receiver == process
    assert isinstance(answer, Answer)
    return str(answer.body)


def take(table: Descriptors, sent: Sent, process: bytes, key: bytes) -> tuple[str, tuple[int, ...]]:
    table.on_message(process, TakeDescriptor(2, key), deque())
    receiver, given, fds = sent.pop()
    assert receiver == process
    assert isinstance(given, DescriptorGiven)
    return given.reason, fds


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_kept_is_given_to_all_who_ask(table: Descriptors, sent: Sent) -> None:
    fd = os.dup(0)
    assert keep(table, sent, b"a", b"key", fd) == ""
    assert take(table, sent, b"b", b"key") == ("", (fd,))
    assert take(table, sent, b"c", b"key") == ("", (fd,))


def test_a_copy_goes_with_its_process_and_not_with_another(table: Descriptors, sent: Sent) -> None:
    before = open_files()
    keep(table, sent, b"a", b"key")
    table.process_died(b"b")
    assert take(table, sent, b"b", b"key")[0] == ""
    table.process_died(b"a")
    assert take(table, sent, b"b", b"key") == ("the process that shared it has ended", ())
    assert open_files() == before


def test_only_the_process_that_shared_it_can_drop_it(table: Descriptors, sent: Sent) -> None:
    keep(table, sent, b"a", b"key")
    table.on_message(b"b", DropDescriptor(b"key"), deque())
    assert take(table, sent, b"b", b"key")[0] == ""
    table.on_message(b"a", DropDescriptor(b"key"), deque())
    assert take(table, sent, b"b", b"key")[0] == "the process that shared it has closed it"
    table.on_message(b"a", DropDescriptor(b"key"), deque())  # a second time is of no consequence


def test_an_unknown_key_has_a_reason(table: Descriptors, sent: Sent) -> None:
    assert take(table, sent, b"b", b"key") == ("the node daemon does not know it", ())


def test_a_key_is_used_once(table: Descriptors, sent: Sent) -> None:
    keep(table, sent, b"a", b"key")
    before = open_files()
    assert keep(table, sent, b"b", b"key") == "there is one with this key"
    assert open_files() == before


def test_a_message_without_its_descriptor_breaks_the_protocol(table: Descriptors) -> None:
    with pytest.raises(ProtocolError, match="without a descriptor"):
        table.on_message(b"a", KeepDescriptor(1, b"key"), deque())


def test_a_descriptor_that_the_kernel_dropped_is_told(table: Descriptors, sent: Sent) -> None:
    assert "may open no more files" in keep(table, sent, b"a", b"key", LOST)


def test_a_process_may_share_so_many(table: Descriptors, sent: Sent) -> None:
    before = open_files()
    for number in range(PER_PROCESS_MAX):
        assert keep(table, sent, b"a", b"%d" % number) == ""
    assert str(PER_PROCESS_MAX) in keep(table, sent, b"a", b"one more")
    assert keep(table, sent, b"b", b"of another") == ""
    table.process_died(b"a")
    table.process_died(b"b")
    assert open_files() == before


def test_all_together_may_share_a_part_of_the_files_that_the_daemon_may_open(sent: Sent) -> None:
    table = Descriptors(lambda *each: sent.append(each), files_max=16)
    assert keep(table, sent, b"a", b"1") == keep(table, sent, b"b", b"2") == ""
    assert "share 2, which is the most" in keep(table, sent, b"c", b"3")
    table.process_died(b"a")
    assert keep(table, sent, b"c", b"3") == ""
    for process in (b"b", b"c"):
        table.process_died(process)


def test_what_is_remembered_of_closed_ones_is_bounded(table: Descriptors, sent: Sent) -> None:
    for number in range(CLOSED_MAX + 1):
        key = b"%d" % number
        keep(table, sent, b"a", key)
        table.on_message(b"a", DropDescriptor(key), deque())
    assert take(table, sent, b"b", b"0")[0] == "the node daemon does not know it"
    assert take(table, sent, b"b", b"1")[0] == "the process that shared it has closed it"
