"""Up- and downsampling and adaptive average pooling: a matrix along each axis of space.

Row o of the matrix holds the weights with which elements along the axis make result o. Matrices are
computed on the device from positions; gradients use the transposed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trnx_torch.eager.composite import define
from trnx_torch.eager.generic import NOT_NATIVE
from trnx_torch.registration import NoKernel

Matrix = Callable[[int, int], Tensor]


def _line(count: int, device: Any) -> Tensor:
    return torch.arange(count, device=device).to(torch.float32)


def _apply(x: Tensor, matrices: Sequence[Tensor], turned: bool) -> Tensor:
    """Every matrix along its axis of space, the last axes of ``x``."""
    k = len(matrices)
    result = x.to(torch.float32)
    for axis, matrix in enumerate(matrices):
        moved = result.movedim(axis - k, -1)
        shape = moved.shape
        weights = matrix if turned else matrix.t()
        product = moved.reshape(-1, shape[-1]) @ weights
        result = product.view(*shape[:-1], weights.shape[1]).movedim(-1, axis - k)
    return result.to(x.dtype).contiguous()


def _adaptive(result: int, size: int, device: Any) -> Tensor:
    rows = torch.arange(result, device=device)
    first = (rows * size // result).view(-1, 1)
    last = ((rows * size + size + result - 1) // result).view(-1, 1)
    column = torch.arange(size, device=device).view(1, -1)
    inside = (column >= first) & (column < last)
    return torch.where(inside, 1.0 / (last - first).to(torch.float32), 0.0)


def _scale(size: int, result: int, given: float | None) -> float:
    return 1.0 / given if given is not None and given > 0 else size / result


def _nearest(result: int, size: int, scale: float | None, exact: bool, device: Any) -> Tensor:
    place = _line(result, device) + (0.5 if exact else 0.0)
    source = torch.floor(place * _scale(size, result, scale)).clamp(max=size - 1)
    return (_line(size, device).view(1, -1) == source.view(-1, 1)).to(torch.float32)


def _source(result: int, size: int, align: bool, scale: float | None, device: Any) -> Tensor:
    """Where along the axis each result lies."""
    line = _line(result, device)
    if align:
        return line * ((size - 1) / (result - 1) if result > 1 else 0.0)
    return (line + 0.5) * _scale(size, result, scale) - 0.5


def _linear(result: int, size: int, align: bool, scale: float | None, device: Any) -> Tensor:
    source = _source(result, size, align, scale, device).clamp(min=0.0, max=size - 1)
    distance = torch.abs(_line(size, device).view(1, -1) - source.view(-1, 1))
    return torch.clamp(1.0 - distance, min=0.0)


_CUBIC = -0.75


def _cubic(result: int, size: int, align: bool, scale: float | None, device: Any) -> Tensor:
    source = _source(result, size, align, scale, device)
    base = torch.floor(source)
    part = source - base
    column = _line(size, device).view(1, -1)
    matrix = torch.zeros(result, size, device=device)
    for tap in range(-1, 3):
        distance = torch.abs(part - tap)
        a = _CUBIC
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weight = torch.where(distance <= 1, near, far)
        place = (base + tap).clamp(min=0.0, max=size - 1)
        matrix = matrix + torch.where(column == place.view(-1, 1), weight.view(-1, 1), 0.0)
    return matrix


def _check(x: Tensor, k: int) -> None:
    if x.dtype in NOT_NATIVE or not x.is_floating_point() or not x.numel():
        raise NoKernel(str(x.dtype))
    if x.ndim not in (k + 1, k + 2):
        raise NoKernel("torch's kernel has the error text")


def _define_adaptive(k: int) -> None:
    name = f"_adaptive_avg_pool{k}d"

    def forward(self: Tensor, output_size: Sequence[int]) -> Tensor:
        _check(self, k)
        if min(output_size) < 1:
            raise NoKernel("an empty result")
        sizes = zip(output_size, self.shape[-k:], strict=True)
        return _apply(self, [_adaptive(o, n, self.device) for o, n in sizes], turned=False)

    def backward(grad_output: Tensor, self: Tensor) -> Tensor:
        _check(self, k)
        sizes = zip(grad_output.shape[-k:], self.shape[-k:], strict=True)
        return _apply(grad_output, [_adaptive(o, n, self.device) for o, n in sizes], turned=True)

    define(f"{name}.default")(forward)
    define(f"{name}_backward.default")(backward)


def _define_upsample(name: str, k: int, matrix: Callable[..., Tensor], has_align: bool) -> None:
    """``matrix(result, size, align, scale, device)`` along each axis."""

    def split(rest: tuple[Any, ...]) -> tuple[bool, list[float | None]]:
        align = bool(rest[0]) if has_align and rest else False
        scales = list(rest[1 if has_align else 0 :])
        return align, scales + [None] * (k - len(scales))

    def matrices(
        result: Sequence[int], size: Sequence[int], rest: tuple[Any, ...], device: Any
    ) -> list[Tensor]:
        align, scales = split(rest)
        return [
            matrix(o, n, align, s, device) for o, n, s in zip(result, size, scales, strict=True)
        ]

    def forward(self: Tensor, output_size: Sequence[int], *rest: Any) -> Tensor:
        _check(self, k)
        if min(output_size) < 1 or self.ndim != k + 2:
            raise NoKernel("torch's kernel has the error text")
        made = matrices(output_size, self.shape[-k:], rest, self.device)
        return _apply(self, made, turned=False)

    def backward(
        grad_output: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: Any
    ) -> Tensor:
        _check(grad_output, k)
        made = matrices(output_size, input_size[-k:], rest, grad_output.device)
        return _apply(grad_output, made, turned=True)

    define(f"{name}.default")(forward)
    define(f"{name}_backward.default")(backward)


def register() -> None:
    """Registers adaptive average pooling and the upsampling operators."""
    for k in (2, 3):
        _define_adaptive(k)
    for k in (1, 2, 3):
        for prefix, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True)):
            _define_upsample(
                f"{prefix}{k}d",
                k,
                lambda o, n, align, s, device, exact=exact: _nearest(o, n, s, exact, device),
                has_align=False,
            )
    for name, k in (
        ("upsample_linear1d", 1),
        ("upsample_bilinear2d", 2),
        ("upsample_trilinear3d", 3),
    ):
        _define_upsample(name, k, _linear, has_align=True)
    _define_upsample("upsample_bicubic2d", 2, _cubic, has_align=True)
