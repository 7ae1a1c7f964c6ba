"""Places in sorted arrays: `searchsorted` and `interp`."""

from __future__ import annotations

from trnx.core import Dim, ShapeError, aval_of, dtypes, message, same_shape
from trnx.core.dims import bounds
from trnx.numpy._operands import Array, ArrayLike, cast, promote
from trnx.numpy.elementwise import where
from trnx.numpy.indexing import getitem
from trnx.ops import functions as op


def searchsorted(a: ArrayLike, v: ArrayLike, side: str = "left") -> Array:
    """int32 places at which the elements of `v` keep the sorted array `a` sorted.

    Args:
        a: one axis, ascending, NaN last.
        v: values, any shape; a NaN belongs in front of (left) or after (right) those of `a`.
        side: "left": the first such place, ``a[i-1] < v <= a[i]``; "right": the last one.

    A search in halves: log2 of the length of `a` reads per element of `v`.

    Raises:
        ShapeError: `a` has not one axis.
        ValueError: another `side`.
    """
    a, v = promote("searchsorted", a, v)
    if aval_of(a).ndim != 1:
        raise ShapeError(
            message(f"searchsorted in {aval_of(a)}", None, "Search in an array with one axis")
        )
    if side not in ("left", "right"):
        raise ValueError(message(f"side={side!r} is unknown", None, "Use 'left' or 'right'"))
    (size,) = aval_of(a).shape
    shape = aval_of(v).shape
    low = op.full(shape, op.scalar(0, dtypes.int32))
    if isinstance(size, int) and size == 0:
        return low
    high = op.full(shape, op.dim_size(size))

    def halve(low: Array, high: Array) -> tuple[Array, Array]:
        # Half of the difference: the sum of both could pass 2^31.
        middle = op.add(low, op.shift_right_logical(op.sub(high, low), 1))
        there = op.take(a, middle, 0)
        before = _before(there, v) if side == "left" else op.bitwise_not(_before(v, there))
        before = op.bitwise_and(before, op.lt(low, high))
        return op.select(before, op.add(middle, 1), low), op.select(before, high, middle)

    if isinstance(size, Dim):
        from trnx.control import fori_loop

        largest = bounds(size)[1]
        steps = (2**31 - 1 if largest is None else largest).bit_length()
        return fori_loop(0, steps, lambda _, ends: halve(*ends), (low, high))[0]
    for _ in range(size.bit_length()):
        low, high = halve(low, high)
    return low


def _before(x: Array, y: Array) -> Array:
    """x < y in the order of sorted arrays, in which a NaN comes after every number."""
    less = op.lt(x, y)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return less
    return op.bitwise_or(less, op.bitwise_and(op.eq(x, x), op.ne(y, y)))


def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
) -> Array:
    """Values at `x` on the straight lines between the points (xp, fp).

    Args:
        x: places, any shape.
        xp: places of the points, one axis, ascending. Where one repeats, the function steps.
        fp: values of the points.
        left: value in front of the first point; that of the first point unless given.
        right: value after the last point; that of the last point unless given.

    Raises:
        ShapeError: `xp` and `fp` have not one equal axis, or no element.
    """
    x, xp, fp = promote("interp", x, xp, fp, inexact=True)
    places, values = aval_of(xp), aval_of(fp)
    if places.ndim != 1 or not same_shape(places.shape, values.shape) or places.shape == (0,):
        raise ShapeError(
            message(f"interp between xp {places} and fp {values}", None, "Give one value per place")
        )
    (size,) = places.shape
    last = op.max(op.sub(op.dim_size(size), 1), 1) if isinstance(size, Dim) else max(size - 1, 1)
    segment = op.clamp(1, searchsorted(xp, x, "right"), last)
    before = op.sub(segment, 1)
    start, base = op.take(xp, before, 0), op.take(fp, before, 0)
    width = op.sub(op.take(xp, segment, 0), start)
    # Points at one place have no line between them: divide by 1 there, so that no NaN is made.
    step = op.eq(width, 0.0)
    slope = op.div(op.sub(op.take(fp, segment, 0), base), op.select(step, 1.0, width))
    out = op.add(base, op.mul(op.sub(x, start), op.select(step, 0.0, slope)))
    first, final = getitem(xp, 0), getitem(xp, -1)
    out = where(op.ge(x, final), getitem(fp, -1), out)
    if right is not None:
        out = where(op.gt(x, final), cast(right, places.dtype), out)
    in_front = getitem(fp, 0) if left is None else cast(left, places.dtype)
    return where(op.lt(x, first), in_front, out)
