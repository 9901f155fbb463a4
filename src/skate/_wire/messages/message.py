"""The base of all messages."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of everything that is sent by itself."""
