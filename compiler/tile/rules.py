"""The constraints on a single instruction; see ``constraints`` for the numbered table."""

from __future__ import annotations

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
from trnx.compiler.tile.operands import (
    bound_text,
    check_cast,
    computes,
    dtype_of,
    is_column,
    memory_of,
    same_shape,
    shape_text,
    tile_accesses,
)
from trnx.compiler.tile.rules_compute import RULES

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
        for access in tile_accesses(instruction):
            _check_pattern(context, access)
        _check_operators(context, instruction, spec)
        _check_dtypes(context, instruction)
        RULES[instruction.op](context, instruction)


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
    if dtype_of(context, access) not in (np.dtype(np.int32), np.dtype(np.uint32)):
        context.fail("T10", f"register '{load.register}' is loaded from {context.text(access)}")


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
            f"elements {bound_text(low)} to {bound_text(high)} of a partition leave "
            f"{context.tile_text(tile)}",
        )
    if any((context.lower(s.stride) or 0) < 0 for s in access.spans):
        context.fail("T3", f"a stride of {context.text(access)} is negative")


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
            f"elements {bound_text(low)} to {bound_text(high)} leave parameter '{param.name}' of "
            f"{bounds(size, context.env)[1] if not dynamic else size} elements",
        )


def _check_memories(context: Context, instruction: Instruction, spec: isa.InstructionSpec) -> None:
    pairs = [*zip(spec.outs, instruction.outs, strict=False)]
    for declared, access in [*pairs, *zip(spec.ins, instruction.ins, strict=True)]:
        if not isinstance(access, TileAccess | HbmAccess):
            continue
        memory = memory_of(context, access)
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
        extended = isa.is_extension(instruction, lambda a: dtype_of(context, a))
        if context.hardware and not op.native and not extended:
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
    exact = isa.is_exact_integer(instruction, lambda a: dtype_of(context, a))
    if exact and engine == isa.GPSIMD:
        if len(ops) > 1:
            context.fail("T8", "exact 32-bit integers take one operator at a time")
        narrow = [a for a in tile_accesses(instruction) if dtype_of(context, a).itemsize != 4]
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
    accesses = tile_accesses(instruction)
    if instruction.op in ("memset", "nc_transpose", "tensor_copy", "tensor_copy_predicated"):
        return
    if instruction.op == "nc_matmul":
        return
    for access in accesses:
        if not computes(context, dtype_of(context, access)):
            context.fail(
                "T10", f"{context.target.name} computes nothing in {context.dtype_name(access)}"
            )


# DMA --------------------------------------------------------------------------------------------


def _check_dma(context: Context, instruction: Instruction) -> None:
    dst, source = instruction.outs[0], instruction.ins[0]
    assert isinstance(source, TileAccess | HbmAccess)
    if instruction.op == "dma_transpose":
        if len(dst.shape) != 2 or dst.shape != tuple(reversed(source.shape)):
            context.fail(
                "T14", f"dst is {shape_text(dst.shape)} for src {shape_text(source.shape)}"
            )
        if dtype_of(context, dst) != dtype_of(context, source):
            context.fail("T10", "dst and src of a transpose have different dtypes")
    else:
        same_shape(context, "T5", dst, source, "dst and src")
    if instruction.op == "dma_compute":
        for access in (dst, source):
            if not computes(context, dtype_of(context, access)):
                context.fail("T10", f"{context.target.name} adds no {context.dtype_name(access)}")
    elif instruction.op == "dma_copy":
        check_cast(context, dst, source)
    indexed = [a for a in (dst, source) if isinstance(a, HbmAccess) and a.index is not None]
    if len(indexed) > 1:
        context.fail("T20", "both sides are indirect")
    for access in indexed:
        _check_index(context, instruction, access)


def _check_index(context: Context, instruction: Instruction, access: HbmAccess) -> None:
    index = access.index
    assert index is not None
    if memory_of(context, index) != SBUF or not is_column(index):
        context.fail("T20", f"the index tile is {context.text(index)}, not [P, 1] in sbuf")
    if context.dtype_name(index) not in ("i32", "u32"):
        context.fail("T20", f"the index tile is {context.dtype_name(index)}")
    if not access.spans or access.spans[0].count != index.partitions:
        context.fail("T20", f"{index.partitions} indices for {shape_text(access.shape)} rows")
    if context.hardware and instruction.engine != isa.GPSIMD:
        context.fail("T20", "only GpSimd builds the descriptors of an indirect DMA")
