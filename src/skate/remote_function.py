"""The type of what `@skate.remote` makes of a function."""

from skate._remote_function import RemoteFunction

__all__ = ["RemoteFunction"]
