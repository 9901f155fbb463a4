"""The rows of the suite: which programs are measured against each other, with which settings, and what we aim at."""

from __future__ import annotations

from typing import Any

from suite import Cell, Row, Want

#: Programs and their environments.
SKATE: dict[str, Any] = {"program": "skate_side", "environment": "serve"}
RAY: dict[str, Any] = {"program": "ray_side", "environment": "rayserve"}
FASTAPI: dict[str, Any] = {"program": "fastapi_side", "environment": "fastapi"}
LITSERVE: dict[str, Any] = {"program": "litserve_side", "environment": "litserve"}
BARE: dict[str, Any] = {"program": "bare_side", "environment": "fastapi"}
TUNED = {"tuned": True}
BY_HTTP = {"way": "http"}

FEW: dict[str, Any] = {"smoke": {"count": 300}}
SHORT: dict[str, Any] = {"smoke": {"seconds": 1}}

#: Table 3 of the paper: how long a batch takes, and how large a state is.
LOADS: dict[str, Any] = {
    "4 KB": {"model": {"batch_ms": 10}, "bytes": 4096},
    "100 KB": {"model": {"batch_ms": 5}, "bytes": 100_000},
    "MLP, 4 KB": {"model": {"mlp": [1024, 2048, 2048, 16]}, "bytes": 4096},
}
#: Two calls in flight: one state is on its way while the model is busy with another.
WIDTHS = {"": 2, ", one in flight": 1}
SMOKE_LOADS = {name: one for name, one in LOADS.items() if "mlp" not in one["model"]} | {
    "MLP, 4 KB": {"model": {"mlp": [1024, 64, 16]}, "bytes": 4096}
}
TABLE_3: dict[str, Any] = {"smoke": {"loads": SMOKE_LOADS, "seconds": 1}}

OBJECTIVE: dict[str, Any] = {"kind": {"batch_ms": 2, "item_ms": 0.1}, "size_bytes": 256}
SHARES = {**OBJECTIVE, "shares": [50, 80, 95], "low_rate": 20}


def _table_3(name: str, text: str, more: dict[str, Any], limits: dict[str, float], **row: Any) -> Row:
    def cell(side: dict[str, Any], runs: int = 100, **arguments: Any) -> Cell:
        return Cell(row=name, **side, arguments={"loads": LOADS, **more, **arguments}, runs=runs, **TABLE_3)

    sides = {
        "skate": cell(SKATE),
        "skate http": cell(SKATE, **BY_HTTP),
        "ray": cell(RAY),
        "ray tuned": cell(RAY, **TUNED),
        "ray http": cell(RAY, **BY_HTTP),
        "ray tuned http": cell(RAY, **BY_HTTP, **TUNED),
        "fastapi": cell(FASTAPI),
        # One request takes up to seconds.
        "fastapi json": cell(FASTAPI, runs=1, body="json"),
        "litserve": cell(LITSERVE),
    }
    peers = [peer for peer in sides if peer not in ("skate", "skate http", "ray", "ray tuned")]
    return Row(
        name,
        text,
        {"limit": Cell(row="batches", **BARE, arguments={"loads": LOADS}, **TABLE_3), **sides},
        figure="states_per_s",
        wants=(
            *(Want("skate", "limit", least, (load,)) for load, least in limits.items()),
            *(Want("skate", peer, 3.0, ("100 KB",)) for peer in peers),
        ),
        **row,
    )


ROWS = {
    row.name: row
    for row in [
        Row(
            "handle",
            "microseconds of a call by handle that does nothing, one at a time",
            {
                "skate": Cell(row="handle", **SKATE, **FEW),
                "actor call": Cell(row="actor", **SKATE, **FEW),
                "ray": Cell(row="handle", **RAY, **FEW),
                "ray tuned": Cell(row="handle", **RAY, arguments=TUNED, **FEW),
            },
            figure="us",
            more_is_better=False,
            own={"us_p50": -100.0, "us_p99": -300.0},
            wants=(
                Want("skate", "actor call", 3.0, ("p50",)),
                Want("skate", "ray", 1 / 25, ("p50",)),
                Want("skate", "ray tuned", 1 / 25, ("p50",)),
            ),
        ),
        Row(
            "http",
            "microseconds of a GET that does nothing on one connection, and beyond bare uvicorn with one route of "
            "starlette in the same run; of two bare servers: what a difference may be by chance",
            {
                "skate": Cell(row="http", **SKATE, **FEW),
                "skate call": Cell(row="http", **SKATE, arguments={"style": "call"}, **FEW),
                "bare": Cell(row="http", **BARE, **FEW),
                "fastapi": Cell(row="http", **FASTAPI, **FEW),
                "litserve": Cell(row="http", **LITSERVE, **FEW),
                "ray": Cell(row="http", **RAY, **FEW),
                "ray tuned": Cell(row="http", **RAY, arguments=TUNED, **FEW),
            },
            figure="us",
            more_is_better=False,
            runs=5,
            own={"us_added_p50": -150.0, "us_added_p99": -1000.0},
            wants=(
                Want("skate", "ray", 1 / 5, ("added p50",)),
                Want("skate", "ray tuned", 1 / 5, ("added p50",)),
            ),
        ),
        Row(
            "http_rate",
            "requests a second of 64 connections (wrk -t1 -c64) to 2 replicas, and the cores that wrk uses of the two",
            {
                "skate": Cell(row="http_rate", **SKATE, **SHORT),
                "bare, 2 workers": Cell(row="http_rate", **BARE, arguments={"workers": 2}, **SHORT),
                "bare, 1 worker": Cell(row="http_rate", **BARE, arguments={"workers": 1}, **SHORT),
                "fastapi": Cell(row="http_rate", **FASTAPI, arguments={"workers": 2}, **SHORT),
                "litserve": Cell(row="http_rate", **LITSERVE, arguments={"workers": 2}, **SHORT),
                "ray": Cell(row="http_rate", **RAY, **SHORT),
                "ray tuned": Cell(row="http_rate", **RAY, arguments=TUNED, **SHORT),
            },
            figure="rate",
            wants=(
                Want("skate", "bare, 2 workers", 0.8, ("requests/s",)),
                Want("skate", "ray", 40.0, ("requests/s",)),
                Want("skate", "litserve", 10.0, ("requests/s",)),
            ),
        ),
        Row(
            "composed",
            "microseconds of a call of a deployment that calls another one, and beyond a call of that other one",
            {
                "skate": Cell(row="composed", **SKATE, **FEW),
                "ray": Cell(row="composed", **RAY, **FEW),
                "ray tuned": Cell(row="composed", **RAY, arguments=TUNED, **FEW),
            },
            figure="us",
            more_is_better=False,
            own={"us_added_p50": -250.0},
            wants=(
                Want("skate", "ray", 1 / 10, ("added p50",)),
                Want("skate", "ray tuned", 1 / 10, ("added p50",)),
            ),
        ),
        _table_3(
            "batches",
            "table 3 (a): states a second, 64 in each call; 10 ms a batch with states of 4 KB, 5 ms with 100 KB, and a "
            "network of torch",
            {"widths": WIDTHS},
            {"4 KB": 0.97, "100 KB": 0.90},
        ),
        _table_3(
            "one_by_one",
            "table 3 (b): states a second, one in each call, 128 in flight, put together to batches of 64 by the peer",
            {},
            {"4 KB": 0.90, "100 KB": 0.50},
        ),
        Row(
            "capacity",
            "states a second of 128 callers, 2 ms a batch and 0.1 ms a state: batches that keep to 20 ms by "
            "themselves, and the best of fixed sizes",
            {
                "skate": Cell(row="capacity", **SKATE, arguments=OBJECTIVE, **SHORT),
                "fixed size": Cell(
                    row="capacity",
                    **SKATE,
                    arguments={**OBJECTIVE, "sizes": [8, 16, 32, 64, 128]},
                    smoke={"seconds": 1, "sizes": [8, 64]},
                ),
            },
            figure="states_per_s",
            aims={"fixed size": 0.9},
        ),
        Row(
            "open_loop",
            "milliseconds with requests at random times, 50, 80 and 95 % of what the peer itself can do; 2 ms a batch "
            "and 0.1 ms a state, and an objective of 20 ms",
            {
                name: Cell(row="open_loop", **side, arguments={**SHARES, **more}, smoke={"seconds": 1, "shares": [50]})
                for name, side, more in [
                    ("skate", SKATE, {}),
                    ("skate http", SKATE, BY_HTTP),
                    ("ray", RAY, {}),
                    ("ray tuned http", RAY, {**BY_HTTP, **TUNED}),
                    ("litserve", LITSERVE, {}),
                ]
            },
            figure="ms",
            more_is_better=False,
            own={"p99_80_ms": -20.0, "low_p50_ms": -2.4},
        ),
        *(
            Row(
                f"deploy_{way}",
                f"seconds from serve.run to the first answer by {'HTTP' if way == 'http' else 'handle'}",
                {
                    "skate": Cell(row="deploy", **SKATE, arguments={"way": way}),
                    "ray": Cell(row="deploy", **RAY, arguments={"way": way}),
                },
                figure="seconds",
                more_is_better=False,
                limit=0.5,
                aims={"ray": 1 / 8},
            )
            for way in ("handle", "http")
        ),
        Row(
            "memory",
            "megabytes (PSS) that one replica more adds, without and with HTTP; of bare uvicorn, one worker more",
            {
                "skate": Cell(row="memory", **SKATE, smoke={"replicas": 1}),
                "ray": Cell(row="memory", **RAY, smoke={"replicas": 1}),
                "bare": Cell(row="memory", **BARE, smoke={"replicas": 1}),
            },
            figure="mb",
            more_is_better=False,
            own={"mb_handle": -15.0, "mb_HTTP": -30.0},
            aims={"ray": 1 / 8},
        ),
        Row(
            "websocket",
            "microseconds from an observation to its action over a websocket, a policy of CartPole in a closed loop",
            {
                name: Cell(row="websocket", **side, smoke={"steps": 1000})
                for name, side in (("skate", SKATE), ("fastapi", FASTAPI), ("ray", RAY))
            },
            figure="us",
            more_is_better=False,
            own={"us_p50": -400.0},
            wants=(Want("skate", "fastapi", 1 / 0.8, ("p50",)),),
        ),
    ]
}
