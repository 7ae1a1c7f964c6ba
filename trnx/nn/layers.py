"""Layers as functions: linear, normalisation, embedding, one-hot, dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import DTypeError, ShapeError, Size, aval_of, dtypes, message, structurally_equal
from trnx.nn.activations import in_f32
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_float,
    normal_axes,
    normal_axis,
    promote,
    spread_to,
    type_of,
)
from trnx.numpy.elementwise import add
from trnx.numpy.indexing import take
from trnx.numpy.reductions import count_of
from trnx.ops import functions as op


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Array:
    """``x @ weight.T + bias``.

    Args:
        x: ``[..., in]``.
        weight: ``[out, in]``, the layout of `torch.nn.Linear`.
        bias: ``[out]`` or None.

    Raises:
        ShapeError: `in` differs.
    """
    x, weight = promote("linear", x, weight)
    left, right = aval_of(x), aval_of(weight)
    fits = left.ndim and right.ndim == 2 and structurally_equal(left.shape[-1], right.shape[1])
    if not fits:
        raise ShapeError(
            message(
                f"linear of x {left} with weight {right}",
                None,
                "Give x [..., in] and weight [out, in] with equal in",
            )
        )
    out = op.dot_general(x, weight, ((left.ndim - 1,), (1,)))
    return out if bias is None else add(out, bias)


def _normalised(
    name: str,
    x: ArrayLike,
    axis: int | Sequence[int],
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    scale: Callable[[Array, Callable[[Array], Array]], Array],
) -> Array:
    x = as_float(name, x)
    shape = aval_of(x).shape
    axes = normal_axes(name, axis, aval_of(x))
    kept = [a for a in range(len(shape)) if a not in axes]
    count = count_of(x, axes)

    def compute(v: Array) -> Array:
        def mean(values: Array) -> Array:
            total = op.reduce_sum(values, axes)
            average = op.div(total, op.dim_size(count, aval_of(v).dtype))
            return op.broadcast(average, shape, kept)

        return scale(v, mean)

    out = in_f32(compute, x)
    for parameter, combine in ((weight, op.mul), (bias, op.add)):
        if parameter is not None:
            own = type_of(parameter)
            sizes: list[Size] = [shape[a] for a in axes]
            if own.ndim != len(sizes) or not all(map(structurally_equal, own.shape, sizes)):
                raise ShapeError(
                    message(
                        f"{name} of {aval_of(x)} over axes {axes} got a parameter {own}",
                        None,
                        f"Give it the shape ({','.join(map(str, sizes))})",
                    )
                )
            out, parameter = promote(name, out, parameter)
            out = combine(out, op.broadcast(parameter, shape, axes))
    return out


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-5,
) -> Array:
    """x with mean 0 and variance 1 over `axis`, then times `weight` plus `bias` (of those axes)."""

    def scale(v: Array, mean: Callable[[Array], Array]) -> Array:
        centred = op.sub(v, mean(v))
        variance = mean(op.mul(centred, centred))
        return op.mul(centred, op.rsqrt(op.add(variance, float(eps))))

    return _normalised("layer_norm", x, axis, weight, bias, scale)


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-6,
) -> Array:
    """x divided by the root of its mean square over `axis`, then times `weight`."""

    def scale(v: Array, mean: Callable[[Array], Array]) -> Array:
        return op.mul(v, op.rsqrt(op.add(mean(op.mul(v, v)), float(eps))))

    return _normalised("rms_norm", x, axis, weight, None, scale)


def embedding(indices: ArrayLike, table: ArrayLike) -> Array:
    """Rows of `table` ``[n, d]`` at integer `indices`; dynamic ones out of range are clamped."""
    return take(table, indices, 0)


def one_hot(x: ArrayLike, num_classes: Size, dtype: Any = None, axis: int = -1) -> Array:
    """1 at the class, 0 elsewhere, along a new axis; classes out of range give only zeros.

    Args:
        x: integer classes.
        num_classes: size of the new axis.
        dtype: float32 unless given.
        axis: place of the new axis.

    Raises:
        DTypeError: classes that are no integers.
    """
    aval = type_of(x)
    if not dtypes.is_integer(aval.dtype):
        raise DTypeError(
            message(f"one_hot of {aval} takes integer classes", None, "Cast them to int32")
        )
    number = normal_axis("one_hot", axis, aval, 1)
    shape = (*aval.shape[:number], num_classes, *aval.shape[number:])
    classes = op.iota(shape, number, aval.dtype)
    hit = op.eq(spread_to(op.expand(x, number), shape), classes)
    return op.convert(hit, dtypes.float32 if dtype is None else dtype)


def dropout(key: ArrayLike, x: ArrayLike, rate: float) -> Array:
    """x with each element 0 with probability `rate` and divided by ``1 - rate`` otherwise.

    Args:
        key: a key of `trnx.random`.
        x: array.
        rate: a Python float in [0, 1).
    """
    from trnx.random import bernoulli

    if not 0.0 <= rate < 1.0:
        raise ValueError(message(f"dropout got the rate {rate}", None, "Use a rate in [0, 1)"))
    x = as_float("dropout", x)
    keep = bernoulli(key, 1.0 - rate, aval_of(x).shape)
    return op.select(keep, op.div(x, 1.0 - rate), 0.0)
