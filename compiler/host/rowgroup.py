"""Emits a row group: the partition loop outside, one loop nest per phase inside.

Within a phase the innermost dimension is done in chunks of a vector's lanes; what the phases
exchange is one value per row (in a register) or one row (in memory that stays in the first-level
cache).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import (
    Chunk,
    Partial,
    compute,
    copy_cast,
    finish_reduction,
    reduction_dtype,
)
from trnx.compiler.host.emit import I1, I32, Function, Loop, Value, i64, vector_type
from trnx.compiler.host.index import Indices
from trnx.compiler.host.memory import (
    TileMemory,
    byte_address,
    load_elements,
    store_elements,
    tail_mask,
)
from trnx.compiler.host.phases import Key, Phase, RowKey, Schedule, key_of, merge, row_key
from trnx.compiler.host.rowops import Counts, RowOp, Walk, split_position
from trnx.compiler.host.sequential import emit_sequential
from trnx.compiler.host.types import DType, as_number, storage
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.ir import Access, HbmAccess, TileAccess
from trnx.compiler.tile.views import merge_spans

_HEAVY = 20
"""Operations per chunk from which on a phase is not unrolled: one chunk fills the core."""


_AddressKey: TypeAlias = tuple[str, int, Index, Index, TileAccess | None]


@dataclass(slots=True)
class Surroundings:
    """What row groups need from the kernel around them.

    ``allocate(rows, row_bytes)`` gives scratch memory until the end of the present statement.
    """

    f: Function
    indices: Indices
    tiles: Mapping[str, TileMemory]
    params: Mapping[str, Value]
    dtype_of: Callable[[Access], DType]
    native: bool
    shapes: Mapping[str, tuple[int, ...]]
    allocate: Callable[[int, int], TileMemory]


@dataclass(slots=True)
class _Reduction:
    """A reduction in progress: partial results per unrolled chunk, and one for single elements."""

    op: RowOp
    walk: Walk
    position: int
    name: str
    dtype: DType
    vectors: list[Value]
    single: Value


@dataclass(slots=True)
class _Nest:
    """A phase during emission: joined counts, and per walk its strides in them."""

    phase: Phase
    counts: Counts
    strides: dict[tuple[int, Walk], Counts]
    patterns: dict[int, Counts]
    home: list[int]
    pointers: dict[tuple[int, Walk], Value] = field(default_factory=dict)
    affine: dict[int, Value] = field(default_factory=dict)
    streams: list[tuple[Value, DType, bool]] = field(default_factory=list)


class RowGroup:
    """Emits one row group into ``around.f``."""

    def __init__(self, around: Surroundings, schedule: Schedule) -> None:
        self.around = around
        self.f = around.f
        self.schedule = schedule
        self._rows: dict[RowKey, Value] = {}
        self._addresses: dict[_AddressKey, Value] = {}
        self._row: Value = i64(0)

    def emit(self, partitions: Index) -> None:
        """The partition loop with all phases."""
        indices = self.around.indices
        if partitions == 1:
            with indices.scope():
                self._emit_row(i64(0))
            return
        runs = isinstance(partitions, int) and partitions > 0
        self.emit_rows(i64(0), indices.value(partitions), runs)

    def emit_rows(self, first: Value, last: Value, runs: bool = False) -> None:
        """Rows ``first`` to ``last - 1``; ``runs`` says that there is at least one."""
        indices, f = self.around.indices, self.f
        loop = f.begin_loop(first, last, runs=runs)
        with indices.scope():
            self._emit_row(loop.index)
        f.end_loop(loop)

    def _emit_row(self, row: Value) -> None:
        self._row = row
        self._rows.clear()
        self._addresses.clear()
        for phase in self.schedule.phases:
            if phase.sequential:
                emit_sequential(self, phase.ops[0])
            elif not phase.nest:
                self._emit_single(phase)
            else:
                self._emit_nest(phase)

    # Addresses --------------------------------------------------------------------------------

    def address(self, op: RowOp, walk: Walk) -> Value:
        """Address of the first element of a walk in the present row; call at row level."""
        access, f, indices = walk.access, self.f, self.around.indices
        if isinstance(access, TileAccess):
            key: _AddressKey = (access.tile, access.start, access.offset, 0, None)
        else:
            step: Index = access.spans[0].stride if access.spans else 0
            key = (access.buffer, 0, access.offset, step, access.index)
        if key in self._addresses:
            return self._addresses[key]
        offset = indices.value(access.offset)
        size = walk.dtype.itemsize
        if isinstance(access, TileAccess):
            memory = self.around.tiles[access.tile]
            row = i64(0)
            if memory.pitch:
                place = f.binary("add nsw", self._row, i64(access.start))
                row = f.binary("mul nsw", place, i64(memory.pitch))
            value = byte_address(f, memory.base, offset, size, row)
        else:
            row = self._row
            if access.index is not None:
                row = self._index_of(op, access)
            step_value = indices.value(access.spans[0].stride) if access.spans else i64(0)
            elements = offset
            if row.text != "0" and step_value.text != "0":
                elements = f.binary("add nsw", f.binary("mul nsw", row, step_value), offset)
            base = self.around.params[access.buffer]
            value = byte_address(f, base, elements, size, i64(0))
        self._addresses[key] = value
        return value

    def _index_of(self, op: RowOp, access: HbmAccess) -> Value:
        """The present row's entry of the index tile of an indirect transfer, as i64."""
        (walk,) = [w for w in op.indices if w.access == access.index]
        kind = storage(walk.dtype)
        service = self._service_of(op, walk)
        if service is not None and service in self._rows:
            entry = self._rows[service]
        else:
            entry = self.f.load(kind, self.address(op, walk))
        return self.f.convert("sext" if walk.dtype.kind == "i" else "zext", entry, "i64")

    def _service_of(self, op: RowOp, walk: Walk) -> RowKey | None:
        for phase in self.schedule.phases:
            service = phase.services.get((op.order, walk))
            if service is not None:
                return row_key(walk) if service.kind in ("row", "live") else None
        return None

    # Phases of one element per row ------------------------------------------------------------

    def _emit_single(self, phase: Phase) -> None:
        nest = _Nest(phase, (), {}, {}, [0])
        for op in phase.ops:
            for walk in self._memory_walks(phase, op):
                nest.pointers[op.order, walk] = self.address(op, walk)
                nest.strides[op.order, walk] = ()
            if op.instruction.op in ("iota", "affine_select"):
                nest.affine[op.order] = self._affine_base(op)
        chunk = _Position(self, nest, 1, None, None)
        chunk.run({})

    def _memory_walks(self, phase: Phase, op: RowOp) -> list[Walk]:
        """Walks that touch memory: unserved reads, repeated loads' sources, stored results."""
        walks: list[Walk] = []
        for walk in op.reads:
            service = phase.services[op.order, walk]
            if service.kind == "memory" and walk not in op.indices:
                walks.append(walk)
        for walk, _ in op.results:
            if not walk.on_chip or walk.memory in self.schedule.stored:
                walks.append(walk)
        return walks

    def _affine_base(self, op: RowOp) -> Value:
        """First affine value of the present row, as i64."""
        f, attr = self.f, op.instruction.attr
        offset = attr("offset", 0)
        assert offset is None or not isinstance(offset, str | float | tuple)
        base = self.around.indices.value(offset or 0)  # type: ignore[arg-type]
        multiplier = attr("channel_multiplier", 0)
        assert isinstance(multiplier, int)
        if multiplier == 0:
            return base
        return f.binary("add", base, f.binary("mul", self._row, i64(multiplier)))

    # Loop nests -------------------------------------------------------------------------------

    def _emit_nest(self, phase: Phase) -> None:
        nest = self._joined(phase)
        for op in phase.ops:
            for walk in self._memory_walks(phase, op):
                nest.pointers[op.order, walk] = self.address(op, walk)
        for load, source in self._repeated(phase):
            nest.pointers[load.order, source] = self.address(load, source)
        for op in phase.ops:
            if op.instruction.op in ("iota", "affine_select"):
                nest.affine[op.order] = self._affine_base(op)
        if len(nest.counts) == 1 and phase is self._heaviest():
            nest.streams = self._streams(phase, nest.counts[0])
        with self.around.indices.scope():
            self._level(nest, 0, [])

    def _heaviest(self) -> Phase | None:
        """The phase with most work per element if there are others to overlap with it."""
        loops = [p for p in self.schedule.phases if p.nest and not p.sequential]
        return None if len(loops) < 2 else max(loops, key=_weight)

    def _streams(self, present: Phase, count: Index) -> list[tuple[Value, DType, bool]]:
        """Rows to fetch while ``present`` computes: those read next and those written soon.

        An entry is the address of the row's first element, its dtype, and whether it is written.
        """
        found: dict[str, tuple[Value, DType, bool]] = {}
        later = False
        for phase in self.schedule.phases:
            for op in phase.ops:
                walks = [(w, False) for w in op.sources if w is not None]
                walks += [(w, True) for w, _ in op.results if later]
                for walk, written in walks:
                    access = walk.access
                    if isinstance(access, HbmAccess) and _is_run(access, count):
                        place = self.address(op, walk)
                        found[place.text] = (place, walk.dtype, written)
                        if not written:
                            found[place.text] = (self._next_row(place, walk), walk.dtype, False)
            later = later or phase is present
        return list(found.values())

    def _next_row(self, place: Value, walk: Walk) -> Value:
        assert isinstance(walk.access, HbmAccess)
        step = self.around.indices.value(walk.access.spans[0].stride)
        return self.f.pointer(place, step, storage(walk.dtype))

    def _repeated(self, phase: Phase) -> list[tuple[RowOp, Walk]]:
        found: dict[int, tuple[RowOp, Walk]] = {}
        for service in phase.services.values():
            if service.load is not None and service.load.sources[0] is not None:
                found[service.load.order] = (service.load, service.load.sources[0])
        return list(found.values())

    def _joined(self, phase: Phase) -> _Nest:
        entries: list[tuple[RowOp, Walk]] = []
        for op in phase.ops:
            entries += [(op, w) for w in op.reads]
            entries += [(op, w) for w, _ in op.results]
        entries += self._repeated(phase)
        walks = [(op.counts, w.strides) for op, w in entries]
        patterned = [op for op in phase.ops if op.pattern]
        walks += [(op.counts, op.pattern) for op in patterned]
        counts, strides, home = merge(phase, walks)
        by_walk = {(op.order, w): s for (op, w), s in zip(entries, strides, strict=False)}
        patterns = {op.order: s for op, s in zip(patterned, strides[len(entries) :], strict=True)}
        return _Nest(phase, counts, by_walk, patterns, home)

    def _unroll(self, nest: _Nest) -> int:
        weight = _weight(nest.phase)
        wanted = 4 if weight <= 6 else 2 if weight <= _HEAVY else 1
        count = nest.counts[-1]
        if isinstance(count, int):
            chunks = count // self.f.cpu.lanes
            while wanted > 1 and chunks < 2 * wanted:
                wanted //= 2
        return wanted

    def _level(self, nest: _Nest, level: int, outer: list[_Reduction]) -> list[_Reduction]:
        """Emit dimensions from ``level`` inwards; returns ``outer`` with updated values."""
        unroll = self._unroll(nest)
        own = [
            self._start(op, walk, nest, level, unroll)
            for op in nest.phase.ops
            for walk, kept in op.results
            if kept < len(op.counts) and self._position(nest, op, kept) == level
        ]
        running = [*outer, *own]
        if level == len(nest.counts) - 1:
            running = self._innermost(nest, running, unroll)
        else:
            running = self._outer_loop(nest, level, running)
        for reduction in running[len(outer) :]:
            self._finish(nest, reduction)
        return running[: len(outer)]

    def _position(self, nest: _Nest, op: RowOp, kept: int) -> int:
        return nest.home[split_position(op.counts, kept, nest.phase.nest)]

    def _outer_loop(self, nest: _Nest, level: int, running: list[_Reduction]) -> list[_Reduction]:
        f, indices = self.f, self.around.indices
        count = nest.counts[level]
        carried = _flatten(running)
        runs = isinstance(count, int) and count > 0
        loop = f.begin_loop(i64(0), indices.value(count), carried=carried, runs=runs)
        inner = _unflatten(running, loop.carried)
        pointers, affine = dict(nest.pointers), dict(nest.affine)
        with indices.scope():
            for key, pointer in pointers.items():
                strides = nest.strides[key]
                if level < len(strides) and strides[level] != 0:
                    step = f.binary("mul nsw", loop.index, indices.value(strides[level]))
                    nest.pointers[key] = f.pointer(pointer, step, storage(key[1].dtype))
            for order, base in affine.items():
                step = f.binary("mul", loop.index, indices.value(nest.patterns[order][level]))
                nest.affine[order] = f.binary("add", base, step)
            inner = self._level(nest, level + 1, inner)
        nest.pointers, nest.affine = pointers, affine
        return _unflatten(running, f.end_loop(loop, _flatten(inner)))

    def _start(self, op: RowOp, walk: Walk, nest: _Nest, level: int, unroll: int) -> _Reduction:
        name, dtype = reduction_of(self.around, op)
        lanes = self.f.cpu.lanes
        element = I1 if name in ("logical_and", "logical_or") else storage(dtype)
        first = arithmetic.identity(name, dtype)
        vector = self.f.number(first, vector_type(element, lanes))
        single = self.f.number(first, element)
        return _Reduction(op, walk, level, name, dtype, [vector] * unroll, single)

    def _finish(self, nest: _Nest, reduction: _Reduction) -> None:
        f = self.f
        total = reduction.vectors[0]
        for other in reduction.vectors[1:]:
            total = arithmetic.combine(f, reduction.name, total, other, reduction.dtype)
        element = arithmetic.fold(f, reduction.name, total, reduction.dtype)
        if reduction.single.text.startswith("%"):
            element = arithmetic.combine(
                f, reduction.name, element, reduction.single, reduction.dtype
            )
        position = _Position(self, nest, 1, None, None)
        value = finish_reduction(position.chunk, reduction.op, element, reduction.dtype)
        value = as_number(f, value, reduction.walk.dtype)
        if reduction.position == 0:
            self._rows[row_key(reduction.walk)] = value
        if reduction.walk.memory in self.schedule.stored:
            f.store(value, nest.pointers[reduction.op.order, reduction.walk])

    def _innermost(self, nest: _Nest, running: list[_Reduction], unroll: int) -> list[_Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        count = nest.counts[-1]
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
            running = self._vector_loop(nest, running, i64(0), main_end, unroll, main > 0)
        if unroll > 1 and (main < 0 or whole != main):
            running = self._vector_loop(nest, running, main_end, whole_end, 1, whole > 0)
        if rest == 0:
            return running
        # One element goes alone also because LLVM 22 stores four bytes for a 16-bit element under a
        # constant mask of one lane.
        if f.cpu.masked and rest != 1:
            return self._masked_tail(nest, running, whole_end, end, rest < 0)
        return self._single_tail(nest, running, whole_end, end, rest > 0)

    def _vector_loop(
        self,
        nest: _Nest,
        running: list[_Reduction],
        low: Value,
        high: Value,
        unroll: int,
        runs: bool,
    ) -> list[_Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        carried = [v for r in running for v in r.vectors[:unroll]]
        loop: Loop = f.begin_loop(low, high, lanes * unroll, carried, runs)
        values = list(loop.carried)
        for k in range(unroll):
            at = loop.index if k == 0 else f.binary("add nsw", loop.index, i64(k * lanes))
            sums = {(r.op.order, r.walk): values[n * unroll + k] for n, r in enumerate(running)}
            with self.around.indices.scope():
                after = _Position(self, nest, lanes, at, None).run(sums)
            for n, r in enumerate(running):
                values[n * unroll + k] = after[r.op.order, r.walk]
            for place, dtype, written in nest.streams:
                line = f.pointer(place, at, storage(dtype))
                f.prefetch(line, written, level=1 if written else 2)
        final = f.end_loop(loop, values)
        result = []
        for n, r in enumerate(running):
            own = final[n * unroll : (n + 1) * unroll]
            result.append(_with(r, [*own, *r.vectors[unroll:]], r.single))
        return result

    def _masked_tail(
        self,
        nest: _Nest,
        running: list[_Reduction],
        low: Value,
        high: Value,
        uncertain: bool,
    ) -> list[_Reduction]:
        f, lanes = self.f, self.f.cpu.lanes
        before = f.block
        inside, after = f.new_block("tail"), f.new_block("done")
        if uncertain:
            f.branch(f.icmp("slt", low, high), inside, after)
            f.place(inside)
        mask = tail_mask(f, low, high, lanes)
        sums = {(r.op.order, r.walk): r.vectors[0] for r in running}
        with self.around.indices.scope():
            updated = _Position(self, nest, lanes, low, mask).run(sums)
        ends = f.block
        if uncertain:
            f.jump(after)
            f.place(after)
        result = []
        for r in running:
            value = updated[r.op.order, r.walk]
            if uncertain:
                value = f.phi(value.type, [(r.vectors[0], before), (value, ends)])
            result.append(_with(r, [value, *r.vectors[1:]], r.single))
        return result

    def _single_tail(
        self, nest: _Nest, running: list[_Reduction], low: Value, high: Value, runs: bool
    ) -> list[_Reduction]:
        f = self.f
        loop = f.begin_loop(low, high, 1, [r.single for r in running], runs)
        sums = {(r.op.order, r.walk): v for r, v in zip(running, loop.carried, strict=True)}
        with self.around.indices.scope():
            after = _Position(self, nest, 1, loop.index, None).run(sums)
        final = f.end_loop(loop, [after[r.op.order, r.walk] for r in running])
        return [_with(r, r.vectors, v) for r, v in zip(running, final, strict=True)]


class _Position:
    """One chunk of a phase: serves reads, runs every operation, stores what must be stored."""

    def __init__(
        self, group: RowGroup, nest: _Nest, lanes: int, at: Value | None, mask: Value | None
    ) -> None:
        self.group = group
        self.f = group.f
        self.nest = nest
        self.lanes = lanes
        self.at = at
        self.mask = mask
        self._live: dict[Key, Value] = {}
        self._loaded: dict[tuple[int, Walk], Value] = {}
        around = group.around
        self.chunk = Chunk(
            self.f,
            lanes,
            around.native,
            around.dtype_of,
            self.read,
            around.indices.value,
            self.affine,
        )

    def run(self, sums: dict[tuple[int, Walk], Value]) -> dict[tuple[int, Walk], Value]:
        """Run the phase's operations; ``sums`` are partial reductions, returned updated."""
        sums = dict(sums)
        group, f = self.group, self.f
        for op in self.nest.phase.ops:
            results = compute(self.chunk, op)
            for (walk, kept), result in zip(op.results, results, strict=True):
                if isinstance(result, Partial) and kept < len(op.counts):
                    key = (op.order, walk)
                    sums[key] = self._accumulate(result, sums[key])
                    continue
                if isinstance(result, Partial):
                    # A reduction over rows of one element.
                    value = finish_reduction(self.chunk, op, result.value, result.dtype)
                else:
                    value = result
                value = as_number(f, value, walk.dtype)
                if walk.on_chip:
                    self._live[key_of(op, walk, self.nest.phase.nest)] = value
                    if kept == 0:
                        group._rows[row_key(walk)] = value
                if not walk.on_chip or walk.memory in group.schedule.stored:
                    self._store(op, walk, value)
        return sums

    def _accumulate(self, part: Partial, total: Value) -> Value:
        f = self.f
        value = part.value
        if not arithmetic.is_mask(total):
            value = as_number(f, value, part.dtype)
        combined = arithmetic.combine(f, part.op, total, value, part.dtype)
        return combined if self.mask is None else f.select(self.mask, combined, total)

    def read(self, op: RowOp, walk: Walk) -> Value:
        """The elements of a source walk in its own dtype."""
        service = self.nest.phase.services[op.order, walk]
        if service.kind == "live":
            assert service.key is not None
            return self._live[service.key]
        if service.kind == "row":
            assert service.row is not None
            return self.f.splat(self.group._rows[service.row], self.lanes)
        if service.kind == "load":
            load = service.load
            assert load is not None and load.sources[0] is not None
            return self._repeat(load, load.sources[0])
        return self._load((op.order, walk), walk)

    def _repeat(self, load: RowOp, source: Walk) -> Value:
        key = (load.order, load.results[0][0])
        if key not in self._loaded:
            value = self._load((load.order, source), source)
            target = load.results[0][0].dtype
            self._loaded[key] = copy_cast(self.chunk, value, source.dtype, target, True)
        return self._loaded[key]

    def _place(self, key: tuple[int, Walk]) -> tuple[Value, Index | Value]:
        """Address of the chunk's first element and the stride between lanes."""
        f, pointer, strides = self.f, self.nest.pointers[key], self.nest.strides[key]
        stride: Index = strides[-1] if strides else 0
        if self.at is None or not strides or stride == 0:
            return pointer, 0
        indices = self.group.around.indices
        step = self.at
        step_value: Index | Value = stride
        if stride != 1:
            value = indices.value(stride)
            step = f.binary("mul nsw", self.at, value)
            step_value = stride if isinstance(stride, int) else value
        return f.pointer(pointer, step, storage(key[1].dtype)), step_value

    def _load(self, key: tuple[int, Walk], walk: Walk) -> Value:
        address, stride = self._place(key)
        return load_elements(self.f, storage(walk.dtype), address, stride, self.lanes, self.mask)

    def _store(self, op: RowOp, walk: Walk, value: Value) -> None:
        address, stride = self._place((op.order, walk))
        store_elements(self.f, value, address, stride, self.lanes, self.mask)

    def affine(self, op: RowOp) -> Value:
        """The affine pattern's int32 values of this chunk."""
        f, base = self.f, self.nest.affine[op.order]
        steps = self.nest.patterns.get(op.order, ())
        if self.at is None or not steps:
            return f.splat(f.convert("trunc", base, I32), self.lanes)
        step = self.group.around.indices.value(steps[-1])
        first = f.binary("add", base, f.binary("mul", self.at, step))
        value = f.splat(f.convert("trunc", first, I32), self.lanes)
        if self.lanes == 1:
            return value
        ramp = Value(value.type, "<" + ", ".join(f"i32 {k}" for k in range(self.lanes)) + ">")
        factor = f.splat(f.convert("trunc", step, I32), self.lanes)
        return f.binary("add", value, f.binary("mul", ramp, factor))


def _with(reduction: _Reduction, vectors: list[Value], single: Value) -> _Reduction:
    return _Reduction(
        reduction.op,
        reduction.walk,
        reduction.position,
        reduction.name,
        reduction.dtype,
        vectors,
        single,
    )


def _flatten(running: list[_Reduction]) -> list[Value]:
    return [v for r in running for v in (*r.vectors, r.single)]


def _unflatten(running: list[_Reduction], values: list[Value]) -> list[_Reduction]:
    result, at = [], 0
    for r in running:
        size = len(r.vectors)
        result.append(_with(r, values[at : at + size], values[at + size]))
        at += size + 1
    return result


def _weight(phase: Phase) -> int:
    return sum(weight_of(op) for op in phase.ops)


def _is_run(access: HbmAccess, count: Index) -> bool:
    """Whether a row of an access is ``count`` neighbouring elements, other for every row."""
    if access.index is not None or not access.spans or access.spans[0].stride == 0:
        return False
    spans = merge_spans(access.spans[1:])
    return len(spans) == 1 and spans[0].stride == 1 and spans[0].count == count


def weight_of(op: RowOp) -> int:
    """Vector instructions per chunk, roughly: what decides about unrolling and cost."""
    instruction = op.instruction
    if instruction.op == "activation":
        simple = ("copy", "square", "abs", "sign", "relu", "sqrt", "reciprocal")
        name = instruction.attr("op")
        return 3 if name in simple else 16 if name == "exp" else 40
    return 1 if instruction.op in ("dma_copy", "tensor_copy", "memset") else 2


def reduction_of(around: Surroundings, op: RowOp) -> tuple[str, DType]:
    """Operator and dtype in which an operation's reduction is combined."""
    name = op.instruction.attr("op") if op.instruction.op == "tensor_reduce" else "add"
    assert isinstance(name, str)
    return name, reduction_dtype(around.native, around.dtype_of, op, name)
