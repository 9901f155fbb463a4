"""A test that failed and then never ends is a failure with stacks, and the tests after it run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

A_TEST_THAT_NEVER_ENDS = """
import threading

import pytest


@pytest.fixture
def endless():
    yield
    threading.Event().wait()


def test_fails_and_never_ends(endless):
    raise ValueError("the first cause")


@pytest.mark.parametrize("number", range(6))
def test_passes(number):
    pass
"""


def test_a_failure_whose_end_hangs_is_shown_with_stacks_and_does_not_hold_up_the_others(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\ntimeout_method = thread\nfaulthandler_timeout = 1\n")
    (tmp_path / "conftest.py").write_text("from teardown_watch import pytest_runtest_teardown\n")
    (tmp_path / "test_it.py").write_text(A_TEST_THAT_NEVER_ENDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SKATE"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", str(tmp_path)],
        env={**environment, "PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the first cause" in done.stdout
    assert "6 passed" in done.stdout
    assert "in endless" in done.stdout + done.stderr
