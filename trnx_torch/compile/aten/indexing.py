"""Gather, scatter and embedding along one axis."""

from __future__ import annotations

from typing import Any

import trnx.lax as lax
import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any


def _crop(x: Value, like: Value, keep: int) -> Value:
    """The leading corner of ``x`` that PyTorch's gather and scatter pair with the index."""
    corner = tuple(
        slice(None) if axis == keep else slice(0, size) for axis, size in enumerate(like.shape)
    )
    return x[corner]


@lowers("gather.default")
def _gather(x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    axis = dim % x.ndim
    return lax.take_along(_crop(x, index, axis), _narrow(index), axis)


def _narrow(index: Value) -> Value:
    """int64 positions as int32: PyTorch demands that they are in range, and axes are shorter."""
    return index.astype(np.int32)


@lowers("scatter.value", "scatter.src")
def _scatter(x: Value, dim: int, index: Value, source: Value) -> Value:
    """One pass per index column; columns apply in order, so the last write wins as in PyTorch."""
    axis = dim % x.ndim
    if tuple(s for a, s in enumerate(x.shape) if a != axis) != tuple(
        s for a, s in enumerate(index.shape) if a != axis
    ):
        raise NotImplementedError("a scatter whose index is smaller than its input off the axis")
    if index.shape[axis] > 16:
        raise NotImplementedError("a scatter with more than 16 indices per row")
    index = _narrow(index)
    positions = np.reshape(
        np.arange(x.shape[axis], dtype=np.int32),
        tuple(-1 if a == axis else 1 for a in range(x.ndim)),
    )
    for column in range(index.shape[axis]):
        pick: list[slice] = [slice(None)] * x.ndim
        pick[axis] = slice(column, column + 1)
        value = source if isinstance(source, int | float | bool) else source[tuple(pick)]
        fill = np.full((), value, dtype=x.dtype) if isinstance(value, int | float) else value
        x = np.where(positions == index[tuple(pick)], fill, x)
    return x


@lowers("index_select.default")
def _index_select(x: Value, dim: int, index: Value) -> Value:
    return lax.take(x, _narrow(index), dim % x.ndim)


@lowers("embedding.default")
def _embedding(
    weight: Value,
    index: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return lax.take(weight, _narrow(index), 0)
