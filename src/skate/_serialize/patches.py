"""Methods that a program has put into a class of a module, on their way to the actor's process.

A class that can be imported is sent by its name, and the actor's process has it as its module makes it. What a program
has put into the class since (`Library.describe = describe`, as TorchRL does with its collectors) is missing there,
while the handle in the program lists it. So these methods are sent along with the class.

A method counts as put in if its own name says that the statement of the class did not make it. Only those are looked
at that can be sent without surprises: functions of the program itself, and functions that can be imported. A class that
takes such a function up in its own statement costs a few bytes, and is left as it is at the other end.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from skate._serialize.code import can_be_imported


class PatchedClass:
    """Stands for a class in a pickle; loading it gives the class, with its methods."""

    def __init__(self, cls: type, patches: list[tuple[type, dict[str, FunctionType]]]) -> None:
        self._cls = cls
        self._patches = patches

    def __reduce__(self) -> Any:
        return _restore, (self._cls, self._patches)


def with_patches(cls: type) -> Any:
    """What to pickle for that class: the class itself, unless it or a base has methods that have to be sent along."""
    patches = [(each, found) for each in cls.__mro__ if can_be_imported(each) and (found := _patches_of(each))]
    return PatchedClass(cls, patches) if patches else cls


def _patches_of(cls: type) -> dict[str, FunctionType]:
    return {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, FunctionType)
        and (value.__module__ != cls.__module__ or not value.__qualname__.startswith(f"{cls.__qualname__}."))
        and (value.__module__ == "__main__" or can_be_imported(value))
    }


def _restore(cls: type, patches: list[tuple[type, dict[str, FunctionType]]]) -> type:
    for each, methods in patches:
        for name, method in methods.items():
            there = vars(each).get(name)
            if _origin(there) != _origin(method) or method.__module__ == "__main__":
                setattr(each, name, method)
    return cls


def _origin(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)
