"""What the programs of this suite share: servers, folders, and the arithmetic of latencies."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "tests")]

from program import main  # noqa: E402, F401
from redis_servers import Server, address  # noqa: E402

#: The sizes of the paper's figure 10a, in bytes.
KEY_BYTES, VALUE_BYTES = 25, 512
TABLE = "bench"


def key_of(number: int) -> bytes:
    return b"%0*d" % (KEY_BYTES, number)


@contextmanager
def chains(kind: str, shards: int, members: int) -> Iterator[tuple[list[list[Server]], str]]:
    """New servers on this machine, by shard, and the address of the store that they make."""
    made: list[list[Server]] = []
    try:
        for _ in range(shards):
            made.append([])
            for _ in range(members):
                made[-1].append(Server(kind))
        yield made, address(*made)
    finally:
        for chain in made:
            for server in chain:
                server.thaw()
                server.end()


@contextmanager
def folder() -> Iterator[Path]:
    """On the file system of temporary files; TMPDIR names another."""
    with tempfile.TemporaryDirectory(prefix="skate-bench-") as path:
        yield Path(path)


def file_system(path: Path) -> str:
    """What lies under that folder: an fsync of tmpfs costs nothing, and would be no figure."""
    found = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if path.resolve().is_relative_to(mount) and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def latencies_ms(latencies_s: Sequence[float]) -> dict[str, float]:
    return {"p50 ms": 1e3 * statistics.median(latencies_s), "p99 ms": 1e3 * quantile(latencies_s, 0.99)}
