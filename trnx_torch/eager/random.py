"""Random operators: Philox numbers from the device generator's seed and offset.

A kernel gets its place in the stream as an operand, so it is compiled once, and repeated calls
draw on. The numbers are those of compiled graphs: both use `trnx_torch.philox`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

import trnx.numpy as np
from trnx_torch import _loader, philox, registration
from trnx_torch.dtypes import to_trnx_dtype
from trnx_torch.eager.generic import NOT_NATIVE
from trnx_torch.eager.program import run
from trnx_torch.registration import NoKernel

Array = Any
Generator: TypeAlias = "torch.Generator | None"

# Mantissa bits drawn per dtype: more would round up to 1.
_BITS = {torch.bfloat16: 8, torch.float16: 11}


def _drawn(
    name: str,
    like: Tensor,
    generator: Generator,
    make: Callable[..., Any],
    per_element: int = 1,
    numbers: tuple[Tensor, ...] = (),
    statics: Any = (),
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A tensor of ``like``'s shape: ``make(words, *numbers)`` over fresh words of the stream."""
    dtype = like.dtype if dtype is None else dtype
    if dtype in NOT_NATIVE:
        raise NoKernel(str(dtype))
    count = like.numel()
    if count == 0:
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    start = torch.empty(4, dtype=torch.uint32, device=like.device)
    _loader.extension().draw_start(start, generator, count * per_element)
    kind = to_trnx_dtype(dtype)

    def draw(start: Array, *numbers: Array, n: Any) -> Array:
        shape = (n,) if per_element == 1 else (per_element, n)
        return np.astype(make(philox.words(start, shape), *numbers), kind)

    key = (str(dtype), statics)
    result = run(f"random_{name}", draw, [start, *numbers], key, sizes={"n": count})[0]
    return result.view(like.shape)


def _number(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _uniform(like: Tensor, generator: Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    bits = _BITS.get(like.dtype, 24)
    return _drawn(
        "uniform",
        like,
        generator,
        lambda words, low, width: low + width * philox.unit(words, bits),
        numbers=(_number(low, like), _number(high - low, like)),
    )


def _normal(like: Tensor, generator: Generator) -> Tensor:
    """Standard normal numbers of float32."""
    return _drawn(
        "normal",
        like,
        generator,
        lambda words: philox.normal(words[0], words[1]),
        per_element=2,
        dtype=torch.float32,
    )


def _fraction(like: Tensor, generator: Generator) -> Tensor:
    """Uniform float32 numbers in [0, 1)."""
    return _uniform(torch.empty(like.shape, device=like.device), generator)


def _fill(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Registers a function that makes what an in-place operator fills its tensor with."""

    def register(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(self: Tensor, *args: Any, generator: Generator = None, **kwargs: Any) -> Tensor:
            if self.dtype in NOT_NATIVE:
                raise NoKernel(str(self.dtype))
            return self.copy_(make(self, generator, *args, **kwargs))

        registration.program(f"aten::{name}")(fill)
        return make

    return register


def _floating(self: Tensor) -> None:
    if not self.dtype.is_floating_point:
        raise NoKernel("torch's kernel has the error text")


@_fill("uniform_")
def _uniform_between(self: Tensor, generator: Generator, low: float = 0, high: float = 1) -> Tensor:
    _floating(self)
    if not low <= high:
        raise NoKernel("torch's kernel has the error text")
    return _uniform(self, generator, low, high)


@_fill("normal_")
def _normal_with(self: Tensor, generator: Generator, mean: float = 0, std: float = 1) -> Tensor:
    _floating(self)
    if std < 0:
        raise NoKernel("torch's kernel has the error text")
    return _normal(self, generator) * std + mean


@_fill("bernoulli_.float")
def _bernoulli_number(self: Tensor, generator: Generator, p: float = 0.5) -> Tensor:
    if not 0 <= p <= 1:
        raise NoKernel("torch's kernel has the error text")
    return _fraction(self, generator) < p


@_fill("bernoulli_.Tensor")
def _bernoulli_tensor(self: Tensor, generator: Generator, p: Tensor) -> Tensor:
    return _fraction(self, generator) < p.to(self.device, torch.float32)


@_fill("exponential_")
def _exponential(self: Tensor, generator: Generator, lambd: float = 1) -> Tensor:
    _floating(self)
    if lambd <= 0:
        raise NoKernel("torch's kernel has the error text")
    return -torch.log(1 - _fraction(self, generator)) / lambd


@_fill("geometric_")
def _geometric(self: Tensor, generator: Generator, p: float) -> Tensor:
    if not 0 < p < 1:
        raise NoKernel("torch's kernel has the error text")
    return torch.floor(torch.log(1 - _fraction(self, generator)) / math.log1p(-p)) + 1


@_fill("log_normal_")
def _log_normal(self: Tensor, generator: Generator, mean: float = 1, std: float = 2) -> Tensor:
    _floating(self)
    if std <= 0:
        raise NoKernel("torch's kernel has the error text")
    return torch.exp(_normal(self, generator) * std + mean)


@_fill("cauchy_")
def _cauchy(self: Tensor, generator: Generator, median: float = 0, sigma: float = 1) -> Tensor:
    _floating(self)
    if sigma <= 0:
        raise NoKernel("torch's kernel has the error text")
    return median + sigma * torch.tan(math.pi * (_fraction(self, generator) - 0.5))


def _integers(self: Tensor, generator: Generator, low: int, span: int) -> Tensor:
    if not 0 < span < 2**31:
        raise NoKernel("a range of more than 31 bits")
    width = torch.full((), span, dtype=torch.int64, device=self.device)
    first = torch.full((), low, dtype=torch.int64, device=self.device)
    return _drawn(
        "integers",
        self,
        generator,
        lambda words, width, first: (
            np.astype(np.remainder(words, np.astype(width, np.uint32)), np.int64) + first
        ),
        numbers=(width, first),
        dtype=torch.int64,
    )


@_fill("random_.from")
def _random_from(self: Tensor, generator: Generator, low: int, high: int | None) -> Tensor:
    if high is None:
        raise NoKernel("the whole range of int64")
    return _integers(self, generator, low, high - low)


@_fill("random_.to")
def _random_to(self: Tensor, generator: Generator, high: int) -> Tensor:
    return _integers(self, generator, 0, high)


# The largest integers below which a float dtype holds every integer; PyTorch draws up to them.
_WHOLE = {torch.float32: 2**24 + 1, torch.float16: 2**11 + 1, torch.bfloat16: 2**8 + 1}


@_fill("random_")
def _random(self: Tensor, generator: Generator) -> Tensor:
    if self.dtype is torch.bool:
        return _integers(self, generator, 0, 2)
    if self.dtype in _WHOLE:
        return _integers(self, generator, 0, _WHOLE[self.dtype])
    high = torch.iinfo(self.dtype).max
    return _integers(self, generator, 0, min(high, 2**31 - 2) + 1)


def _bernoulli(self: Tensor, *, generator: Generator = None) -> Tensor:
    _floating(self)
    if self.dtype in NOT_NATIVE:
        raise NoKernel(str(self.dtype))
    return (_fraction(self, generator) < self).to(self.dtype)


def _dropout(self: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if self.dtype in NOT_NATIVE or not 0 <= p <= 1:
        raise NoKernel(str(self.dtype))
    if train is False or self.numel() == 0:
        return self.clone(), torch.ones(self.shape, dtype=torch.bool, device=self.device)
    keep = _fraction(self, None) >= p
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return torch.where(keep, self * scale, 0).to(self.dtype), keep


def _dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    if grad_output.dtype in NOT_NATIVE:
        raise NoKernel(str(grad_output.dtype))
    return torch.where(mask, grad_output * scale, 0).to(grad_output.dtype)


def register() -> None:
    """Registers the functional operators; the in-place ones are registered at import."""
    registration.program("aten::bernoulli")(_bernoulli)
    registration.program("aten::native_dropout")(_dropout)
    registration.program("aten::native_dropout_backward")(_dropout_backward)
