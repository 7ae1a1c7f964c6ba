"""Row operations whose elements depend on each other: scans, top-8, index search.

Each is done for one row, element after element, from memory to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import (
    Chunk,
    accumulation_dtype,
    compute_dtype,
    copy_cast,
    finish_reduction,
)
from trnx.compiler.host.emit import I1, Value, i64
from trnx.compiler.host.rowops import RowOp, Walk, free_spans
from trnx.compiler.host.sorting import sort_function
from trnx.compiler.host.types import DType, as_number, is_integral, storage
from trnx.compiler.tile import isa
from trnx.compiler.tile.ir import RegisterValue, Span
from trnx.compiler.tile.views import merge_spans
from trnx.core.dtypes import bool_, float32, float64, int32, uint32

if TYPE_CHECKING:
    from trnx.compiler.host.rowgroup import RowGroup

Body = Callable[[list[Value], list[Value]], list[Value]]


def emit_sequential(group: RowGroup, op: RowOp) -> None:
    """Emit ``op`` for the present row of ``group``."""
    table: dict[str, Callable[[_Row], None]] = {
        "tensor_tensor_scan": _scan,
        "tensor_reduce": _difference,
        "max8": _max8,
        "nc_find_index8": _find_index8,
        "row_sort": _row_sort,
        "dma_compute": _accumulate,
    }
    table[op.instruction.op](_Row(group, op))


class _Row:
    """Element access to the operands of one operation in the present row."""

    def __init__(self, group: RowGroup, op: RowOp) -> None:
        self.group, self.op = group, op
        self.f = group.f
        self.around = group.around
        self.chunk = Chunk(
            self.f,
            1,
            self.around.native,
            self.around.dtype_of,
            self._no_read,
            self.around.indices.value,
            self._no_affine,
        )

    def _no_read(self, op: RowOp, walk: Walk) -> Value:
        raise AssertionError(f"{op.instruction.op} reads {walk.memory} element by element")

    def _no_affine(self, op: RowOp) -> Value:
        raise AssertionError(f"{op.instruction.op} has no affine pattern")

    def source(self, position: int) -> Walk:
        """Source operand ``position``, which must be an access."""
        walk = self.op.sources[position]
        assert walk is not None
        return walk

    def address(self, walk: Walk) -> Value:
        """Address of a walk's first element in this row."""
        return self.group.address(self.op, walk)

    def spans(self, walk: Walk) -> tuple[Span, ...]:
        """Free dimensions of an operand."""
        return free_spans(walk.access)

    def element(self, base: Value, walk: Walk, position: Sequence[Value]) -> Value:
        """Address of the element at ``position`` of the walk's own dimensions."""
        f, total = self.f, i64(0)
        for index, span in zip(position, self.spans(walk), strict=True):
            if span.stride == 0 or span.count == 1:
                continue
            step = f.binary("mul nsw", index, self.around.indices.value(span.stride))
            total = step if total.text == "0" else f.binary("add nsw", total, step)
        return f.pointer(base, total, storage(walk.dtype))

    def load(self, base: Value, walk: Walk, position: Sequence[Value], dtype: DType) -> Value:
        """One element as ``dtype``."""
        value = self.f.load(storage(walk.dtype), self.element(base, walk, position))
        return self.chunk.cast(value, walk.dtype, dtype)

    def loop(self, walk: Walk, carried: Sequence[Value], body: Body) -> list[Value]:
        """``body(position, carried)`` for every element of ``walk`` in order."""

        def level(rest: Sequence[Span], position: list[Value], values: list[Value]) -> list[Value]:
            if not rest:
                return body(position, values)
            f, indices = self.f, self.around.indices
            loop = f.begin_loop(i64(0), indices.value(rest[0].count), carried=values)
            with indices.scope():
                after = level(rest[1:], [*position, loop.index], list(loop.carried))
            return f.end_loop(loop, after)

        return level(self.spans(walk), [], list(carried))


def _scan(row: _Row) -> None:
    f, op = row.f, row.op
    names = [str(op.instruction.attr("op0")), str(op.instruction.attr("op1"))]
    dtype = compute_dtype(row.around.native, row.around.dtype_of, op, names)
    first, second, out = row.source(0), row.source(1), op.results[0][0]
    bases = [row.address(w) for w in (first, second, out)]
    initial = op.instruction.ins[2] if len(op.instruction.ins) > 2 else None
    if len(op.sources) > 2 and op.sources[2] is not None:
        walk = row.source(2)
        zeros = [i64(0)] * len(row.spans(walk))
        state = row.load(row.address(walk), walk, zeros, dtype)
    elif isinstance(initial, RegisterValue):
        whole = row.around.indices.value(initial.value)
        state = row.chunk.cast(whole, np.dtype(np.int64), dtype)
    else:
        assert initial is None or isinstance(initial, bool | int | float)
        state = row.chunk.number(initial or 0, dtype)

    def body(position: list[Value], carried: list[Value]) -> list[Value]:
        a = row.load(bases[0], first, position, dtype)
        b = row.load(bases[1], second, position, dtype)
        step = arithmetic.apply(f, names[0], a, carried[0], dtype)
        running = as_number(f, arithmetic.apply(f, names[1], step, b, dtype), dtype)
        value = as_number(f, row.chunk.cast(running, dtype, out.dtype), out.dtype)
        f.store(value, row.element(bases[2], out, position))
        return [running]

    row.loop(first, [state], body)


def _difference(row: _Row) -> None:
    """A reduction by ``subtract``: the first element minus all others."""
    f, op = row.f, row.op
    data, out = row.source(0), op.results[0][0]
    dtype = compute_dtype(row.around.native, row.around.dtype_of, op, ["subtract"])
    axes = op.instruction.attr("axis", (1,))
    spans = row.spans(data)
    kept = len(spans) - (len(axes) if isinstance(axes, tuple) else 1)
    base, target = row.address(data), row.address(out)

    def reduce_from(outer: list[Value]) -> None:
        zeros = [i64(0)] * (len(spans) - kept)
        first = row.load(base, data, [*outer, *zeros], dtype)

        def level(rest: Sequence[Span], position: list[Value], values: list[Value]) -> list[Value]:
            if not rest:
                element = row.load(base, data, position, dtype)
                total = arithmetic.apply(f, "add", values[0], element, dtype)
                return [f.select(values[1], values[0], total), f.number(0, I1)]
            loop = f.begin_loop(i64(0), row.around.indices.value(rest[0].count), carried=values)
            with row.around.indices.scope():
                after = level(rest[1:], [*position, loop.index], list(loop.carried))
            return f.end_loop(loop, after)

        others = level(spans[kept:], list(outer), [row.chunk.number(0, dtype), f.number(1, I1)])[0]
        total = arithmetic.apply(f, "subtract", first, others, dtype)
        value = as_number(f, finish_reduction(row.chunk, op, total, dtype), out.dtype)
        place = outer if kept else [i64(0)] * len(row.spans(out))
        f.store(value, row.element(target, out, place))

    def outer_level(rest: Sequence[Span], position: list[Value]) -> None:
        if not rest:
            reduce_from(position)
            return
        loop = f.begin_loop(i64(0), row.around.indices.value(rest[0].count))
        with row.around.indices.scope():
            outer_level(rest[1:], [*position, loop.index])
        f.end_loop(loop)

    outer_level(spans[:kept], [])


def _ordering_dtype(row: _Row, walk: Walk) -> DType:
    exact = walk.dtype == float64 or (is_integral(walk.dtype) and walk.dtype != bool_)
    native = row.around.native or isa.is_extension(row.op.instruction, row.around.dtype_of)
    return walk.dtype if native and exact else float32


def _max8(row: _Row) -> None:
    f, op = row.f, row.op
    data, out = row.source(0), op.results[0][0]
    dtype = _ordering_dtype(row, data)
    base, target = row.address(data), row.address(out)
    lowest = f.number(arithmetic.identity("maximum", dtype), storage(dtype))

    def body(position: list[Value], carried: list[Value]) -> list[Value]:
        value = row.load(base, data, position, dtype)
        if not is_integral(dtype):
            value = f.select(f.fcmp("uno", value, value), lowest, value)
        kept: list[Value] = []
        for best in carried:
            larger = arithmetic.apply(f, "greater", value, best, dtype)
            kept.append(f.select(larger, value, best))
            value = f.select(larger, best, value)
        return kept

    best = row.loop(data, [lowest] * 8, body)
    for k, value in enumerate(best):
        position = [i64(0)] * (len(row.spans(out)) - 1) + [i64(k)]
        stored = as_number(f, row.chunk.cast(value, dtype, out.dtype), out.dtype)
        f.store(stored, row.element(target, out, position))


def _find_index8(row: _Row) -> None:
    """Value k takes the match after those that equal values before it have taken."""
    f, op = row.f, row.op
    data, wanted, out = row.source(0), row.source(1), op.results[0][0]
    dtype, other = _ordering_dtype(row, data), _ordering_dtype(row, wanted)
    bases = [row.address(w) for w in (data, wanted, out)]
    rank = len(row.spans(wanted)) - 1
    values = [
        row.chunk.cast(
            row.load(bases[1], wanted, [*([i64(0)] * rank), i64(k)], other), other, dtype
        )
        for k in range(8)
    ]
    zero, one, missing = i64(0), i64(1), i64(-1)
    for k, value in enumerate(values):
        skip = zero
        for earlier in values[:k]:
            same = arithmetic.apply(f, "equal", earlier, value, dtype)
            skip = f.binary("add", skip, f.select(same, one, zero))

        def body(position: list[Value], carried: list[Value], value: Value = value) -> list[Value]:
            left, found, at = carried
            element = row.load(bases[0], data, position, dtype)
            match = arithmetic.apply(f, "equal", element, value, dtype)
            free = f.binary("and", f.icmp("eq", left, zero), f.icmp("eq", found, missing))
            found = f.select(f.binary("and", match, free), at, found)
            taken = f.binary("and", match, f.icmp("sgt", left, zero))
            left = f.binary("sub", left, f.select(taken, one, zero))
            return [left, found, f.binary("add", at, one)]

        found = row.loop(data, [skip, missing, zero], body)[1]
        kind = int32 if out.dtype == int32 else uint32
        whole = row.chunk.cast(found, np.dtype(np.int64), kind)
        stored = as_number(f, row.chunk.cast(whole, kind, out.dtype), out.dtype)
        place = [*([i64(0)] * (len(row.spans(out)) - 1)), i64(k)]
        f.store(stored, row.element(bases[2], out, place))


def _row_sort(row: _Row) -> None:
    """A call per row of the sort of its dtype."""
    f, op = row.f, row.op
    data, (values, _), (places, _) = row.source(0), *op.results
    name = sort_function(f.module, data.dtype, bool(op.instruction.attr("descending")))
    arguments: list[Value] = []
    for walk in (data, values, places):
        (span,) = merge_spans(row.spans(walk)) or (Span(1, 1),)
        arguments += [row.address(walk), row.around.indices.value(span.stride)]
        if walk is data or walk is places:
            shaped = data if walk is data else values
            (count,) = merge_spans(row.spans(shaped)) or (Span(1, 1),)
            arguments.append(row.around.indices.value(count.count))
    f.line(f"call void @{name}({', '.join(map(str, arguments))})")


def _accumulate(row: _Row) -> None:
    """``dma_compute`` into a row that names an element more than once."""
    f, op = row.f, row.op
    source, out = row.source(0), op.results[0][0]
    dtype = accumulation_dtype(out.dtype)
    bases = [row.address(source), row.address(out)]

    def body(position: list[Value], carried: list[Value]) -> list[Value]:
        value = f.load(storage(source.dtype), row.element(bases[0], source, position))
        addend = copy_cast(row.chunk, value, source.dtype, dtype, True)
        place = row.element(bases[1], out, position)
        old = row.chunk.cast(f.load(storage(out.dtype), place), out.dtype, dtype)
        total = arithmetic.apply(f, "add", old, as_number(f, addend, dtype), dtype)
        f.store(as_number(f, row.chunk.cast(total, dtype, out.dtype), out.dtype), place)
        return carried

    row.loop(source, [], body)
