"""Reductions over static axes.

bf16 and f16 sums accumulate in f32 and round once. NaN wins in max, min, argmax and argmin; among
equal values the first index wins. Over no elements a sum is 0 and a maximum is the smallest value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Linear,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    dtypes,
    message,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    BOOL,
    NO_DERIVATIVE,
    NOT_LINEAR,
    NUMBER,
    REAL,
    NumpyArray,
    check_axis,
    check_dtypes,
    elements,
    nbytes,
    reduce,
    reduced_shape,
)

Array = Any
DType = np.dtype[Any]


def lowest(dtype: DType) -> Any:
    """The identity of max: -inf, the smallest integer or False."""
    if dtypes.is_float(dtype):
        return -math.inf
    return False if dtype == dtypes.bool_ else dtypes.integer_range(dtype)[0]


def highest(dtype: DType) -> Any:
    """The identity of min: inf, the largest integer or True."""
    if dtypes.is_float(dtype):
        return math.inf
    return True if dtype == dtypes.bool_ else dtypes.integer_range(dtype)[1]


def kept_dims(out: Array, x: Array, axes: Sequence[int]) -> Array:
    """The result of a reduction, repeated over the axes that it summed away."""
    shape = op.shape_of(x)
    return op.broadcast(out, shape, [axis for axis in range(len(shape)) if axis not in axes])


# ---------------------------------------------------------------- sum
def _sum_reference(x: NumpyArray, *, axes: tuple[int, ...]) -> NumpyArray:
    # f64 holds the exact sum of the tests' f32 values; integers wrap in their own type.
    wide = np.dtype(np.float64) if dtypes.is_float(x.dtype) else x.dtype
    with np.errstate(all="ignore"):
        return np.asarray(np.sum(x, axis=axes, dtype=wide)).astype(x.dtype)


reduce_sum_p = reduce(
    "reduce_sum",
    "Sum over axes; bf16 and f16 accumulate in f32.",
    accepts=NUMBER,
    reference=_sum_reference,
    identity=lambda dtype: 0,
    tolerance={"f32": 2e-6, "f64": 4e-15, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-6, "c128": 4e-15},
    floor=1.0,
    grad_order=1,
)
reduce_sum_p.def_linear()


@reduce_sum_p.def_transpose
def _sum_transpose(ct: Array, x: Linear, *, axes: tuple[int, ...]) -> tuple[Array]:
    kept = [axis for axis in range(x.aval.ndim) if axis not in axes]
    return (op.broadcast(ct, x.aval.shape, kept),)


# ---------------------------------------------------------------- max, min
def _extremum_reference(
    combine: Any, identity: Callable[[DType], Any]
) -> Callable[..., NumpyArray]:
    def reference(x: NumpyArray, *, axes: tuple[int, ...]) -> NumpyArray:
        start = np.asarray(identity(x.dtype)).astype(x.dtype)
        with np.errstate(all="ignore"):
            return np.asarray(combine.reduce(x, axis=axes, initial=start)).astype(x.dtype)

    return reference


def _extremum_jvp(t: Array, x: Array, *, out: Array, axes: tuple[int, ...]) -> Array:
    """The mean of the tangents where x equals the result: torch and jax split ties alike."""
    hit = op.eq(x, kept_dims(out, x, axes))
    total = op.reduce_sum(op.select(hit, t, 0.0), axes)
    count = op.reduce_sum(op.convert(hit, op.dtype_of(x)), axes)
    return op.div(total, op.max(count, 1.0))


reduce_max_p = reduce(
    "reduce_max",
    "Maximum over axes; NaN wins.",
    accepts=REAL + BOOL,
    reference=_extremum_reference(np.maximum, lowest),
    identity=lowest,
    grad_order=2,
)
reduce_min_p = reduce(
    "reduce_min",
    "Minimum over axes; NaN wins.",
    accepts=REAL + BOOL,
    reference=_extremum_reference(np.minimum, highest),
    identity=highest,
    grad_order=2,
)
for _primitive in (reduce_max_p, reduce_min_p):
    _primitive.def_jvp(_extremum_jvp)
    _primitive.not_needed["transpose"] = NOT_LINEAR


# ---------------------------------------------------------------- argmax, argmin
def _index_reduction(
    name: str, doc: str, choose: Callable[..., Any], identity: Callable[[DType], Any]
) -> Primitive:
    """Declare argmax or argmin along one axis."""

    def abstract(x: Aval, *, axis: int) -> Aval:
        check_dtypes(name, (x,), REAL + BOOL)
        check_axis(name, x, axis)
        if structurally_equal(x.shape[axis], 0):
            raise ShapeError(
                message(
                    f"{name} of {x} along axis {axis}, which is empty",
                    None,
                    "Test the size first: no element has an index",
                )
            )
        return Aval(reduced_shape(x, (axis,)), dtypes.int32)

    def reference(x: NumpyArray, *, axis: int) -> NumpyArray:
        # NumPy's rule for NaN does not cover bfloat16, so compare in f64, which is exact.
        values = x.astype(np.float64) if dtypes.is_float(x.dtype) else x
        return np.asarray(choose(values, axis=axis)).astype(np.int32)

    cases = tuple(
        OpCase((shape,), {"axis": axis})
        for shape, axis in [((7,), 0), ((3, 5), 0), ((3, 5), 1), ((2, 3, 4), 1), ((131, 9), 1),
                            ((9, 300), 1), ((300, 3), 0)]
    )  # fmt: skip
    primitive = Primitive(
        name,
        abstract=abstract,
        doc=doc,
        reference=reference,
        tests=TestRecord(cases, REAL + BOOL),
        not_needed={"transpose": NO_DERIVATIVE},
    )
    primitive.def_jvp(None)

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, axis: int
    ) -> tuple[Array, int]:
        (dim,) = dims
        out = primitive.bind(args[0], axis=axis + (axis >= dim))
        return out, dim - (axis < dim)

    @primitive.def_pad
    def _pad(
        ctx: Any, args: Sequence[Array], true_shapes: Sequence[tuple[Size, ...]], *, axis: int
    ) -> Array:
        (x,) = args
        kept = list(op.shape_of(x))
        kept[axis] = true_shapes[0][axis]
        return primitive.bind(ctx.mask(x, tuple(kept), identity(op.dtype_of(x))), axis=axis)

    @primitive.def_cost
    def _cost(x: Aval, *, axis: int) -> Cost:
        return Cost(2 * elements(x), nbytes(x), nbytes(abstract(x, axis=axis)))

    return primitive


argmax_p = _index_reduction(
    "argmax", "int32 index of the first maximum; the first NaN wins.", np.argmax, lowest
)
argmin_p = _index_reduction(
    "argmin", "int32 index of the first minimum; the first NaN wins.", np.argmin, highest
)
