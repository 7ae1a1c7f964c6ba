"""Losses."""

from __future__ import annotations

import math

from trnx.core import DTypeError, ShapeError, aval_of, dtypes, message, same_shape
from trnx.numpy._operands import Array, ArrayLike, as_float, normal_axis, operands_of, type_of
from trnx.numpy.reductions import mean, sum
from trnx.ops import functions as op


def _reduced(losses: Array, reduction: str) -> Array:
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    if reduction == "mean":
        return mean(losses)
    raise ValueError(
        message(f"reduction={reduction!r} is unknown", None, "Use 'mean', 'sum' or 'none'")
    )


def cross_entropy(
    logits: ArrayLike, labels: ArrayLike, axis: int = -1, reduction: str = "mean"
) -> Array:
    """Cross-entropy of softmax(logits) with integer classes.

    Args:
        logits: scores, classes along `axis`; bf16 and f16 are computed in f32.
        labels: integer classes, the shape of `logits` without `axis`. A class out of range gives
            NaN, so that it cannot go unseen.
        axis: axis of the classes.
        reduction: "mean", "sum" or "none".

    Raises:
        ShapeError: shapes that do not fit.
        DTypeError: labels that are no integers.
    """
    logits = as_float("cross_entropy", logits)
    aval, label_type = aval_of(logits), type_of(labels)
    number = normal_axis("cross_entropy", axis, aval)
    if not dtypes.is_integer(label_type.dtype):
        raise DTypeError(
            message(f"cross_entropy takes integer labels, not {label_type}", None, "Cast to int32")
        )
    kept = [i for i in range(aval.ndim) if i != number]
    if not same_shape(label_type.shape, tuple(aval.shape[i] for i in kept)):
        raise ShapeError(
            message(
                f"cross_entropy of logits {aval} with labels {label_type}",
                None,
                f"Labels have the shape of the logits without axis {number}",
            )
        )
    dtype = aval.dtype
    if dtype in (dtypes.bfloat16, dtypes.float16):
        logits = op.convert(logits, dtypes.float32)

    def repeat(reduced: Array) -> Array:
        return op.broadcast(reduced, aval.shape, kept)

    top = op.stop_gradient(op.reduce_max(logits, (number,)))
    shifted = op.sub(logits, repeat(top))
    # The label's score is selected, not gathered: one pass over the row, and a -inf elsewhere in
    # the row never meets a 0.
    classes = op.iota(aval.shape, number, label_type.dtype)
    hit = op.eq(classes, repeat(labels))
    picked = op.reduce_sum(op.select(hit, shifted, 0.0), (number,))
    losses = op.sub(op.log(op.reduce_sum(op.exp(shifted), (number,))), picked)
    count = op.dim_size(aval.shape[number], label_type.dtype)
    known = op.bitwise_and(op.ge(labels, 0), op.lt(labels, count))
    losses = op.select(known, losses, math.nan)
    return op.convert(_reduced(losses, reduction), dtype)


def mse_loss(prediction: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Array:
    """Squared difference."""
    a, b = operands_of("mse_loss", prediction, target, inexact=True)
    difference = op.sub(a, b)
    return _reduced(op.mul(difference, difference), reduction)
