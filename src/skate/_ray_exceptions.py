"""Errors that Ray has and Skate never raises: there for programs that name them in an `except` clause.

`skate.exceptions` hands them out by name; nothing is loaded for programs that do not ask. Each stands under the class
that a program would catch to be on the safe side.
"""

from __future__ import annotations

from skate.exceptions import ObjectLostError, SkateError, SkateSystemError


class ActorHandleNotFoundError(SkateError, ValueError):
    """In Ray: `kill` was given the handle of an actor of another cluster."""


class AuthenticationError(SkateError):
    """In Ray: the token is missing or wrong. Skate raises ConnectionError from `init` instead."""


class CrossLanguageError(SkateError):
    """In Ray: a task in another language failed."""


class ObjectRefStreamEndOfStreamError(SkateError):
    """In Ray: the stream of a generator has no further references. In Skate its iteration just ends."""


class OufOfBandObjectRefSerializationException(SkateError):
    """In Ray: a reference was pickled by hand, which a setting forbids. In Skate its object is kept until shutdown."""


class RayChannelError(SkateSystemError):
    """In Ray: a channel of a compiled graph failed."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """In Ray: a channel of a compiled graph took too long."""


class RayCgraphCapacityExceeded(SkateSystemError):
    """In Ray: the buffer of a compiled graph is full."""


class RayDirectTransportError(SkateSystemError):
    """In Ray: tensors could not be sent from one GPU to another."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """In Ray: an object was deleted although something referred to it."""


class RpcError(SkateError):
    """In Ray: a call between its own processes failed."""

    def __init__(self, message: str = "", rpc_code: int | None = None) -> None:
        self.rpc_code = rpc_code
        super().__init__(message)


class StreamingGeneratorReplayInconsistentError(SkateSystemError):
    """In Ray: a generator that was run again yielded another number of values than before."""


class UnserializableException(SkateError):
    """In Ray: the error of a task could not be unpickled. In Skate a TaskError with its text arrives."""


class UserCodeException(SkateError):
    """In Ray: a callback of the user failed inside the runtime."""


NAMES = frozenset(name for name, value in list(globals().items()) if getattr(value, "__module__", "") == __name__)
