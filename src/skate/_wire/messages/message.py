"""The base of all messages, and what takes the place of one that was refused."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of everything that is sent by itself."""


class Refusal(msgspec.Struct):
    """In the place of a message that was refused. Never sent: the one who reads acts on it."""

    #: The tag, and the first plain values behind it, whatever they are nested in.
    values: list[Any]
    #: How many things the message is about, if it is a list of them.
    count: int
    size: int
    limit: int

    @property
    def tag(self) -> int:
        tag: int = self.values[0]
        return tag

    @property
    def id(self) -> bytes:
        """The first bytes in it; empty if there are none soon."""
        return next((value for value in self.values if isinstance(value, bytes)), b"")

    @property
    def reason(self) -> str:
        return f"a message of {self.size} bytes came for it; {self.limit} bytes is the most"
