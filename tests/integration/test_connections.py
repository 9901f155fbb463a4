"""Stream sockets between processes, of one machine and of two."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from types import ModuleType

import pytest

import skate
from shared_runtime import Sharing
from skate._core.ids import new_node_id
from skate.cluster_utils import Cluster
from skate.connections import Address, Listener
from waiting import WITHIN_S, wait_for

#: More than the buffers of two sockets hold.
LARGE = 20_000_000


@skate.remote(num_cpus=0)
class Caller:
    def where(self) -> str:
        return skate.get_runtime_context().get_node_id()

    def pid(self) -> int:
        return os.getpid()

    def listen(self) -> Address:
        self.listener = Listener()
        return self.listener.address

    def close(self) -> None:
        self.listener.close()

    def connect(self, address: Address) -> None:
        self.sock = address.connect()

    def accept(self) -> None:
        self.sock = self.listener.accept(timeout=20)

    def say(self, text: bytes, times: int = 1) -> None:
        self.sock.sendall(text * times)

    def hear(self, size: int) -> tuple[int, int]:
        """How much came, and its sum."""
        total = came = 0
        while came < size and (part := self.sock.recv(min(1 << 20, size - came))):
            came, total = came + len(part), total + sum(part[:1]) + sum(part[-1:])
        return came, total

    def files(self) -> int:
        return len(os.listdir("/proc/self/fd"))


def nodes_a_and_b(tls: bool = False) -> Cluster:
    """Two nodes, with the resources a and b."""
    cluster = Cluster(tls=tls)
    for name in ("a", "b"):
        cluster.add_node(num_cpus=1, resources={name: 1})
    return cluster


@pytest.fixture(scope="module")
def shared_nodes(sharing: Sharing) -> Iterator[Cluster]:
    """For tests that leave them as they were."""
    assert not sharing.end()
    with nodes_a_and_b() as cluster:
        yield cluster


@pytest.fixture
def two_nodes(shared_nodes: Cluster) -> Iterator[None]:
    skate.init(address=shared_nodes.address)
    yield
    skate.shutdown()


@pytest.fixture
def own_nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with nodes_a_and_b(tls=getattr(request, "param", False)) as cluster:
        skate.init(address=cluster.address)
        yield cluster
        skate.shutdown()


def talk(listens: skate.ActorHandle, calls: skate.ActorHandle) -> None:
    """Each says something that does not fit into any buffer while the other listens."""
    address = skate.get(listens.listen.remote())
    skate.get([listens.accept.remote(), calls.connect.remote(address)])
    for here, there in ((listens, calls), (calls, listens)):
        said, heard = here.say.remote(b"x", LARGE), there.hear.remote(LARGE)
        assert skate.get(heard)[0] == LARGE
        skate.get(said)


def test_processes_of_one_node_connect(runtime: None) -> None:
    one, other = Caller.remote(), Caller.remote()
    talk(one, other)


def talk_both_ways() -> None:
    one, other = (Caller.options(resources={name: 1}).remote() for name in ("a", "b"))
    assert skate.get(one.where.remote()) != skate.get(other.where.remote())
    talk(one, other)
    talk(other, one)


@pytest.mark.usefixtures("two_nodes")
def test_processes_of_two_nodes_connect_and_either_may_listen() -> None:
    talk_both_ways()


@pytest.mark.usefixtures("own_nodes")
@pytest.mark.parametrize("own_nodes", [True], indirect=True, ids=["tls"])
def test_processes_of_two_nodes_connect_through_tls_and_either_may_listen() -> None:
    talk_both_ways()


def test_what_a_process_says_arrives_though_it_was_not_accepted_yet_and_its_end_follows(two_nodes: None) -> None:
    one, other = (Caller.options(resources={name: 1}).remote() for name in ("a", "b"))
    skate.get(other.connect.remote(skate.get(one.listen.remote())))
    skate.get(other.say.remote(b"early"))
    skate.get(one.accept.remote())
    assert skate.get(one.hear.remote(5)) == (5, ord("e") + ord("y"))
    # And the end of a process is the end of its connections.
    hears = one.hear.remote(1)
    os.kill(skate.get(other.pid.remote()), signal.SIGKILL)
    assert skate.get(hears) == (0, 0)


def test_a_listener_that_is_gone_refuses_and_says_why(own_nodes: Cluster) -> None:
    closed, killed, lost = (Caller.options(resources={name: 0.1}).remote() for name in ("a", "a", "b"))
    near, far = (Caller.options(resources={name: 0.1}).remote() for name in ("a", "b"))
    addresses = skate.get([listens.listen.remote() for listens in (closed, killed, lost)])

    def refused(caller: skate.ActorHandle, address: Address, why: str) -> bool:
        """The end of a killed process reaches its daemon a moment later; until then a connection is made, and ends."""
        try:
            skate.get(caller.connect.remote(address))
        except ConnectionRefusedError as refusal:
            return why in str(refusal)
        return False

    skate.get(closed.close.remote())
    os.kill(skate.get(killed.pid.remote()), signal.SIGKILL)
    for caller in (near, far):
        for address, why in zip(addresses, ("has closed it", "has ended"), strict=False):
            wait_for(lambda: refused(caller, address, why), 10, "the connection to be refused")  # noqa: B023

    own_nodes.remove_node(own_nodes.worker_nodes[0], allow_graceful=False)
    own_nodes.wait_for_nodes()
    assert refused(near, addresses[2], "not part of the cluster")


def test_a_connection_costs_each_end_one_file(runtime: None) -> None:
    one, other = Caller.remote(), Caller.remote()
    address = skate.get(one.listen.remote())
    skate.get([one.accept.remote(), other.connect.remote(address)])
    before = skate.get([one.files.remote(), other.files.remote()])
    for _ in range(5):
        skate.get([one.accept.remote(), other.connect.remote(address)])
    assert skate.get([one.files.remote(), other.files.remote()]) == before


def test_a_listener_waits_as_long_as_it_is_told_and_refuses_when_it_is_closed(runtime: None) -> None:
    with Listener() as listener, pytest.raises(TimeoutError):
        listener.accept(timeout=0.01)
    with pytest.raises(ConnectionRefusedError, match="closed it"):
        listener.address.connect()


def test_a_shared_descriptor_that_is_no_listener_takes_no_connection(two_nodes: None) -> None:
    """A key of shared memory, or of any socket, does not let another node send connections to it."""
    from skate.descriptors import Descriptor

    caller = Caller.options(resources={"b": 1}).remote()
    ours, theirs = socket.socketpair()
    with ours, theirs, Descriptor(theirs) as shared:
        node, key = shared.__reduce__()[1]
        if skate.get(caller.where.remote()) == node.hex():
            caller = Caller.options(resources={"a": 1}).remote()
        with pytest.raises(ConnectionRefusedError, match="no process listens"):
            skate.get(caller.connect.remote(Address(node, key)))


def test_an_address_of_another_session_is_refused(runtime: ModuleType) -> None:
    """A node that is alone says so at once, and its driver goes on."""
    with pytest.raises(ConnectionRefusedError, match="not part of this session"):
        Address(new_node_id(7), b"key").connect(WITHIN_S)
    assert skate.get(skate.put(1)) == 1
