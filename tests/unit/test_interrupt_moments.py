"""Where an interrupt may be raised: not while Python's own locks change hands."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skate._worker import interrupt


class Lock:
    """A lock that runs something whenever it is about to be taken or released."""

    def __init__(self, on_use: Callable[[str], None]) -> None:
        self._lock = threading.Lock()
        self._on_use = on_use

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:  # a condition asks without blocking whether it is held
            self._on_use("acquire")
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._on_use("release")
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


@pytest.fixture(autouse=True)
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a driver."""
    monkeypatch.setattr(interrupt, "_tries", 0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.guard_handlers()
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("moment", range(6))
def test_ctrl_c_while_a_condition_changes_hands_its_lock(moment: int) -> None:
    """Entered, released by the wait, taken back, released: it is raised later, and the lock is free then."""
    uses: list[str] = []

    def on_use(what: str) -> None:
        uses.append(what)
        if len(uses) == moment + 1:
            signal.raise_signal(signal.SIGINT)

    condition = threading.Condition(Lock(on_use))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        for _ in range(1000):  # put off for a millisecond
            with condition:
                condition.wait(0.01)
    assert uses[:4] == ["acquire", "release", "acquire", "release"]
    assert condition.acquire(blocking=False)
    assert not condition._waiters  # type: ignore[attr-defined]


def frame_of(thread: threading.Thread, name: str) -> Any:
    """Of a function that the thread is in, once it is."""
    while True:
        frame = sys._current_frames()[thread.ident]  # type: ignore[index]
        if frame.f_code.co_name == name and interrupt._BLOCKING_LINE in interrupt_line(frame):
            return frame


def interrupt_line(frame: Any) -> str:
    import linecache

    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


@pytest.mark.parametrize("timeout", [None, 1000])
def test_what_only_waits_is_interrupted_at_once(timeout: float | None) -> None:
    items: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=items.get, kwargs={"timeout": timeout}, daemon=True)
    thread.start()
    assert interrupt.may_interrupt(frame_of(thread, "wait"))
    items.put(1)
    thread.join()


def test_who_hangs_in_a_lock_is_freed() -> None:
    condition = threading.Condition(threading.Lock())
    condition.acquire()
    timer = threading.Timer(0.01, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), condition:
        raise AssertionError("it is held")
    timer.join()
    assert interrupt._tries == 0
    condition.release()


def test_ctrl_c_in_the_callback_of_a_weak_reference_is_raised_after_it() -> None:
    """What is raised there is written out and forgotten."""

    class Thing:
        pass

    thing = Thing()
    weakref.finalize(thing, signal.raise_signal, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        del thing
        while True:  # it comes a millisecond later
            pass


class OutOfTimeError(Exception):
    pass


@pytest.fixture
def time_limit() -> Iterator[None]:
    """A handler that raises, guarded."""

    def on_alarm(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, on_alarm)
    interrupt.guard_new_handlers()
    assert signal.getsignal(signal.SIGALRM).__wrapped__ is on_alarm  # type: ignore[union-attr]
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("time_limit")
def test_other_handlers_are_called_at_once_in_user_code_and_later_in_a_lock() -> None:
    with pytest.raises(OutOfTimeError):
        signal.raise_signal(signal.SIGALRM)
    condition = threading.Condition(Lock(lambda _: signal.raise_signal(signal.SIGALRM)))  # type: ignore[arg-type]
    with condition:
        pass
    assert interrupt.pending
    with pytest.raises(OutOfTimeError):
        interrupt.raise_pending()
    assert not interrupt._put_off, "so it is not raised again"


@pytest.mark.usefixtures("time_limit")
def test_a_handler_is_guarded_once() -> None:
    guard = signal.getsignal(signal.SIGALRM)
    interrupt.guard_new_handlers()
    interrupt.guard_handlers()
    assert signal.getsignal(signal.SIGALRM) is guard


@pytest.mark.usefixtures("time_limit")
def test_what_was_put_off_is_dropped_with_its_handler() -> None:
    """A time limit that was taken back in time."""
    condition = threading.Condition(Lock(lambda _: signal.raise_signal(signal.SIGALRM)))  # type: ignore[arg-type]
    with condition:
        pass
    assert interrupt._put_off
    heard: list[int] = []
    signal.signal(signal.SIGALRM, lambda signum, _: heard.append(signum))
    interrupt.raise_pending()
    assert not interrupt._put_off
    assert not heard


def test_a_handler_may_be_interrupted_by_another_signal(time_limit: None) -> None:
    """One that tidies up may have a time limit for that."""
    heard: list[str] = []

    def on_hangup(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGALRM)
        except OutOfTimeError:
            heard.append("limited")

    before = signal.signal(signal.SIGHUP, on_hangup)
    interrupt.guard_handlers()
    signal.raise_signal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, before)
    assert heard == ["limited"]


def test_handlers_of_asyncio_are_left_alone() -> None:
    """It would not know them again, and has its own way to be told of signals."""

    async def look() -> tuple[Any, Any]:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        interrupt.guard_handlers()
        return before, (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    before, after = asyncio.run(look())
    assert after == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupt.guard_new_handlers()
    assert isinstance(signal.getsignal(signal.SIGINT), interrupt._Guard)
