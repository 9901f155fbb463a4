"""Write the tables of a result into docs/control-benchmarks.md, between its two markers.

    python bench/control/page.py bench/results/control-….json

Nothing between the markers is written by hand, and a result of tiny sizes is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from rows import ROWS  # noqa: E402

from suite import OTHERS_CORES_MAX, Suite  # noqa: E402

PAGE = ROOT / "docs" / "control-benchmarks.md"
BEGIN, END = "<!-- figures: written by bench/control/page.py -->\n", "<!-- end of figures -->\n"


def figures(data: dict[str, Any], source: str) -> Iterator[str]:
    """The lines between the markers."""
    about = data["machine"]
    changed = ", with uncommitted changes" if about["uncommitted_changes"] else ""
    yield f"From `{source}`: commit `{about['commit'][:12]}`{changed}, {about['cores']} cores ({about['cpu']}),"
    yield f"{about['memory_gib']} GiB, kernel {about['kernel']}, Python {about['python']}; "
    versions = data.get("versions", {}).get("control", {})
    yield ", ".join(f"{name} {version}" for name, version in versions.items() if name != "python") + "."
    loads = [cell["load_at_start"] for cell in data["cells"] if "load_at_start" in cell]
    others = [cell.get("others_cores", 0.0) for cell in data["cells"]]
    yield f"Load at the start of a row: {min(loads):.2f} to {max(loads):.2f}; other processes used up to"
    quiet = "." if max(others) <= OTHERS_CORES_MAX else ": **not a quiet machine**."
    yield f"{max(others):.2f} cores during a run{quiet}"
    yield ""
    yield from Suite("control", HERE, ROWS).table(data)


def with_figures(page: str, data: dict[str, Any], source: str) -> str:
    """The page with these figures in place of those that it has."""
    if data.get("smoke"):
        raise ValueError("the result is of tiny sizes: its figures show that the programs work, and nothing else.")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page does not have its two markers.")
    lines = [line.rstrip() for line in figures(data, source)]
    return before + begin + "\n" + "\n".join(lines).strip() + "\n\n" + end + after


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    try:
        text = with_figures(PAGE.read_text(), json.loads(path.read_text()), f"bench/results/{path.name}")
    except ValueError as error:
        sys.exit(f"{path.name}: {error}")
    PAGE.write_text(text)
    print(PAGE.relative_to(ROOT))
