"""joblib with the backend "skate"."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import skate

joblib = pytest.importorskip("joblib")

from skate.util.joblib import register_ray, register_skate  # noqa: E402 - it needs joblib

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    from joblib.parallel import BACKENDS

    register_skate()
    yield
    for name in ("skate", "ray"):
        BACKENDS.pop(name, None)


def square(x: int) -> int:
    return x * x


def fail_at(bad: int, x: int) -> int:
    if x == bad:
        raise KeyError(f"{x} is bad")
    return x


def nested(x: int) -> int:
    return sum(joblib.Parallel(n_jobs=2)(joblib.delayed(square)(i) for i in range(x)))


def run(function: Any, items: Any, **options: Any) -> Any:
    return joblib.Parallel(**options)(joblib.delayed(function)(item) for item in items)


def test_parallel_runs_in_workers_of_skate() -> None:
    with joblib.parallel_config("skate"):
        assert run(square, range(100)) == [i * i for i in range(100)]
        pids = run(lambda _: os.getpid(), range(20))
        parents = run(lambda _: skate.get_runtime_context().get_job_id(), range(4))
    assert os.getpid() not in pids
    assert set(parents) == {skate.get_runtime_context().get_job_id()}


def test_the_older_way_to_choose_a_backend_works() -> None:
    with joblib.parallel_backend("skate", n_jobs=2):
        assert run(square, range(10)) == [i * i for i in range(10)]


def test_a_backend_can_be_named_in_the_call() -> None:
    assert run(square, range(10), n_jobs=2, backend="skate") == [i * i for i in range(10)]


def test_all_cpus_of_the_cluster_are_used_if_nobody_says() -> None:
    with joblib.parallel_config("skate"):
        assert joblib.effective_n_jobs() == 2
        assert joblib.effective_n_jobs(-1) == 2
        assert joblib.effective_n_jobs(-2) == 1
        assert joblib.effective_n_jobs(7) == 7
        with pytest.raises(ValueError, match="n_jobs=0"):
            run(square, [1], n_jobs=0)


def test_one_job_runs_here() -> None:
    with joblib.parallel_config("skate", n_jobs=1):
        assert run(lambda _: os.getpid(), range(3)) == [os.getpid()] * 3


def test_workers_stay_from_one_call_to_the_next() -> None:
    with joblib.parallel_config("skate", n_jobs=2):
        before = set(run(lambda _: os.getpid(), range(20), batch_size=1))
        after = set(run(lambda _: os.getpid(), range(20), batch_size=1))
    assert len(before | after) <= 2


def test_an_error_of_a_call_keeps_its_class_and_the_next_call_works() -> None:
    with joblib.parallel_config("skate", n_jobs=2):
        with pytest.raises(KeyError, match="3 is bad"):
            joblib.Parallel()(joblib.delayed(fail_at)(3, i) for i in range(50))
        assert run(square, range(10)) == [i * i for i in range(10)]


def test_results_can_be_a_generator() -> None:
    with joblib.parallel_config("skate", n_jobs=2):
        assert list(run(square, range(10), return_as="generator")) == [i * i for i in range(10)]


def test_a_parallel_object_can_be_used_several_times() -> None:
    with joblib.Parallel(n_jobs=2, backend="skate") as parallel:
        for _ in range(3):
            assert parallel(joblib.delayed(square)(i) for i in range(5)) == [0, 1, 4, 9, 16]


def test_parallel_calls_may_be_nested() -> None:
    with joblib.parallel_config("skate", n_jobs=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(nested, [3, 4, 5]) == [5, 14, 30]


def test_the_backend_survives_a_new_session() -> None:
    with joblib.parallel_config("skate", n_jobs=2):
        assert run(square, range(4)) == [0, 1, 4, 9]
        skate.shutdown()
        skate.init(num_cpus=2)
        assert run(square, range(4)) == [0, 1, 4, 9]


def test_programs_written_for_ray_find_their_backend() -> None:
    register_ray()
    with joblib.parallel_config("ray", n_jobs=2):
        assert run(square, range(10)) == [i * i for i in range(10)]


def test_ray_has_the_backend_in_a_module_of_its_own() -> None:
    from skate.util.joblib import SkateBackend
    from skate.util.joblib.ray_backend import RayBackend

    assert RayBackend is SkateBackend
