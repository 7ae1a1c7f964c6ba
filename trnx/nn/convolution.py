"""Convolutions in the layout of `torch.nn`: [batch, channels, *space]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import ShapeError, aval_of, message
from trnx.nn._space import per_axis
from trnx.numpy._operands import Array, ArrayLike, promote
from trnx.numpy.elementwise import add
from trnx.ops import functions as op
from trnx.ops._windows import dilated
from trnx.ops.windows import resolve_padding

Space = int | Sequence[int]


def _operands(name: str, x: ArrayLike, weight: ArrayLike) -> tuple[Array, Array, int]:
    x, weight = promote(name, x, weight)
    left, right = aval_of(x), aval_of(weight)
    if left.ndim != right.ndim or left.ndim < 3:
        raise ShapeError(
            message(
                f"{name} of x {left} with weight {right}",
                None,
                "Give x [batch, channels, *space] and a weight with two and as many axes of space",
            )
        )
    return x, weight, left.ndim - 2


def _with_bias(name: str, out: Array, bias: ArrayLike | None) -> Array:
    if bias is None:
        return out
    out, bias = promote(name, out, bias)
    if aval_of(bias).shape != aval_of(out).shape[1:2]:
        raise ShapeError(
            message(
                f"{name} with result {aval_of(out)} got bias {aval_of(bias)}",
                None,
                "Give one number per out channel",
            )
        )
    return add(out, op.broadcast(bias, aval_of(out).shape, (1,)))


def conv(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Space = 1,
    padding: Space | str | Sequence[tuple[int, int]] = 0,
    dilation: Space = 1,
    groups: int = 1,
) -> Array:
    """Convolution over one, two or three (any number of) axes of space.

    Args:
        x: ``[batch, channels, *space]``.
        weight: ``[out channels, channels / groups, *window]``.
        bias: ``[out channels]`` or None.
        stride: elements between places of the window; a number or one per axis.
        padding: zeros on both sides, a number or one per axis, or a pair per axis; ``"SAME"`` or
            ``"VALID"`` in any case.
        dilation: elements between taps of the window.
        groups: groups of channels that do not mix.

    Returns:
        ``[batch, out channels, *places]``.

    Raises:
        ShapeError: sizes, groups or numbers of axes do not fit.
    """
    x, weight, rank = _operands("conv", x, weight)
    strides, apart = (
        per_axis("conv", "stride", stride, rank),
        per_axis("conv", "dilation", dilation, rank),
    )
    pairs: Any = padding
    if not isinstance(padding, str):
        given = (padding,) * rank if isinstance(padding, int) else tuple(padding)
        pairs = [(p, p) if isinstance(p, int) else p for p in given]
    window = aval_of(weight).shape[2:]
    out = op.conv(
        x,
        weight,
        strides=strides,
        padding=resolve_padding(
            "conv",
            pairs,
            aval_of(x).shape[2:],
            [dilated(n, d) for n, d in zip(window, apart, strict=True)],
            strides,
        ),
        lhs_dilation=(1,) * rank,
        rhs_dilation=apart,
        groups=groups,
    )
    return _with_bias("conv", out, bias)


def conv_transpose(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Space = 1,
    padding: Space = 0,
    output_padding: Space = 0,
    dilation: Space = 1,
    groups: int = 1,
) -> Array:
    """The transpose of :func:`conv` as a map of x, as in `torch.nn.functional.conv_transpose2d`.

    Args:
        x: ``[batch, channels, *space]``.
        weight: ``[channels, out channels / groups, *window]``.
        bias: ``[out channels]`` or None.
        stride: of the convolution that it is the transpose of.
        padding: likewise; cuts the result.
        output_padding: elements added at the end of each axis of the result.
        dilation: elements between taps of the window.
        groups: groups of channels that do not mix.

    Returns:
        ``[batch, out channels, *space]`` with sizes
        ``(n - 1)·stride - 2·padding + dilation·(window - 1) + output_padding + 1``.

    Raises:
        ShapeError: sizes, groups or numbers of axes do not fit.
    """
    name = "conv_transpose"
    x, weight, rank = _operands(name, x, weight)
    strides, apart, cut, extra = (
        per_axis(name, what, value, rank, least=least)
        for what, value, least in (
            ("stride", stride, 1),
            ("dilation", dilation, 1),
            ("padding", padding, 0),
            ("output_padding", output_padding, 0),
        )
    )
    channels, own, *window = aval_of(weight).shape
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise ShapeError(
            message(
                f"{name} of weight {aval_of(weight)} in {groups} groups",
                None,
                "Groups must divide the channels",
            )
        )
    per_group = channels if groups == 1 else channels // groups
    flipped = op.reverse(weight, range(2, rank + 2))
    parts = op.reshape(flipped, (groups, per_group, own, *window))
    swapped = op.reshape(op.moveaxis(parts, 2, 1), (groups * own, per_group, *window))
    pairs = []
    for d in range(rank):
        reach = dilated(window[d], apart[d])
        pairs.append((reach - 1 - cut[d], reach - 1 - cut[d] + extra[d]))
    out = op.conv(
        x,
        swapped,
        strides=(1,) * rank,
        padding=pairs,
        lhs_dilation=strides,
        rhs_dilation=apart,
        groups=groups,
    )
    return _with_bias(name, out, bias)
