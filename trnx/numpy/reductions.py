"""Reductions: sums, means, extrema and their kin over one, several or all axes.

bf16 and f16 accumulate in f32 and round once. Integer sums narrower than 32 bits, and of bools, are
int32 or uint32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.core import ShapeError, Size, aval_of, dtypes, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_float,
    as_operand,
    cast,
    normal_axes,
    normal_axis,
)
from trnx.numpy.elementwise import as_bool
from trnx.ops import functions as op

Axis = int | Sequence[int] | None


def with_axes(reduced: Array, shape: Sequence[Size], axes: Sequence[int], keep: bool) -> Array:
    """A reduction's result, with axes of size 1 for the ones it lost when `keep`."""
    if not keep:
        return reduced
    return op.reshape(reduced, [1 if axis in axes else size for axis, size in enumerate(shape)])


def _reduce(
    name: str, function: Callable[..., Array], x: Array, axis: Axis, keepdims: bool
) -> Array:
    aval = aval_of(x)
    axes = normal_axes(name, axis, aval)
    return with_axes(function(x, axes), aval.shape, axes, keepdims)


def count_of(x: Array, axes: Sequence[int]) -> Size:
    """Number of elements that a reduction over `axes` combines."""
    total: Size = 1
    for axis in axes:
        total = total * aval_of(x).shape[axis]
    return total


def _accumulated(x: Array) -> Array:
    """x in the dtype that sums are kept in: at least f32, int32 or uint32."""
    dtype = aval_of(x).dtype
    if dtype in (dtypes.bfloat16, dtypes.float16):
        return cast(x, dtypes.float32)
    return cast(x, sum_dtype(dtype))


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of sums: at least 32 bits for integers, int32 for bools."""
    if dtype == dtypes.bool_ or (dtypes.is_signed_integer(dtype) and dtype.itemsize < 4):
        return dtypes.int32
    if dtypes.is_unsigned_integer(dtype) and dtype.itemsize < 4:
        return dtypes.uint32
    return dtype


def sum(x: ArrayLike, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Sum over `axis` (None: all). `dtype` is that of the result and of integer accumulation."""
    x = as_operand(x)
    x = cast(x, sum_dtype(aval_of(x).dtype) if dtype is None else dtypes.as_dtype(dtype))
    return _reduce("sum", op.reduce_sum, x, axis, keepdims)


def mean(x: ArrayLike, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Mean over `axis` (None: all); integers give float32. NaN over no elements."""
    x = as_float("mean", x)
    target = aval_of(x).dtype if dtype is None else dtypes.as_dtype(dtype)
    axes = normal_axes("mean", axis, aval_of(x))
    wide = _accumulated(cast(x, target) if dtype is not None else x)
    total = op.reduce_sum(wide, axes)
    count = op.dim_size(count_of(x, axes), aval_of(wide).dtype)
    return with_axes(cast(op.div(total, count), target), aval_of(x).shape, axes, keepdims)


def var(
    x: ArrayLike, axis: Axis = None, correction: float = 0, keepdims: bool = False, ddof: float = 0
) -> Array:
    """Mean squared deviation from the mean; ``count - correction`` divides (or NumPy's `ddof`)."""
    x = as_float("var", x)
    axes = normal_axes("var", axis, aval_of(x))
    wide = _accumulated(x)
    centred = op.sub(wide, _repeat(mean(wide, axes, keepdims=True), wide))
    total = op.reduce_sum(op.mul(centred, centred), axes)
    count = op.dim_size(count_of(x, axes), aval_of(wide).dtype)
    if correction or ddof:
        count = op.sub(count, float(correction or ddof))
    result = cast(op.div(total, count), aval_of(x).dtype)
    return with_axes(result, aval_of(x).shape, axes, keepdims)


def std(
    x: ArrayLike, axis: Axis = None, correction: float = 0, keepdims: bool = False, ddof: float = 0
) -> Array:
    """Square root of the variance; its gradient where the variance is 0 is 0."""
    return safe_sqrt(var(x, axis, correction, keepdims, ddof))


def safe_sqrt(x: Array) -> Array:
    """sqrt(x) whose derivative at 0 is 0 instead of infinite."""
    zero = op.eq(x, 0.0)
    return op.select(zero, 0.0, op.sqrt(op.select(zero, 1.0, x)))


def _repeat(x: Array, like: Array) -> Array:
    shape = aval_of(like).shape
    return op.broadcast(x, shape, range(len(shape)))


def prod(x: ArrayLike, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Product over `axis` (None: all)."""
    x = as_operand(x)
    x = cast(x, sum_dtype(aval_of(x).dtype) if dtype is None else dtypes.as_dtype(dtype))
    axes = normal_axes("prod", axis, aval_of(x))
    return with_axes(op.reduce_prod(x, axes), aval_of(x).shape, axes, keepdims)


def _not_empty(name: str, x: Array, axes: Sequence[int]) -> None:
    count = count_of(x, axes)
    if isinstance(count, int) and count == 0:
        raise ShapeError(
            message(f"{name} of {aval_of(x)} over no elements", None, "Test the size first")
        )


def max(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Maximum over `axis` (None: all); NaN wins.

    Raises:
        ShapeError: no elements.
    """
    x = as_operand(x)
    _not_empty("max", x, normal_axes("max", axis, aval_of(x)))
    return _reduce("max", op.reduce_max, x, axis, keepdims)


def min(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Minimum over `axis` (None: all); NaN wins.

    Raises:
        ShapeError: no elements.
    """
    x = as_operand(x)
    _not_empty("min", x, normal_axes("min", axis, aval_of(x)))
    return _reduce("min", op.reduce_min, x, axis, keepdims)


amax, amin = max, min


def any(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where any element is nonzero; False over no elements."""
    return _reduce("any", op.reduce_max, as_bool(x), axis, keepdims)


def all(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """True where every element is nonzero; True over no elements."""
    return _reduce("all", op.reduce_min, as_bool(x), axis, keepdims)


def _arg(
    name: str, function: Callable[..., Array], x: ArrayLike, axis: int | None, keepdims: bool
) -> Array:
    x = as_operand(x)
    aval = aval_of(x)
    if axis is None:
        out = function(op.reshape(x, (aval.size,)), 0)
        return op.reshape(out, (1,) * aval.ndim) if keepdims else out
    number = normal_axis(name, axis, aval)
    return with_axes(function(x, number), aval.shape, (number,), keepdims)


def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """int32 index of the first maximum along `axis` (None: of the flattened array); NaN wins."""
    return _arg("argmax", op.argmax, x, axis, keepdims)


def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """int32 index of the first minimum along `axis` (None: of the flattened array); NaN wins."""
    return _arg("argmin", op.argmin, x, axis, keepdims)


def count_nonzero(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """int32 number of nonzero elements."""
    return sum(as_bool(x), axis, dtypes.int32, keepdims)


def ptp(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Maximum minus minimum."""
    return op.sub(max(x, axis, keepdims), min(x, axis, keepdims))


def average(x: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None) -> Array:
    """Mean over `axis`, weighted by `weights` of the same shape when given."""
    if weights is None:
        return mean(x, axis)
    from trnx.numpy.elementwise import divide, multiply

    return divide(sum(multiply(x, weights), axis), sum(_repeat(weights, x), axis))


def logsumexp(x: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) without overflow; -inf when every element is -inf."""
    x = as_float("logsumexp", x)
    aval = aval_of(x)
    axes = normal_axes("logsumexp", axis, aval)
    wide = _accumulated(x)
    top = op.stop_gradient(op.reduce_max(wide, axes))
    # An infinite maximum would make inf - inf; 0 leaves exp(-inf) = 0 and exp(inf) = inf.
    top = op.select(op.lt(op.abs(top), math.inf), top, 0.0)
    kept = [a for a in range(aval.ndim) if a not in axes]
    shifted = op.sub(wide, op.broadcast(top, aval.shape, kept))
    total = op.reduce_sum(op.exp(shifted), axes)
    # Where every element is -inf: the logarithm of a 1 instead of the 0, so that the gradient is 0.
    nothing = op.eq(total, 0.0)
    out = op.select(nothing, -math.inf, op.log(op.select(nothing, 1.0, total)))
    out = op.add(out, top)
    return with_axes(cast(out, aval.dtype), aval.shape, axes, keepdims)
