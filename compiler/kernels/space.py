"""Iteration spaces: which loop axes a value of a fused group runs over.

Every value of a group gets, per dimension, a tuple of *axes* (outer to inner; none for size 1).
Equations make dimensions equal: an elementwise operation unifies its operands' dimensions with its
output's, a transpose permutes them, and a reshape unifies the two lists of axes, splitting an axis
where one side is finer. What is left after all equations are added is the iteration space of the
group, and views have disappeared into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trnx.compiler.tile.expr import Index, add, ceildiv, floordiv, maximum, mod, mul, symbol
from trnx.compiler.tile.ir import Span, row_major
from trnx.compiler.tile.views import reshape_spans
from trnx.core import Dim, DimVar, Size, Var
from trnx.core.dims import DimQuotient


class Axis:
    """One loop of an iteration space; compared by identity."""

    __slots__ = ("name", "size")

    def __init__(self, size: Index, name: str = "") -> None:
        self.size = size
        self.name = name

    def __repr__(self) -> str:
        return f"Axis({self.name or hex(id(self) & 0xFFFF)}: {self.size})"


Dimension: TypeAlias = tuple[Axis, ...]
"""Axes of one dimension, outer to inner; empty for a dimension of size 1."""


class AxisSpace:
    """Axes of one group: union-find over axes that may also be split in two."""

    def __init__(self) -> None:
        self._same: dict[Axis, Axis] = {}
        self._parts: dict[Axis, tuple[Axis, Axis]] = {}

    def copy(self) -> AxisSpace:
        """An independent copy, so that a unification can be tried."""
        made = AxisSpace()
        made._same = dict(self._same)
        made._parts = dict(self._parts)
        return made

    def fresh(self, shape: Iterable[Index]) -> tuple[Dimension, ...]:
        """New axes for a shape."""
        return tuple(() if size == 1 else (Axis(size),) for size in shape)

    def resolve(self, dimension: Iterable[Axis]) -> Dimension:
        """The present representatives of axes, split where they were split."""
        found: list[Axis] = []
        for axis in dimension:
            axis = self._find(axis)
            parts = self._parts.get(axis)
            if parts is None:
                found.append(axis)
            else:
                found.extend(self.resolve(parts))
        return tuple(found)

    def unify(self, left: Iterable[Axis], right: Iterable[Axis]) -> bool:
        """Make two axis lists (row-major sequences of equal total size) the same.

        Returns:
            False when the sizes have no common refinement; the space is then partly changed and
            must be dropped.
        """
        a, b = list(self.resolve(left)), list(self.resolve(right))
        while a and b:
            x, y = a[0], b[0]
            if x is y or x.size == y.size:
                self._union(x, y)
                del a[0], b[0]
                continue
            if not isinstance(x.size, int) or not isinstance(y.size, int):
                return False
            if 0 in (x.size, y.size):  # an empty value: any split of it would do, none is worth it
                return False
            if x.size > y.size:
                if x.size % y.size:
                    return False
                self._split(x, y.size)
            else:
                if y.size % x.size:
                    return False
                self._split(y, x.size)
            a, b = list(self.resolve(a)), list(self.resolve(b))
        return not a and not b

    def _find(self, axis: Axis) -> Axis:
        root = axis
        while root in self._same:
            root = self._same[root]
        while axis is not root:
            self._same[axis], axis = root, self._same[axis]
        return root

    def _union(self, x: Axis, y: Axis) -> None:
        if x is not y:
            self._same[y] = x

    def _split(self, axis: Axis, outer: int) -> None:
        assert isinstance(axis.size, int)
        self._parts[axis] = (Axis(outer), Axis(axis.size // outer))


@dataclass(frozen=True, slots=True)
class StridedView:
    """A value that is an affine view of a buffer: ``buffer[offset + Σ stride·index]``.

    Attributes:
        root: the variable whose buffer is read.
        offset: elements from the buffer's base.
        spans: stride and count per dimension, in elements.
    """

    root: Var
    offset: Index
    spans: tuple[Span, ...]

    @property
    def shape(self) -> tuple[Index, ...]:
        """Counts of the dimensions."""
        return tuple(s.count for s in self.spans)

    def permute(self, axes: Sequence[int]) -> StridedView:
        """Dimensions in another order."""
        return StridedView(self.root, self.offset, tuple(self.spans[a] for a in axes))

    def broadcast(self, shape: Sequence[Index], dims: Sequence[int]) -> StridedView:
        """Dimension ``i`` becomes dimension ``dims[i]`` of ``shape``; the rest repeats."""
        spans = [Span(0, count) for count in shape]
        for own, place in zip(self.spans, dims, strict=True):
            if own.count != 1 or shape[place] == 1:
                spans[place] = own
        return StridedView(self.root, self.offset, tuple(spans))

    def reshape(self, shape: Sequence[Index]) -> StridedView | None:
        """The same elements in row-major order of another shape; None when strides forbid it."""
        spans = reshape_spans(self.spans, tuple(shape))
        return None if spans is None else StridedView(self.root, self.offset, spans)

    def slice(
        self, start: Sequence[Index], stop: Sequence[Index], step: Sequence[int]
    ) -> StridedView:
        """``[start:stop:step]`` per dimension, all steps positive."""
        offset = self.offset
        spans: list[Span] = []
        for span, low, high, by in zip(self.spans, start, stop, step, strict=True):
            offset = offset + mul(span.stride, low)
            spans.append(Span(mul(span.stride, by), maximum(0, ceildiv(high - low, by))))
        return StridedView(self.root, offset, tuple(spans))

    def reverse(self, dimensions: Iterable[int]) -> StridedView:
        """The given dimensions run backwards."""
        offset = self.offset
        spans = list(self.spans)
        for d in dimensions:
            span = spans[d]
            offset = offset + mul(span.stride, span.count + (-1))
            spans[d] = Span(mul(span.stride, -1), span.count)
        return StridedView(self.root, offset, tuple(spans))

    def windows(
        self, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
    ) -> StridedView:
        """``[..., *places, *window]`` of a window over the last dimensions; places may overlap."""
        first = len(self.spans) - len(window)
        places: list[Span] = []
        taps: list[Span] = []
        for span, size, step, apart in zip(
            self.spans[first:], window, strides, dilation, strict=True
        ):
            reach = (size - 1) * apart
            places.append(Span(mul(span.stride, step), ceildiv(span.count - reach, step)))
            taps.append(Span(mul(span.stride, apart), size))
        return StridedView(self.root, self.offset, (*self.spans[:first], *places, *taps))

    @property
    def is_dense(self) -> bool:
        """Whether the view is the whole buffer of its own shape in row-major order."""
        dense = row_major(self.shape)
        return self.offset == 0 and all(
            own.count == 1 or own.stride == full.stride
            for own, full in zip(self.spans, dense, strict=True)
        )


def axis_strides(spans: Sequence[Span], dimensions: Sequence[Dimension]) -> dict[Axis, Index]:
    """Stride of each axis for a strided view whose dimensions run over these axes.

    An axis with stride 0 (a broadcast) is left out.
    """
    strides: dict[Axis, Index] = {}
    for span, dimension in zip(spans, dimensions, strict=True):
        stride = span.stride
        for axis in reversed(dimension):
            if stride != 0:
                strides[axis] = strides.get(axis, 0) + stride
            stride = mul(stride, axis.size)
    return {axis: stride for axis, stride in strides.items() if stride != 0}


def to_index(size: Size) -> Index:
    """A size as an index expression; a symbolic size reads the register of its name."""
    if not isinstance(size, Dim):
        return size
    total: Index = 0
    for monomial, factor in size._terms:
        term: Index = factor
        for atom, power in monomial:
            value: Index = symbol(atom.name) if isinstance(atom, DimVar) else _quotient(atom)
            for _ in range(power):
                term = mul(term, value)
        total = add(total, term)
    return total


def _quotient(atom: DimQuotient) -> Index:
    apply = floordiv if atom.operator == "//" else mod
    return apply(to_index(atom.numerator), to_index(atom.denominator))


def to_indices(shape: Iterable[Size]) -> tuple[Index, ...]:
    """`to_index` of every size of a shape."""
    return tuple(size if isinstance(size, int) else to_index(size) for size in shape)


def dense_view(var: Var) -> StridedView:
    """A variable as a view of its own row-major buffer."""
    return StridedView(var, 0, row_major(to_indices(var.aval.shape)))
