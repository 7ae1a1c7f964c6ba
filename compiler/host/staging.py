"""Drops DMA loads that only stage data for TensorE: the host reads HBM where it lies.

A tile that one DMA fills and that only transposes (or matrix products with few rows, which use
each element few times) read needs no copy: their operands become HBM accesses. Matrix products
with many rows keep the copy, which packs their operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trnx.compiler.host.types import DType
from trnx.compiler.tile.analysis import accesses, written_registers
from trnx.compiler.tile.expr import Index, add, mul, scale, symbols
from trnx.compiler.tile.ir import (
    Access,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Span,
    Statement,
    TileAccess,
    While,
    walk,
)
from trnx.compiler.tile.views import merge_spans

FEW_ROWS: Final = 32
"""Rows of a product up to which its moving operand is read in place: below, copying it costs more
than the copy's better layout saves."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load of a tile: element ``first + j`` of row ``p`` is HBM element ``p`` rows and ``j``
    steps from ``source.offset``.
    """

    source: HbmAccess
    start: int
    first: Index
    step: Index


def elide_staging(
    kernel: Kernel,
    dtype_of: Callable[[Access], DType],
    read_only: Callable[[str], bool],
) -> Kernel:
    """The kernel without the loads that only stage.

    Args:
        kernel: the kernel.
        dtype_of: element type of an access.
        read_only: whether nothing in the kernel writes the memory of an HBM parameter.
    """
    changing = written_registers(kernel.body)
    reads: dict[str, list[Instruction]] = {}
    writes: dict[str, int] = {}
    for statement in walk(kernel.body):
        for access, written in accesses(statement):
            if not isinstance(access, TileAccess):
                continue
            if written:
                writes[access.tile] = writes.get(access.tile, 0) + 1
            elif isinstance(statement, Instruction):
                reads.setdefault(access.tile, []).append(statement)
            else:
                writes[access.tile] = 2
    loads: dict[str, _Load] = {}
    for body in _bodies(kernel.body):
        own = {s.tile.name for s in body if isinstance(s, Alloc)}
        for statement in body:
            if not isinstance(statement, Instruction):
                continue
            load = _load(statement, dtype_of, read_only, changing)
            destination = statement.outs[0]
            if load is None or not isinstance(destination, TileAccess):
                continue
            name = destination.tile
            if name not in own or writes.get(name) != 1 or name not in reads:
                continue
            if all(_reads_in_place(i, name, load, dtype_of) for i in reads[name]):
                loads[name] = load
    if not loads:
        return kernel
    return replace(kernel, body=tuple(_rewrite(kernel.body, loads)))


def _bodies(body: Sequence[Statement]) -> Iterator[Sequence[Statement]]:
    yield body
    for statement in body:
        if isinstance(statement, For | While):
            yield from _bodies(statement.body)


def _load(
    statement: Instruction,
    dtype_of: Callable[[Access], DType],
    read_only: Callable[[str], bool],
    changing: set[str],
) -> _Load | None:
    if statement.op != "dma_copy":
        return None
    target, source = statement.outs[0], statement.ins[0]
    if not isinstance(target, TileAccess) or not isinstance(source, HbmAccess):
        return None
    if source.index is not None or not read_only(source.buffer):
        return None
    if dtype_of(target) != dtype_of(source) or not source.spans:
        return None
    used = symbols(source.offset)
    for span in source.spans:
        used |= symbols(span.stride)
    if used & changing:
        return None
    inner, outer = merge_spans(target.spans), merge_spans(source.spans[1:])
    if len(inner) > 1 or len(outer) > 1 or (inner and inner[0].stride != 1):
        return None
    step = outer[0].stride if outer else 1
    return _Load(source, target.start, target.offset, step)


def _reads_in_place(
    instruction: Instruction, name: str, load: _Load, dtype_of: Callable[[Access], DType]
) -> bool:
    """Whether an instruction reads tile ``name`` only as an operand that may lie in HBM."""
    if instruction.op == "nc_transpose":
        return True
    if instruction.op != "nc_matmul" or load.step != 1:
        return False
    stationary, moving = instruction.ins[:2]
    assert isinstance(stationary, TileAccess) and isinstance(moving, TileAccess)
    if stationary.tile == name or dtype_of(moving) != dtype_of(instruction.outs[0]):
        return False
    rows: Index = 1
    for span in stationary.spans:
        rows = mul(rows, span.count)
    spans = merge_spans(moving.spans)
    dense = not spans or (len(spans) == 1 and spans[0].stride == 1)
    return dense and isinstance(rows, int) and rows <= FEW_ROWS


def _rewrite(body: Sequence[Statement], loads: Mapping[str, _Load]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, Alloc) and statement.tile.name in loads:
            continue
        if isinstance(statement, For | While):
            yield replace(statement, body=tuple(_rewrite(statement.body, loads)))
            continue
        if not isinstance(statement, Instruction):
            yield statement
            continue
        target = statement.outs[0]
        if isinstance(target, TileAccess) and target.tile in loads:
            continue
        yield replace(
            statement,
            ins=tuple(
                _in_place(o, loads[o.tile]) if isinstance(o, TileAccess) and o.tile in loads else o
                for o in statement.ins
            ),
        )


def _in_place(access: TileAccess, load: _Load) -> HbmAccess:
    """The HBM elements that ``access`` would find in the tile."""
    row = load.source.spans[0].stride
    down = scale(row, access.start - load.start)
    along = mul(add(access.offset, scale(load.first, -1)), load.step)
    spans = [Span(mul(span.stride, load.step), span.count) for span in access.spans]
    offset = add(load.source.offset, add(down, along))
    return HbmAccess(load.source.buffer, offset, (Span(row, access.partitions), *spans))
