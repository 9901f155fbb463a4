"""Checkpoints on disk: a folder per step, with one file per rank.

    runs/mnist/
      .parts-3/rank-0.pt     parts of a checkpoint that not every rank has written yet
      checkpoint-2/rank-0.pt, rank-1.pt, checkpoint.json
      .old-checkpoint-1/     a checkpoint that is being removed

Invariant: a folder named `checkpoint-N` is complete. Parts are written beside, synchronised and renamed. The folder
           gets its name, in one step, when the parts of all ranks are in it, and loses it in one step before anything
           in it is removed.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skate.util.files import sync, written_beside

_ABOUT = "checkpoint.json"
_COMMITTED = re.compile(r"checkpoint-(\d+)")
#: What a file of torch begins with: it is an archive of the zip format.
_OF_TORCH = b"PK\x03\x04"


class Checkpoint:
    """A committed checkpoint: `path` is its folder, `step` the step after which it was written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.about: dict[str, Any] = {}
        if (file := self.path / _ABOUT).exists():
            self.about = json.loads(file.read_text())

    @property
    def step(self) -> int:
        return int(self.about["step"])

    @property
    def workers(self) -> int:
        return int(self.about["workers"])

    def load(self, rank: int = 0) -> dict[str, Any]:
        """Read what a rank has written; `load()["state"]["model"]` is the state dict of the model."""
        file = self.path / f"rank-{rank}.pt"
        part: dict[str, Any]
        with file.open("rb") as opened:
            if opened.read(len(_OF_TORCH)) != _OF_TORCH:  # of a program without torch
                opened.seek(0)
                part = pickle.load(opened)
                return part
        import torch

        part = torch.load(file, map_location="cpu", weights_only=False)
        return part

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """A checkpoint of files that the program has written itself, to give to `report`."""
        return cls(path)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Its folder, to read from: `with checkpoint.as_directory() as folder: …`."""
        yield str(self.path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy its files into a folder, a new one if none is given."""
        target = tempfile.mkdtemp(prefix="checkpoint-") if path is None else os.fspath(path)
        shutil.copytree(self.path, target, ignore=lambda *_: {_ABOUT}, dirs_exist_ok=True)
        return target

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r})"


def write_part(folder: Path, step: int, rank: int, state: dict[str, Any]) -> None:
    """Write the part of one rank, so that it is there as a whole or not at all.

    It is a file of torch if the program uses torch, and pickled otherwise.
    """
    torch = sys.modules.get("torch")
    parts = folder / f".parts-{step}"
    parts.mkdir(parents=True, exist_ok=True)
    with written_beside(parts / f"rank-{rank}.pt") as new:
        if torch is not None:
            torch.save(state, new)
        else:
            new.write_bytes(pickle.dumps(state))


def write_files(folder: Path, step: int, rank: int, given: Checkpoint) -> None:
    """Copy the files of a rank beside those of the others; of two with the same name one stays, as a whole."""
    if (given.path / _ABOUT).exists():
        raise ValueError(
            f"report(checkpoint={given!r}): the folder has a file {_ABOUT}, which every checkpoint gets.\n"
            "  next: give the file another name, or copy a committed checkpoint with to_directory() first."
        )
    parts = folder / f".parts-{step}"
    shutil.copytree(given.path, parts, dirs_exist_ok=True, copy_function=_copy_beside)
    for parent, _, _ in os.walk(parts):
        sync(Path(parent))
    _mark_of(parts, rank).touch()


def _copy_beside(source: str, target: str) -> None:
    with written_beside(Path(target)) as new:
        shutil.copy2(source, new)


def _mark_of(parts: Path, rank: int) -> Path:
    """The file that says that a rank has copied its files; it is gone when the checkpoint is committed."""
    return parts / f".rank-{rank}-gave-files"


def commit(folder: Path, step: int, workers: int, files_of: Collection[int] = ()) -> Checkpoint:
    """Give the parts of all ranks the name of a checkpoint.

    files_of: the ranks that gave files of the program; then there is no part of each rank.
    """
    parts, committed = folder / f".parts-{step}", folder / f"checkpoint-{step}"
    marks = [_mark_of(parts, rank) for rank in files_of]
    if files_of:
        missing = [rank for rank in sorted(files_of) if not _mark_of(parts, rank).exists()]
    else:
        missing = [rank for rank in range(workers) if not (parts / f"rank-{rank}.pt").exists()]
    if missing:
        raise FileNotFoundError(
            f"the checkpoint of step {step} cannot be put together in {folder}.\n"
            f"  why:  {_ranks(missing)} wrote to a folder of that name, and it is not there for this process. Maybe "
            "they run on another machine, with a disk of its own.\n"
            "  next: give a path= in a folder that all machines of the cluster share."
        )
    if committed.exists() and not (committed / _ABOUT).exists():
        raise FileExistsError(
            f"the checkpoint of step {step} cannot be put together in {folder}.\n"
            f"  why:  there is a folder {committed.name} that train.report() has not written.\n"
            "  next: have the training function write its own files to another folder."
        )
    for mark in marks:
        mark.unlink()
    with written_beside(parts / _ABOUT) as new:
        new.write_text(json.dumps({"step": step, "workers": workers}) + "\n")
    remove(committed)
    os.replace(parts, committed)
    sync(folder)
    return Checkpoint(committed)


def remove_all_but(
    folder: Path, keep: int, score: Callable[[Checkpoint], float] = lambda checkpoint: checkpoint.step
) -> None:
    """Remove the checkpoints with the lowest scores. The last one stays whatever it has: a restart goes on from it."""
    *older, last = map(Checkpoint, committed_in(folder))
    for each in sorted([*older, last], key=score)[:-keep]:
        if each is not last:
            remove(each.path)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def remove(committed: Path) -> None:
    """Take its name from a checkpoint before its files, so that no part of one ever looks like a whole one."""
    old = committed.with_name(f".old-{committed.name}")
    shutil.rmtree(old, ignore_errors=True)
    try:
        os.replace(committed, old)
    except FileNotFoundError:
        return
    shutil.rmtree(old, ignore_errors=True)


def committed_in(folder: Path) -> list[Path]:
    """The folders of committed checkpoints, oldest first. Others with such names are those of the program."""
    found = {
        int(match[1]): path
        for path in folder.glob("checkpoint-*")
        if (match := _COMMITTED.fullmatch(path.name)) and (path / _ABOUT).exists()
    }
    return [found[step] for step in sorted(found)]


def latest(folder: Path) -> Checkpoint | None:
    """The last committed checkpoint of a run."""
    found = committed_in(folder)
    return Checkpoint(found[-1]) if found else None


def discard_parts(folder: Path) -> None:
    """Remove what is no checkpoint: parts that were never committed, and what a removal has left."""
    for pattern in (".parts-*", ".old-*"):
        for left in folder.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)
