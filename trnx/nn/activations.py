"""Activations and softmax. bf16 and f16 are computed in f32 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trnx.core import aval_of, dtypes
from trnx.numpy._operands import Array, ArrayLike, as_float, broadcast, normal_axes
from trnx.numpy.elementwise import as_bool
from trnx.ops import functions as op


def in_f32(function: Callable[[Array], Array], x: Array) -> Array:
    """`function` of x, computed in f32 when x is bf16 or f16, in the dtype of x."""
    dtype = aval_of(x).dtype
    if dtype in (dtypes.bfloat16, dtypes.float16):
        return op.convert(function(op.convert(x, dtypes.float32)), dtype)
    return function(x)


def relu(x: ArrayLike) -> Array:
    """max(x, 0), with gradient 0 at 0; NaN stays NaN."""
    zero = op.scalar(0, aval_of(x).dtype)
    return op.select(op.le(x, zero), zero, x)


def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Array:
    """x above 0, ``negative_slope * x`` below."""
    x = as_float("leaky_relu", x)
    return op.select(op.gt(x, 0.0), x, op.mul(x, float(negative_slope)))


def sigmoid(x: ArrayLike) -> Array:
    """1 / (1 + exp(-x))."""
    return op.logistic(as_float("sigmoid", x))


def tanh(x: ArrayLike) -> Array:
    """Hyperbolic tangent."""
    return op.tanh(as_float("tanh", x))


def silu(x: ArrayLike) -> Array:
    """x * sigmoid(x)."""
    return in_f32(lambda v: op.mul(v, op.logistic(v)), as_float("silu", x))


def softplus(x: ArrayLike) -> Array:
    """log(1 + exp(x)) without overflow."""
    return in_f32(
        lambda v: op.add(op.max(v, 0.0), op.log1p(op.exp(op.neg(op.abs(v))))),
        as_float("softplus", x),
    )


def gelu(x: ArrayLike, approximate: bool = False) -> Array:
    """x times the normal distribution function of x; `approximate` uses the tanh formula."""

    def exact(v: Array) -> Array:
        return op.mul(op.mul(v, 0.5), op.add(op.erf(op.mul(v, 1 / math.sqrt(2))), 1.0))

    def by_tanh(v: Array) -> Array:
        cubic = op.add(v, op.mul(op.mul(op.mul(v, v), v), 0.044715))
        return op.mul(op.mul(v, 0.5), op.add(op.tanh(op.mul(cubic, math.sqrt(2 / math.pi))), 1.0))

    return in_f32(by_tanh if approximate else exact, as_float("gelu", x))


def _shifted(x: Array, axes: tuple[int, ...]) -> tuple[Array, Callable[[Array], Array]]:
    """x minus its maximum over `axes`, and how a reduction over them is repeated again."""
    shape = aval_of(x).shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]

    def repeat(reduced: Array) -> Array:
        return op.broadcast(reduced, shape, kept)

    return op.sub(x, repeat(op.stop_gradient(op.reduce_max(x, axes)))), repeat


def softmax(x: ArrayLike, axis: int | Sequence[int] = -1, where: ArrayLike | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, without overflow; elements of -inf give 0.

    Args:
        x: array; integers are computed in float32.
        axis: one axis or several.
        where: bools that broadcast to `x`: the elements that count. Others give 0, and where none
            counts all are 0, with gradient 0.
    """
    x = as_float("softmax", x)
    axes = normal_axes("softmax", axis, aval_of(x))
    if where is not None:
        return _masked_softmax(x, axes, where)

    def compute(v: Array) -> Array:
        shifted, repeat = _shifted(v, axes)
        e = op.exp(shifted)
        return op.div(e, repeat(op.reduce_sum(e, axes)))

    return in_f32(compute, x)


def _masked_softmax(x: Array, axes: tuple[int, ...], where: ArrayLike) -> Array:
    mask, x = broadcast("softmax", as_bool(where), x)
    shape = aval_of(x).shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]

    def compute(v: Array) -> Array:
        counted = op.select(mask, v, -math.inf)
        top = op.stop_gradient(op.reduce_max(counted, axes))
        # Without an element the maximum is -inf and the sum 0: neither may meet the elements.
        top = op.select(op.eq(top, -math.inf), 0.0, top)
        e = op.exp(op.sub(counted, op.broadcast(top, shape, kept)))
        total = op.reduce_sum(e, axes)
        total = op.select(op.eq(total, 0.0), 1.0, total)
        return op.div(e, op.broadcast(total, shape, kept))

    return in_f32(compute, x)


def log_softmax(x: ArrayLike, axis: int | Sequence[int] = -1) -> Array:
    """log(softmax(x)) over `axis`, without overflow."""
    x = as_float("log_softmax", x)
    axes = normal_axes("log_softmax", axis, aval_of(x))

    def compute(v: Array) -> Array:
        shifted, repeat = _shifted(v, axes)
        return op.sub(shifted, repeat(op.log(op.reduce_sum(op.exp(shifted), axes))))

    return in_f32(compute, x)
