"""Connecting to a cluster from outside, under the name of Ray's module."""

from skate.client_builder import connect, disconnect

__all__ = ["connect", "disconnect"]
