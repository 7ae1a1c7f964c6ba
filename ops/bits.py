"""The bits of numbers: seen as another dtype, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    dtypes,
    message,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import INTEGER, NO_DERIVATIVE, NumpyArray, nbytes, quiet, unary

Array = Any


# ---------------------------------------------------------------- bitcast
def _bitcast_abstract(x: Aval, *, dtype: np.dtype[Any]) -> Aval:
    old, new = x.dtype.itemsize, dtype.itemsize
    kinds = {dtypes.is_bool(d) or dtypes.is_complex(d) for d in (x.dtype, dtype)}
    if True in kinds and x.dtype != dtype:
        raise DTypeError(
            message(
                f"bitcast of {x} to {dtypes.short_name(dtype)}",
                None,
                "Use integers and floats; take complex numbers apart, compare to make bools",
            )
        )
    if old == new:
        return Aval(x.shape, dtype)
    if old > new:
        return Aval((*x.shape, old // new), dtype)
    if not x.shape or not structurally_equal(x.shape[-1], new // old):
        raise ShapeError(
            message(
                f"bitcast of {x} to {dtypes.short_name(dtype)} joins {new // old} elements",
                None,
                f"Give a last axis of size {new // old}",
            )
        )
    return Aval(x.shape[:-1], dtype)


def _bitcast(x: NumpyArray, *, dtype: np.dtype[Any]) -> NumpyArray:
    out = _bitcast_abstract(Aval(x.shape, x.dtype), dtype=dtype)
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(out.shape)


bitcast_p = Primitive(
    "bitcast",
    abstract=_bitcast_abstract,
    doc="The bits of the operand as another dtype; a narrower one adds a last axis, lowest bits "
    "first, a wider one takes it away.",
    reference=_bitcast,
    tests=TestRecord(
        tuple(
            OpCase((shape,), {"dtype": new}, dtypes=(old,))
            for shape, old, new in [
                ((3, 4), dtypes.int32, dtypes.uint32),
                ((5,), dtypes.uint32, dtypes.int32),
                ((3,), dtypes.int32, dtypes.int16),
                ((3, 4), dtypes.uint8, dtypes.uint32),
                ((0, 4), dtypes.uint32, dtypes.int32),
            ]
        )
    ),
    not_needed={"transpose": NO_DERIVATIVE},
)
bitcast_p.def_jvp(None)


@bitcast_p.def_vmap
def _vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, dtype: np.dtype[Any]
) -> tuple[Array, int]:
    return bitcast_p.bind(op.moveaxis(args[0], dims[0], 0), dtype=dtype), 0


@bitcast_p.def_pad
def _pad(ctx: Any, args: Sequence[Array], true_shapes: Any, *, dtype: np.dtype[Any]) -> Array:
    # The axis that a wider dtype takes away has a fixed size, so it is not padded.
    return bitcast_p.bind(args[0], dtype=dtype)


@bitcast_p.def_cost
def _cost(x: Aval, *, dtype: np.dtype[Any]) -> Cost:
    return Cost(bytes_read=nbytes(x), bytes_written=nbytes(_bitcast_abstract(x, dtype=dtype)))


# ---------------------------------------------------------------- population_count
@quiet
def _population_count(x: NumpyArray) -> NumpyArray:
    # NumPy counts the bits of the magnitude of negative numbers.
    unsigned = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    return np.bitwise_count(unsigned).astype(x.dtype).reshape(x.shape)


population_count_p = unary(
    "population_count",
    "How many bits are set, in the dtype of the operand.",
    accepts=INTEGER,
    reference=_population_count,
    flops=12,
)


@population_count_p.def_composite
def _count_bits(x: Array) -> Array:
    """Sums of neighbouring bits, pairs, nibbles, then bytes, without carries between them."""
    dtype = op.dtype_of(x)
    width = 8 * dtype.itemsize

    def word(pattern: int) -> Array:
        value = int.from_bytes(bytes([pattern]) * dtype.itemsize, "little")
        return op.scalar(np.array(value, f"u{dtype.itemsize}").astype(dtype)[()], dtype)

    def right(value: Array, count: int) -> Array:
        return op.shift_right_logical(value, op.scalar(count, dtype))

    pairs = op.sub(x, op.bitwise_and(right(x, 1), word(0x55)))
    nibbles = op.add(op.bitwise_and(pairs, word(0x33)), op.bitwise_and(right(pairs, 2), word(0x33)))
    counts = op.bitwise_and(op.add(nibbles, right(nibbles, 4)), word(0x0F))
    step = 8
    while step < width:
        counts = op.add(counts, right(counts, step))
        step *= 2
    return op.bitwise_and(counts, op.scalar(min(0x7F, 2 * width - 1), dtype))
