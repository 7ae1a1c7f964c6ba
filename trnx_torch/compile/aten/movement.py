"""Views and data movement: in a graph they are value operations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import trnx.lax as lax
import trnx.numpy as np
from trnx.core import structurally_equal
from trnx.ops import functions as op
from trnx_torch.compile.aten.registry import lowers

Value = Any


def padded(x: Value, fill: Value, config: Sequence[tuple[Any, Any, Any]]) -> Value:
    """``fill`` put around and between: (before, after, between) per axis."""
    low, high, interior = zip(*config, strict=True) if config else ((), (), ())
    return lax.pad(x, fill, low, high, interior)


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


def _bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Start and stop of PyTorch's slice within an axis, clamped to it."""

    def place(value: Any, default: Any) -> Any:
        if value is None or (isinstance(value, int) and value == sys.maxsize):
            return default
        if isinstance(value, int) and value < 0:
            return place(value + size, default) if isinstance(size, int) else size + value
        if isinstance(value, int) and isinstance(size, int):
            return min(max(value, 0), size)
        return value

    low, high = place(start, 0), place(end, size)
    if isinstance(low, int) and isinstance(high, int):
        low, high = max(low, 0), max(high, 0)
        return low, max(low, high)
    return low, high


@lowers("slice.Tensor")
def _slice(
    x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    low, high = _bounds(x.shape[dim], start, end)
    index: list[slice] = [slice(None)] * x.ndim
    index[dim] = slice(low, high, step)
    return x[tuple(index)]


@lowers("slice_scatter.default")
def _slice_scatter(
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """The slice replaced: what is before, the source (spread over the steps), what is after."""
    axis = dim % x.ndim
    low, high = _bounds(x.shape[axis], start, end)
    source = np.broadcast_to(source.astype(x.dtype), _slice(x, axis, low, high, step).shape)
    if _is(low, 0) and _is(high, x.shape[axis]) and step == 1:
        return source
    if step == 1:
        parts = [
            _slice(x, axis, 0, low) if not _is(low, 0) else None,
            source,
            _slice(x, axis, high) if not _is(high, x.shape[axis]) else None,
        ]
        return np.concatenate([part for part in parts if part is not None], axis=axis)
    count = source.shape[axis]
    if count == 0:
        return x
    last = low + (count - 1) * step + 1
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (low, x.shape[axis] - last, step - 1)
    spread = padded(source, np.full((), 0, dtype=x.dtype), config)
    places = np.reshape(
        np.arange(x.shape[axis]), tuple(-1 if a == axis else 1 for a in range(x.ndim))
    )
    hit = (places >= low) & (places < last) & ((places - low) % step == 0)
    return np.where(hit, spread, x)


def _is(size: Any, wanted: Any) -> bool:
    """Whether two sizes are the same expression; False when that depends on their values."""
    return structurally_equal(size, wanted)


@lowers("select_scatter.default")
def _select_scatter(x: Value, source: Value, dim: int, index: int) -> Value:
    axis = dim % x.ndim
    at = index if index >= 0 else index + x.shape[axis]
    return _slice_scatter(x, np.expand_dims(source, axis), axis, at, at + 1)


@lowers("select_backward.default")
def _select_backward(grad: Value, shape: Sequence[int], dim: int, index: int) -> Value:
    return _select_scatter(np.zeros(tuple(shape), dtype=grad.dtype), grad, dim, index)


@lowers("slice_backward.default")
def _slice_backward(
    grad: Value, shape: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    """Zeros around the gradient, and between its elements."""
    axis = dim % len(shape)
    low, _ = _bounds(shape[axis], start, end)
    config: list[tuple[Any, Any, Any]] = [(0, 0, 0)] * len(shape)
    config[axis] = (low, shape[axis] - low - ((grad.shape[axis] - 1) * step + 1), step - 1)
    if _is(grad.shape[axis], 0):
        return np.zeros(tuple(shape), dtype=grad.dtype)
    return padded(grad, np.full((), 0, dtype=grad.dtype), config)


@lowers("constant_pad_nd.default")
def _constant_pad(x: Value, pad: Sequence[int], value: Any = 0) -> Value:
    """`pad` lists (before, after) from the last axis on; negative amounts cut."""
    config: list[tuple[Any, Any, Any]] = [(0, 0, 0)] * x.ndim
    for number in range(len(pad) // 2):
        low, high = pad[2 * number], pad[2 * number + 1]
        axis = x.ndim - 1 - number
        if isinstance(low, int) and low < 0:
            x, low = _slice(x, axis, -low), 0
        if isinstance(high, int) and high < 0:
            x, high = _slice(x, axis, 0, x.shape[axis] + high), 0
        config[axis] = (low, high, 0)
    return padded(x, np.full((), value, dtype=x.dtype), config)


@lowers("repeat.default")
def _repeat(x: Value, repeats: Sequence[int]) -> Value:
    lead = len(repeats) - x.ndim
    x = np.reshape(x, (*(1,) * lead, *x.shape))
    for axis, count in enumerate(repeats):
        if _is(count, 1):
            continue
        shape = x.shape
        wide = np.broadcast_to(
            np.expand_dims(x, axis), (*shape[:axis], count, shape[axis], *shape[axis + 1 :])
        )
        x = np.reshape(wide, (*shape[:axis], count * shape[axis], *shape[axis + 1 :]))
    return x


@lowers("roll.default")
def _roll(x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    amounts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not dims:
        return np.reshape(_roll(np.reshape(x, (-1,)), amounts, [0]), x.shape)
    for shift, dim in zip(amounts, [dims] if isinstance(dims, int) else dims, strict=True):
        size = x.shape[dim]
        if _is(size, 0):
            continue
        cut = size - shift % size
        x = np.concatenate([_slice(x, dim, cut), _slice(x, dim, 0, cut)], axis=dim % x.ndim)
    return x


@lowers("tril.default")
def _tril(x: Value, diagonal: int = 0) -> Value:
    return np.tril(x, diagonal)


@lowers("triu.default")
def _triu(x: Value, diagonal: int = 0) -> Value:
    return np.triu(x, diagonal)


@lowers("diagonal.default")
def _diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two axes, put last: one flat axis read at steps of (columns + 1)."""
    first, second = dim1 % x.ndim, dim2 % x.ndim
    rest = [a for a in range(x.ndim) if a not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    x = np.transpose(x, (*rest, first, second))
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    count = max(count, 0)
    lead = x.shape[:-2]
    if count == 0:
        return np.zeros((*lead, 0), dtype=x.dtype)
    start = offset if offset >= 0 else -offset * columns
    flat = np.reshape(x, (*lead, rows * columns))
    stop = start + (count - 1) * (columns + 1) + 1
    return _slice(flat, len(lead), start, stop, columns + 1)


@lowers("unfold.default")
def _unfold(x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` along an axis, as a new last axis."""
    axis = dim % x.ndim if x.ndim else 0
    if x.ndim == 0:
        return np.reshape(x, (1,))
    count = (x.shape[axis] - size) // step + 1
    pieces = [_slice(x, axis, k, k + (count - 1) * step + 1, step) for k in range(size)]
    return np.stack(pieces, axis=x.ndim)


def _storage_places(size: Sequence[int], stride: Sequence[int], offset: int) -> Value:
    """The position in dense memory of each element of a strided view, as int32."""
    place = np.full((), offset, dtype=np.int32)
    for axis, (count, own) in enumerate(zip(size, stride, strict=True)):
        along = np.reshape(
            np.arange(count, dtype=np.int32),
            tuple(-1 if a == axis else 1 for a in range(len(size))),
        )
        place = place + along * own
    return np.broadcast_to(place, tuple(size))


def _covers(x: Value, size: Sequence[int], stride: Sequence[int], offset: int) -> bool:
    """Whether a strided view is all of the memory of `x`, row major."""
    natural: list[int] = []
    step = 1
    for count in reversed(size):
        natural.insert(0, step)
        step = step * count
    same = all(
        _is(count, 1) or _is(own, wanted)
        for count, own, wanted in zip(size, stride, natural, strict=True)
    )
    return same and _is(offset, 0) and _is(step, x.size)


@lowers("as_strided.default")
def _as_strided(
    x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """A view of the storage in other strides; `x` is taken to be dense and row major."""
    offset = storage_offset or 0
    if _covers(x, size, stride, offset):
        return np.reshape(x, tuple(size))
    return lax.take(np.reshape(x, (-1,)), _storage_places(size, stride, offset), 0)


@lowers("as_strided_scatter.default")
def _as_strided_scatter(
    x: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Value:
    """The elements of a strided view replaced; `x` is taken to be dense and row major."""
    offset = storage_offset or 0
    source = np.broadcast_to(source.astype(x.dtype), tuple(size))
    if _covers(x, size, stride, offset):
        return np.reshape(source, x.shape)
    places = np.reshape(_storage_places(size, stride, offset), (-1,))
    updates = np.reshape(source, (-1, 1))
    return np.reshape(op.scatter(np.reshape(x, (-1,)), [places], updates, (0,), "set"), x.shape)


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
    if len({t.dtype for t in kept}) > 1:
        common = np.result_type(*kept)
        kept = [t.astype(common) for t in kept]
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


@lowers("split.Tensor")
def _split_evenly(x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    total = x.shape[dim]
    return tuple(_slice(x, dim, at, min(at + size, total)) for at in range(0, total, size)) or (x,)


@lowers("unbind.int")
def _unbind(x: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple(_select(x, dim, index) for index in range(x.shape[dim]))


@lowers("flip.default")
def _flip(x: Value, dims: Sequence[int]) -> Value:
    return np.flip(x, tuple(d % x.ndim for d in dims))
