"""Files of a run that are never half written, whenever the process is killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from skate.util.files import written_beside

#: Where runs are that were given no path.
FOLDER = "runs"


def new_folder(path: str | os.PathLike[str] | None, algorithm: str, env: str) -> Path:
    """Make the folder of a run: `path`, or the first one in `runs` that is not taken."""
    if path is not None:
        folder = Path(path)
        if (folder / "options.json").exists():
            raise FileExistsError(
                f"{folder} has a run in it already, and a run is never overwritten.\n"
                f"  next: resume={str(folder)!r} goes on with it; another path= begins a new one."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"the folder {folder} cannot be made: {error.strerror}.\n  next: name another path=."
            ) from None
        return folder
    name = f"{algorithm}-{re.sub(r'[^A-Za-z0-9_.]+', '-', env)}"
    for number in itertools.count(1):
        folder = Path(FOLDER, f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def write(file: Path, data: bytes) -> None:
    """Write a file in one step."""
    with written_beside(file) as new:
        new.write_bytes(data)


def write_tensors(file: Path, tensors: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
    """Write arrays, and texts as JSON, to a safetensors file in one step."""
    from safetensors.numpy import save

    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    write(file, save(arrays, {name: json.dumps(text) for name, text in texts.items()}))


def read_tensors(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_tensors` has written. Texts of other programs, which are not JSON, are given as they are."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, _texts(opened)  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(file, error) from None


def read_texts(file: Path) -> dict[str, Any]:
    """Read the texts alone: the arrays may be large."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            return _texts(opened)
    except SafetensorError as error:
        raise _damaged(file, error) from None


def _texts(opened: Any) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for name, text in (opened.metadata() or {}).items():
        texts[name] = text
        with contextlib.suppress(ValueError):
            texts[name] = json.loads(text)
    return texts


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is not a file of safetensors, or not all of one: {error}.")


def part(tensors: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `name.`, without that."""
    return {key.removeprefix(f"{name}."): array for key, array in tensors.items() if key.startswith(f"{name}.")}


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a history. A line that a kill has torn is the last one, and is dropped."""
    rows: list[dict[str, Any]] = []
    for line in (file.read_bytes() if file.exists() else b"").split(b"\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows
