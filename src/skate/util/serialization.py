"""Serialisers for classes, under the name of Ray's module."""

from skate.serialization import deregister_serializer, register_serializer

__all__ = ["deregister_serializer", "register_serializer"]
