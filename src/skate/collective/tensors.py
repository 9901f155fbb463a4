"""What users pass, seen as flat memory: numpy arrays and torch tensors on the CPU; and how they are reduced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skate.collective.local import Combine
from skate.collective.types import ReduceOp

__all__ = ["Flat", "Reduction", "check_list", "flat", "reduction"]

Array = NDArray[Any]

_UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


@dataclass(frozen=True)
class Flat:
    """One array: its memory, one-dimensional and contiguous, and how headers describe it."""

    #: The array's own memory, or a copy where that is not contiguous.
    elements: Array
    #: As users write it: float32.
    dtype: str
    shape: tuple[int, ...]
    #: Where a copy has to go when it was received into.
    original: Array | None

    @property
    def bytes(self) -> Array:
        return self.elements.view(np.uint8) if self.elements.size else np.empty(0, np.uint8)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def finish(self) -> None:
        """Move what was received to where the user looks for it."""
        if self.original is not None:
            np.copyto(self.original, self.elements.reshape(self.shape))


def flat(tensor: Any, what: str = "tensor", *, written: bool = True) -> Flat:
    """See a numpy array or a torch tensor as flat memory; `written` says whether the operation writes to it."""
    if isinstance(tensor, np.ndarray):
        array, name = tensor, _name(tensor.dtype)
    else:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{what} is of type {type(tensor).__name__}.\n  next: pass a numpy array or a torch tensor on the CPU."
            )
        array, name = _of_torch(tensor, torch, what, written)
    if array.dtype.hasobject:
        raise TypeError(f"{what} holds Python objects (dtype {array.dtype}).\n  next: pass an array of numbers.")
    if written and not array.flags.writeable:
        raise ValueError(
            f"{what} is read-only, and the result goes into it.\n"
            "  why:  arrays that come out of the object store, as arguments of actors do, are shared and read-only\n"
            "  next: pass a copy: array.copy()."
        )
    if array.flags.c_contiguous:
        return Flat(array.reshape(-1), name, array.shape, None)
    return Flat(np.ascontiguousarray(array).reshape(-1), name, array.shape, array if written else None)


def check_list(tensors: Any, world: int, like: Flat, what: str, *, written: bool) -> list[Flat]:
    """See a list with one array for each rank as flat memory; all are of one shape and dtype."""
    if not isinstance(tensors, Sequence) or isinstance(tensors, (str, bytes)):
        raise TypeError(
            f"{what} is of type {type(tensors).__name__}.\n  next: pass a list with one array for each rank."
        )
    if len(tensors) != world:
        raise ValueError(
            f"{what} has {len(tensors)} arrays, and the group has {world} ranks.\n  next: pass one array for each rank."
        )
    found = [flat(each, f"{what}[{at}]", written=written) for at, each in enumerate(tensors)]
    for at, each in enumerate(found):
        if (each.dtype, each.shape) != (like.dtype, like.shape):
            raise ValueError(
                f"{what}[{at}] is {each}, and the array of this rank is {like}.\n"
                "  next: pass arrays of one shape and one dtype."
            )
    return found


@dataclass(frozen=True)
class Reduction:
    """How arrays of one dtype are reduced."""

    op: ReduceOp
    combine: Combine
    #: Whether the memory is numbers that numpy does not know (bfloat16), seen as whole numbers of the same size.
    strange: bool = False

    def widen(self, array: Array) -> Array:
        """An array that numpy can reduce: this one, or a copy as float32."""
        if not self.strange:
            return array
        import torch

        wide: Array = torch.from_numpy(array).view(torch.bfloat16).float().numpy()
        return wide

    def narrow(self, wide: Array, into: Array) -> None:
        """Put what became of `widen` where it came from."""
        if self.strange:
            import torch

            torch.from_numpy(into).view(torch.bfloat16).copy_(torch.from_numpy(wide))


def reduction(op: ReduceOp, array: Flat) -> Reduction:
    """How an array is reduced, or the error that it cannot be."""
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op={op!r} is not a ReduceOp.\n  next: pass ReduceOp.SUM, PRODUCT, MIN or MAX.")
    strange = array.dtype == "bfloat16"
    return Reduction(op, _torch_combine(op) if strange else _numpy_combine(op, array.elements.dtype), strange)


@functools.lru_cache
def _numpy_combine(op: ReduceOp, dtype: np.dtype[Any]) -> Combine:
    ufunc, nothing = _UFUNCS[op], np.empty(0, dtype)
    try:
        fits = ufunc(nothing, nothing).dtype == dtype.newbyteorder("=")
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(f"{dtype} cannot be reduced with {op.name}.\n  next: convert it to a numeric dtype.")
    return lambda left, right, into: ufunc(left, right, out=into)


@functools.lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.isnative and dtype.names is None else str(dtype)


def _of_torch(tensor: Any, torch: Any, what: str, written: bool) -> tuple[Array, str]:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise ValueError(
            f"{what} is on {tensor.device} ({tensor.layout}).\n  next: pass a dense tensor on the CPU: tensor.cpu()."
        )
    if written and (tensor.is_conj() or tensor.is_neg()):
        raise ValueError(f"{what} is a lazy conjugate or negative.\n  next: pass tensor.resolve_conj().resolve_neg().")
    plain = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return plain.numpy(), name
    except TypeError:  # numpy has no such dtype: the bytes are moved as whole numbers of the same size
        if name != "bfloat16":
            raise TypeError(f"{what} has dtype {name}, which is not supported.\n  next: convert it.") from None
        return plain.view(torch.int16).numpy(), name


def _torch_combine(op: ReduceOp) -> Combine:
    import torch

    functions: dict[ReduceOp, Callable[..., Any]] = {
        ReduceOp.SUM: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
    }
    function = functions[op]

    def run(left: Array, right: Array, into: Array) -> None:
        seen = [torch.from_numpy(each).view(torch.bfloat16) for each in (left, right, into)]
        function(seen[0], seen[1], out=seen[2])

    return run
