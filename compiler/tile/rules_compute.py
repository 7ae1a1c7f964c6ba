"""The constraints on each compute instruction; ``RULES`` has one function per instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import free_range
from trnx.compiler.tile.constraints import Context
from trnx.compiler.tile.expr import Index, mul
from trnx.compiler.tile.ir import PSUM, SBUF, Instruction, TileAccess
from trnx.compiler.tile.operands import (
    bound_text,
    check_cast,
    dtype_of,
    free_count,
    is_column,
    memory_of,
    operand,
    same_shape,
    shape_text,
    tile_accesses,
)
from trnx.core.dtypes import short_name

_MAX_FREE_DIMS: Final = 4
_MAX8_RANGE: Final = (8, 16384)


def _classes(context: Context, instruction: Instruction) -> str:
    """``bitvec`` or ``arith`` (with compare and logical); the two do not mix."""
    kinds = {
        "bitvec" if isa.ALU[name].kind == "bitvec" else "arith" for name in isa.alu_ops(instruction)
    }
    if len(kinds) > 1:
        context.fail(
            "T11", f"it mixes bitvec and arithmetic: {', '.join(isa.alu_ops(instruction))}"
        )
    return kinds.pop()


def _check_bitvec(context: Context, instruction: Instruction) -> None:
    accesses = tile_accesses(instruction)
    widths = set()
    for access in accesses:
        dtype = dtype_of(context, access)
        if dtype.kind not in "iub":
            context.fail("T10", f"a bitvec operator has a {short_name(dtype)} operand")
        widths.add(dtype.itemsize)
    if len(widths) > 1:
        context.fail("T10", "operands of a bitvec operator have different widths")
    if any(isinstance(value, float) for value in instruction.ins):
        context.fail("T10", "a bitvec operator has a float immediate")


def _check_scalar(context: Context, instruction: Instruction, name: str, data: TileAccess) -> None:
    value = operand(instruction, name)
    if not isinstance(value, TileAccess):
        return
    if value.partitions != data.partitions or not is_column(value):
        context.fail("T5", f"'{name}' is {shape_text(value.shape)}, not [{data.partitions}, 1]")


def _check_scalar_f32(context: Context, instruction: Instruction, name: str) -> None:
    value = operand(instruction, name)
    extended = isa.is_extension(instruction, lambda a: dtype_of(context, a))
    if context.hardware and not extended and isinstance(value, TileAccess):
        dtype = dtype_of(context, value)
        if dtype != np.dtype(np.float32):
            context.fail("T10", f"'{name}' is {short_name(dtype)}, not f32")


def _check_both_psum(context: Context, first: object, second: object) -> None:
    if not (isinstance(first, TileAccess) and isinstance(second, TileAccess)):
        return
    if context.hardware and memory_of(context, first) == PSUM == memory_of(context, second):
        context.fail("T9", "both tile inputs are in PSUM")


def _unary(context: Context, instruction: Instruction, name: str) -> bool:
    op = instruction.attr(name)
    return op is not None and isa.ALU[str(op)].unary


def _binary(context: Context, instruction: Instruction, *names: str) -> None:
    for name in names:
        if _unary(context, instruction, name):
            context.fail("T11", f"'{instruction.attr(name)}' takes one operand")


# One rule per instruction -----------------------------------------------------------------------


def _tiles(instruction: Instruction, *names: str) -> list[TileAccess]:
    found = []
    for name in names:
        value = instruction.outs[0] if name == "dst" else operand(instruction, name)
        assert isinstance(value, TileAccess)
        found.append(value)
    return found


def _matmul(context: Context, instruction: Instruction) -> None:
    target = context.target
    dst, stationary, moving = _tiles(instruction, "dst", "stationary", "moving")
    if stationary.partitions != moving.partitions:
        context.fail(
            "T12",
            f"stationary contracts {stationary.partitions} rows and moving {moving.partitions}",
        )
    if dst.partitions != free_count(stationary):
        context.fail(
            "T12",
            f"dst has {dst.partitions} rows where stationary has {free_count(stationary)} columns",
        )
    if dst.shape[1:] != moving.shape[1:]:
        context.fail(
            "T12",
            f"dst columns {shape_text(dst.shape[1:])} differ from moving's "
            f"{shape_text(moving.shape[1:])}",
        )
    limits = (
        ("K", stationary.partitions, target.matmul_max_contract),
        ("M", free_count(stationary), target.matmul_max_stationary),
        ("N", free_count(moving), target.matmul_max_moving),
    )
    for letter, value, limit in limits:
        most = context.upper(value)
        if most is None or most > limit:
            context.fail("T12", f"{letter} is {bound_text(most)}, more than {limit}")
    _check_matmul_dtypes(context, dst, stationary, moving)
    _check_bank(context, dst)


def _check_matmul_dtypes(
    context: Context, dst: TileAccess, stationary: TileAccess, moving: TileAccess
) -> None:
    names = [context.dtype_name(a) for a in (stationary, moving)]
    for access, name in zip((stationary, moving), names, strict=True):
        if not context.target.multiplies(dtype_of(context, access)):
            context.fail("T10", f"{context.target.name} multiplies no {name}")
    wide = {"f32", "f64"} & set(names)
    if wide and len(set(names)) > 1:
        context.fail("T10", f"{names[0]} and {names[1]} do not mix in a matmul")
    if set(names) == {"f8e4m3", "f8e4m3fn"}:
        context.fail("T10", "f8e4m3 and f8e4m3fn do not mix in a matmul")
    expected = "f64" if "f64" in wide else "f32"
    if context.dtype_name(dst) != expected:
        context.fail("T10", f"dst is {context.dtype_name(dst)}, not {expected}")


def _check_bank(context: Context, dst: TileAccess) -> None:
    tile = context.tiles[dst.tile]
    low, high = free_range(dst, context.env)
    if low is None or high is None:
        return
    bank, size = context.target.psum_bank_bytes, tile.dtype.itemsize
    if (high - low + 1) * size > bank and isinstance(dst.offset, int):
        context.fail("T13", f"dst takes {(high - low + 1) * size:,} B of a bank of {bank:,} B")
    if isinstance(dst.offset, int):
        base = tile.address[1] if tile.address else 0
        for copy in range(tile.copies if tile.address else 1):
            start = base + copy * tile.free_bytes + low * size
            end = base + copy * tile.free_bytes + high * size
            if start // bank != end // bank:
                context.fail("T13", f"dst bytes {start:,} to {end:,} cross a bank of {bank:,} B")


def _transpose(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    rows, columns = data.partitions, free_count(data)
    if dst.partitions != columns or free_count(dst) != rows:
        context.fail("T14", f"dst is {shape_text(dst.shape)} for data {shape_text(data.shape)}")
    if dtype_of(context, dst) != dtype_of(context, data):
        context.fail("T10", "dst and data of a transpose have different dtypes")
    tensor = instruction.engine == isa.TENSOR
    limit = context.target.partitions if tensor else context.target.transpose_vector_max
    for value in (rows, columns):
        most = context.upper(value)
        if most is None or most > limit:
            context.fail("T14", f"a side of {bound_text(most)} is more than {limit}")
    if tensor and (memory_of(context, data) != SBUF or memory_of(context, dst) != PSUM):
        context.fail("T7", "TensorE reads SBUF and writes PSUM")


def _activation(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    same_shape(context, "T5", dst, data, "dst and data")
    for name in ("bias", "scale"):
        _check_scalar(context, instruction, name, data)
    _check_scalar_f32(context, instruction, "scale")
    reduce_op = instruction.attr("reduce_op")
    if (reduce_op is None) != (len(instruction.outs) == 1):
        context.fail("T19", "reduce_op and reduce_res come together")
    if reduce_op is not None:
        result = instruction.outs[1]
        assert isinstance(result, TileAccess)
        if reduce_op != "add":
            context.fail("T11", f"reduce_op is '{reduce_op}'", "Use add")
        if result.partitions != data.partitions or not is_column(result):
            context.fail("T19", f"reduce_res is {shape_text(result.shape)}, not [P, 1]")


def _tensor_tensor(context: Context, instruction: Instruction) -> None:
    dst, first, second = _tiles(instruction, "dst", "data1", "data2")
    same_shape(context, "T5", dst, first, "dst and data1")
    same_shape(context, "T5", dst, second, "dst and data2")
    _check_both_psum(context, first, second)
    _binary(context, instruction, "op")
    if _classes(context, instruction) == "bitvec":
        _check_bitvec(context, instruction)


def _tensor_scalar(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    same_shape(context, "T5", dst, data, "dst and data")
    if (instruction.attr("op1") is None) != (operand(instruction, "operand1") is None):
        context.fail("T11", "op1 and operand1 come together")
    bitvec = _classes(context, instruction) == "bitvec"
    for name in ("operand0", "operand1"):
        _check_scalar(context, instruction, name, data)
        exact = isa.is_exact_integer(instruction, lambda a: dtype_of(context, a))
        if not bitvec and not (exact and instruction.engine == isa.GPSIMD):
            _check_scalar_f32(context, instruction, name)
    if bitvec:
        _check_bitvec(context, instruction)


def _scalar_tensor_tensor(context: Context, instruction: Instruction) -> None:
    dst, data, other = _tiles(instruction, "dst", "data", "operand1")
    same_shape(context, "T5", dst, data, "dst and data")
    same_shape(context, "T5", dst, other, "dst and operand1")
    _check_both_psum(context, data, other)
    _check_scalar(context, instruction, "operand0", data)
    if instruction.attr("op1") is None:
        context.fail("T11", "it needs 'op1'")
    if _classes(context, instruction) == "bitvec":
        context.fail("T11", "it takes no bitvec operators")


def _reduce(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    op = isa.ALU[str(instruction.attr("op"))]
    if not op.reducible:
        names = ", ".join(o.name for o in isa.ALU.values() if o.reducible)
        context.fail("T11", f"'{op.name}' does not reduce", f"Use one of {names}")
    axis = instruction.attr("axis", (1,))
    rank = len(data.shape)
    axes = tuple(axis) if isinstance(axis, tuple) else (axis,)
    if not axes or 0 in axes or axes != tuple(range(rank - len(axes), rank)):
        context.fail("T19", f"axis {shape_text(axes)} does not end the {rank} dimensions of data")  # type: ignore[arg-type]
    rest = data.shape[: rank - len(axes)]
    expected = rest if len(rest) > 1 else (*rest, 1)
    if dst.shape != expected:
        context.fail("T19", f"dst is {shape_text(dst.shape)}, not {shape_text(expected)}")
    if op.kind == "bitvec":
        _check_bitvec(context, instruction)


def _scan(context: Context, instruction: Instruction) -> None:
    dst, first, second = _tiles(instruction, "dst", "data0", "data1")
    same_shape(context, "T5", dst, first, "dst and data0")
    same_shape(context, "T5", dst, second, "dst and data1")
    _check_both_psum(context, first, second)
    _check_scalar(context, instruction, "initial", first)
    if instruction.attr("op1") is None:
        context.fail("T11", "it needs 'op1'")
    _binary(context, instruction, "op0", "op1")
    if _classes(context, instruction) == "bitvec":
        context.fail("T11", "it takes no bitvec operators")


def _copy(context: Context, instruction: Instruction) -> None:
    dst, source = _tiles(instruction, "dst", "src")
    same_shape(context, "T5", dst, source, "dst and src")
    check_cast(context, dst, source)


def _predicated(context: Context, instruction: Instruction) -> None:
    (dst,) = _tiles(instruction, "dst")
    (predicate,) = _tiles(instruction, "predicate")
    source = operand(instruction, "src")
    same_shape(context, "T5", dst, predicate, "dst and predicate")
    if isinstance(source, TileAccess):
        same_shape(context, "T5", dst, source, "dst and src")
        if dtype_of(context, dst) != dtype_of(context, source):
            context.fail("T10", "dst and src have different dtypes")
        _check_both_psum(context, source, predicate)
    if context.dtype_name(predicate) not in ("bool", "u8", "u16", "i32", "u32"):
        context.fail("T10", f"predicate is {context.dtype_name(predicate)}", "Use bool or uint8")


def _one_input(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    same_shape(context, "T5", dst, data, "dst and data")


def _memset(context: Context, instruction: Instruction) -> None:
    if not isinstance(instruction.ins[0], int | float):
        context.fail("T24", "its value is no number")


def _pattern(context: Context, instruction: Instruction) -> None:
    (dst,) = _tiles(instruction, "dst")
    pattern = instruction.attr("pattern")
    if not isinstance(pattern, tuple) or not 1 <= len(pattern) <= _MAX_FREE_DIMS:
        context.fail("T24", "its pattern does not have 1 to 4 (step, count) pairs")
    total: Index = 1
    for pair in pattern:
        if not isinstance(pair, tuple) or len(pair) != 2:
            context.fail("T24", "its pattern does not have 1 to 4 (step, count) pairs")
        total = mul(total, pair[1])
    if total != free_count(dst):
        context.fail("T24", f"its pattern counts {total} of {free_count(dst)} elements")
    if instruction.op == "affine_select":
        (source,) = _tiles(instruction, "on_true_tile")
        same_shape(context, "T5", dst, source, "dst and on_true_tile")
        compare = isa.ALU.get(str(instruction.attr("cmp_op", "equal")))
        if compare is None or compare.kind != "compare":
            context.fail("T11", f"'{instruction.attr('cmp_op')}' does not compare")


def _partition_reduce(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    if dst.shape != (1, *data.shape[1:]):
        context.fail("T19", f"dst is {shape_text(dst.shape)} for data {shape_text(data.shape)}")
    if str(instruction.attr("op")) not in ("add", "maximum", "bitwise_and", "bitwise_or"):
        context.fail(
            "T11",
            f"'{instruction.attr('op')}' does not reduce partitions",
            "Use add, maximum, bitwise_and or bitwise_or",
        )


def _top8(context: Context, instruction: Instruction) -> None:
    name = "src" if instruction.op == "max8" else "data"
    dst, data = _tiles(instruction, "dst", name)
    low, high = context.lower(free_count(data)), context.upper(free_count(data))
    if low is None or low < _MAX8_RANGE[0] or high is None or high > _MAX8_RANGE[1]:
        context.fail(
            "T24", f"it reads {bound_text(low)} to {bound_text(high)} values per partition"
        )
    eights = [dst] if instruction.op == "max8" else [dst, *_tiles(instruction, "vals")]
    for access in eights:
        if access.shape != (data.partitions, 8):
            context.fail("T24", f"an operand is {shape_text(access.shape)}, not [P, 8]")
    if instruction.op == "nc_find_index8" and context.dtype_name(dst) not in ("u16", "u32"):
        context.fail("T10", f"dst is {context.dtype_name(dst)}", "Use uint32")


def _row_sort(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    index = instruction.outs[1]
    assert isinstance(index, TileAccess)
    same_shape(context, "T5", dst, index, "dst and index")
    if dst.partitions != data.partitions:
        context.fail("T5", f"dst has {dst.partitions} partitions, data {data.partitions}")
    few, many = context.upper(free_count(dst)), context.lower(free_count(data))
    if few is None or many is None or few > many:
        context.fail("T24", f"it wants {bound_text(few)} of {bound_text(many)} elements")
    if dtype_of(context, dst) != dtype_of(context, data):
        context.fail("T10", "dst and data have different dtypes")
    if context.dtype_name(index) != "i32":
        context.fail("T10", f"index is {context.dtype_name(index)}", "Use int32")


RULES: Final[dict[str, Callable[[Context, Instruction], None]]] = {
    "nc_matmul": _matmul,
    "nc_transpose": _transpose,
    "activation": _activation,
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_reduce": _reduce,
    "tensor_tensor_scan": _scan,
    "tensor_copy": _copy,
    "tensor_copy_predicated": _predicated,
    "reciprocal": _one_input,
    "memset": _memset,
    "iota": _pattern,
    "affine_select": _pattern,
    "tensor_partition_reduce": _partition_reduce,
    "max8": _top8,
    "nc_find_index8": _top8,
    "row_sort": _row_sort,
}
