"""Operators that only move data: copies between views of their operands and results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import trnx.numpy as np
from trnx_torch.eager.composite import axes, define
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel


def _wrap(dim: int, rank: int) -> int:
    return axes(dim, rank)[0] if rank else 0


@define("cat.default", every_dtype=True)
def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    # PyTorch leaves empty one-dimensional tensors out of a cat of higher rank.
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    first = kept[0]
    if any(t.ndim != first.ndim or t.ndim == 0 for t in kept):
        raise NoKernel("torch's kernel has the error text")
    dtype = first.dtype
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    dim = _wrap(dim, first.ndim)
    shape = list(first.shape)
    for tensor in kept[1:]:
        if any(
            a != b for d, (a, b) in enumerate(zip(tensor.shape, shape, strict=True)) if d != dim
        ):
            raise NoKernel("torch's kernel has the error text")
        shape[dim] += tensor.shape[dim]
    result = torch.empty(shape, dtype=dtype, device=first.device)
    start = 0
    for tensor in kept:
        size = tensor.shape[dim]
        if size:
            result.narrow(dim, start, size).copy_(tensor)
        start += size
    return result


@define("stack.default", every_dtype=True)
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    first = tensors[0]
    if any(t.shape != first.shape for t in tensors):
        raise NoKernel("torch's kernel has the error text")
    dim = _wrap(dim, first.ndim + 1)
    return _cat([t.unsqueeze(dim) for t in tensors], dim)


@define("roll.default", every_dtype=True)
def _roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        if len(shifts) != 1:
            raise NoKernel("torch's kernel has the error text")
        return _roll(self.contiguous().view(-1), shifts, [0]).view(self.shape)
    if len(dims) != len(shifts):
        raise NoKernel("torch's kernel has the error text")
    if self.numel() == 0 or self.ndim == 0:
        return self.clone()
    result = self
    for shift, dim in zip(shifts, dims, strict=True):
        size = self.shape[dim]
        first = -shift % size
        moved = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        moved.narrow(dim, 0, size - first).copy_(result.narrow(dim, first, size - first))
        if first:
            moved.narrow(dim, size - first, first).copy_(result.narrow(dim, 0, first))
        result = moved
    return result


@define("flip.default")
def _flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    turned = axes(list(dims), self.ndim) if dims else []
    if len(set(turned)) != len(turned):
        raise NoKernel("torch's kernel has the error text")
    moved = tuple(sorted(d for d in turned if self.shape[d] > 1)) if self.ndim else ()
    if not moved or not self.numel():
        return self.clone(memory_format=torch.contiguous_format)
    return run("flip", lambda x: np.flip(x, moved), [self], moved)[0]


@define("repeat.default", every_dtype=True)
def _repeat(self: Tensor, repeats: Sequence[int]) -> Tensor:
    if len(repeats) < self.ndim or any(n < 0 for n in repeats):
        raise NoKernel("torch's kernel has the error text")
    lead = len(repeats) - self.ndim
    shape = [1] * lead + list(self.shape)
    result = torch.empty(
        [n * s for n, s in zip(repeats, shape, strict=True)], dtype=self.dtype, device=self.device
    )
    if result.numel():
        split = [size for n, s in zip(repeats, shape, strict=True) for size in (n, s)]
        once = [size for s in shape for size in (1, s)]
        result.view(split).copy_(self.reshape(once).expand(split))
    return result


@define("pixel_shuffle.default", every_dtype=True)
def _pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    r = upscale_factor
    if self.ndim < 3 or r <= 0 or self.shape[-3] % (r * r):
        raise NoKernel("torch's kernel has the error text")
    *lead, channels, height, width = self.shape
    parts = self.reshape(*lead, channels // (r * r), r, r, height, width)
    k = len(lead)
    order = [*range(k), k, k + 3, k + 1, k + 4, k + 2]
    return parts.permute(order).reshape(*lead, channels // (r * r), height * r, width * r)


@define("pixel_unshuffle.default", every_dtype=True)
def _pixel_unshuffle(self: Tensor, downscale_factor: int) -> Tensor:
    r = downscale_factor
    if self.ndim < 3 or r <= 0 or self.shape[-2] % r or self.shape[-1] % r:
        raise NoKernel("torch's kernel has the error text")
    *lead, channels, height, width = self.shape
    parts = self.reshape(*lead, channels, height // r, r, width // r, r)
    k = len(lead)
    order = [*range(k), k, k + 2, k + 4, k + 1, k + 3]
    return parts.permute(order).reshape(*lead, channels * r * r, height // r, width // r)


@define("channel_shuffle.default", "native_channel_shuffle.default", every_dtype=True)
def _channel_shuffle(self: Tensor, groups: int) -> Tensor:
    if self.ndim < 3 or groups <= 0 or self.shape[1] % groups:
        raise NoKernel("torch's kernel has the error text")
    batch, channels, *space = self.shape
    parts = self.reshape(batch, groups, channels // groups, *space)
    return parts.transpose(1, 2).reshape(self.shape).contiguous()


def _padding(self: Tensor, padding: Sequence[int], space: int) -> list[tuple[int, int, int]]:
    """(axis, before, after) of each padded axis, the last axis first."""
    if self.ndim not in (space + 1, space + 2) or len(padding) != 2 * space:
        raise NoKernel("torch's kernel has the error text")
    if 0 in self.shape[self.ndim - space - 1 :]:
        raise NoKernel("torch's kernel has the error text")
    return [(self.ndim - 1 - k, padding[2 * k], padding[2 * k + 1]) for k in range(space)]


def _edges(x: Tensor, axis: int, before: int, after: int, reflect: bool) -> Tensor:
    size = x.shape[axis]
    if min(before, after) < 0 or (reflect and max(before, after) >= size):
        raise NoKernel("cropped, or wider than the operand")
    pieces = []
    if before:
        if reflect:
            pieces.append(x.narrow(axis, 1, before).flip(axis))
        else:
            shape = list(x.shape)
            shape[axis] = before
            pieces.append(x.narrow(axis, 0, 1).expand(shape))
    pieces.append(x)
    if after:
        if reflect:
            pieces.append(x.narrow(axis, size - 1 - after, after).flip(axis))
        else:
            shape = list(x.shape)
            shape[axis] = after
            pieces.append(x.narrow(axis, size - 1, 1).expand(shape))
    return _cat(pieces, axis)


def _edges_backward(
    grad: Tensor, axis: int, before: int, after: int, size: int, reflect: bool
) -> Tensor:
    result = grad.narrow(axis, before, size).contiguous()
    if result.data_ptr() == grad.data_ptr():
        result = result.clone()
    if before:
        edge = grad.narrow(axis, 0, before)
        if reflect:
            result.narrow(axis, 1, before).add_(edge.flip(axis))
        else:
            result.narrow(axis, 0, 1).add_(edge.sum(axis, keepdim=True))
    if after:
        edge = grad.narrow(axis, before + size, after)
        if reflect:
            result.narrow(axis, size - 1 - after, after).add_(edge.flip(axis))
        else:
            result.narrow(axis, size - 1, 1).add_(edge.sum(axis, keepdim=True))
    return result


def _pads(kind: str, reflect: bool) -> None:
    for space in (1, 2, 3):

        def forward(self: Tensor, padding: Sequence[int], space: int = space) -> Tensor:
            result = self
            for axis, before, after in _padding(self, padding, space):
                result = _edges(result, axis, before, after, reflect)
            return result.clone() if result is self else result

        def backward(
            grad_output: Tensor, self: Tensor, padding: Sequence[int], space: int = space
        ) -> Tensor:
            grad = grad_output
            for axis, before, after in reversed(_padding(self, padding, space)):
                size = self.shape[axis]
                if min(before, after) < 0 or (reflect and max(before, after) >= size):
                    raise NoKernel("cropped, or wider than the operand")
                grad = _edges_backward(grad, axis, before, after, size, reflect)
            return grad

        define(f"{kind}_pad{space}d.default")(forward)
        define(f"{kind}_pad{space}d_backward.default")(backward)


_pads("reflection", reflect=True)
_pads("replication", reflect=False)


def register() -> None:
    """The definitions above are made when this module is imported."""
