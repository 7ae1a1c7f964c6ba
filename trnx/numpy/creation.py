"""Arrays from values, sizes and rules. Defaults are 32-bit; any dtype can be asked for."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from trnx.core import Dim, DTypeError, Size, Tracer, aval_of, dtypes, is_array_like, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    broadcast_shape,
    cast,
    common_type,
    normal_shape,
    spread_to,
    type_of,
)
from trnx.ops import functions as op
from trnx.runtime.array import Array as RuntimeArray
from trnx.runtime.convert import from_host


def asarray(x: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array of `x`.

    Args:
        x: array, traced value, NumPy array, DLPack producer, number, or nested list of these.
        dtype: element type; None keeps that of arrays (64-bit ones too) and takes int32, float32,
            bool or complex64 for Python numbers.
        device: device of the result; None keeps or takes the default.
        copy: True always copies; False never, and raises when that is impossible.

    Raises:
        DTypeError: unknown dtype.
        ShapeError: ragged list.
    """
    if isinstance(x, Dim):
        return op.dim_size(x, dtypes.int32 if dtype is None else dtype)
    if isinstance(x, Tracer):
        return x if dtype is None else astype(x, dtype)
    if isinstance(x, list | tuple) and _holds_arrays(x):
        return _stacked(x, dtype)
    if isinstance(x, RuntimeArray):
        placed = from_host(x, None, device, copy)
        return placed if dtype is None else astype(placed, dtype)
    return from_host(x, dtype, device, copy)


def array(x: Any, dtype: Any = None, *, device: Any = None, copy: bool | None = None) -> Array:
    """The same as :func:`asarray`: arrays are immutable, so a copy is seldom of use."""
    return asarray(x, dtype, device=device, copy=copy)


def _holds_arrays(x: Any) -> bool:
    if isinstance(x, list | tuple):
        return any(map(_holds_arrays, x))
    return isinstance(x, Tracer | RuntimeArray | Dim)


def _stacked(x: Any, dtype: Any) -> Array:
    """Nested lists with arrays inside, joined by equations."""
    parts = [_stacked(p, dtype) if isinstance(p, list | tuple) else p for p in x]
    target = dtypes.as_dtype(dtype) if dtype is not None else common_type("asarray", parts)[0]
    parts = [cast(p, target) for p in parts]
    shape = broadcast_shape("asarray", [type_of(p).shape for p in parts], parts)
    return op.concatenate([op.expand(spread_to(p, shape), 0) for p in parts], 0)


def astype(x: ArrayLike, dtype: Any, *, copy: bool = True) -> Array:
    """`x` in another dtype.

    Float to integer truncates, saturates and takes NaN to 0; to bool asks for nonzero; integers
    wrap into narrower ones. `copy` is there for the Array API and has no effect.

    Raises:
        DTypeError: complex to real.
    """
    return op.convert(x, dtypes.as_dtype(dtype))


def _filled(shape: Any, value: Any, dtype: np.dtype[Any], name: str) -> Array:
    return op.full(normal_shape(name, shape), value, dtype)


def zeros(shape: Any, dtype: Any = None) -> Array:
    """Zeros; `shape` is a size or a sequence of sizes, `dtype` float32 unless given."""
    return _filled(shape, 0, dtypes.float32 if dtype is None else dtypes.as_dtype(dtype), "zeros")


def ones(shape: Any, dtype: Any = None) -> Array:
    """Ones; `shape` is a size or a sequence of sizes, `dtype` float32 unless given."""
    return _filled(shape, 1, dtypes.float32 if dtype is None else dtypes.as_dtype(dtype), "ones")


def empty(shape: Any, dtype: Any = None) -> Array:
    """Zeros: no array of trnx has undefined contents."""
    return zeros(shape, dtype)


def full(shape: Any, fill_value: ArrayLike, dtype: Any = None) -> Array:
    """`fill_value` (a number, or an array that broadcasts) repeated over `shape`."""
    target = dtypes.as_dtype(dtype) if dtype is not None else common_type("full", [fill_value])[0]
    sizes = normal_shape("full", shape)
    value = cast(fill_value, target)
    broadcast_shape("full", [type_of(value).shape, sizes], [fill_value])
    return spread_to(value, sizes) if type_of(value).shape else op.full(sizes, value)


def zeros_like(x: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """Zeros of the shape and dtype of `x` where none is given."""
    return full_like(x, 0, dtype, shape)


def ones_like(x: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """Ones of the shape and dtype of `x` where none is given."""
    return full_like(x, 1, dtype, shape)


def empty_like(x: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """Zeros of the shape and dtype of `x` where none is given."""
    return full_like(x, 0, dtype, shape)


def full_like(x: ArrayLike, fill_value: ArrayLike, dtype: Any = None, shape: Any = None) -> Array:
    """`fill_value` repeated over the shape and in the dtype of `x` where none is given."""
    aval = aval_of(x)
    return full(aval.shape if shape is None else shape, fill_value, dtype or aval.dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """``start, start + step, …`` up to but without `stop`; one argument is `stop`.

    Args:
        start: first value, a Python number; the only argument is `stop` instead.
        stop: end; may be a symbolic size when start is 0 and step 1.
        step: distance between values.
        dtype: int32 for ints and float32 for floats unless given.

    Raises:
        DTypeError: an argument is an array, so the length is unknown.
        ValueError: step is 0.
    """
    if stop is None:
        start, stop = 0, start
    if isinstance(stop, Dim) and _is_int(start) and _is_int(step) and (start, step) == (0, 1):
        return op.iota((stop,), 0, dtypes.int32 if dtype is None else dtype)
    values = []
    for value in (start, stop, step):
        if is_array_like(value) and not isinstance(value, int | float | np.generic):
            raise DTypeError(
                message(
                    f"arange got {type_of(value)}, so its length is not known while tracing",
                    None,
                    "Use Python numbers",
                )
            )
        values.append(value.item() if isinstance(value, np.generic) else value)
    start, stop, step = values
    if step == 0:
        raise ValueError(message("arange got the step 0", None, "Use another step"))
    count = max(0, math.ceil((stop - start) / step))
    if dtype is None:
        dtype = common_type("arange", values)[0]
    dtype = dtypes.as_dtype(dtype)
    if dtypes.is_integer(dtype):
        for value in (start, start + (count - 1) * step) if count else ():
            dtypes.check_python_int(int(value), dtype)
    line = op.iota((count,), 0, dtype)
    if step != 1:
        line = op.mul(line, cast(step, dtype))
    return op.add(line, cast(start, dtype)) if start != 0 else line


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def linspace(
    start: ArrayLike, stop: ArrayLike, num: int = 50, endpoint: bool = True, dtype: Any = None
) -> Array:
    """`num` evenly spaced values from `start` to `stop`, both met exactly when `endpoint`."""
    count = operator.index(num)
    target = dtypes.float32
    if dtype is not None and dtypes.is_inexact(dtypes.as_dtype(dtype)):
        target = dtypes.as_dtype(dtype)
    low, high = cast(start, target), cast(stop, target)
    steps = count - 1 if endpoint else count
    place = op.iota((count,), 0, target)
    part = op.mul(place, 1.0 / steps if steps else 0.0)
    # A weighted mean of both ends: the first and the last value are exact.
    values = op.add(op.mul(op.sub(1.0, part), low), op.mul(part, high))
    if endpoint and count > 1:
        values = op.select(op.eq(place, float(count - 1)), high, values)
    return values if dtype is None else astype(values, dtype)


def eye(n: Size, m: Size | None = None, k: int = 0, dtype: Any = None) -> Array:
    """`n` x `m` (default `n`) zeros with ones on diagonal `k` (positive: above the main one)."""
    shape = normal_shape("eye", (n, n if m is None else m))
    row, column = op.iota(shape, 0), op.iota(shape, 1)
    hit = op.eq(op.add(row, k) if k else row, column)
    return op.convert(hit, dtypes.float32 if dtype is None else dtype)


def identity(n: Size, dtype: Any = None) -> Array:
    """The `n` x `n` unit matrix."""
    return eye(n, dtype=dtype)


def tri(n: Size, m: Size | None = None, k: int = 0, dtype: Any = None) -> Array:
    """`n` x `m` ones at and below diagonal `k`, zeros above."""
    shape = normal_shape("tri", (n, n if m is None else m))
    row, column = op.iota(shape, 0), op.iota(shape, 1)
    hit = op.ge(op.add(row, k) if k else row, column)
    return op.convert(hit, dtypes.float32 if dtype is None else dtype)


def tril(x: ArrayLike, k: int = 0) -> Array:
    """The lower triangle of the last two axes; what is above diagonal `k` becomes 0."""
    return _triangle(x, k, lower=True)


def triu(x: ArrayLike, k: int = 0) -> Array:
    """The upper triangle of the last two axes; what is below diagonal `k` becomes 0."""
    return _triangle(x, k, lower=False)


def _triangle(x: ArrayLike, k: int, lower: bool) -> Array:
    shape = aval_of(x).shape
    rank = len(shape)
    row, column = op.iota(shape, rank - 2), op.iota(shape, rank - 1)
    row = op.add(row, k) if k else row
    keep = op.ge(row, column) if lower else op.le(row, column)
    return op.select(keep, x, op.scalar(0, aval_of(x).dtype))
