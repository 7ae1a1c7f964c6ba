"""Random operators in graphs.

A graph with random operators takes one more input, the place in the random stream where the call
begins; the runner reserves as many numbers from the device's generator as the graph uses. Operators
take theirs in the order of the graph, each from a block of its own, as the eager kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

import trnx.numpy as np
from trnx.core.avals import Aval
from trnx.core.dims import Size
from trnx_torch import philox
from trnx_torch.compile.aten.registry import overload_name
from trnx_torch.dtypes import to_trnx_dtype

Value = Any
_RULES: dict[str, Callable[..., Any]] = {}
START = Aval((4,), to_trnx_dtype(torch.uint32))


def has_rule(name: str) -> bool:
    """Whether an operator is a random one."""
    return name in _RULES


class Stream:
    """The random numbers of one graph while it is recorded.

    Attributes:
        used: whether the graph has random operators.
        count: 32-bit numbers taken so far, a multiple of 4.
    """

    def __init__(self, module: GraphModule) -> None:
        self.used = any(has_rule(overload_name(node.target)) for node in _nodes(module))
        self.count: Size = 0
        self._start: Value = None

    def avals(self) -> list[Aval]:
        """The type of the extra input, if there is one."""
        return [START] if self.used else []

    def start(self, value: Value) -> None:
        """The extra input: u32[4], see :func:`trnx_torch.philox.words`."""
        self._start = value

    def words(self, shape: Sequence[Size]) -> Value:
        """The next words of the stream, in a block of their own."""
        total: Size = 1
        for size in shape:
            total = total * size
        result = philox.words(self._start, shape, self.count // 4)
        self.count = self.count + (total + 3) // 4 * 4
        return result


def _nodes(module: GraphModule) -> Iterator[Node]:
    for inner in module.modules():
        if isinstance(inner, GraphModule):
            yield from inner.graph.nodes


def _random(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def apply(
    stream: Stream, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], fake: Any
) -> Any:
    """The result of a random operator.

    Raises:
        NotImplementedError: it draws from a generator of its own, or from too wide a range.
    """
    if kwargs.pop("generator", None) is not None:
        raise NotImplementedError("a generator in a graph; seed the device with torch.manual_seed")
    for place in ("layout", "device", "pin_memory", "memory_format"):
        kwargs.pop(place, None)
    kwargs.pop("dtype", None)
    return _RULES[name](stream, fake, *args, **kwargs)


# Mantissa bits drawn per dtype: more would round up to 1.
_BITS = {torch.bfloat16: 8, torch.float16: 11}


def _uniform(stream: Stream, shape: Sequence[Size], dtype: torch.dtype) -> Value:
    return philox.unit(stream.words(shape), _BITS.get(dtype, 24))


def _normals(stream: Stream, shape: Sequence[Size]) -> Value:
    pairs = stream.words((2, *shape))
    return philox.normal(pairs[0], pairs[1])


@_random("rand.default")
def _rand(stream: Stream, fake: Any, shape: Sequence[Size]) -> Value:
    return _uniform(stream, tuple(shape), fake.dtype)


@_random("rand_like.default")
def _rand_like(stream: Stream, fake: Any, x: Value) -> Value:
    return _uniform(stream, x.shape, fake.dtype)


@_random("uniform.default")
def _uniform_between(
    stream: Stream, fake: Any, x: Value, low: float = 0.0, high: float = 1.0
) -> Value:
    return low + (high - low) * _uniform(stream, x.shape, fake.dtype)


@_random("randn.default")
def _randn(stream: Stream, fake: Any, shape: Sequence[Size]) -> Value:
    return _normals(stream, tuple(shape))


@_random("randn_like.default")
def _randn_like(stream: Stream, fake: Any, x: Value) -> Value:
    return _normals(stream, x.shape)


@_random("normal_functional.default", "normal.float_Tensor")
def _normal(stream: Stream, fake: Any, x: Value, mean: Value = 0.0, std: Value = 1.0) -> Value:
    return mean + std * _normals(stream, x.shape)


@_random("bernoulli.default")
def _bernoulli(stream: Stream, fake: Any, p: Value) -> Value:
    return _uniform(stream, p.shape, torch.float32) < p.astype(np.float32)


@_random("bernoulli.p")
def _bernoulli_p(stream: Stream, fake: Any, x: Value, p: float = 0.5) -> Value:
    return _uniform(stream, x.shape, torch.float32) < p


@_random("native_dropout.default")
def _dropout(stream: Stream, fake: Any, x: Value, p: float, train: bool | None) -> Any:
    if train is False:
        return x, np.ones(x.shape, dtype=np.bool_)
    keep = _uniform(stream, x.shape, torch.float32) >= p
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return np.where(keep, x * scale, np.zeros_like(x)), keep


@_random("exponential.default")
def _exponential(stream: Stream, fake: Any, x: Value, lambd: float = 1.0) -> Value:
    return -np.log(1.0 - _uniform(stream, x.shape, torch.float32)) / lambd


@_random("randint.default")
def _randint(stream: Stream, fake: Any, high: int, shape: Sequence[Size]) -> Value:
    return _integers(stream, 0, high, tuple(shape), fake.dtype)


@_random("randint.low")
def _randint_low(stream: Stream, fake: Any, low: int, high: int, shape: Sequence[Size]) -> Value:
    return _integers(stream, low, high, tuple(shape), fake.dtype)


@_random("randint_like.default")
def _randint_like(stream: Stream, fake: Any, x: Value, high: int) -> Value:
    return _integers(stream, 0, high, x.shape, fake.dtype)


@_random("randint_like.low_dtype")
def _randint_like_low(stream: Stream, fake: Any, x: Value, low: int, high: int) -> Value:
    return _integers(stream, low, high, x.shape, fake.dtype)


def _integers(
    stream: Stream, low: int, high: int, shape: Sequence[Size], dtype: torch.dtype
) -> Value:
    if high - low >= 2**31:
        raise NotImplementedError(f"random integers in a range of {high - low}")
    span = np.full((), high - low, dtype=np.uint32)
    chosen = np.remainder(stream.words(shape), span)
    return chosen.astype(to_trnx_dtype(dtype)) + low
