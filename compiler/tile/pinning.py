"""Buffers that a loop reads and writes in every iteration move on chip for its duration.

A buffer qualifies when the loop only copies between it and tiles, always over the same rows of the
same width: then its rows lie on the partitions of one tile, and the transfers are copies on chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import Env, accesses, extent, index_bounds
from trnx.compiler.tile.expr import Index, bounds
from trnx.compiler.tile.ir import (
    SBUF,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Param,
    RegisterLoad,
    Span,
    Statement,
    Tile,
    TileAccess,
    While,
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A buffer and the tile that stands for it: its rows are the partitions."""

    param: Param
    tile: Tile

    @property
    def transfer(self) -> tuple[HbmAccess, TileAccess]:
        """The whole buffer and the whole tile, as operands of a copy."""
        rows, width = self.tile.shape
        whole = HbmAccess(self.param.name, 0, (Span(width, rows), Span(1, width)))
        return whole, self.tile.access()


def pin(
    body: Sequence[Statement],
    env: Env,
    candidates: Sequence[Param],
    partitions: int,
    room: int,
    name: Callable[[str], str],
) -> tuple[tuple[Statement, ...], list[Pinned]]:
    """Move buffers of a loop on chip.

    Args:
        body: the loop's statements.
        env: range of its index.
        candidates: buffers that nothing else in the body sees under another name.
        partitions: of SBUF.
        room: bytes per partition to fill at most.
        name: gives unused names.

    Returns:
        The body on tiles, and what was moved: the caller declares the tiles in front of the loop,
        fills those that are read first, and copies back what is read afterwards.
    """
    found: list[Pinned] = []
    for param in candidates:
        if any(not isinstance(size, int) for size in param.shape) or param.strides is not None:
            continue
        if param.dtype.kind in "iu" and param.dtype.itemsize == 8:
            continue  # on a NeuronCore, DMA moves 64-bit integers, engines do not
        shape = _rows_and_width(body, env, param, partitions)
        if shape is None or shape[1] * param.dtype.itemsize > room:
            continue
        room -= shape[1] * param.dtype.itemsize
        found.append(Pinned(param, Tile(name("h0"), SBUF, shape, param.dtype)))
    if not found:
        return tuple(body), []
    tiles = {pinned.param.name: pinned.tile for pinned in found}
    return tuple(_on_chip(body, tiles)), found


def _rows_and_width(
    body: Sequence[Statement], env: Env, param: Param, partitions: int
) -> tuple[int, int] | None:
    """(rows, width) of the one way in which all accesses walk a buffer; None without one."""
    total = math.prod(int(str(size)) for size in param.shape)
    shapes: set[tuple[int, int]] = set()
    written = False
    for access, writes, inner, depth in _uses(body, env, param.name):
        if access is None or (writes and depth):
            # Iterations of an inner loop that write one tile could not run at once.
            return None
        if any((bounds(span.stride, inner)[0] or 0) < 0 for span in access.spans):
            return None  # on chip no pattern runs backwards
        written |= writes
        rows, width = _walk(access, total)
        shapes.add((rows, width))
        end = bounds(_last(access), inner)[1]
        start = bounds(access.offset, inner)[0]
        if start is None or start < 0 or end is None or end >= width:
            return None
    if len(shapes) != 1 or not written:
        return None
    ((rows, width),) = shapes
    return (rows, width) if 0 < rows <= partitions and rows * width == total else None


def _walk(access: HbmAccess, total: int) -> tuple[int, int]:
    """(rows, width) of an access, (0, 0) when it is no walk over whole rows."""
    first = access.spans[0]
    if first.count == 1:
        return 1, total
    if not isinstance(first.count, int) or not isinstance(first.stride, int):
        return 0, 0
    return first.count, first.stride


def _last(access: HbmAccess) -> Index:
    """Offset of the last element of the first row."""
    return access.offset + extent(access.spans[1:])


def _uses(
    body: Sequence[Statement], env: Env, name: str, depth: int = 0
) -> Iterator[tuple[HbmAccess | None, bool, Env, int]]:
    """Accesses of a buffer: (access, whether it is written, ranges, loops around it in the body).

    The access is None where it is more than a copy between HBM and a tile.
    """
    for statement in body:
        if isinstance(statement, For):
            inner = {**env, statement.index: index_bounds(statement, env)}
            yield from _uses(statement.body, inner, name, depth + 1)
        elif isinstance(statement, While):
            yield from _uses(statement.body, env, name, depth + 1)
        else:
            for access, writes in accesses(statement):
                if isinstance(access, HbmAccess) and access.buffer == name:
                    yield (access if _is_plain(statement, name) else None), writes, env, depth


def _is_plain(statement: Statement, name: str) -> bool:
    if isinstance(statement, RegisterLoad):
        return True
    if not isinstance(statement, Instruction) or statement.op != "dma_copy":
        return False
    target, source = statement.outs[0], statement.ins[0]
    if isinstance(target, HbmAccess):
        other, own = source, target
    else:
        assert isinstance(source, HbmAccess)
        other, own = target, source
    if not isinstance(other, TileAccess) or own.index is not None:
        return False
    return _counts(own.spans[1:]) == _counts(other.spans) and own.shape[0] == other.partitions


def _counts(spans: Sequence[Span]) -> list[Index]:
    return [span.count for span in spans if span.count != 1]


def _on_chip(body: Sequence[Statement], tiles: dict[str, Tile]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, For | While):
            yield replace(statement, body=tuple(_on_chip(statement.body, tiles)))
            continue
        touched = [
            a for a, _ in accesses(statement) if isinstance(a, HbmAccess) and a.buffer in tiles
        ]
        if not touched:
            yield statement
        elif isinstance(statement, RegisterLoad):
            access = _moved(touched[0], tiles)
            yield replace(statement, access=replace(access, spans=(Span(1, 1),)))
        else:
            assert isinstance(statement, Instruction)
            yield _copy(statement, tiles)


def _copy(statement: Instruction, tiles: dict[str, Tile]) -> Instruction:
    """A transfer as a copy on chip."""
    operands: list[TileAccess] = []
    for access in (statement.outs[0], statement.ins[0]):
        if isinstance(access, HbmAccess):
            access = _moved(access, tiles)
        assert isinstance(access, TileAccess)
        operands.append(replace(access, spans=_narrow(access.spans)))
    target, source = operands
    return Instruction("tensor_copy", (target,), (source,), (), isa.VECTOR, source=statement.source)


def _moved(access: HbmAccess, tiles: dict[str, Tile]) -> TileAccess:
    rows = access.spans[0].count
    return TileAccess(tiles[access.buffer].name, 0, rows, access.offset, access.spans[1:])


def _narrow(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Free dimensions without those of size 1."""
    kept = tuple(span for span in spans if span.count != 1)
    return kept or (Span(1, 1),)


def transfers(
    pinned: Sequence[Pinned], filled: set[str], read: set[str]
) -> tuple[list[Statement], list[Statement]]:
    """Statements in front of and behind the loop.

    Args:
        pinned: what was moved.
        filled: buffers that hold values when the loop begins.
        read: buffers that are read when it has ended.
    """
    front: list[Statement] = []
    back: list[Statement] = []
    for item in pinned:
        whole, tile = item.transfer
        front.append(Alloc(item.tile))
        if item.param.name in filled:
            front.append(Instruction("dma_copy", (tile,), (whole,), (), isa.SYNC))
        if item.param.name in read:
            back.append(Instruction("dma_copy", (whole,), (tile,), (), isa.GPSIMD))
    return front, back
