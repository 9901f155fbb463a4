"""Threads of a library that work in the background of a program.

A call of Skate's functions starts Skate if it does not run. In a thread of a library that is wrong: between two of its
calls the program may have called `skate.shutdown()`, and the thread would bring up a node that the program knows
nothing of. Such a thread says so once, at its beginning:

>>> import threading
>>> from skate.exceptions import NotInitializedError
>>> from skate.threads import never_start
>>> def work():
...     never_start()
...     try:
...         skate.get(counter.add.remote())
...     except NotInitializedError:
...         return                      # the program has shut Skate down
>>> threading.Thread(target=work, daemon=True).start()
"""

from __future__ import annotations

from skate._worker.current import mark_thread

__all__ = ["never_start"]


def never_start() -> None:
    """From now on a call from this thread raises NotInitializedError where it would start Skate."""
    mark_thread()
