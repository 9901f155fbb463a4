"""Callers that do not stop: what they get, and what goes wrong meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import skate
from waiting import wait_for

#: Between two calls of a thread: the replicas are to have the most of the machine.
PAUSE_S = 0.005


class Load:
    """Threads that call all the time, until the block ends.

    >>> with Load(lambda: handle.remote().result()) as load:
    ...     serve.run(...)
    >>> assert not load.errors
    """

    def __init__(self, call: Callable[[], Any], threads: int = 2) -> None:
        self.answers: list[Any] = []
        self.errors: list[BaseException] = []
        self._call = call
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"load-{number}") for number in range(threads)]

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.answers.append(self._call())
            except BaseException as error:  # the test looks at it
                self.errors.append(error)
            self._ended.wait(PAUSE_S)

    def wait_for_more(self, count: int = 20) -> None:
        """Return when so many calls have ended from now on."""
        before = len(self.answers) + len(self.errors)
        wait_for(lambda: len(self.answers) + len(self.errors) >= before + count, 20, f"{count} more calls to end")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.answers or self.errors, 20, "the first call to end")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(20)


@skate.remote(num_cpus=0, max_concurrency=2)
class LoadElsewhere:
    """The same in a process of its own."""

    def __init__(self, handle: Any) -> None:
        self._load = Load(lambda: handle.remote().result(), threads=1)

    def start(self) -> None:
        self._load.__enter__()

    def stop(self) -> tuple[set[Any], list[str]]:
        """What was answered, and the errors."""
        self._load.__exit__(None, None, None)
        return set(self._load.answers), [repr(error) for error in self._load.errors]
