"""Instructions that work across partitions: matmul, transposes, reductions over partitions.

The heavy ones call library functions (``matmul``, ``transpose``), which want plain rows; operands
of another dtype or layout are first brought into that form by a row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import compute_dtype
from trnx.compiler.host.emit import Value, i64
from trnx.compiler.host.memory import byte_address
from trnx.compiler.host.moves import emit_transposing, is_transposing
from trnx.compiler.host.product import emit_product
from trnx.compiler.host.rowops import row_op
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.temporaries import Temporaries, base_address
from trnx.compiler.host.transpose import transpose_symbol
from trnx.compiler.host.types import storage
from trnx.compiler.sim import alu
from trnx.compiler.tile.ir import (
    Access,
    HbmAccess,
    Instruction,
    Operand,
    Span,
    TileAccess,
)
from trnx.compiler.tile.views import merge_spans
from trnx.core.errors import TileError, message


def emit_across(around: Surroundings, instruction: Instruction) -> None:
    """Emit an instruction that is not partition-local."""
    table = {
        "nc_matmul": emit_product,
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
    temps = Temporaries(around)
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
    source, source_pitch = base_address(around, data)
    target, target_pitch = base_address(around, destination)

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
    temps = Temporaries(around)
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
