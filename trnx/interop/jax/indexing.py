"""Rules of indexing: gather, scatter and slices at run-time places.

JAX's general gather has dimension numbers for every order of axes. Here batch axes go first and
window axes last, which is what `trnx.ops.gather` takes; transposes around it do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from trnx.core import Aval, dtypes
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op

_LARGEST = 2**31 - 1


def as_int32(index: Value) -> Value:
    """An index of any integer dtype as int32; what does not fit stays out of range."""
    dtype = op.dtype_of(index)
    low, high = dtypes.integer_range(dtype)
    if high > _LARGEST:
        index = op.min(index, op.scalar(_LARGEST, dtype))
    if low < -_LARGEST:
        index = op.max(index, op.scalar(-_LARGEST, dtype))
    return op.convert(index, dtypes.int32)


# ---------------------------------------------------------------- slices
@rule("dynamic_slice")
def _dynamic_slice(site: Site, x: Value, *starts: Value, slice_sizes: Sequence[int]) -> Value:
    return op.dynamic_slice(x, [as_int32(s) for s in starts], slice_sizes) if starts else x


@rule("dynamic_update_slice")
def _dynamic_update_slice(site: Site, x: Value, update: Value, *starts: Value) -> Value:
    return op.dynamic_update_slice(x, update, [as_int32(s) for s in starts]) if starts else update


# ---------------------------------------------------------------- general
def _index_arrays(indices: Value, batching: Sequence[int]) -> list[Value]:
    """One int32 array per indexed axis, with the batch axes in front."""
    shape = op.shape_of(indices)
    last = len(shape) - 1
    indices = as_int32(indices)
    rest = [d for d in range(last) if d not in batching]
    arrays = []
    for k in range(int(shape[-1])):
        one = op.reshape(op.slice_axis(indices, k, k + 1, last), shape[:-1])
        arrays.append(op.transpose(one, (*batching, *rest)))
    return arrays


def _operand_order(rank: int, batching: Sequence[int]) -> list[int]:
    return [*batching, *(d for d in range(rank) if d not in batching)]


def _batch_first(
    site: Site, batching: Sequence[int], index_batching: Sequence[int]
) -> tuple[list[int], list[int], list[Any]]:
    """The axes of operand and indices with batch axes in front, and the sizes of the latter."""
    order = _operand_order(len(site.sizes(0)), list(batching))
    index_shape = site.sizes(1)[:-1]
    rest = [d for d in range(len(index_shape)) if d not in index_batching]
    index_order = [*index_batching, *rest]
    return order, index_order, [index_shape[d] for d in index_order]


def _axes(
    arrays: list[Value], named: Sequence[int], order: Sequence[int], shape: Sequence[Any]
) -> tuple[list[Value], list[int]]:
    """Index arrays and their axes in the new order; without any, index 0 of the last axis."""
    axes = [order.index(d) for d in named]
    if not arrays:
        return [op.zeros_like(_int32(shape))], [len(order) - 1]
    return arrays, axes


def _int32(shape: Sequence[Any]) -> Aval:
    return Aval(tuple(shape), dtypes.int32)


def _are_inside(
    arrays: Sequence[Value], axes: Sequence[int], shape: Sequence[int], sizes: Sequence[int]
) -> Value:
    """Where windows lie in the operand; `axes`, `shape` and `sizes` after reordering."""
    found: Any = None
    for index, axis in zip(arrays, axes, strict=True):
        here = op.bitwise_and(op.ge(index, 0), op.le(index, shape[axis] - sizes[axis]))
        found = here if found is None else op.bitwise_and(found, here)
    return found


def _fill(dtype: np.dtype[Any], fill_value: Any) -> Any:
    if fill_value is not None:
        return np.asarray(fill_value, dtype)[()]
    if dtypes.is_inexact(dtype):
        return np.asarray(np.nan, dtype)[()]
    if dtype == dtypes.bool_:
        return np.bool_(True)
    low, high = dtypes.integer_range(dtype)
    return np.asarray(low if low < 0 else high, dtype)[()]


@rule("gather")
def _gather(
    site: Site,
    x: Value,
    indices: Value,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Value:
    numbers = dimension_numbers
    batch = len(numbers.operand_batching_dims)
    shape = site.sizes(0)
    index_batching = list(numbers.start_indices_batching_dims)
    order, index_order, moved_shape = _batch_first(
        site, numbers.operand_batching_dims, index_batching
    )
    arrays = _index_arrays(indices, index_batching)
    if len(order) == batch:  # every axis is a batch axis: one element each
        out = op.broadcast(op.transpose(x, order), moved_shape, range(batch))
        sizes: list[int] = []
    else:
        arrays, axes = _axes(arrays, numbers.start_index_map, order, moved_shape)
        sizes = [slice_sizes[d] for d in order[batch:]]
        out = op.gather(op.transpose(x, order), arrays, axes, sizes, batch)
        if GatherScatterMode.from_any(mode) == GatherScatterMode.FILL_OR_DROP:
            whole = [shape[d] for d in order]
            inside = _are_inside(arrays, axes, whole, [1] * batch + sizes)
            flags = op.broadcast(inside, op.shape_of(out), range(len(moved_shape)))
            out = op.select(flags, out, _fill(site.result.dtype, fill_value))
    # Windows lose collapsed axes; index axes go back to their order, then among the window axes.
    kept = [d for d in order[batch:] if d not in numbers.collapsed_slice_dims]
    out = op.reshape(out, (*moved_shape, *(slice_sizes[d] for d in kept)))
    rank = len(site.result.shape)
    by_index = iter(index_order.index(d) for d in range(len(index_order)))
    by_window = iter(range(len(index_order), rank))
    places = set(numbers.offset_dims)
    return op.transpose(
        out, [next(by_window) if d in places else next(by_index) for d in range(rank)]
    )


_KINDS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "mul",
    "scatter_mul": "mul",
    "scatter-min": "min",
    "scatter_min": "min",
    "scatter-max": "max",
    "scatter_max": "max",
}


@rule(*_KINDS)
def _scatter(
    site: Site,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    dimension_numbers: Any,
    mode: Any,
    unique_indices: bool,
    **_: Any,
) -> Value:
    numbers = dimension_numbers
    batch = len(numbers.operand_batching_dims)
    shape = site.sizes(0)
    index_batching = list(numbers.scatter_indices_batching_dims)
    order, index_order, moved_shape = _batch_first(
        site, numbers.operand_batching_dims, index_batching
    )
    arrays = _index_arrays(indices, index_batching)
    # Updates: index axes in front, in their new order, then the window with its inserted axes.
    windows = list(numbers.update_window_dims)
    scattered = [d for d in range(len(site.sizes(2))) if d not in windows]
    updates = op.transpose(updates, [*(scattered[d] for d in index_order), *windows])
    given = iter(site.sizes(2)[d] for d in windows)
    inserted = set(numbers.inserted_window_dims)
    sizes = [1 if d in inserted else next(given) for d in order[batch:]]
    updates = op.reshape(updates, (*moved_shape, *sizes))
    if len(order) == batch:
        # Every axis is a batch axis: give the operand one more, of one element.
        x = op.expand(op.transpose(x, order), batch)
        arrays, axes, sizes = [op.zeros_like(_int32(moved_shape))], [batch], [1]
        updates = op.reshape(updates, (*moved_shape, 1))
        whole = [*shape, 1]
    else:
        x = op.transpose(x, order)
        arrays, axes = _axes(arrays, numbers.scatter_dims_to_operand_dims, order, moved_shape)
        whole = [shape[d] for d in order]
    if GatherScatterMode.from_any(mode) == GatherScatterMode.CLIP:
        limits = [whole[axis] - sizes[axis - batch] for axis in axes]
        arrays = [op.clamp(0, a, limit) for a, limit in zip(arrays, limits, strict=True)]
    kind = _KINDS[site.primitive]
    out = op.scatter(x, arrays, updates, axes, kind, batch, bool(unique_indices))
    out = op.reshape(out, [shape[d] for d in order])
    return op.transpose(out, [order.index(d) for d in range(len(order))])
