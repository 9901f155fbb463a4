"""The cluster's token: nobody else can read it, who needs it finds it or is told what to do, and no error shows it."""

from __future__ import annotations

import logging
import os
import stat
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._wire import token as token_module
from skate._wire.token import CHARACTERS_MIN, FILE_BYTES_MAX, TokenError, create_token, default_path, find_token

SECRET = "a-secret-that-nobody-may-see"
OTHER = "another-secret-of-another-one"
ONLY_ROOT_GIVES_AWAY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and nothing said about tokens."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SKATE_TOKEN", raising=False)
    monkeypatch.delenv("SKATE_TOKEN_FILE", raising=False)
    return tmp_path


def write(path: Path, content: str | bytes, mode: int = 0o600) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return str(path)


def refused(attempt: Callable[[], object]) -> str:
    """The error's one line. Nothing of what it carries along may have the token in it."""
    with pytest.raises(TokenError) as caught:
        attempt()
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(vars(caught.value))
    assert SECRET not in told
    assert "\n" not in str(caught.value)
    return str(caught.value)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# --- making one -------------------------------------------------------------------------------------------------------


def test_a_new_token_is_one_line_of_hex_in_a_private_file_in_a_private_directory(home: Path) -> None:
    token = create_token(default_path())
    path = home / ".skate" / "token"
    assert path.read_bytes() == token + b"\n"
    assert len(bytes.fromhex(token.decode())) == 32
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    assert os.listdir(path.parent) == ["token"], "nothing else is left there"


def test_what_was_created_is_what_is_found() -> None:
    assert create_token(default_path()) == find_token(None)


def test_a_token_that_is_there_is_used_again() -> None:
    assert create_token(default_path()) == create_token(default_path())


def test_two_clusters_have_different_tokens(home: Path) -> None:
    assert create_token(str(home / "one")) != create_token(str(home / "other"))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_nobody_else_can_read_it_at_any_moment(home: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    modes = []

    def fsync(fd: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))

    def open_and_look(path: str, flags: int, mode: int = 0o777) -> int:
        fd = real_open(path, flags, mode)
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        assert not flags & os.O_CREAT or flags & os.O_EXCL
        return fd

    real_open = os.open
    directory = home / "private"
    directory.mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "open", open_and_look)
    before = os.umask(umask)
    try:
        create_token(str(directory / "token"))
    finally:
        os.umask(before)
    assert len(modes) >= 3
    assert not any(seen & 0o077 for seen in modes)
    assert mode(directory / "token") == 0o600


def test_many_that_create_it_at_once_get_the_same() -> None:
    tokens = []
    threads = [threading.Thread(target=lambda: tokens.append(create_token(default_path()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert os.listdir(os.path.dirname(default_path())) == ["token"]


def test_a_token_that_others_can_read_is_not_used_again() -> None:
    path = write(Path(default_path()), SECRET, 0o644)
    assert f"chmod 600 {path}" in refused(lambda: create_token(path))
    assert Path(path).read_text() == SECRET, "and stays as it is"


def test_a_place_that_cannot_be_written_is_an_error_that_says_what_to_do() -> None:
    assert "--token-file" in refused(lambda: create_token("/proc/nowhere/token"))


def test_a_link_that_leads_nowhere_is_an_error(home: Path) -> None:
    (home / "link").symlink_to(home / "nowhere")
    assert "there is no file" in refused(lambda: create_token(str(home / "link")))
    assert not (home / "nowhere").exists()


# --- finding one ------------------------------------------------------------------------------------------------------


def test_it_is_looked_for_in_the_order_that_is_promised(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path(default_path()), "of the default path")
    assert find_token(None) == b"of the default path"
    monkeypatch.setenv("SKATE_TOKEN_FILE", write(home / "file", "of SKATE_TOKEN_FILE"))
    assert find_token(None) == b"of SKATE_TOKEN_FILE"
    monkeypatch.setenv("SKATE_TOKEN", "of SKATE_TOKEN itself")
    assert find_token(None) == b"of SKATE_TOKEN itself"
    assert find_token(write(home / "argument", "of the argument itself")) == b"of the argument itself"


def test_what_is_given_first_counts_even_if_it_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Falling back to another token would end in a refusal at the other end, which nobody could explain."""
    write(Path(default_path()), OTHER)
    assert "--token-file: there is no file" in refused(lambda: find_token(str(home / "missing")))
    monkeypatch.setenv("SKATE_TOKEN_FILE", str(home / "missing"))
    assert "SKATE_TOKEN_FILE: there is no file" in refused(lambda: find_token(None))
    monkeypatch.setenv("SKATE_TOKEN", "")
    assert "SKATE_TOKEN is empty" in refused(lambda: find_token(None))


def test_without_any_the_error_names_the_three_ways() -> None:
    told = refused(lambda: find_token(None))
    for way in ("--token-file PATH", "SKATE_TOKEN (", "SKATE_TOKEN_FILE (", default_path(), "skate start --head"):
        assert way in told


@pytest.mark.parametrize("around", ["{}\n", "  {}\r\n\n", "\t{} "])
def test_white_space_around_it_does_not_count(home: Path, monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    assert find_token(write(home / "token", around.format(SECRET))) == SECRET.encode()
    monkeypatch.setenv("SKATE_TOKEN", around.format(SECRET))
    assert find_token(None) == SECRET.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666, 0o777])
def test_a_file_that_is_open_to_others_is_refused_with_the_command_that_mends_it(home: Path, mode: int) -> None:
    path = write(home / "my token", SECRET, mode)
    told = refused(lambda: find_token(path))
    assert f"{mode:04o}" in told
    assert told.endswith(f"Run: chmod 600 '{path}'"), "quoted for the shell"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_private_file_is_accepted(home: Path, mode: int) -> None:
    assert find_token(write(home / "token", SECRET, mode)) == SECRET.encode()


@ONLY_ROOT_GIVES_AWAY
def test_a_file_of_somebody_else_is_refused(home: Path) -> None:
    path = write(home / "token", SECRET)
    os.chown(path, 12345, -1)
    told = refused(lambda: find_token(path))
    assert "12345" in told
    assert f"chown {os.geteuid()} {path}" in told


@ONLY_ROOT_GIVES_AWAY
def test_a_file_of_root_is_accepted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home / "token", SECRET)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert find_token(path) == SECRET.encode()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (SECRET[: CHARACTERS_MIN - 1].encode(), f"has {CHARACTERS_MIN - 1} characters"),
        (SECRET.encode() + b"\n" + OTHER.encode(), "not one line"),
        (SECRET.encode() + b"\0", "not one line"),
        (SECRET.encode() + "é".encode(), "not one line"),
        (SECRET.encode() * 1000, f"more than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_token_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes, complaint: str
) -> None:
    path = write(home / "token", content)
    with caplog.at_level(logging.DEBUG):
        told = refused(lambda: find_token(path))
        assert complaint in told
        assert path in told
        assert SECRET[: CHARACTERS_MIN - 1] not in told, "not even a part"
        if b"\0" not in content:  # which no variable can have
            monkeypatch.setitem(os.environb, b"SKATE_TOKEN", content)
            told = refused(lambda: find_token(None))
            assert complaint in told
            assert "SKATE_TOKEN" in told
    assert not caplog.text


def test_what_is_no_file_is_refused_and_not_waited_for(home: Path) -> None:
    os.mkfifo(home / "pipe", 0o600)
    for path in (home, home / "pipe"):
        assert "not a regular file" in refused(lambda path=path: find_token(str(path)))  # type: ignore[misc]
    write(home / "file", SECRET)
    assert "cannot be opened" in refused(lambda: find_token(str(home / "file" / "below")))
    assert "cannot be opened" in refused(lambda: find_token("zero\0byte"))
    assert "names no file" in refused(lambda: find_token(""))


def test_a_token_that_is_given_as_a_path_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    token = create_token(default_path()).decode()
    told = refused(lambda: find_token(token))
    assert token not in told
    assert "takes a path" in told
    monkeypatch.setenv("SKATE_TOKEN_FILE", token)
    assert token not in refused(lambda: find_token(None))


@given(st.binary(max_size=200))
def test_anything_is_a_token_or_a_token_error(content: bytes) -> None:
    try:
        token = token_module._checked(content, "it", "Try again.")
    except TokenError:
        return
    assert token == content.strip()
    assert len(token) >= CHARACTERS_MIN
    assert token.decode("ascii").isprintable()
