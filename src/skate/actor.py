"""Types of actors and their handles, under the names that programs written for Ray know."""

from skate._actor import Actor, ActorClass, ActorMethod, exit_actor, list_named_actors, method

#: The type of handles, and what to annotate them with: `counter: ActorProxy[Counter]`.
ActorHandle = ActorProxy = Actor

__all__ = [
    "Actor",
    "ActorClass",
    "ActorHandle",
    "ActorMethod",
    "ActorProxy",
    "exit_actor",
    "list_named_actors",
    "method",
]
