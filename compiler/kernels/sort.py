"""Sorts of rows that fit SBUF: one `row_sort` over up to 128 rows.

The instruction is an extension (`isa.EXTENSIONS`): host and simulator run it, NKI source is refused
by its name. Longer rows stay a counted host call.
"""

from __future__ import annotations

from collections.abc import Mapping

from trnx.compiler.kernels.emitter import Params
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.rows import Rows, result_view
from trnx.compiler.kernels.space import StridedView
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.core import Aval, Equation, LoweringError, Source, Var, message
from trnx.core.dtypes import int32

declare(Kind.SORT, "sort_rows")


def fits(x: Aval, axis: int, wanted: int, target: Target) -> bool:
    """Whether rows with their results are small enough for `lower_sort`."""
    size = x.shape[axis]
    if not isinstance(size, int) or not x.is_static:
        return False
    needed = (size + wanted) * x.dtype.itemsize + wanted * int32.itemsize
    return needed <= target.sbuf_usable_bytes


def lower_sort(
    equation: Equation, views: Mapping[Var, StridedView], target: Target, source: Source | None
) -> LoweredKernel:
    """One kernel for a sort of rows; its results are values, places, or both."""
    (x,), params = equation.inputs, equation.params
    axis, wanted, gives = params["axis"], params["k"], params["gives"]
    if not isinstance(x, Var) or not fits(x.aval, axis, wanted, target):
        raise LoweringError(message(f"a sort of {x.aval} has no kernel", source, "Report it"))
    builder = KernelBuilder("sort", target.name, source=source)
    declared = Params(builder, {})
    results = [result_view(views, var) for var in equation.outputs]
    rows = Rows(builder, declared, [views[x], *results], axis, len(results))
    size = x.aval.shape[axis]
    assert isinstance(size, int)
    with rows.blocks() as block:
        data = builder.sbuf((block.max_rows, size), x.aval.dtype)[: block.rows]
        values = builder.sbuf((block.max_rows, wanted), x.aval.dtype)[: block.rows]
        places = builder.sbuf((block.max_rows, wanted), int32)[: block.rows]
        builder.dma_copy(data, rows.access(0, block, 0, size))
        builder.row_sort(values, places, data, descending=params["descending"])
        made = {"values": [values], "places": [places], "both": [values, places]}[gives]
        for number, tile in enumerate(made, 1):
            builder.dma_copy(rows.access(number, block, 0, wanted), tile)
    return LoweredKernel(builder.finish(), declared.variables)
