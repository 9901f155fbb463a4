"""The rows of the suite: what is measured, with which settings, and what we aim at."""

from __future__ import annotations

from typing import Any

from suite import Cell, Most, Row, Want

CONTROL: dict[str, Any] = {"environment": "control"}
STORAGE: dict[str, Any] = {"program": "storage_side", **CONTROL}
KINDS = ("redis", "valkey")

# -- figure 10a --------------------------------------------------------------------------------------------------------

#: Seconds of each quiet phase, and keys, all of which a server that joins has to copy.
FAILOVER = {"seconds": 2.0, "keys": 10_000}
SMALL_FAILOVER = {"seconds": 0.1, "keys": 200}
#: A member that owes an answer is removed after this time (`SILENCE_S`); 10 ms are for the removal.
FROZEN_MS = 1000.0 + 10.0
KILLED_MS = 30.0


def _failover(how: str, text: str, mosts: dict[str, float]) -> Row:
    cells = {
        f"{kind}, {which}": Cell(
            row="failover",
            **STORAGE,
            arguments={"kind": kind, "how": how, "which": which, **FAILOVER},
            smoke=SMALL_FAILOVER,
        )
        for kind in KINDS
        for which in ("head", "tail")
    }
    return Row(
        f"figure_10a_{how}",
        f"the largest delay, in ms, that one client in a closed loop sees (keys of 25 bytes, values of 512) while of a "
        f"chain of two {text}, and then an empty server joins in its place",
        cells,
        figure="largest_ms",
        more_is_better=False,
        mosts=tuple(Most(cell, phase, most) for cell in cells for phase, most in mosts.items()),
    )


# -- writes a second ---------------------------------------------------------------------------------------------------

IN_FLIGHT = [1, 32]
WRITES = {"in_flight": IN_FLIGHT, "seconds": 3.0, "keys": 1000}
SMALL_WRITES = {"seconds": 0.1, "keys": 50}
MEMBERS, SHARDS = (1, 2, 3), (1, 2, 4)
#: The paper's prototype lost 13 % of its throughput to the chain at 32 in flight.
OF_PLAIN = 0.87


def _chain(kind: str) -> Row:
    cells = {"plain": Cell(row="plain", **STORAGE, arguments={"kind": kind, **WRITES}, smoke=SMALL_WRITES)}
    for shards in SHARDS:
        for members in MEMBERS:
            cells[f"{members} × {shards}"] = Cell(
                row="chain",
                **STORAGE,
                arguments={"kind": kind, "members": members, "shards": shards, **WRITES},
                smoke=SMALL_WRITES,
            )
    return Row(
        f"writes_{kind}",
        f"writes of one client with 1 and 32 under way, on {kind}-server: plain HSET on one server, and chains as "
        "members × shards",
        cells,
        figure="found",
        wants=(Want("2 × 1", "plain", OF_PLAIN, ("32 in flight, writes/s",)),),
        against="plain",
    )


SQLITE = {"in_flight": [1, 64, 1000], "seconds": 3.0, "keys": 1000}


def _sqlite() -> Row:
    engines = {"memory": {}, "full": {"durability": "full"}, "normal": {"durability": "normal"}}
    cells = {
        f"sqlite {name}" if settings else name: Cell(
            row="sqlite" if settings else "memory",
            **STORAGE,
            arguments={**settings, **SQLITE},
            smoke=SMALL_WRITES,
        )
        for name, settings in engines.items()
    }
    cells["fdatasync"] = Cell(row="bare", **STORAGE, arguments={"seconds": 3.0}, smoke={"seconds": 0.1})
    return Row(
        "sqlite",
        "writes of one client to SQLite with 1, 64 and 1,000 under way; memory is the engine that forgets, and "
        "fdatasync a file that as many bytes are appended to",
        cells,
        figure="found",
        against="memory",
    )


# -- figure 10b --------------------------------------------------------------------------------------------------------

#: Flat: what came in the second half of the work is no more than this, in MB.
FLAT_MB = 2.0
#: How often memory is looked at, in seconds.
PERIOD = {"period_s": 1.0}
SMALL_PERIOD = {"period_s": 0.1}


def _flush(name: str, row: str, text: str, sizes: dict[str, int], small: dict[str, int], who: tuple[str, ...]) -> Row:
    cells = {
        engine: Cell(
            program="flush_side",
            row=row,
            **CONTROL,
            arguments={"engine": engine, **sizes, **PERIOD},
            smoke={**small, **SMALL_PERIOD},
            limit_s=1200.0,
        )
        for engine in ("memory", "sqlite")
    }
    return Row(
        f"figure_10b_{name}",
        f"memory (PSS) and size of the store's files, in MB, after {text}",
        cells,
        figure="found",
        more_is_better=False,
        runs=1,
        mosts=tuple(
            Most(engine, f"{part}, MB grown since half", FLAT_MB)
            for engine in cells
            for part in (*who, *(("file",) if engine == "sqlite" else ()))
        ),
    )


ALL_THREE = ("control", "daemon", "driver")
FLUSHES = [
    _flush(
        "copies",
        "copies",
        "1,000,000 copies of objects that were located and freed, by a played node",
        {"count": 1_000_000, "window": 1000},
        {"count": 500, "window": 100},
        ("control",),
    ),
    _flush(
        "tasks",
        "tasks",
        "10,000,000 tasks of a driver",
        {"count": 10_000_000, "batch": 10_000},
        {"count": 5000, "batch": 1000},
        ALL_THREE,
    ),
    _flush(
        "actors",
        "actors",
        "100,000 actors that were created and ended, by a played node",
        {"count": 100_000, "window": 64},
        {"count": 200, "window": 20},
        ("control",),
    ),
    _flush(
        "kv",
        "puts",
        "1,000,000 writes of a driver over 1,000 keys",
        {"count": 1_000_000, "keys": 1000, "threads": 32},
        {"count": 500, "keys": 50, "threads": 8},
        ALL_THREE,
    ),
]

# -- services ----------------------------------------------------------------------------------------------------------

RECOVERY = {"live": 200, "dead": 5000, "pending": 5000, "keys": 100_000}
SMALL_RECOVERY = {"live": 3, "dead": 20, "pending": 20, "keys": 200}
RECOVERY_S = 5.0


def _recovery() -> Row:
    return Row(
        "recovery",
        "seconds from kill -9 of the control service, whose store is SQLite, until it listens, has loaded its rows, "
        "has its nodes back and is settled, and until a driver had each answer",
        {"sqlite": Cell(program="recovery_side", row="recover", **CONTROL, arguments=RECOVERY, smoke=SMALL_RECOVERY)},
        figure="found",
        more_is_better=False,
        mosts=(Most("sqlite", "everything answers, s", RECOVERY_S),),
    )


TAKE_OVER_S = 10.0


def _take_over() -> Row:
    cells = {
        f"{kind}, {how}": Cell(
            program="takeover_side",
            row="take_over",
            **CONTROL,
            arguments={"kind": kind, "how": how, "keys": 10_000, "seconds": 2.0},
            smoke={"keys": 100, "seconds": 0.1},
        )
        for kind, how in (("redis", "killed"), ("redis", "frozen"), ("redis", "machine"), ("valkey", "killed"))
    }
    return Row(
        "take_over",
        "seconds from the end of a service until its standby has a write acknowledged, on a chain of three: the "
        "service is killed or frozen, or it is killed together with one of the servers (machine)",
        cells,
        figure="found",
        more_is_better=False,
        mosts=tuple(Most(cell, "first write acknowledged, s", TAKE_OVER_S) for cell in cells),
    )


COST = {"puts": 3000, "threads": 32, "one_by_one": 50, "at_once": 50}
SMALL_COST = {"puts": 20, "threads": 8, "one_by_one": 2, "at_once": 2}


def _cost() -> Row:
    stores = {
        "lone node": "alone",
        "memory": "memory",
        "sqlite full": "full",
        "sqlite normal": "normal",
        "redis chain of 2": "chain",
    }
    return Row(
        "durability",
        "what a program pays for durable state: skate.kv and the creation of actors in a cluster of one node, by the "
        "store of its control service",
        {
            name: Cell(
                program="durability_side", row="cost", **CONTROL, arguments={"store": store, **COST}, smoke=SMALL_COST
            )
            for name, store in stores.items()
        },
        figure="found",
        more_is_better=False,
        against="memory",
    )


ROWS = {
    row.name: row
    for row in [
        _failover("killed", "one member is killed", {"one killed": KILLED_MS, "one joins": KILLED_MS}),
        _failover("frozen", "one member is frozen", {"one frozen": FROZEN_MS, "one joins": KILLED_MS}),
        *(_chain(kind) for kind in KINDS),
        _sqlite(),
        _recovery(),
        _take_over(),
        _cost(),
        *FLUSHES,
    ]
}
