"""What the data-movement instructions do: DMA, copies, transposes, fills, index ramps, selects.

Each function takes an ``Operation`` and returns the values of its destinations, already in the
destination's dtype and shape, in the order of ``isa.SPECS[op].outs``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim import alu
from trnx.compiler.sim.cast import cast, is_integral, through_fp32, transfer
from trnx.compiler.sim.operation import Operation
from trnx.core.dtypes import bool_, float32, float64, int32

Array = NDArray[Any]


def dma_copy(op: Operation) -> list[Array]:
    """Element by element; different dtypes cast as a DMA does."""
    values = op.tile(0)
    op.require_same_shape(op.outs[0].shape, values.shape)
    return [transfer(values, op.outs[0].dtype)]


def dma_transpose(op: Operation) -> list[Array]:
    """``dst[j, i] = src[i, j]``."""
    values = op.tile(0)
    if values.ndim != 2:
        raise op.error(f"dma_transpose of a {values.ndim}-dimensional access", "Use two dimensions")
    op.require_same_shape(op.outs[0].shape, values.T.shape)
    op.require_same_dtype(values.dtype, op.outs[0].dtype)
    return [values.T]


def dma_compute(op: Operation) -> list[Array]:
    """``dst += src``, row after row, so repeated rows accumulate; writes while it runs."""
    values = op.tile(0)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, values.shape)
    dtype = destination.dtype
    if is_integral(dtype):
        compute = dtype
    else:
        compute = float64 if dtype == float64 else float32
    addend = transfer(values, compute)
    for window, row in op.rows(0, addend):
        with np.errstate(all="ignore"):
            window.write(cast(cast(op.read_row(window), compute) + row, dtype))
    return []


def nc_transpose(op: Operation) -> list[Array]:
    """``dst[f, p] = data[p, f]``, bit exact; extra free dimensions are flattened."""
    values = op.tile(0)
    flat = values.reshape(values.shape[0], -1).T
    destination = op.outs[0]
    op.require_same_dtype(values.dtype, destination.dtype)
    shape = destination.shape
    if shape[0] != flat.shape[0] or int(np.prod(shape[1:])) != flat.shape[1]:
        op.require_same_shape(shape, flat.shape)
    return [flat.reshape(shape)]


def tensor_copy(op: Operation) -> list[Array]:
    """Bit exact for equal dtypes, else a cast through fp32 (exact integers and f64 on cpu)."""
    values = op.tile(0)
    op.require_same_shape(op.outs[0].shape, values.shape)
    dtype = op.outs[0].dtype
    return [transfer(values, dtype) if op.native else through_fp32(values, dtype)]


def tensor_copy_predicated(op: Operation) -> list[Array]:
    """``src`` where the predicate is non-zero, else the old destination.

    Only selected elements are written, so unselected ones may be uninitialised.
    """
    destination = op.outs[0]
    predicate = op.tile(1)
    op.require_same_shape(destination.shape, predicate.shape)
    if not is_integral(predicate.dtype):
        raise op.error(
            f"a predicate of dtype {predicate.dtype}", "Use a bool, uint8, int32 or uint32 tile"
        )
    chosen = predicate == 0 if op.flag("reverse_pred") else predicate != 0
    source = op.scalar_or_tile(0)
    if isinstance(source, np.ndarray):
        if source.shape != chosen.shape:
            op.require_row_scalar(source, 0)
        op.require_same_dtype(source.dtype, destination.dtype)
        values = np.broadcast_to(source, chosen.shape)
    else:
        values = np.broadcast_to(immediate(source, destination.dtype), chosen.shape)
    old, flags = op.peek(0)
    result = np.where(chosen, values, old)
    op.keep_unwritten(0, flags | chosen)
    return [result]


def memset(op: Operation) -> list[Array]:
    """A constant of the destination's dtype."""
    destination = op.outs[0]
    return [np.full(destination.shape, immediate(op.scalar(0), destination.dtype))]


def immediate(value: bool | int | float, dtype: np.dtype[Any]) -> Array:
    """A Python number as an element: integers wrap, floats round."""
    if is_integral(dtype) and dtype != bool_ and not isinstance(value, float):
        return np.asarray(alu.operand(int(value), dtype))
    return cast(np.asarray(value, float64), dtype)


def affine_values(op: Operation, shape: tuple[int, ...]) -> Array:
    """``offset + p·channel_multiplier + Σ index·step`` in wrapping int32, p from 0."""
    pattern = op.pattern("pattern")
    counts = tuple(count for _, count in pattern)
    if int(np.prod(counts)) != int(np.prod(shape[1:])):
        raise op.error(
            f"pattern counts {list(counts)} for a destination of shape {list(shape)}",
            "Give as many steps as the destination has elements per partition",
        )
    total = np.full((1, 1), op.integer("offset", 0), np.int64)
    for step, count in pattern:
        steps = np.arange(count, dtype=np.int64) * step
        total = (total[:, :, None] + steps[None, None, :]).reshape(1, -1)
    rows = np.arange(shape[0], dtype=np.int64) * op.integer("channel_multiplier", 0)
    return (total + rows[:, None]).astype(int32).reshape(shape)


def iota(op: Operation) -> list[Array]:
    """The affine ramp, cast from int32."""
    destination = op.outs[0]
    return [cast(affine_values(op, destination.shape), destination.dtype)]


def affine_select(op: Operation) -> list[Array]:
    """``on_true_tile`` where the affine value compares to 0, else the constant."""
    values = op.tile(0)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, values.shape)
    keep = alu.apply(op.name("cmp_op", "equal"), affine_values(op, values.shape), int32.type(0))
    kept = through_fp32(values, destination.dtype)
    other = immediate(op.scalar(1), destination.dtype)
    return [np.where(keep != 0, kept, other)]


MOVES = {
    "dma_copy": dma_copy,
    "dma_transpose": dma_transpose,
    "dma_compute": dma_compute,
    "nc_transpose": nc_transpose,
    "tensor_copy": tensor_copy,
    "tensor_copy_predicated": tensor_copy_predicated,
    "memset": memset,
    "iota": iota,
    "affine_select": affine_select,
}
"""Data movement by instruction name."""
