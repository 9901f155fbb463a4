"""The names of `skate.rl`: each is imported when it is used, and a package that is missing is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

import skate.rl


def test_importing_the_library_loads_nothing_that_is_optional() -> None:
    code = "import sys, skate.rl; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert not {"gymnasium", "matplotlib", "numpy", "rich", "safetensors", "torch"} & set(loaded.split())


def test_an_unknown_name_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'pop'; it has Batch, .*ppo"):
        skate.rl.pop  # noqa: B018


def test_every_name_has_one_home() -> None:
    assert sorted([*skate.rl._HOMES, *skate.rl._MODULES]) == skate.rl.__all__
