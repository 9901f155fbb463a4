"""What users type for a store: addresses of Redis servers, files that hold them, directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from skate._control.storage.errors import StorageAddressError, StorageError
from skate._control.storage.memory import MemoryStorage
from skate._control.storage.opening import VARIABLE, address_of, open_storage
from skate._control.storage.redis.connection.address import RedisAddress, Server, parse
from skate._control.storage.sqlite import SqliteStorage


def names(address: RedisAddress) -> list[list[str]]:
    return [[server.name for server in shard] for shard in address.shards]


def test_shards_are_told_by_semicolons_and_chains_by_commas() -> None:
    assert names(parse("redis://h1,h2:7000,h3;redis://h4")) == [["h1:6379", "h2:7000", "h3:6379"], ["h4:6379"]]
    assert names(parse(" redis://h1 , h2 ; h3 ")) == [["h1:6379", "h2:6379"], ["h3:6379"]]
    assert names(parse("redis://[::1]:7000,[fe80::1]")) == [["[::1]:7000", "[fe80::1]:6379"]]


def test_a_server_takes_user_password_and_tls_of_the_one_before_it() -> None:
    address = parse("rediss://app:s%40%2Cx@h1,h2,:other@h3;h4;redis://h5?")
    assert [(s.username, s.password, s.is_tls) for s in address.servers] == [
        ("app", "s@,x", True),
        ("app", "s@,x", True),
        ("", "other", True),
        ("", "other", True),
        ("", "", False),
    ]


def test_options_of_tls_are_those_of_redis_py() -> None:
    address = parse("rediss://h1,h2?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false;h3")
    assert all(dict(s.tls_options)["ssl_ca_certs"] == "/etc/ca.pem" for s in address.servers)


def test_a_password_is_in_no_text() -> None:
    (server,) = parse("redis://user:secret@h1").servers
    assert "secret" not in repr(server) + str(server) + server.name + repr(parse("redis://user:secret@h1"))


def test_a_member_that_is_not_named_any_more_is_reached_like_the_others() -> None:
    server = Server("h1", 1, "user", "secret")
    (other,) = parse("redis://[::1]:7000").servers
    assert server.with_name(other.name) == Server("::1", 7000, "user", "secret")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h1,h2", "does not begin with redis://"),
        ("http://h1", "begins with http://"),
        ("redis://h1;http://h2", "begins with http://"),
        ("redis://", "without a name"),
        ("redis://h1,,h2", "without a name"),
        ("redis://h1/1", "a database or a path"),
        ("redis://h1:x", "is not a port"),
        ("redis://h1:0", "port 0"),
        ("redis://h1:70000", "port 70000"),
        ("redis://user@h1", "a user and no password"),
        ("redis://h1,h2,h1:6379", "h1:6379 twice"),
        ("redis://h1?ssl_ca_certs=x", "no TLS"),
        ("rediss://h1?db=1", "the option db"),
        (";".join(f"redis://h{n}" for n in range(257)), "257 shards"),
    ],
)
def test_an_address_that_cannot_be_read_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(StorageAddressError, match=says) as raised:
        parse(text)
    assert raised.value.next


def test_what_cannot_be_read_shows_no_password() -> None:
    for text in ("redis://user:secret@", "redis://user:secret@h1/1", "redis://user:secret@h1:x"):
        with pytest.raises(StorageAddressError) as raised:
            parse(text)
        assert "secret" not in str(raised.value)


def test_an_address_comes_from_the_arguments_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_text("# the store of the laboratory\n\nredis://:secret@h1,h2\n")
    file.chmod(0o600)
    assert address_of("redis://h1", {VARIABLE: "redis://h2"}) == "redis://h1"
    assert address_of("", {VARIABLE: f"@{file}"}) == address_of(f"@{file}", {}) == "redis://:secret@h1,h2"
    assert address_of("", {}) == ""


@pytest.mark.parametrize("text", ["", "redis://h1\nredis://h2\n", "@other\n"])
def test_a_file_that_holds_no_address_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "store"
    file.write_text(text)
    with pytest.raises(StorageAddressError, match="does not hold the address"):
        address_of(f"@{file}", {})
    with pytest.raises(StorageAddressError, match="cannot be read"):
        address_of(f"@{tmp_path / 'none'}", {})


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "store"
    file.write_text("redis://:secret@h1\n")
    file.chmod(0o644)
    address_of(f"@{file}", {})
    assert "chmod 600" in caplog.text
    assert "secret" not in caplog.text


def test_each_engine_is_opened_by_what_names_it(tmp_path: Path) -> None:
    storage = open_storage("memory", directory=tmp_path, cluster_id="c", environ={})
    assert isinstance(storage, MemoryStorage)
    storage.close()
    for store, folder in (("", "head"), (str(tmp_path / "elsewhere"), "elsewhere")):
        storage = open_storage(store, directory=tmp_path / "head", cluster_id="c", environ={})
        assert isinstance(storage, SqliteStorage)
        assert storage.meta.cluster_id == "c"
        assert (tmp_path / folder / "control.sqlite3").exists()
        storage.close()
    with pytest.raises(StorageAddressError, match="no engine"):
        open_storage("mysql://h1", directory=tmp_path, environ={})
    with pytest.raises(StorageError, match="A standby needs a store on Redis servers"):
        open_storage("", directory=tmp_path, has_standby=True, environ={})
