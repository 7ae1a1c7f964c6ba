"""Emits the loop nest of a phase: outer dimensions, vector loops, tails, reductions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import finish_reduction, reduction_dtype
from trnx.compiler.host.cost import weight_of_phase
from trnx.compiler.host.emit import I1, Loop, Value, i64, vector_type
from trnx.compiler.host.memory import tail_mask
from trnx.compiler.host.phases import row_key
from trnx.compiler.host.position import Nest, Position, Row
from trnx.compiler.host.rowops import RowOp, Walk, split_position
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.types import DType, as_number, storage

_HEAVY = 20
"""Operations per chunk from which on a phase is not unrolled: one chunk fills the core."""


@dataclass(slots=True)
class Reduction:
    """A reduction in progress: partial results per unrolled chunk, and one for single elements."""

    op: RowOp
    walk: Walk
    position: int
    name: str
    dtype: DType
    vectors: list[Value]
    single: Value


class NestEmitter:
    """Emits one phase for the present row of ``group``; ``nest`` has the addresses at row level."""

    def __init__(self, group: Row, nest: Nest) -> None:
        self.group, self.nest = group, nest
        self.around, self.f = group.around, group.f

    def emit(self) -> None:
        """All dimensions."""
        with self.around.indices.scope():
            self._level(0, [])

    def _unroll(self) -> int:
        weight = weight_of_phase(self.nest.phase)
        wanted = 4 if weight <= 6 else 2 if weight <= _HEAVY else 1
        count = self.nest.counts[-1]
        if isinstance(count, int):
            chunks = count // self.f.cpu.lanes
            while wanted > 1 and chunks < 2 * wanted:
                wanted //= 2
        return wanted

    def _level(self, level: int, outer: list[Reduction]) -> list[Reduction]:
        """Emit dimensions from ``level`` inwards; returns ``outer`` with updated values."""
        unroll = self._unroll()
        own = [
            self._start(op, walk, level, unroll)
            for op in self.nest.phase.ops
            for walk, kept in op.results
            if kept < len(op.counts) and self._position(op, kept) == level
        ]
        running = [*outer, *own]
        if level == len(self.nest.counts) - 1:
            running = self._innermost(running, unroll)
        else:
            running = self._outer_loop(level, running)
        for reduction in running[len(outer) :]:
            self._finish(reduction)
        return running[: len(outer)]

    def _position(self, op: RowOp, kept: int) -> int:
        return self.nest.home[split_position(op.counts, kept, self.nest.phase.nest)]

    def _outer_loop(self, level: int, running: list[Reduction]) -> list[Reduction]:
        f, indices = self.f, self.around.indices
        count = self.nest.counts[level]
        carried = _flatten(running)
        runs = isinstance(count, int) and count > 0
        loop = f.begin_loop(i64(0), indices.value(count), carried=carried, runs=runs)
        inner = _unflatten(running, loop.carried)
        pointers, affine = dict(self.nest.pointers), dict(self.nest.affine)
        with indices.scope():
            for key, pointer in pointers.items():
                strides = self.nest.strides[key]
                if level < len(strides) and strides[level] != 0:
                    step = f.binary("mul nsw", loop.index, indices.value(strides[level]))
                    self.nest.pointers[key] = f.pointer(pointer, step, storage(key[1].dtype))
            for order, base in affine.items():
                step = f.binary("mul", loop.index, indices.value(self.nest.patterns[order][level]))
                self.nest.affine[order] = f.binary("add", base, step)
            inner = self._level(level + 1, inner)
        self.nest.pointers, self.nest.affine = pointers, affine
        return _unflatten(running, f.end_loop(loop, _flatten(inner)))

    def _start(self, op: RowOp, walk: Walk, level: int, unroll: int) -> Reduction:
        name, dtype = _reduction_of(self.around, op)
        lanes = self.f.cpu.lanes
        element = I1 if name in ("logical_and", "logical_or") else storage(dtype)
        first = arithmetic.identity(name, dtype)
        vector = self.f.number(first, vector_type(element, lanes))
        single = self.f.number(first, element)
        return Reduction(op, walk, level, name, dtype, [vector] * unroll, single)

    def _finish(self, reduction: Reduction) -> None:
        f = self.f
        total = reduction.vectors[0]
        for other in reduction.vectors[1:]:
            total = arithmetic.combine(f, reduction.name, total, other, reduction.dtype)
        element = arithmetic.fold(f, reduction.name, total, reduction.dtype)
        if reduction.single.text.startswith("%"):
            element = arithmetic.combine(
                f, reduction.name, element, reduction.single, reduction.dtype
            )
        position = Position(self.group, self.nest, 1, None, None)
        value = finish_reduction(position.chunk, reduction.op, element, reduction.dtype)
        value = as_number(f, value, reduction.walk.dtype)
        if reduction.position == 0:
            self.group.rows[row_key(reduction.walk)] = value
        if reduction.walk.memory in self.group.schedule.stored:
            f.store(value, self.nest.pointers[reduction.op.order, reduction.walk])

    def _innermost(self, running: list[Reduction], unroll: int) -> list[Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        count = self.nest.counts[-1]
        end = self.around.indices.value(count)
        wide = lanes * unroll
        if isinstance(count, int):
            main, whole = count // wide * wide, count // lanes * lanes
            main_end, whole_end = i64(main), i64(whole)
            rest = count - whole
        else:
            main_end = f.binary("and", end, i64(-wide))
            whole_end = f.binary("and", end, i64(-lanes)) if unroll > 1 else main_end
            main, whole, rest = -1, -1, -1
        if main:
            running = self._vector_loop(running, i64(0), main_end, unroll, main > 0)
        if unroll > 1 and (main < 0 or whole != main):
            running = self._vector_loop(running, main_end, whole_end, 1, whole > 0)
        if rest == 0:
            return running
        # One element goes alone also because LLVM 22 stores four bytes for a 16-bit element under a
        # constant mask of one lane.
        if f.cpu.masked and rest != 1:
            return self._masked_tail(running, whole_end, end, rest < 0)
        return self._single_tail(running, whole_end, end, rest > 0)

    def _vector_loop(
        self,
        running: list[Reduction],
        low: Value,
        high: Value,
        unroll: int,
        runs: bool,
    ) -> list[Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        carried = [v for r in running for v in r.vectors[:unroll]]
        loop: Loop = f.begin_loop(low, high, lanes * unroll, carried, runs)
        values = list(loop.carried)
        for k in range(unroll):
            at = loop.index if k == 0 else f.binary("add nsw", loop.index, i64(k * lanes))
            sums = {(r.op.order, r.walk): values[n * unroll + k] for n, r in enumerate(running)}
            with self.around.indices.scope():
                after = Position(self.group, self.nest, lanes, at, None).run(sums)
            for n, r in enumerate(running):
                values[n * unroll + k] = after[r.op.order, r.walk]
            for place, dtype, written in self.nest.streams:
                line = f.pointer(place, at, storage(dtype))
                f.prefetch(line, written, level=1 if written else 2)
        final = f.end_loop(loop, values)
        result = []
        for n, r in enumerate(running):
            own = final[n * unroll : (n + 1) * unroll]
            result.append(replace(r, vectors=[*own, *r.vectors[unroll:]]))
        return result

    def _masked_tail(
        self,
        running: list[Reduction],
        low: Value,
        high: Value,
        uncertain: bool,
    ) -> list[Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        before = f.block
        inside, after = f.new_block("tail"), f.new_block("done")
        if uncertain:
            f.branch(f.icmp("slt", low, high), inside, after)
            f.place(inside)
        mask = tail_mask(f, low, high, lanes)
        sums = {(r.op.order, r.walk): r.vectors[0] for r in running}
        with self.around.indices.scope():
            updated = Position(self.group, self.nest, lanes, low, mask).run(sums)
        ends = f.block
        if uncertain:
            f.jump(after)
            f.place(after)
        result = []
        for r in running:
            value = updated[r.op.order, r.walk]
            if uncertain:
                value = f.phi(value.type, [(r.vectors[0], before), (value, ends)])
            result.append(replace(r, vectors=[value, *r.vectors[1:]]))
        return result

    def _single_tail(
        self, running: list[Reduction], low: Value, high: Value, runs: bool
    ) -> list[Reduction]:
        f = self.f
        loop = f.begin_loop(low, high, 1, [r.single for r in running], runs)
        sums = {(r.op.order, r.walk): v for r, v in zip(running, loop.carried, strict=True)}
        with self.around.indices.scope():
            after = Position(self.group, self.nest, 1, loop.index, None).run(sums)
        final = f.end_loop(loop, [after[r.op.order, r.walk] for r in running])
        return [replace(r, single=v) for r, v in zip(running, final, strict=True)]


def _flatten(running: list[Reduction]) -> list[Value]:
    return [v for r in running for v in (*r.vectors, r.single)]


def _unflatten(running: list[Reduction], values: list[Value]) -> list[Reduction]:
    result, at = [], 0
    for r in running:
        size = len(r.vectors)
        result.append(replace(r, vectors=values[at : at + size], single=values[at + size]))
        at += size + 1
    return result


def _reduction_of(around: Surroundings, op: RowOp) -> tuple[str, DType]:
    """Operator and dtype in which an operation's reduction is combined."""
    name = op.instruction.attr("op") if op.instruction.op == "tensor_reduce" else "add"
    assert isinstance(name, str)
    return name, reduction_dtype(around.native, around.dtype_of, op, name)
