"""Tensors made from numbers: ranges, grids, identities, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import trnx.lax as lax
import trnx.numpy as np
from trnx_torch import registration
from trnx_torch.dtypes import to_trnx_dtype
from trnx_torch.eager.composite import define, write
from trnx_torch.eager.generic import NOT_NATIVE
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any
Number = int | float


def _count(start: Number, end: Number, step: Number) -> int:
    if step == 0 or (end - start) / step < 0 or not math.isfinite((end - start) / step):
        raise NoKernel("torch's kernel has the error text")
    if all(isinstance(v, int) for v in (start, end, step)):
        return max(0, -int((start - end) // step))
    return max(0, math.ceil((end - start) / step))


def steps(start: Number, step: Number, count: int, dtype: torch.dtype, device: Any) -> Tensor:
    """``start + i * step`` for ``count`` elements: exact in integers, else in float32."""
    if dtype in NOT_NATIVE or dtype is torch.bool:
        raise NoKernel(str(dtype))
    if count == 0:
        return torch.empty(0, dtype=dtype, device=device)
    working = torch.float32 if dtype.is_floating_point else torch.int64
    first = torch.full((), start, dtype=working, device=device)
    width = torch.full((), step, dtype=working, device=device)
    kind, result = to_trnx_dtype(working), to_trnx_dtype(dtype)

    def ramp(first: Array, width: Array, *, n: Any) -> Array:
        index = np.astype(lax.iota((n,), 0), kind)
        return np.astype(first + index * width, result)

    return run("arange", ramp, [first, width], str(dtype), sizes={"n": count})[0]


def _arange(
    start: Number, end: Number, step: Number = 1, *, dtype: Any = None, device: Any = None, **_: Any
) -> Tensor:
    if dtype is None:
        whole = all(isinstance(v, int) for v in (start, end, step))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    return steps(start, step, _count(start, end, step), dtype, device or "neuron")


def _ranges() -> None:
    registration.program("aten::arange.start_step")(_arange)
    registration.program("aten::arange.start")(_arange)
    registration.program("aten::arange")(lambda end, **options: _arange(0, end, **options))

    def into(start: Number, end: Number, step: Number = 1, *, out: Tensor) -> Tensor:
        write(out, _arange(start, end, step, dtype=out.dtype, device=out.device))
        return out

    registration.program("aten::arange.start_out")(into)
    registration.program("aten::arange.out")(lambda end, *, out: into(0, end, out=out))


def _between(start: Number, end: Number, count: int, dtype: torch.dtype, device: Any) -> Tensor:
    """From both ends to the middle, as PyTorch counts, so that the last element is ``end``."""
    if dtype in NOT_NATIVE or not dtype.is_floating_point or count < 0:
        raise NoKernel(str(dtype))
    if count < 2:
        return torch.full((count,), start, dtype=dtype, device=device)
    step = (end - start) / (count - 1)
    half = count // 2
    result = torch.empty(count, dtype=dtype, device=device)
    result[:half] = steps(start, step, half, torch.float32, device)
    last = steps(end - step * (count - half - 1), step, count - half, torch.float32, device)
    result[half:] = last
    result[-1:].fill_(end)
    return result


def _scales() -> None:
    def linspace(start: Any, end: Any, count: int, **options: Any) -> Tensor:
        dtype = options.get("dtype") or torch.get_default_dtype()
        return _between(float(start), float(end), count, dtype, options.get("device") or "neuron")

    def logspace(start: Any, end: Any, count: int, base: float = 10.0, **options: Any) -> Tensor:
        dtype = options.get("dtype") or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise NoKernel(str(dtype))
        device = options.get("device") or "neuron"
        exponents = _between(float(start), float(end), count, torch.float32, device)
        return torch.pow(base, exponents).to(dtype)

    for name, function in (("linspace", linspace), ("logspace", logspace)):
        registration.program(f"aten::{name}")(function)

        def into(*args: Any, out: Tensor, make: Callable[..., Tensor] = function) -> Tensor:
            write(out, make(*args, dtype=out.dtype, device=out.device))
            return out

        registration.program(f"aten::{name}.out")(into)


def _eye(rows: int, columns: int | None = None, **options: Any) -> Tensor:
    columns = rows if columns is None else columns
    dtype = options.get("dtype") or torch.get_default_dtype()
    result = torch.zeros(rows, columns, dtype=dtype, device=options.get("device") or "neuron")
    result.diagonal().fill_(1)
    return result


def _identities() -> None:
    registration.program("aten::eye")(_eye)
    registration.program("aten::eye.m")(_eye)

    def into(rows: int, columns: int | None = None, *, out: Tensor) -> Tensor:
        write(out, _eye(rows, columns, dtype=out.dtype, device=out.device))
        return out

    registration.program("aten::eye.out")(into)
    registration.program("aten::eye.m_out")(into)


def _triangle(lower: bool) -> Callable[..., Tensor]:
    def function(self: Tensor, diagonal: int = 0) -> Tensor:
        if self.ndim < 2:
            raise NoKernel("torch's kernel has the error text")
        if self.numel() == 0:
            return self.clone()
        matrices = self.reshape(-1, *self.shape[-2:])

        def keep(x: Array) -> Array:
            offset = lax.iota(x.shape, 2) - lax.iota(x.shape, 1)
            inside = offset <= diagonal if lower else offset >= diagonal
            return np.where(inside, x, np.zeros((), dtype=x.dtype))

        name = "tril" if lower else "triu"
        return run(name, keep, [matrices], diagonal)[0].view(self.shape)

    return function


def _indices(lower: bool) -> Callable[..., Tensor]:
    def function(rows: int, columns: int, offset: int = 0, **options: Any) -> Tensor:
        device = options.get("device") or "neuron"
        pairs: list[Tensor] = []
        for row in range(rows):
            first = 0 if lower else max(0, min(columns, row + offset))
            last = max(0, min(columns, row + offset + 1)) if lower else columns
            if last > first:
                column = steps(first, 1, last - first, torch.int64, device)
                pairs.append(torch.stack([torch.full_like(column, row), column]))
        if not pairs:
            return torch.empty(2, 0, dtype=options.get("dtype") or torch.int64, device=device)
        return torch.cat(pairs, 1).to(options.get("dtype") or torch.int64)

    return function


def register() -> None:
    """Registers factories that compute what they fill a tensor with."""
    _ranges()
    _scales()
    _identities()
    define("tril.default")(_triangle(lower=True))
    define("triu.default")(_triangle(lower=False))
    for name, lower in (("tril_indices", True), ("triu_indices", False)):
        registration.program(f"aten::{name}")(_indices(lower))


__all__: Sequence[str] = ("register", "steps")
