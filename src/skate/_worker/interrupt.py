"""Ctrl-C at a bad moment.

Python runs a signal handler between any two bytecodes of the main thread, and the default one raises KeyboardInterrupt
right there. The thread that waits reads the sockets itself, so that could be between reading a result and noting it,
and the result would be lost. So the driver's handler looks where the main thread is: inside the runtime's own
bookkeeping the interrupt is put off for a millisecond; in user code, or while the runtime only waits, it is raised at
once.

The conditions of `threading`, and all that is made of them (events, queues, futures), are no better protected: raised
while a wait takes its lock back, an exception leaves a `with` block that then releases a lock that it does not hold.
There, too, the interrupt is put off, though not for long: a thread that stays in there hangs, and should be freed. And
in a finalizer, which would swallow it.

A program that calls the API all the time may be inside of it whenever a signal comes: so what was put off is raised at
the beginning of the next call, too. Tasks that are cancelled are interrupted in the same way.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Functions of ours that only wait: nothing is half done there.
WAITS = frozenset({"_poll", "_sleep_until", "_read_until"})
#: Folders whose code keeps books; elsewhere in the package an interrupt does no harm.
_BOOKS = tuple(_PACKAGE + folder + os.sep for folder in ("_worker", "_wire", "_core", "_store"))
RETRY_S = 0.001

#: Methods of `threading` that take and release locks; a `wait` is one, too, but for the line in which it blocks.
_LOCKING = frozenset({"__enter__", "__exit__", "_acquire_restore", "_release_save", "notify", "notify_all"})
_BLOCKING_LINE = "waiter.acquire("
_IMPORTS = "<frozen importlib._bootstrap>"
#: So often is an interrupt put off in a row for their sake.
LOCKING_TRIES_MAX = 100
_tries = 0

#: Handler of the user or of Python, which ours stands before.
_previous: Any = None
#: An interrupt was put off: raised RETRY_S later, at the end of a get, or at the beginning of the next API call that
#: starts something; not at the end of the one that it hit, for whoever called that would not get what it started.
pending = False


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


#: What is done then. A worker has its own: there it is the cancellation of a task that was put off.
on_pending: Callable[[], None] = _raise_interrupt


def may_interrupt(frame: FrameType | None, also: frozenset[str] = frozenset()) -> bool:
    """Whether an exception raised here leaves the runtime, and Python's locks, whole.

    `also` names further functions of the runtime in which it does.
    """
    global _tries
    if any(map(_is_no_place, _stack(frame))) and _tries < LOCKING_TRIES_MAX:
        _tries += 1
        return False
    _tries = 0
    for each in _stack(frame):
        code = each.f_code
        if code.co_filename.startswith(_BOOKS):
            return code.co_name in WAITS or code.co_name in also
        if code.co_name == "remote" and code.co_filename.startswith(_PACKAGE):
            return False  # what was sent has to be returned
    return True


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost frame outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_no_place(frame: FrameType) -> bool:
    """Takes or releases a lock, or is a finalizer."""
    code = frame.f_code
    if code.co_name == "__del__":
        return True
    if code.co_filename != threading.__file__:
        return False
    if code.co_name == "wait" and "waiter" in frame.f_locals:
        import linecache  # not worth its time in every process

        return _BLOCKING_LINE not in linecache.getline(code.co_filename, frame.f_lineno)
    return code.co_name in _LOCKING


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported there: one that is interrupted leaves half of itself behind."""
    return any(each.f_code.co_filename == _IMPORTS for each in _stack(frame))


def again_later(signum: int, still_wanted: Callable[[], bool]) -> None:
    """Send the signal to the main thread once more, shortly, if it is still wanted then."""
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        if still_wanted():
            signal.pthread_kill(main, signum)

    timer = threading.Timer(RETRY_S, send)
    timer.daemon = True
    timer.start()


def _on_interrupt(signum: int, frame: FrameType | None) -> None:
    global pending
    if may_interrupt(frame):
        pending = False
        _previous(signum, frame)
    else:
        pending = True
        again_later(signum, lambda: pending)


def raise_pending() -> None:
    """In an API call, if an interrupt was put off during this one or the one before."""
    global pending
    if pending and threading.current_thread() is threading.main_thread():
        pending = False
        on_pending()


def protect_from_interrupts() -> None:
    """Take over Ctrl-C in the main thread, unless the user has a handler of his own."""
    global _previous
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _previous = signal.default_int_handler
        signal.signal(signal.SIGINT, _on_interrupt)
