"""Convolution as a contraction of overlapping windows, which are access patterns.

Padding and dilation of the operand are one copy (`pad`); then windows are a strided view and the
convolution is a `dot_general` over channels and taps. Windows of one element need no view, and very
large ones are copied out. One
channel per group (depthwise) is no work for a matrix engine: there each tap is a slice, multiplied
by its row scalar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.passes.expand import as_is, expansion
from trnx.compiler.passes.windows import WINDOWS
from trnx.compiler.targets import Target
from trnx.core import Aval, LoweringError, Params, aval_of, current_trace, message
from trnx.core.dtypes import float32, is_complex, is_float
from trnx.core.source import current_source
from trnx.ops import functions as op
from trnx.ops._windows import sliced, tap_slices

Array: TypeAlias = Any


LEAST_TAPS = 32
"""Taps from which on a window that is larger than its number of places is written out.

Such is the gradient of a window: the sums run over all of space. With the windows in memory one
after the other, taps are one contracted axis; as a view they would be a loop of short products.
"""


@expansion("conv")
def _choose_conv(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    if is_complex(avals[0].dtype):
        return None  # complex numbers have no tiles
    return _conv


def static_sizes(name: str, x: Array) -> tuple[int, ...]:
    """The shape of an operand.

    Raises:
        LoweringError: a size is only known at run time.
    """
    sizes = tuple(size for size in op.shape_of(x) if isinstance(size, int))
    if len(sizes) != len(op.shape_of(x)):
        raise LoweringError(
            message(
                f"{name} of {aval_of(x)}, whose sizes are known at run time only, has no kernel",
                current_source(),
                "Use static sizes or bucketed dimensions",
            )
        )
    return sizes


def static_counts(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """How many places a window has along each axis."""
    return tuple(
        max(0, n - ((k - 1) * d + 1) + s) // s
        for n, k, s, d in zip(sizes, window, strides, dilation, strict=True)
    )


def windows_of(
    x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Array:
    """``[..., *places, *window]`` of x over its last axes, as a view."""
    trace: Any = current_trace.get()
    params = {"window": tuple(window), "strides": tuple(strides), "dilation": tuple(dilation)}
    (result,) = trace.record(WINDOWS, (x,), Params(params, "windows"))
    return result


def _conv(
    lhs: Array,
    rhs: Array,
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
    out_dtype: Any,
) -> Array:
    low, high = [0, 0, *(a for a, _ in padding)], [0, 0, *(b for _, b in padding)]
    x = op.pad(lhs, 0, low, high, [0, 0, *(d - 1 for d in lhs_dilation)])
    batch, _, *space = static_sizes("conv", x)
    out_channels, own, *window = static_sizes("conv", rhs)
    rank = len(window)
    counts = static_counts(space, window, strides, rhs_dilation)
    shape = (batch, out_channels, *counts)
    if 0 in shape or 0 in window or own == 0:
        return op.broadcast(out_dtype.type(0), shape, ())
    if own == 1 and groups > 1:
        return _by_taps(x, rhs, shape, strides, rhs_dilation, out_dtype)
    taps = tuple(range(3 + rank, 3 + 2 * rank))
    if all(k == 1 for k in window):
        stops = [(n - 1) * s + 1 for n, s in zip(counts, strides, strict=True)]
        x = sliced(x, [0] * rank, stops, tuple(strides))
        rhs, taps = op.reshape(rhs, (out_channels, own)), ()
    else:
        x = windows_of(x, window, strides, rhs_dilation)
        if math.prod(window) > max(LEAST_TAPS, math.prod(counts)):
            x = _written_out(x)
    if groups == 1:
        axes = tuple(range(1, 1 + 1 + len(taps)))
        shifted = (1, *(t - 1 for t in taps))
        out = op.dot_general(rhs, x, (axes, shifted), out_dtype=out_dtype)
        return op.moveaxis(out, 0, 1)
    x = op.reshape(x, (batch, groups, own, *op.shape_of(x)[2:]))
    rhs = op.reshape(rhs, (groups, out_channels // groups, *op.shape_of(rhs)[1:]))
    axes = tuple(range(2, 2 + 1 + len(taps)))
    out = op.dot_general(rhs, x, (axes, (2, *taps)), ((0,), (1,)), out_dtype)
    # groups, out channels of one, batch, places
    out = op.transpose(out, (2, 0, 1, *range(3, 3 + rank)))
    return op.reshape(out, shape)


def _written_out(x: Array) -> Array:
    """A copy of a view that stays one: padding, even by nothing, writes memory of its own."""
    none = (0,) * len(op.shape_of(x))
    return as_is("pad", x, op.scalar_like(0, x), low=none, high=none, interior=none)


def _by_taps(
    x: Array,
    rhs: Array,
    shape: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    out_dtype: Any,
) -> Array:
    """One channel per group: a sum over taps of slices times one number per channel."""
    batch, channels, *_ = static_sizes("conv", x)
    out_channels, _, *window = static_sizes("conv", rhs)
    counts = tuple(shape[2:])
    several = out_channels // channels
    wide = float32 if is_float(out_dtype) and out_dtype.itemsize < 4 else out_dtype
    whole = (batch, channels, several, *counts)
    weights = op.reshape(rhs, (channels, several, *window))
    total: Array = None
    parts = tap_slices(x, tuple(window), counts, tuple(strides), tuple(dilation))
    for tap, part in zip(np.ndindex(*window), parts, strict=True):
        weight = op.slice(weights, (0, 0, *tap), (channels, several, *(t + 1 for t in tap)))
        weight = op.reshape(weight, (channels, several))
        product = op.mul(
            op.broadcast(op.convert(part, wide), whole, (0, 1, *range(3, len(whole)))),
            op.broadcast(op.convert(weight, wide), whole, (1, 2)),
        )
        total = product if total is None else op.add(total, product)
    return op.reshape(op.convert(total, out_dtype), shape)
