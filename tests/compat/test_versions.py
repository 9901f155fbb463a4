"""The table in the docs names the versions that `make compat` installs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PINS = re.findall(
    r"^([\w-]+)(?:\[.*\])?==([\d.]+)$",
    (HERE / "requirements.txt").read_text() + (HERE / "requirements-without-ray.txt").read_text(),
    re.MULTILINE,
)
#: Where the docs have another name for it.
SHOWN = {"apache-hamilton": "Hamilton", "flwr": "Flower"}


@pytest.mark.parametrize(("package", "version"), PINS)
def test_the_docs_name_the_version_that_is_tried(package: str, version: str) -> None:
    page = (HERE.parent.parent / "docs" / "coming-from-ray.md").read_text()
    rows = [line for line in page.partition("## What was tried")[2].splitlines() if line.startswith("|")]
    wanted = SHOWN.get(package, package).lower()
    assert any(wanted in row.lower() and version in row for row in rows), f"{package} {version}"


def test_every_library_is_pinned() -> None:
    assert len(PINS) == 15  # torch stands with a pattern
