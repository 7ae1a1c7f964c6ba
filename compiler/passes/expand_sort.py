"""Sorts by several keys and the largest elements, in terms of one sort of rows by one key.

A stable order by several keys is made from the last key to the first: each step orders the next key
as the steps before left it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.compiler.kernels.sort import fits
from trnx.compiler.passes.expand import Array, expansion, maker_of
from trnx.compiler.targets import Target
from trnx.core import Aval, Params, Primitive
from trnx.core.dtypes import int32, is_complex
from trnx.ops import functions as op


def _abstract(x: Aval, *, axis: int, k: int, descending: bool, gives: str) -> list[Aval]:
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    values, places = Aval(shape, x.dtype, x.weak), Aval(shape, int32)
    return {"values": [values], "places": [places], "both": [values, places]}[gives]


SORT_ROWS = Primitive(
    "sort_rows",
    abstract=_abstract,
    multiple_results=True,
    doc="The first k elements of each row in order (values), where they were (places), or both.",
    register=False,
)


def _rows(x: Array, axis: int, gives: str) -> Array:
    size = op.shape_of(x)[axis]
    return SORT_ROWS.bind(x, axis=axis, k=size, descending=False, gives=gives)


@expansion("sort")
def _choose_sort(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    axis, keys = params["axis"], params["num_keys"]
    if any(is_complex(aval.dtype) for aval in avals):
        return None
    if any(isinstance(size, int) and size in (0, 1) for size in (avals[0].shape[axis],)):
        return lambda *operands, axis, num_keys: list(operands)
    if any(isinstance(size, int) and size == 0 for size in avals[0].shape):
        return lambda *operands, axis, num_keys: list(operands)
    for aval in avals[:keys]:
        if not aval.is_static or not fits(aval, axis, int(aval.shape[axis]), target):
            return None
    return _sort


def _sort(*operands: Array, axis: int, num_keys: int) -> list[Array]:
    if len(operands) == 1:
        return _rows(operands[0], axis, "values")
    if num_keys == 1:
        if all(_is_place(x, axis) for x in operands[1:]):
            values, order = _rows(operands[0], axis, "both")
            return [values, *[order for _ in operands[1:]]]
        values, order = _rows(operands[0], axis, "both")
        return [values, *(_taken(x, order, axis) for x in operands[1:])]
    (order,) = _rows(operands[num_keys - 1], axis, "places")
    for key in reversed(operands[: num_keys - 1]):
        (step,) = _rows(op.take_along(key, order, axis), axis, "places")
        order = op.take_along(order, step, axis)
    return [_taken(x, order, axis) for x in operands]


def _taken(x: Array, order: Array, axis: int) -> Array:
    return order if _is_place(x, axis) else op.take_along(x, order, axis)


def _is_place(x: Array, axis: int) -> bool:
    """Whether an operand counts 0, 1, 2, … along the axis, so that the order is its result."""
    made = maker_of(x)
    return (
        made is not None
        and made.primitive.name == "iota"
        and made.params["axis"] == axis
        and made.params["dtype"] == int32
    )


@expansion("top_k")
def _choose_top(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    (x,) = avals
    if not fits(x, params["axis"], params["k"], target):
        return None
    if params["k"] == 0 or any(size == 0 for size in x.shape):
        return _nothing
    return lambda x, k, axis: SORT_ROWS.bind(x, axis=axis, k=k, descending=True, gives="both")


def _nothing(x: Array, k: int, axis: int) -> list[Array]:
    shape = list(op.shape_of(x))
    shape[axis] = k
    return [op.full(shape, 0, op.dtype_of(x)), op.full(shape, 0, int32)]
