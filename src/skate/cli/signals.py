"""Signals that ask a command to end, as an exception, and never in the middle of starting a process.

A process that was forked and not yet noted would be left behind, so while one is started the signal waits.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

ASK_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Told(Exception):
    """A signal asks this command to end: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Raises Told in the `with`; once, because the second one must not disturb the tidying up after the first."""

    def __init__(self) -> None:
        self._holds = False
        self._came = 0

    def __enter__(self) -> Signals:
        self._before = {each: signal.getsignal(each) for each in ASK_TO_END}
        for each, handler in self._before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(each, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if not self._came:
            self._came = number
            if not self._holds:
                raise Told(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What comes meanwhile is told at the end, if that is reached."""
        came, self._holds = self._came, True
        try:
            yield
        finally:
            self._holds = False
        if self._came != came:
            raise Told(self._came)
