"""The node's object store with a real arena, a real spill thread and a real file, without processes around it."""

from __future__ import annotations

import mmap
import os
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from skate._node import spill
from skate._node import store as store_module
from skate._node.store import Store, StoreProtocolError
from skate._store.layout import HEAD_BYTES, SLOT_TASK_BYTES, arena_file_bytes, slot_offset
from skate._wire.messages import Allocate, Allocated, Free, Message, Pin, Pinned, ReturnSpace, Seal, StoreFull, Unpin
from waiting import wait_for

MB = 1 << 20
P, Q = b"process1", b"process2"
R = TypeVar("R", bound=Message)

#: Longer than any I/O of these tests takes on a busy machine.
PATIENCE_S = 30.0


@dataclass
class Harness:
    """A store, a loop that only waits for it, and a second mapping of the arena, as a process has it."""

    store: Store
    woken: queue.SimpleQueue[None]
    replies: list[tuple[bytes, Message]] = field(default_factory=list)
    requests: int = 0
    #: The time, as far as the store is concerned.
    now: float = 100.0

    def __post_init__(self) -> None:
        self.memory = mmap.mmap(self.store.fd, arena_file_bytes(self.store.arena_bytes))

    def send(self, process: bytes, message: store_module.StoreMessage) -> None:
        self.store.handle(process, message, self.now)
        self.store.validate()

    def wait_reply(self, kind: type[R]) -> R:
        """Let the store work until it replies."""
        while not self.replies:
            self.woken.get(timeout=PATIENCE_S)
            self.store.on_wake(self.now)
            self.store.validate()
        _, message = self.replies.pop(0)
        assert isinstance(message, kind)
        return message

    def wait_io(self) -> None:
        while self.store.statistics()["jobs"]:
            self.woken.get(timeout=PATIENCE_S)
            self.store.on_wake(self.now)

    def put(self, process: bytes, object_id: bytes, content: bytes) -> int:
        self.requests += 1
        self.send(process, Allocate(self.requests, len(content)))
        allocated = self.wait_reply(Allocated)
        assert allocated.request == self.requests
        self.memory[allocated.offset : allocated.offset + len(content)] = content
        self.send(process, Seal([(object_id, process, allocated.offset, len(content))]))
        return allocated.offset

    def get(self, process: bytes, object_id: bytes) -> bytes | None:
        """Its content; the object stays pinned."""
        self.requests += 1
        self.send(process, Pin(self.requests, [object_id]))
        pinned = self.wait_reply(Pinned)
        assert pinned.request == self.requests
        ((offset, size),) = pinned.at
        return None if offset < 0 else self.memory[offset : offset + size]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make_one(arena_bytes: int, directory: Path = tmp_path, **settings: float) -> Harness:
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        replies: list[tuple[bytes, Message]] = []
        store = Store(
            arena_bytes,
            directory,
            lambda process, message: replies.append((process, message)),
            lambda: woken.put(None),
            lambda process: process.decode(),
            **settings,
        )
        made.append(Harness(store, woken, replies))
        return made[-1]

    yield make_one
    for harness in made:
        harness.memory.close()
        harness.store.close()


def content_of(index: int, size: int) -> bytes:
    """Bytes that differ from object to object and from page to page."""
    return b"".join((index * 1_000_003 + page).to_bytes(8, "big") * 512 for page in range(-(-size // 4096)))[:size]


def test_ten_objects_of_16_mb_through_an_arena_of_64_mb(make: Callable[..., Harness], tmp_path: Path) -> None:
    harness = make(64 * MB)
    ids = [bytes([i]) * 20 for i in range(10)]
    for index, object_id in enumerate(ids):
        harness.put(P, object_id, content_of(index, 16 * MB))
    assert list(tmp_path.iterdir()) == [], "the spill file has no name"
    statistics = harness.store.statistics()
    assert statistics["objects_on_disk"] >= 7
    for index, object_id in enumerate(ids):
        assert harness.get(Q, object_id) == content_of(index, 16 * MB)
        harness.send(Q, Unpin([object_id]))
    assert harness.store.statistics()["restored"] >= 7
    harness.send(P, Free(ids))
    harness.wait_io()
    statistics = harness.store.statistics()
    assert statistics["used_bytes"] == statistics["disk_bytes"] == statistics["objects"] == 0


def test_small_objects_carved_from_a_chunk_survive_the_disk(make: Callable[..., Harness]) -> None:
    harness = make(HEAD_BYTES + MB)
    contents: dict[bytes, bytes] = {}
    for chunk in range(8):
        harness.requests += 1
        harness.send(P, Allocate(harness.requests, 256 << 10, least=32 << 10))
        allocated = harness.wait_reply(Allocated)
        at, end = allocated.offset, allocated.offset + allocated.size
        while at + 30_016 <= end:
            object_id = len(contents).to_bytes(20, "big")
            contents[object_id] = content_of(chunk * 100 + len(contents), 30_000)
            harness.memory[at : at + 30_000] = contents[object_id]
            harness.send(P, Seal([(object_id, P, at, 30_000)]))
            at += 30_016
        harness.send(P, ReturnSpace(at, end - at))
    for object_id, content in contents.items():
        assert harness.get(Q, object_id) == content
        harness.send(Q, Unpin([object_id]))


def test_a_pinned_object_stays_where_it_is(make: Callable[..., Harness]) -> None:
    harness = make(4 * MB)
    first = content_of(1, MB)
    offset = harness.put(P, b"pinned", first)
    harness.get(Q, b"pinned")
    for index in range(10):
        harness.put(P, b"%d" % index, content_of(index, MB))
        assert harness.memory[offset : offset + MB] == first


def test_the_disk_is_given_back(make: Callable[..., Harness]) -> None:
    harness = make(2 * MB)
    for index in range(8):
        harness.put(P, b"%d" % index, content_of(index, MB))

    spill_file = harness.store._spill._fd
    if not spill.punch_hole(spill_file, 1 << 40, 4096):
        pytest.skip("this file system cannot give back parts of a file")

    def blocks() -> int:
        return os.fstat(spill_file).st_blocks * 512

    assert blocks() >= 6 * MB
    harness.send(P, Free([b"%d" % index for index in range(8)]))
    wait_for(lambda: blocks() < MB, PATIENCE_S, "the space of freed objects to be given back")


def test_short_memory_moves_objects_to_disk_and_their_pages_back_to_the_system(make: Callable[..., Harness]) -> None:
    harness = make(64 * MB)
    store = harness.store
    for index in range(6):
        harness.put(P, b"%d" % index, content_of(index, 4 * MB))
    harness.put(P, b"gone", content_of(9, 8 * MB))
    harness.send(P, Free([b"gone"]))
    assert store.resident_bytes >= 32 * MB, "pages are kept when an object is freed"
    assert store.limit_memory(20 * MB, harness.now)
    assert store.resident_bytes <= 24 * MB + HEAD_BYTES, "free pages need no disk"
    harness.wait_io()
    store.validate()
    assert store.resident_bytes <= 20 * MB + HEAD_BYTES
    assert store.statistics()["objects_on_disk"] == 1
    assert not store.limit_memory(20 * MB, harness.now)
    assert not store.would_exceed(0)
    assert store.would_exceed(MB)
    assert not store.limit_memory(None, harness.now)
    assert not store.would_exceed(60 * MB)
    for index in range(6):
        assert harness.get(Q, b"%d" % index) == content_of(index, 4 * MB)


def test_without_a_disk_only_free_pages_are_given_back(make: Callable[..., Harness]) -> None:
    """A directory in memory (tmpfs) takes as much as it saves."""
    harness = make(64 * MB)
    harness.put(P, b"1", content_of(1, 4 * MB))
    harness.put(P, b"2", content_of(2, 4 * MB))
    harness.send(P, Free([b"1"]))
    assert harness.store.limit_memory(MB, harness.now, spill=False)
    assert not harness.store.limit_memory(MB, harness.now, spill=False), "there is nothing left to give"
    assert harness.store.statistics()["jobs"] == harness.store.statistics()["objects_on_disk"] == 0
    assert 4 * MB <= harness.store.resident_bytes < 5 * MB


def test_a_disk_that_cannot_be_written_is_named_in_the_refusal(make: Callable[..., Harness], tmp_path: Path) -> None:
    harness = make(2 * MB, tmp_path / "missing", full_grace_s=5.0)
    harness.put(P, b"1", content_of(1, MB))
    harness.send(P, Allocate(7, MB))
    while not harness.replies:
        harness.wait_io()
        deadline = harness.store.next_deadline()
        assert deadline is not None
        harness.now = deadline
        harness.store.tick(deadline)
    refusal = harness.wait_reply(StoreFull)
    assert refusal.disk
    assert "missing" in refusal.report
    assert harness.get(Q, b"1") == content_of(1, MB)


def test_a_file_size_limit_is_a_full_disk(make: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is cut short goes on where it stopped, and the error that follows is reported."""
    harness = make(4 * MB)
    pwrite = os.pwrite
    written: list[int] = []

    def half_then_full(fd: int, data: memoryview, offset: int) -> int:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(pwrite(fd, data[: len(data) // 2], offset))
        return written[-1]

    monkeypatch.setattr(os, "pwrite", half_then_full)
    harness.put(P, b"1", content_of(1, 3 * MB))
    harness.send(P, Allocate(7, 2 * MB))
    harness.wait_io()
    assert "No space left" in harness.store.statistics()["disk_error"]
    monkeypatch.setattr(os, "pwrite", pwrite)
    harness.now += 2
    harness.store.tick(harness.now)
    allocated = harness.wait_reply(Allocated)
    harness.memory[allocated.offset : allocated.offset + 2 * MB] = bytes(2 * MB)
    harness.send(P, Seal([(b"2", P, allocated.offset, 2 * MB)]))
    assert harness.get(Q, b"1") == content_of(1, 3 * MB)


def test_what_breaks_the_protocol_raises_and_harms_nobody(make: Callable[..., Harness]) -> None:
    harness = make(HEAD_BYTES + MB)
    with pytest.raises(StoreProtocolError):
        harness.send(P, Seal([(b"1", P, HEAD_BYTES, 100)]))
    with pytest.raises(StoreProtocolError):
        harness.send(P, Seal([(b"1", P, 0, 100)]))
    harness.put(P, b"1", b"works")
    assert harness.get(Q, b"1") == b"works"


def test_a_dead_process_leaves_nothing(make: Callable[..., Harness]) -> None:
    harness = make(HEAD_BYTES + MB)
    harness.put(P, b"1", bytes(100_000))
    harness.send(P, Allocate(50, 100_000))
    harness.store.process_died(P, harness.now)
    assert harness.store.statistics()["used_bytes"] == 0


def test_slots_tell_what_a_process_ran(make: Callable[..., Harness]) -> None:
    harness = make(HEAD_BYTES + MB)
    assert harness.store.running_task(5) == b""
    task = bytes(range(1, 21))
    harness.memory[slot_offset(5) : slot_offset(5) + SLOT_TASK_BYTES] = task
    assert harness.store.running_task(5) == task
    assert harness.store.running_task(4) == harness.store.running_task(6) == b""
    harness.store.clear_slot(5)
    assert harness.store.running_task(5) == b""


def test_an_idle_store_gives_unused_memory_back_and_keeps_objects(make: Callable[..., Harness]) -> None:
    harness = make(128 * MB)
    store = harness.store

    def resident() -> int:
        return os.fstat(store.fd).st_blocks * 512

    assert resident() == 0, "nothing is taken up front"
    harness.put(P, b"a", content_of(1, 40 * MB))
    offset = harness.put(P, b"kept", content_of(2, 3 * MB))
    harness.put(P, b"b", content_of(3, 40 * MB))
    harness.send(P, Free([b"a", b"b"]))
    assert resident() >= 83 * MB, "memory stays warm while the store is in use"
    store.tick(harness.now)
    assert resident() >= 83 * MB
    steps = 0
    while (deadline := store.next_deadline()) is not None:
        store.tick(deadline)
        steps += 1
    assert 3 * MB <= resident() < 4 * MB
    assert 5 < steps < 20, "a piece at a time"
    assert harness.memory[offset : offset + 3 * MB] == content_of(2, 3 * MB)


def test_close_does_not_wait_for_io_that_nobody_needs(make: Callable[..., Harness]) -> None:
    """The fixture closes a store that is writing; the leak check sees a thread or a descriptor that stays."""
    harness = make(32 * MB)
    harness.put(P, b"1", content_of(1, 31 * MB))
    harness.send(P, Allocate(7, 31 * MB))
    assert harness.store.statistics()["jobs"] == 1
