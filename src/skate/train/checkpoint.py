"""Checkpoints on disk: a folder per step, with one file per rank.

    runs/mnist/
      .parts-3/rank-0.pt     parts of a checkpoint that not every rank has written yet
      checkpoint-2/rank-0.pt, rank-1.pt, checkpoint.json

Invariant: a folder named `checkpoint-N` is complete. Parts are written beside, synchronised and renamed. The folder
           gets its name, in one step, when the parts of all ranks are in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_COMMITTED = re.compile(r"checkpoint-(\d+)")


class Checkpoint:
    """A committed checkpoint: `path` is its folder, `step` the step after which it was written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about: dict[str, Any] = {}
        if (file := self.path / "checkpoint.json").exists():
            self.about = json.loads(file.read_text())

    @property
    def step(self) -> int:
        return int(self.about["step"])

    @property
    def workers(self) -> int:
        return int(self.about["workers"])

    def load(self, rank: int = 0) -> dict[str, Any]:
        """Read what a rank has written; `load()["model"]` is the state dict of the model."""
        import torch

        part: dict[str, Any] = torch.load(self.path / f"rank-{rank}.pt", map_location="cpu", weights_only=False)
        return part

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"


def write_part(folder: Path, step: int, rank: int, state: dict[str, Any]) -> None:
    """Write the part of one rank, so that it is there as a whole or not at all."""
    import torch

    parts = folder / f".parts-{step}"
    parts.mkdir(parents=True, exist_ok=True)
    with _beside(parts / f"rank-{rank}.pt") as new:
        torch.save(state, new)


def commit(folder: Path, step: int, workers: int, keep: int | None) -> Checkpoint:
    """Give the parts of all ranks the name of a checkpoint, and remove the oldest ones."""
    parts, committed = folder / f".parts-{step}", folder / f"checkpoint-{step}"
    with _beside(parts / "checkpoint.json") as new:
        new.write_text(json.dumps({"step": step, "workers": workers}) + "\n")
    if committed.exists():  # of an attempt that went further and was cut back
        shutil.rmtree(committed)
    os.replace(parts, committed)
    _sync(folder)
    if keep is not None:
        for old in committed_in(folder)[:-keep]:
            shutil.rmtree(old)
    return Checkpoint(committed)


def committed_in(folder: Path) -> list[Path]:
    """The folders of committed checkpoints, oldest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := _COMMITTED.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def latest(folder: Path) -> Checkpoint | None:
    """The last committed checkpoint of a run."""
    found = committed_in(folder)
    return Checkpoint(found[-1]) if found else None


def discard_parts(folder: Path) -> None:
    """Remove the parts of checkpoints that were never committed: a later attempt writes them again."""
    for parts in folder.glob(".parts-*"):
        shutil.rmtree(parts, ignore_errors=True)


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    yield new
    _sync(new)
    os.replace(new, file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
