"""Reductions of a row tile to one number per partition.

A row kernel puts the reduced axes on the free dimensions, so a reduction is one `tensor_reduce`.
Integer sums are exact: GpSimd adds halves of the row until one element is left, because a
NeuronCore reduces in fp32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnx.compiler.kernels.elementwise import integer_cast, is_native
from trnx.compiler.kernels.emitter import Emitter, Number, Value
from trnx.compiler.kernels.group import Node
from trnx.compiler.kernels.registry import Kind, lowers
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.views import TileView
from trnx.core import LoweringError, message, short_name
from trnx.core.dtypes import float32, int32, integer_range, is_bool, is_float, is_integer

OPERATORS = {"reduce_sum": "add", "reduce_max": "maximum", "reduce_min": "minimum"}
"""Reductions -> ALU operators."""


def identity_of(name: str, dtype: np.dtype[Any]) -> Number:
    """The number that changes no result of a reduction."""
    if name == "reduce_sum":
        return 0.0 if is_float(dtype) else 0
    sign = -1 if name == "reduce_max" else 1
    if is_float(dtype):
        return sign * math.inf
    if is_bool(dtype):
        return sign > 0
    low, high = integer_range(dtype)
    return low if sign < 0 else high


def accumulator_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype in which partial results are kept: fp32 for narrow floats."""
    return float32 if is_float(dtype) and dtype.itemsize < 4 else dtype


@lowers(Kind.REDUCE, *OPERATORS)
def reduce(e: Emitter, node: Node) -> Value:
    """A reduction over all free axes of the region."""
    negated = e.negated.get(node)
    if negated is not None:
        result = e.column(e.dtype_of(node))
        e.builder.tensor_scalar(result, negated, -1.0, op0="multiply")
        return result
    (x,) = node.operands
    data = e.spread(x, x)
    if node in e.values:  # emitting x has summed it as well
        return e.values[node]
    if _needs_exact_sum(e, node):
        return _integer_sum(e, node, data)
    _require_order(e, node)
    result = e.column(e.dtype_of(node))
    _tensor_reduce(e, node, result, data, negate=False)
    return result


def reduce_negated(e: Emitter, node: Node) -> TileView | None:
    """The negative of a reduction, straight from the instruction; None when it has a value."""
    (x,) = node.operands
    data = e.spread(x, x)
    if node in e.values or not is_float(node.dtype):
        return None
    result = e.column(accumulator_dtype(node.dtype))
    _tensor_reduce(e, node, result, data, negate=True)
    return result


def _tensor_reduce(
    e: Emitter, node: Node, result: TileView, data: TileView, *, negate: bool
) -> None:
    axes = tuple(range(1, len(data.shape)))
    e.builder.tensor_reduce(
        e.as_column(result), data, op=OPERATORS[node.op], axis=axes, negate=negate
    )


def _needs_exact_sum(e: Emitter, node: Node) -> bool:
    short = is_integer(node.dtype) and node.dtype.itemsize < 8
    return node.op == "reduce_sum" and short and not is_native(e.target)


def _require_order(e: Emitter, node: Node) -> None:
    """fp32 orders integers of at most 24 bits only; wider ones are split before they come here."""
    wide = is_integer(node.dtype) and node.dtype.itemsize == 4
    if wide and not is_native(e.target) and not node.params.get("bounded", False):
        raise LoweringError(
            message(
                f"{node.op} of {short_name(node.dtype)} was not split into halves",
                node.source,
                "Report this program",
            )
        )


def _integer_sum(e: Emitter, node: Node, data: TileView) -> TileView:
    width = 1
    for size in data.shape[1:]:
        if not isinstance(size, int):
            raise LoweringError(
                message(
                    f"{node.op} of {short_name(node.dtype)} over a row of run-time size",
                    node.source,
                    "Use a static size, or device cpu",
                )
            )
        width *= size
    (x,) = node.operands
    holder = int32 if node.dtype.itemsize < 4 else node.dtype
    work = e.scratch(x.axes, holder)
    e.builder.tensor_copy(work, data)  # bit exact, or from at most 16 bits
    flat = work.reshape(work.partitions, width)
    while width > 1:
        half: Index = width // 2
        keep = width - width // 2
        left, right = flat[:, 0:half], flat[:, keep:width]
        e.builder.tensor_tensor(left, left, right, op="add")
        width = keep
    result = e.column(node.dtype)
    last = flat[:, 0:1]
    if node.dtype == holder:
        e.builder.tensor_copy(e.as_column(result), last)
    else:
        integer_cast(e, e.as_column(result), last, lambda dtype: e.as_column(e.column(dtype)))
    return result
