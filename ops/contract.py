"""Contraction: sums of products over shared axes, with batch axes.

bf16 and f16 operands are multiplied and summed in f32 and rounded once, as the PE array does.
Integers wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    Linear,
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
from trnx.ops._factories import (
    ANY,
    FLOAT,
    NumpyArray,
    check_axis,
    check_dtypes,
    def_bilinear_jvp,
    elements,
    nbytes,
)

Array = Any
Pair = tuple[tuple[int, ...], tuple[int, ...]]


def free_axes(rank: int, contract: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """Axes that are neither contracted nor batch, in order."""
    return tuple(axis for axis in range(rank) if axis not in contract and axis not in batch)


def _abstract(
    lhs: Aval, rhs: Aval, *, contract: Pair, batch: Pair, out_dtype: np.dtype[Any]
) -> Aval:
    dtype = check_dtypes("dot_general", (lhs, rhs), ANY)
    if dtypes.is_inexact(dtype) != dtypes.is_inexact(out_dtype) or dtype == dtypes.bool_:
        raise DTypeError(
            message(
                f"dot_general of {lhs} and {rhs} cannot give {dtypes.short_name(out_dtype)}",
                None,
                "Cast the operands first",
            )
        )
    for name, axes in (("contract", contract), ("batch", batch)):
        if len(axes[0]) != len(axes[1]):
            raise ShapeError(
                message(f"dot_general got {name} axes {axes}", None, "Name as many on both sides")
            )
    for aval, contracted, batched in ((lhs, contract[0], batch[0]), (rhs, contract[1], batch[1])):
        for axis in (*contracted, *batched):
            check_axis("dot_general", aval, axis)
        if len({*contracted, *batched}) != len(contracted) + len(batched):
            raise ShapeError(
                message(f"dot_general of {aval} names an axis twice", None, "Name each axis once")
            )
    for left, right in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        if not structurally_equal(lhs.shape[left], rhs.shape[right]):
            raise ShapeError(
                message(
                    f"dot_general of {lhs} and {rhs} pairs axis {left} of size "
                    f"{lhs.shape[left]} with axis {right} of size {rhs.shape[right]}",
                    None,
                    "Contracted and batch axes must have equal sizes",
                )
            )
    shape: list[Size] = [lhs.shape[axis] for axis in batch[0]]
    shape += [lhs.shape[axis] for axis in free_axes(lhs.ndim, contract[0], batch[0])]
    shape += [rhs.shape[axis] for axis in free_axes(rhs.ndim, contract[1], batch[1])]
    return Aval(tuple(shape), out_dtype, lhs.weak and rhs.weak and dtype == out_dtype)


def _reference(
    lhs: NumpyArray, rhs: NumpyArray, *, contract: Pair, batch: Pair, out_dtype: np.dtype[Any]
) -> NumpyArray:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(lhs.ndim)]
    right = [next(letters) for _ in range(rhs.ndim)]
    for i, j in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        right[j] = left[i]
    result = [left[i] for i in batch[0]]
    result += [left[i] for i in free_axes(lhs.ndim, contract[0], batch[0])]
    result += [right[i] for i in free_axes(rhs.ndim, contract[1], batch[1])]
    # f64 holds sums of f32 products to the last bit; integers wrap in the result type.
    wide = np.dtype(np.float64) if dtypes.is_float(lhs.dtype) else out_dtype
    subscripts = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    with np.errstate(all="ignore"):
        return np.einsum(subscripts, lhs.astype(wide), rhs.astype(wide)).astype(out_dtype)


def _cases() -> tuple[OpCase, ...]:
    forms: list[tuple[tuple[tuple[int, ...], ...], Pair, Pair]] = [
        (((3, 4), (4, 5)), ((1,), (0,)), ((), ())),
        (((4, 3), (5, 4)), ((0,), (1,)), ((), ())),
        (((3, 4), (4,)), ((1,), (0,)), ((), ())),
        (((4,), (4,)), ((0,), (0,)), ((), ())),
        (((3,), (4,)), ((), ()), ((), ())),
        (((2, 3, 4), (2, 4, 5)), ((2,), (1,)), ((0,), (0,))),
        (((3, 2, 4, 6), (6, 5, 2, 4)), ((2, 3), (3, 0)), ((1,), (2,))),
        (((2, 3, 4), (4, 5)), ((2,), (0,)), ((), ())),
        (((130, 131), (131, 9)), ((1,), (0,)), ((), ())),
        (((3, 0), (0, 5)), ((1,), (0,)), ((), ())),
        (((0, 4), (4, 5)), ((1,), (0,)), ((), ())),
    ]
    kinds = [(t, t) for t in (*FLOAT, dtypes.int32, dtypes.complex64)]
    kinds += [(t, dtypes.float32) for t in (dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3)]
    ranges = ((-2.0, 2.0), (-2.0, 2.0))
    return tuple(
        OpCase(
            shapes, {"contract": contract, "batch": batch, "out_dtype": out}, ranges, (dtype, dtype)
        )
        for shapes, contract, batch in forms
        for dtype, out in kinds
    )


dot_general_p = Primitive(
    "dot_general",
    abstract=_abstract,
    doc="Sum of products over contracted axes for every batch index; result axes are batch, free "
    "of the left, free of the right operand.",
    reference=_reference,
    tests=TestRecord(
        _cases(),
        (dtypes.float64,),
        # 131 products below 4: partial sums reach about 40, and each rounds by 2**-24 of it.
        {"f32": 2e-5, "f64": 4e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-5},
        grad_order=2,
        floor=1.0,
    ),
)


def_bilinear_jvp(dot_general_p)


@dot_general_p.def_transpose
def _transpose(
    ct: Array, lhs: Array, rhs: Array, *, contract: Pair, batch: Pair, out_dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    if isinstance(lhs, Linear):
        return _operand_cotangent(ct, lhs.aval, rhs, contract, batch, True), None
    swapped = (contract[1], contract[0]), (batch[1], batch[0])
    return None, _operand_cotangent(ct, rhs.aval, lhs, *swapped, False)


def _operand_cotangent(
    ct: Array, aval: Aval, other: Array, contract: Pair, batch: Pair, left: bool
) -> Array:
    """Contract `ct` with the other operand's free axes, then put the axes of the result in order.

    `contract` and `batch` name the axes of (the wanted operand, the other operand).
    """
    other_rank = len(op.shape_of(other))
    own_free = free_axes(aval.ndim, contract[0], batch[0])
    other_free = free_axes(other_rank, contract[1], batch[1])
    count = len(batch[0])
    first = count + len(own_free) if left else count
    ct_other = tuple(range(first, first + len(other_free)))
    dtype = op.dtype_of(ct)
    product = op.dot_general(
        ct,
        op.convert(other, dtype),
        contract=(ct_other, other_free),
        batch=(tuple(range(count)), batch[1]),
        out_dtype=aval.dtype,
    )
    # The product has axes: batch, own free, then the other's contracted axes in its own order.
    partner = dict(zip(contract[1], contract[0], strict=True))
    axes = [*batch[0], *own_free, *(partner[axis] for axis in sorted(contract[1]))]
    return op.transpose(product, [axes.index(axis) for axis in range(aval.ndim)])


@dot_general_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    contract: Pair,
    batch: Pair,
    out_dtype: np.dtype[Any],
) -> tuple[Array, int]:
    def moved(axes: Sequence[int], dim: int | None) -> tuple[int, ...]:
        return tuple(axis + (dim is not None and axis >= dim) for axis in axes)

    contracts = moved(contract[0], dims[0]), moved(contract[1], dims[1])
    batches = moved(batch[0], dims[0]), moved(batch[1], dims[1])
    lhs_dim, rhs_dim = dims
    if lhs_dim is not None and rhs_dim is not None:
        batches = (lhs_dim, *batches[0]), (rhs_dim, *batches[1])
        return op.dot_general(args[0], args[1], contracts, batches, out_dtype), 0
    out = op.dot_general(args[0], args[1], contracts, batches, out_dtype)
    lhs_free = free_axes(len(op.shape_of(args[0])), contracts[0], batches[0])
    if lhs_dim is not None:
        return out, len(batches[0]) + lhs_free.index(lhs_dim)
    assert rhs_dim is not None
    rhs_free = free_axes(len(op.shape_of(args[1])), contracts[1], batches[1])
    return out, len(batches[0]) + len(lhs_free) + rhs_free.index(rhs_dim)


@dot_general_p.def_pad
def _pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[tuple[Size, ...]],
    *,
    contract: Pair,
    batch: Pair,
    out_dtype: np.dtype[Any],
) -> Array:
    masked = []
    for x, shape, axes in zip(args, true_shapes, contract, strict=True):
        # Both sides: zero times garbage could be NaN.
        kept = [
            s if i in axes else b
            for i, (s, b) in enumerate(zip(shape, op.shape_of(x), strict=True))
        ]
        masked.append(ctx.mask(x, tuple(kept), 0))
    return op.dot_general(masked[0], masked[1], contract, batch, out_dtype)


@dot_general_p.def_cost
def _cost(lhs: Aval, rhs: Aval, *, contract: Pair, batch: Pair, out_dtype: np.dtype[Any]) -> Cost:
    out = _abstract(lhs, rhs, contract=contract, batch=batch, out_dtype=out_dtype)
    depth = elements(Aval(tuple(lhs.shape[axis] for axis in contract[0]), lhs.dtype))
    return Cost(
        flops=2 * elements(out) * depth, bytes_read=nbytes(lhs, rhs), bytes_written=nbytes(out)
    )
