"""What in an object cannot be pickled, under the name of Ray's module."""

from skate.serialization import FailureTuple, inspect_serializability

__all__ = ["FailureTuple", "inspect_serializability"]
