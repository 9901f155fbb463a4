"""Files that are never half written, whenever the process is killed.

>>> from skate.util.files import written_beside
>>> with written_beside(Path("weights.bin")) as new:
...     new.write_bytes(data)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["sync", "written_beside"]


@contextlib.contextmanager
def written_beside(file: Path) -> Iterator[Path]:
    """Give the path to write a file to. It becomes `file` in one step, so a reader finds the old or the new one.

    That holds after a crash of the machine too: the bytes and the name are on the disk when the block has ended.
    If the block raises, `file` stays as it was, and nothing is left beside it.
    """
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        yield new
        sync(new)
        os.replace(new, file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
