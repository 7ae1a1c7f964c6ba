"""Emits a row group: the partition loop outside, one loop nest per phase inside.

Within a phase the innermost dimension is done in chunks of a vector's lanes; what the phases
exchange is one value per row (in a register) or one row (in memory that stays in the first-level
cache).
"""

from __future__ import annotations

from typing import TypeAlias

from trnx.compiler.host.cost import weight_of_phase
from trnx.compiler.host.emit import Value, i64
from trnx.compiler.host.memory import byte_address
from trnx.compiler.host.nest import NestEmitter
from trnx.compiler.host.phases import Phase, RowKey, Schedule, merge, row_key
from trnx.compiler.host.position import Nest, Position
from trnx.compiler.host.rowops import RowOp, Walk
from trnx.compiler.host.sequential import emit_sequential
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.types import DType, storage
from trnx.compiler.tile.expr import Index
from trnx.compiler.tile.ir import HbmAccess, TileAccess
from trnx.compiler.tile.views import merge_spans

_AddressKey: TypeAlias = tuple[str, int, Index, Index, TileAccess | None]


class RowGroup:
    """Emits one row group into ``around.f``.

    ``in_pieces`` says that the group handles a piece of each row and the next piece comes next.
    """

    def __init__(self, around: Surroundings, schedule: Schedule, in_pieces: bool = False) -> None:
        self.around = around
        self.f = around.f
        self.schedule = schedule
        self._in_pieces = in_pieces
        self.rows: dict[RowKey, Value] = {}
        self._addresses: dict[_AddressKey, Value] = {}
        self._row: Value = i64(0)

    def emit(self, partitions: Index) -> None:
        """The partition loop with all phases."""
        indices = self.around.indices
        if partitions == 1:
            with indices.scope():
                self.emit_row(i64(0))
            return
        runs = isinstance(partitions, int) and partitions > 0
        self.emit_rows(i64(0), indices.value(partitions), runs)

    def emit_rows(self, first: Value, last: Value, runs: bool = False) -> None:
        """Rows ``first`` to ``last - 1``; ``runs`` says that there is at least one."""
        indices, f = self.around.indices, self.f
        loop = f.begin_loop(first, last, runs=runs)
        with indices.scope():
            self.emit_row(loop.index)
        f.end_loop(loop)

    def emit_row(self, row: Value) -> None:
        """All phases of one row."""
        self._row = row
        self.rows.clear()
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
        if service is not None and service in self.rows:
            entry = self.rows[service]
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
        nest = Nest(phase, (), {}, {}, [0])
        for op in phase.ops:
            for walk in self._memory_walks(phase, op):
                nest.pointers[op.order, walk] = self.address(op, walk)
                nest.strides[op.order, walk] = ()
            if op.instruction.op in ("iota", "affine_select"):
                nest.affine[op.order] = self._affine_base(op)
        chunk = Position(self, nest, 1, None, None)
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
        if not self._in_pieces and len(nest.counts) == 1 and phase is self._heaviest():
            nest.streams = self._streams(phase, nest.counts[0])
        NestEmitter(self, nest).emit()

    def _heaviest(self) -> Phase | None:
        """The phase with most work per element if there are others to overlap with it."""
        loops = [p for p in self.schedule.phases if p.nest and not p.sequential]
        return None if len(loops) < 2 else max(loops, key=weight_of_phase)

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

    def _joined(self, phase: Phase) -> Nest:
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
        return Nest(phase, counts, by_walk, patterns, home)


def _is_run(access: HbmAccess, count: Index) -> bool:
    """Whether a row of an access is ``count`` neighbouring elements, other for every row."""
    if access.index is not None or not access.spans or access.spans[0].stride == 0:
        return False
    spans = merge_spans(access.spans[1:])
    return len(spans) == 1 and spans[0].stride == 1 and spans[0].count == count
