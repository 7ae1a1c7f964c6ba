"""Running sums and products along an axis, and differences, which undo them.

bf16 and f16 accumulate in f32 and round each result once. Integers narrower than 32 bits, and
bools, accumulate and result in int32 or uint32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnx.core import aval_of, dtypes
from trnx.numpy._operands import Array, ArrayLike, as_operand, cast, normal_axis, promote
from trnx.numpy.elementwise import isnan, where
from trnx.numpy.reductions import sum_dtype
from trnx.ops import functions as op


def _accumulate(
    name: str,
    function: Callable[[Array, int], Array],
    x: ArrayLike,
    axis: int | None,
    dtype: Any,
) -> Array:
    x = as_operand(x)
    if axis is None:
        x = op.reshape(x, (aval_of(x).size,))
        axis = 0
    x = cast(x, sum_dtype(aval_of(x).dtype) if dtype is None else dtypes.as_dtype(dtype))
    return function(x, normal_axis(name, axis, aval_of(x)))


def cumsum(x: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """Running sum along `axis` (None: of the flattened array)."""
    return _accumulate("cumsum", op.cumsum, x, axis, dtype)


def cumprod(x: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """Running product along `axis` (None: of the flattened array)."""
    return _accumulate("cumprod", op.cumprod, x, axis, dtype)


def _without_nan(x: ArrayLike, instead: int) -> Array:
    x = as_operand(x)
    return where(isnan(x), instead, x) if dtypes.is_inexact(aval_of(x).dtype) else x


def nancumsum(x: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """:func:`cumsum` with NaN taken as 0."""
    return cumsum(_without_nan(x, 0), axis, dtype)


def nancumprod(x: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """:func:`cumprod` with NaN taken as 1."""
    return cumprod(_without_nan(x, 1), axis, dtype)


def _standard(
    name: str, function: Callable[..., Array], start: int, x: ArrayLike, axis: int | None,
    dtype: Any, include_initial: bool,
) -> Array:  # fmt: skip
    if axis is None and aval_of(as_operand(x)).ndim == 1:
        axis = 0
    out = function(x, axis, dtype)
    if not include_initial:
        return out
    number = normal_axis(name, 0 if axis is None else axis, aval_of(out))
    low = [1 if a == number else 0 for a in range(aval_of(out).ndim)]
    return op.pad(out, op.scalar(start, aval_of(out).dtype), low, [0] * len(low))


def cumulative_sum(
    x: ArrayLike, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running sum; with `include_initial` it begins with a 0."""
    return _standard("cumulative_sum", cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayLike, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    """Running product; with `include_initial` it begins with a 1."""
    return _standard("cumulative_prod", cumprod, 1, x, axis, dtype, include_initial)


def diff(x: ArrayLike, n: int = 1, axis: int = -1) -> Array:
    """Differences of neighbours along `axis`, taken `n` times."""
    (x,) = promote("diff", x)
    number = normal_axis("diff", axis, aval_of(x))
    boolean = dtypes.is_bool(aval_of(x).dtype)
    for _ in range(n):
        size = aval_of(x).shape[number]
        after = op.slice_axis(x, 1, size, number)
        before = op.slice_axis(x, 0, size - 1, number)
        x = op.bitwise_xor(after, before) if boolean else op.sub(after, before)
    return x
