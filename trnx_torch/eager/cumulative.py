"""Running sums, products, extrema and log-sums along one dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import trnx.numpy as np
from trnx.ops import functions
from trnx_torch.dtypes import to_trnx_dtype
from trnx_torch.eager.composite import axes, define
from trnx_torch.eager.generic import NOT_NATIVE, working_dtype
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any


def _scan(
    name: str, function: Callable[..., Array], x: Tensor, dim: int, result: torch.dtype
) -> Tensor:
    """``function`` along ``dim``, computed in float32 for 16-bit floats."""
    axis = axes(dim, x.ndim)[0] if x.ndim else 0
    if x.numel() == 0 or x.ndim == 0:
        return x.to(result, copy=True)
    working = to_trnx_dtype(working_dtype(result))
    kind = to_trnx_dtype(result)

    def scanned(x: Array) -> Array:
        return np.astype(function(np.astype(x, working), axis), kind)

    return run(name, scanned, [x], (axis, str(result)), exact=True)[0]


def _accumulated(name: str, function: Callable[..., Array]) -> None:
    def operator(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        if dtype is None:
            whole = not self.is_floating_point()
            dtype = torch.int64 if whole else self.dtype
        if dtype in NOT_NATIVE or dtype is torch.bool:
            raise NoKernel(str(dtype))
        return _scan(name, function, self, dim, dtype)

    define(f"{name}.default")(operator)


def register() -> None:
    """Registers cumsum, cumprod and logcumsumexp."""
    _accumulated("cumsum", functions.cumsum)
    _accumulated("cumprod", functions.cumprod)

    def log_sum(self: Tensor, dim: int) -> Tensor:
        if not self.is_floating_point():
            raise NoKernel("torch's kernel has the error text")
        return _scan("logcumsumexp", functions.cumlogsumexp, self, dim, self.dtype)

    define("_logcumsumexp.default")(log_sum)
