"""How values are pickled: serialisers of your own for a class, and an answer to "what in it cannot be pickled?".

Also to be had from `skate.util`, where programs written for Ray look for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO, Any, TypeVar

from skate._serialize import registered
from skate._serialize.diagnose import Part, culprits, why_unpicklable

__all__ = ["FailureTuple", "deregister_serializer", "inspect_serializability", "register_serializer"]

T = TypeVar("T")


def register_serializer(cls: type[T], *, serializer: Callable[[T], Any], deserializer: Callable[[Any], T]) -> None:
    """Let `serializer` make of each instance of the class something that can be pickled.

        >>> skate.util.register_serializer(Socket, serializer=lambda s: s.address, deserializer=Socket.connect)

    It holds for this process, and for instances of the class itself, not of subclasses. The deserializer travels with
    the value, so processes that only read such values need to know nothing of it; those that send them register too.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer({cls!r}): it takes a class.")
    for name, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"register_serializer({cls.__name__}, {name}={function!r}): it takes a function.")
    registered.register(cls, serializer, deserializer)


def deregister_serializer(cls: type) -> None:
    """Pickle instances of the class as if nothing had been registered; without effect if nothing was."""
    registered.deregister(cls)


class FailureTuple:
    """A part that cannot be pickled: the object, the names that lead to it from the whole, and what refers to it."""

    def __init__(self, obj: Any, path: tuple[str, ...], parent: Any) -> None:
        self.obj = obj
        self.path = path
        self.parent = parent

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""

    def __repr__(self) -> str:
        return f"FailureTuple({' → '.join(self.path)}: {type(self.obj).__module__}.{type(self.obj).__qualname__})"


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: IO[str] | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Whether an object can be pickled; if not, the parts of it that cannot, which are also printed.

        >>> ok, failures = skate.util.inspect_serializability(train)
        >>> [failure.path for failure in failures]
        [('lock',)]

    depth: how many steps into the object it looks. print_file: where the report goes, by default standard output.
    """
    name = name or getattr(base_obj, "__name__", None) or repr(base_obj)[:80]
    file = sys.stdout if print_file is None else print_file
    why = why_unpicklable(base_obj)
    if why is None:
        print(f"{name} can be pickled.", file=file)
        return True, set()
    found = culprits(Part(name, name, base_obj, None), depth)
    failures = {
        FailureTuple(path[-1].value, tuple(part.name for part in path[1:]) or (name,), path[-1].parent)
        for path in found
    }
    print(f"{name} cannot be pickled: {why}", file=file)
    for path in found:
        inner = path[-1].value
        steps = ", in it ".join(part.phrase for part in path[1:]) or "the object itself"
        print(f"  {steps} (of type {type(inner).__module__}.{type(inner).__qualname__})", file=file)
    return False, failures
