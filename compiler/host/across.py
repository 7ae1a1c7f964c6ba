"""Instructions that work across partitions: matmul, transposes, reductions over partitions.

The heavy ones call library functions (``matmul``, ``transpose``), which want plain rows; operands
of another dtype or layout are first brought into that form by a row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import compute_dtype
from trnx.compiler.host.emit import I64, Value, i64
from trnx.compiler.host.matmul import matmul_symbol, panel_columns
from trnx.compiler.host.memory import TileMemory, byte_address
from trnx.compiler.host.moves import emit_transposing, is_transposing
from trnx.compiler.host.phases import schedule
from trnx.compiler.host.rowgroup import RowGroup
from trnx.compiler.host.rowops import row_op
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.transpose import transpose_symbol
from trnx.compiler.host.types import DType, storage
from trnx.compiler.sim import alu
from trnx.compiler.tile.expr import Index, mul
from trnx.compiler.tile.ir import (
    Access,
    HbmAccess,
    Instruction,
    Operand,
    Predicate,
    Span,
    TileAccess,
    row_major,
)
from trnx.compiler.tile.views import merge_spans
from trnx.core.dtypes import float32, float64
from trnx.core.errors import TileError, message

_TEMP: Final = "%temp"


def emit_across(around: Surroundings, instruction: Instruction) -> None:
    """Emit an instruction that is not partition-local."""
    table = {
        "nc_matmul": _matmul,
        "nc_transpose": _transpose,
        "dma_transpose": _transpose,
        "tensor_partition_reduce": _partition_reduce,
    }
    if is_transposing(instruction, around.dtype_of):
        emit_transposing(around, instruction)
    else:
        table.get(instruction.op, _through_temporary)(around, instruction)


def _through_temporary(around: Surroundings, instruction: Instruction) -> None:
    """A partition-local instruction whose destination overlaps its sources: results wait aside."""
    temps = _Temporaries(around)
    destination = _tile(instruction, instruction.outs[0])
    rows = around.shapes[destination.tile][0]
    aside = temps.add(rows, destination, around.dtype_of(destination))
    steps = [replace(instruction, outs=(aside, *instruction.outs[1:]))]
    if instruction.op == "tensor_copy_predicated":
        steps.insert(0, Instruction("tensor_copy", (aside,), (destination,)))
    temps.run([*steps, Instruction("tensor_copy", (destination,), (aside,))])


def _error(instruction: Instruction, cause: str, remedy: str) -> TileError:
    return TileError(message(f"{instruction.op}: {cause}", instruction.source, remedy))


def _tile(instruction: Instruction, operand: Operand) -> TileAccess:
    if not isinstance(operand, TileAccess):
        raise _error(instruction, "an operand is no tile", "Pass a tile access")
    return operand


def _free_size(access: TileAccess) -> Index:
    total: Index = 1
    for span in access.spans:
        total = mul(total, span.count)
    return total


class _Temporaries:
    """Surroundings with extra tiles in scratch memory."""

    def __init__(self, around: Surroundings) -> None:
        self._dtypes: dict[str, DType] = {}
        self._inner = around.dtype_of
        self.around = replace(
            around,
            tiles=dict(around.tiles),
            shapes=dict(around.shapes),
            dtype_of=self._dtype_of,
        )

    def _dtype_of(self, access: Access) -> DType:
        if isinstance(access, TileAccess) and access.tile in self._dtypes:
            return self._dtypes[access.tile]
        return self._inner(access)

    def add(self, rows: int, like: TileAccess, dtype: DType, one_row: bool = False) -> TileAccess:
        """A dense tile with the access's free shape; ``one_row`` makes all rows the same memory."""
        name = f"{_TEMP}{len(self._dtypes)}"
        self._dtypes[name] = dtype
        shape = self.around.shapes[like.tile]
        free = int(np.prod(shape[1:], dtype=np.int64))
        memory = self.around.allocate(1 if one_row else rows, free * dtype.itemsize)
        tiles, shapes = self.around.tiles, self.around.shapes
        assert isinstance(tiles, dict) and isinstance(shapes, dict)
        tiles[name], shapes[name] = memory, (rows, free)
        counts = tuple(s.count for s in like.spans)
        return TileAccess(name, 0, like.partitions, 0, row_major(counts))

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Run partition-local instructions, each as a row group of its own, all through memory."""
        for instruction in instructions:
            op = row_op(0, instruction, self._dtype_of)
            names = {
                a.tile for a in (*instruction.outs, *instruction.ins) if isinstance(a, TileAccess)
            }
            planned = schedule([op], names, lambda a, b: int(a == b))
            with self.around.indices.scope():
                access = instruction.outs[0]
                assert isinstance(access, TileAccess)
                RowGroup(self.around, planned).emit(access.partitions)


def _base(around: Surroundings, access: Access) -> tuple[Value, int]:
    """Address of an access's first element and its row pitch in bytes (tiles)."""
    f, size = around.f, around.dtype_of(access).itemsize
    offset = around.indices.value(access.offset)
    if isinstance(access, HbmAccess):
        return byte_address(f, around.params[access.buffer], offset, size, i64(0)), 0
    memory: TileMemory = around.tiles[access.tile]
    row = i64(access.start * memory.pitch)
    return byte_address(f, memory.base, offset, size, row), memory.pitch


def _is_dense(access: TileAccess) -> bool:
    spans = merge_spans(access.spans)
    return not spans or (len(spans) == 1 and spans[0].stride == 1)


def _matmul(around: Surroundings, instruction: Instruction) -> None:
    temps = _Temporaries(around)
    around = temps.around
    f, indices = around.f, around.indices
    destination = _tile(instruction, instruction.outs[0])
    stationary = _tile(instruction, instruction.ins[0])
    moving = instruction.ins[1]
    assert isinstance(moving, TileAccess | HbmAccess)
    dtypes = [around.dtype_of(a) for a in (stationary, moving, destination)]
    dtype = float64 if around.native and float64 in dtypes else float32

    def plain(access: Access) -> Access:
        if isinstance(access, HbmAccess):
            return access
        paneled = around.tiles[access.tile].panel != 0
        if around.dtype_of(access) == dtype and (paneled or _is_dense(access)):
            return access
        rows = around.shapes[access.tile][0]
        copy = temps.add(rows, access, dtype)
        temps.run([Instruction("tensor_copy", (copy,), (access,))])
        return copy

    sizes = [
        indices.value(n)
        for n in (_free_size(stationary), _free_size(destination), stationary.partitions)
    ]
    attribute = instruction.attr("accumulate", False)
    if isinstance(attribute, Predicate):
        accumulate = f.convert("zext", indices.predicate(attribute), I64)
    else:
        accumulate = i64(1 if attribute else 0)
    direct = dtypes[2] == dtype and _is_dense(destination)
    target = destination
    if not direct:
        target = temps.add(around.shapes[destination.tile][0], destination, dtype)
        if attribute is not False:
            temps.run([Instruction("tensor_copy", (target,), (destination,))])
    places: list[Value] = []
    for access in (target, plain(stationary), plain(moving)):
        base, pitch = _base(around, access)
        if isinstance(access, HbmAccess):
            places += [base, indices.value(access.spans[0].stride)]
        else:
            places += [base, i64(pitch // dtype.itemsize)]
    panel = panel_columns(f.cpu, dtype)
    if isinstance(moving, TileAccess):
        panel = around.tiles[moving.tile].panel or panel
    f.call_void(matmul_symbol(dtype, f.cpu), *places, i64(panel), *sizes, accumulate)
    if not direct:
        temps.run([Instruction("tensor_copy", (destination,), (target,))])


def _transpose(around: Surroundings, instruction: Instruction) -> None:
    f, indices = around.f, around.indices
    destination, data = instruction.outs[0], instruction.ins[0]
    assert isinstance(data, TileAccess | HbmAccess)
    assert isinstance(destination, TileAccess | HbmAccess)
    dtype = around.dtype_of(data)
    if dtype != around.dtype_of(destination):
        raise _error(instruction, "source and destination dtypes differ", "Cast first")
    rows = _outer(around, data)
    columns = _outer(around, destination)
    source, source_pitch = _base(around, data)
    target, target_pitch = _base(around, destination)

    def call(source: Value, target: Value, inner: Span, other: Span, height: Value) -> None:
        size = dtype.itemsize
        f.call_void(
            transpose_symbol(size, f.cpu),
            target,
            _bytes(around, destination, target_pitch, size),
            f.binary("mul", indices.value(other.stride), i64(size)),
            source,
            _bytes(around, data, source_pitch, size),
            f.binary("mul", indices.value(inner.stride), i64(size)),
            height,
            indices.value(inner.count),
        )

    inner, other = _merged(data), _merged(destination)
    if len(inner) == 1 and len(other) == 1:
        call(source, target, inner[0], other[0], rows)
        return
    # Several dimensions on a side: element (p, f) by element, f counted in order.
    width = storage(dtype)
    loop = f.begin_loop(i64(0), rows)
    with indices.scope():
        start = f.binary("mul", loop.index, _bytes(around, data, source_pitch, dtype.itemsize))
        row = byte_address(f, source, i64(0), 1, start)
        column = _unflatten(around, loop.index, other)
        inside = f.begin_loop(i64(0), columns)
        with indices.scope():
            place = _unflatten(around, inside.index, inner)
            value = f.load(width, f.pointer(row, place, width))
            down = _bytes(around, destination, target_pitch, dtype.itemsize)
            line = byte_address(f, target, i64(0), 1, f.binary("mul", inside.index, down))
            f.store(value, f.pointer(line, column, width))
        f.end_loop(inside)
    f.end_loop(loop)


def _outer(around: Surroundings, access: Access) -> Value:
    """Number of rows: partitions of a tile, the first count of an HBM access."""
    if isinstance(access, TileAccess):
        return around.indices.value(access.partitions)
    return around.indices.value(access.spans[0].count)


def _bytes(around: Surroundings, access: Access, pitch: int, size: int) -> Value:
    if isinstance(access, TileAccess):
        return i64(pitch)
    return around.f.binary("mul", around.indices.value(access.spans[0].stride), i64(size))


def _merged(access: Access) -> tuple[Span, ...]:
    spans = access.spans if isinstance(access, TileAccess) else access.spans[1:]
    return merge_spans(spans) or (Span(1, 1),)


def _unflatten(around: Surroundings, index: Value, spans: Sequence[Span]) -> Value:
    """Element offset of the ``index``-th element of a pattern."""
    f, total, rest = around.f, i64(0), index
    for span in reversed(spans):
        count = around.indices.value(span.count)
        digit = f.binary("urem", rest, count)
        rest = f.binary("udiv", rest, count)
        step = f.binary("mul", digit, around.indices.value(span.stride))
        total = f.binary("add", total, step)
    return total


def _partition_reduce(around: Surroundings, instruction: Instruction) -> None:
    """Rows are combined one after another into a temporary row of the compute dtype."""
    temps = _Temporaries(around)
    data = _tile(instruction, instruction.ins[0])
    destination = _tile(instruction, instruction.outs[0])
    name = str(instruction.attr("op"))
    dtype = temps.around.dtype_of(data)
    bitwise = alu.is_bitvec([name])
    if not bitwise:
        probe = replace(instruction, ins=(replace(data, partitions=1),))
        op = row_op(0, replace(probe, op="tensor_copy"), temps.around.dtype_of)
        dtype = compute_dtype(around.native, temps.around.dtype_of, op, [name])
    total = temps.add(around.shapes[data.tile][0], data, dtype, one_row=True)
    first = replace(total, partitions=1)
    start = replace(data, partitions=1)
    if name == "subtract":
        rest = replace(data, start=data.start + 1, partitions=data.partitions - 1)
        sums = replace(total, partitions=rest.partitions)
        temps.run(
            [
                Instruction("memset", (first,), (0,)),
                _combine(sums, sums, rest, "add"),
                Instruction("tensor_tensor", (destination,), (start, first), (("op", "subtract"),)),
            ]
        )
        return
    identity = arithmetic.identity(name, np.dtype(f"u{dtype.itemsize}") if bitwise else dtype)
    if bitwise:
        set_first = Instruction("tensor_copy", (first,), (start,))
        rest = replace(data, start=data.start + 1, partitions=data.partitions - 1)
        sums = replace(total, partitions=rest.partitions)
    else:
        set_first = Instruction("memset", (first,), (identity,))
        rest, sums = data, total
    final = Instruction("tensor_copy", (destination,), (first,))
    if bitwise:
        attrs = (("op0", "bitwise_or"),)
        final = Instruction("tensor_scalar", (destination,), (first, 0), attrs)
    temps.run([set_first, _combine(sums, sums, rest, name), final])


def _combine(out: TileAccess, left: TileAccess, right: TileAccess, op: str) -> Instruction:
    return Instruction("tensor_tensor", (out,), (left, right), (("op", op),))
