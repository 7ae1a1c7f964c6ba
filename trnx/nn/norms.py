"""Normalisation over batch, groups of channels or space, for arrays [batch, channels, *space]."""

from __future__ import annotations

from trnx.core import ShapeError, Size, aval_of, message, structurally_equal
from trnx.nn.activations import in_f32
from trnx.numpy._operands import Array, ArrayLike, as_float, promote
from trnx.numpy.reductions import count_of
from trnx.ops import functions as op


def _channels(name: str, x: Array) -> Size:
    aval = aval_of(x)
    if aval.ndim < 2:
        raise ShapeError(message(f"{name} of {aval}", None, "Give x [batch, channels, *space]"))
    return aval.shape[1]


def _spread(name: str, parameter: ArrayLike, x: Array) -> tuple[Array, Array]:
    """x and a number per channel, spread over it, in one dtype."""
    x, parameter = promote(name, x, parameter)
    aval, own = aval_of(x), aval_of(parameter)
    if own.ndim != 1 or not structurally_equal(own.shape[0], aval.shape[1]):
        raise ShapeError(
            message(
                f"{name} of {aval} got a parameter {own}",
                None,
                f"Give one number per channel, {aval.shape[1]} of them",
            )
        )
    return x, op.broadcast(parameter, aval.shape, (1,))


def _scaled(name: str, x: Array, weight: ArrayLike | None, bias: ArrayLike | None) -> Array:
    if weight is not None:
        x, factor = _spread(name, weight, x)
        x = op.mul(x, factor)
    if bias is not None:
        x, term = _spread(name, bias, x)
        x = op.add(x, term)
    return x


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """x with mean 0 and variance 1 over axes, computed in f32 or wider."""
    shape = aval_of(x).shape
    kept = [a for a in range(len(shape)) if a not in axes]
    count = count_of(x, axes)

    def compute(v: Array) -> Array:
        def mean(values: Array) -> Array:
            average = op.div(op.reduce_sum(values, axes), op.dim_size(count, aval_of(v).dtype))
            return op.broadcast(average, shape, kept)

        centred = op.sub(v, mean(v))
        variance = mean(op.mul(centred, centred))
        return op.mul(centred, op.rsqrt(op.add(variance, float(eps))))

    return in_f32(compute, x)


def batch_norm(
    x: ArrayLike,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """x with each channel normalised, by given statistics or by those of the batch.

    Args:
        x: ``[batch, channels, *space]``.
        mean: ``[channels]``, with `variance` (inference); None for the batch's own (training).
        variance: ``[channels]``, of the population.
        weight: ``[channels]`` factors, or None.
        bias: ``[channels]`` terms, or None.
        eps: added to the variance.

    Raises:
        ShapeError: a parameter has not one number per channel, or one of the statistics is missing.
    """
    name = "batch_norm"
    x = as_float(name, x)
    _channels(name, x)
    if mean is None and variance is None:
        axes = tuple(a for a in range(aval_of(x).ndim) if a != 1)
        return _scaled(name, _standardised(x, axes, eps), weight, bias)
    if mean is None or variance is None:
        raise ShapeError(
            message(f"{name} got only one of mean and variance", None, "Give both, or neither")
        )
    dtype = aval_of(x).dtype
    v, centre = _spread(name, mean, x)
    centred = op.sub(v, centre)
    (spread,) = promote(name, variance, inexact=True)
    factor = op.rsqrt(op.add(spread, float(eps)))
    if weight is not None:
        factor, weight = promote(name, factor, weight)
        factor = op.mul(factor, weight)
    out = _scaled(name, centred, factor, bias)
    return op.convert(out, dtype)


def group_norm(
    x: ArrayLike,
    groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """x with mean 0 and variance 1 over each group of channels of each example.

    Args:
        x: ``[batch, channels, *space]``.
        groups: how many groups the channels are cut into.
        weight: ``[channels]`` factors, or None.
        bias: ``[channels]`` terms, or None.
        eps: added to the variance.

    Raises:
        ShapeError: `groups` does not divide the channels, or a parameter does not fit.
    """
    name = "group_norm"
    x = as_float(name, x)
    channels = _channels(name, x)
    if groups < 1 or not isinstance(channels, int) or channels % groups:
        raise ShapeError(
            message(
                f"{name} of {aval_of(x)} in {groups} groups",
                None,
                "Groups must divide the channels, whose number is static",
            )
        )
    shape = aval_of(x).shape
    parts = op.reshape(x, (shape[0], groups, channels // groups, *shape[2:]))
    axes = tuple(range(2, len(shape) + 1))
    return _scaled(name, op.reshape(_standardised(parts, axes, eps), shape), weight, bias)


def instance_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """x with mean 0 and variance 1 over space, for each channel of each example.

    Args:
        x: ``[batch, channels, *space]`` with at least one axis of space.
        weight: ``[channels]`` factors, or None.
        bias: ``[channels]`` terms, or None.
        eps: added to the variance.

    Raises:
        ShapeError: there is no space, or a parameter does not fit.
    """
    name = "instance_norm"
    x = as_float(name, x)
    _channels(name, x)
    rank = aval_of(x).ndim
    if rank < 3:
        raise ShapeError(
            message(f"{name} of {aval_of(x)}", None, "Give x at least one axis of space")
        )
    return _scaled(name, _standardised(x, tuple(range(2, rank)), eps), weight, bias)
