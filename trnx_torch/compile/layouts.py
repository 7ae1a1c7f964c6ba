"""How the tensors of a graph lie in memory, on both sides of its program.

A tensor whose memory is a dense permutation (the gradient of a transposed weight, a channels-last
image) enters or leaves the program in memory order; everything else is row major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import trnx.numpy as np
from trnx.core import Aval
from trnx.core.dims import Size
from trnx_torch.compile.symbols import Symbols, hint
from trnx_torch.dtypes import to_trnx_dtype


@dataclass(frozen=True, slots=True)
class InputLayout:
    """A tensor input of the program.

    Attributes:
        position: which argument of the graph it is.
        shape: sizes of the memory, row major.
        order: PyTorch's axes from the outermost in memory to the innermost.
        stride: PyTorch's strides, in elements.
        dtype: element type.
    """

    position: int
    shape: tuple[Size, ...]
    order: tuple[int, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Where graph output ``i`` comes from.

    Exactly one of ``program`` (index into the program's outputs), ``argument`` (a graph input
    returned unchanged), ``size_value`` (a size) and ``value`` (a constant such as ``None``)
    applies. ``size`` and ``stride`` describe the tensor PyTorch expects, in elements; its memory is
    dense.
    """

    program: int | None = None
    argument: int | None = None
    size_value: Size | None = None
    value: Any = None
    size: tuple[Size, ...] = ()
    stride: tuple[Size, ...] = ()
    order: tuple[int, ...] = ()
    device: torch.device | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """An input the graph writes to: program output ``program`` is its new value."""

    program: int
    input: int
    layout: InputLayout


@dataclass(frozen=True, slots=True)
class Place:
    """How a tensor lies in memory: ``order`` lists axes from the largest stride to the smallest."""

    size: tuple[Size, ...]
    order: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, fake: torch.Tensor, symbols: Symbols) -> Place:
        """The dense place of a fake tensor; row major when its own strides are not dense."""
        size = symbols.all(fake.shape)
        natural = tuple(range(len(size)))
        if not symbols and fake.is_contiguous():
            return cls(size, natural, fake.dtype)
        counts = tuple(map(hint, fake.shape))
        stride = tuple(map(hint, fake.stride()))
        order = tuple(sorted(natural, key=lambda d: (-stride[d], -counts[d])))
        wanted = dense_strides(counts, order)
        dense = all(
            own == want
            for count, own, want in zip(counts, stride, wanted, strict=True)
            if count > 1
        )
        moved = [d for d in order if counts[d] > 1]
        if not dense or 0 in counts or moved == sorted(moved):
            return cls(size, natural, fake.dtype)
        return cls(size, order, fake.dtype)

    @property
    def stride(self) -> tuple[Size, ...]:
        """Strides in elements."""
        return dense_strides(self.size, self.order)

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes in memory order."""
        return tuple(self.size[d] for d in self.order)

    @property
    def aval(self) -> Aval:
        """The type of the memory, row major."""
        return Aval(self.shape, to_trnx_dtype(self.dtype))

    def from_memory(self, value: Any) -> Any:
        """The tensor's value from its memory's."""
        inverse = tuple(sorted(range(len(self.order)), key=self.order.__getitem__))
        return value if inverse == self.order == _natural(value) else np.transpose(value, inverse)

    def to_memory(self, value: Any) -> Any:
        """The memory's value from the tensor's."""
        return value if self.order == _natural(value) else np.transpose(value, self.order)


def _natural(value: Any) -> tuple[int, ...]:
    return tuple(range(value.ndim))


def dense_strides(size: Sequence[Size], order: Sequence[int]) -> tuple[Any, ...]:
    """Strides of dense memory whose axes have this order, outermost first."""
    strides: list[Size] = [0] * len(size)
    step: Size = 1
    for axis in reversed(order):
        strides[axis] = step
        count = size[axis]
        step = step * (max(count, 1) if isinstance(count, int) else count)
    return tuple(strides)
