"""The controller hears of requests that wait in this process, because it may have to start replicas for them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import skate
from skate.exceptions import SkateError
from skate.serve.records import CONTROLLER, NAMESPACE

__all__ = ["Reporter"]


class Reporter:
    """Tells the controller how many requests wait here, for as long as some do: it may have to start replicas."""

    EVERY_S = 0.25

    def __init__(self, waiting: Callable[[], dict[str, int]]) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._running = False

    def wake(self) -> None:
        """Requests wait."""
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
        pause = threading.Event()
        told: set[str] = set()
        while True:
            with self._lock:  # a request that waits after this look wakes another thread
                waiting = self._waiting()
                if not skate.is_initialized() or not (waiting or told):
                    self._running = False
                    return
            with contextlib.suppress(Exception):  # the controller is being restarted, or Skate is shut down
                controller.waiting.remote(process, dict.fromkeys(told, 0) | waiting)
            told = set(waiting)
            if waiting:
                pause.wait(self.EVERY_S)
