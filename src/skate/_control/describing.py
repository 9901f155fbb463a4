"""A storage in words: what `skate store status` asks a control service, and the form of the answer.

    {"engine": "sqlite", "shards": [{"members": [{"address": …}]}], "tables": {"kv": {"rows": 3, …}}, "trouble": null}

The form is the same for all engines: one file is a shard with one member.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skate._control.storage.interface import Storage, Trouble


def describe(storage: Storage) -> dict[str, Any]:
    """For people and programs; without passwords."""
    found: dict[str, Any] = msgspec.to_builtins(storage.describe())
    meta = storage.meta
    return {**found, "schema": meta.schema, "created_at": meta.created_at, "trouble": _trouble(storage.trouble)}


def _trouble(trouble: Trouble | None) -> dict[str, Any] | None:
    if trouble is None:
        return None
    error = trouble.error
    return {
        "what": error.what,
        "why": error.why,
        "next": error.next,
        "since": trouble.since,
        "attempts": trouble.attempts,
    }
