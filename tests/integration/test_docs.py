"""The programs in the documentation run as they stand.

The ```python blocks of a page are one program, top to bottom; those marked ```python no-run are left out. Each page is
run as a script of its own, with its blocks on the lines that they have in the page, so that a traceback points there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "docs/actors.md",
    "docs/cluster.md",
    "docs/collective.md",
    "docs/coming-from-ray.md",
    "docs/failures.md",
    "docs/init.md",
    "docs/objects.md",
    "docs/placement.md",
    "docs/rl.md",
    "docs/serve.md",
    "docs/tasks.md",
    "docs/train-data.md",
    "docs/train.md",
    "docs/utilities.md",
]


def program(page: str) -> str:
    """The page with everything but its blocks of Python made blank."""
    lines = []
    inside = False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def test_blocks_keep_their_lines_and_those_marked_are_left_out() -> None:
    page = "Text\n```python\na = 1\n```\n```python no-run\nb = 2\n```\n    ```\nmore"
    assert program(page) == "\n\na = 1\n\n\n\n\n\n\n"


@pytest.mark.timeout(120)  # some pages import torch several times
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_as_one_program(page: str, tmp_path: Path) -> None:
    script = tmp_path / (Path(page).stem.lower() + "_page.py")
    script.write_text(program((ROOT / page).read_text()))
    run_program(script, timeout_s=110)  # line numbers in its errors are those of the page


def test_every_page_with_a_program_is_run() -> None:
    found = [path for path in sorted((ROOT / "docs").glob("*.md")) if program(path.read_text()).strip()]
    assert [str(path.relative_to(ROOT)) for path in found] == [page for page in PAGES if page.startswith("docs/")]
