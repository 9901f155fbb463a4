"""The same command on every machine: who is the head, and where the others find it.

By address (`--rendezvous 10.0.0.1:6380`): whoever can listen there is the head. The kernel lets one process listen on
an address, and only the machine that has it; everybody else knocks until the head answers.

By file (`--rendezvous file:///shared/run7`): whoever creates the file is the head (O_EXCL: one can, also on NFS since
version 3), and writes its address into it once it serves. The others read it until the address is there, then knock.

What can go wrong in between, and why it does not matter:

- several begin at once: the address is bound once, the file is created once;
- the head fails to start: it removes its file, so one of those who wait creates it again and is the head;
- the head is killed while it starts, or a file is left of an earlier run: nobody can know that from outside, and to
  begin a second cluster would be worse than to wait. So all wait up to --wait, and then say what to look at.

Owns:      the file of a rendezvous.
Knows not: how nodes are started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import socket
from dataclasses import dataclass

from skate.cli.parser import address as parse_address
from skate.cli.trouble import Trouble

FILE_BYTES_MAX = 4096
#: How a file begins.
BEGINNING = b'{"address": "'


@dataclass
class Found:
    """What the file of a rendezvous says."""

    #: Of the head: "host:port"; empty while it starts.
    address: str = ""
    machine: str = ""
    pid: int = 0

    def describe(self) -> str:
        return f"pid {self.pid} on {self.machine}" if self.pid else "somebody"


def claim(path: str) -> bool:
    """Whether we are the head: the file was not there."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(_content(""))
    except OSError as error:
        withdraw(path)
        raise _unwritable(path, error) from None
    return True


def publish(path: str, address: str) -> None:
    """Whole or not at all: the others read it meanwhile."""
    draft = f"{path}.{secrets.token_hex(4)}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_content(address))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        withdraw(draft)
        raise _unwritable(path, error) from None


def withdraw(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def read_file(path: str) -> Found | None:
    """None: there is no such file. One that is being written says nothing yet. Raises Trouble if it is none of ours."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Trouble(
            f"the file of the rendezvous, {path}, cannot be read: {error.strerror}.",
            "all ranks have to run as the same user, and see the same file.",
        ) from None
    try:
        said = json.loads(content)
    except ValueError:
        if BEGINNING.startswith(content[: len(BEGINNING)]):
            return Found()
        raise _not_ours(path) from None
    try:
        if said["address"]:
            parse_address(said["address"])
        return Found(said["address"], str(said["machine"]), int(said["pid"]))
    except (ValueError, KeyError, TypeError, AttributeError, argparse.ArgumentTypeError):
        raise _not_ours(path) from None


def _content(address: str) -> bytes:
    said = {"address": address, "machine": socket.gethostname(), "pid": os.getpid()}
    return json.dumps(said).encode() + b"\n"


def _not_ours(path: str) -> Trouble:
    return Trouble(
        f"{path} is not a file of a rendezvous: what is in it was not written by Skate.",
        f"name one that is not there yet, or remove it if nobody needs it: rm {shlex.quote(path)}",
    )


def _unwritable(path: str, error: OSError) -> Trouble:
    return Trouble(
        f"the file of the rendezvous, {path}, cannot be written: {error.strerror}.",
        "name a file in a directory that all ranks share and can write to.",
    )
