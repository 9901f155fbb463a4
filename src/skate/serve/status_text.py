"""`serve.status()` as text: a table for people, plain values for JSON, and the URLs of an application."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

import skate
from skate.serve.report import ServeStatus

__all__ = ["plain", "table", "urls"]


def urls(found: ServeStatus, prefix: str | None) -> str:
    """Where HTTP reaches what is served under a prefix."""
    if prefix is None or found.http_address is None:
        return "for handles alone, without HTTP"
    host, number = found.http_address
    path = prefix if prefix.endswith("/") else f"{prefix}/"
    if host not in ("0.0.0.0", "::"):
        return f"at http://{f'[{host}]' if ':' in host else host}:{number}{path}"
    there = skate.util.get_node_ip_address()
    return f"at http://127.0.0.1:{number}{path}, from other machines http://{there}:{number}{path}"


def plain(found: ServeStatus) -> dict[str, Any]:
    """The status as values that JSON has."""
    values: dict[str, Any] = {"running": True, **msgspec.to_builtins(found)}
    for name, app in found.applications.items():
        for called, each in app.deployments.items():
            shown = values["applications"][name]["deployments"][called]
            del shown["counted"]
            # JSON has no infinity, which a percentile is that is above all bounds.
            shown["metrics"] = {name: value if math.isfinite(value) else None for name, value in each.metrics.items()}
    return values


def table(found: ServeStatus) -> str:
    """A line for each deployment, under the names of the columns."""
    rows = [["application", "status", "route", "deployment", "replicas", "requests", "errors", "p50", "p99", "message"]]
    for name, app in found.applications.items():
        first = [name, app.status.value, app.route_prefix or "-"]
        message = app.message
        for called, each in app.deployments.items() or {"-": None}.items():
            rest = ["-", "-", "-", "-", "-"]
            if each is not None:
                counted, message = each.metrics, each.message or message
                rest = [
                    f"{each.replica_states.get('RUNNING', 0)}/{each.wanted}",
                    f"{counted['requests']:,}",
                    f"{counted['errors']:,}",
                    _seconds(counted["latency_p50_s"]),
                    _seconds(counted["latency_p99_s"]),
                ]
            rows.append([*first, called, *rest, _last_line(message)])
            first, message = ["", "", ""], ""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _seconds(value: float) -> str:
    if not value:
        return "-"
    return f"≤ {value * 1000:g} ms" if value < 1 else f"≤ {value:g} s" if value < float("inf") else "> 60 s"


def _last_line(message: str) -> str:
    """The line of a traceback that says what it was."""
    lines = [line for line in message.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[-1]).strip() if lines else ""
