"""The pages of docs/rl say what the options say, and link to what is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from skate.rl import options

DOCS = Path(__file__).resolve().parents[2] / "docs"
KINDS = {"dqn": "DQNOptions", "es": "ESOptions", "impala": "IMPALAOptions", "ppo": "PPOOptions", "sac": "SACOptions"}


@pytest.mark.parametrize("algorithm", KINDS)
def test_the_page_of_an_algorithm_lists_its_settings(algorithm: str) -> None:
    kind = getattr(importlib.import_module(f"skate.rl.{algorithm}"), KINDS[algorithm])
    rows = [f"| `{name}` | `{default}` | {text} |" for name, _, default, text in options.fields(kind)]
    page = (DOCS / "rl" / f"{algorithm}.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_every_algorithm_has_a_page_and_pages_link_to_what_is_there() -> None:
    pages = sorted((DOCS / "rl").glob("*.md"))
    assert [page.stem for page in pages] == sorted(KINDS)
    for page in [*pages, DOCS / "rl.md"]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
