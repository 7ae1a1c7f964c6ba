"""The constraints on a single instruction; see ``constraints`` for the numbered table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import extent, free_range, partition_range
from trnx.compiler.tile.constraints import Context
from trnx.compiler.tile.expr import Index, add, bounds, mul, scale, symbols
from trnx.compiler.tile.ir import (
    PSUM,
    SBUF,
    Access,
    HbmAccess,
    Instruction,
    RegisterLoad,
    TileAccess,
)
from trnx.core.dtypes import short_name

_MAX_FREE_DIMS: Final = 4
_MAX_COUNT: Final = 65535
_MAX_STRIDE: Final = 32767
_MAX8_RANGE: Final = (8, 16384)


def check_instruction(context: Context) -> None:
    """Check every constraint on one instruction whose names are known to be in scope.

    Raises:
        TileError: a constraint is violated.
    """
    instruction = context.instruction
    assert instruction is not None
    spec = isa.spec(instruction.op)
    _check_arity(context, instruction, spec)
    if instruction.engine not in spec.engines:
        context.fail("T8", f"it runs on {' or '.join(spec.engines)} only")
    for access in (*instruction.outs, *instruction.ins):
        if isinstance(access, TileAccess | HbmAccess):
            _check_inside(context, access)
    _check_memories(context, instruction, spec)
    _check_roles(context, instruction)
    if spec.is_dma:
        _check_dma(context, instruction)
    else:
        for access in _tile_accesses(instruction):
            _check_pattern(context, access)
        _check_operators(context, instruction, spec)
        _check_dtypes(context, instruction)
        _RULES[instruction.op](context, instruction)


def check_load(context: Context, load: RegisterLoad) -> None:
    """Check a register load: one 32-bit integer element of a tile in scope or of a parameter."""
    access = load.access
    if isinstance(access, TileAccess) and access.tile not in context.tiles:
        context.fail("T1", f"register '{load.register}' is loaded from '{access.tile}'")
    if isinstance(access, HbmAccess) and access.buffer not in context.params:
        context.fail("T1", f"register '{load.register}' is loaded from '{access.buffer}'")
    if any(count != 1 for count in access.shape):
        context.fail(
            "T5", f"register '{load.register}' is loaded from {context.text(access)}, not one value"
        )
    _check_inside(context, access)
    if _dtype(context, access) not in (np.dtype(np.int32), np.dtype(np.uint32)):
        context.fail("T10", f"register '{load.register}' is loaded from {context.text(access)}")


# Helpers ----------------------------------------------------------------------------------------


def _dtype(context: Context, access: Access) -> np.dtype[np.generic]:
    if isinstance(access, TileAccess):
        return context.tiles[access.tile].dtype
    return context.params[access.buffer].dtype


def _memory(context: Context, access: Access) -> str:
    return context.tiles[access.tile].memory if isinstance(access, TileAccess) else "hbm"


def _tile_accesses(instruction: Instruction) -> list[TileAccess]:
    return [o for o in (*instruction.outs, *instruction.ins) if isinstance(o, TileAccess)]


def _operand(instruction: Instruction, name: str) -> object:
    names = [o.name for o in isa.spec(instruction.op).ins]
    return instruction.ins[names.index(name)]


def _free_count(access: TileAccess) -> Index:
    total: Index = 1
    for span in access.spans:
        total = mul(total, span.count)
    return total


def _is_column(access: TileAccess) -> bool:
    return all(span.count == 1 for span in access.spans)


def _same(context: Context, number: str, first: Access, second: Access, what: str) -> None:
    if first.shape != second.shape:
        context.fail(number, f"{what} have shapes {_shape(first.shape)} and {_shape(second.shape)}")


def _shape(shape: Sequence[Index]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _check_arity(context: Context, instruction: Instruction, spec: isa.InstructionSpec) -> None:
    required = sum(1 for o in spec.outs if not o.optional)
    if not required <= len(instruction.outs) <= len(spec.outs):
        context.fail("T5", f"it has {len(instruction.outs)} destinations")
    if len(instruction.ins) != len(spec.ins):
        context.fail("T5", f"it has {len(instruction.ins)} sources, not {len(spec.ins)}")
    for declared, value in zip(spec.ins, instruction.ins, strict=True):
        if value is None and not declared.optional:
            context.fail("T5", f"operand '{declared.name}' is missing")
        is_access = isinstance(value, TileAccess | HbmAccess)
        if value is not None and declared.form == "tile" and not is_access:
            context.fail("T5", f"operand '{declared.name}' is not an access")
    known = {a.name for a in spec.attrs}
    for name, _ in instruction.attrs:
        if name not in known:
            context.fail("T11", f"it has no attribute '{name}'")


def _check_inside(context: Context, access: Access) -> None:
    if isinstance(access, HbmAccess):
        _check_inside_hbm(context, access)
        if access.index is not None:
            _check_inside(context, access.index)
        return
    tile = context.tiles[access.tile]
    _, last = partition_range(access, context.env)
    if access.start < 0 or last is None or last >= tile.shape[0]:
        shown = "an unknown number of" if last is None else str(last + 1 - access.start)
        context.fail(
            "T3", f"{shown} partitions from {access.start} leave {context.tile_text(tile)}"
        )
    low, high = free_range(access, context.env)
    if low is None or low < 0 or high is None or high >= tile.free_size:
        context.fail(
            "T3",
            f"elements {_bound(low)} to {_bound(high)} of a partition leave "
            f"{context.tile_text(tile)}",
        )
    if any((context.lower(s.stride) or 0) < 0 for s in access.spans):
        context.fail("T3", f"a stride of {context.text(access)} is negative")


def _bound(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _check_inside_hbm(context: Context, access: HbmAccess) -> None:
    """Prove the access inside when sizes are constants; with run-time sizes refuse what is out."""
    param = context.params[access.buffer]
    spans = access.spans
    if access.index is not None:
        # Index values are checked when they are read; the row that each starts must fit.
        spans = spans[1:]
    strides = param.element_strides
    last = add(access.offset, extent(spans))
    size: Index = 1
    for count, stride in zip(param.shape, strides, strict=True):
        size = add(size, mul(stride, add(count, -1)))
    over = add(last, scale(size, -1))
    low, _ = bounds(access.offset, context.env)
    over_low, over_high = bounds(over, context.env)
    names = symbols(over) | symbols(access.offset)
    dynamic = any(context.env.get(n, (None, None))[1] is None for n in names)
    if dynamic:
        outside = (over_low is not None and over_low >= 0) or (
            bounds(access.offset, context.env)[1] or 0
        ) < 0
    else:
        outside = low is None or low < 0 or over_high is None or over_high >= 0
    empty = any(context.upper(s.count) == 0 for s in spans) or 0 in param.shape
    if outside and not empty:
        high = bounds(last, context.env)[1]
        context.fail(
            "T4",
            f"elements {_bound(low)} to {_bound(high)} leave parameter '{param.name}' of "
            f"{bounds(size, context.env)[1] if not dynamic else size} elements",
        )


def _check_memories(context: Context, instruction: Instruction, spec: isa.InstructionSpec) -> None:
    pairs = [*zip(spec.outs, instruction.outs, strict=False)]
    for declared, access in [*pairs, *zip(spec.ins, instruction.ins, strict=True)]:
        if not isinstance(access, TileAccess | HbmAccess):
            continue
        memory = _memory(context, access)
        if memory not in declared.memories:
            context.fail(
                "T7", f"'{declared.name}' is in {memory}, not in {' or '.join(declared.memories)}"
            )
        if memory == PSUM and instruction.engine == isa.GPSIMD:
            context.fail("T7", f"GpSimd does not reach PSUM, where '{declared.name}' is")


def _check_roles(context: Context, instruction: Instruction) -> None:
    for access in instruction.outs:
        if isinstance(access, HbmAccess) and context.params[access.buffer].role == "in":
            context.fail("T17", f"parameter '{access.buffer}' is only read")


def _check_pattern(context: Context, access: TileAccess) -> None:
    if not context.hardware:
        return
    if len(access.spans) > _MAX_FREE_DIMS:
        context.fail("T6", f"an access has {len(access.spans)} free dimensions")
    for span in access.spans:
        count, stride = context.upper(span.count), context.upper(span.stride)
        if count is not None and count > _MAX_COUNT:
            context.fail("T6", f"an access takes {count:,} steps in one dimension")
        if stride is not None and stride > _MAX_STRIDE and span.count != 1:
            context.fail("T6", f"an access has stride {stride:,}")
    tile = context.tiles[access.tile]
    start = access.start + (tile.address[0] if tile.address else 0)
    count = context.upper(access.partitions) or 0
    allowed = (0, 32, 64, 96) if count <= 32 else (0, 64) if count <= 64 else (0,)
    if start not in allowed:
        context.fail("T16", f"{count} partitions start at partition {start}")


# Operators and dtypes ---------------------------------------------------------------------------


def _check_operators(context: Context, instruction: Instruction, spec: isa.InstructionSpec) -> None:
    for declared in spec.attrs:
        value = instruction.attr(declared.name)
        if declared.kind == "activation" and value not in isa.ACTIVATIONS:
            known = ", ".join(isa.ACTIVATIONS)
            context.fail("T11", f"'{value}' is no activation function", f"Use one of {known}")
        if declared.kind != "alu" or value is None:
            continue
        op = isa.ALU.get(str(value))
        if op is None:
            context.fail("T11", f"'{value}' is no operator", f"Use one of {', '.join(isa.ALU)}")
        if context.hardware and not op.native:
            context.fail(
                "T11",
                f"operator '{op.name}' does not exist on {context.target.name}",
                "Use target cpu, or compose it from native operators",
            )
    needed = [a.name for a in spec.attrs if a.kind == "alu" and a.name in ("op", "op0")]
    for name in needed:
        if instruction.attr(name) is None:
            context.fail("T11", f"it needs '{name}'")
    if instruction.engine in (isa.VECTOR, isa.GPSIMD, isa.SCALAR) and context.hardware:
        _check_engine(context, instruction)


def _check_engine(context: Context, instruction: Instruction) -> None:
    target, engine = context.target, instruction.engine
    ops = isa.alu_ops(instruction)
    if instruction.op == "tensor_copy" and engine == isa.SCALAR and not target.scalar_copy:
        context.fail("T8", f"tensor_copy does not exist on the scalar engine of {target.name}")
    if instruction.op == "tensor_scalar" and engine == isa.SCALAR:
        legal = (("multiply",), ("add",), ("multiply", "add"))
        if ops not in legal or not set(ops) <= set(target.scalar_alu):
            context.fail("T8", f"operators {' then '.join(ops)} do not run on the scalar engine")
    exact = isa.is_exact_integer(instruction, lambda a: _dtype(context, a))
    if exact and engine == isa.GPSIMD:
        if len(ops) > 1:
            context.fail("T8", "exact 32-bit integers take one operator at a time")
        narrow = [a for a in _tile_accesses(instruction) if _dtype(context, a).itemsize != 4]
        if narrow:
            context.fail(
                "T10",
                f"exact 32-bit integers do not mix with {context.dtype_name(narrow[0])}",
                "Copy the narrow operand to a 32-bit tile with tensor_copy first",
            )
    if instruction.op in ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor"):
        for name in ops:
            if engine not in isa.ALU[name].engines:
                context.fail("T8", f"operator '{name}' does not run on {engine}")


def _check_dtypes(context: Context, instruction: Instruction) -> None:
    accesses = _tile_accesses(instruction)
    if instruction.op in ("memset", "nc_transpose", "tensor_copy", "tensor_copy_predicated"):
        return
    if instruction.op == "nc_matmul":
        return
    for access in accesses:
        if not context.target.computes(_dtype(context, access)):
            context.fail(
                "T10", f"{context.target.name} computes nothing in {context.dtype_name(access)}"
            )


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
    accesses = _tile_accesses(instruction)
    widths = set()
    for access in accesses:
        dtype = _dtype(context, access)
        if dtype.kind not in "iub":
            context.fail("T10", f"a bitvec operator has a {short_name(dtype)} operand")
        widths.add(dtype.itemsize)
    if len(widths) > 1:
        context.fail("T10", "operands of a bitvec operator have different widths")
    if any(isinstance(value, float) for value in instruction.ins):
        context.fail("T10", "a bitvec operator has a float immediate")


def _check_scalar(context: Context, instruction: Instruction, name: str, data: TileAccess) -> None:
    value = _operand(instruction, name)
    if not isinstance(value, TileAccess):
        return
    if value.partitions != data.partitions or not _is_column(value):
        context.fail("T5", f"'{name}' is {_shape(value.shape)}, not [{data.partitions}, 1]")


def _check_scalar_f32(context: Context, instruction: Instruction, name: str) -> None:
    value = _operand(instruction, name)
    if context.hardware and isinstance(value, TileAccess):
        dtype = _dtype(context, value)
        if dtype != np.dtype(np.float32):
            context.fail("T10", f"'{name}' is {short_name(dtype)}, not f32")


def _check_both_psum(context: Context, first: object, second: object) -> None:
    if not (isinstance(first, TileAccess) and isinstance(second, TileAccess)):
        return
    if context.hardware and _memory(context, first) == PSUM == _memory(context, second):
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
        value = instruction.outs[0] if name == "dst" else _operand(instruction, name)
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
    if dst.partitions != _free_count(stationary):
        context.fail(
            "T12",
            f"dst has {dst.partitions} rows where stationary has {_free_count(stationary)} columns",
        )
    if dst.shape[1:] != moving.shape[1:]:
        context.fail(
            "T12",
            f"dst columns {_shape(dst.shape[1:])} differ from moving's {_shape(moving.shape[1:])}",
        )
    limits = (
        ("K", stationary.partitions, target.matmul_max_contract),
        ("M", _free_count(stationary), target.matmul_max_stationary),
        ("N", _free_count(moving), target.matmul_max_moving),
    )
    for letter, value, limit in limits:
        most = context.upper(value)
        if most is None or most > limit:
            context.fail("T12", f"{letter} is {_bound(most)}, more than {limit}")
    _check_matmul_dtypes(context, dst, stationary, moving)
    _check_bank(context, dst)


def _check_matmul_dtypes(
    context: Context, dst: TileAccess, stationary: TileAccess, moving: TileAccess
) -> None:
    names = [context.dtype_name(a) for a in (stationary, moving)]
    for access, name in zip((stationary, moving), names, strict=True):
        if not context.target.multiplies(_dtype(context, access)):
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
    rows, columns = data.partitions, _free_count(data)
    if dst.partitions != columns or _free_count(dst) != rows:
        context.fail("T14", f"dst is {_shape(dst.shape)} for data {_shape(data.shape)}")
    if _dtype(context, dst) != _dtype(context, data):
        context.fail("T10", "dst and data of a transpose have different dtypes")
    tensor = instruction.engine == isa.TENSOR
    limit = context.target.partitions if tensor else context.target.transpose_vector_max
    for value in (rows, columns):
        most = context.upper(value)
        if most is None or most > limit:
            context.fail("T14", f"a side of {_bound(most)} is more than {limit}")
    if tensor and (_memory(context, data) != SBUF or _memory(context, dst) != PSUM):
        context.fail("T7", "TensorE reads SBUF and writes PSUM")


def _activation(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    _same(context, "T5", dst, data, "dst and data")
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
        if result.partitions != data.partitions or not _is_column(result):
            context.fail("T19", f"reduce_res is {_shape(result.shape)}, not [P, 1]")


def _tensor_tensor(context: Context, instruction: Instruction) -> None:
    dst, first, second = _tiles(instruction, "dst", "data1", "data2")
    _same(context, "T5", dst, first, "dst and data1")
    _same(context, "T5", dst, second, "dst and data2")
    _check_both_psum(context, first, second)
    _binary(context, instruction, "op")
    if _classes(context, instruction) == "bitvec":
        _check_bitvec(context, instruction)


def _tensor_scalar(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    _same(context, "T5", dst, data, "dst and data")
    if (instruction.attr("op1") is None) != (_operand(instruction, "operand1") is None):
        context.fail("T11", "op1 and operand1 come together")
    bitvec = _classes(context, instruction) == "bitvec"
    for name in ("operand0", "operand1"):
        _check_scalar(context, instruction, name, data)
        exact = isa.is_exact_integer(instruction, lambda a: _dtype(context, a))
        if not bitvec and not (exact and instruction.engine == isa.GPSIMD):
            _check_scalar_f32(context, instruction, name)
    if bitvec:
        _check_bitvec(context, instruction)


def _scalar_tensor_tensor(context: Context, instruction: Instruction) -> None:
    dst, data, other = _tiles(instruction, "dst", "data", "operand1")
    _same(context, "T5", dst, data, "dst and data")
    _same(context, "T5", dst, other, "dst and operand1")
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
        context.fail("T19", f"axis {_shape(axes)} does not end the {rank} dimensions of data")  # type: ignore[arg-type]
    rest = data.shape[: rank - len(axes)]
    expected = rest if len(rest) > 1 else (*rest, 1)
    if dst.shape != expected:
        context.fail("T19", f"dst is {_shape(dst.shape)}, not {_shape(expected)}")
    if op.kind == "bitvec":
        _check_bitvec(context, instruction)


def _scan(context: Context, instruction: Instruction) -> None:
    dst, first, second = _tiles(instruction, "dst", "data0", "data1")
    _same(context, "T5", dst, first, "dst and data0")
    _same(context, "T5", dst, second, "dst and data1")
    _check_both_psum(context, first, second)
    _check_scalar(context, instruction, "initial", first)
    if instruction.attr("op1") is None:
        context.fail("T11", "it needs 'op1'")
    _binary(context, instruction, "op0", "op1")
    if _classes(context, instruction) == "bitvec":
        context.fail("T11", "it takes no bitvec operators")


def _copy(context: Context, instruction: Instruction) -> None:
    dst, source = _tiles(instruction, "dst", "src")
    _same(context, "T5", dst, source, "dst and src")
    _check_cast(context, dst, source)


def _check_cast(context: Context, dst: Access, source: Access) -> None:
    """Copies keep bits of any dtype; a cast goes through fp32, so it needs computing dtypes."""
    if _dtype(context, dst) == _dtype(context, source):
        return
    for access in (dst, source):
        if not context.target.computes(_dtype(context, access)):
            context.fail("T10", f"{context.target.name} casts no {context.dtype_name(access)}")


def _predicated(context: Context, instruction: Instruction) -> None:
    (dst,) = _tiles(instruction, "dst")
    (predicate,) = _tiles(instruction, "predicate")
    source = _operand(instruction, "src")
    _same(context, "T5", dst, predicate, "dst and predicate")
    if isinstance(source, TileAccess):
        _same(context, "T5", dst, source, "dst and src")
        if _dtype(context, dst) != _dtype(context, source):
            context.fail("T10", "dst and src have different dtypes")
        _check_both_psum(context, source, predicate)
    if context.dtype_name(predicate) not in ("bool", "u8", "u16", "i32", "u32"):
        context.fail("T10", f"predicate is {context.dtype_name(predicate)}", "Use bool or uint8")


def _same_shape(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    _same(context, "T5", dst, data, "dst and data")


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
    if total != _free_count(dst):
        context.fail("T24", f"its pattern counts {total} of {_free_count(dst)} elements")
    if instruction.op == "affine_select":
        (source,) = _tiles(instruction, "on_true_tile")
        _same(context, "T5", dst, source, "dst and on_true_tile")
        compare = isa.ALU.get(str(instruction.attr("cmp_op", "equal")))
        if compare is None or compare.kind != "compare":
            context.fail("T11", f"'{instruction.attr('cmp_op')}' does not compare")


def _partition_reduce(context: Context, instruction: Instruction) -> None:
    dst, data = _tiles(instruction, "dst", "data")
    if dst.shape != (1, *data.shape[1:]):
        context.fail("T19", f"dst is {_shape(dst.shape)} for data {_shape(data.shape)}")
    if str(instruction.attr("op")) not in ("add", "maximum", "bitwise_and", "bitwise_or"):
        context.fail(
            "T11",
            f"'{instruction.attr('op')}' does not reduce partitions",
            "Use add, maximum, bitwise_and or bitwise_or",
        )


def _top8(context: Context, instruction: Instruction) -> None:
    name = "src" if instruction.op == "max8" else "data"
    dst, data = _tiles(instruction, "dst", name)
    low, high = context.lower(_free_count(data)), context.upper(_free_count(data))
    if low is None or low < _MAX8_RANGE[0] or high is None or high > _MAX8_RANGE[1]:
        context.fail("T24", f"it reads {_bound(low)} to {_bound(high)} values per partition")
    eights = [dst] if instruction.op == "max8" else [dst, *_tiles(instruction, "vals")]
    for access in eights:
        if access.shape != (data.partitions, 8):
            context.fail("T24", f"an operand is {_shape(access.shape)}, not [P, 8]")
    if instruction.op == "nc_find_index8" and context.dtype_name(dst) not in ("u16", "u32"):
        context.fail("T10", f"dst is {context.dtype_name(dst)}", "Use uint32")


_RULES: Final[dict[str, Callable[[Context, Instruction], None]]] = {
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
    "reciprocal": _same_shape,
    "memset": _memset,
    "iota": _pattern,
    "affine_select": _pattern,
    "tensor_partition_reduce": _partition_reduce,
    "max8": _top8,
    "nc_find_index8": _top8,
}


# DMA --------------------------------------------------------------------------------------------


def _check_dma(context: Context, instruction: Instruction) -> None:
    dst, source = instruction.outs[0], instruction.ins[0]
    assert isinstance(source, TileAccess | HbmAccess)
    if instruction.op == "dma_transpose":
        if len(dst.shape) != 2 or dst.shape != tuple(reversed(source.shape)):
            context.fail("T14", f"dst is {_shape(dst.shape)} for src {_shape(source.shape)}")
        if _dtype(context, dst) != _dtype(context, source):
            context.fail("T10", "dst and src of a transpose have different dtypes")
    else:
        _same(context, "T5", dst, source, "dst and src")
    if instruction.op == "dma_compute":
        for access in (dst, source):
            if not context.target.computes(_dtype(context, access)):
                context.fail("T10", f"{context.target.name} adds no {context.dtype_name(access)}")
    elif instruction.op == "dma_copy":
        _check_cast(context, dst, source)
    indexed = [a for a in (dst, source) if isinstance(a, HbmAccess) and a.index is not None]
    if len(indexed) > 1:
        context.fail("T20", "both sides are indirect")
    for access in indexed:
        _check_index(context, instruction, access)


def _check_index(context: Context, instruction: Instruction, access: HbmAccess) -> None:
    index = access.index
    assert index is not None
    if _memory(context, index) != SBUF or not _is_column(index):
        context.fail("T20", f"the index tile is {context.text(index)}, not [P, 1] in sbuf")
    if context.dtype_name(index) not in ("i32", "u32"):
        context.fail("T20", f"the index tile is {context.dtype_name(index)}")
    if not access.spans or access.spans[0].count != index.partitions:
        context.fail("T20", f"{index.partitions} indices for {_shape(access.shape)} rows")
    if context.hardware and instruction.engine != isa.GPSIMD:
        context.fail("T20", "only GpSimd builds the descriptors of an indirect DMA")
