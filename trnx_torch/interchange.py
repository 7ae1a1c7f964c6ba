"""Tensors and trnx arrays, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trnx.runtime.array import Array


def to_torch(
    array: Array, *, device: torch.device | str = "cpu", share: bool = False
) -> torch.Tensor:
    """A tensor with the values of a trnx array; any shape, every dtype keeps its bits.

    Args:
        array: the array; it stays as it is.
        device: "cpu" or a neuron device.
        share: give a tensor over the array's own memory instead of a copy. Arrays are immutable
            and torch does not know that: writing to such a tensor changes the array and everything
            that was built on it. Only read it.

    Raises:
        TypeError: `array` is no trnx array, or torch has no such dtype.
        ValueError: `device` is neither cpu nor neuron.
    """
    from trnx.runtime.array import Array
    from trnx_torch.dtypes import to_torch_dtype

    if not isinstance(array, Array):
        raise TypeError(
            f"to_torch takes a trnx array, not {type(array).__name__}. Use torch.as_tensor for it."
        )
    to_torch_dtype(array.dtype)
    place = torch.device(device)
    if place.type not in ("cpu", "neuron"):
        raise ValueError(f"Arrays can go to cpu or neuron, not to {place}. Move the tensor after.")
    tensor = torch.from_dlpack(array)
    if not share:
        tensor = tensor.clone()
    return torch.neuron.as_neuron(tensor, place) if place.type == "neuron" else tensor


def from_torch(tensor: torch.Tensor, *, share: bool = False) -> Array:
    """A trnx array with the values of a tensor on cpu or neuron; every dtype keeps its bits.

    Args:
        tensor: a strided tensor without grad.
        share: give an array over the tensor's own memory instead of a copy. The array then changes
            when the tensor is written to, although arrays are immutable for everybody else.

    Raises:
        TypeError: `tensor` is no tensor, or trnx has no such dtype.
        BufferError: it requires grad, or cannot be shared because it is not contiguous.
    """
    from trnx.runtime.convert import from_dlpack
    from trnx_torch.dtypes import to_trnx_dtype

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"from_torch takes a tensor, not {type(tensor).__name__}. Use trnx.numpy.asarray."
        )
    to_trnx_dtype(tensor.dtype)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.device.type == "neuron" and not tensor.requires_grad:
        tensor = torch.neuron.as_cpu(tensor)
    return from_dlpack(tensor, copy=not share)
