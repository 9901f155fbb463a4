"""Every public name of Ray is there under the same name, or stands in a table with the reason why it is not.

The names are those that `tests/ray_names.py` found in a Ray of the version that the table tells.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from skate._alias.finder import RAY_VERSION

TABLE = json.loads(Path(__file__).with_name("ray_names.json").read_text())
NAMES: dict[str, list[str]] = TABLE["names"]
ABSENT: dict[str, dict[str, str]] = TABLE["absent"]


def same(module: str) -> object:
    """The module of Skate that stands for one of Ray."""
    return importlib.import_module("skate" + module.removeprefix("ray"))


@pytest.mark.parametrize("module", NAMES)
def test_a_name_of_ray_is_there_or_in_the_table(module: str) -> None:
    missing = {name for name in NAMES[module] if not hasattr(same(module), name)}
    assert missing == set(ABSENT.get(module, {}))


def test_every_reason_is_given_and_for_a_name_of_ray() -> None:
    assert TABLE["version"] == RAY_VERSION
    for module, reasons in ABSENT.items():
        assert not reasons.keys() - set(NAMES[module])
        assert all(reasons.values())


def test_programs_find_the_names_under_that_of_ray() -> None:
    there = [(module, name) for module in NAMES for name in NAMES[module] if name not in ABSENT.get(module, {})]
    lines = ["import skate", "skate.as_ray()"]
    lines += [f"from {module} import {name}" for module, name in there]
    program = "\n".join([*lines, "print('all')"])
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("all\n", 0), done.stderr[-1000:]
