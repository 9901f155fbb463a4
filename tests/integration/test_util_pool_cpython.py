"""CPython's own tests of `multiprocessing.Pool`, run against `skate.util.multiprocessing.Pool`.

The cases are those that the interpreter came with, so each version of Python brings its own; none is copied here. Those
that cannot apply are named below, each with the reason. What Skate promises beyond them is in test_util_pool.py.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import unittest

import pytest

from skate.util.multiprocessing import Pool
from skate.util.multiprocessing.pool import RemoteTraceback

cpython = pytest.importorskip(
    "test._test_multiprocessing",
    reason="this interpreter came without its own tests; on Debian, install libpython3-testsuite",
)

pytestmark = pytest.mark.usefixtures("runtime")

#: Cases that are not run, by name: the same in all versions of Python that have them.
NOT_APPLYING = {}


def cases_of(name: str) -> type:
    """The cases of a class of CPython's that apply; none if this version of Python has no such class."""
    return type(name, (getattr(cpython, name, object),), dict.fromkeys(NOT_APPLYING))


@pytest.fixture(autouse=True)
def _pools_are_of_skate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cases take what they test from the standard library by name."""
    monkeypatch.setattr(multiprocessing, "Pool", Pool)
    monkeypatch.setattr(multiprocessing.pool, "RemoteTraceback", RemoteTraceback)


class TestPool(cases_of("_TestPool"), unittest.TestCase):  # type: ignore[misc]
    TYPE = "processes"
    Pool = Pool

    # CPython has one pool for all cases; here each case has one of its own, since each accounts for what it leaves.

    @classmethod
    def setUpClass(cls) -> None:
        pass

    @classmethod
    def tearDownClass(cls) -> None:
        pass

    def setUp(self) -> None:
        self.pool = Pool(4)

    def tearDown(self) -> None:
        self.pool.terminate()
        self.pool.join()
        del self.pool


class TestPoolWorkerErrors(cases_of("_TestPoolWorkerErrors"), unittest.TestCase):  # type: ignore[misc]
    pass


class TestPoolWorkerLifetime(cases_of("_TestPoolWorkerLifetime"), unittest.TestCase):  # type: ignore[misc]
    pass


class TestInitializers(cases_of("TestInitializers"), unittest.TestCase):  # type: ignore[misc]
    pass
