"""Running sums, products, maxima, minima and logs of sums along one axis.

Element i combines elements 0 to i; with ``reverse`` elements i to the end. bf16 and f16 keep the
running value in f32 and round each result once; integers wrap. NaN wins in cummax and cummin.

All derivatives go through one more primitive, ``linear_recurrence``: r[i] = a[i]·r[i-1] + b[i].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    same_shape,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    BOOL,
    COMPLEX,
    FLOAT,
    NOT_LINEAR,
    NUMBER,
    REAL,
    DTypes,
    NumpyArray,
    check_axis,
    check_dtypes,
    elements,
    file_of,
    nbytes,
)
from trnx.ops.reduce import highest, lowest

Array = Any
Shape = tuple[Size, ...]

_SUM_TOLERANCE = {
    "f32": 2e-6,
    "f64": 4e-15,
    "bf16": 1.6e-2,
    "f16": 2e-3,
    "c64": 2e-6,
    "c128": 4e-15,
}
# A product of n rounded factors is off by n roundings.
_PRODUCT_TOLERANCE = {"f32": 2e-5, "f64": 4e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-5,
                      "c128": 4e-14}  # fmt: skip
_SHAPES: tuple[tuple[tuple[int, ...], int, bool], ...] = (
    ((7,), 0, False),
    ((7,), 0, True),
    ((3, 5), 0, False),
    ((3, 5), 1, True),
    ((2, 3, 4), 1, False),
    ((131, 9), 1, False),
    ((9, 131), 0, True),
    ((3, 300), 0, True),
    ((0, 4), 0, False),
    ((0, 4), 1, False),
    ((4, 1), 1, False),
)


def previous(x: Array, axis: int, reverse: bool, first: Any) -> Array:
    """The element before each along an axis (after it with `reverse`); `first` at the end."""
    shape = op.shape_of(x)
    low, high = [0] * len(shape), [0] * len(shape)
    (high if reverse else low)[axis] = 1
    longer = op.pad(x, op.scalar(first, op.dtype_of(x)), low, high)
    start = 1 if reverse else 0
    return op.slice_axis(longer, start, shape[axis] + start, axis)


def _walked(function: Callable[..., NumpyArray]) -> Callable[..., NumpyArray]:
    """A reference that runs forward, as one that also runs backward."""

    def reference(*arrays: NumpyArray, axis: int, reverse: bool) -> NumpyArray:
        turned = [np.flip(x, axis) if reverse else x for x in arrays]
        with np.errstate(all="ignore"):
            out = np.asarray(function(*turned, axis=axis))
        return (np.flip(out, axis) if reverse else out).astype(arrays[0].dtype)

    return reference


def _widened(x: NumpyArray) -> NumpyArray:
    return x.astype(np.float64) if dtypes.is_float(x.dtype) else x


def _cumulative(
    name: str,
    doc: str,
    *,
    accepts: DTypes,
    reference: Callable[..., NumpyArray],
    identity: Callable[[np.dtype[Any]], Any],
    tolerance: Mapping[str, float],
    grad_order: int,
    limits: tuple[float, float] | None = None,
    floor: float = 1.0,
    transcendental: bool = False,
) -> Primitive:
    """Declare a running reduction of one operand.

    Args:
        name: primitive name.
        doc: what it computes, one sentence.
        accepts: dtypes it takes.
        reference: ``reference(x, axis=axis)`` in NumPy, forward.
        identity: the value, for a dtype, that changes no result; padding is filled with it.
        tolerance: see `TestRecord`.
        grad_order: derivatives that tests check.
        limits: value range in tests.
        floor: see `TestRecord`.
        transcendental: every element takes an exp and a log.
    """

    def abstract(x: Aval, *, axis: int, reverse: bool) -> Aval:
        check_dtypes(name, (x,), accepts)
        check_axis(name, x, axis)
        return x

    ranges = None if limits is None else (limits,)
    cases = tuple(
        OpCase((shape,), {"axis": axis, "reverse": reverse}, ranges)
        for shape, axis, reverse in _SHAPES
    )
    primitive = Primitive(
        name,
        abstract=abstract,
        doc=doc,
        reference=_walked(reference),
        tests=TestRecord(cases, accepts, tolerance, grad_order, floor=floor),
    )
    primitive.file = file_of(1)

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, axis: int,
        reverse: bool,
    ) -> tuple[Array, int]:  # fmt: skip
        (dim,) = dims
        return primitive.bind(args[0], axis=axis + (axis >= dim), reverse=reverse), dim

    @primitive.def_pad
    def _pad(
        ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int, reverse: bool
    ) -> Array:
        # Forward, padding comes last and reaches nothing; backward, it comes first.
        (x,) = args
        if reverse:
            kept = list(op.shape_of(x))
            kept[axis] = true_shapes[0][axis]
            x = ctx.mask(x, kept, identity(op.dtype_of(x)))
        return primitive.bind(x, axis=axis, reverse=reverse)

    @primitive.def_cost
    def _cost(x: Aval, *, axis: int, reverse: bool) -> Cost:
        count = elements(x)
        return Cost(count, nbytes(x), nbytes(x), 2 * count if transcendental else 0)

    return primitive


# ---------------------------------------------------------------- linear recurrence
def _recurrence_abstract(a: Aval, b: Aval, *, axis: int, reverse: bool) -> Aval:
    check_dtypes("linear_recurrence", (a, b), FLOAT + COMPLEX)
    check_axis("linear_recurrence", b, axis)
    if not same_shape(a.shape, b.shape):
        raise ShapeError(
            message(
                f"linear_recurrence needs operands of one shape but got {a} and {b}",
                None,
                "Broadcast them first",
            )
        )
    return Aval(b.shape, b.dtype, a.weak and b.weak)


def _recurrence_forward(a: NumpyArray, b: NumpyArray, *, axis: int) -> NumpyArray:
    factors, terms = (np.moveaxis(_widened(x), axis, 0) for x in (a, b))
    out = np.empty(terms.shape, terms.dtype)
    state = np.zeros(terms.shape[1:], terms.dtype)
    for i, (factor, term) in enumerate(zip(factors, terms, strict=True)):
        state = out[i] = factor * state + term
    return np.moveaxis(out, 0, axis)


linear_recurrence_p = Primitive(
    "linear_recurrence",
    abstract=_recurrence_abstract,
    doc="r[i] = a[i]·r[i-1] + b[i] along an axis, from r[-1] = 0.",
    reference=_walked(_recurrence_forward),
    tests=TestRecord(
        tuple(
            OpCase((shape, shape), {"axis": axis, "reverse": reverse}, ((-1.1, 1.1), None))
            for shape, axis, reverse in _SHAPES
        ),
        FLOAT + COMPLEX,
        {"f32": 1e-5, "f64": 2e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 1e-5, "c128": 2e-14},
        grad_order=2,
        floor=1.0,
    ),
)
linear_recurrence_p.def_jvp(
    lambda t, a, b, *, out, axis, reverse: op.linear_recurrence(
        a, op.mul(t, previous(out, axis, reverse, 0)), axis, reverse
    ),
    lambda t, a, b, *, out, axis, reverse: op.linear_recurrence(a, t, axis, reverse),
)


@linear_recurrence_p.def_transpose
def _recurrence_transpose(
    ct: Array, a: Array, b: Linear, *, axis: int, reverse: bool
) -> tuple[None, Array]:
    following = previous(a, axis, not reverse, 0)
    return None, op.linear_recurrence(following, ct, axis, not reverse)


@linear_recurrence_p.def_vmap
def _recurrence_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    axis: int,
    reverse: bool,
) -> tuple[Array, int]:
    a, b = (ctx.to_front(x, dim, size) for x, dim in zip(args, dims, strict=True))
    return op.linear_recurrence(a, b, axis + 1, reverse), 0


@linear_recurrence_p.def_pad
def _recurrence_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int, reverse: bool
) -> Array:
    a, b = args
    if reverse:
        kept = list(op.shape_of(b))
        kept[axis] = true_shapes[1][axis]
        a, b = ctx.mask(a, kept, 0), ctx.mask(b, kept, 0)
    return op.linear_recurrence(a, b, axis, reverse)


@linear_recurrence_p.def_cost
def _recurrence_cost(a: Aval, b: Aval, *, axis: int, reverse: bool) -> Cost:
    return Cost(2 * elements(b), nbytes(a, b), nbytes(b))


# ---------------------------------------------------------------- sum, product
cumsum_p = _cumulative(
    "cumsum",
    "Running sum along an axis.",
    accepts=NUMBER,
    reference=lambda x, *, axis: np.cumsum(_widened(x), axis, _widened(x).dtype),
    identity=lambda dtype: 0,
    tolerance=_SUM_TOLERANCE,
    grad_order=1,
)
cumsum_p.def_linear()
cumsum_p.def_transpose(lambda ct, x, *, axis, reverse: (op.cumsum(ct, axis, not reverse),))

cumprod_p = _cumulative(
    "cumprod",
    "Running product along an axis.",
    accepts=NUMBER,
    reference=lambda x, *, axis: np.cumprod(_widened(x), axis, _widened(x).dtype),
    identity=lambda dtype: 1,
    tolerance=_PRODUCT_TOLERANCE,
    grad_order=2,
    limits=(-1.4, 1.4),
)
cumprod_p.not_needed["transpose"] = NOT_LINEAR


def _cumprod_jvp(t: Array, x: Array, *, out: Array, axis: int, reverse: bool) -> Array:
    """The product rule as a recurrence; no division, so zeros do no harm."""
    return op.linear_recurrence(x, op.mul(previous(out, axis, reverse, 1), t), axis, reverse)


cumprod_p.def_jvp(_cumprod_jvp)

# ---------------------------------------------------------------- max, min
cummax_p = _cumulative(
    "cummax",
    "Running maximum along an axis; NaN wins.",
    accepts=REAL + BOOL,
    reference=lambda x, *, axis: np.maximum.accumulate(_widened(x), axis),
    identity=lowest,
    tolerance={},
    grad_order=2,
)
cummin_p = _cumulative(
    "cummin",
    "Running minimum along an axis; NaN wins.",
    accepts=REAL + BOOL,
    reference=lambda x, *, axis: np.minimum.accumulate(_widened(x), axis),
    identity=highest,
    tolerance={},
    grad_order=2,
)


def _extremum_jvp(t: Array, x: Array, *, out: Array, axis: int, reverse: bool) -> Array:
    """The tangent of the element that holds the extremum; of equal ones the last that came."""
    shape = op.shape_of(x)
    if structurally_equal(shape[axis], 0):
        return t
    place = op.iota(shape, axis)
    if reverse:
        last = op.sub(op.dim_size(shape[axis]), 1)
        held = op.select(op.eq(x, out), place, last)
        holder = op.cummin(held, axis, True)
    else:
        holder = op.cummax(op.select(op.eq(x, out), place, 0), axis, False)
    return op.take_along(t, holder, axis)


for _primitive in (cummax_p, cummin_p):
    _primitive.def_jvp(_extremum_jvp)
    _primitive.not_needed["transpose"] = NOT_LINEAR

# ---------------------------------------------------------------- log of a sum of exponentials
cumlogsumexp_p = _cumulative(
    "cumlogsumexp",
    "Running log(sum(exp(x))) along an axis, without overflow.",
    accepts=FLOAT,
    reference=lambda x, *, axis: np.logaddexp.accumulate(_widened(x), axis),
    identity=lowest,
    tolerance={"f32": 4e-6, "f64": 1e-14, "bf16": 1.6e-2, "f16": 2e-3},
    grad_order=2,
    transcendental=True,
)
cumlogsumexp_p.not_needed["transpose"] = NOT_LINEAR


def _finite(x: Array) -> Array:
    """x, with 0 for infinities and NaN: what may be subtracted without making NaN."""
    return op.select(op.lt(op.abs(x), np.inf), x, 0)


def _cumlogsumexp_jvp(t: Array, x: Array, *, out: Array, axis: int, reverse: bool) -> Array:
    """T[i] = e^(out[i-1] - out[i])·T[i-1] + e^(x[i] - out[i])·t[i]."""
    base = _finite(out)
    kept = op.exp(op.sub(previous(out, axis, reverse, -np.inf), base))
    return op.linear_recurrence(kept, op.mul(op.exp(op.sub(x, base)), t), axis, reverse)


cumlogsumexp_p.def_jvp(_cumlogsumexp_jvp)


@cumlogsumexp_p.def_composite
def _cumlogsumexp_composite(x: Array, *, axis: int, reverse: bool) -> Array:
    """The sum relative to the running maximum, which shrinks whenever the maximum grows."""
    dtype = op.dtype_of(x)
    if dtype.itemsize < 4:
        x = op.convert(x, dtypes.float32)
    largest = op.cummax(x, axis, reverse)
    base = _finite(largest)
    shrink = op.exp(op.sub(previous(largest, axis, reverse, -np.inf), base))
    total = op.linear_recurrence(shrink, op.exp(op.sub(x, base)), axis, reverse)
    return op.convert(op.add(base, op.log(total)), dtype)
