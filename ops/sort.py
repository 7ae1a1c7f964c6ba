"""Sorting and the largest elements along an axis.

Sorts are stable. NaN is the largest value and zeros of both signs are equal, as in JAX; `top_k`
takes the lower index among equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    Zero,
    aval_of,
    dtypes,
    message,
    same_shape,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    ANY,
    BOOL,
    NOT_LINEAR,
    REAL,
    NumpyArray,
    check_axis,
    check_dtypes,
    elements,
    nbytes,
)
from trnx.ops.reduce import highest, lowest

Array = Any
Shape = tuple[Size, ...]
_INT32 = dtypes.int32


def largest(dtype: np.dtype[Any]) -> Any:
    """The value that sorts last."""
    return float("nan") if dtypes.is_float(dtype) else highest(dtype)


def ranks(x: NumpyArray) -> list[NumpyArray]:
    """Keys for ``numpy.lexsort``, least significant first, that order as this module does."""
    if not dtypes.is_float(x.dtype):
        return [x]
    wide = x.astype(np.float64)
    missing = np.isnan(wide)
    return [np.where(missing, 0.0, wide), missing]


# ---------------------------------------------------------------- sort
def _sort_abstract(*operands: Aval, axis: int, num_keys: int) -> tuple[Aval, ...]:
    first = operands[0]
    check_axis("sort", first, axis)
    if not 1 <= num_keys <= len(operands):
        raise ShapeError(
            message(
                f"sort of {len(operands)} operands by {num_keys} keys",
                None,
                f"Use 1 to {len(operands)} keys",
            )
        )
    for number, operand in enumerate(operands):
        check_dtypes("sort", (operand,), REAL + BOOL if number < num_keys else ANY)
        if not same_shape(operand.shape, first.shape):
            raise ShapeError(
                message(
                    f"sort got operands {' and '.join(map(str, operands))}",
                    None,
                    "Give operands of one shape",
                )
            )
    return operands


def _sort_reference(*operands: NumpyArray, axis: int, num_keys: int) -> list[NumpyArray]:
    keys = [rank for x in reversed(operands[:num_keys]) for rank in ranks(x)]
    order = np.lexsort(keys, axis)
    return [np.take_along_axis(x, order, axis) for x in operands]


def _sort_case(*dtypes_: Any, shape: tuple[int, ...], axis: int, keys: int = 1) -> OpCase:
    # Later keys matter only where earlier ones are equal.
    ranges = tuple((0.0, 3.0) if i < keys - 1 else None for i in range(len(dtypes_)))
    return OpCase((shape,) * len(dtypes_), {"axis": axis, "num_keys": keys}, ranges, dtypes_)


_SORTED = (
    dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.int32, dtypes.int64,
    dtypes.uint8, dtypes.int8, dtypes.bool_,
)  # fmt: skip
_F64, _F32, _BF16, _BOOL = dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.bool_

sort_p = Primitive(
    "sort",
    abstract=_sort_abstract,
    multiple_results=True,
    doc="Operands in the ascending, stable order of the first num_keys of them; NaN comes last.",
    reference=_sort_reference,
    tests=TestRecord(
        (
            *(_sort_case(d, shape=(5, 9), axis=1) for d in _SORTED),
            _sort_case(_F64, shape=(140,), axis=0),
            _sort_case(_F32, shape=(40, 3), axis=0),
            _sort_case(_F64, _F64, shape=(4, 7), axis=1),
            _sort_case(_F32, _INT32, shape=(3, 50), axis=1),
            _sort_case(_INT32, _F64, _F64, shape=(3, 40), axis=1, keys=2),
            _sort_case(_INT32, _BOOL, _BF16, _F32, shape=(2, 40, 3), axis=1, keys=3),
            _sort_case(_F64, shape=(0, 4), axis=0),
            _sort_case(_F64, _INT32, shape=(3, 1), axis=1),
        ),
        (dtypes.float64,),
        grad_order=1,
    ),
    not_needed={"transpose": NOT_LINEAR},
)


@sort_p.def_jvp_all
def _sort_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array], *, axis: int, num_keys: int
) -> tuple[list[Array], list[Array]]:
    place = op.iota(op.shape_of(primals[0]), axis)
    *outs, order = op.sort((*primals, place), axis, num_keys)
    empty = any(isinstance(s, int) and s == 0 for s in op.shape_of(order))
    return outs, [
        Zero(aval_of(out).strong()) if isinstance(t, Zero)
        else t if empty
        else op.take_along(t, order, axis)
        for out, t in zip(outs, tangents, strict=True)
    ]  # fmt: skip


@sort_p.def_vmap
def _sort_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    axis: int,
    num_keys: int,
) -> tuple[list[Array], list[int]]:
    moved = [ctx.to_front(x, dim, size) for x, dim in zip(args, dims, strict=True)]
    return op.sort(moved, axis + 1, num_keys), [0] * len(moved)


@sort_p.def_pad
def _sort_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int, num_keys: int
) -> list[Array]:
    """Padding becomes the largest key; equal true elements come before it, being in front."""
    kept = list(op.shape_of(args[0]))
    kept[axis] = true_shapes[0][axis]
    keys = [ctx.mask(x, kept, largest(op.dtype_of(x))) for x in args[:num_keys]]
    return op.sort((*keys, *args[num_keys:]), axis, num_keys)


def _comparisons(x: Aval, axis: int) -> int:
    size = x.shape[axis]
    return elements(x) * max(1, int(size)).bit_length()


@sort_p.def_cost
def _sort_cost(*operands: Aval, axis: int, num_keys: int) -> Cost:
    work = num_keys * _comparisons(operands[0], axis)
    return Cost(work, nbytes(*operands), nbytes(*operands))


# ---------------------------------------------------------------- top_k
def _top_abstract(x: Aval, *, k: int, axis: int) -> tuple[Aval, Aval]:
    check_dtypes("top_k", (x,), REAL + BOOL)
    check_axis("top_k", x, axis)
    size = x.shape[axis]
    if k < 0 or (isinstance(size, int) and k > size):
        raise ShapeError(
            message(
                f"top_k takes {k} of {size} elements along axis {axis} of {x}",
                None,
                f"Use k from 0 to {size}",
            )
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return Aval(shape, x.dtype, x.weak), Aval(shape, _INT32)


def _top_reference(x: NumpyArray, *, k: int, axis: int) -> list[NumpyArray]:
    # Of equals the first: the last in the order of the reversed array, read from the end.
    turned = np.flip(x, axis)
    order = np.flip(np.lexsort(ranks(turned), axis), axis)
    places = np.take(x.shape[axis] - 1 - order, np.arange(k), axis)
    return [np.take_along_axis(x, places, axis), places.astype(np.int32)]


def _top_cases() -> list[OpCase]:
    cases = [OpCase(((5, 9),), {"k": 3, "axis": 1}, None, (dtype,)) for dtype in _SORTED]
    cases += [
        OpCase((shape,), {"k": k, "axis": axis}, None, (dtype,))
        for shape, k, axis, dtype in (
            ((7,), 7, 0, _F64),
            ((40, 3), 2, 0, _F32),
            ((2, 300), 50, 1, _F64),
            ((2, 300), 8, 1, _F32),
            ((3, 5), 0, 1, _F32),
        )
    ]
    return cases


top_k_p = Primitive(
    "top_k",
    abstract=_top_abstract,
    multiple_results=True,
    doc="The k largest elements along an axis, largest first, and their int32 places.",
    reference=_top_reference,
    tests=TestRecord(tuple(_top_cases()), (dtypes.float64,), grad_order=1),
    not_needed={"transpose": NOT_LINEAR},
)


@top_k_p.def_jvp_all
def _top_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array], *, k: int, axis: int
) -> tuple[list[Array], list[Array]]:
    values, places = op.top_k(primals[0], k, axis)
    (t,) = tangents
    none = Zero(aval_of(places).strong())
    if isinstance(t, Zero) or k == 0:
        return [values, places], [Zero(aval_of(values).strong()), none]
    return [values, places], [op.take_along(t, places, axis), none]


@top_k_p.def_vmap
def _top_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, k: int, axis: int
) -> tuple[list[Array], list[int]]:
    (dim,) = dims
    return list(op.top_k(args[0], k, axis + (axis >= dim))), [dim, dim]


@top_k_p.def_pad
def _top_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, k: int, axis: int
) -> list[Array]:
    (x,) = args
    kept = list(op.shape_of(x))
    kept[axis] = true_shapes[0][axis]
    return list(op.top_k(ctx.mask(x, kept, lowest(op.dtype_of(x))), k, axis))


@top_k_p.def_cost
def _top_cost(x: Aval, *, k: int, axis: int) -> Cost:
    values, places = _top_abstract(x, k=k, axis=axis)
    return Cost(_comparisons(x, axis), nbytes(x), nbytes(values, places))
