"""Copies that turn a matrix: neighbours in the source are far apart in the destination.

Done element by element such a copy touches a cache line per element. When source and destination
are contiguous along different dimensions, the copy is a batch of transposes, which the library
does in square blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from trnx.compiler.host.emit import Value, i64
from trnx.compiler.host.memory import byte_address
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.transpose import transpose_symbol
from trnx.compiler.host.types import DType
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.ir import Access, HbmAccess, Instruction, TileAccess

_LEAST: Final = 8
"""Elements along both contiguous dimensions from which on blocks pay."""


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dimension of a copy; element strides, None for the partitions of a tile."""

    count: Index
    source: Index | None
    target: Index | None


def _strides(access: Access) -> list[tuple[Index, Index | None]]:
    """(count, stride) of every dimension, partitions or first span first."""
    if isinstance(access, TileAccess):
        return [(access.partitions, None), *((s.count, s.stride) for s in access.spans)]
    return [(s.count, s.stride) for s in access.spans]


def _dims(instruction: Instruction) -> list[_Dim] | None:
    source, target = instruction.ins[0], instruction.outs[0]
    assert isinstance(source, TileAccess | HbmAccess)
    for access in (source, target):
        if isinstance(access, HbmAccess) and access.index is not None:
            return None
    left = [d for d in _strides(source) if d[0] != 1]
    right = [d for d in _strides(target) if d[0] != 1]
    if [c for c, _ in left] != [c for c, _ in right]:
        return None
    return [_Dim(c, s, t) for (c, s), (_, t) in zip(left, right, strict=True)]


def _contiguous(strides: Sequence[Index | None]) -> int | None:
    for k, stride in enumerate(strides):
        if stride == 1:
            return k
    return None


def _plan(instruction: Instruction) -> tuple[list[_Dim], int, int] | None:
    """(dimensions, the one contiguous in the source, the one in the target), if they differ."""
    dims = _dims(instruction)
    if dims is None:
        return None
    column, row = _contiguous([d.source for d in dims]), _contiguous([d.target for d in dims])
    if column is None or row is None or column == row:
        return None
    for k in (column, row):
        count = dims[k].count
        if isinstance(count, int) and count < _LEAST:
            return None
    return dims, column, row


def is_transposing(instruction: Instruction, dtype_of: Callable[[Access], DType]) -> bool:
    """Whether a copy is better done by ``emit_transposing``."""
    if instruction.op not in ("dma_copy", "tensor_copy"):
        return False
    source = instruction.ins[0]
    assert isinstance(source, TileAccess | HbmAccess)
    dtype = dtype_of(source)
    if dtype != dtype_of(instruction.outs[0]) or dtype.itemsize not in (1, 2, 4, 8):
        return False
    return _plan(instruction) is not None


def emit_transposing(around: Surroundings, instruction: Instruction) -> None:
    """Emit a copy for which ``is_transposing`` holds."""
    planned = _plan(instruction)
    assert planned is not None
    dims, column, row = planned
    source, target = instruction.ins[0], instruction.outs[0]
    assert isinstance(source, TileAccess | HbmAccess)
    f, indices, size = around.f, around.indices, around.dtype_of(source).itemsize

    def step(access: Access, stride: Index | None) -> Value:
        if stride is None:
            assert isinstance(access, TileAccess)
            return i64(around.tiles[access.tile].pitch)
        value = indices.value(stride)
        return (
            i64(int(value.text) * size)
            if isinstance(stride, int)
            else f.binary("mul", value, i64(size))
        )

    outer = [d for k, d in enumerate(dims) if k not in (column, row)]

    def level(rest: Sequence[_Dim], read: Value, write: Value) -> None:
        if not rest:
            f.call_void(
                transpose_symbol(size, f.cpu),
                write,
                step(target, dims[column].target),
                i64(size),
                read,
                step(source, dims[row].source),
                i64(size),
                indices.value(dims[row].count),
                indices.value(dims[column].count),
            )
            return
        loop = f.begin_loop(i64(0), indices.value(rest[0].count))
        with indices.scope():
            along = f.binary("mul", loop.index, step(source, rest[0].source))
            down = f.binary("mul", loop.index, step(target, rest[0].target))
            level(rest[1:], f.pointer(read, along, "i8"), f.pointer(write, down, "i8"))
        f.end_loop(loop)

    level(outer, _base(around, source), _base(around, target))


def _base(around: Surroundings, access: Access) -> Value:
    f, size = around.f, around.dtype_of(access).itemsize
    offset = around.indices.value(access.offset)
    if isinstance(access, HbmAccess):
        return byte_address(f, around.params[access.buffer], offset, size, i64(0))
    memory = around.tiles[access.tile]
    return byte_address(f, memory.base, offset, size, i64(access.start * memory.pitch))
