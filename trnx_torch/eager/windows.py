"""Convolution and pooling.

A convolution is a program of the compiler's primitive, its gradients are that program's
derivatives. Pooling reduces a strided view of the padded operand: its windows as axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import trnx
import trnx.lax as lax
import trnx.numpy as np
from trnx_torch import registration
from trnx_torch.eager.composite import define
from trnx_torch.eager.generic import NOT_NATIVE
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any
Ints = Sequence[int]


# ---------------------------------------------------------------- convolution
def _conv(x: Array, w: Array, settings: Sequence[Ints], groups: int) -> Array:
    stride, padding, dilation = settings
    return lax.conv_general_dilated(
        x,
        w,
        tuple(stride),
        [(p, p) for p in padding],
        rhs_dilation=tuple(dilation),
        feature_group_count=groups,
    )


def _full(values: Ints, space: int) -> tuple[int, ...]:
    return tuple(values) * space if len(values) == 1 else tuple(values)


def _settings(weight: Tensor, *lists: Ints) -> list[tuple[int, ...]]:
    return [_full(values, weight.ndim - 2) for values in lists]


def _check_conv(*tensors: Tensor | None) -> None:
    for tensor in tensors:
        if tensor is not None and (tensor.dtype in NOT_NATIVE or not tensor.is_floating_point()):
            raise NoKernel(str(tensor.dtype))


def _big(input: Tensor, weight: Tensor, settings: Sequence[Ints], extra: Ints, groups: int) -> Ints:
    """Shape of a transposed convolution's result."""
    stride, padding, dilation = settings
    space = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(
            input.shape[2:], stride, padding, dilation, weight.shape[2:], extra, strict=True
        )
    ]
    return [input.shape[0], weight.shape[1] * groups, *space]


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    _check_conv(input, weight, bias)
    if input.dtype != weight.dtype or input.ndim != weight.ndim or input.ndim < 3:
        raise NoKernel("torch's kernel has the error text")
    if not input.numel() or not weight.numel():
        raise NoKernel("a convolution of nothing")
    settings = _settings(weight, stride, padding, dilation)
    key = (transposed, *settings, tuple(output_padding), groups)
    if not transposed:
        result = run(
            "convolution",
            lambda x, w: _conv(x, w, settings, groups),
            [input, weight],
            key,
        )[0]
    else:
        (extra,) = _settings(weight, output_padding)
        shape = tuple(_big(input, weight, settings, extra, groups))

        def spread(x: Array, w: Array) -> Array:
            like = np.zeros(shape, dtype=x.dtype)
            _, back = trnx.vjp(lambda y: _conv(y, w, settings, groups), like)
            return back(x)[0]

        result = run("convolution_transposed", spread, [input, weight], (*key, shape))[0]
    if bias is not None:
        result += bias.view(-1, *[1] * (weight.ndim - 2))
    return result


def _convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    _check_conv(grad_output, input, weight)
    if not input.numel() or not weight.numel() or not grad_output.numel():
        raise NoKernel("a convolution of nothing")
    settings = _settings(weight, stride, padding, dilation)
    key = (transposed, *settings, groups)
    by_input = by_weight = by_bias = None
    if transposed:
        # The transposed convolution is linear in both: its adjoints are a convolution and its
        # gradient by the window with operand and result exchanged.
        if output_mask[0]:
            by_input = run(
                "convolution",
                lambda g, w: _conv(g, w, settings, groups),
                [grad_output, weight],
                (False, *settings, tuple(output_padding), groups),
            )[0]
        first, second = grad_output, input
    else:
        first, second = input, grad_output
        if output_mask[0]:

            def to_input(x: Array, w: Array, g: Array) -> Array:
                _, back = trnx.vjp(lambda y: _conv(y, w, settings, groups), np.zeros_like(x))
                return back(g)[0]

            by_input = run("convolution_input", to_input, [input, weight, grad_output], key)[0]
    if output_mask[1]:

        def to_weight(x: Array, w: Array, g: Array) -> Array:
            _, back = trnx.vjp(lambda v: _conv(x, v, settings, groups), np.zeros_like(w))
            return back(g)[0]

        by_weight = run("convolution_weight", to_weight, [first, weight, second], key)[0]
    if output_mask[2]:
        by_bias = grad_output.sum([0, *range(2, grad_output.ndim)])
    return by_input, by_weight, by_bias


# ---------------------------------------------------------------- pooling
def _windows(x: Tensor, size: Ints, stride: Ints, dilation: Ints, counts: Ints) -> Tensor:
    """``x`` [..., *space] as a view [..., *counts, *size]."""
    x = x.contiguous()
    k = len(size)
    steps = x.stride()[-k:]
    lead = x.shape[:-k]
    return x.as_strided(
        (*lead, *counts, *size),
        (
            *x.stride()[:-k],
            *(a * b for a, b in zip(steps, stride, strict=True)),
            *(a * b for a, b in zip(steps, dilation, strict=True)),
        ),
    )


def _counts(
    space: Ints, size: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil: bool
) -> list[int]:
    counts = []
    for n, k, s, p, d in zip(space, size, stride, padding, dilation, strict=True):
        reach = n + 2 * p - d * (k - 1) - 1
        count = (-(-reach // s) if ceil else reach // s) + 1
        if ceil and (count - 1) * s >= n + p:
            count -= 1  # a window may not begin in the padding at the end
        if count < 1:
            raise NoKernel("torch's kernel has the error text")
        counts.append(count)
    return counts


def _padded(x: Tensor, k: int, before: Ints, needed: Ints, value: float) -> Tensor:
    """``x`` with ``before`` in front and ``needed`` elements in all along its last ``k`` axes."""
    space = x.shape[-k:]
    if not any(before) and all(n >= m for n, m in zip(space, needed, strict=True)):
        return x
    whole = [max(m, b + n) for m, b, n in zip(needed, before, space, strict=True)]
    result = torch.full((*x.shape[:-k], *whole), value, dtype=x.dtype, device=x.device)
    inside = result
    for axis in range(k):
        inside = inside.narrow(axis - k, before[axis], space[axis])
    inside.copy_(x)
    return result


def _needed(counts: Ints, size: Ints, stride: Ints, dilation: Ints) -> list[int]:
    return [
        (c - 1) * s + d * (k - 1) + 1
        for c, s, d, k in zip(counts, stride, dilation, size, strict=True)
    ]


def _lists(k: int, *given: Any) -> list[list[int]]:
    return [[v] * k if isinstance(v, int) else list(v) * (k if len(v) == 1 else 1) for v in given]


def _check_pool(x: Tensor, k: int, size: Ints, padding: Ints) -> None:
    if x.ndim not in (k + 1, k + 2) or not x.numel() or not x.is_floating_point():
        raise NoKernel("torch's kernel has the error text")
    if any(2 * p > s for p, s in zip(padding, size, strict=True)):
        raise NoKernel("torch's kernel has the error text")


def _max_pool(k: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(
        self: Tensor,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        size, steps, pads, gaps = _lists(k, kernel_size, stride or kernel_size, padding, dilation)
        _check_pool(self, k, size, pads)
        space = self.shape[-k:]
        counts = _counts(space, size, steps, pads, gaps, ceil_mode)
        whole = _padded(self, k, pads, _needed(counts, size, steps, gaps), -math.inf)
        windows = _windows(whole, size, steps, gaps, counts)
        flat = windows.reshape(*self.shape[:-k], *counts, math.prod(size))
        values, chosen = torch.max(flat, -1)
        place = torch.zeros_like(chosen)
        left = chosen
        scale = 1
        for axis in reversed(range(k)):
            within = left % size[axis]
            left = left // size[axis]
            first = torch.arange(counts[axis], device=self.device) * steps[axis] - pads[axis]
            first = first.view(-1, *[1] * (k - 1 - axis))
            place = place + (within * gaps[axis] + first) * scale
            scale *= space[axis]
        return values, place

    def backward(
        grad_output: Tensor,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        return _unpool(grad_output, indices, self, k)

    return forward, backward


def _unpool(grad: Tensor, indices: Tensor, like: Tensor, k: int) -> Tensor:
    """Sums of ``grad`` at ``indices`` into each plane of ``like``'s last ``k`` axes."""
    if grad.dtype in NOT_NATIVE or not grad.numel():
        raise NoKernel(str(grad.dtype))
    planes, size = math.prod(like.shape[:-k]), math.prod(like.shape[-k:])
    zeros = torch.zeros(planes, size, dtype=like.dtype, device=like.device)
    return zeros.scatter_add(1, indices.reshape(planes, -1), grad.reshape(planes, -1)).view(
        like.shape
    )


def _divisors(
    counts: Ints,
    size: Ints,
    stride: Ints,
    padding: Ints,
    space: Ints,
    include: bool,
    override: int | None,
) -> list[list[float]] | float:
    """The divisor of each window: one number, or per axis the lengths whose product it is."""
    if override is not None:
        return float(override)
    lengths = []
    for c, k, s, p, n in zip(counts, size, stride, padding, space, strict=True):
        own = []
        for i in range(c):
            first, last = i * s - p, min(i * s - p + k, n + p)
            own.append(float(last - first if include else min(last, n) - max(first, 0)))
        lengths.append(own)
    if all(len(set(own)) == 1 for own in lengths):
        return math.prod(own[0] for own in lengths)
    return lengths


def _divided(x: Tensor, divisors: list[list[float]] | float) -> Tensor:
    if isinstance(divisors, float):
        return x / divisors
    result = x
    k = len(divisors)
    for axis, own in enumerate(divisors):
        lengths = torch.empty(len(own), dtype=x.dtype, device=x.device)
        for place, length in enumerate(own):
            lengths[place : place + 1].fill_(length)
        result = result / lengths.view(-1, *[1] * (k - 1 - axis))
    return result


def _avg_pool(k: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(
        self: Tensor,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        size, steps, pads, gaps = _lists(k, kernel_size, stride or kernel_size, padding, 1)
        _check_pool(self, k, size, pads)
        if divisor_override == 0:
            raise NoKernel("torch's kernel has the error text")
        space = self.shape[-k:]
        counts = _counts(space, size, steps, pads, gaps, ceil_mode)
        whole = _padded(self, k, pads, _needed(counts, size, steps, gaps), 0.0)
        total = _windows(whole, size, steps, gaps, counts).sum([-1 - i for i in range(k)])
        divisors = _divisors(counts, size, steps, pads, space, count_include_pad, divisor_override)
        return _divided(total, divisors)

    def backward(
        grad_output: Tensor,
        self: Tensor,
        kernel_size: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        size, steps, pads, gaps = _lists(k, kernel_size, stride or kernel_size, padding, 1)
        _check_pool(self, k, size, pads)
        space = self.shape[-k:]
        counts = list(grad_output.shape[-k:])
        divisors = _divisors(counts, size, steps, pads, space, count_include_pad, divisor_override)
        grad = _divided(grad_output, divisors)
        needed = _needed(counts, size, steps, gaps)
        whole = [max(m, p + n) for m, p, n in zip(needed, pads, space, strict=True)]
        result = torch.zeros((*self.shape[:-k], *whole), dtype=self.dtype, device=self.device)
        for offset in range(math.prod(size)):
            target, left = result, offset
            for axis in reversed(range(k)):
                start = left % size[axis]
                left //= size[axis]
                span = (counts[axis] - 1) * steps[axis] + 1
                target = target.narrow(axis - k, start, span)
                target = target[
                    (..., slice(None, None, steps[axis]), *[slice(None)] * (k - 1 - axis))
                ]
            target.add_(grad)
        for axis in range(k):
            result = result.narrow(axis - k, pads[axis], space[axis])
        return result.contiguous()

    return forward, backward


def register() -> None:
    """Registers convolution and its gradients, maximum and average pooling of 2 and 3 axes."""
    registration.program("aten::convolution_overrideable")(_convolution)
    registration.program("aten::convolution_backward_overrideable")(_convolution_backward)
    for k in (2, 3):
        forward, backward = _max_pool(k)
        define(f"max_pool{k}d_with_indices.default")(forward)
        define(f"max_pool{k}d_with_indices_backward.default")(backward)
        forward, backward = _avg_pool(k)
        define(f"avg_pool{k}d.default")(forward)
        define(f"avg_pool{k}d_backward.default")(backward)
