"""DLPack export of neuron tensors: their memory is the host's, so they say so.

torch has no DLPack device for an out-of-tree device name, and consumers such as NumPy and JAX take
host memory only. For import, `torch.from_dlpack(x)` and then `torch.neuron.as_neuron` copy nothing.
"""

from __future__ import annotations

from typing import Any

import torch

_original_dlpack = torch.Tensor.__dlpack__
_original_device = torch.Tensor.__dlpack_device__


def _is_neuron(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "neuron"


def _dlpack(self: torch.Tensor, **kwargs: Any) -> Any:
    if not _is_neuron(self):
        return _original_dlpack(self, **kwargs)
    if self.requires_grad:
        raise BufferError(
            "A tensor that requires grad cannot be exported. Export tensor.detach() instead."
        )
    kwargs.pop("stream", None)  # work is done when it is issued
    return _original_dlpack(torch.neuron.as_cpu(self), **kwargs)


def _dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
    if not _is_neuron(self):
        return _original_device(self)
    from torch.utils.dlpack import DLDeviceType

    return DLDeviceType.kDLCPU, 0


def install() -> None:
    """Extend the two DLPack methods of `torch.Tensor`; cpu and other tensors are not touched."""
    torch.Tensor.__dlpack__ = _dlpack
    torch.Tensor.__dlpack_device__ = _dlpack_device
