"""Scatter-add: the operand is copied, then rows of updates are added at indices by DMA.

`dma_compute` adds rows in order, so repeated indices accumulate. An index outside the axis is
dropped: its update becomes zero and its index is clamped, because a DMA has no mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from trnx.compiler.kernels.blocks import MATMUL_ROWS, block_loop, chunks
from trnx.compiler.kernels.emitter import Emitter, Params
from trnx.compiler.kernels.movement import copy_piece, emit_piece
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.space import Axis, StridedView, axis_strides, to_indices
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.ir import HbmAccess, Span, row_major
from trnx.core import Equation, Literal, LoweringError, Source, Var, message, short_name
from trnx.core.dtypes import bool_, int32, is_float

declare(Kind.SCATTER, "scatter_add", "scatter_add_along")

FREE_BLOCK = 2048
"""Elements per row of one scattered tile."""

EXACT_INDEX = 1 << 24
"""Integers below this are exact in fp32, in which indices are clamped."""


def lower_scatter(
    equation: Equation,
    views: Mapping[Var, StridedView],
    target: Target,
    source: Source | None,
    in_place: bool = False,
) -> LoweredKernel:
    """One kernel for ``out = x; out[indices] += updates``.

    Args:
        equation: what to lower.
        views: where operands lie.
        target: the hardware table's row.
        source: the user's line.
        in_place: the result has the memory of the operand, which needs no copy.

    Raises:
        LoweringError: the operand's axis or dtype is out of the kernel's range.
    """
    operand, indices, updates = equation.inputs
    result, axis = equation.outputs[0], equation.params["axis"]
    shape = to_indices(result.aval.shape)
    size, dtype = shape[axis], result.aval.dtype
    if not isinstance(size, int) or size >= EXACT_INDEX or not target.computes(dtype):
        raise LoweringError(
            message(
                f"{equation.primitive.name} into axis {axis} of "
                f"{short_name(dtype)}[{','.join(map(str, shape))}] has no kernel",
                source,
                "Use an axis under 16,777,216 and a dtype the device computes with",
            )
        )
    builder = KernelBuilder(equation.primitive.name, target.name, source=source)
    params = Params(builder, {})
    name = params.declare(result, "inout", dtype, shape)
    if isinstance(operand, Literal):
        raise LoweringError(message("scatter into a number", source, "Give it axes"))
    graph = copy_piece(views[operand], result, source)
    if graph is not None and not in_place:
        emit_piece(builder, graph, target, params)
    assert isinstance(indices, Var) and isinstance(updates, Var)
    if 0 not in to_indices(updates.aval.shape) and graph is not None:
        along = equation.primitive.name == "scatter_add_along"
        _Adder(builder, params, target, views, name, size).add(
            result, indices, updates, axis, along
        )
    return LoweredKernel(builder.finish(), params.variables)


class _Adder:
    """Adds update rows to the result."""

    def __init__(
        self,
        builder: KernelBuilder,
        params: Params,
        target: Target,
        views: Mapping[Var, StridedView],
        name: str,
        size: int,
    ) -> None:
        self.builder = builder
        self.params = params
        self.target = target
        self.views = views
        self.name = name
        self.size = size

    def _hbm(self, view: StridedView, base: Mapping[Axis, Index], strides: Mapping[Axis, Index],
             spans: list[Span]) -> HbmAccess:  # fmt: skip
        root = view.root
        name = self.params.declare(root, "in", root.aval.dtype, to_indices(root.aval.shape))
        return HbmAccess(name, _offset(view.offset, base, strides), tuple(spans))

    def add(self, result: Var, indices: Var, updates: Var, axis: int, along: bool) -> None:
        """Loop over the updates; rows of indices on the partitions."""
        b = self.builder
        sizes = to_indices(updates.aval.shape)
        axes = [Axis(s) if s != 1 else None for s in sizes]
        dims = [(a,) if a is not None else () for a in axes]
        dense = row_major(to_indices(result.aval.shape))
        update_view, index_view = self.views[updates], self.views[indices]
        update_strides = axis_strides(update_view.spans, dims)
        rank = indices.aval.ndim
        own = dims if along else dims[axis : axis + rank]
        index_strides = axis_strides(index_view.spans, own)
        kept = dims if along else [*dims[:axis], (), *dims[axis + rank :]]
        if along:
            kept = [() if i == axis else d for i, d in enumerate(dims)]
        result_strides = axis_strides(dense, kept)
        moved = [a for a in axes if a is not None]
        indexed = [a for a in moved if any(a in d for d in own)]
        free = [a for a in moved if a not in indexed]
        partition = max(indexed, key=lambda a: int(str(a.size)), default=None)
        inner = free[-1] if free else None
        loops = [a for a in moved if a is not partition and a is not inner]
        with ExitStack() as stack:
            base: dict[Axis, Index] = {}
            for depth, a in enumerate(loops):
                base[a] = stack.enter_context(b.loop(f"i{depth}", 0, a.size))
            rows: Index = 1
            max_rows = 1
            if partition is not None:
                start, rows = stack.enter_context(block_loop(b, "i", partition.size, MATMUL_ROWS))
                base[partition] = start
                max_rows = min(MATMUL_ROWS, int(str(partition.size)))
            index = self._index(index_view, index_strides, base, partition, rows, max_rows)
            clamped, valid = self._clamped(index, rows, max_rows)
            stride = dense[axis].stride
            if partition is not None and result_strides.get(partition, 0) != 0:
                clamped = self._linear(clamped, rows, max_rows, stride, result_strides[partition],
                                       base[partition])  # fmt: skip
                stride = 1
            width = 1 if inner is None else int(str(inner.size))
            for first, count, most in chunks(b, "j", width, FREE_BLOCK):
                at = dict(base)
                if inner is not None:
                    at[inner] = first
                tile = b.sbuf((max_rows, most), updates.aval.dtype)
                part = Emitter.cut(tile, (rows, count))
                spans = [
                    Span(update_strides.get(partition, 0) if partition else 0, rows),
                    Span(update_strides.get(inner, 0) if inner else 1, count),
                ]
                b.dma_copy(part, self._hbm(update_view, at, update_strides, spans))
                zero = 0.0 if is_float(updates.aval.dtype) else 0
                flags = valid.broadcast(1, count) if count != 1 else valid
                b.tensor_copy_predicated(part, zero, flags, reverse_pred=True)
                outer = {a: s for a, s in result_strides.items() if a is not partition}
                where = HbmAccess(
                    self.name,
                    _offset(0, at, outer),
                    (Span(stride, rows), Span(result_strides.get(inner, 1) if inner else 1, count)),
                    clamped.access,
                )
                b.dma_compute(where, part, reduce_op="add", engine="gpsimd")

    def _index(self, view, strides, base, partition, rows, max_rows):  # type: ignore[no-untyped-def]
        b = self.builder
        tile = b.sbuf((max_rows, 1), int32)[:rows]
        own = strides.get(partition, 0) if partition is not None else 0
        b.dma_copy(tile, self._hbm(view, base, strides, [Span(own, rows), Span(1, 1)]))
        return tile

    def _clamped(self, index, rows, max_rows):  # type: ignore[no-untyped-def]
        b = self.builder
        low, high = b.sbuf((max_rows, 1), bool_)[:rows], b.sbuf((max_rows, 1), bool_)[:rows]
        b.tensor_scalar(low, index, 0, op0="greater_equal")
        b.tensor_scalar(high, index, self.size, op0="less")
        valid = b.sbuf((max_rows, 1), bool_)[:rows]
        b.tensor_tensor(valid, low, high, op="logical_and")
        clamped = b.sbuf((max_rows, 1), int32)[:rows]
        b.tensor_scalar(clamped, index, 0, self.size - 1, op0="maximum", op1="minimum")
        return clamped, valid

    def _linear(self, index, rows, max_rows, stride, row_stride, start):  # type: ignore[no-untyped-def]
        """``index·stride + row·row_stride``: element offsets when rows of the result differ."""
        b = self.builder
        ramp = b.sbuf((max_rows, 1), int32)[:rows]
        b.iota(
            ramp, pattern=((0, 1),), offset=mul(start, row_stride), channel_multiplier=row_stride
        )
        scaled = b.sbuf((max_rows, 1), int32)[:rows]
        b.tensor_scalar(scaled, index, stride, op0="multiply")
        linear = b.sbuf((max_rows, 1), int32)[:rows]
        b.tensor_tensor(linear, scaled, ramp, op="add")
        return linear


def _offset(start: Index, base: Mapping[Axis, Index], strides: Mapping[Axis, Index]) -> Index:
    total = start
    for axis, stride in strides.items():
        first = base.get(axis, 0)
        if first != 0:
            total = add(total, mul(stride, first))
    return total
