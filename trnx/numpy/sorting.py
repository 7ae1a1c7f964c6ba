"""Sorting, and what is read from sorted arrays: order, quantiles, unique elements.

Sorts are stable, NaN comes last, and zeros of both signs are equal. `unique` has as many results as
its data say: inside a trace its `size` must be given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import ShapeError, Size, aval_of, dtypes, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_float,
    as_operand,
    broadcast_shape,
    cast,
    normal_axes,
    normal_axis,
    promote,
    spread_to,
)
from trnx.numpy.counting import count_of_true, scattered
from trnx.numpy.reductions import with_axes
from trnx.ops import functions as op

Axis = int | Sequence[int] | None


def _one_axis(name: str, x: ArrayLike, axis: int | None) -> tuple[Array, int]:
    x = as_operand(x)
    if axis is None:
        return op.reshape(x, (aval_of(x).size,)), 0
    return x, normal_axis(name, axis, aval_of(x))


def sort(
    x: ArrayLike, axis: int | None = -1, *, stable: bool = True, descending: bool = False
) -> Array:
    """Elements in ascending order along `axis` (None: of the flattened array); NaN last."""
    x, number = _one_axis("sort", x, axis)
    (out,) = op.sort((x,), number)
    return op.reverse(out, (number,)) if descending else out


def argsort(
    x: ArrayLike, axis: int | None = -1, *, stable: bool = True, descending: bool = False
) -> Array:
    """int32 places of the elements in order along `axis`; equal ones keep their order."""
    x, number = _one_axis("argsort", x, axis)
    if not descending:
        return op.argsort(x, number)
    order = op.reverse(op.argsort(op.reverse(x, (number,)), number), (number,))
    return op.sub(op.sub(op.dim_size(aval_of(x).shape[number]), 1), order)


def lexsort(keys: Sequence[ArrayLike] | Array, axis: int = -1) -> Array:
    """int32 places in the order of several keys; the last key is the first to compare."""
    arrays = [as_operand(k) for k in keys]
    if not arrays:
        raise ShapeError(message("lexsort of no keys", None, "Give at least one"))
    number = normal_axis("lexsort", axis, aval_of(arrays[0]))
    place = op.iota(aval_of(arrays[0]).shape, number)
    return op.sort((*reversed(arrays), place), number, len(arrays))[-1]


def partition(x: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Elements along `axis` with the kth where sorting would put it, smaller ones in front.

    All of them are in order, which NumPy leaves open.
    """
    _checked_kth("partition", x, kth, axis)
    return sort(x, axis)


def argpartition(x: ArrayLike, kth: int, axis: int = -1) -> Array:
    """int32 places that :func:`partition` reads from."""
    _checked_kth("argpartition", x, kth, axis)
    return argsort(x, axis)


def _checked_kth(name: str, x: ArrayLike, kth: int, axis: int) -> None:
    aval = aval_of(as_operand(x))
    size = aval.shape[normal_axis(name, axis, aval)]
    if isinstance(size, int) and not -size <= kth < size:
        raise ValueError(
            message(f"{name} of {size} elements got kth {kth}", None, f"Use {-size} to {size - 1}")
        )


# ---------------------------------------------------------------- quantiles
_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _rows(name: str, x: Array, axis: Axis) -> tuple[Array, tuple[int, ...]]:
    """The reduced axes as one last axis, and which they are."""
    aval = aval_of(x)
    axes = normal_axes(name, axis, aval)
    kept = [a for a in range(aval.ndim) if a not in axes]
    size: Size = 1
    for a in axes:
        size = size * aval.shape[a]
    rows = op.reshape(op.transpose(x, [*kept, *axes]), (*(aval.shape[a] for a in kept), size))
    return rows, axes


def _quantile(
    name: str, x: ArrayLike, q: ArrayLike, axis: Axis, method: str, keepdims: bool, skip: bool
) -> Array:
    if method not in _METHODS:
        raise ValueError(
            message(f"method={method!r} is unknown", None, f"Use one of {', '.join(_METHODS)}")
        )
    x, q = promote(name, x, q, inexact=True)
    shape, dtype = aval_of(x).shape, aval_of(x).dtype
    if aval_of(q).ndim > 1:
        raise ShapeError(message(f"{name} at {aval_of(q)}", None, "Give a number or one axis"))
    rows, axes = _rows(name, x, axis)
    if dtype.itemsize < 4:
        rows, q = cast(rows, dtypes.float32), cast(q, dtypes.float32)
    wide = aval_of(rows).dtype
    *outer, size = aval_of(rows).shape
    rank = len(outer)
    (ordered,) = op.sort((rows,), rank)
    points = op.reshape(q, (aval_of(q).size,))
    count = op.dim_size(size)
    missing = op.convert(op.ne(rows, rows), dtypes.int32)
    holes = op.reduce_sum(missing, (rank,))
    target = (*outer, *aval_of(points).shape)
    # Where the wanted element lies: q of the way from the first to the last that counts.
    valid = op.sub(op.full(outer, count), holes) if skip else op.full(outer, count)
    last = op.convert(op.max(op.sub(valid, 1), 0), wide)
    exact = op.mul(op.broadcast(points, target, (rank,)), op.broadcast(last, target, range(rank)))
    low = op.floor(exact)
    share = op.sub(exact, low)
    if method == "nearest":
        low, share = op.round(exact), op.mul(share, 0.0)
    elif method == "lower":
        share = op.mul(share, 0.0)
    elif method == "higher":
        low, share = op.ceil(exact), op.mul(share, 0.0)
    elif method == "midpoint":
        share = op.select(op.gt(share, 0.0), 0.5, 0.0)
    first = op.convert(low, dtypes.int32)
    end = op.broadcast(op.convert(last, dtypes.int32), target, range(rank))
    a = op.take_along(ordered, first, rank)
    b = op.take_along(ordered, op.min(op.add(first, 1), end), rank)
    # No difference where the share is 0: inf - inf would be NaN.
    step = op.select(op.gt(share, 0.0), op.sub(b, a), 0.0)
    out = op.add(a, op.mul(step, share))
    bad = op.eq(valid, 0) if skip else op.gt(holes, 0)
    out = op.select(op.broadcast(bad, target, range(rank)), float("nan"), out)
    out = cast(out, dtype)
    if aval_of(q).ndim == 0:
        return with_axes(op.reshape(out, outer), shape, axes, keepdims)
    out = op.moveaxis(out, rank, 0)
    if not keepdims:
        return out
    return op.reshape(
        out, (*aval_of(points).shape, *(1 if a in axes else s for a, s in enumerate(shape)))
    )


def quantile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Array:
    """The value below which a share `q` (0 to 1) of the elements lies, over `axis` (None: all).

    Args:
        x: real numbers; integers give float32. NaN anywhere gives NaN.
        q: a number, or an array with one axis, which comes first in the result.
        axis: one or several axes.
        method: between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
        keepdims: keep the reduced axes with size 1.

    Raises:
        ShapeError: `q` has several axes.
        ValueError: another `method`.
    """
    return _quantile("quantile", x, q, axis, method, keepdims, skip=False)


def nanquantile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Array:
    """:func:`quantile` of the elements that are not NaN; NaN when there is none."""
    return _quantile("nanquantile", x, q, axis, method, keepdims, skip=True)


def percentile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Array:
    """:func:`quantile` at `q` per cent."""
    return quantile(x, op.div(as_float("percentile", q), 100.0), axis, method, keepdims)


def nanpercentile(
    x: ArrayLike, q: ArrayLike, axis: Axis = None, method: str = "linear", keepdims: bool = False
) -> Array:
    """:func:`nanquantile` at `q` per cent."""
    return nanquantile(x, op.div(as_float("nanpercentile", q), 100.0), axis, method, keepdims)


def median(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """The middle element in order, or the mean of the two in the middle; NaN anywhere gives NaN."""
    return quantile(x, 0.5, axis, keepdims=keepdims)


def nanmedian(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """:func:`median` of the elements that are not NaN."""
    return nanquantile(x, 0.5, axis, keepdims=keepdims)


# ---------------------------------------------------------------- unique
def unique(
    x: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Any:
    """The different elements of the flattened array, in ascending order; all NaN are one.

    Args:
        x: real numbers.
        return_index: also the first place of each.
        return_inverse: also, for every element of `x`, its place among the results, shaped as `x`.
        return_counts: also how often each is there.
        size: number of results; needed in a trace. Further ones are cut.
        fill_value: what stands in results that are left over; the smallest element by default.

    Returns:
        The elements, or a tuple with what else was asked for, in this order; all int32.

    Raises:
        UnsupportedError: the size is unknown.
    """
    x = as_operand(x)
    shape = aval_of(x).shape
    flat = op.reshape(x, (aval_of(x).size,))
    (count,) = aval_of(flat).shape
    empty = isinstance(count, int) and count == 0
    ordered, order = op.sort((flat, op.iota((count,), 0)), 0)
    starts = _starts(ordered, count)
    if size is None:
        size = count_of_true("unique", starts)
    group = op.sub(op.cumsum(op.convert(starts, dtypes.int32), 0), 1)
    place = op.select(starts, group, -1)
    if fill_value is not None:
        fill: Array = cast(fill_value, aval_of(x).dtype)
    else:
        fill = (
            op.scalar(0, aval_of(x).dtype)
            if empty
            else op.reshape(op.slice_axis(ordered, 0, 1, 0), ())
        )
    results = [scattered(place, ordered, size, fill)]
    if return_index:
        first = 0 if empty else op.reshape(op.slice_axis(order, 0, 1, 0), ())
        results.append(scattered(place, order, size, first))
    if return_inverse:
        inverse = op.scatter(
            op.full((count,), 0, dtypes.int32),
            (order,),
            op.reshape(group, (count, 1)),
            (0,),
            "set",
            unique=True,
        )
        results.append(op.reshape(inverse, shape))
    if return_counts:
        ones = op.full((count,), 1, dtypes.int32)
        results.append(op.scatter_add(op.full((size,), 0, dtypes.int32), group, ones, 0))
    return results[0] if len(results) == 1 else tuple(results)


def _starts(ordered: Array, count: Size) -> Array:
    """Where a new value begins in a sorted array."""
    if isinstance(count, int) and count < 2:
        return op.full((count,), True)
    after, before = op.slice_axis(ordered, 1, count, 0), op.slice_axis(ordered, 0, count - 1, 0)
    differs = op.ne(after, before)
    if dtypes.is_inexact(aval_of(ordered).dtype):
        both = op.bitwise_and(op.ne(after, after), op.ne(before, before))
        differs = op.bitwise_and(differs, op.bitwise_not(both))
    return op.pad(differs, op.scalar(True, dtypes.bool_), (1,), (0,))


def unique_values(x: ArrayLike) -> Array:
    """:func:`unique` without anything else."""
    return unique(x)


def put_along_axis(x: ArrayLike, indices: ArrayLike, values: ArrayLike, axis: int | None) -> Array:
    """A copy of `x` with `values` at the places that `take_along_axis` would read.

    Arrays are immutable, so unlike NumPy's function this one returns its result.
    """
    from trnx.numpy.updates import IndexUpdate, storable

    x, number = _one_axis("put_along_axis", x, axis)
    shape = aval_of(x).shape
    index = as_operand(indices)
    if axis is None:
        index = op.reshape(index, (aval_of(index).size,))
    own = aval_of(index).shape
    if len(own) != len(shape):
        raise ShapeError(
            message(f"put_along_axis of {aval_of(x)} at {aval_of(index)}", None, "Use equal ranks")
        )
    common = broadcast_shape(
        "put_along_axis",
        [(*shape[:number], 1, *shape[number + 1 :]), (*own[:number], 1, *own[number + 1 :])],
        (x, index),
    )
    places = (*common[:number], own[number], *common[number + 1 :])
    grid = [
        spread_to(index, places) if a == number else op.iota(places, a) for a in range(len(shape))
    ]
    filled = spread_to(storable(values, aval_of(x)), places)
    out = IndexUpdate(x)[tuple(grid)].set(filled)
    return op.reshape(out, aval_of(as_operand(x)).shape)
