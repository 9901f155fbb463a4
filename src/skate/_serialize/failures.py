"""Errors as values: an exception to a `Failure` and back.

The work is done in `errors.py`, which is imported when the first error occurs: a driver without errors starts sooner.
"""

from __future__ import annotations

from skate._core.task import Failure


def failure_of(error: BaseException, *, function_name: str = "", pid: int = 0) -> Failure:
    from skate._serialize.errors import pack_error

    return Failure(pack_error(error, function_name=function_name, pid=pid))


def error_of(failure: Failure) -> BaseException:
    """A new exception each time, ready to be raised."""
    from skate._serialize.errors import unpack_error

    return unpack_error(failure.payload)
