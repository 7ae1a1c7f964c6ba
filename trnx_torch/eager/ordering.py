"""Sorting along a dimension, and what a sorted row tells: largest, k-th and middle elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import trnx.numpy as np
from trnx.ops import functions
from trnx_torch.eager.composite import axes, define
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any


def ordered(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Values and int64 places in stable order; NaN counts as the largest."""
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    if x.numel() == 0:
        return x.clone(), torch.empty(x.shape, dtype=torch.int64, device=x.device)
    axis = axes(dim, x.ndim)[0]

    def sort(x: Array) -> tuple[Array, Array]:
        # Sorting the reversed row and reversing the result keeps equal elements in their order.
        row = np.flip(x, axis) if descending else x
        values, places = functions.sort((row, functions.iota(x.shape, axis)), axis)
        places = np.astype(places, np.int64)
        if not descending:
            return values, places
        return np.flip(values, axis), x.shape[axis] - 1 - np.flip(places, axis)

    values, places = run("sort", sort, [x], (axis, descending), exact=True)
    return values, places


@define("sort.stable")
def _sort(
    self: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return ordered(self, dim, descending)


@define("sort.default")
def _sort_default(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return ordered(self, dim, descending)


@define("topk.default")
def _topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    axis = axes(dim, self.ndim)[0] if self.ndim else 0
    if not 0 <= k <= (self.shape[axis] if self.ndim else 1):
        raise NoKernel("torch's kernel has the error text")
    values, places = ordered(self, axis, largest)
    if self.ndim == 0:
        return values, places
    return values.narrow(axis, 0, k).contiguous(), places.narrow(axis, 0, k).contiguous()


def _picked(
    values: Tensor, places: Tensor, axis: int, k: int, keepdim: bool
) -> tuple[Tensor, Tensor]:
    results = []
    for tensor in (values, places):
        part = tensor.narrow(axis, k, 1)
        results.append((part if keepdim else part.squeeze(axis)).contiguous())
    return results[0], results[1]


@define("kthvalue.default")
def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.ndim == 0 or not self.numel():
        raise NoKernel("one number, or none")
    axis = axes(dim, self.ndim)[0]
    if not 1 <= k <= self.shape[axis]:
        raise NoKernel("torch's kernel has the error text")
    values, places = ordered(self, axis, descending=False)
    return _picked(values, places, axis, k - 1, keepdim)


def _middle(self: Tensor, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Tensor, Tensor]:
    if self.ndim == 0 or not self.numel():
        raise NoKernel("one number, or none")
    axis = axes(dim, self.ndim)[0]
    values, places = ordered(self, axis, descending=False)
    size = self.shape[axis]
    if not self.is_floating_point():
        return _picked(values, places, axis, (size - 1) // 2, keepdim)
    count = (values == values).to(torch.int64).sum(axis, keepdim=True)
    middle = torch.clamp(torch.div(count - 1, 2, rounding_mode="floor"), min=0)
    if not ignore_nan:
        # The first NaN, where there is one, follows the numbers.
        middle = torch.where(count < size, count, (size - 1) // 2)
    value, place = values.gather(axis, middle), places.gather(axis, middle)
    if keepdim:
        return value, place
    return value.squeeze(axis).contiguous(), place.squeeze(axis).contiguous()


def _medians(name: str, ignore_nan: bool) -> None:
    def along(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return _middle(self, dim, keepdim, ignore_nan)

    def whole(self: Tensor) -> Tensor:
        return _middle(self.reshape(-1), 0, False, ignore_nan)[0]

    define(f"{name}.dim", f"{name}.dim_values")(along)
    define(f"{name}.default")(whole)


def register() -> None:
    """Registers medians; the other definitions are made when this module is imported."""
    _medians("median", ignore_nan=False)
    _medians("nanmedian", ignore_nan=True)
