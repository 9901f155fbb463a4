"""Bugs of one line, put into the real code for a while: `mutants.py` and `control_mutants.py` have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Maker = Callable[[Any], Any]
Patch = tuple[type, str, Maker]


class Mutants(dict[str, tuple[str, list[Patch]]]):
    """By name what is wrong, and what is replaced."""

    def mutant(self, where: type, method: str) -> Callable[[Maker], Maker]:
        """The decorated function gets the original method, and returns the one that replaces it."""

        def note(make: Maker) -> Maker:
            name = make.__name__.removeprefix("_").replace("_", "-")
            self[name] = (make.__doc__ or "").strip(), [(where, method, make)]
            return make

        return note

    def also(self, name: str, where: type, method: str) -> Callable[[Maker], Maker]:
        """A bug that shows in more than one place."""

        def note(make: Maker) -> Maker:
            self[name][1].append((where, method, make))
            return make

        return note

    @contextmanager
    def applied(self, name: str) -> Iterator[None]:
        """The code with this bug; without any for "none"."""
        patches = self[name][1] if name != "none" else []
        originals = [(where, method, getattr(where, method)) for where, method, _ in patches]
        try:
            for (where, method, make), (_, _, original) in zip(patches, originals):
                setattr(where, method, make(original))
            yield
        finally:
            for where, method, original in originals:
                setattr(where, method, original)
