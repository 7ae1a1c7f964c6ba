"""Reductions that no instruction does: products, and bits combined by and, or and xor.

They are put together from elementwise operations on halves of an axis, so that a sum over n
elements takes log2(n) steps. bf16 and f16 products are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.core import Primitive, dtypes
from trnx.ops import functions as op
from trnx.ops._factories import (
    BOOL,
    INTEGER,
    NO_DERIVATIVE,
    NOT_LINEAR,
    NUMBER,
    DTypes,
    NumpyArray,
    reduce,
)

Array = Any


def _declare(
    name: str,
    doc: str,
    accepts: DTypes,
    identity: Callable[[np.dtype[Any]], Any],
    merge: np.ufunc,
    combine: Callable[[Array, Array], Array],
    **record: Any,
) -> Primitive:
    """Declare a reduction with its array code.

    Args:
        name: primitive name.
        doc: what it computes, one sentence.
        accepts: dtypes it takes.
        identity: the value, for a dtype, that changes no result.
        merge: the NumPy function of two arrays that is reduced with.
        combine: the same as array code.
        record: tolerance and order of derivatives for tests.
    """

    def reference(x: NumpyArray, *, axes: tuple[int, ...]) -> NumpyArray:
        wide = np.dtype(np.float64) if dtypes.is_float(x.dtype) else x.dtype
        with np.errstate(all="ignore"):
            out = merge.reduce(x.astype(wide), axis=axes, initial=wide.type(identity(wide)))
            return np.asarray(out).astype(x.dtype)

    primitive = reduce(name, doc, accepts=accepts, reference=reference, identity=identity, **record)
    primitive.file = "ops/reduce_halves.py"

    @primitive.def_composite
    def _composite(x: Array, *, axes: tuple[int, ...]) -> Array:
        dtype = op.dtype_of(x)
        narrow = dtypes.is_float(dtype) and dtype.itemsize < 4
        value = op.convert(x, dtypes.float32) if narrow else x
        start = op.scalar(identity(dtype), op.dtype_of(value))
        for axis in axes:
            value = _halved(value, axis, combine, start)
        kept = [size for axis, size in enumerate(op.shape_of(x)) if axis not in axes]
        return op.convert(op.reshape(value, kept), dtype)

    return primitive


def _halved(x: Array, axis: int, combine: Callable[[Array, Array], Array], start: Array) -> Array:
    """x with one element along `axis`: halves are combined until one is left."""
    size = op.shape_of(x)[axis]
    if not isinstance(size, int) or size == 0:
        shape = [1 if a == axis else s for a, s in enumerate(op.shape_of(x))]
        assert size == 0, "compilers see static sizes"
        return op.full(shape, start)
    while size > 1:
        half = size // 2
        merged = combine(op.slice_axis(x, 0, half, axis), op.slice_axis(x, half, 2 * half, axis))
        if size % 2:
            rest = op.slice_axis(x, size - 1, size, axis)
            merged = op.concatenate([merged, rest], axis)
        x, size = merged, half + size % 2
    return x


reduce_prod_p = _declare(
    "reduce_prod",
    "Product over axes; bf16 and f16 accumulate in f32.",
    NUMBER,
    lambda dtype: 1,
    np.multiply,
    op.mul,
    tolerance={"f32": 8e-6, "f64": 1e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 8e-6, "c128": 1e-14},
    grad_order=2,
)
reduce_prod_p.not_needed["transpose"] = NOT_LINEAR


@reduce_prod_p.def_jvp
def _prod_jvp(t: Array, x: Array, *, out: Array, axes: tuple[int, ...]) -> Array:
    """The sum of each tangent times the product of all other elements, zeros or not."""
    shape = op.shape_of(x)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    count: Any = 1
    for axis in axes:
        count = count * shape[axis]
    target = (*(shape[axis] for axis in kept), count)
    rows, tangents = (op.reshape(op.transpose(v, (*kept, *axes)), target) for v in (x, t))
    last = len(kept)
    one = op.scalar(1, op.dtype_of(x))
    zeros = [0] * len(target)
    moved = [*zeros[:last], 1]
    before = op.pad(op.cumprod(rows, last), one, moved, zeros)
    after = op.pad(op.cumprod(rows, last, reverse=True), one, zeros, moved)
    others = op.mul(op.slice_axis(before, 0, count, last), op.slice_axis(after, 1, count + 1, last))
    return op.reduce_sum(op.mul(tangents, others), (last,))


def _bits(name: str, doc: str, identity: Any, merge: np.ufunc, combine: Any) -> Primitive:
    primitive = _declare(name, doc, INTEGER + BOOL, identity, merge, combine, grad_order=0)
    primitive.def_jvp(None)
    primitive.not_needed["transpose"] = NO_DERIVATIVE
    return primitive


def _all_ones(dtype: np.dtype[Any]) -> Any:
    if dtype == dtypes.bool_:
        return True
    return -1 if dtypes.is_signed_integer(dtype) else dtypes.integer_range(dtype)[1]


reduce_and_p = _bits(
    "reduce_and", "Bits set in every element over axes.", _all_ones, np.bitwise_and, op.bitwise_and
)
reduce_or_p = _bits(
    "reduce_or",
    "Bits set in any element over axes.",
    lambda dtype: 0,
    np.bitwise_or,
    op.bitwise_or,
)
reduce_xor_p = _bits(
    "reduce_xor",
    "Bits set in an odd number of elements over axes.",
    lambda dtype: 0,
    np.bitwise_xor,
    op.bitwise_xor,
)
