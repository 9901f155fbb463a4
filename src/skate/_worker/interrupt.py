"""Ctrl-C at a bad moment, and any other signal whose handler may raise: time limits by SIGALRM, SIGTERM that exits.

Python runs a signal handler between any two bytecodes of the main thread, and the default one of SIGINT raises
KeyboardInterrupt right there. The thread that waits reads the sockets itself, so that could be between reading a result
and noting it, and the result would be lost. So a guard stands before each handler and looks where the main thread is:
inside the runtime's own bookkeeping the signal is put off for a millisecond; in user code, or while the runtime only
waits, it is seen to at once.

The conditions of `threading`, and all that is made of them (events, queues, futures), are no better protected: raised
while a wait takes its lock back, an exception leaves a `with` block that then releases a lock that it does not hold.
There, too, the interrupt is put off, though not for long: a thread that stays in there hangs, and should be freed. And
in a finalizer, which would swallow it.

A program that calls the API all the time may be inside of it whenever a signal comes: so what was put off is raised at
the beginning of the next call, too. Tasks that are cancelled are interrupted in the same way.
"""

from __future__ import annotations

import _weakrefset
import functools
import os
import signal
import sys
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # that of `signal` spends a microsecond on an enum
from collections.abc import Callable, Iterator
from types import FrameType, NoneType
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
#: Modules whose functions are called when an object goes: what is raised there is written out and forgotten.
_FINALIZING = frozenset({weakref.__file__, _weakrefset.__file__})
_IMPORTS = "<frozen importlib._bootstrap>"
#: So often is an interrupt put off in a row for their sake.
LOCKING_TRIES_MAX = 100
_tries = 0

_main_thread = threading.main_thread().ident

#: Signals whose handlers are guarded: those that people send, and set.
_GUARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: Those that are set late: a time limit for each test; by asyncio for as long as its loop runs.
_OFTEN_SET = (int(signal.SIGALRM), int(signal.SIGTERM), int(signal.SIGINT))
#: Reminds the main thread of what was put off. Not the signal itself, sent again: whoever counts signals, as asyncio
#: does, would count it twice.
_REMINDER = signal.SIGRTMIN + 7
#: Whether handlers are guarded here: in drivers. What user code sets in a worker it has to itself.
_guarding = False
#: Signals that were put off, and the guards that did.
_put_off: dict[int, _Guard] = {}
#: There are some, or a worker has put off the cancellation of its task. Seen to RETRY_S later, at the end of a get, or
#: at the beginning of the next API call that starts something; not at the end of the one that it hit: whoever called
#: that would not get what it started.
pending = False


def _nothing() -> None:
    pass


#: What else is done then: a worker sees to the cancellation of its task.
on_pending: Callable[[], None] = _nothing


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
        if code is _call.__code__:
            return each is not frame  # in a handler, which was called where it could do no harm
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
    if code.co_name == "__del__" or code.co_filename in _FINALIZING:
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


class _Guard:
    """Stands before a handler."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.__wrapped__ = handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        global pending
        if may_interrupt(frame):
            _put_off.pop(signum, None)
            _call(self.__wrapped__, signum, frame)
        else:
            _put_off[signum] = self
            pending = True
            again_later(_REMINDER, _is_anything_due)


def _is_anything_due() -> bool:
    """Not so if its handler has been replaced meanwhile: a time limit that was taken back."""
    for signum, guard in list(_put_off.items()):
        if getsignal(signum) is not guard:
            del _put_off[signum]
    return bool(_put_off)


def _on_reminder(signum: int, frame: FrameType | None) -> None:
    if not _is_anything_due():
        return
    if may_interrupt(frame):
        _call_handlers(frame)
    else:
        again_later(_REMINDER, _is_anything_due)


def _call_handlers(frame: FrameType | None) -> None:
    while _is_anything_due():
        signum, guard = _put_off.popitem()
        _call(guard.__wrapped__, signum, frame)


def _call(handler: Callable[[int, FrameType | None], Any], signum: int, frame: FrameType | None) -> None:
    """Nothing else: `may_interrupt` knows it by that."""
    handler(signum, frame)


def raise_pending() -> None:
    """In an API call, if a signal was put off during this one or the one before."""
    global pending
    if pending and threading.current_thread() is threading.main_thread():
        pending = False
        on_pending()
        _call_handlers(sys._getframe(1))


def guard_handlers() -> None:
    """In a driver: those that are set by now, if this is the main thread; and those to come."""
    global _guarding
    if threading.get_ident() == _main_thread:
        _guarding = True
        signal.signal(_REMINDER, _on_reminder)
        for signum in _GUARDED:
            _guard(signum)


def guard_new_handlers() -> None:
    """Before a wait, so in a hurry."""
    if _guarding and threading.get_ident() == _main_thread:
        for signum in _OFTEN_SET:
            if type(getsignal(signum)) not in _GUARDED_OR_NONE:
                _guard(signum)


def _guard(signum: int) -> None:
    handler = signal.getsignal(signum)
    if callable(handler) and not _is_of(_OTHERS, handler):
        signal.signal(signum, _Guard(handler))


def _is_of(packages: tuple[str, ...], handler: Callable[..., Any]) -> bool:
    function = handler.func if isinstance(handler, functools.partial) else handler
    return (getattr(function, "__module__", None) or "").partition(".")[0] in packages


#: Ours; and those of asyncio, which only note the signal, or are to be recognised when they are taken away.
_OTHERS = (__name__.partition(".")[0], "asyncio")
#: Types of what `getsignal` gives where there is nothing to do: a number says that there is no handler of Python's.
_GUARDED_OR_NONE = (_Guard, int, NoneType)
