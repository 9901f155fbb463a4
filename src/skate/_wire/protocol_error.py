"""What is raised when a message of a peer breaks the protocol."""


class ProtocolError(Exception):
    """A peer said something that it must never say, or not at this time."""
