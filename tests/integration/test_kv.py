"""Keys and values that a cluster shares."""

from __future__ import annotations

import pytest

import skate


def test_keys_and_values(anywhere: None) -> None:
    assert skate.kv.get("a") is None
    assert skate.kv.put("a", b"1")
    assert skate.kv.get("a") == skate.kv.get(b"a") == b"1"
    assert not skate.kv.put("a", b"2", overwrite=False)
    assert skate.kv.get("a") == b"1"
    assert skate.kv.put("a", b"3")
    skate.kv.put("ab", b"")
    skate.kv.put("b", b"4")
    assert skate.kv.keys() == [b"a", b"ab", b"b"]
    assert skate.kv.keys("a") == [b"a", b"ab"]
    assert skate.kv.delete("a")
    assert not skate.kv.delete("a")
    assert skate.kv.get("a") is None


def test_all_nodes_have_the_same_and_namespaces_do_not(anywhere: None) -> None:
    @skate.remote(resources={"second": 1})
    def elsewhere() -> bytes | None:
        skate.kv.put("there", b"2")
        return skate.kv.get("here")

    skate.kv.put("here", b"1")
    assert skate.get(elsewhere.remote()) == b"1"
    assert skate.kv.get("there") == b"2"
    assert skate.kv.get("here", namespace="other") is None
    skate.kv.put("here", b"3", namespace="other")
    assert (skate.kv.get("here"), skate.kv.get("here", namespace="other")) == (b"1", b"3")


def test_the_first_wins(anywhere: None) -> None:
    @skate.remote(num_cpus=0.1)
    def vote(number: int) -> bool:
        return skate.kv.put("leader", str(number).encode(), overwrite=False)

    assert sum(skate.get([vote.remote(number) for number in range(20)])) == 1


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (1, b"", TypeError),
        pytest.param("k" * (64 << 10) + "k", b"", ValueError, id="long"),
        ("k", "text", TypeError),
        ("k", bytes(2 << 20), ValueError),
    ],
)
def test_what_cannot_be_kept_is_refused(key: object, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"kv\.put"):
        skate.kv.put(key, value)  # type: ignore[arg-type]
