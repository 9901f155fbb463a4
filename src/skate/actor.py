"""Types of actors and their handles, under the names that programs written for Ray know."""

from skate._actor import Actor, ActorClass, ActorMethod, exit_actor, list_named_actors, method

ActorHandle = Actor

__all__ = ["Actor", "ActorClass", "ActorHandle", "ActorMethod", "exit_actor", "list_named_actors", "method"]
