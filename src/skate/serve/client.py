"""What `serve.run` and the other verbs do: they ask the controller, and make it if there is none."""

from __future__ import annotations

import time
from typing import Any

import skate
from skate.exceptions import ActorDiedError, ActorUnavailableError, TaskError
from skate.serve.records import CONTROLLER, NAMESPACE

__all__ = ["ask_controller", "controller", "has_controller", "tell_controller"]

#: A controller that is being restarted is waited for so long.
PATIENCE_S = 30.0
ASK_AGAIN_S = 0.05


def controller() -> Any:
    """The controller of the cluster; one is made if there is none."""
    from skate.serve.controller import ACTOR_OPTIONS, Controller

    try:
        return skate.get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        return skate.remote(Controller).options(**ACTOR_OPTIONS).remote()


def has_controller() -> bool:
    """Whether anything was started in this cluster."""
    try:
        skate.get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        return False
    return True


def ask_controller(method: str, *args: Any) -> Any:
    """Call a method of the controller; again if it is killed meanwhile. What it was told twice, it does once."""
    deadline = 0.0
    while True:
        try:
            return skate.get(getattr(controller(), method).remote(*args))
        except (ActorUnavailableError, ActorDiedError) as error:
            if isinstance(error, TaskError):
                raise
            deadline = deadline or time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                raise
            time.sleep(ASK_AGAIN_S)


def tell_controller(method: str, *args: Any) -> None:
    """Tell the controller something that it may miss."""
    try:
        getattr(skate.get_actor(CONTROLLER, NAMESPACE), method).remote(*args)
    except ValueError:
        pass
