"""What `serve.run` and the other verbs do: they ask the controller, and make it if there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import skate
from skate.exceptions import ActorDiedError, ActorUnavailableError, SkateError, TaskError
from skate.serve.records import CONTROLLER, NAMESPACE

__all__ = ["ask_controller", "controller", "end_all", "has_controller", "shut_down", "tell_controller"]

#: Seconds to wait for a controller that is being restarted.
PATIENCE_S = 30.0
ASK_AGAIN_S = 0.05
#: What the actor of the controller is made with.
ACTOR_OPTIONS: dict[str, Any] = {
    "name": CONTROLLER,
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "get_if_exists": True,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 10_000,
    "num_cpus": 0,
}


def controller() -> Any:
    """The controller of the cluster; one is made if there is none."""
    from skate.serve.controller import Controller

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


def ask_controller(method: str, *args: Any, meanwhile: Callable[[], None] | None = None, every_s: float = 5.0) -> Any:
    """Call a method of the controller; again if it is killed meanwhile. What it was told twice, it does once.

    meanwhile: is called every so often for as long as there is no answer.
    """
    return _ask(controller, method, *args, meanwhile=meanwhile, every_s=every_s)


def shut_down() -> None:
    """Have the controller end all that is served. None is made for this, if it has ended."""
    with contextlib.suppress(ValueError):
        _ask(lambda: skate.get_actor(CONTROLLER, NAMESPACE), "shutdown")


def end_all() -> None:
    """End the actors of skate.serve that are left after a shutdown, the controller last."""
    with contextlib.suppress(SkateError):  # Skate ends too
        there = skate.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in there if each["namespace"] == NAMESPACE]
        for name in sorted(names, key=lambda name: name == CONTROLLER):
            with contextlib.suppress(ValueError):
                skate.kill(skate.get_actor(name, NAMESPACE))


def tell_controller(method: str, *args: Any) -> None:
    """Tell the controller something that it may miss."""
    try:
        getattr(skate.get_actor(CONTROLLER, NAMESPACE), method).remote(*args)
    except ValueError:
        pass


def _ask(
    find: Callable[[], Any], method: str, *args: Any, meanwhile: Callable[[], None] | None = None, every_s: float = 0.0
) -> Any:
    deadline = 0.0
    while True:
        try:
            actor = find()
            if deadline:
                skate.get(actor.is_there.remote())
                deadline = 0.0  # it is there again, and may be killed again later
            answer = getattr(actor, method).remote(*args)
            while meanwhile is not None and not skate.wait([answer], timeout=every_s)[0]:
                meanwhile()
            return skate.get(answer)
        except (ActorUnavailableError, ActorDiedError) as error:
            if isinstance(error, TaskError):
                raise
            deadline = deadline or time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                raise
            time.sleep(ASK_AGAIN_S)
