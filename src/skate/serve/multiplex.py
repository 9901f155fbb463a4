"""`@serve.multiplexed`: many models on few replicas. A replica loads a model when a request needs it.

    get_model(id) ──► loaded ──────────────────────────────────────► the model
                 └──► being loaded, or not ──► one task loads it ──► all who wait get the model, or the error

Invariant: models that are loaded and models that are being loaded are never more than the limit. The least recently
used model is forgotten before the next one is loaded, so that both need not fit into memory.
Idea:      a waiter looks at the task that loads and does not own it: cancelled requests leave it alone.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from types import MethodType
from typing import Any, Generic, TypeVar, cast, overload

from skate.serve.request_context import get_multiplexed_model_id
from skate.serve.threads import exit_refused

__all__ = ["Recent", "loaded_models", "multiplexed"]

T = TypeVar("T")
Load = Callable[..., Awaitable[Any]]

#: How many models an instance keeps if nothing is said: Ray's.
MODELS_MAX = 3

NO_LIMIT = -1

NEXT = "  next: write `async def get_model(self, model_id: str)`, or without self for a function."


@overload
def multiplexed(func: Load, /) -> Callable[..., Any]: ...
@overload
def multiplexed(*, max_num_models_per_replica: int = MODELS_MAX) -> Callable[[Load], Callable[..., Any]]: ...
def multiplexed(func: Load | None = None, /, *, max_num_models_per_replica: int = MODELS_MAX) -> Any:
    """Keep the models that this function loads, and call it only for models that are not there.

        @serve.multiplexed(max_num_models_per_replica=4)
        async def get_model(self, model_id: str): ...

        model = await self.get_model(serve.get_multiplexed_model_id())

    A call without an id is for the model that the request names: with `handle.options(multiplexed_model_id=…)`, or
    over HTTP with the header `serve_multiplexed_model_id`.

    max_num_models_per_replica:  how many models an instance keeps; -1 for no limit. When it has as many, the least
                                 recently used model is forgotten before another one is loaded. Requests that work with
                                 the forgotten model still have it.
    """
    most = max_num_models_per_replica
    wanted = "next: give a whole number from 1 on, or -1 for no limit."
    if isinstance(most, bool) or not isinstance(most, int):
        raise TypeError(
            f"serve.multiplexed(max_num_models_per_replica={most!r}) is not a number of models.\n  {wanted}"
        )
    if most < 1 and most != NO_LIMIT:
        raise ValueError(f"serve.multiplexed(max_num_models_per_replica={most}) keeps no model.\n  {wanted}")

    def decorate(func: Load) -> Any:
        if not inspect.iscoroutinefunction(func):
            raise TypeError(
                f"serve.multiplexed decorates an `async def` function or method that loads a model, and not {func!r}."
                f"\n{NEXT}"
            )
        return Multiplexed(func, most)

    return decorate if func is None else decorate(func)


def loaded_models() -> tuple[str, ...]:
    """The ids of the models that this process has loaded."""
    global _ids
    if _ids is None:
        _ids = tuple(dict.fromkeys(id for models in _every for id in models.loaded))
    return _ids


class Recent(Generic[T]):
    """Values by key, and which of them was not used for the longest time."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: The least recently used value comes first.
        self._values: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        """The keys, the least recently used one first."""
        return iter(self._values)

    def use(self, key: str) -> T:
        """The value, which becomes the most recently used one. Raises KeyError if it is not there."""
        value = self._values[key]
        self._values.move_to_end(key)
        return value

    def add(self, key: str, value: T) -> None:
        """A value has come; it counts as used."""
        self._values[key] = value
        self._values.move_to_end(key)

    def make_room(self, places: int) -> None:
        """Forget the least recently used values, until the others and `places` more are within the limit."""
        while self._most != NO_LIMIT and self._values and len(self._values) + places > self._most:
            self._values.popitem(last=False)


class Models:
    """The models of one instance, or of one function."""

    def __init__(self, load: Load, most: int) -> None:
        self.loaded: Recent[Any] = Recent(most)
        self._load = load
        self._most = most
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        #: Tasks that are in the user's function now. The others wait for one of these to end.
        self._loading = 0
        self._places = None if most == NO_LIMIT else asyncio.Semaphore(most)
        _every.add(self)
        weakref.finalize(self, _changed).atexit = False

    def __reduce__(self) -> Any:
        # A copy in another process has to load its models itself.
        return Models, (self._load, self._most)

    async def get(self, *args: Any) -> Any:
        """The model of the id that is the last argument; before it comes the instance if this is a method."""
        id = args[-1]
        try:
            return self.loaded.use(id)
        except KeyError:
            task = self._tasks.get(id)
        if task is None:
            task = self._tasks[id] = asyncio.get_running_loop().create_task(self._get(args))
            task.add_done_callback(functools.partial(self._ended, id))
        # `wait` leaves the task alone if this request is cancelled.
        await asyncio.wait((task,))
        return task.result()

    async def _get(self, args: tuple[Any, ...]) -> Any:
        if self._places is None:
            return await self._get_now(args)
        async with self._places:
            return await self._get_now(args)

    async def _get_now(self, args: tuple[Any, ...]) -> Any:
        self._loading += 1
        self.loaded.make_room(self._loading)
        _changed()
        try:
            model = await self._load(*args)
        except SystemExit as error:  # it would end the loop, and with it the replica
            raise exit_refused(error) from error
        finally:
            self._loading -= 1
        self.loaded.add(args[-1], model)
        _changed()
        return model

    def _ended(self, id: str, task: asyncio.Task[Any]) -> None:
        del self._tasks[id]
        if not task.cancelled():
            # The error counts as seen even if all who waited were cancelled; asyncio would log it otherwise.
            task.exception()


class Multiplexed:
    """What `serve.multiplexed` makes: a function that keeps what it returned. Each instance has models of its own."""

    def __init__(self, load: Load, most: int) -> None:
        self._load, self._most = load, most
        self._name = load.__qualname__.rpartition("<locals>.")[2]
        self._is_method = "." in self._name
        self._signature = inspect.signature(load)
        try:
            self._signature.bind(*[None] * (1 + self._is_method))
        except TypeError:
            raise TypeError(f"{self._name}{self._signature} cannot be called with the id of a model.\n{NEXT}") from None
        #: The models of a function.
        self._models = Models(load, most)
        #: Where an instance keeps its models. A method that overrides another one has an attribute of its own.
        self._attribute = f"__serve_multiplexed_{load.__qualname__}"
        functools.update_wrapper(cast("Callable[..., Any]", self), load)

    def __reduce__(self) -> Any:
        return Multiplexed, (self._load, self._most)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model; loaded by this call, or by an earlier one."""
        if kwargs:
            args = self._signature.bind_partial(*args, **kwargs).args
        if len(args) == self._is_method:
            args = (*args, get_multiplexed_model_id())
        if len(args) != 1 + self._is_method:
            raise TypeError(f"{self._name}() takes the id of a model, and was called with {len(args)} arguments.")
        id = args[-1]
        if not isinstance(id, str):
            raise TypeError(f"{self._name}(): the id of a model is a str, and not {id!r}.")
        if not id:
            raise ValueError(
                f"{self._name}(): the request names no model.\n  next: give the id to the call, or name the model in "
                "the request: handle.options(multiplexed_model_id=…), over HTTP the header serve_multiplexed_model_id."
            )
        models = self._models_of(args[0]) if self._is_method else self._models
        return await models.get(*args)

    def _models_of(self, instance: Any) -> Models:
        try:
            attributes = vars(instance)
        except TypeError:
            raise TypeError(
                f"{self._name} has no place for the models of an instance: {type(instance).__name__} has __slots__.\n"
                "  next: add '__dict__' to them."
            ) from None
        found: Models | None = attributes.get(self._attribute)
        if found is None:
            found = attributes[self._attribute] = Models(self._load, self._most)
        return found


#: The models of all instances and functions of this process.
_every: weakref.WeakSet[Models] = weakref.WeakSet()
#: What `loaded_models` returned last; None after a change.
_ids: tuple[str, ...] | None = ()


def _changed() -> None:
    global _ids
    _ids = None
