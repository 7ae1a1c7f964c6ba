"""Counting and finding: nonzero places, histograms, bins.

Results whose size the data decide need that size (`size`, `length`) inside a trace; with arrays of
known values it is counted first.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence

import numpy as np

from trnx.core import (
    DTypeError,
    ShapeError,
    Size,
    Tracer,
    UnsupportedError,
    aval_of,
    dtypes,
    message,
)
from trnx.numpy._operands import Array, ArrayLike, as_operand, cast, promote
from trnx.numpy.elementwise import as_bool
from trnx.numpy.searching import searchsorted
from trnx.ops import functions as op


def count_of_true(name: str, flags: Array) -> int:
    """How many flags hold, as a number.

    Raises:
        UnsupportedError: the flags are traced.
    """
    if isinstance(flags, Tracer):
        raise UnsupportedError(
            message(
                f"The size of the result of {name} depends on values that are traced",
                None,
                "Pass size=, the number of results",
            )
        )
    return int(np.asarray(flags).sum())


def scattered(place: Array, values: Array, size: Size, fill: Array) -> Array:
    """An array of `size` elements: `values` at `place`, dropped where that is -1, else `fill`."""
    base = op.full((size,), fill, aval_of(values).dtype)
    rows = op.reshape(values, (aval_of(values).size, 1))
    if isinstance(size, int) and size == 0:
        return base
    return op.scatter(base, (place,), rows, (0,), "set", unique=True)


def flatnonzero(x: ArrayLike, *, size: int | None = None, fill_value: int = 0) -> Array:
    """int32 places of the nonzero elements of the flattened array; see :func:`nonzero`."""
    x = as_operand(x)
    flags = as_bool(op.reshape(x, (aval_of(x).size,)))
    count = count_of_true("nonzero", flags) if size is None else size
    place = op.sub(op.cumsum(op.convert(flags, dtypes.int32), 0), 1)
    place = op.select(flags, place, -1)
    return scattered(place, op.iota(aval_of(flags).shape, 0), count, np.int32(fill_value))


def nonzero(
    x: ArrayLike, *, size: int | None = None, fill_value: int | Sequence[int] = 0
) -> tuple[Array, ...]:
    """int32 places of the nonzero elements in row-major order, one array per axis.

    Args:
        x: any array with axes.
        size: number of places; needed in a trace. Further ones are cut.
        fill_value: what stands in places that are left over, one number or one per axis.

    Raises:
        ShapeError: `x` has no axes.
        UnsupportedError: the size is unknown.
    """
    x = as_operand(x)
    shape = aval_of(x).shape
    if not shape:
        raise ShapeError(message("nonzero of a scalar", None, "Give it axes with atleast_1d"))
    flat = flatnonzero(x, size=size, fill_value=-1)
    fills = [fill_value] * len(shape) if isinstance(fill_value, int) else list(fill_value)
    found: list[Array] = []
    rest = op.max(flat, 0)
    for axis in range(len(shape) - 1, -1, -1):
        length = op.dim_size(shape[axis])
        part = op.remainder(rest, length) if axis else rest
        rest = op.floor_divide(rest, length)
        found.append(op.select(op.lt(flat, 0), int(fills[axis]), part))
    return tuple(reversed(found))


def argwhere(x: ArrayLike, *, size: int | None = None, fill_value: int = 0) -> Array:
    """Places of the nonzero elements as rows, ``[count, axes]``; see :func:`nonzero`."""
    places = nonzero(x, size=size, fill_value=fill_value)
    return op.concatenate([op.expand(place, 1) for place in places], 1)


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Array:
    """How often each nonnegative integer is there, or the sum of its `weights`.

    Args:
        x: integers, one axis. Negative ones count as 0; those past `length` are dropped.
        weights: a number per element.
        minlength: least number of counts.
        length: number of counts; needed in a trace.

    Raises:
        DTypeError: `x` holds no integers.
        ShapeError: `x` has not one axis.
        UnsupportedError: the length is unknown.
    """
    x = as_operand(x)
    aval = aval_of(x)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(message(f"bincount of {aval}", None, "Cast it to an integer dtype"))
    if aval.ndim != 1:
        raise ShapeError(message(f"bincount of {aval}", None, "Give one axis"))
    if length is None:
        if isinstance(x, Tracer):
            raise UnsupportedError(
                message("The length of bincount depends on traced values", None, "Pass length=")
            )
        values = np.asarray(x)
        length = max(minlength, int(values.max()) + 1 if values.size else 0)
    index = op.max(op.convert(x, dtypes.int32), 0)
    if weights is None:
        units: Array = op.full(aval.shape, 1, dtypes.int32)
    else:
        units = as_operand(weights)
    zeros = op.full((length,), 0, aval_of(units).dtype)
    if length == 0:
        return zeros
    return op.scatter_add(zeros, index, units, 0)


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Array:
    """int32 number of the bin that each element of `x` falls into.

    Bin i is ``bins[i-1] <= x < bins[i]``, with `right` ``bins[i-1] < x <= bins[i]``; ends are open.
    `bins` may ascend or descend.
    """
    x, bins = promote("digitize", x, bins)
    (size,) = aval_of(bins).shape
    up = searchsorted(bins, x, "left" if right else "right")
    if isinstance(size, int) and size < 2:
        return up
    first = op.reshape(op.slice_axis(bins, 0, 1, 0), ())
    final = op.reshape(op.slice_axis(bins, size - 1, size, 0), ())
    turned = searchsorted(op.reverse(bins, (0,)), x, "left" if right else "right")
    down = op.sub(op.dim_size(size), turned)
    return op.select(op.ge(final, first), up, down)


def histogram_bin_edges(
    x: ArrayLike, bins: ArrayLike = 10, range: Sequence[ArrayLike] | None = None
) -> Array:
    """Edges of `bins` bins of equal width over `range` (the values' own by default), or `bins`."""
    x = as_operand(x)
    if not isinstance(bins, int):
        return promote("histogram", bins, inexact=True)[0]
    (x,) = promote("histogram", x, inexact=True)
    dtype = aval_of(x).dtype
    if range is not None:
        low, high = (cast(end, dtype) for end in range)
    elif aval_of(x).size == 0:
        low, high = op.scalar(0, dtype), op.scalar(1, dtype)
    else:
        axes = tuple(builtins.range(aval_of(x).ndim))
        low, high = op.reduce_min(x, axes), op.reduce_max(x, axes)
    flat = op.eq(low, high)  # a single value: half to the left, half to the right
    low, high = (
        op.select(flat, op.sub(low, 0.5), low),
        op.select(flat, op.add(high, 0.5), high),
    )
    step = op.div(op.sub(high, low), float(bins))
    edges = op.add(op.mul(op.iota((bins + 1,), 0, dtype), step), low)
    # The last edge as it was given, whatever rounding made of the steps.
    return op.select(op.eq(op.iota((bins + 1,), 0), bins), high, edges)


def histogram(
    x: ArrayLike,
    bins: ArrayLike = 10,
    range: Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """How many elements fall into each bin, and the edges of the bins.

    Args:
        x: real numbers, any shape.
        bins: number of bins of equal width, or ascending edges.
        range: lowest and highest edge when `bins` is a number.
        weights: a number per element, summed instead of counted.
        density: divide by the total and by the width of the bins.

    Returns:
        int32 counts (sums of weights, or a density, in their float dtype) and edges. The last bin
        contains its upper edge; elements outside are not counted.
    """
    (x,) = promote("histogram", x, inexact=True)
    edges = histogram_bin_edges(x, bins, range)
    x, edges = promote("histogram", x, edges)
    flat = op.reshape(x, (aval_of(x).size,))
    (count,) = aval_of(edges).shape
    place = op.sub(searchsorted(edges, flat, "right"), 1)
    final = op.reshape(op.slice_axis(edges, count - 1, count, 0), ())
    place = op.select(op.eq(flat, final), op.sub(op.dim_size(count), 2), place)
    place = op.select(op.eq(flat, flat), place, -1)
    place = op.select(op.gt(flat, final), -1, place)
    if weights is None:
        units: Array = op.full(aval_of(flat).shape, 1, dtypes.int32)
    else:
        units = op.reshape(as_operand(weights), aval_of(flat).shape)
    zeros = op.full((count - 1,), 0, aval_of(units).dtype)
    counts = op.scatter_add(zeros, place, units, 0)
    if not density:
        return counts, edges
    (total,) = promote("histogram", op.reduce_sum(counts, (0,)), inexact=True)
    widths = op.sub(op.slice_axis(edges, 1, count, 0), op.slice_axis(edges, 0, count - 1, 0))
    share = op.div(cast(counts, aval_of(total).dtype), total)
    return op.div(share, cast(widths, aval_of(total).dtype)), edges
