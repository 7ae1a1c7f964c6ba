"""One chunk of a phase: serves reads, runs every operation, stores what must be stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trnx.compiler.host import arithmetic
from trnx.compiler.host.chunk import Chunk, Partial, compute, copy_cast, finish_reduction
from trnx.compiler.host.emit import I32, Function, Value
from trnx.compiler.host.memory import load_elements, store_elements
from trnx.compiler.host.phases import Key, Phase, RowKey, Schedule, key_of, row_key
from trnx.compiler.host.rowops import Counts, RowOp, Walk
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.types import DType, as_number, storage
from trnx.compiler.tile.expr import Index


class Row(Protocol):
    """The present row of a row group. ``rows`` holds its single values in registers."""

    around: Surroundings
    f: Function
    schedule: Schedule
    rows: dict[RowKey, Value]


@dataclass(slots=True)
class Nest:
    """A phase during emission: joined counts, and per walk its strides in them."""

    phase: Phase
    counts: Counts
    strides: dict[tuple[int, Walk], Counts]
    patterns: dict[int, Counts]
    home: list[int]
    pointers: dict[tuple[int, Walk], Value] = field(default_factory=dict)
    affine: dict[int, Value] = field(default_factory=dict)
    streams: list[tuple[Value, DType, bool]] = field(default_factory=list)


class Position:
    """One chunk of a phase: serves reads, runs every operation, stores what must be stored."""

    def __init__(
        self, group: Row, nest: Nest, lanes: int, at: Value | None, mask: Value | None
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
                        group.rows[row_key(walk)] = value
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
            return self.f.splat(self.group.rows[service.row], self.lanes)
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
