"""Panel layouts: how tiles that feed the matrix product lie in memory.

A matrix product walks narrow column ranges of its operands over many rows. In a plain tile those
rows are far apart, which wastes translation look-ups and defeats prefetching. A *panel* tile is
cut into panels of ``width`` columns; each panel holds all rows, one close after the other. The tile
keeps its meaning: only the strides of its accesses change, so this is a rewrite of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.matmul import panel_columns
from trnx.compiler.host.rowops import SEQUENTIAL
from trnx.compiler.tile.analysis import accesses
from trnx.compiler.tile.expr import Expr, Index
from trnx.compiler.tile.ir import (
    Access,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Operand,
    RegisterLoad,
    Span,
    Statement,
    Tile,
    TileAccess,
    While,
    tiles,
    walk,
)
from trnx.compiler.tile.views import merge_spans
from trnx.core.dtypes import float32, float64


@dataclass(frozen=True, slots=True)
class Panels:
    """Layout of one tile: columns of a panel, bytes from row to row, elements from panel to panel.

    ``size`` is the number of bytes of the whole tile.
    """

    width: int
    pitch: int
    step: int
    size: int


def panel_layouts(kernel: Kernel, cpu: Cpu) -> tuple[Kernel, dict[str, Panels]]:
    """The kernel with accesses rewritten for the tiles that are laid out in panels."""
    declared = tiles(kernel)
    uses: dict[str, list[TileAccess]] = {name: [] for name in declared}
    widths: dict[str, int] = {}
    for statement in walk(kernel.body):
        for access, _ in accesses(statement):
            if isinstance(access, TileAccess):
                uses[access.tile].append(access)
        if not isinstance(statement, Instruction):
            continue
        if statement.op in SEQUENTIAL:
            widths.update({a.tile: 0 for a, _ in accesses(statement) if isinstance(a, TileAccess)})
        if statement.op == "nc_matmul":
            for name, width in _wanted(statement, declared, cpu):
                # A tile in both roles, or read in different widths, stays plain.
                widths[name] = width if widths.get(name, width) == width else 0
    transposed = {
        access.tile
        for statement in walk(kernel.body)
        if isinstance(statement, Instruction) and statement.op.endswith("_transpose")
        for access, _ in accesses(statement)
        if isinstance(access, TileAccess) and not _in_one_panel(access, widths.get(access.tile, 0))
    }
    chosen: dict[str, Panels] = {}
    for name, width in widths.items():
        tile = declared[name]
        if not 0 < width < tile.free_size:
            continue
        if all(_fits(a, width) for a in uses[name]) and name not in transposed:
            chosen[name] = _panels(tile, width, cpu)
    if not chosen:
        return kernel, {}
    return replace(kernel, body=tuple(_statements(kernel.body, chosen))), chosen


def _wanted(
    instruction: Instruction, declared: Mapping[str, Tile], cpu: Cpu
) -> Iterator[tuple[str, int]]:
    """(tile, panel width) for the operands of a matrix product that need no conversion."""
    stationary, moving = instruction.ins[:2]
    destination = instruction.outs[0]
    assert isinstance(destination, TileAccess)
    dtype = declared[destination.tile].dtype
    for operand, role in ((stationary, 0), (moving, 1)):
        if not isinstance(operand, TileAccess):
            # Read in place.
            continue
        plain = declared[operand.tile].dtype == dtype and dtype in (float32, float64)
        spans = merge_spans(operand.spans)
        count = spans[0].count if spans else 1
        dense = len(spans) <= 1 and (not spans or spans[0].stride == 1)
        if not plain or not dense or not isinstance(count, int):
            yield operand.tile, 0
        elif role == 0:
            yield operand.tile, count
        else:
            yield operand.tile, panel_columns(cpu, dtype)


def _fits(access: TileAccess, width: int) -> bool:
    """Whether an access touches whole panels, or the beginning of one."""
    if not _divides(width, access.offset):
        return False
    for span in access.spans:
        if span.count == 1:
            continue
        if span.stride == 1:
            if not isinstance(span.count, int):
                return False
            if span.count > width and span.count % width:
                return False
        elif not isinstance(span.stride, int) or span.stride % width:
            return False
    return True


def _in_one_panel(access: TileAccess, width: int) -> bool:
    """Whether a row of the access stays one run of memory."""
    spans = merge_spans(access.spans)
    if not spans:
        return True
    count = spans[0].count
    return len(spans) == 1 and isinstance(count, int) and count <= width


def _divides(width: int, offset: Index) -> bool:
    if isinstance(offset, int):
        return offset % width == 0
    return offset.const % width == 0 and all(c % width == 0 for _, c in offset.terms)


def _panels(tile: Tile, width: int, cpu: Cpu) -> Panels:
    size = tile.dtype.itemsize
    pitch = width * size
    if width != panel_columns(cpu, tile.dtype):
        # Rows of the other operand are read a few elements at a time: keep them off one cache set.
        pitch += 64
    count = -(-tile.free_size // width)
    step = tile.shape[0] * pitch // size
    return Panels(width, pitch, step, count * step * size + 64)


def _statements(body: Iterable[Statement], chosen: Mapping[str, Panels]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, For | While):
            yield replace(statement, body=tuple(_statements(statement.body, chosen)))
        elif isinstance(statement, RegisterLoad):
            yield replace(statement, access=_access(statement.access, chosen))
        elif isinstance(statement, Instruction):
            yield replace(
                statement,
                outs=tuple(_access(a, chosen) for a in statement.outs),
                ins=tuple(_operand(o, chosen) for o in statement.ins),
            )
        else:
            yield statement


def _operand(operand: Operand, chosen: Mapping[str, Panels]) -> Operand:
    return _access(operand, chosen) if isinstance(operand, TileAccess | HbmAccess) else operand


def _access(access: Access, chosen: Mapping[str, Panels]) -> Access:
    if isinstance(access, HbmAccess):
        if access.index is None:
            return access
        index = _access(access.index, chosen)
        assert isinstance(index, TileAccess)
        return replace(access, index=index)
    layout = chosen.get(access.tile)
    if layout is None:
        return access
    spans: list[Span] = []
    for span in access.spans:
        if span.count == 1:
            spans.append(Span(0, 1))
        elif span.stride == 1:
            assert isinstance(span.count, int)
            if span.count > layout.width:
                spans.append(Span(layout.step, span.count // layout.width))
                spans.append(Span(1, layout.width))
            else:
                spans.append(span)
        else:
            spans.append(Span(_moved(span.stride, layout), span.count))
    return replace(access, offset=_moved(access.offset, layout), spans=tuple(spans))


def _moved(value: Index, layout: Panels) -> Index:
    """An element distance that is a number of panels, in the panel layout."""
    if isinstance(value, int):
        return value // layout.width * layout.step
    return Expr(
        value.const // layout.width * layout.step,
        tuple((atom, c // layout.width * layout.step) for atom, c in value.terms),
    )
