"""joblib on Skate, and with it what is parallel by joblib: scikit-learn above all.

>>> import joblib
>>> from skate.util.joblib import register_skate
>>> register_skate()
>>> with joblib.parallel_config("skate"):
...     joblib.Parallel()(joblib.delayed(pow)(2, n) for n in range(4))
[1, 2, 4, 8]
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import skate
from skate.util.executor import Executor

try:
    from joblib.parallel import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        AutoBatchingMixin,
        FallbackToBackend,
        ParallelBackendBase,
        SequentialBackend,
        register_parallel_backend,
    )
except ImportError as error:
    raise ImportError(
        f"skate.util.joblib needs joblib, and it could not be imported.\n  why:  {error}\n  next: pip install joblib."
    ) from error


class SkateBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]  # joblib ships no types
    """Runs the batches of `joblib.Parallel` in workers of Skate.

    Its workers stay from one Parallel call to the next as long as the backend lives: for a whole `with
    joblib.parallel_config("skate")` block. What they have imported is there for the next call.
    """

    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False
    #: What `Parallel()` without n_jobs uses: all of them. Somebody who names this backend wants many.
    default_n_jobs = -1

    _executor: Executor | None = None
    _session = ""

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many workers `n_jobs` means: -1 is all CPUs of the cluster, -2 all but one."""
        if n_jobs == 0:
            raise ValueError("n_jobs=0 has no meaning: it may be 1 or more, or -1 for all CPUs of the cluster.")
        if n_jobs is None:
            return 1
        if n_jobs < 0:
            cpus = int(skate.cluster_resources().get("CPU", 1))
            return max(1, cpus + 1 + n_jobs)
        return n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Make workers, or keep those of the last call if they are as many."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        session = skate.get_runtime_context().get_job_id()
        if self._executor is None or self._executor.max_workers != n_jobs or self._session != session:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            self._executor = Executor(n_jobs)
            self._session = session
        self.parallel = parallel
        return n_jobs

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        assert self._executor is not None, "joblib calls configure() first"
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    #: What it is called in joblib before 1.5.
    apply_async = submit

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def terminate(self) -> None:
        """A Parallel call has ended. The workers stay for the next."""
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A batch raised: what the others do is of no use any more."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.terminate_workers()
            if ensure_ready:
                self.configure(executor.max_workers, self.parallel)


def register_skate() -> None:
    """Make "skate" a backend of joblib. Safe to call twice.

    >>> register_skate()
    >>> with joblib.parallel_config("skate", n_jobs=-1):
    ...     search.fit(x, y)
    """
    register_parallel_backend("skate", SkateBackend)


def register_ray() -> None:
    """Make "ray" a backend of joblib, for programs that were written for Ray; the same as "skate"."""
    register_skate()
    register_parallel_backend("ray", SkateBackend)
