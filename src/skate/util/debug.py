"""Say something once: `if log_once("slow_disk"): logger.warning(…)`."""

from __future__ import annotations

import threading
import time

__all__ = ["disable_log_once_globally", "enable_periodic_logging", "log_once", "reset_log_once"]

#: With periodic logging a key is new again after this time.
PERIOD_S = 60.0

_lock = threading.Lock()
#: When each key was last new.
_said_at: dict[str, float] = {}
_is_disabled = False
_is_periodic = False


def log_once(key: str) -> bool:
    """Whether this process asks for the first time with this key.

    >>> if log_once("slow_disk"):
    ...     logger.warning("The disk is slow.")
    """
    with _lock:
        if _is_disabled:
            return False
        now = time.monotonic()
        said_at = _said_at.get(key)
        if said_at is not None and not (_is_periodic and now - said_at > PERIOD_S):
            return False
        _said_at[key] = now
        return True


def disable_log_once_globally() -> None:
    """Let `log_once` be False in this process from now on."""
    global _is_disabled
    _is_disabled = True


def enable_periodic_logging() -> None:
    """Let `log_once` be True for each key once a minute in this process, instead of once."""
    global _is_periodic
    _is_periodic = True


def reset_log_once(key: str | None = None) -> None:
    """Forget that a key was asked for, or that any was."""
    with _lock:
        if key is None:
            _said_at.clear()
        else:
            _said_at.pop(key, None)
