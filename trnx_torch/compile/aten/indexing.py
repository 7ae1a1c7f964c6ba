"""Gathers, scatters and embedding.

An index tensor is int64 in PyTorch and must be in range; axes are shorter than 2**31, so positions
are computed as int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trnx.lax as lax
import trnx.numpy as np
from trnx.core.dtypes import is_bool
from trnx.ops import functions as op
from trnx_torch.compile.aten.movement import padded
from trnx_torch.compile.aten.registry import lowers

Value = Any


def narrow(index: Value) -> Value:
    """Positions as int32."""
    return index.astype(np.int32)


def _crop(x: Value, like: Value, keep: int) -> Value:
    """The leading corner of ``x`` that PyTorch's gather and scatter pair with the index."""
    corner = tuple(
        slice(None) if axis == keep else slice(0, size) for axis, size in enumerate(like.shape)
    )
    return x[corner]


@lowers("gather.default")
def _gather(x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    if x.ndim == 0:
        return np.reshape(np.broadcast_to(x, index.shape), index.shape)
    axis = dim % x.ndim
    return lax.take_along(_crop(x, index, axis), narrow(index), axis)


@lowers("index_select.default")
def _index_select(x: Value, dim: int, index: Value) -> Value:
    if x.ndim == 0:
        return x
    return lax.take(x, narrow(np.reshape(index, (-1,))), dim % x.ndim)


@lowers("embedding.default")
def _embedding(
    weight: Value,
    index: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return lax.take(weight, narrow(index), 0)


@lowers("embedding_dense_backward.default")
def _embedding_backward(
    grad: Value, index: Value, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    if scale_grad_by_freq:
        raise NotImplementedError("scale_grad_by_freq=True")
    if padding_idx >= 0:
        grad = np.where(np.expand_dims(index == padding_idx, -1), np.zeros_like(grad), grad)
    wide = grad.dtype if grad.dtype == np.float64 else np.float32
    zeros = np.zeros((rows, grad.shape[-1]), dtype=wide)
    return lax.scatter_add(zeros, narrow(index), grad.astype(wide), 0).astype(grad.dtype)


class _Places:
    """The elements that ``x[indices]`` picks, where ``None`` stands for a whole axis.

    Indexed axes are brought to the front and merged, so that one flat int32 index picks slices of
    the others.

    Attributes:
        index: the flat index, of the broadcast shape of all indices.
        order: axes of ``x``: indexed ones first.
        sizes: sizes of the indexed axes.
        front: number of axes in front of the index's axes in PyTorch's result.
    """

    def __init__(self, x: Value, indices: Sequence[Value | None]) -> None:
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        given = [index for index in indices if index is not None]
        if any(is_bool(index.dtype) for index in given):
            raise NotImplementedError(
                "a bool index gives a size that depends on values; use where, or index with int64"
            )
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
        self.front = axes[0] if adjacent else 0
        self.order = (*axes, *rest)
        self.sizes = tuple(x.shape[axis] for axis in axes)
        self.rest = tuple(x.shape[axis] for axis in rest)
        flat: Value = None
        for index, size in zip(given, self.sizes, strict=True):
            place = narrow(index)
            place = np.where(place < 0, place + size, place)
            flat = place if flat is None else flat * size + place
        self.index = flat

    def rows(self, x: Value) -> Value:
        """``x`` as slices along one merged axis."""
        if self.order != tuple(range(x.ndim)):
            x = np.transpose(x, self.order)
        return x if len(self.sizes) == 1 else np.reshape(x, (-1, *self.rest))

    def from_rows(self, rows: Value) -> Value:
        """The inverse of :meth:`rows`."""
        if len(self.sizes) > 1:
            rows = np.reshape(rows, (*self.sizes, *self.rest))
        inverse = tuple(sorted(range(len(self.order)), key=self.order.__getitem__))
        in_order = self.order == tuple(range(len(self.order)))
        return rows if in_order else np.transpose(rows, inverse)

    def picked(self, taken: Value) -> Value:
        """A result whose index axes lead, in PyTorch's order of axes."""
        count = self.index.ndim
        if not self.front or not count:
            return taken
        lead = tuple(range(count, count + self.front))
        tail = tuple(range(count + self.front, taken.ndim))
        return np.transpose(taken, (*lead, *range(count), *tail))

    def updates(self, values: Value) -> Value:
        """Values of an assignment, spread to the picked shape, index axes leading."""
        count = self.index.ndim
        shape = (*self.rest[: self.front], *self.index.shape, *self.rest[self.front :])
        values = np.broadcast_to(values, shape)
        if not self.front or not count:
            return values
        middle = tuple(range(self.front, self.front + count))
        tail = tuple(range(self.front + count, values.ndim))
        return np.transpose(values, (*middle, *range(self.front), *tail))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Value, indices: Sequence[Value | None]) -> Value:
    places = _Places(x, indices)
    if len(places.sizes) == 1:
        return lax.take(x, places.index, places.order[0])
    return places.picked(lax.take(places.rows(x), places.index, 0))


@lowers("index_put.default", "_unsafe_index_put.default")
def _index_put(
    x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    masks = [index for index in indices if index is not None and is_bool(index.dtype)]
    if masks and len(indices) == 1 and values.ndim == 0:
        mask = np.reshape(masks[0], (*masks[0].shape, *(1,) * (x.ndim - masks[0].ndim)))
        new = x + values if accumulate else values
        return np.where(mask, new.astype(x.dtype), x)
    places = _Places(x, indices)
    rows, updates = places.rows(x), places.updates(values.astype(x.dtype))
    if accumulate:
        return places.from_rows(add_rows(rows, places.index, updates))
    return places.from_rows(set_rows(rows, places.index, updates))


def add_rows(rows: Value, index: Value, updates: Value) -> Value:
    """Slices of axis 0 with updates added; half types add in float32."""
    wide = np.float32 if rows.dtype.itemsize < 4 else rows.dtype
    result = lax.scatter_add(rows.astype(wide), index, updates.astype(wide), 0)
    return result.astype(rows.dtype)


def set_rows(rows: Value, index: Value, updates: Value) -> Value:
    """Slices of axis 0 replaced; of several for one slice the last counts."""
    return op.scatter(rows, [index], np.expand_dims(updates, index.ndim), (0,), "set")


@lowers("index_add.default")
def _index_add(x: Value, dim: int, index: Value, source: Value, *, alpha: float = 1) -> Value:
    if alpha != 1:
        source = source * alpha
    if x.ndim == 0:
        return x + np.sum(source)
    return lax.scatter_add(x, narrow(np.reshape(index, (-1,))), source, dim % x.ndim)


@lowers("scatter.value", "scatter.src")
def _scatter(x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(x, dim, index, source, "set")


_KINDS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amin": "min",
    "amax": "max",
}


@lowers("scatter.reduce", "scatter.value_reduce")
def _scatter_with(x: Value, dim: int, index: Value, source: Value, *, reduce: str) -> Value:
    return _scattered(x, dim, index, source, _KINDS[reduce])


@lowers("scatter_reduce.two")
def _scatter_reduce(
    x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce not in _KINDS:
        raise NotImplementedError(f"scatter_reduce with reduce={reduce!r}")
    if not include_self:  # elements that are reached begin with the identity of the reduction
        start = {"sum": 0, "prod": 1}.get(reduce)
        if start is None:
            raise NotImplementedError(f"scatter_reduce with {reduce!r} and include_self=False")
        x = _scattered(x, dim, index, start, "set")
    return _scattered(x, dim, index, source, _KINDS[reduce])


def _scattered(x: Value, dim: int, index: Value, source: Value, kind: str) -> Value:
    """Elements along an axis set or combined; an index smaller than ``x`` reaches a corner."""
    if x.ndim == 0:
        flat = np.reshape(x, (1,))
        own = source if isinstance(source, int | float) else np.reshape(source, (-1,))
        return np.reshape(_scattered(flat, 0, np.reshape(index, (-1,)), own, kind), ())
    axis = dim % x.ndim
    if isinstance(source, int | float | bool):
        source = np.full(index.shape, source, dtype=x.dtype)
    source = _corner(source, index.shape).astype(x.dtype)
    window = np.moveaxis(_crop(x, index, axis), axis, -1)
    places = np.moveaxis(narrow(index), axis, -1)
    updates = np.expand_dims(np.moveaxis(source, axis, -1), -1)
    lead = x.ndim - 1
    out = op.scatter(window, [places], updates, (lead,), kind, batch=lead)
    out = np.moveaxis(out, -1, axis)
    return out if out.shape == x.shape else _put_corner(x, out)


@lowers("scatter_add.default")
def _scatter_add(x: Value, dim: int, index: Value, source: Value) -> Value:
    """The window of ``x`` that the index may reach gets sums; the rest stays."""
    axis = dim % x.ndim
    source = _corner(source, index.shape)
    window = _crop(x, index, axis)
    summed = lax.scatter_add_along(window, narrow(index), source, axis)
    return summed if window.shape == x.shape else _put_corner(x, summed)


def _corner(x: Value, shape: Sequence[int]) -> Value:
    return x if tuple(x.shape) == tuple(shape) else x[tuple(slice(0, size) for size in shape)]


def _put_corner(x: Value, corner: Value) -> Value:
    """``x`` with its leading corner replaced."""
    padding = [(0, full - part, 0) for full, part in zip(x.shape, corner.shape, strict=True)]
    wide = padded(corner, np.full((), 0, dtype=x.dtype), padding)
    inside: Value = None
    for axis, (full, part) in enumerate(zip(x.shape, corner.shape, strict=True)):
        if full != part:
            along = np.arange(full, dtype=np.int32) < part
            along = np.reshape(along, tuple(-1 if a == axis else 1 for a in range(x.ndim)))
            inside = along if inside is None else inside & along
    return np.where(inside, wide, x)
