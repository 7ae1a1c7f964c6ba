"""Convolutions of any number of spatial axes, transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trnx
import trnx.numpy as np
from trnx.ops import functions as op
from trnx_torch.compile.aten.registry import lowers

Value = Any


def _spread(sizes: Sequence[int], axes: int) -> tuple[int, ...]:
    """PyTorch's shorthand: one number for all axes."""
    return tuple(sizes) * axes if len(sizes) == 1 else tuple(sizes)


def _forward(
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    axes = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        _spread(v, axes) for v in (stride, padding, dilation, output_padding)
    )
    ones = (1,) * axes
    if not transposed:
        return op.conv(
            x,
            weight,
            strides=stride,
            padding=tuple((p, p) for p in padding),
            lhs_dilation=ones,
            rhs_dilation=dilation,
            groups=groups,
        )
    # A transposed convolution walks over the input with gaps of the stride, windows turned round.
    inputs, outputs, *window = weight.shape
    weight = np.reshape(weight, (groups, inputs // groups, outputs, *window))
    weight = np.reshape(np.swapaxes(weight, 1, 2), (groups * outputs, inputs // groups, *window))
    weight = np.flip(weight, tuple(range(2, 2 + axes)))
    around = tuple(
        (d * (k - 1) - p, d * (k - 1) - p + extra)
        for d, k, p, extra in zip(dilation, window, padding, output_padding, strict=True)
    )
    return op.conv(
        x,
        weight,
        strides=ones,
        padding=around,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        groups=groups,
    )


@lowers("convolution.default")
def _convolution(
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    single = x.ndim == weight.ndim - 1  # an image without a batch axis
    batch = np.expand_dims(x, 0) if single else x
    out = _forward(batch, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is not None:
        out = out + np.reshape(bias, (1, -1, *(1,) * (weight.ndim - 2)))
    return np.squeeze(out, 0) if single else out


@lowers("convolution_backward.default")
def _convolution_backward(
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    by_input = by_weight = None
    if mask[0]:
        _, pull = trnx.vjp(lambda v: _forward(v, weight, *settings), x)
        (by_input,) = pull(grad)
    if mask[1]:
        _, pull = trnx.vjp(lambda v: _forward(x, v, *settings), weight)
        (by_weight,) = pull(grad)
    axes = (0, *range(2, grad.ndim))
    return by_input, by_weight, np.sum(grad, axis=axes) if mask[2] else None
