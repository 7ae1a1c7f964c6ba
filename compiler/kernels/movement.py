"""Kernels that only move data: concatenation and padding, piece by piece.

Each piece is a rectangle of the result that is an access pattern of one operand, or one repeated
number; it is cut into tiles like any elementwise graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trnx.compiler.kernels.emitter import Params
from trnx.compiler.kernels.group import Access, Graph, Node, Store, merge_axes
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.row import LoweredKernel, emit_graph
from trnx.compiler.kernels.space import Axis, StridedView, to_indices
from trnx.compiler.kernels.support import require_static
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.ir import Span, row_major
from trnx.core import Atom, Equation, Literal, Source, Var

declare(Kind.MOVEMENT, "concatenate", "pad")


def piece(
    origin: StridedView | Literal | Var,
    destination: Var,
    offset: Index,
    spans: Sequence[Span],
    source: Source | None,
) -> Graph | None:
    """A loop nest that writes one rectangle of `destination`.

    Args:
        origin: a view of the rectangle's shape, a number, or a variable without axes.
        destination: variable of the result's buffer.
        offset: first element written.
        spans: strides in the result and counts of the rectangle.
        source: the user's line.

    Returns:
        The nest, or None when the rectangle is empty.
    """
    if any(span.count == 0 for span in spans):
        return None
    axes = [Axis(span.count) if span.count != 1 else None for span in spans]
    if isinstance(origin, Literal):
        dtype = origin.aval.dtype
        node = Node("literal", (), dtype, frozenset(), value=origin.value.item())
    else:
        view = origin if isinstance(origin, StridedView) else StridedView(origin, 0, ())
        strides = {
            axis: span.stride
            for axis, span in zip(axes, view.spans, strict=False)
            if axis is not None and span.stride != 0
        }
        access = Access(view.root, view.offset, strides)
        dtype = view.root.aval.dtype
        node = Node("load", (), dtype, frozenset(strides), source=source, access=access)
    out_strides = {
        axis: span.stride for axis, span in zip(axes, spans, strict=True) if axis is not None
    }
    store = Store(
        node,
        Access(destination, offset, out_strides),
        tuple(a for a in axes if a is not None),
        source,
    )
    return Graph((node,), (store,), None, frozenset())


def emit_piece(builder: KernelBuilder, graph: Graph, target: Target, params: Params) -> None:
    """Emit the loops of one piece."""
    merged, (axes,) = merge_axes(graph, [graph.stores[0].shape_axes])
    emit_graph(builder, merged, axes, [], target, params)


def copy_piece(view: StridedView, destination: Var, source: Source | None) -> Graph | None:
    """The nest that copies a view to the whole of a buffer of its shape."""
    return piece(view, destination, 0, row_major(view.shape), source)


def lower_movement(
    equation: Equation, views: Mapping[Var, StridedView], target: Target, source: Source | None
) -> LoweredKernel:
    """One kernel for a concatenation or a padding."""
    require_static(equation, source)
    builder = KernelBuilder(equation.primitive.name, target.name, source=source)
    params = Params(builder, {})
    make = _concatenate if equation.primitive.name == "concatenate" else _pad
    for graph in make(equation, views, source):
        emit_piece(builder, graph, target, params)
    return LoweredKernel(builder.finish(), params.variables)


def _origin(atom: Atom, views: Mapping[Var, StridedView]) -> StridedView | Literal:
    return atom if isinstance(atom, Literal) else views[atom]


def _concatenate(
    equation: Equation, views: Mapping[Var, StridedView], source: Source | None
) -> Iterator[Graph]:
    axis = equation.params["axis"]
    result = equation.outputs[0]
    dense = row_major(to_indices(result.aval.shape))
    start: Index = 0
    for atom in equation.inputs:
        shape = to_indices(atom.aval.shape)
        spans = [Span(full.stride, count) for full, count in zip(dense, shape, strict=True)]
        offset = mul(start, dense[axis].stride)
        graph = piece(_origin(atom, views), result, offset, spans, source)
        if graph is not None:
            yield graph
        start = add(start, shape[axis])


def _pad(
    equation: Equation, views: Mapping[Var, StridedView], source: Source | None
) -> Iterator[Graph]:
    operand, value = equation.inputs
    landing, interior = equation.params["low"], equation.params["interior"]
    result = equation.outputs[0]
    shape = [int(str(s)) for s in result.aval.shape]
    count = [int(str(s)) for s in operand.aval.shape]
    dense = row_major(tuple(shape))
    filler = value if isinstance(value, Literal) else views[value]
    # Elements the operand spans in the result, those between its own elements included.
    reach = [max(0, (n - 1) * (gap + 1) + 1) for n, gap in zip(count, interior, strict=True)]

    def rectangle(origin: object, start: Sequence[int], sizes: Sequence[int]) -> Graph | None:
        offset = int(np.dot(start, [int(str(s.stride)) for s in dense])) if shape else 0
        spans = [Span(s.stride, n) for s, n in zip(dense, sizes, strict=True)]
        return piece(origin, result, offset, spans, source)  # type: ignore[arg-type]

    pieces: list[Graph | None] = []
    gaps = any(gap and n > 1 for gap, n in zip(interior, count, strict=True))
    if gaps or 0 in count:
        pieces.append(rectangle(filler, [0] * len(shape), shape))
    else:
        for d, whole in enumerate(shape):
            start, sizes = [*landing[:d], *[0] * (len(shape) - d)], [*count[:d], *shape[d:]]
            end = landing[d] + reach[d]
            for first, many in ((0, landing[d]), (end, whole - end)):
                start[d], sizes[d] = first, many
                pieces.append(rectangle(filler, start, sizes))
    if 0 not in count:
        offset = int(np.dot(landing, [int(str(s.stride)) for s in dense])) if shape else 0
        spans = [
            Span(mul(s.stride, gap + 1), n)
            for s, gap, n in zip(dense, interior, count, strict=True)
        ]
        pieces.append(piece(_origin(operand, views), result, offset, spans, source))
    yield from (p for p in pieces if p is not None)
