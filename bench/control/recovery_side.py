"""The control service is killed under load of state: how long until everything answers again.

A real node with live actors, whose daemon starts the service again; and a played node (`town.py`) that has made many
rows: actors that are dead, actors for which it looks for workers and finds none, and keys. After the kill a thread asks
the service again and again, and others ask on behalf of the driver:

    kill -9 ──▶ gone ──▶ listens (a process is there) ──▶ answers (rows are loaded) ──▶ both nodes are back ──▶ settled
            ──▶ a key, a name, a new actor, every live actor: each when it answered the driver
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import tools
from tools import key_of
from town import WITHIN_S, PlayedNode

import skate
from skate import kv
from skate._core import actors as states
from skate.cli.asking import Asking
from skate.cli.trouble import Trouble
from skate.cluster_utils import Cluster
from waiting import wait_for

#: The pause between two questions.
PAUSE_S = 0.005
WINDOW = 256
#: What was said before the kill is confirmed by then, so that no request is said again.
QUIET_S = 1.0


@skate.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        self.value += 1
        return self.value


class Watch:
    """When the service got how far, in seconds since it was killed."""

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self.moments: dict[str, float] = {}
        self._killed_at = 0.0

    def ask(self, what: str = "cluster") -> Any:
        with Asking(self._made._control_address, self._made._token.encode()) as asking:
            return asking.ask(what)

    def kill(self) -> int:
        """The service, with kill -9. Returns its pid when it is gone: until then its port would answer."""
        pid: int = self.ask()["pid"]
        pidfd = os.pidfd_open(pid)
        try:
            self._killed_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            select.select([pidfd], [], [], WITHIN_S)
        finally:
            os.close(pidfd)
        self.reached("gone")
        return pid

    def reached(self, name: str) -> None:
        self.moments.setdefault(name, time.monotonic() - self._killed_at)

    def _listens(self) -> bool:
        try:
            socket.create_connection(self._made._control_address, timeout=1.0).close()
        except OSError:
            return False
        return True

    def follow(self, pid: int, nodes: int) -> None:
        """Until it is settled."""
        give_up_at = time.monotonic() + WITHIN_S
        while not self._listens():
            time.sleep(PAUSE_S)
        self.reached("listens")
        while "settled" not in self.moments:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"waited {WITHIN_S:g} s for the service; it got to {list(self.moments)}")
            try:
                about = self.ask()
            except Trouble:
                about = None
            if about is not None and about["pid"] != pid:
                self.reached("rows loaded")
                if about["nodes"] == nodes:
                    self.reached("nodes back")
                if not about["recovering"]:
                    self.reached("settled")
            time.sleep(PAUSE_S)

    def see(self, name: str, act: Callable[[], object]) -> threading.Thread:
        """When the driver got that answer."""

        def run() -> None:
            act()
            self.reached(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def _fill(node: PlayedNode, dead: int, pending: int, keys: int) -> None:
    node.finds_workers = False
    made: list[bytes] = []

    def create(number: int) -> int:
        request, actor = node.create_actor()
        made.append(actor)
        if number < dead:
            node.kill_actor(actor)
        return request

    node.many(dead + pending, WINDOW, create, lambda done: None)
    value = bytes(tools.VALUE_BYTES)
    node.many(keys, WINDOW, lambda number: node.put(key_of(number), value), lambda done: None)
    quiet_at = time.monotonic() + QUIET_S
    node.run_until(lambda: time.monotonic() > quiet_at, "what was said to be confirmed")


def recover(live: int, dead: int, pending: int, keys: int) -> dict[str, Any]:
    with tools.folder() as folder:
        made = Cluster(store=str(folder))
        try:
            made.add_node(num_cpus=2)
            made.connect(namespace="bench")
            living = [Counter.options(name=f"live {number}").remote() for number in range(live)]
            assert skate.get([actor.add.remote() for actor in living]) == [1] * live
            kv.put(b"mine", b"value")
            node = PlayedNode(made)
            _fill(node, dead, pending, keys)
            watch = Watch(made)
            before = _rows(watch)
            with node.goes_on():
                pid = watch.kill()
                asking = [
                    watch.see("a key answers", lambda: _same(kv.get(b"mine"), b"value")),
                    watch.see("a name answers", lambda: skate.get_actor(f"live {live - 1}")),
                    watch.see("a put is durable", lambda: kv.put(b"mine", b"other")),
                    watch.see("a new actor answers", lambda: _same(skate.get(Counter.remote().add.remote()), 1)),
                    watch.see(
                        "live actors answer",
                        lambda: _same(skate.get([actor.add.remote() for actor in living]), [2] * live),
                    ),
                ]
                watch.follow(pid, nodes=2)
                for thread in asking:
                    thread.join()
                watch.reached("everything answers")
                after = wait_for(lambda: _rows(watch), WITHIN_S, "the service to say what it has")
            for state in (states.DEAD, states.PENDING):
                assert after[state] >= before[state] > 0, f"{state}: {before} before, {after} after"
            assert node.wait_for(node.request(lambda request: _get(request, key_of(keys - 1)))) is not None
            node.close()
            file_bytes = sum(path.stat().st_size for path in folder.iterdir())
        finally:
            skate.shutdown()
            made.shutdown()
        kind = tools.file_system(folder)
    found = {f"{name}, s": at for name, at in watch.moments.items()}
    return {"found": found, "actors": after, "keys": keys, "file_bytes": file_bytes, "file_system": kind}


def _get(request: int, key: bytes) -> Any:
    from skate._wire import messages as wire

    return wire.KeyValue(request, "get", "bench", key)


def _same(found: object, expected: object) -> None:
    assert found == expected, f"{found!r} instead of {expected!r}"


def _rows(watch: Watch) -> dict[str, int]:
    """Actors by their state."""
    found: dict[str, int] = {}
    for actor in watch.ask("actors"):
        found[actor["state"]] = found.get(actor["state"], 0) + 1
    return found


if __name__ == "__main__":
    tools.main({"recover": recover})
