"""The contract of what keeps keys and values: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._control.backend import Backend, Memory, Sharded

ENGINES: dict[str, Callable[[], Backend]] = {
    "memory": Memory,
    "one shard": lambda: Sharded([Memory()]),
    "five shards": lambda: Sharded([Memory() for _ in range(5)]),
}

KEYS = st.binary(max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "put", "delete", "scan"]), st.sampled_from("ab"), KEYS, st.binary(max_size=4)),
    max_size=60,
)


def ask(operation: Callable[..., None], *arguments: Any) -> Any:
    """What was handed to `then`, once."""
    answers: list[tuple[Any, ...]] = []
    operation(*arguments, lambda *answer: answers.append(answer))
    assert len(answers) == 1
    return answers[0][0] if answers[0] else None


@pytest.mark.parametrize("engine", sorted(ENGINES))
@given(steps=STEPS)
@settings(deadline=None)
def test_an_engine_is_a_dict_of_dicts(engine: str, steps: list[tuple[str, str, bytes, bytes]]) -> None:
    backend = ENGINES[engine]()
    model: dict[tuple[str, bytes], bytes] = {}
    for what, table, key, value in steps:
        match what:
            case "get":
                assert ask(backend.get, table, key) == model.get((table, key))
            case "put":
                ask(backend.put, table, key, value)
                model[table, key] = value
            case "delete":
                assert ask(backend.delete, table, key) == (model.pop((table, key), None) is not None)
            case "scan":
                expected = sorted((k, v) for (t, k), v in model.items() if t == table and k.startswith(key))
                assert ask(backend.scan, table, key) == expected


def test_keys_spread_over_the_shards() -> None:
    sharded = Sharded([Memory() for _ in range(4)])
    seen = [sharded.shard_of("table", str(number).encode()) for number in range(1000)]
    assert all(200 < seen.count(shard) < 300 for shard in range(4))
    assert seen == [sharded.shard_of("table", str(number).encode()) for number in range(1000)], "always the same"
