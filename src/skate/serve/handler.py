"""The methods of a deployment, ready to be called.

Coroutines run on the event loop, plain functions in threads, and generators are streams.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from skate.serve.threads import Threads, exit_refused

__all__ = ["Handler", "handler_of"]


class Handler:
    """One method, or the function that a deployment is."""

    def __init__(self, function: Callable[..., Any], name: str, threads: Threads) -> None:
        self.function = function
        self.name = name
        self._threads = threads
        called = _plain(function)
        self.is_async = inspect.iscoroutinefunction(called)
        self.yields = inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called)
        self._yields_plainly = inspect.isgeneratorfunction(called)

    async def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the method."""
        if self.is_async:
            try:
                return await self.function(*args, **kwargs)
            except SystemExit as error:
                raise exit_refused(error) from error
        if self.yields:
            raise TypeError(
                f"{self.name} yields, and this request is for one result.\n"
                "  next: with handle.options(stream=True), the response gives what it yields, item by item."
            )
        value = await self._threads.run(self.function, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    async def stream(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """What the method yields. A generator or another iterator that it returns is streamed as well."""
        found = await self._opened(args, kwargs)
        if hasattr(found, "__aiter__"):
            try:
                async for item in found:
                    yield item
            except SystemExit as error:
                raise exit_refused(error) from error
            finally:
                if hasattr(found, "aclose"):
                    await found.aclose()
        elif inspect.isgenerator(found) or hasattr(found, "__next__"):
            async for item in self._threads.iterate(found):
                yield item
        else:
            raise TypeError(
                f"{self.name} returned {type(found).__name__}, and this request is for a stream.\n"
                "  next: yield in it, or leave out options(stream=True)."
            )

    async def _opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.yields:
            return self.function(*args, **kwargs)
        return await self.call(args, kwargs)


def handler_of(servable: Any, name: str, threads: Threads) -> Handler:
    """The method of that name of an instance, or the function itself. Raises AttributeError in words."""
    if name == "__call__" and inspect.isroutine(servable):
        return Handler(servable, servable.__name__, threads)
    found = getattr(servable, name, None)
    if found is None or not callable(found):
        kind = type(servable)  # a property is not called for the sake of a message
        there = [each for each in dir(kind) if not each.startswith("_") and callable(getattr(kind, each, None))]
        what = kind.__name__
        raise AttributeError(
            f"{what} has no method {name!r}; it has {', '.join(there)}."
            if there
            else f"{what} has no method {name!r}, nor any other."
        )
    return Handler(found, name, threads)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partial objects and instances with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and hasattr(type(function), "__call__"):  # noqa: B004 - its kind matters
        function = type(function).__call__
    return function
