"""Views and data movement: in a graph they are value operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any


@lowers("view.default", "reshape.default", "_unsafe_view.default")
def _view(x: Value, shape: Sequence[int]) -> Value:
    return np.reshape(x, tuple(shape))


@lowers("permute.default")
def _permute(x: Value, dims: Sequence[int]) -> Value:
    return np.transpose(x, tuple(d % x.ndim for d in dims))


@lowers("transpose.int")
def _transpose(x: Value, first: int, second: int) -> Value:
    return np.swapaxes(x, first, second)


@lowers("t.default")
def _t(x: Value) -> Value:
    return x if x.ndim < 2 else np.swapaxes(x, 0, 1)


@lowers("unsqueeze.default")
def _unsqueeze(x: Value, dim: int) -> Value:
    return np.expand_dims(x, dim % (x.ndim + 1))


@lowers("squeeze.dims", "squeeze.dim", "squeeze.default")
def _squeeze(x: Value, dims: int | Sequence[int] | None = None) -> Value:
    if dims is None:
        dims = range(x.ndim)
    names = (dims,) if isinstance(dims, int) else tuple(dims)
    axes = tuple(d % x.ndim for d in names if x.shape[d] == 1) if x.ndim else ()
    return np.squeeze(x, axes) if axes else x


@lowers("expand.default")
def _expand(x: Value, shape: Sequence[int], *, implicit: bool = False) -> Value:
    lead = len(shape) - x.ndim
    full = tuple(x.shape[i - lead] if s == -1 else s for i, s in enumerate(shape))
    return np.broadcast_to(x, full)


@lowers("slice.Tensor")
def _slice(
    x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    stop = None if end is None or end == sys.maxsize else end
    index: list[slice] = [slice(None)] * x.ndim
    index[dim] = slice(start, stop, step)
    return x[tuple(index)]


@lowers("select.int")
def _select(x: Value, dim: int, index: int) -> Value:
    where: list[slice | int] = [slice(None)] * x.ndim
    where[dim] = index
    return x[tuple(where)]


@lowers("cat.default")
def _cat(tensors: Sequence[Value], dim: int = 0) -> Value:
    # PyTorch drops empty one-dimensional tensors from a cat of higher rank.
    ranks = max(t.ndim for t in tensors)
    kept = [t for t in tensors if t.ndim == ranks]
    return np.concatenate(kept, axis=dim % ranks)


@lowers("stack.default")
def _stack(tensors: Sequence[Value], dim: int = 0) -> Value:
    return np.stack(list(tensors), axis=dim)


@lowers("split_with_sizes.default")
def _split(x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(_slice(x, dim, start, start + size))
        start += size
    return tuple(pieces)


@lowers("flip.default")
def _flip(x: Value, dims: Sequence[int]) -> Value:
    return np.flip(x, tuple(d % x.ndim for d in dims))
