"""The pickler: cloudpickle with buffers kept apart, for torch tensors as well.

cloudpickle brings functions, classes, closures and whatever is defined in `__main__` (code.py); pickle 5 hands over the
buffers of numpy arrays, pandas frames and arrow tables. A torch tensor pickles its storage in band, so it travels as
the numpy array that shares its memory, and arrives with pages of its own where it is written to (private.py).
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from skate._serialize.code import CodePickler
from skate._serialize.values import reducers


class Pickler(CodePickler):
    """One dump of one value; large buffers are appended to `buffers`."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview]) -> None:
        def keep_apart(buffer: pickle.PickleBuffer) -> bool:
            try:
                buffers.append(buffer.raw())
            except BufferError:  # not contiguous: let pickle copy it in band
                return True
            return False

        super().__init__(file, protocol=5, buffer_callback=keep_apart)

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is getattr(torch, "Tensor", None) and type(value) not in reducers:
            reduced = _reduce_tensor(torch, value)
            if reduced is not None:
                return reduced
        return super().reducer_override(value)


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    """A dense CPU tensor as the array that shares its memory; None for any other, which pickles in its own way."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return None
    dtype = None
    plain = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # numpy has no such type: the same bits as integers
        dtype = "bfloat16"
        plain = plain.view(torch.int16)
    try:
        array = plain.contiguous().numpy()
    except (RuntimeError, TypeError):
        return None
    return _rebuild_tensor, (array, dtype, tensor.requires_grad)


def _rebuild_tensor(array: Any, dtype: str | None, requires_grad: bool) -> Any:
    import torch

    from skate._serialize.private import private

    tensor = torch.from_numpy(private(array))
    if dtype is not None:
        tensor = tensor.view(getattr(torch, dtype))
    return tensor.requires_grad_(requires_grad)
