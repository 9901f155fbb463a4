"""The folder of a run: one run at a time has it, and the history in it grows line by line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from skate.util.files import written_beside

Row = dict[str, Any]

HISTORY = "history.jsonl"


@contextlib.contextmanager
def locked_folder(fit: Callable[..., Any], path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Give the folder of a run, which no other run has at the same time."""
    folder = _new_folder(fit) if path is None else Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(
            f"train.run(path={str(path)!r}): the folder of a run cannot be there, because {folder} or a part of it "
            "is a file.\n  next: give the path of a folder; one that is missing is made."
        ) from None
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another run writes to {folder} now.\n  next: wait for it, end it, or give another path=."
            ) from None
        yield folder


def _new_folder(fit: Callable[..., Any]) -> Path:
    name = getattr(fit, "__name__", "fit").strip("<>")
    number = 1
    while True:
        folder = Path("runs", f"{name}-{number}").absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def read_history(folder: Path) -> list[Row]:
    """The rows that were written. The last line is torn if the driver was killed while it wrote; it is left out."""
    rows: list[Row] = []
    if (file := folder / HISTORY).exists():
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
    return rows


class History:
    """The rows of a run, in memory and in `history.jsonl`."""

    def __init__(self, folder: Path, rows: list[Row], last_step: int) -> None:
        """Go on after `last_step`: later rows are dropped, for they come again."""
        self.rows = [row for row in rows if row["step"] <= last_step]
        with written_beside(folder / HISTORY) as new:
            new.write_text("".join(_line(row) for row in self.rows))
        self._file: TextIO = (folder / HISTORY).open("a")

    def append(self, row: Row) -> None:
        self.rows.append(row)
        self._file.write(_line(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _line(row: Row) -> str:
    try:
        return json.dumps(row, default=str) + "\n"
    except TypeError:  # a key that JSON does not have, such as an integer of numpy
        return json.dumps(_with_plain_keys(row), default=str) + "\n"


def _with_plain_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_plain_keys(each) for key, each in value.items()}
    return [_with_plain_keys(each) for each in value] if isinstance(value, (list, tuple)) else value


#: Names that metrics may not have, because a row of the history has them already. A row of a training whose metrics may
#: have any name has them under the last of these.
RESERVED = frozenset({"step", "rank", "workers", "reported"})


def metrics_of(row: Row) -> dict[str, Any]:
    """What was reported, without what a row of the history has beside it."""
    if "reported" in row:
        return dict(row["reported"])
    return {name: value for name, value in row.items() if name not in RESERVED}
