"""Schedules the operations of a row group into phases, and decides what needs memory.

A phase is one loop nest over the elements of a row. Operations share a phase when they see the
same elements and hand them over element by element; a reduction's result, or anything read in
another order, belongs to a later phase. Inside a phase a value stays in a register. A tile gets
memory only if somebody reads it who is not served by a register, or by loading it from HBM again.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trnx.compiler.host.rowops import (
    Counts,
    RowOp,
    Walk,
    disjoint,
    refine,
    split,
    split_position,
)
from trnx.compiler.tile.expr import Index, add, mul, scale
from trnx.compiler.tile.ir import Access, HbmAccess, TileAccess

APART: Final = 0
SAME_BASE: Final = 1
OVERLAPPING: Final = 2

Aliases: TypeAlias = Callable[[str, str], int]
"""How two HBM parameters may share memory: not at all, only from the same address on (as an update
in place does, and a parameter with itself), or anyhow."""

Key: TypeAlias = tuple[str, int, Index, Counts]
"""A tile (or HBM) walk as seen from a nest: memory, start partition, offset, strides."""

RowKey: TypeAlias = tuple[str, int, Index]
"""One element of a tile's row: tile, start partition, offset."""


@dataclass(frozen=True, slots=True)
class Service:
    """Where a read gets its elements from.

    ``kind`` is ``live`` (a register of this chunk, by ``key``), ``row`` (a register of this row,
    by ``row``), ``load`` (repeat ``load``) or ``memory``.
    """

    kind: str
    key: Key | None = None
    row: RowKey | None = None
    load: RowOp | None = None


@dataclass(slots=True)
class Phase:
    """Operations that run in one loop nest, in program order.

    ``services`` says for every operation (by its order) and walk where reads are served from.
    """

    nest: Counts
    ops: list[RowOp] = field(default_factory=list)
    services: dict[tuple[int, Walk], Service] = field(default_factory=dict)

    @property
    def sequential(self) -> bool:
        """Whether the phase is one instruction done from memory to memory."""
        return bool(self.ops) and self.ops[0].sequential


@dataclass(frozen=True, slots=True)
class Schedule:
    """Phases of a row group and the tiles whose rows live in memory."""

    phases: tuple[Phase, ...]
    stored: frozenset[str]


def walks_match(a: RowOp, left: Walk, b: RowOp, right: Walk) -> bool:
    """Whether two walks visit the same element of their memory at the same nest position."""
    nest = refine(a.counts, b.counts)
    if nest is None:
        return False
    return key_of(a, left, nest)[1:] == key_of(b, right, nest)[1:]


def key_of(op: RowOp, walk: Walk, nest: Counts) -> Key:
    """The walk's identity inside ``nest``."""
    start = walk.access.start if isinstance(walk.access, TileAccess) else 0
    strides = split(op.counts, walk.strides, nest)
    return walk.memory, start, walk.offset, strides


def conflicts(a: RowOp, b: RowOp, aliases: Aliases) -> Iterator[tuple[Walk, Walk, bool, bool]]:
    """Pairs of walks of ``a`` and ``b`` on one memory of which one writes.

    The flags say whether the pair may be handed over element by element: the walk of ``a`` (or
    ``b``) is no partial result of a reduction.
    """
    whole_a = [(w, kept == len(a.counts)) for w, kept in a.results]
    whole_b = [(w, kept == len(b.counts)) for w, kept in b.results]
    for written, full in whole_a:
        for read in b.reads:
            if _shares(written, read, aliases):
                yield written, read, full, True
        for other, other_full in whole_b:
            if _shares(written, other, aliases):
                yield written, other, full, other_full
    for read in a.reads:
        for other, other_full in whole_b:
            if _shares(read, other, aliases):
                yield read, other, True, other_full


def _shares(a: Walk, b: Walk, aliases: Aliases) -> bool:
    if a.on_chip != b.on_chip:
        return False
    return a.memory == b.memory if a.on_chip else aliases(a.memory, b.memory) != APART


def _distance(a: RowOp, b: RowOp, aliases: Aliases) -> int | None:
    """Least phase distance of ``b`` after ``a``: None unrelated, 0 same phase, 1 a later one."""
    distance: int | None = None
    for left, right, full_a, full_b in conflicts(a, b, aliases):
        if a.sequential or b.sequential or right in b.indices:
            return 1
        if full_a and full_b and walks_match(a, left, b, right):
            distance = distance or 0
            continue
        if left.on_chip and disjoint(left, a.counts, right, b.counts):
            continue
        if not left.on_chip and not same_place(left.access, right.access):
            # Row groups hold only HBM accesses that are equal or provably apart.
            continue
        return 1
    return distance


def same_place(a: Access, b: Access) -> bool:
    """Whether two HBM accesses are equal but for the parameter."""
    assert isinstance(a, HbmAccess) and isinstance(b, HbmAccess)
    return a.offset == b.offset and a.spans == b.spans and a.index == b.index


def schedule(ops: Sequence[RowOp], outside: Collection[str], aliases: Aliases) -> Schedule:
    """Phases for the operations of one row group.

    Args:
        ops: in program order.
        outside: tiles whose rows must be in memory because others use them.
        aliases: which HBM parameters may share memory.
    """
    distances: dict[tuple[int, int], int] = {}
    place: dict[int, int] = {}
    phases: list[Phase] = []
    for n, op in enumerate(ops):
        lowest = 0
        for m in range(n):
            distance = _distance(ops[m], op, aliases)
            if distance is not None:
                distances[m, n] = distance
                lowest = max(lowest, place[m] + distance)
        place[n] = _join(phases, op, lowest)
    _sink(ops, phases, place, distances)
    used = tuple(phase for phase in phases if phase.ops)
    for phase in used:
        phase.ops.sort(key=lambda op: op.order)
    stored = _serve(used, outside, aliases)
    taken = {
        service.row[0]
        for phase in used
        for service in phase.services.values()
        if service.row is not None
    }
    for phase in used:
        phase.ops = [op for op in phase.ops if not _is_idle_load(op, phase, stored | taken)]
    return Schedule(tuple(phase for phase in used if phase.ops), stored)


def _is_idle_load(op: RowOp, phase: Phase, needed: Collection[str]) -> bool:
    """Whether a load has no reader in its phase and needs no memory: readers repeat it."""
    if not op.is_load or op.results[0][0].memory in needed:
        return False
    tile = op.results[0][0].memory
    return not any(w.memory == tile for other in phase.ops for w in other.reads if w.on_chip)


def _join(phases: list[Phase], op: RowOp, lowest: int) -> int:
    if not op.sequential:
        for k in range(lowest, len(phases)):
            if _admit(phases[k], op):
                return k
    phases.append(Phase(op.counts, [op]))
    return len(phases) - 1


def _admit(phase: Phase, op: RowOp) -> bool:
    if phase.sequential or not phase.ops:
        return False
    nest = refine(phase.nest, op.counts)
    if nest is None:
        return False
    phase.nest = nest
    phase.ops.append(op)
    return True


def _sink(
    ops: Sequence[RowOp],
    phases: list[Phase],
    place: dict[int, int],
    distances: dict[tuple[int, int], int],
) -> None:
    """Move an operation to its first element-wise consumer, which saves storing its result."""
    for n in range(len(ops) - 1, -1, -1):
        op = ops[n]
        if op.sequential or op.boundaries:
            continue
        later = [(place[m] - d, d, place[m]) for (k, m), d in distances.items() if k == n]
        if not later:
            continue
        limit = min(bound for bound, _, _ in later)
        if limit <= place[n] or not any(d == 0 and at == limit for _, d, at in later):
            continue
        source = phases[place[n]]
        if _admit(phases[limit], op):
            source.ops.remove(op)
            place[n] = limit


class _Loads:
    """Loads from HBM whose repetition still gives a tile's contents."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._loads: list[RowOp] = []

    def find(self, op: RowOp, walk: Walk) -> RowOp | None:
        """A load that gives ``walk`` the same elements."""
        for load in self._loads:
            tile = load.results[0][0]
            if tile.memory == walk.memory and walks_match(load, tile, op, walk):
                return load
        return None

    def wrote(self, op: RowOp) -> None:
        """Forget loads that a write of ``op`` makes stale; remember ``op`` if it is one."""
        for walk, _ in op.results:
            self._loads = [load for load in self._loads if not self._stale(load, op, walk)]
        if op.is_load and _repeatable(op):
            self._loads.append(op)

    def _stale(self, load: RowOp, op: RowOp, walk: Walk) -> bool:
        source, tile = load.sources[0], load.results[0][0]
        assert source is not None
        if not walk.on_chip:
            return self._aliases(walk.memory, source.memory) != APART
        return walk.memory == tile.memory and not disjoint(walk, op.counts, tile, load.counts)


def _repeatable(load: RowOp) -> bool:
    source = load.sources[0]
    assert source is not None and isinstance(source.access, HbmAccess)
    if source.access.index is not None:
        return False
    return not source.strides or source.strides[-1] in (0, 1)


def _serve(phases: Sequence[Phase], outside: Collection[str], aliases: Aliases) -> frozenset[str]:
    """Fill in ``services``; returns the tiles that need memory."""
    stored = set(outside)
    loads = _Loads(aliases)
    rows: set[RowKey] = set()
    for phase in phases:
        live: set[Key] = set()
        for op in phase.ops:
            for walk in op.reads:
                service = Service("memory")
                if walk.on_chip and not op.sequential:
                    service = _service(op, walk, phase.nest, live, rows, loads)
                phase.services[op.order, walk] = service
                if walk.on_chip and service.kind == "memory":
                    stored.add(walk.memory)
            loads.wrote(op)
            for walk, kept in op.results:
                if op.sequential and walk.on_chip:
                    stored.add(walk.memory)
                _drop_rows(rows, walk, kept)
                if op.sequential or not walk.on_chip:
                    continue
                key = key_of(op, walk, phase.nest)
                full = kept == len(op.counts)
                live = {k for k in live if k[0] != walk.memory or (full and k == key)}
                if full:
                    live.add(key)
                if kept == 0:
                    rows.add(row_key(walk))
    return frozenset(stored)


def _service(
    op: RowOp, walk: Walk, nest: Counts, live: set[Key], rows: set[RowKey], loads: _Loads
) -> Service:
    key = key_of(op, walk, nest)
    if key in live:
        return Service("live", key=key)
    if all(s == 0 for s in walk.strides) and row_key(walk) in rows:
        return Service("row", row=row_key(walk))
    load = loads.find(op, walk)
    return Service("memory") if load is None else Service("load", load=load)


def row_key(walk: Walk) -> RowKey:
    """Identity of a single element of a tile's row."""
    start = walk.access.start if isinstance(walk.access, TileAccess) else 0
    return walk.memory, start, walk.offset


def _drop_rows(rows: set[RowKey], walk: Walk, kept: int) -> None:
    """Forget the row values that writing ``walk`` replaces."""
    if not walk.on_chip:
        return
    mine = row_key(walk)
    for key in [k for k in rows if k[0] == walk.memory]:
        gap = add(key[2], scale(mine[2], -1))
        apart = kept == 0 and key[1] == mine[1] and isinstance(gap, int) and gap != 0
        if not apart:
            rows.discard(key)


def merge(
    phase: Phase, walks: Sequence[tuple[Counts, Counts]]
) -> tuple[Counts, list[Counts], list[int]]:
    """Join nest dimensions that every walk crosses evenly.

    Args:
        phase: the phase.
        walks: counts and strides of every walk of the phase, in its operation's own nest.

    Returns the joined nest, the strides of each walk in it, and for every position of the phase's
    nest the joined dimension it belongs to. Boundaries of reductions are never crossed.
    """
    nest = phase.nest
    cuts = {split_position(op.counts, b, nest) for op in phase.ops for b in op.boundaries}
    strides = [split(counts, own, nest) for counts, own in walks]
    counts = list(nest)
    home = list(range(len(nest)))
    for k in range(len(nest) - 1, 0, -1):
        joined = k not in cuts and all(
            len(s) < k or (len(s) > k and s[k - 1] == mul(s[k], counts[k])) for s in strides
        )
        if joined:
            counts[k - 1] = mul(counts[k - 1], counts[k])
            del counts[k]
            strides = [s if len(s) < k else (*s[: k - 1], *s[k:]) for s in strides]
            home = [h - 1 if h >= k else h for h in home]
    return tuple(counts), strides, [*home, len(counts)]
