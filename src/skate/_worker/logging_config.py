"""`init(logging_config=…)`: how the records of the module `logging` look, in the driver and in its workers.

The root logger gets one handler, which writes to stderr. Each record carries who wrote it: job, node and worker, and in
a task or an actor those, too. A driver's configuration travels with its job, so that every worker has it before it runs
anything.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from skate._worker.current import runtime_or_none

ENCODINGS = ("TEXT", "JSON")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Attributes of every record that can be added to those that are always there.
STANDARD_ATTRIBUTES = frozenset(
    vars(logging.makeLogRecord({})).keys() - {"args", "msg", "exc_info", "exc_text", "stack_info"}
)
#: What a record shows, besides its message and who wrote it.
_ALWAYS = ("asctime", "levelname", "filename", "lineno")


class LoggingConfig(msgspec.Struct, frozen=True):
    """How log records look: `skate.init(logging_config=skate.LoggingConfig(encoding="JSON", log_level="DEBUG"))`.

    encoding: "TEXT", or "JSON" for one object a line. log_level: what is logged at all. additional_log_standard_attrs:
    further attributes of `logging.LogRecord` that are shown, such as ["name", "process"].
    """

    encoding: str = "TEXT"
    log_level: str | int = "INFO"
    additional_log_standard_attrs: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise ValueError(f"LoggingConfig(encoding={self.encoding!r}): it may be one of {', '.join(ENCODINGS)}.")
        if not isinstance(self.log_level, int) and not isinstance(logging.getLevelName(self.log_level), int):
            raise ValueError(f"LoggingConfig(log_level={self.log_level!r}): it may be one of {', '.join(LEVELS)}.")
        for name in self.additional_log_standard_attrs:
            if name not in STANDARD_ATTRIBUTES:
                raise ValueError(
                    f"LoggingConfig(additional_log_standard_attrs=[{name!r}]): log records have no such attribute. "
                    f"There are: {', '.join(sorted(STANDARD_ATTRIBUTES))}."
                )

    def to_dict(self) -> dict[str, Any]:
        return {
            "encoding": self.encoding,
            "log_level": self.log_level,
            "additional_log_standard_attrs": list(self.additional_log_standard_attrs),
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> LoggingConfig:
        return cls(**{name: value for name, value in d.items() if name in cls.__struct_fields__})

    def apply(self) -> None:
        """Configure the root logger of this process."""
        root = logging.getLogger()
        root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, _Handler)]
        handler = _Handler()
        formatter = _Text if self.encoding == "TEXT" else _Json
        handler.setFormatter(formatter(self.additional_log_standard_attrs))
        root.addHandler(handler)
        root.setLevel(self.log_level)


class _Handler(logging.StreamHandler[Any]):
    """Ours, to be told from those of the program."""


class _Formatter(logging.Formatter):
    def __init__(self, more: Sequence[str]) -> None:
        super().__init__()
        self._more = [name for name in more if name not in _ALWAYS]

    def facts(self, record: logging.LogRecord) -> dict[str, Any]:
        record.asctime = self.formatTime(record)
        facts = {name: getattr(record, name) for name in (*_ALWAYS, *self._more)}
        facts["message"] = record.getMessage()
        if record.exc_info:
            facts["exc_text"] = self.formatException(record.exc_info)
        return {**facts, **_who()}


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.facts(record), default=str)


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = self.facts(record)
        error = facts.pop("exc_text", "")
        head = "{} {} {}:{}".format(*(facts.pop(name) for name in _ALWAYS))
        rest = " ".join(f"{name}={value}" for name, value in facts.items() if name != "message")
        return f"{head} -- {facts['message']} {rest}" + (f"\n{error}" if error else "")


def _who() -> dict[str, str]:
    """The job, node, worker, task and actor of the code that logs, as far as there are any."""
    runtime = runtime_or_none()
    if runtime is None:
        return {}
    found = {
        "job_id": runtime.welcome.job_id.hex(),
        "worker_id": runtime.process_id.hex(),
        "node_id": runtime.welcome.node_id.hex(),
    }
    executor = runtime.executor
    if executor is not None:
        task = executor.current_task()
        if task is not None:
            found["task_id"] = task.id[:16].hex()
            found["task_name"] = executor.task_name()
        if executor.actor is not None:
            found["actor_id"] = executor.actor.id.hex()
    return found
