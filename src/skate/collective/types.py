"""The reduce operations and the names of backends, as in `ray.util.collective.types`."""

from __future__ import annotations

from enum import Enum

__all__ = ["Backend", "ReduceOp"]


class ReduceOp(Enum):
    """How the arrays of all ranks become one.

    >>> collective.allreduce(losses, op=ReduceOp.MAX)
    """

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


class Backend:
    """Names of backends that programs written for Ray pass. There is one way here, and `gloo` and `auto` name it.

    >>> Backend("GLOO")
    'gloo'
    """

    AUTO = "auto"
    GLOO = "gloo"
    MPI = "mpi"
    NCCL = "nccl"
    TORCH_GLOO = "torch_gloo"

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        """Return the name in small letters, after checking that it is one."""
        known = (cls.AUTO, cls.GLOO, cls.MPI, cls.NCCL, cls.TORCH_GLOO)
        if str(name).lower() not in known:
            raise ValueError(f"backend={name!r} is not known.\n  next: pass one of {', '.join(known)}.")
        return str(name).lower()
