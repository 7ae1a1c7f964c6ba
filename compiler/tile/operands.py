"""What the rules of ``rules`` and ``rules_compute`` share: facts about operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.compiler.tile import isa
from trnx.compiler.tile.constraints import Context
from trnx.compiler.tile.expr import Index, mul
from trnx.compiler.tile.ir import Access, Instruction, TileAccess


def dtype_of(context: Context, access: Access) -> np.dtype[np.generic]:
    """Element type of what an access reaches."""
    if isinstance(access, TileAccess):
        return context.tiles[access.tile].dtype
    return context.params[access.buffer].dtype


def memory_of(context: Context, access: Access) -> str:
    """``sbuf``, ``psum`` or ``hbm``."""
    return context.tiles[access.tile].memory if isinstance(access, TileAccess) else "hbm"


def tile_accesses(instruction: Instruction) -> list[TileAccess]:
    """Every on-chip access of an instruction, destinations first."""
    return [o for o in (*instruction.outs, *instruction.ins) if isinstance(o, TileAccess)]


def operand(instruction: Instruction, name: str) -> object:
    """The source operand that the declaration calls ``name``."""
    names = [o.name for o in isa.spec(instruction.op).ins]
    return instruction.ins[names.index(name)]


def free_count(access: TileAccess) -> Index:
    """Elements per partition."""
    total: Index = 1
    for span in access.spans:
        total = mul(total, span.count)
    return total


def is_column(access: TileAccess) -> bool:
    """Whether an access has one element per partition."""
    return all(span.count == 1 for span in access.spans)


def same_shape(context: Context, number: str, first: Access, second: Access, what: str) -> None:
    """Fail with constraint ``number`` unless both accesses have one shape."""
    if first.shape != second.shape:
        context.fail(
            number, f"{what} have shapes {shape_text(first.shape)} and {shape_text(second.shape)}"
        )


def shape_text(shape: Sequence[Index]) -> str:
    """``[128, n]``."""
    return f"[{', '.join(map(str, shape))}]"


def bound_text(value: int | None) -> str:
    """A bound with thousands separators; ``?`` when unknown."""
    return "?" if value is None else f"{value:,}"


def computes(context: Context, dtype: np.dtype[Any]) -> bool:
    """Whether instructions compute in a dtype: the target's, or the 64-bit integer extension."""
    return context.target.computes(dtype) or (dtype.kind in "iu" and dtype.itemsize == 8)


def check_cast(context: Context, dst: Access, source: Access) -> None:
    """Copies keep bits of any dtype; a cast goes through fp32, so it needs computing dtypes."""
    if dtype_of(context, dst) == dtype_of(context, source):
        return
    for access in (dst, source):
        if not computes(context, dtype_of(context, access)):
            context.fail("T10", f"{context.target.name} casts no {context.dtype_name(access)}")
