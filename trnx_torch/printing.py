"""Printing neuron tensors reads them through a cpu alias, so that it runs no device operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import _tensor_str

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_original = _tensor_str._tensor_str


def _format_values(self: torch.Tensor, indent: int) -> Any:
    if type(self) in _PLAIN and self.device.type == "neuron":
        return _original(torch.neuron.as_cpu(self), indent)
    return _original(self, indent)


def install() -> None:
    """Make `repr(tensor)` read neuron tensors on the host; other devices are not touched."""
    _tensor_str._tensor_str = _format_values
