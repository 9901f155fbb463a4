"""HTTP while processes are killed: replicas, the keeper of the socket, the controller."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

import skate
from serve_http import Answer, Connection, address, ask, raw
from skate import serve
from waiting import WITHIN_S, wait_for


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    serve.shutdown()


@serve.deployment
async def who(request: Request) -> Any:
    return {"pid": os.getpid(), "replica": serve.get_replica_context().replica_tag}


class Load:
    """Clients that ask all the time, each on connections of its own that it keeps for a few requests."""

    def __init__(self, clients: int = 4, path: str = "/") -> None:
        self._where, self._path = address(), path
        self._ended = threading.Event()
        self.pids: set[int] = set()
        self.answers: list[Answer] = []
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _ask(self) -> None:
        while not self._ended.is_set():
            connection = None
            try:
                connection = Connection(self._where)
                for _ in range(10):
                    answer = connection.ask(self._path)
                    self.answers.append(answer)
                    if answer.status == 200:
                        self.pids.add(answer.json["pid"])
                    if "connection" in answer.headers or self._ended.wait(0.005):
                        break
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(error)
            finally:
                if connection is not None:
                    connection.close()

    def goes_on(self) -> None:
        """Wait until further requests have been answered."""
        count = len(self.answers)
        wait_for(lambda: len(self.answers) > count + 50, WITHIN_S, "further answers")


def test_a_killed_replica_fails_only_what_it_had() -> None:
    serve.run(who.options(num_replicas=2).bind(), port=0)
    with Load(clients=4) as load:
        wait_for(lambda: len(load.pids) == 2, WITHIN_S, "both replicas to answer")
        load.goes_on()
        assert load.failures == []
        os.kill(next(iter(load.pids)), signal.SIGKILL)
        load.goes_on()
        wait_for(lambda: len(load.pids) == 3, WITHIN_S, "a third replica to answer")
        load.goes_on()
    assert len(load.failures) <= 4, "one for each connection that it had"
    assert {each.status for each in load.answers} == {200}


def test_clients_wait_while_the_only_replica_is_replaced_after_it_was_killed() -> None:
    serve.run(who.bind(), port=0)
    pid = ask("/").json["pid"]
    os.kill(pid, signal.SIGKILL)
    assert ask("/").json["pid"] != pid


def test_a_killed_replica_of_another_application_fails_only_what_it_had() -> None:
    serve.run(who.bind(), name="front", route_prefix="/front", port=0)
    serve.run(who.options(num_replicas=2).bind(), name="back", route_prefix="/back")
    with Load(clients=4, path="/back") as load:
        wait_for(lambda: len(load.pids) == 2, WITHIN_S, "both replicas to answer")
        os.kill(next(iter(load.pids)), signal.SIGKILL)
        wait_for(lambda: len(load.pids) == 3, WITHIN_S, "a third replica to answer")
        load.goes_on()
    lost = len(load.failures) + sum(each.status != 200 for each in load.answers)
    assert lost <= 8, "one for each connection and each tunnel that it had"
    assert {each.status for each in load.answers} <= {200, 502}


def crash(name: str) -> None:
    """Kill the process of a named actor of skate.serve."""
    (found,) = (each for each in skate.util.list_named_actors(all_namespaces=True) if name in each["name"])
    skate.kill(skate.get_actor(found["name"], found["namespace"]), no_restart=False)


def test_http_goes_on_while_the_controller_is_killed_and_comes_back() -> None:
    serve.run(who.bind(), port=0)
    with Load() as load:
        load.goes_on()
        crash("CONTROLLER")
        load.goes_on()
        wait_for(lambda: ask("/-/metrics").status == 200, WITHIN_S, "the controller to be back")
        assert serve.status().applications["default"].status == "RUNNING"
    assert load.failures == []
    assert {each.status for each in load.answers} == {200}


def test_a_killed_keeper_comes_back_and_has_the_socket() -> None:
    """Replicas answer meanwhile. Their successors get the same socket, even if no replica is left by then."""
    serve.run(who.bind(), port=0)
    where = address()
    with Load() as load:
        load.goes_on()
        crash("KEEPER")
        load.goes_on()
        serve.run(who.options(num_replicas=2).bind())
        wait_for(lambda: len(load.pids) >= 2, WITHIN_S, "the second replica to answer")
    assert load.failures == []
    for pid in load.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert ask("/").json["pid"] not in load.pids
    assert address() == where


def test_a_keeper_that_is_killed_with_the_replicas_binds_the_same_address_again() -> None:
    serve.run(who.bind(), port=0)
    where = address()
    pid = ask("/").json["pid"]
    crash("KEEPER")
    os.kill(pid, signal.SIGKILL)

    def is_answered() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(ask("/").json["pid"] != pid)
        return False

    wait_for(is_answered, WITHIN_S, "the address to be answered again")
    assert address() == where
    assert skate.is_initialized()
    assert raw(b"GET /-/healthz HTTP/1.0\r\n\r\n").endswith(b"success")
