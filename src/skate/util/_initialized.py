"""What an initializer leaves in the globals, for the functions that its worker runs afterwards.

    def start(path): global model; model = load(path)
    def predict(x): return model(x)

A function of a script or of a notebook is pickled by value, with a copy of the globals that it uses, so `predict` would
not see what `start` has set. Here the functions of one crew share one namespace in each worker. What the initializer
saw there, or set, stays as it is; all else comes with each function, as it is where that was submitted.
"""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

#: In a worker: the shared namespace, and the names in it that no function brings along any more.
_namespace: dict[str, Any] = {}
_settled: set[str] = set()


def namespace_of(initializer: Callable[..., object]) -> dict[str, Any]:
    """The globals that it sets."""
    function: Any = initializer
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    found: dict[str, Any] = getattr(function, "__globals__", vars(sys.modules["__main__"]))
    return found


class Sent:
    """A function on its way to a worker. There it is the function itself."""

    def __init__(self, function: Callable[..., Any], namespace: dict[str, Any]) -> None:
        self._function = function
        self._namespace = namespace

    def __reduce__(self) -> Any:
        import cloudpickle

        with io.BytesIO() as file:
            pickler = cloudpickle.Pickler(file, protocol=5)
            # Where it keeps the new globals of functions that share theirs, by the id of the old ones.
            pickler.globals_ref[id(self._namespace)] = _Shared()
            pickler.dump(self._function)
            return _receive, (file.getvalue(),)


class _Shared(dict[str, Any]):
    """The shared namespace, in a pickle."""

    def __reduce__(self) -> Any:
        return _shared, (), None, None, iter(self.items())


def _shared() -> dict[str, Any]:
    return _namespace


def _receive(data: bytes) -> Any:
    settled = {name: _namespace[name] for name in _settled if name in _namespace}
    function = pickle.loads(data)
    _namespace.update(settled)
    return function


def settle() -> None:
    """The initializer has run."""
    _settled.update(_namespace)
