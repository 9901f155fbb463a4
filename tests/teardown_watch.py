"""A watch over the end of every test, which pytest leaves without one after a failure.

pytest takes a failure for a moment at which a person may want to look around, and cancels both of its own watches for
the rest of the test. What the test started is in an unknown state then, so its end is the likeliest to hang; and with
several workers, one test that never ends keeps the failures of all others from being shown.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Give the end of a test the time limit of a test: then show every stack, and end this process.

    The stacks come from a thread that needs no lock of Python, so that they come whatever hangs.
    """
    limit_s = float(item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
