"""Task events as a Chrome trace."""

from __future__ import annotations

from typing import Any


def chrome_trace(events: list[Any]) -> list[dict[str, Any]]:
    """`events` are (name, id, pid, start, end) with times in seconds; a row a process, a box a task."""
    trace: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"worker {pid}"}}
        for pid in sorted({event[2] for event in events})
    ]
    for name, id, pid, start, end in events:
        trace.append(
            {
                "ph": "X",
                "cat": "task",
                "name": name,
                "pid": pid,
                "tid": pid,
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "args": {"task_id": bytes(id)[:16].hex()},
            }
        )
    return trace
