"""The distribution `ray` as `importlib.metadata` describes it."""

from __future__ import annotations

from importlib.metadata import Distribution
from typing import TYPE_CHECKING, Any

from skate._core.version import VERSION

if TYPE_CHECKING:
    from os import PathLike

#: Who says that it has installed the package `ray`: what `skate alias remove` may remove.
INSTALLER = "skate"


def metadata(version: str) -> str:
    """The file METADATA."""
    return (
        "Metadata-Version: 2.1\n"
        "Name: ray\n"
        f"Version: {version}\n"
        f"Summary: Skate {VERSION} under Ray's name; this is not Ray.\n"
        "Requires-Dist: skate\n"
    )


class AliasDistribution(Distribution):
    """`ray`, while the alias is on in a process; it has no files."""

    def __init__(self, version: str) -> None:
        self._texts = {"METADATA": metadata(version), "INSTALLER": f"{INSTALLER}\n", "top_level.txt": "ray\n"}

    def read_text(self, filename: Any) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(f"{path}: the alias `ray` has no files.")
