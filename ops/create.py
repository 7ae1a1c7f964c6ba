"""Arrays and scalars made from sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Dim,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    dtypes,
    message,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    COMPLEX,
    FLOAT,
    INTEGER,
    NumpyArray,
    check_axis,
    check_dtypes,
    nbytes,
)

_NO_OPERANDS = {
    "jvp": "it has no operands",
    "transpose": "it has no operands",
    "linearize": "it has no operands",
    "vmap": "it has no operands",
}


# ---------------------------------------------------------------- iota
def _iota_abstract(*, shape: tuple[Size, ...], axis: int, dtype: np.dtype[Any]) -> Aval:
    aval = Aval(shape, dtype)
    check_axis("iota", aval, axis)
    check_dtypes("iota", (aval,), INTEGER + FLOAT + COMPLEX)
    return aval


def _iota_reference(*, shape: tuple[int, ...], axis: int, dtype: np.dtype[Any]) -> NumpyArray:
    line = np.arange(shape[axis]).astype(dtype)
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


iota_p = Primitive(
    "iota",
    abstract=_iota_abstract,
    doc="0, 1, 2, … along one axis of a new array.",
    reference=_iota_reference,
    tests=TestRecord(
        tuple(
            OpCase((), {"shape": shape, "axis": axis, "dtype": dtype})
            for dtype in (dtypes.int32, dtypes.uint32, dtypes.float32, dtypes.int64)
            for shape, axis in [((5,), 0), ((3, 4), 0), ((3, 4), 1), ((131, 3), 0), ((0, 4), 1)]
        )
    ),
    not_needed=_NO_OPERANDS,
)


@iota_p.def_pad
def _iota_pad(
    ctx: Any,
    args: Sequence[Any],
    true_shapes: Any,
    *,
    shape: tuple[Size, ...],
    axis: int,
    dtype: np.dtype[Any],
) -> Any:
    return op.iota([ctx.padded(size) for size in shape], axis, dtype)


@iota_p.def_cost
def _iota_cost(*, shape: tuple[Size, ...], axis: int, dtype: np.dtype[Any]) -> Cost:
    return Cost(bytes_written=nbytes(Aval(shape, dtype)))


# ---------------------------------------------------------------- dim_size
def _dim_size_abstract(*, size: Size, dtype: np.dtype[Any]) -> Aval:
    aval = Aval((), dtype)
    check_dtypes("dim_size", (aval,), INTEGER + FLOAT)
    return aval


def _dim_size_reference(*, size: Size, dtype: np.dtype[Any]) -> NumpyArray:
    if isinstance(size, Dim):
        raise ShapeError(
            message(f"Size {size} has no value yet", None, "Specialise the program first")
        )
    return np.asarray(size).astype(dtype)


dim_size_p = Primitive(
    "dim_size",
    abstract=_dim_size_abstract,
    doc="A symbolic size as a scalar: its true value at run time.",
    reference=_dim_size_reference,
    tests=TestRecord(
        tuple(OpCase((), {"size": 7, "dtype": t}) for t in (dtypes.int32, dtypes.float32))
    ),
    not_needed=_NO_OPERANDS,
)


@dim_size_p.def_pad
def _dim_size_pad(
    ctx: Any, args: Sequence[Any], true_shapes: Any, *, size: Size, dtype: np.dtype[Any]
) -> Any:
    return op.convert(ctx.true_size(size), dtype)


@dim_size_p.def_cost
def _dim_size_cost(*, size: Size, dtype: np.dtype[Any]) -> Cost:
    return Cost(bytes_written=dtype.itemsize)
