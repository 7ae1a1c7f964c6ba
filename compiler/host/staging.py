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
from trnx.compiler.tile.expr import Expr, Index, add, mul, scale, symbols
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
class _Dim:
    """A free dimension of a load: elements apart in the tile, in HBM, and how many."""

    tile: int
    hbm: Index
    count: Index


@dataclass(frozen=True, slots=True)
class _Load:
    """A load of a tile from ``source``, rows from ``start`` on, elements from ``first`` on.

    ``dims`` are its free dimensions, outermost in the tile first.
    """

    source: HbmAccess
    start: int
    first: Index
    dims: tuple[_Dim, ...]


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
    dims = _dims(target.spans, source.spans[1:])
    return None if dims is None else _Load(source, target.start, target.offset, dims)


def _dims(tile: Sequence[Span], hbm: Sequence[Span]) -> tuple[_Dim, ...] | None:
    """The free dimensions of a dense load; None when the tile's are not nested in order."""
    pairs = [(t, h) for t, h in zip(tile, hbm, strict=False) if t.count != 1]
    if len(tile) != len(hbm) or any(t.count != h.count for t, h in zip(tile, hbm, strict=True)):
        return None
    dims: list[_Dim] = []
    for t, h in pairs:
        if not isinstance(t.stride, int) or t.stride < 1:
            return None
        last = dims[-1] if dims else None
        if last is not None:
            if last.tile != mul(t.stride, t.count):
                return None
            if last.hbm == mul(h.stride, h.count):
                dims[-1] = _Dim(t.stride, h.stride, mul(last.count, t.count))
                continue
        dims.append(_Dim(t.stride, h.stride, t.count))
    return tuple(dims)


def _reads_in_place(
    instruction: Instruction, name: str, load: _Load, dtype_of: Callable[[Access], DType]
) -> bool:
    """Whether an instruction reads tile ``name`` only as an operand that may lie in HBM."""
    if instruction.op not in ("nc_transpose", "nc_matmul"):
        return False
    data = instruction.ins[0] if instruction.op == "nc_transpose" else instruction.ins[1]
    if not isinstance(data, TileAccess) or data.tile != name:
        return False
    moved = _in_place(data, load)
    if moved is None:
        return False
    if instruction.op == "nc_transpose":
        return True
    stationary, moving = instruction.ins[:2]
    assert isinstance(stationary, TileAccess) and isinstance(moving, TileAccess)
    if stationary.tile == name or dtype_of(moving) != dtype_of(instruction.outs[0]):
        return False
    rows: Index = 1
    for span in stationary.spans:
        rows = mul(rows, span.count)
    spans = merge_spans(moved.spans[1:])
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
                _moved(o, loads[o.tile]) if isinstance(o, TileAccess) and o.tile in loads else o
                for o in statement.ins
            ),
        )


def _moved(access: TileAccess, load: _Load) -> HbmAccess:
    moved = _in_place(access, load)
    assert moved is not None
    return moved


def _in_place(access: TileAccess, load: _Load) -> HbmAccess | None:
    """The HBM elements that ``access`` would find in the tile; None when they are no pattern."""
    row = load.source.spans[0].stride
    offset = _along(add(access.offset, scale(load.first, -1)), load.dims)
    if offset is None:
        return None
    spans = [Span(row, access.partitions)]
    for span in access.spans:
        step = _step(span, load.dims)
        if step is None:
            return None
        spans.append(Span(step, span.count))
    down = scale(row, access.start - load.start)
    return HbmAccess(load.source.buffer, add(load.source.offset, add(down, offset)), tuple(spans))


def _along(distance: Index, dims: Sequence[_Dim]) -> Index | None:
    """A distance inside the tile's row as a distance in HBM."""
    if distance == 0 or not dims:
        return 0 if distance == 0 else None
    const, terms = (distance, ()) if isinstance(distance, int) else (distance.const, distance.terms)
    if const < 0:
        return None
    total: Index = 0
    for dim in dims:
        total = add(total, scale(dim.hbm, const // dim.tile))
        const %= dim.tile
    if const:
        return None
    # Run-time parts move along the outermost dimension only, where nothing can carry over.
    for atom, coefficient in terms:
        if coefficient % dims[0].tile:
            return None
        step = scale(dims[0].hbm, coefficient // dims[0].tile)
        total = add(total, mul(Expr(0, ((atom, 1),)), step))
    return total


def _step(span: Span, dims: Sequence[_Dim]) -> Index | None:
    """The HBM stride of a span that stays inside one dimension of the load."""
    if span.count == 1 or span.stride == 0:
        return 0
    if not isinstance(span.stride, int):
        return None
    for dim in dims:
        if span.stride % dim.tile == 0:
            if len(dims) == 1:
                return scale(dim.hbm, span.stride // dim.tile)
            if not isinstance(span.count, int) or not isinstance(dim.count, int):
                return None
            inside = span.stride * (span.count - 1) < dim.tile * dim.count
            return scale(dim.hbm, span.stride // dim.tile) if inside else None
    return None
