"""Neuron tensors through `torch.multiprocessing`: the other process sees the same memory.

Sending moves the tensor's storage into shared memory once, as torch does for cpu tensors; views and
later sends use the same block, so a write in one process is seen in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from trnx_torch import _loader

_original = reductions.reduce_tensor


def _rebuild(rebuild: Callable[..., torch.Tensor], arguments: Any, index: int) -> torch.Tensor:
    host = rebuild(*arguments)
    tensor = _loader.extension().as_neuron(host.detach(), index)
    tensor.requires_grad_(host.requires_grad)
    return torch.nn.Parameter(tensor) if isinstance(host, torch.nn.Parameter) else tensor


def _reduce(tensor: torch.Tensor) -> tuple[Any, Any]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "neuron":
        return _original(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "A tensor that is a result of autograd cannot be sent to another process. "
            "Send tensor.detach()."
        )
    extension = _loader.extension()
    host = extension.as_cpu(tensor.detach())
    if not host.untyped_storage().is_shared():
        nbytes = host.untyped_storage().nbytes()
        del host
        target = torch.empty(nbytes, dtype=torch.uint8).share_memory_()
        extension.move_storage(tensor.detach(), target)
        host = extension.as_cpu(tensor.detach())
    host.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        host = torch.nn.Parameter(host, requires_grad=tensor.requires_grad)
    rebuild, arguments = _original(host)
    return _rebuild, (rebuild, arguments, tensor.device.index)


def install() -> None:
    """Teach torch's pickler of process queues neuron tensors; other tensors go its old way."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce)
