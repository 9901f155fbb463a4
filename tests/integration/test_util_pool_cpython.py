"""CPython's own tests of `multiprocessing.Pool`, run against `skate.util.multiprocessing.Pool`.

The cases are those that the interpreter came with, so each version of Python brings its own; none is copied here. Those
that are left out are named below, each with the reason. What Skate promises beyond them is in test_util_pool.py.
"""

from __future__ import annotations

import multiprocessing
import unittest

import pytest

from skate.util.multiprocessing import Pool

cpython = pytest.importorskip(
    "test._test_multiprocessing",
    reason="this interpreter came without its own tests; on Debian, libpython3-testsuite has them",
)

pytestmark = pytest.mark.usefixtures("runtime")

#: The cases about a pool of processes that are not run. Not every version of Python has all of them.
NOT_APPLYING = {
    # They look inside.
    "_TestPool.test_make_pool": "counts the processes in the private `_pool`",
    "_TestPool.test_resource_warning": "makes a pool look open by its private `_state`",
    "_TestPoolWorkerLifetime.test_pool_worker_lifetime": "takes process ids from the private `_pool`",
    # They test the pool of the standard library, whatever pool they are given.
    "_TestPoolWorkerLifetime.test_worker_finalization_via_atexit_handler_of_multiprocessing": "runs a program that "
    "imports it",
    "MiscTestCase.test_large_pool": "runs a program that imports it",
    "TestSyncManagerTypes.test_pool": "the process of a manager makes it",
    "TestPoolNotLeakOnFailure.test_release_unused_processes": "replaces the class of its processes",
    # Skate does otherwise.
    "TestStdinBadfiledescriptor.test_pool_in_process": "a forked process makes it, and a runtime does not cross a fork",
    "_TestPool.test_map_unplicklable": "the error of a `__reduce__` is the cause of a SerializationError",
    "_TestPoolWorkerErrors.test_unpickleable_result": "expects that a lambda cannot be sent",
    # Not about a pool.
    "TestInitializers.test_manager_initializer": "is about a manager",
}


def cases_of(name: str) -> type:
    """The cases of one of CPython's classes that apply; none if this version of Python has no such class."""
    left_out = {key.removeprefix(f"{name}."): None for key in NOT_APPLYING if key.startswith(f"{name}.")}
    return type(name, (getattr(cpython, name, object),), left_out)


@pytest.fixture(autouse=True)
def _skate_in_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cases take what they test from there, by name."""
    monkeypatch.setattr(multiprocessing, "Pool", Pool)


# The classes have names of this module, since cases send their own methods to workers.


class TestPool(cases_of("_TestPool"), unittest.TestCase):  # type: ignore[misc]
    TYPE = "processes"
    Pool = Pool

    # CPython's class has one pool for all cases. Here each has its own, and accounts for what it leaves in the runtime.

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
    TYPE = "processes"


class TestPoolWorkerLifetime(cases_of("_TestPoolWorkerLifetime"), unittest.TestCase):  # type: ignore[misc]
    TYPE = "processes"


class TestInitializers(cases_of("TestInitializers"), unittest.TestCase):  # type: ignore[misc]
    pass
