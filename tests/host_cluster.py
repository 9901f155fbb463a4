"""A cluster on hosts with addresses of their own (tests/netns.py), and drivers on them that are told what to run.

    head: control service, node ─┐
    second: node ────────────────┼─ switch          each host is a network namespace
    third: node ─────────────────┤
    outside: no node ────────────┘

Drivers are programs on the hosts (tests/netns_programs.py), which the tests speak to.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import netns_programs
from netns import Host, Network
from skate._control.config import ControlConfig
from skate._node import launch
from skate._node.main import ClusterConfig, NodeConfig
from waiting import WITHIN_S

STORE_BYTES = 100 << 20
#: Of an object that is larger than a message, and than a chunk.
LARGE_BYTES = 9_000_000
#: Drivers, nodes and the control service end within this time.
ENDS_WITHIN_S = 10.0


class DriverError(Exception):
    """What the code that a driver was told to run raised: `kind` is the name of its class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind


class Driver:
    """A driver on a host, which runs what it is told."""

    def __init__(self, host: Host, address: str, **environment: str) -> None:
        self.process: subprocess.Popen[bytes] = host.popen(
            [sys.executable, netns_programs.__file__, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **environment},
        )
        self.node_id: str = self.hear()

    def say(self, code: str) -> None:
        """What it answers is to be heard later."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code).encode() + b"\n")

    def hear(self, timeout_s: float = WITHIN_S) -> Any:
        assert self.process.stdout is not None
        # Each answer is one write and one line, so there is never more than that in the pipe.
        assert select.select([self.process.stdout], [], [], timeout_s)[0], f"no answer within {timeout_s:g} s"
        answer = json.loads(self.process.stdout.readline() or '{"error": "EOFError", "text": "the driver ended"}')
        if "error" in answer:
            raise DriverError(answer["error"], answer["text"])
        return answer["value"]

    def do(self, code: str, timeout_s: float = WITHIN_S) -> Any:
        self.say(code)
        return self.hear(timeout_s)

    def nodes(self) -> dict[str, str]:
        """Addresses by ids."""
        found: dict[str, str] = self.do("addresses()")
        return found

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(ENDS_WITHIN_S) == 0


class HostCluster:
    """A control service on the first host, and a node on each of the first three. What they say is in `logs`."""

    def __init__(self, network: Network, logs: Path, *, tls: bool = False) -> None:
        self._logs = logs
        self.head, self.second, self.third, self.outside = network.hosts
        self.token = secrets.token_hex(32)
        with (logs / "control.log").open("wb") as log:
            self._control = self.head.popen(
                launch.command("skate._control.main"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        said = launch._tell(self._control, ControlConfig(host=self.head.address, token=self.token, tls=tls))
        self.port: int = said["port"]
        self.address = f"{self.head.address}:{self.port}"
        self._nodes: dict[Host, subprocess.Popen[bytes]] = {}
        self.ids: dict[Host, str] = {}
        self._drivers: list[Driver] = []
        with contextlib.ExitStack() as pipes:
            starting = [
                (host, *self._start_node(host, name, num_cpus, pipes))
                for host, name, num_cpus in (
                    (self.head, "head", 1),
                    (self.second, "second", 2),
                    (self.third, "third", 2),
                )
            ]
            for host, config, answer in starting:
                self.ids[host] = launch._tell(self._nodes[host], config, answer)["node_id"]

    def _start_node(
        self, host: Host, name: str, num_cpus: float, pipes: contextlib.ExitStack
    ) -> tuple[NodeConfig, IO[bytes]]:
        """It waits for its settings; with them, where it answers."""
        ours, theirs = os.pipe()
        answer = pipes.enter_context(os.fdopen(ours, "rb"))
        config = NodeConfig(
            report_fd=theirs,
            num_cpus=num_cpus,
            resources={name: 4},
            memory=1 << 30,
            object_store_memory=STORE_BYTES,
            cluster=ClusterConfig(
                control=(self.head.address, self.port), token=self.token, host=host.address, name=name
            ),
        )
        with (self._logs / f"{name}.log").open("wb") as log:
            self._nodes[host] = host.popen(
                launch.command("skate._node.main"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        return config, answer

    def driver(self, host: Host) -> Driver:
        """Through the node on its host."""
        driver = Driver(host, self.address)
        self._drivers.append(driver)
        return driver

    def remote_driver(self, token: str = "") -> Driver:
        """On the host that is no node."""
        driver = Driver(self.outside, f"skate://{self.address}", SKATE_TOKEN=token or self.token)
        self._drivers.append(driver)
        return driver

    def command(self, *arguments: str) -> str:
        """What `skate` says on the host of the head."""
        command = [sys.executable, "-m", "skate.cli", *arguments, "--address", self.address]
        done = self.head.run(
            command, env={**os.environ, "SKATE_TOKEN": self.token}, capture_output=True, text=True, check=True
        )
        out: str = done.stdout
        return out

    def by_name(self, name: str) -> Host:
        host: Host = getattr(self, name)
        return host

    def is_running(self, host: Host) -> bool:
        return self._nodes[host].poll() is None

    def node_pid(self, host: Host) -> int:
        return self._nodes[host].pid

    def end(self) -> None:
        """Drivers end, then the control service is told to, and all nodes end with it."""
        for driver in self._drivers:
            driver.end()
        self._control.terminate()
        for process in (self._control, *self._nodes.values()):
            assert process.wait(ENDS_WITHIN_S) == 0
