"""Array-like views of HBM parameters and on-chip tiles, for writing kernels by hand.

A view is an access pattern that still knows its dtype and can be sliced, permuted, broadcast and
reshaped. Slices take integer expressions, so a tail is ``x[i * 128 : i * 128 + rows]`` with
``rows = minimum(128, n - i * 128)``. Views are immutable; each method returns a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.tile.expr import Expr, Index, add, ceildiv, mul, scale
from trnx.compiler.tile.ir import HbmAccess, Param, Span, Tile, TileAccess
from trnx.core.errors import TileError, message

Key: TypeAlias = Any
"""What goes between brackets: an index, a slice, ``None``, ``...`` or a tuple of these."""


def _error(cause: str, remedy: str) -> TileError:
    return TileError(message(cause, None, remedy))


def is_index(value: object) -> bool:
    """Whether ``value`` can be an integer expression (a bool cannot)."""
    return isinstance(value, Expr | int | np.integer) and not isinstance(value, bool)


def as_index(value: Any) -> Index:
    """``value`` as a plain int or an expression."""
    return value if isinstance(value, Expr) else int(value)


def _expand(key: Key, rank: int, what: str) -> list[Key]:
    """The key as one entry per dimension (``None`` entries come extra), ``...`` filled in."""
    entries = list(key) if isinstance(key, tuple) else [key]
    given = sum(1 for e in entries if e is not None and e is not Ellipsis)
    if sum(1 for e in entries if e is Ellipsis) > 1:
        raise _error(f"an index of {what} has more than one '...'", "Keep one")
    if given > rank:
        raise _error(
            f"{given} indices for {what}, which has {rank} dimensions", "Drop the extra indices"
        )
    fill: list[Key] = [slice(None)] * (rank - given)
    for position, entry in enumerate(entries):
        if entry is Ellipsis:
            return entries[:position] + fill + entries[position + 1 :]
    return entries + fill


def _bound(value: Any, count: Index, default: Index) -> Index:
    if value is None:
        return default
    index = as_index(value)
    if isinstance(index, int) and index < 0:
        return add(count, index)
    return index


def _range(entry: Any, count: Index, what: str) -> tuple[Index, Index, int]:
    """``(start, count, step)`` of an integer or slice over a dimension of ``count``."""
    if isinstance(entry, slice):
        step = 1 if entry.step is None else entry.step
        if not isinstance(step, int) or step < 1:
            raise _error(f"slice step {step} of {what} is not a positive int", "Use a step >= 1")
        start = _bound(entry.start, count, 0)
        stop = _bound(entry.stop, count, count)
        steps = ceildiv(add(stop, scale(start, -1)), step)
    elif is_index(entry):
        start, steps, step = _bound(entry, count, 0), 1, 1
        stop = add(start, 1)
    else:
        raise _error(
            f"{type(entry).__name__} cannot index {what}", "Use integers, slices, None or '...'"
        )
    inside = not isinstance(start, int) or start >= 0
    if isinstance(stop, int) and isinstance(count, int):
        inside = inside and stop <= count
    if isinstance(steps, int):
        inside = inside and steps >= 0
    if not inside:
        raise _error(
            f"slice {start}:{stop} leaves a dimension of {count} of {what}",
            "Bound the slice with minimum()",
        )
    return start, steps, step


def merge_spans(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same elements in the same order with as few spans as possible; size-1 spans vanish."""
    merged: list[Span] = []
    for span in spans:
        if span.count == 1:
            continue
        if merged and merged[-1].stride == mul(span.stride, span.count):
            merged[-1] = Span(span.stride, mul(merged[-1].count, span.count))
        else:
            merged.append(span)
    return tuple(merged)


def reshape_spans(spans: Sequence[Span], shape: Sequence[Index]) -> tuple[Span, ...] | None:
    """Spans of ``shape`` over the same elements in order; None when strides do not allow it."""
    if tuple(s.count for s in spans) == tuple(shape):
        return tuple(spans)
    if 0 in shape:
        return None  # no element: nothing to share
    groups = list(merge_spans(spans))
    result: list[Span] = []
    inner = 1
    for count in reversed(shape):
        if count == 1:
            # The stride of one element is free; the dense one keeps equal views equal.
            stride = result[-1] if result else Span(1, 1)
            result.append(Span(mul(stride.stride, stride.count), 1))
            continue
        if not groups:
            return None
        group = groups[-1]
        if inner == 1 and group.count == count:
            result.append(group)
            groups.pop()
            continue
        if not isinstance(count, int) or not isinstance(group.count, int):
            return None
        if group.count % (inner * count):
            return None
        result.append(Span(scale(group.stride, inner), count))
        inner *= count
        if inner == group.count:
            groups.pop()
            inner = 1
    return None if groups else tuple(reversed(result))


def _slice_spans(spans: Sequence[Span], entries: list[Key], what: str) -> tuple[Index, list[Span]]:
    offset: Index = 0
    kept: list[Span] = []
    pending = list(spans)
    for entry in entries:
        if entry is None:
            kept.append(Span(1, 1))
            continue
        span = pending.pop(0)
        start, steps, step = _range(entry, span.count, what)
        offset = add(offset, mul(start, span.stride))
        if isinstance(entry, slice):
            kept.append(Span(scale(span.stride, step), steps))
    return offset, kept


def _permute(spans: Sequence[Span], axes: Sequence[int], what: str) -> tuple[Span, ...]:
    if sorted(axes) != list(range(len(spans))):
        raise _error(
            f"permute{tuple(axes)} of {what} does not name each of {len(spans)} axes once",
            "Name every axis once",
        )
    return tuple(spans[a] for a in axes)


def _broadcast(
    spans: Sequence[Span], axis: int, count: Index, what: str, shown: int
) -> tuple[Span, ...]:
    if spans[axis].count != 1:
        raise _error(
            f"axis {shown} of {what} has {spans[axis].count} elements and cannot be broadcast",
            "Broadcast an axis of size 1",
        )
    result = list(spans)
    result[axis] = Span(0, count)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class HbmView:
    """A view of an HBM parameter; see the module docstring."""

    param: Param
    offset: Index
    spans: tuple[Span, ...]
    index: TileAccess | None = None

    @property
    def access(self) -> HbmAccess:
        """The access pattern this view stands for."""
        return HbmAccess(self.param.name, self.offset, self.spans, self.index)

    @property
    def shape(self) -> tuple[Index, ...]:
        """Counts of the spans."""
        return tuple(s.count for s in self.spans)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the parameter."""
        return self.param.dtype

    def __getitem__(self, key: Key) -> HbmView:
        """Slice: an integer drops its dimension, ``None`` adds one of size 1."""
        entries = _expand(key, len(self.spans), self._name)
        offset, spans = _slice_spans(self.spans, entries, self._name)
        return replace(self, offset=add(self.offset, offset), spans=tuple(spans))

    def permute(self, *axes: int) -> HbmView:
        """Reorder the dimensions."""
        return replace(self, spans=_permute(self.spans, axes, self._name))

    def broadcast(self, axis: int, count: Index) -> HbmView:
        """Repeat an axis of size 1 ``count`` times (stride 0)."""
        return replace(self, spans=_broadcast(self.spans, axis, count, self._name, axis))

    def reshape(self, *shape: Index) -> HbmView:
        """The same elements in the same order with another shape; TileError if strides forbid."""
        spans = reshape_spans(self.spans, shape)
        if spans is None:
            raise _error(
                f"{self._name} viewed as {list(map(str, self.shape))} cannot be reshaped to "
                f"{list(map(str, shape))} without a copy",
                "Copy to a dense buffer first",
            )
        return replace(self, spans=spans)

    def indexed(self, index: TileView | TileAccess) -> HbmView:
        """Gather or scatter: row ``p`` of the transfer starts at ``index[p]`` rows from the view.

        ``index`` is a ``[P, 1]`` int32/uint32 tile view; the view's first dimension is the one
        indexed and its count becomes P.
        """
        access = index.access if isinstance(index, TileView) else index
        first = Span(self.spans[0].stride, access.partitions)
        return replace(self, spans=(first, *self.spans[1:]), index=access)

    @property
    def _name(self) -> str:
        return f"parameter '{self.param.name}'"


@dataclass(frozen=True, slots=True)
class TileView:
    """A view of an on-chip tile: dimension 0 is the partition, the others are free."""

    tile: Tile
    start: int
    partitions: Index
    offset: Index
    spans: tuple[Span, ...]

    @property
    def access(self) -> TileAccess:
        """The access pattern this view stands for."""
        return TileAccess(self.tile.name, self.start, self.partitions, self.offset, self.spans)

    @property
    def shape(self) -> tuple[Index, ...]:
        """``(partitions, free counts …)``."""
        return (self.partitions, *(s.count for s in self.spans))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the tile."""
        return self.tile.dtype

    def __getitem__(self, key: Key) -> TileView:
        """Slice: an integer drops a free dimension but keeps the partition with size 1."""
        entries = _expand(key, 1 + len(self.spans), self._name)
        if entries[0] is None:
            raise _error(f"None before the partition of {self._name}", "Add free dimensions only")
        start, partitions, step = _range(entries[0], self.partitions, self._name)
        if not isinstance(start, int) or step != 1:
            raise _error(
                f"partitions {entries[0]} of {self._name} do not start at a constant with step 1",
                "Choose partitions by constants; move data between partitions with nc_transpose, "
                "nc_matmul or dma_copy",
            )
        offset, spans = _slice_spans(self.spans, entries[1:], self._name)
        return replace(
            self,
            start=self.start + start,
            partitions=partitions,
            offset=add(self.offset, offset),
            spans=tuple(spans) or (Span(1, 1),),
        )

    def permute(self, *axes: int) -> TileView:
        """Reorder the dimensions; ``axes[0]`` must be 0, the partition."""
        if not axes or axes[0] != 0:
            raise _error(
                f"permute{axes} of {self._name} moves the partition",
                "Keep axis 0 first, or transpose with nc_transpose",
            )
        return replace(self, spans=_permute(self.spans, [a - 1 for a in axes[1:]], self._name))

    def broadcast(self, axis: int, count: Index) -> TileView:
        """Repeat a free axis of size 1 ``count`` times (stride 0)."""
        if axis < 1:
            raise _error(
                f"axis {axis} of {self._name} is the partition and cannot be broadcast",
                "Read HBM with stride 0 by dma_copy, or multiply with a matrix of ones",
            )
        return replace(self, spans=_broadcast(self.spans, axis - 1, count, self._name, axis))

    def reshape(self, *shape: Index) -> TileView:
        """Reshape the free dimensions; ``shape[0]`` is the unchanged partition count."""
        spans = reshape_spans(self.spans, shape[1:])
        if not shape or shape[0] != self.partitions or spans is None:
            raise _error(
                f"{self._name} viewed as {list(map(str, self.shape))} cannot be reshaped to "
                f"{list(map(str, shape))}",
                "Keep the partition count and the order of elements",
            )
        return replace(self, spans=spans)

    @property
    def _name(self) -> str:
        return f"tile '{self.tile.name}'"
