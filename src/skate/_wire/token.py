"""The cluster's token: the one secret that lets a machine, or a driver from outside, come in.

`skate start --head` writes it to a file; everybody else has to be told. It is text, so that it can be copied by hand
and put into a variable. It is looked for in this order, and the first that is given counts even if it is wrong:

    --token-file PATH        said for this command
    SKATE_TOKEN              the token itself: containers
    SKATE_TOKEN_FILE         a path: mounted secrets
    ~/.skate/token           what `skate start --head` wrote, here or in a home that the machines share

A file that others can read is no secret, and one that others can write is theirs: both are refused, as ssh refuses
keys. A short token is refused because whoever overhears a handshake can try all of them at home.

Owns:      how a token is written and found.
Knows not: who asks for it, and what it is used for.
Invariant: no byte of a token is in an error, its causes or a log; nobody else can read the file at any moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import stat

TOKEN_VARIABLE = "SKATE_TOKEN"
TOKEN_FILE_VARIABLE = "SKATE_TOKEN_FILE"

#: Random bytes in a new token. Written as hex it has twice as many characters.
RANDOM_BYTES = 32
CHARACTERS_MIN = 16
#: A longer file is something else, given by mistake: it is refused, and no more of it is read.
FILE_BYTES_MAX = 4096

_HEX_TOKEN = re.compile(rf"\s*[0-9a-fA-F]{{{2 * RANDOM_BYTES}}}\s*")
_PRINTABLE = frozenset(range(0x20, 0x7F))
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TokenError(ValueError):
    """There is no token, or not one that can be trusted. Says why and what to do in one line, without the token."""


def default_path() -> str:
    return os.path.expanduser("~/.skate/token")


def create_token(path: str) -> bytes:
    """The token in `path`, which is written if it is not there yet. Of several that do so at once one writes it."""
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    try:
        _write(path, secrets.token_hex(RANDOM_BYTES).encode())
    except OSError as error:
        raise TokenError(
            f"the token cannot be written to {path}: {error.strerror}. Name another file with --token-file."
        ) from None
    # What is there now, since somebody may have been faster.
    return _read_named(path, "skate start --head")


def find_token(token_file: str | None) -> bytes:
    """The token that this process is to use; `token_file` is what --token-file says."""
    if token_file is not None:
        return _read_named(token_file, "--token-file")
    given = os.environb.get(TOKEN_VARIABLE.encode())
    if given is not None:
        return _checked(given, f"the token in {TOKEN_VARIABLE}", f"Set it to that of the cluster, or unset it. {_WAYS}")
    file_given = os.environ.get(TOKEN_FILE_VARIABLE)
    if file_given is not None:
        return _read_named(file_given, TOKEN_FILE_VARIABLE)
    path = default_path()
    try:
        return _read(path)
    except FileNotFoundError:
        raise TokenError(f"no token was given, and there is no file {path}. {_WAYS}") from None


def is_token_named() -> bool:
    """Whether the environment of this process names a token, or a file with one."""
    return TOKEN_VARIABLE in os.environ or TOKEN_FILE_VARIABLE in os.environ


_WAYS = (
    "`skate start --head` writes the cluster's token to ~/.skate/token on its machine; give it with --token-file PATH, "
    f"with {TOKEN_VARIABLE} (the token itself) or with {TOKEN_FILE_VARIABLE} (a path)."
)


def _read_named(path: str, named_by: str) -> bytes:
    """The token in a file that somebody named, which therefore has to be there."""
    if not path:
        raise TokenError(f"{named_by} names no file. {_WAYS}")
    try:
        return _read(path)
    except FileNotFoundError:
        if _HEX_TOKEN.fullmatch(path):  # the token itself, given as a path: it must not be shown
            raise TokenError(f"{named_by} was given what looks like a token, and takes a path. {_WAYS}") from None
        raise TokenError(f"{named_by}: there is no file {path}. {_WAYS}") from None


def _read(path: str) -> bytes:
    """Raises FileNotFoundError if there is no such file, and TokenError for everything else that is wrong with it."""
    try:
        # Without O_NONBLOCK a pipe that nobody writes to would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: the path has a zero byte
        why = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise TokenError(f"the token file {path!r} cannot be opened: {why}. Name another with --token-file.") from None
    try:
        # The open file is looked at, not the path, which could name another one by now.
        _check_private(os.fstat(fd), path)
        content = os.read(fd, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TokenError(f"the token file {path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(fd)
    next_step = "Write the token of the cluster into it; or remove it, and `skate start --head` makes a new one."
    return _checked(content, f"the token in {path}", next_step)


def _check_private(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise TokenError(f"the token file {path} is not a regular file. Name another with --token-file.")
    us = os.geteuid()
    if found.st_uid not in (us, 0):
        raise TokenError(
            f"the token file {path} belongs to user {found.st_uid}, not to user {us} who runs this: its owner could "
            f"change it. If it is the right one, run: sudo chown {us} {shlex.quote(path)}"
        )
    if found.st_mode & _FOR_OTHERS:
        raise TokenError(
            f"the token file {path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}), and who has the token "
            f"can run code on the cluster. Run: chmod 600 {shlex.quote(path)}"
        )


def _checked(content: bytes, what: str, next_step: str) -> bytes:
    """The token in `content`. Errors tell of sizes only: even a wrong token may be nearly right."""
    token = content.strip()
    if not token:
        raise TokenError(f"{what} is empty. {next_step}")
    if len(content) > FILE_BYTES_MAX:
        raise TokenError(f"{what} has more than {FILE_BYTES_MAX} bytes, which no token has. {next_step}")
    if not _PRINTABLE.issuperset(token):
        raise TokenError(f"{what} is not one line of printable ASCII characters. {next_step}")
    if len(token) < CHARACTERS_MIN:
        raise TokenError(
            f"{what} has {len(token)} characters, and with less than {CHARACTERS_MIN} it could be guessed. {next_step}"
        )
    return token


def _write(path: str, token: bytes) -> None:
    """Write a token unless there is one: the whole file appears at once, or none.

    It is written under another name that only we can open (O_EXCL), and gets its own with a link, which unlike a rename
    does not replace what is there. File systems without links have no owners and modes either, so they are no loss.
    """
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    draft = os.path.join(directory, f".{name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # a strict umask may have taken from it what the owner needs
            file.write(token + b"\n")
            file.flush()
            os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
