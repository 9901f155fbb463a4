"""The controller hears of requests that wait in this process, and of those that this process has refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import skate
from skate.exceptions import SkateError
from skate.serve.records import CONTROLLER, NAMESPACE
from skate.threads import never_start

__all__ = ["Reporter"]


class Reporter:
    """Tells the controller how many requests wait here, for as long as some do: it may have to start replicas.

    Refusals are told in the same message. They are told again if the controller died before it had heard of them.
    """

    EVERY_S = 0.25

    def __init__(self, waiting: Callable[[], dict[str, int]]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._running = False
        #: Refusals by deployment of which the controller was not told yet; messages of others that have no answer yet.
        self._refused: dict[str, int] = {}
        self._unanswered = 0

    def refused(self, key: str) -> None:
        """A request to a deployment was refused here."""
        self._count({key: 1})
        self.wake()

    def wake(self) -> None:
        """Requests wait, or were refused."""
        with self._lock:
            if self._running:
                return
            try:  # here, because a thread that asks while Skate is shut down would start another runtime
                controller = skate.get_actor(CONTROLLER, NAMESPACE)
            except (ValueError, SkateError):  # there is none, or it cannot be asked
                return
            process = skate.get_runtime_context().get_worker_id()
            self._running = True
        threading.Thread(target=self._run, args=(controller, process), name="skate-serve-waiting", daemon=True).start()

    def _run(self, controller: Any, process: str) -> None:
        never_start()  # the program may shut Skate down between two lines of this
        pause = threading.Event()
        told: set[str] = set()
        while True:
            with self._lock:  # a request that waits after this look wakes another thread
                waiting = self._waiting()
                if not skate.is_initialized():
                    self._refused, self._unanswered = {}, 0
                if not skate.is_initialized() or not (waiting or told or self._refused or self._unanswered):
                    self._running = False
                    return
                refused, self._refused = self._refused, {}
                self._unanswered += bool(refused)
            try:
                answer = controller.waiting.remote(process, dict.fromkeys(told, 0) | waiting, refused)
                if refused:
                    answer.when_ready(partial(self._answered, answer, refused))
            except Exception:  # noqa: BLE001 - the controller is being restarted, or Skate is shut down
                self._count(refused, answered=bool(refused))
            told = set(waiting)
            if waiting or refused or self._unanswered:
                pause.wait(self.EVERY_S)

    def _answered(self, answer: Any, refused: Mapping[str, int]) -> None:
        """The controller has heard of refusals, or has died before. Runs in any thread."""
        failed = True
        with contextlib.suppress(SkateError):  # Skate was shut down
            failed = answer.has_failed()
        self._count(refused if failed else {}, answered=True)

    def _count(self, refused: Mapping[str, int], *, answered: bool = False) -> None:
        with self._lock:
            self._unanswered = max(0, self._unanswered - answered)
            for key, count in refused.items():
                self._refused[key] = self._refused.get(key, 0) + count
