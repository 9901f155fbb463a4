"""Starting the processes of a cluster on this machine: its control service, and nodes.

Settings go through standard input, because they have the cluster's token in them; each process answers with one line of
JSON when it serves, or with what kept it from doing so.
"""

from __future__ import annotations

import os
import subprocess
from typing import IO, Any

import msgspec

from skate._control.config import ControlConfig
from skate._node.interpreter import command
from skate._node.main import NodeConfig


class LaunchError(Exception):
    """A process of the cluster could not be started; says why, and what to do."""

    def __init__(self, why: str, next: str = "", *, of_store: bool = False) -> None:
        super().__init__(why if not next else f"{why} {next[0].upper()}{next[1:]}")
        self.why = why
        self.next = next
        #: The place where the control service keeps its state is what could not be used.
        self.of_store = of_store


def start_control(config: ControlConfig, *, log: int | None = None) -> tuple[subprocess.Popen[bytes], str, int]:
    """The process, and where it listens."""
    process = subprocess.Popen(
        command("skate._control.main"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    said = _tell(process, config)
    assert process.stdout is not None
    process.stdout.close()
    return process, said["host"], said["port"]


def start_node(
    config: NodeConfig, *, log: int | None = None, env_vars: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """The process, and what it says of itself: "node_id", and "lobby", where drivers come in."""
    ours, theirs = os.pipe()
    config.report_fd = theirs
    try:
        process = subprocess.Popen(
            command("skate._node.main"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            env={**os.environ, **(env_vars or {})},
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        return process, _tell(process, config, answer)


def _tell(process: subprocess.Popen[bytes], config: msgspec.Struct, answer: IO[bytes] | None = None) -> dict[str, Any]:
    """Hand the settings over, and wait for the answer."""
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass
    answer = answer or process.stdout
    assert answer is not None
    line = answer.readline()
    said: dict[str, Any] = msgspec.json.decode(line) if line else {"error": "it ended before it was ready."}
    if "error" in said:
        process.wait()
        raise LaunchError(said["error"], said.get("next", ""), of_store=said.get("of_store", False))
    return said
