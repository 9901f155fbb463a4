"""Task events as a Chrome trace."""

from __future__ import annotations

from typing import Any


def chrome_trace(events: list[Any]) -> list[dict[str, Any]]:
    """`events` are (name, id, pid, start, end, node) with times in seconds; a row a process, a box a task."""
    trace: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": _row(pid, node), "args": {"name": _title(pid, node)}}
        for node, pid in sorted({(event[5], event[2]) for event in events})
    ]
    for name, id, pid, start, end, node in events:
        trace.append(
            {
                "ph": "X",
                "cat": "task",
                "name": name,
                "pid": _row(pid, node),
                "tid": pid,
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "args": {"task_id": bytes(id)[:16].hex()},
            }
        )
    return trace


def _row(pid: int, node: int) -> int:
    """Processes of two machines may have the same pid."""
    return pid + node * 100_000_000


def _title(pid: int, node: int) -> str:
    return f"worker {pid}" + (f" of node {node}" if node else "")
