"""A function that takes lists: what its calls may look like, and whether its results fit.

A function that is written in the body of a class is a method: its first argument is the instance and not a list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from typing import Any

NEXT = "  next: put @serve.batch directly above `def` or `async def`, in the body of a class or of a module."

#: The arguments of one call.
Call = tuple[tuple[Any, ...], dict[str, Any]]


class BatchFunction:
    """The function that runs batches: how it is called, and what it has to return."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if isinstance(function, (staticmethod, classmethod, type)) or not callable(function):
            raise TypeError(f"serve.batch decorates functions and methods of instances, and not {function!r}.\n{NEXT}")
        self.function = function
        path = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = path.rpartition("<locals>.")[2]
        self.is_method = "." in self.name
        self.is_stream = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        self.is_async = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
        self._signature = inspect.signature(function)
        #: Numbers of positional arguments that the function is known to take.
        self._counts: set[int] = set()

    def __reduce__(self) -> Any:
        return BatchFunction, (self.function,)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Hashable]:
        """The arguments of one call in one form, and which they are: a batch has calls with the same ones."""
        if not kwargs and len(args) in self._counts:
            return args, kwargs, len(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        args, kwargs = bound.args, bound.kwargs
        if len(args) + len(kwargs) <= self.is_method:
            raise TypeError(f"{self.name}() was called without an argument.\n  next: each call gives one item.")
        if kwargs:
            return args, kwargs, (len(args), *kwargs)
        self._counts.add(len(args))
        return args, kwargs, len(args)

    def lists(self, calls: Sequence[Call]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the function: those of all calls, as one list for each parameter."""
        args, kwargs = calls[0]
        columns: list[Any] = [list(column) for column in zip(*(args for args, _ in calls))]
        if self.is_method:
            columns[0] = args[0]
        return columns, {name: [call[name] for _, call in calls] for name in kwargs}

    def check(self, results: Any, wanted: int) -> None:
        """Raise TypeError or ValueError unless there is one result for each item."""
        verb = "yield" if self.is_stream else "return"
        advice = f"next: {verb} a list, tuple or array with one result for each item, in the order of the items."
        try:
            got = None if isinstance(results, (str, bytes, bytearray, Mapping, Set)) else len(results)
        except TypeError:
            got = None
        if got is None:
            kind = type(results).__name__
            raise TypeError(f"{self.name} {verb}ed {kind} for a batch of {wanted} items.\n  {advice}")
        if got != wanted:
            raise ValueError(f"{self.name} {verb}ed {got} results for a batch of {wanted} items.\n  {advice}")
