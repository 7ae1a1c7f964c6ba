"""Partition-local instructions as operations on one row.

A ``RowOp`` is an instruction seen from one partition: a nest of free dimensions and, for each
operand, how it walks that nest. Dimensions of one element are dropped. ``refine`` finds a common
nest for operations that see the same elements in different shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeGuard

import numpy as np

from trnx.compiler.host.types import DType
from trnx.compiler.tile.expr import Index, add, mul, scale
from trnx.compiler.tile.ir import Access, HbmAccess, Instruction, Span, TileAccess
from trnx.core.errors import TileError, message

ELEMENTWISE: Final = frozenset(
    (
        "activation",
        "tensor_tensor",
        "tensor_scalar",
        "scalar_tensor_tensor",
        "tensor_reduce",
        "tensor_copy",
        "tensor_copy_predicated",
        "reciprocal",
        "memset",
        "iota",
        "affine_select",
        "dma_copy",
        "dma_compute",
    )
)
SEQUENTIAL: Final = frozenset(("tensor_tensor_scan", "max8", "nc_find_index8", "row_sort"))
"""Partition-local as well, but a row is done as a whole, from memory to memory."""

Counts = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """How an operand walks the nest of its operation, in elements.

    A row scalar has a stride of 0 in every dimension. ``strides`` of a reduction's result covers
    the leading dimensions that are kept.
    """

    access: Access
    dtype: DType
    strides: Counts

    @property
    def offset(self) -> Index:
        """Element offset of the row's first element from the row's start."""
        return self.access.offset

    @property
    def memory(self) -> str:
        """Name of the tile or HBM parameter."""
        return self.access.tile if isinstance(self.access, TileAccess) else self.access.buffer

    @property
    def on_chip(self) -> bool:
        """Whether this is a tile."""
        return isinstance(self.access, TileAccess)


@dataclass(frozen=True, slots=True)
class RowOp:
    """One instruction of a row group.

    ``sources`` has an entry per operand in declared order (None where the operand is absent or
    no access); ``old`` is the destination's present content where it matters; ``indices`` are
    the index tiles of indirect DMA. ``results`` are the written operands with the number of nest
    dimensions each keeps. ``pattern`` holds the steps of an affine pattern per dimension.
    """

    order: int
    instruction: Instruction
    counts: Counts
    sources: tuple[Walk | None, ...]
    results: tuple[tuple[Walk, int], ...]
    old: Walk | None
    indices: tuple[Walk, ...]
    pattern: Counts
    sequential: bool

    @property
    def reads(self) -> list[Walk]:
        """All operands that are read."""
        walks = [w for w in self.sources if w is not None]
        walks.extend(self.indices)
        return walks if self.old is None else [*walks, self.old]

    @property
    def boundaries(self) -> list[int]:
        """Positions in the nest where a reduction starts."""
        return [kept for _, kept in self.results if kept < len(self.counts)]

    @property
    def is_load(self) -> bool:
        """Whether this only brings HBM data into a tile (and may be repeated instead)."""
        if self.instruction.op != "dma_copy":
            return False
        source = self.sources[0]
        assert source is not None
        return not source.on_chip and self.results[0][0].on_chip


def free_spans(access: Access) -> tuple[Span, ...]:
    """The spans inside one partition (row)."""
    return access.spans if isinstance(access, TileAccess) else access.spans[1:]


def partitions(instruction: Instruction) -> Index:
    """Rows of an instruction: the partition count of its tiles; 1 for HBM to HBM."""
    operands = [*instruction.outs, *instruction.ins]
    for operand in operands:
        if isinstance(operand, TileAccess):
            return operand.partitions
    return 1


def row_op(order: int, instruction: Instruction, dtype_of: Callable[[Access], DType]) -> RowOp:
    """The row view of a partition-local instruction.

    Raises:
        TileError: operand shapes do not fit.
    """
    op = instruction.op
    sequential = (
        op in SEQUENTIAL
        or (op == "tensor_reduce" and instruction.attr("op") == "subtract")
        or (op == "dma_compute" and not _injective(free_spans(instruction.outs[0])))
    )
    view = _whole_rows(instruction, dtype_of) if sequential else _by_element(instruction, dtype_of)
    indices = tuple(
        Walk(o.index, dtype_of(o.index), (0,) * len(view.counts))
        for o in (*instruction.outs, *instruction.ins)
        if isinstance(o, HbmAccess) and o.index is not None
    )
    old = view.results[0][0] if op in ("tensor_copy_predicated", "dma_compute") else None
    made = RowOp(
        order, instruction, view.counts, view.sources, view.results, old, indices, (), sequential
    )
    return _with_pattern(made) if op in ("iota", "affine_select") else made


@dataclass(frozen=True, slots=True)
class _View:
    counts: Counts
    sources: tuple[Walk | None, ...]
    results: tuple[tuple[Walk, int], ...]


def _whole_rows(instruction: Instruction, dtype_of: Callable[[Access], DType]) -> _View:
    """Operands of a sequential operation, each with its own dimensions."""

    def whole(access: Access) -> Walk:
        return Walk(access, dtype_of(access), tuple(s.stride for s in free_spans(access)))

    sources = tuple(whole(o) if _is_access(o) else None for o in instruction.ins)
    counts = tuple(s.count for s in free_spans(_shaped_operand(instruction)))
    results = tuple((whole(out), len(counts)) for out in instruction.outs)
    return _View(counts, sources, results)


def _by_element(instruction: Instruction, dtype_of: Callable[[Access], DType]) -> _View:
    """Operands of an elementwise operation or reduction in a nest that fits them all."""
    local = all(isinstance(a, HbmAccess) for a in (*instruction.outs, *instruction.ins))

    def dims(access: Access) -> list[Span]:
        spans = access.spans if local else free_spans(access)
        return [s for s in spans if s.count != 1]

    def counts_of(spans: Sequence[Span]) -> Counts:
        return tuple(s.count for s in spans)

    shaped = _shaped_operand(instruction)
    spans = dims(shaped)
    kept = len(spans)
    if instruction.op == "tensor_reduce":
        axes = instruction.attr("axis", (1,))
        size = len(axes) if isinstance(axes, tuple) else 1
        free = free_spans(shaped)
        kept = sum(s.count != 1 for s in free[: len(free) - size])
    outer, inner = counts_of(spans[:kept]), counts_of(spans[kept:])
    operands = [o for o in instruction.ins if isinstance(o, TileAccess | HbmAccess)]
    for access in operands:
        own = counts_of(dims(access))
        if own and access is not shaped:
            outer = _common(outer, own, instruction)
    outer = _common(outer, counts_of(dims(instruction.outs[0])), instruction)
    nest = outer + inner

    def walk(access: Access, covered: Counts) -> Walk:
        own = dims(access)
        strides: Counts = (0,) * len(covered)
        if own or not covered:
            strides = split(counts_of(own), tuple(s.stride for s in own), covered)
        return Walk(access, dtype_of(access), strides)

    sources = tuple(
        walk(o, nest) if isinstance(o, TileAccess | HbmAccess) else None for o in instruction.ins
    )
    results = [(walk(instruction.outs[0], outer), len(outer))]
    if len(instruction.outs) > 1:
        results.append((walk(instruction.outs[1], ()), 0))
    return _View(nest, sources, tuple(results))


def _is_access(operand: object) -> TypeGuard[Access]:
    return isinstance(operand, TileAccess | HbmAccess)


def _common(left: Counts, right: Counts, instruction: Instruction) -> Counts:
    nest = refine(left, right)
    if nest is not None:
        return nest
    raise TileError(
        message(
            f"{instruction.op}: free shapes {[str(c) for c in left]} and "
            f"{[str(c) for c in right]} differ",
            instruction.source,
            "Give every operand the same partition and free counts",
        )
    )


def _with_pattern(op: RowOp) -> RowOp:
    """The operation in the nest of its affine pattern, which may split dimensions finer."""
    declared = op.instruction.attr("pattern", ())
    assert isinstance(declared, tuple)
    pairs = [(step, count) for step, count in declared if count != 1]  # type: ignore[misc]
    counts = tuple(count for _, count in pairs)
    nest = refine(op.counts, counts)
    if nest is None:
        raise TileError(
            message(
                f"{op.instruction.op}: pattern counts {[str(c) for c in counts]} for "
                f"{[str(c) for c in op.counts]} elements per partition",
                op.instruction.source,
                "Give as many steps as the destination has elements per partition",
            )
        )

    def finer(walk: Walk) -> Walk:
        return replace(walk, strides=split(op.counts, walk.strides, nest))

    return replace(
        op,
        counts=nest,
        sources=tuple(None if w is None else finer(w) for w in op.sources),
        results=tuple((finer(w), len(nest)) for w, _ in op.results),
        pattern=split(counts, tuple(step for step, _ in pairs), nest),
    )


def _shaped_operand(instruction: Instruction) -> Access:
    """The operand whose shape is the nest: what a reduction reads, else what is written."""
    if instruction.op == "tensor_reduce" or instruction.op in SEQUENTIAL:
        data = instruction.ins[0]
        assert isinstance(data, TileAccess | HbmAccess)
        return data
    return instruction.outs[0]


def _injective(spans: Sequence[Span]) -> bool:
    """Whether no two positions of a walk are provably the same element."""
    reach = 0
    dims = [(s.stride, s.count) for s in spans if s.count != 1]
    if not all(isinstance(stride, int) and isinstance(count, int) for stride, count in dims):
        return False
    for stride, count in sorted((abs(int(str(s))), int(str(c))) for s, c in dims):
        if stride <= reach:
            return False
        reach += stride * (count - 1)
    return True


def overlaps_itself(op: RowOp) -> bool:
    """Whether an operation may read elements of a tile after writing them in its own loop."""
    for written, kept in op.results:
        for read in op.reads:
            if not written.on_chip or read.memory != written.memory or not read.on_chip:
                continue
            if read.access == written.access and kept == len(op.counts):
                continue
            if not disjoint(written, op.counts, read, op.counts):
                return True
    return False


def refine(left: Counts, right: Counts) -> Counts | None:
    """The coarsest nest both can be split into; None when there is none."""
    if left == right:
        return left
    if not all(isinstance(c, int) and c > 0 for c in (*left, *right)):
        return None
    a, b = [int(str(c)) for c in left], [int(str(c)) for c in right]
    if int(np.prod(a, dtype=object)) != int(np.prod(b, dtype=object)):
        return None
    result: list[Index] = []
    x, y = a.pop(), b.pop()
    while True:
        step = min(x, y)
        if x % step or y % step:
            return None
        result.append(step)
        x, y = x // step, y // step
        if x == 1 and a:
            x = a.pop()
        if y == 1 and b:
            y = b.pop()
        if x == 1 and y == 1 and not a and not b:
            return tuple(reversed(result))


def split(counts: Counts, strides: Counts, nest: Counts) -> Counts:
    """``strides`` of dimensions ``counts`` for the finer ``nest`` (of the leading dimensions).

    ``strides`` may cover only leading dimensions; the answer then covers those too.
    """
    if counts == nest:
        return strides
    result: list[Index] = []
    position = 0
    for k, count in enumerate(counts):
        parts: list[Index] = []
        product = 1
        while product != count:
            parts.append(nest[position])
            product *= int(str(nest[position]))
            position += 1
        if k < len(strides):
            stride = strides[k]
            inner: Index = 1
            pieces: list[Index] = []
            for part in reversed(parts):
                pieces.append(mul(stride, inner))
                inner = mul(inner, part)
            result.extend(reversed(pieces))
    return tuple(result)


def split_position(counts: Counts, position: int, nest: Counts) -> int:
    """Where dimension ``position`` of ``counts`` begins in the finer ``nest``."""
    if counts == nest:
        return position
    total = 1
    for count in counts[:position]:
        total *= int(str(count))
    product, at = 1, 0
    while product != total:
        product *= int(str(nest[at]))
        at += 1
    return at


def extent(counts: Sequence[Index], strides: Sequence[Index]) -> Index:
    """Distance from a walk's first element to its last (strides of any sign are rare)."""
    total: Index = 0
    for count, stride in zip(counts, strides, strict=False):
        total = add(total, mul(stride, add(count, -1)))
    return total


def disjoint(left: Walk, left_counts: Counts, right: Walk, right_counts: Counts) -> bool:
    """Whether two walks of one tile's row provably share no element."""
    gap = add(right.offset, scale(left.offset, -1))
    reach, other = extent(left_counts, left.strides), extent(right_counts, right.strides)
    if not (isinstance(gap, int) and isinstance(reach, int) and isinstance(other, int)):
        return False
    strides = (*left.strides, *right.strides)
    if not all(isinstance(s, int) and s >= 0 for s in strides):
        return False
    return gap > reach or -gap > other
