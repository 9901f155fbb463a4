"""The control service was started again: this process says once more what it is interested in.

What the process has asked for is kept by its node, and said again there. Which actors it watches, which topics it
subscribes to, and which functions it may call is known in this process alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


def say_again(runtime: Runtime) -> None:
    """With the runtime's lock held."""
    runtime.functions.say_again()
    runtime.actors.watch_again()
    runtime.subscriptions.subscribe_again()
