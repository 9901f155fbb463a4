"""Which cluster a command is about, and questions to its control service."""

from __future__ import annotations

import argparse
import os
import select
import shlex
import socket
import time
from typing import Any

from skate._wire import cluster
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed
from skate._wire.entrance import Tls
from skate._wire.gate import knock, speaks_tls
from skate._wire.handshake import HandshakeError, SilentError, StrangerError, VersionError
from skate._wire.token import TokenError, find_token
from skate.cli.parser import Address, show_address
from skate.cli.parser import address as parse_address
from skate.cli.running import find_running
from skate.cli.trouble import Trouble

ADDRESS_VARIABLE = "SKATE_ADDRESS"
NOTHING_RUNS = 3
#: How long an answer may take.
ANSWER_S = 10.0
#: And the door, which is on a machine that may not be there.
KNOCK_S = 5.0


def which_cluster(given: Address | None) -> Address:
    """The one that was named; else the one that runs here. Raises Trouble if there is none, or more than one."""
    if given is not None:
        return given
    named = os.environ.get(ADDRESS_VARIABLE, "")
    if named:
        try:
            # Inside a job it may be the name of a node, which ends with the address of its cluster.
            return parse_address(named.rpartition("@")[2])
        except Exception:  # noqa: BLE001 - argparse has an exception of its own for a wrong value
            raise Trouble(
                f"{ADDRESS_VARIABLE}={named!r} is no address.", "set it to HOST:PORT, unset it, or use --address."
            ) from None
    found = list(dict.fromkeys(process.cluster for process in reversed(find_running()) if process.cluster))
    if not found:
        raise Trouble(
            "no cluster of `skate start` runs here.",
            "`skate start --head` starts a cluster, and --address HOST:PORT asks one that runs elsewhere.",
            exit_code=NOTHING_RUNS,
        )
    if len(found) > 1:
        raise Trouble(
            f"this machine is part of {len(found)} clusters: {', '.join(found)}.", f"say which: --address {found[0]}"
        )
    return parse_address(found[0])


def token_for(token_file: str | None) -> bytes:
    try:
        return find_token(token_file)
    except TokenError as error:
        raise Trouble(str(error)) from None


def with_token(options: argparse.Namespace) -> str:
    """What a command that a user is told to type on this machine needs besides, if this one was told, too."""
    return f" --token-file {shlex.quote(options.token_file)}" if options.token_file else ""


def resolve(host: str) -> str:
    """The numeric address of a host, IPv4 if it has one; it is what nodes and drivers compare."""
    try:
        found = [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Trouble(f"the host {host!r} is not known: {why}.", "check the name, or give its IP address.") from None
    return next((each for each in found if ":" not in each), found[0])


class Asking:
    """A conversation with a control service. Use it in a `with`."""

    def __init__(self, where: Address, token: bytes, timeout_s: float = KNOCK_S) -> None:
        """Raises Trouble if we are not let in; `refused` in it says that nobody listens, so later may help."""
        self._where = show_address(where)
        try:
            host, port = resolve(where[0]), where[1]
            tls = Tls(listens=False) if speaks_tls(host, port) else None
            sock, _, rest = knock(host, port, token, timeout_s, tls)
        except StrangerError as error:
            raise Trouble(
                str(error),
                "another service has that port. Check the host and the port: they are those that `skate start --head` "
                "printed, and the port is 6380 unless --port named another.",
            ) from None
        except VersionError as error:
            raise Trouble(
                str(error), "`skate --version` tells what is here; install the same Skate on the same Python."
            ) from None
        except SilentError as error:
            raise Silent(
                str(error),
                "try again, or look on its machine: `ps` tells whether it is stopped (state T), its log is in "
                "~/.skate/logs, and `skate stop --force` ends it.",
            ) from None
        except HandshakeError as error:
            raise Trouble(
                str(error),
                "check that this is the address of `skate start --head`, and that the token is that of the head "
                "(~/.skate/token there; --token-file names another).",
            ) from None
        except OSError as error:
            why = error.strerror or ("no answer in time" if isinstance(error, TimeoutError) else str(error))
            trouble = Unreachable(
                f"nobody can be reached at {self._where}: {why}.",
                "check the address, that `skate start --head` runs there, and that it was told to listen "
                "on that address (--host).",
            )
            raise trouble from None
        self._channel = Channel(sock, decode=cluster.decode)
        assert not rest, "it speaks when it was asked"

    def end_cluster(self, reason: str, *, keep: bool = False) -> None:
        """All its nodes end, and the service does. keep: the next service that has its store goes on with it."""
        self._channel.send(cluster.End(reason, keep))
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        buffer = bytearray(RECEIVE_BYTES)
        deadline = time.monotonic() + ANSWER_S
        while (wait_s := deadline - time.monotonic()) > 0:
            poll.poll(wait_s * 1000)
            try:
                self._channel.receive(buffer)
            except ChannelClosed:  # it has ended
                return

    def ask(self, what: str) -> Any:
        self._channel.send(cluster.Ask(what))
        deadline = time.monotonic() + ANSWER_S
        buffer = bytearray(RECEIVE_BYTES)
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while (wait_s := deadline - time.monotonic()) > 0:
            poll.poll(wait_s * 1000)
            try:
                for message in self._channel.receive(buffer):
                    if isinstance(message, cluster.Reply):  # and not a confirmation of what was asked before
                        return message.body
            except ChannelClosed:
                raise Trouble(
                    f"{self._where} ended the conversation when it was asked for {what}.",
                    "it may be a node's port and not the head's, have just ended, or run an older version of Skate.",
                ) from None
        raise Trouble(
            f"{self._where} did not answer within {ANSWER_S:g} s.",
            "it may be overloaded; look at its log, or try again.",
        )

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class Unreachable(Trouble):
    """Nobody listens there, or no machine is there; it may yet come."""


class Silent(Trouble):
    """Somebody listens there and does not answer; it may be a head that is busy, or stopped."""


def ask_cluster(options: argparse.Namespace) -> tuple[Address, Asking]:
    """The cluster that a command is about, by its options."""
    where = which_cluster(options.address)
    try:
        return where, Asking(where, token_for(options.token_file))
    except Unreachable as trouble:
        if any(process.cluster == show_address(where) for process in find_running()):
            trouble.next = "a node of it runs here and tries to reach it; if the head is gone for good: skate stop"
        raise
