"""Types of actors and their handles, under the names that programs written for Ray know."""

from skate._actor import (
    ASYNC_CONCURRENCY,
    Actor,
    ActorClass,
    ActorMethod,
    exit_actor,
    list_named_actors,
    method,
)

#: The type of handles, and what to annotate them with: `counter: ActorProxy[Counter]`.
ActorHandle = ActorProxy = Actor
#: Calls at a time of an async actor that does not say.
DEFAULT_MAX_CONCURRENCY_ASYNC = ASYNC_CONCURRENCY


class ActorClassInheritanceException(TypeError):
    """In Ray: a class inherits from a remote class. Skate allows that, and never raises it."""


__all__ = [
    "DEFAULT_MAX_CONCURRENCY_ASYNC",
    "Actor",
    "ActorClass",
    "ActorClassInheritanceException",
    "ActorHandle",
    "ActorMethod",
    "ActorProxy",
    "exit_actor",
    "list_named_actors",
    "method",
]
