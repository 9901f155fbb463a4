"""What Ray has and Skate has not: what an import of it says."""

from __future__ import annotations

from importlib.machinery import ModuleSpec


def reason(name: str) -> str:
    """Why that name of Ray is not there: the end of an error's sentence."""
    return f"{name} is not part of Skate, which has the API of Ray Core."


def find_spec(fullname: str) -> ModuleSpec | None:
    return None
