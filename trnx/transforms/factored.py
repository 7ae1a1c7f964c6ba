"""Keep merged axes apart: ``reshape (b, n, 4) -> (b*n, 4)`` costs nothing until somebody looks.

In padded buffers a merged axis whose inner part is padded would have gaps, and closing them moves
every element. Most code merges axes only to run row by row and splits them again (every linear
layer of PyTorch does), so this pass carries such values with their axes apart, as a *layout*: the
factors of each axis. Operations that treat rows alike run on the factors; a split then finds them
as they were. An operation without a rule here gets the merged array, and the pad rule of that
reshape closes the gaps.

Values made from sizes and scalars alone (broadcasts, iotas, elementwise work on them) have no
layout of their own: they are built in the layout of the value they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from trnx.core import (
    Aval,
    Dim,
    Params,
    Primitive,
    Program,
    Size,
    Trace,
    Tracer,
    aval_of,
    eval_program,
    same_shape,
    structurally_equal,
    trace_program,
)
from trnx.core.program import constants_to_inputs, prune
from trnx.core.source import current_source
from trnx.core.tracing import current_trace, use_trace
from trnx.ops import functions as op
from trnx.ops._factories import elementwise_primitives
from trnx.ops.movement import reshape_groups

Shape: TypeAlias = tuple[Size, ...]
Layout: TypeAlias = tuple[Shape, ...]
"""Factors of each axis, outermost first; an axis that is whole has one factor, itself."""


def whole(shape: Shape) -> Layout:
    """The layout with every axis whole."""
    return tuple((size,) for size in shape)


def expanded(layout: Layout) -> Shape:
    """Shape of a value in this layout."""
    return tuple(size for factors in layout for size in factors)


def is_whole(layout: Layout) -> bool:
    """True when no axis is kept apart."""
    return all(len(factors) == 1 for factors in layout)


def same_layout(a: Layout, b: Layout) -> bool:
    """True for equal factors of every axis."""
    return len(a) == len(b) and all(same_shape(x, y) for x, y in zip(a, b, strict=True))


def places(layout: Layout) -> list[tuple[int, ...]]:
    """Axes of the value that belong to each axis of the array."""
    found, start = [], 0
    for factors in layout:
        found.append(tuple(range(start, start + len(factors))))
        start += len(factors)
    return found


def spread(layout: Layout, axes: Sequence[int]) -> tuple[int, ...]:
    """Axes of the value for some axes of the array, in their order."""
    where = places(layout)
    return tuple(axis for a in axes for axis in where[a])


class FactoredTracer(Tracer):
    """A value of the parent trace whose axes are the factors of this array's axes."""

    __slots__ = ("layout", "value", "_merged")

    def __init__(self, trace: FactorTrace, value: Any, aval: Aval, layout: Layout) -> None:
        super().__init__(trace, aval, current_source())
        self.value = value
        self.layout = layout
        self._merged: Any = None

    def merged(self) -> Any:
        """The array itself; its pad rule closes the gaps."""
        if self._merged is None:
            self._merged = op.reshape(self.value, self.aval.shape)
        return self._merged


class SoftTracer(Tracer):
    """An array that can be built in any layout."""

    __slots__ = ("_build", "_made")

    def __init__(self, trace: FactorTrace, aval: Aval, build: Callable[[Layout], Any]) -> None:
        super().__init__(trace, aval, current_source())
        self._build = build
        self._made: list[tuple[Layout, Any]] = []

    def built(self, layout: Layout) -> Any:
        """The value of the parent trace in this layout."""
        for known, value in self._made:
            if same_layout(known, layout):
                return value
        value = self._build(layout)
        self._made.append((layout, value))
        return value


class FactorTrace(Trace):
    """Runs equations on factored values where a rule allows it."""

    __slots__ = ()

    kind = "factoring of merged axes"

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        assert self.parent is not None
        token = current_trace.set(self.parent)
        try:
            rule = _RULES.get(primitive.name)
            if primitive.name in elementwise_primitives:
                rule = _elementwise
            if rule is not None and (primitive.name in _SOURCES or any(map(_is_own, operands))):
                results = rule(self, primitive, operands, params)
                if results is not None:
                    return results
            plain = [self.in_layout(x, whole(aval_of(x).shape)) for x in operands]
            return self.parent.process(primitive, plain, params)
        finally:
            current_trace.reset(token)

    def in_layout(self, operand: Any, layout: Layout) -> Any:
        """An operand as a value of the parent trace in a layout."""
        if isinstance(operand, SoftTracer):
            return operand.built(layout)
        if isinstance(operand, FactoredTracer):
            if same_layout(operand.layout, layout):
                return operand.value
            operand = operand.merged()
        return operand if is_whole(layout) else op.reshape(operand, expanded(layout))

    def join(self, value: Any, aval: Aval, layout: Layout) -> Any:
        """A tracer for a factored value; the value itself when its layout is whole."""
        return value if is_whole(layout) else FactoredTracer(self, value, aval, layout)


def _is_own(operand: Any) -> bool:
    return isinstance(operand, FactoredTracer | SoftTracer)


def layout_of(operand: Any) -> Layout:
    """The layout of an operand as it is; soft ones count as whole."""
    if isinstance(operand, FactoredTracer):
        return operand.layout
    return whole(aval_of(operand).shape)


def _common(layouts: Sequence[Layout], stays: int | None = None) -> Layout | None:
    """The layout in which arrays of equal sizes are best computed; None when factors contradict.

    Args:
        layouts: layouts of one rank.
        stays: an axis that must stay whole, and along which sizes may differ.
    """
    result = list(layouts[0])
    for layout in layouts[1:]:
        for axis, factors in enumerate(layout):
            if len(factors) == 1:
                continue
            if len(result[axis]) == 1:
                result[axis] = factors
            elif not same_shape(result[axis], factors):
                return None
    if stays is not None and any(len(layout[stays]) > 1 for layout in layouts):
        return None
    return tuple(result)


# Rules ------------------------------------------------------------------------------------------
# rule(trace, primitive, operands, params) -> results, or None to compute on merged arrays.

Rule: TypeAlias = Callable[[FactorTrace, Primitive, Sequence[Any], Params], Sequence[Any] | None]


def _elementwise(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    ranked = [x for x in operands if aval_of(x).shape]
    avals = primitive.out_avals(tuple(aval_of(x) for x in operands), params)
    if all(isinstance(x, SoftTracer) for x in ranked):
        return _soft(trace, primitive, operands, params, avals)
    layout = _common([layout_of(x) for x in ranked if not isinstance(x, SoftTracer)])
    if layout is None:
        return None
    values = [trace.in_layout(x, layout) if aval_of(x).shape else x for x in operands]
    outs = primitive.bind_all(values, params)
    return [trace.join(out, aval, layout) for out, aval in zip(outs, avals, strict=True)]


def _soft(
    trace: FactorTrace,
    primitive: Primitive,
    operands: Sequence[Any],
    params: Params,
    avals: Sequence[Aval],
) -> Sequence[Any]:
    """Elementwise work on values without a layout: done again for each layout that is asked for."""

    def compute(layout: Layout) -> Sequence[Any]:
        values = [trace.in_layout(x, layout) if aval_of(x).shape else x for x in operands]
        return primitive.bind_all(values, params)

    def one(index: int) -> Callable[[Layout], Any]:
        return lambda layout: compute(layout)[index]

    return [SoftTracer(trace, aval, one(index)) for index, aval in enumerate(avals)]


def _broadcast(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x,), shape, dims = operands, params["shape"], params["dims"]
    own = aval_of(x)
    if not any(isinstance(size, Dim) for size in shape):
        return None

    def build(layout: Layout) -> Any:
        # An axis of x takes the factors of the axis it becomes, unless it is repeated.
        inner = tuple(
            layout[axis] if structurally_equal(size, shape[axis]) else (size,)
            for axis, size in zip(dims, own.shape, strict=True)
        )
        value = trace.in_layout(x, inner)
        where = places(layout)
        new_dims: list[int] = []
        sizes: list[Size] = []
        for axis, factors in zip(dims, inner, strict=True):
            if len(factors) == len(where[axis]):
                new_dims += where[axis]
                sizes += factors
            else:  # an axis of size 1 that is repeated over several factors goes away
                assert _is_one(factors[0])
        return op.broadcast(op.reshape(value, sizes), expanded(layout), new_dims)

    if isinstance(x, FactoredTracer):
        layout = list(whole(shape))
        for axis, factors in zip(dims, x.layout, strict=True):
            if len(factors) > 1:
                layout[axis] = factors
        aval = Aval(shape, own.dtype, own.weak)
        return [trace.join(build(tuple(layout)), aval, tuple(layout))]
    return [SoftTracer(trace, Aval(shape, own.dtype, own.weak), build)]


def _iota(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    shape, axis, dtype = params["shape"], params["axis"], params["dtype"]
    if not any(isinstance(size, Dim) for size in shape):
        return None

    def build(layout: Layout) -> Any:
        sizes = expanded(layout)
        index: Any = None
        for place, size in zip(places(layout)[axis], layout[axis], strict=True):
            own = op.iota(sizes, place, dtype)
            if index is None:
                index = own
            else:
                index = op.add(op.mul(index, op.dim_size(size, dtype)), own)
        return index

    return [SoftTracer(trace, Aval(shape, dtype), build)]


def _reshape(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x,), shape = operands, params["shape"]
    aval = aval_of(x)
    if isinstance(x, SoftTracer):
        if same_shape(_without_ones(aval.shape), _without_ones(shape)):
            return [_with_other_ones(trace, x, shape)]
        x = x.built(whole(aval.shape))
    source = expanded(layout_of(x))
    layout: list[Shape] = []
    for a, b in reshape_groups(source, shape):
        many = _without_ones(a)
        real = _without_ones(b)
        if same_shape(many, real) or (_leads(many) and _leads(real)):
            layout += whole(b)
        elif len(real) == 1:
            layout += [(size,) if _is_one(size) else many for size in b]
        else:
            return None
    value = x.value if isinstance(x, FactoredTracer) else x
    out = op.reshape(value, expanded(tuple(layout)))
    return [trace.join(out, aval.with_shape(shape), tuple(layout))]


def _with_other_ones(trace: FactorTrace, x: SoftTracer, shape: Shape) -> SoftTracer:
    """A soft value with axes of size 1 added or dropped."""

    def build(layout: Layout) -> Any:
        real = iter([f for f, size in zip(layout, shape, strict=True) if not _is_one(size)])
        inner = tuple((size,) if _is_one(size) else next(real) for size in x.aval.shape)
        return op.reshape(x.built(inner), expanded(layout))

    return SoftTracer(trace, x.aval.with_shape(shape), build)


def _is_one(size: Size) -> bool:
    return structurally_equal(size, 1)


def _without_ones(sizes: Shape) -> Shape:
    return tuple(size for size in sizes if not _is_one(size))


def _leads(sizes: Shape) -> bool:
    return not any(isinstance(size, Dim) for size in sizes[1:])


def _transpose(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x,), order = operands, params["permutation"]
    if not isinstance(x, FactoredTracer):
        return None
    layout = tuple(x.layout[axis] for axis in order)
    out = op.transpose(x.value, spread(x.layout, order))
    aval = x.aval.with_shape(tuple(x.aval.shape[axis] for axis in order))
    return [trace.join(out, aval, layout)]


def _reduce(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x,), axes = operands, params["axes"]
    if not isinstance(x, FactoredTracer):
        return None
    (aval,) = primitive.out_avals((x.aval,), params)
    layout = tuple(f for axis, f in enumerate(x.layout) if axis not in axes)
    out = primitive.bind(x.value, axes=spread(x.layout, axes))
    return [trace.join(out, aval, layout)]


def _arg_reduce(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    """Over factors one after the other, the innermost first: the first winner is the same."""
    (x,), axis = operands, params["axis"]
    if not isinstance(x, FactoredTracer) or len(x.layout[axis]) == 1:
        return _along_axis(trace, primitive, operands, params)
    value, index, stride = x.value, None, None
    for place, size in reversed([*zip(places(x.layout)[axis], x.layout[axis], strict=True)]):
        winner = primitive.bind(value, axis=place)
        best = op.expand(winner, place)
        value = op.reshape(op.take_along(value, best, place), aval_of(winner).shape)
        if index is None:
            index, stride = winner, op.dim_size(size)
            continue
        inner = op.reshape(op.take_along(index, best, place), aval_of(winner).shape)
        index = op.add(op.mul(winner, stride), inner)
        stride = op.mul(stride, op.dim_size(size))
    (aval,) = primitive.out_avals((x.aval,), params)
    return [trace.join(index, aval, (*x.layout[:axis], *x.layout[axis + 1 :]))]


def _along_axis(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    """Operations along one axis, which must be whole, on operands that agree in the others."""
    axis = params["axis"]
    layout = _common([layout_of(x) for x in operands], axis)
    if layout is None or is_whole(layout):
        return None
    values = []
    for x in operands:
        own = list(layout)
        own[axis] = (aval_of(x).shape[axis],)
        values.append(trace.in_layout(x, tuple(own)))
    outs = primitive.bind_all(values, params.replace(axis=places(layout)[axis][0]))
    results = []
    avals = primitive.out_avals(tuple(aval_of(x) for x in operands), params)
    for out, aval in zip(outs, avals, strict=True):
        kept = list(layout)
        kept[axis : axis + 1] = [(aval.shape[axis],)] if aval.ndim == len(layout) else []
        results.append(trace.join(out, aval, tuple(kept)))
    return results


def _dot_general(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    contract, batch = params["contract"], params["batch"]
    layouts = [list(layout_of(x)) for x in operands]
    for left, right in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        a, b = layouts[0][left], layouts[1][right]
        if len(a) > 1 and len(b) > 1 and not same_shape(a, b):
            return None
        layouts[0][left] = layouts[1][right] = a if len(a) > 1 else b
    own = [tuple(layout) for layout in layouts]
    if all(map(is_whole, own)):
        return None
    values = [trace.in_layout(x, layout) for x, layout in zip(operands, own, strict=True)]
    changed = params.replace(
        contract=tuple(spread(layout, axes) for layout, axes in zip(own, contract, strict=True)),
        batch=tuple(spread(layout, axes) for layout, axes in zip(own, batch, strict=True)),
    )
    (out,) = primitive.bind_all(values, changed)
    (aval,) = primitive.out_avals(tuple(aval_of(x) for x in operands), params)
    result = [own[0][axis] for axis in batch[0]]
    for layout, contracted, batched in zip(own, contract, batch, strict=True):
        result += [f for i, f in enumerate(layout) if i not in contracted and i not in batched]
    return [trace.join(out, aval, tuple(result))]


def _slice(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    """Cuts of whole axes; an axis that is kept apart must stay uncut."""
    (x,) = operands
    if not isinstance(x, FactoredTracer):
        return None
    start: list[Size] = []
    limit: list[Size] = []
    strides: list[int] = []
    layout: list[Shape] = []
    (aval,) = primitive.out_avals((x.aval,), params)
    for axis, factors in enumerate(x.layout):
        low, high, step = (params[name][axis] for name in ("start", "limit", "strides"))
        if len(factors) == 1:
            start, limit, strides = [*start, low], [*limit, high], [*strides, step]
            layout.append((aval.shape[axis],))
            continue
        if not structurally_equal(low, 0) or step != 1:
            return None
        if not structurally_equal(high, x.aval.shape[axis]):
            return None
        start += [0] * len(factors)
        limit += factors
        strides += [1] * len(factors)
        layout.append(factors)
    out = op.slice(x.value, start, limit, strides)
    return [trace.join(out, aval, tuple(layout))]


def _pad(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    x, value = operands
    if not isinstance(x, FactoredTracer):
        return None
    widths: dict[str, list[Size]] = {"low": [], "high": [], "interior": []}
    (aval,) = primitive.out_avals((x.aval, aval_of(value)), params)
    layout = []
    for axis, factors in enumerate(x.layout):
        own = {name: params[name][axis] for name in widths}
        if len(factors) > 1 and not all(structurally_equal(w, 0) for w in own.values()):
            return None
        for name, found in widths.items():
            found += [own[name]] if len(factors) == 1 else [0] * len(factors)
        layout.append(factors if len(factors) > 1 else (aval.shape[axis],))
    out = op.pad(x.value, value, widths["low"], widths["high"], widths["interior"])  # type: ignore[arg-type]
    return [trace.join(out, aval, tuple(layout))]


def _reverse(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x,) = operands
    if not isinstance(x, FactoredTracer):
        return None
    out = op.reverse(x.value, spread(x.layout, params["axes"]))
    return [trace.join(out, x.aval, x.layout)]


def _take(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x, indices), axis = operands, params["axis"]
    layout, index_layout = layout_of(x), layout_of(indices)
    if len(layout[axis]) > 1:
        return None
    values = trace.in_layout(x, layout), trace.in_layout(indices, index_layout)
    out = op.take(*values, places(layout)[axis][0])
    (aval,) = primitive.out_avals((aval_of(x), aval_of(indices)), params)
    return [trace.join(out, aval, (*layout[:axis], *index_layout, *layout[axis + 1 :]))]


def _scatter(
    trace: FactorTrace, primitive: Primitive, operands: Sequence[Any], params: Params
) -> Sequence[Any] | None:
    (x, indices, updates), axis = operands, params["axis"]
    layout, index_layout, split = map(layout_of, operands)
    end = axis + len(index_layout)
    places_layout = _common([index_layout, split[axis:end]])
    rest = _common([(*layout[:axis], *layout[axis + 1 :]), (*split[:axis], *split[end:])])
    if len(layout[axis]) > 1 or places_layout is None or rest is None:
        return None
    own = (*rest[:axis], layout[axis], *rest[axis:])
    values = [
        trace.in_layout(x, own),
        trace.in_layout(indices, places_layout),
        trace.in_layout(updates, (*rest[:axis], *places_layout, *rest[axis:])),
    ]
    (out,) = primitive.bind_all(values, params.replace(axis=places(own)[axis][0]))
    (aval,) = primitive.out_avals(tuple(map(aval_of, operands)), params)
    return [trace.join(out, aval, own)]


_SOURCES = frozenset({"broadcast", "iota", "reshape"})  # make factored and soft values from others

_RULES: dict[str, Rule] = {
    "argmax": _arg_reduce,
    "argmin": _arg_reduce,
    "broadcast": _broadcast,
    "concatenate": _along_axis,
    "dot_general": _dot_general,
    "iota": _iota,
    "pad": _pad,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_sum": _reduce,
    "reshape": _reshape,
    "reverse": _reverse,
    "scatter_add": _scatter,
    "scatter_add_along": _along_axis,
    "slice": _slice,
    "take": _take,
    "take_along": _along_axis,
    "transpose": _transpose,
}


def _merges(program: Program) -> bool:
    """True when the program merges axes whose inner part has a symbolic size."""
    return any(
        equation.primitive.name == "reshape"
        and any(
            not _leads(_without_ones(a)) and len(_without_ones(b)) == 1
            for a, b in reshape_groups(equation.inputs[0].aval.shape, equation.params["shape"])
        )
        for equation in program.equations
    )


def factor_merges(program: Program) -> Program:
    """The program with merged axes kept apart where operations allow it.

    Args:
        program: a program of symbolic sizes; calls inlined.

    Returns:
        A program of the same types that computes the same. It is `program` itself when nothing in
        it merges axes that padding would tear apart.
    """
    if not _merges(program):
        return program
    closed, constants = constants_to_inputs(program)

    def run(*values: Any) -> list[Any]:
        trace = FactorTrace(current_trace.get(), program.name)
        try:
            with use_trace(trace):
                outs = eval_program(closed, values)
            return [trace.in_layout(out, whole(aval_of(out).shape)) for out in outs]
        finally:
            trace.end()

    result = prune(trace_program(run, closed.in_avals, program.name))
    count = len(constants)
    pairs = tuple(zip(result.inputs[:count], constants, strict=True))
    return result.replace(inputs=result.inputs[count:], constants=(*pairs, *result.constants))
