"""File descriptors that travel between processes of one machine."""

from __future__ import annotations

import mmap
import os
import signal
import socket
from pathlib import Path
from types import ModuleType

import pytest

import skate
from skate.cluster_utils import Cluster
from skate.descriptors import Descriptor, DescriptorError
from skate.exceptions import ActorDiedError, SerializationError
from waiting import wait_for


@skate.remote(num_cpus=0)
class Holder:
    """A process that receives and sends descriptors."""

    def __init__(self) -> None:
        self.held: list[Descriptor] = []

    def pid(self) -> int:
        return os.getpid()

    def fill(self, shared: Descriptor, text: bytes) -> None:
        with mmap.mmap(shared.fileno(), 0) as memory:
            memory[: len(text)] = text

    def make(self, text: bytes) -> Descriptor:
        made = Descriptor.memory(64)
        self.fill(made, text)
        self.held.append(made)
        return made

    def keep(self, shared: Descriptor) -> None:
        self.held.append(shared)

    def pass_on(self, shared: Descriptor, other: skate.ActorHandle, text: bytes) -> None:
        skate.get(other.fill.remote(shared, text))

    def answer_one(self, listener: Descriptor) -> None:
        with socket.socket(fileno=listener.detach()) as server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"from %d" % os.getpid())

    def close_all(self) -> None:
        for each in self.held:
            each.close()

    def open_files(self) -> int:
        return len(os.listdir("/proc/self/fd"))


def read(shared: Descriptor, size: int) -> bytes:
    with mmap.mmap(shared.fileno(), 0, prot=mmap.PROT_READ) as memory:
        return memory[:size]


def test_an_actor_writes_into_memory_that_the_driver_made(runtime: ModuleType) -> None:
    actor = Holder.remote()
    with Descriptor.memory(4096) as memory:
        skate.get(actor.fill.remote(memory, b"written there"))
        assert read(memory, 13) == b"written there"


def test_a_descriptor_comes_back_as_a_result_and_goes_through_several_processes(runtime: ModuleType) -> None:
    first, second = Holder.remote(), Holder.remote()
    memory = skate.get(first.make.remote(b"one"))
    assert read(memory, 3) == b"one"
    skate.get(first.pass_on.remote(memory, second, b"two"))
    assert read(memory, 3) == b"two"
    memory.close()


def test_one_descriptor_in_two_places_is_the_same_memory(runtime: ModuleType) -> None:
    actors = [Holder.remote() for _ in range(2)]
    with Descriptor.memory(16) as memory:
        ref = skate.put({"memory": memory})

        @skate.remote
        def add(found: dict[str, Descriptor], at: int) -> None:
            with mmap.mmap(found["memory"].fileno(), 0) as mapped:
                mapped[at] = at

        skate.get([add.remote(ref, at) for at in range(4)])
        assert read(memory, 4) == bytes(range(4))
    del actors


def test_an_actor_answers_on_a_socket_that_the_driver_listens_on(runtime: ModuleType) -> None:
    actor = Holder.remote()
    with socket.create_server(("127.0.0.1", 0)) as server, Descriptor(server) as listener:
        pid = skate.get(actor.pid.remote())
        done = actor.answer_one.remote(listener)
        with socket.create_connection(server.getsockname()) as client:
            assert client.recv(100) == b"from %d" % pid
        skate.get(done)


def test_each_receiver_has_a_file_of_its_own_and_closes_it(runtime: ModuleType) -> None:
    actor = Holder.remote()
    before = skate.get(actor.open_files.remote())
    with Descriptor.memory(16) as memory:
        for _ in range(50):
            skate.get(actor.fill.remote(memory, b"x"))
    assert skate.get(actor.open_files.remote()) <= before + 1  # one that the garbage collector has not seen yet


def test_a_closed_one_is_refused_with_its_reason(runtime: ModuleType) -> None:
    actor = Holder.remote()
    memory = Descriptor.memory(16)
    ref = skate.put(memory)
    memory.close()
    assert memory.closed
    assert "closed" in repr(memory)
    with pytest.raises(DescriptorError, match="the process that shared it has closed it"):
        skate.get(ref)
    with pytest.raises(ValueError, match="is closed"):
        memory.fileno()
    with pytest.raises(SerializationError, match="keep the Descriptor open"):
        actor.keep.remote(memory)
    memory.close()


def test_the_death_of_the_sender_leaves_receivers_theirs_and_nothing_else(runtime: ModuleType) -> None:
    sender, receiver = Holder.options(max_restarts=0).remote(), Holder.remote()
    ref = sender.make.remote(b"alive")
    memory = skate.get(ref)
    pid = skate.get(sender.pid.remote())
    inode = os.fstat(memory.fileno()).st_ino
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), 10, "the sender's end")
    assert read(memory, 5) == b"alive"
    skate.get(receiver.fill.remote(memory, b"again"))  # the driver has received it and sends it on as its own
    assert read(memory, 5) == b"again"
    memory.close()
    wait_for(lambda: not has_open(os.getpid(), inode), 5, "the memory to be freed here")


def has_open(pid: int, inode: int) -> bool:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(entry.stat().st_ino)
        except OSError:
            continue
    return inode in found


def test_a_late_reader_hears_that_the_sender_has_ended(runtime: ModuleType) -> None:
    sender = Holder.options(max_restarts=0).remote()
    pid = skate.get(sender.pid.remote())

    @skate.remote
    def read_there(found: list[skate.ObjectRef]) -> None:
        skate.get(found[0])

    with Descriptor.memory(8) as memory:
        skate.get(sender.keep.remote(memory))
    ref = skate.put(sender)
    del ref
    made = sender.make.remote(b"x")
    skate.wait([made])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDiedError):  # the node knows of its end by now
        skate.get(sender.pid.remote())
    with pytest.raises(DescriptorError, match="has ended") as caught:
        skate.get(made)
    assert "next:" in str(caught.value)


def test_what_is_no_descriptor_is_refused(runtime: ModuleType) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Descriptor(1 << 20)
    with pytest.raises(ValueError, match="at least one byte"):
        Descriptor.memory(0)
    with pytest.raises(AttributeError):
        Descriptor("file")  # type: ignore[arg-type]


def test_the_daemon_keeps_a_bounded_number_for_a_process(runtime: ModuleType) -> None:
    held = [Descriptor.memory(8) for _ in range(257)]
    try:
        for each in held[:256]:
            skate.put(each)
        with pytest.raises(SerializationError, match=r"256, which is the most\n.*close\(\) each"):
            skate.put(held[256])
        held[0].close()
        skate.put(held[256])
    finally:
        for each in held:
            each.close()


def test_on_another_node_the_error_says_so() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1, resources={"second": 1})
        skate.init(address=cluster.address)
        actor = Holder.options(resources={"second": 0.1}).remote()
        with Descriptor.memory(16) as memory:
            with pytest.raises(DescriptorError, match="another machine") as caught:
                skate.get(actor.fill.remote(memory, b"x"))
            assert "next: place the two on one node" in str(caught.value)
            near = Holder.remote()
            skate.get(near.fill.remote(memory, b"x"))
            assert read(memory, 1) == b"x"
    finally:
        skate.shutdown()
        cluster.shutdown()
