"""What tasks took by the clock, without what they waited for a core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from skate._core.task import Timing
from skate._worker.cores import LOOK_S, OWN_PART_MIN, Cores


class Told(Cores):
    """The kernel's count, as the test wants it."""

    waited_s = 0.0

    def _read_s(self) -> float:
        return self.waited_s


@pytest.fixture(autouse=True)
def closed_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker keeps its file until it ends; here it would count as left behind by the tests that share a runtime."""
    made: list[Cores] = []
    init = Cores.__init__

    def noting(cores: Cores) -> None:
        init(cores)
        made.append(cores)

    monkeypatch.setattr(Cores, "__init__", noting)
    yield
    for cores in made:
        if cores._fd >= 0:
            os.close(cores._fd)


def test_short_times_are_left_alone() -> None:
    cores = Told()
    cores.waited_s = 1.0
    timings = [Timing(b"f", 100, LOOK_S / 2), Timing(b"g", 3, LOOK_S / 3)]
    assert cores.correct(timings) is timings


def test_time_that_was_waited_is_taken_off_all_functions_alike() -> None:
    cores = Told()
    cores.waited_s = 0.3
    f, g = cores.correct([Timing(b"f", 2, 0.3), Timing(b"g", 1, 0.1)])
    assert (f.fn, f.count, f.seconds) == (b"f", 2, pytest.approx(0.075))
    assert (g.fn, g.count, g.seconds) == (b"g", 1, pytest.approx(0.025))
    (f,) = cores.correct([Timing(b"f", 1, 0.4)])
    assert f.seconds == 0.4, "it was counted once already"


def test_something_is_left_however_long_was_waited() -> None:
    cores = Told()
    cores.waited_s = 100.0
    (f,) = cores.correct([Timing(b"f", 1, 1.0)])
    assert f.seconds == pytest.approx(OWN_PART_MIN)


def test_sleep_counts_and_a_taken_core_does_not() -> None:
    cores = Cores()
    if cores._fd < 0:
        pytest.skip("this kernel does not say how long threads wait for a core (CONFIG_SCHED_INFO)")
    begin = time.perf_counter()
    time.sleep(0.1)
    slept = time.perf_counter() - begin
    (timing,) = cores.correct([Timing(b"f", 1, slept)])
    # Waking up on a busy machine is waiting for a core, which is taken off; the sleep itself is not.
    assert 0.07 < timing.seconds <= slept
    # One core for two: about half of the time is the other's.
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=-1) as other:
            assert other.stdout is not None
            other.stdout.readline()
            begin, begin_own = time.perf_counter(), time.thread_time()
            while time.thread_time() - begin_own < 0.2:
                pass
            took = time.perf_counter() - begin
            other.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert took > 0.25, "the other one ran meanwhile"
    (timing,) = cores.correct([Timing(b"f", 1, took)])
    assert timing.seconds < 0.85 * took
