"""`skate.collective.types`, where programs written for Ray look for it."""

from skate.collective.types import Backend, ReduceOp

__all__ = ["Backend", "ReduceOp"]
