"""``schedule``: numbers the instructions and states which must wait for which.

Instructions wait in one in-order queue each (``isa.queue``). Two accesses that overlap, one of
them a write, on different queues need an order: ``deps`` lists the ids an instruction waits for.
An entry ``d`` means: the latest earlier instance of ``d`` whose accesses conflict with this
instance has finished (waiting for more than that is always allowed). ``RegisterLoad`` waits for
everything before it, because every engine reads the register.

Lists are kept short: an edge that queue order and other edges already imply is left out. Which
conflicts exist is found by running the kernel abstractly with every loop cut to the few iterations
after which the pattern repeats, with vector clocks as knowledge: ``known[queue]`` is the number of
that queue's instances that have finished when the instance starts. A conflict that is only
possible asks for an edge, but only a certain one is a wait that implies others. A loop that may
run no iteration teaches those after it nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import (
    Env,
    accesses,
    disjoint,
    extent,
    free_range,
    index_bounds,
    kernel_env,
    partition_range,
    trip_count,
)
from trnx.compiler.tile.expr import bounds
from trnx.compiler.tile.ir import (
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Param,
    RegisterLoad,
    RegisterMove,
    Statement,
    Tile,
    TileAccess,
    While,
    walk,
)
from trnx.compiler.tile.views import merge_spans


def number(kernel: Kernel) -> Kernel:
    """The kernel with ids 0, 1, … in program order and no dependencies."""
    count = iter(range(10**9))

    def visit(statement: Instruction) -> Instruction:
        return replace(statement, id=next(count), deps=())

    return replace(kernel, body=map_instructions(kernel.body, visit))


def map_instructions(
    body: Sequence[Statement], visit: Callable[[Instruction], Instruction]
) -> tuple[Statement, ...]:
    """The body with every instruction, in program order, replaced by ``visit`` of it."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Instruction):
            result.append(visit(statement))
        elif isinstance(statement, For | While):
            result.append(replace(statement, body=map_instructions(statement.body, visit)))
        else:
            result.append(statement)
    return tuple(result)


def schedule(kernel: Kernel) -> Kernel:
    """The kernel with ids and dependency edges; run after ``place``, whose addresses it reads."""
    numbered = number(kernel)
    deps = _Search(numbered).run()
    return replace(
        numbered,
        body=map_instructions(
            numbered.body, lambda i: replace(i, deps=tuple(sorted(deps.get(i.id, ()))))
        ),
    )


@dataclass(frozen=True, slots=True)
class Region:
    """What one static access may touch, and what it is certain to touch in every instance.

    Tiles: half-open ranges of partitions and bytes; HBM: the access itself.
    """

    owner: str
    writes: bool
    partitions: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    sure_partitions: tuple[int, int] = (0, 0)
    sure_bytes: tuple[int, int] = (0, 0)
    tile: Tile | None = None
    hbm: HbmAccess | None = None


@dataclass(frozen=True, slots=True)
class _Instance:
    """One abstract execution of an instruction: place in its queue, loop iterations, knowledge."""

    instruction: Instruction
    queue: str
    position: int
    time: int
    iterations: tuple[tuple[str, int], ...]
    copies: Mapping[str, int]
    known: Mapping[str, int]


class Conflicts:
    """Answers whether two instances of instructions touch the same memory, one writing."""

    def __init__(self, kernel: Kernel) -> None:
        self.params: dict[str, Param] = {p.name: p for p in kernel.params}
        self.tiles: dict[str, Tile] = {}
        self.regions: dict[int, tuple[Region, ...]] = {}
        self.env: dict[int, Env] = {}
        self.steps: dict[str, int] = {}
        self.optional: set[str] = set()
        self._answers: dict[tuple[object, ...], bool] = {}
        self._prepare(kernel.body, kernel_env(kernel))
        self._tile_pairs: dict[tuple[int, int], list[tuple[Region, Region]]] = {}
        self._hbm_pairs: dict[tuple[int, int], list[tuple[HbmAccess, HbmAccess]]] = {}

    def _prepare(self, body: Sequence[Statement], env: Env) -> None:
        for statement in body:
            if isinstance(statement, Alloc):
                self.tiles[statement.tile.name] = statement.tile
            elif isinstance(statement, For):
                self.steps[statement.index] = statement.step
                inner = {**env, statement.index: index_bounds(statement, env)}
                self._prepare(statement.body, inner)
            elif isinstance(statement, While):
                self._prepare(statement.body, env)
            elif isinstance(statement, Instruction):
                self.env[statement.id] = env
                self.regions[statement.id] = tuple(
                    self._region(access, writes, env) for access, writes in accesses(statement)
                )

    def _region(self, access: TileAccess | HbmAccess, writes: bool, env: Env) -> Region:
        if isinstance(access, HbmAccess):
            return Region(access.buffer, writes, hbm=access)
        tile = self.tiles[access.tile]
        low, high = free_range(access, env)
        size = tile.dtype.itemsize
        first = max(0, low or 0)
        last = tile.free_size - 1 if high is None else min(high, tile.free_size - 1)
        top = partition_range(access, env)[1]
        top = tile.shape[0] - 1 if top is None else top
        rows = max(0, bounds(access.partitions, env)[0] or 0)
        sure = (0, 0)
        if isinstance(access.offset, int) and all(
            (bounds(s.count, env)[0] or 0) > 0 for s in access.spans
        ):
            least = bounds(extent(access.spans), env)[0] or 0
            sure = (access.offset * size, (access.offset + least + 1) * size)
        return Region(
            tile.name,
            writes,
            (access.start, top + 1),
            (first * size, (last + 1) * size),
            (access.start, access.start + rows),
            sure,
            tile,
        )

    def rivals(self) -> dict[int, list[int]]:
        """For every id the ids, on any queue, that can conflict with it in some iteration."""
        near = {
            name: [n for n, other in self.tiles.items() if _near(tile, other)]
            for name, tile in self.tiles.items()
        }
        touching: dict[str, list[tuple[int, bool]]] = {}
        for number, regions in self.regions.items():
            for region in regions:
                touching.setdefault(region.owner, []).append((number, region.writes))
        return {
            number: sorted(
                {
                    other
                    for region in regions
                    for owner in near.get(region.owner, (region.owner,))
                    for other, writes in touching.get(owner, ())
                    if writes or region.writes
                }
            )
            for number, regions in self.regions.items()
        }

    def _tiles(self, first: int, second: int) -> list[tuple[Region, Region]]:
        key = (first, second)
        if key not in self._tile_pairs:
            self._tile_pairs[key] = [
                (a, b)
                for a in self.regions[first]
                for b in self.regions[second]
                if a.tile is not None and b.tile is not None and (a.writes or b.writes)
                if a.tile.memory == b.tile.memory
            ]
        return self._tile_pairs[key]

    def _hbm(self, first: int, second: int) -> list[tuple[HbmAccess, HbmAccess]]:
        key = (first, second)
        if key not in self._hbm_pairs:
            self._hbm_pairs[key] = [
                (a.hbm, b.hbm)
                for a in self.regions[first]
                for b in self.regions[second]
                if a.hbm is not None and b.hbm is not None and a.owner == b.owner
                if a.writes or b.writes
            ]
        return self._hbm_pairs[key]

    def certain(self, first: _Instance, second: _Instance) -> bool:
        """Whether the two instances conflict in every run."""
        if self._may_be_missing(first, second):
            return False
        one, two = first.instruction.id, second.instruction.id
        if any(
            _share(a, first.copies, b, second.copies, sure=True) for a, b in self._tiles(one, two)
        ):
            return True
        env = {**self.env[one], **self.env[two]}
        pairs = [p for p in self._hbm(one, two) if all(_is_some(access, env) for access in p)]
        if any(_covers(a, b, env) or _covers(b, a, env) for a, b in pairs):
            return True
        same = _relation(first.iterations, second.iterations) == (None, ())
        return same and any(a == b for a, b in pairs)

    def _may_be_missing(self, first: _Instance, second: _Instance) -> bool:
        """Whether the second instance can happen without the first, in a loop that did not run."""
        for depth, (name, iteration) in enumerate(first.iterations):
            other = second.iterations[depth] if depth < len(second.iterations) else ("", 0)
            if other != (name, iteration):
                inner = first.iterations[depth + (other[0] == name) :]
                return any(loop in self.optional for loop, _ in inner)
        return False

    def possible(self, first: _Instance, second: _Instance) -> bool:
        """Whether the two instances may conflict."""
        one, two = first.instruction.id, second.instruction.id
        if any(_share(a, first.copies, b, second.copies) for a, b in self._tiles(one, two)):
            return True
        pairs = self._hbm(one, two)
        if not pairs:
            return False
        ahead, free = _relation(first.iterations, second.iterations)
        key = (one, two, ahead, free)
        if key not in self._answers:
            env = {**self.env[one], **self.env[two]}
            step = self.steps.get(ahead, 1) if ahead is not None else 1
            self._answers[key] = not all(
                disjoint(self.params[a.buffer], a, b, env, ahead, step, free) for a, b in pairs
            )
        return self._answers[key]


def _is_some(access: HbmAccess, env: Env) -> bool:
    """Whether an access is sure to touch the element at its offset."""
    return access.index is None and all((bounds(c, env)[0] or 0) > 0 for c in access.shape)


def _covers(whole: HbmAccess, part: HbmAccess, env: Env) -> bool:
    """Whether ``whole`` is one run of elements that is sure to hold the first one of ``part``."""
    if not isinstance(whole.offset, int) or not isinstance(part.offset, int):
        return False
    merged = merge_spans(whole.spans)
    if len(merged) > 1 or any(s.stride != 1 for s in merged):
        return False
    least = bounds(extent(whole.spans), env)[0] or 0
    return whole.offset <= part.offset <= whole.offset + least


def _relation(
    first: Sequence[tuple[str, int]], second: Sequence[tuple[str, int]]
) -> tuple[str | None, tuple[str, ...]]:
    """The outermost common loop in which the second instance is ahead, and the loops inside it."""
    for depth, ((name, a), (other, b)) in enumerate(zip(first, second, strict=False)):
        if name != other:
            inner = {n for n, _ in (*first[depth:], *second[depth:])}
            return None, tuple(sorted(inner))
        if a != b:
            inner = {n for n, _ in (*first[depth + 1 :], *second[depth + 1 :])}
            if name.startswith("while "):
                return None, tuple(sorted({name, *inner}))
            return name, tuple(sorted(inner))
    common = min(len(first), len(second))
    return None, tuple(sorted({n for n, _ in (*first[common:], *second[common:])}))


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _near(tile: Tile, other: Tile) -> bool:
    """Whether two tiles have bytes in common, in whatever copies; unplaced ones have none."""
    if tile.name == other.name:
        return True
    if tile.memory != other.memory or tile.address is None or other.address is None:
        return False
    low, other_low = tile.address[1], other.address[1]
    high, other_high = (t.copies * t.free_bytes for t in (tile, other))
    return _overlap((low, low + high), (other_low, other_low + other_high))


def _share(
    a: Region,
    copies_a: Mapping[str, int],
    b: Region,
    copies_b: Mapping[str, int],
    *,
    sure: bool = False,
) -> bool:
    """Whether the two regions overlap, or are certain to, with these rotating copies."""
    assert a.tile is not None and b.tile is not None
    if sure and (a.owner not in copies_a or b.owner not in copies_b):
        return False
    placed = a.tile.address is not None and b.tile.address is not None
    if not placed and a.owner != b.owner:
        return False
    boxes = []
    for region, copies in ((a, copies_a), (b, copies_b)):
        tile = region.tile
        assert tile is not None
        rows = region.sure_partitions if sure else region.partitions
        low, high = region.sure_bytes if sure else region.bytes
        partition, byte = tile.address or (0, 0)
        # An unknown copy may be any of them.
        first = copies.get(region.owner, 0)
        last = copies.get(region.owner, tile.copies - 1)
        boxes.append(
            (
                (partition + rows[0], partition + rows[1]),
                (byte + first * tile.free_bytes + low, byte + last * tile.free_bytes + high),
            )
        )
    return all(_overlap(one, two) for one, two in zip(*boxes, strict=True))


def repetitions(loop: For | While) -> int:
    """Iterations after which the pattern of conflicts repeats (fewer if the loop has fewer).

    Rotating tiles end a loop in the same copy as the whole loop would.
    """
    rotating = [s.tile.copies for s in loop.body if isinstance(s, Alloc) and s.tile.copies > 1]
    enough = max([2, *(copies + 1 for copies in rotating)])
    trips = trip_count(loop)
    if trips is None:
        return enough
    return min(trips, enough + (trips - enough) % lcm(*rotating))


class _Search:
    """The abstract run that finds the edges."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.conflicts = Conflicts(kernel)
        self.deps: dict[int, set[int]] = {}
        self.history: dict[int, list[_Instance]] = {}
        self.queue_length: dict[str, int] = {}
        self.queue_known: dict[str, dict[str, int]] = {}
        self.barrier: dict[str, int] = {}
        self.copies: dict[str, int] = {s.tile.name: 0 for s in kernel.body if isinstance(s, Alloc)}
        self.time = 0
        queues = {s.id: isa.queue(s) for s in walk(kernel.body) if isinstance(s, Instruction)}
        self.rivals = {
            number: [other for other in others if queues[other] != queues[number]]
            for number, others in self.conflicts.rivals().items()
        }

    def run(self) -> dict[int, set[int]]:
        self._body(self.kernel.body, ())
        return self.deps

    def _body(self, body: Sequence[Statement], iterations: tuple[tuple[str, int], ...]) -> None:
        for position, statement in enumerate(body):
            if isinstance(statement, Instruction):
                self._instruction(statement, iterations)
            elif isinstance(statement, For | While):
                name = (
                    statement.index
                    if isinstance(statement, For)
                    else f"while {statement.condition} {position}"
                )
                own = [s.tile for s in statement.body if isinstance(s, Alloc)]
                optional = not trip_count(statement)
                if optional:
                    self.conflicts.optional.add(name)
                before = self.barrier, dict(self.queue_known)
                for iteration in range(repetitions(statement)):
                    self.copies |= {tile.name: iteration % tile.copies for tile in own}
                    self._body(statement.body, (*iterations, (name, iteration)))
                if optional:
                    self.barrier, self.queue_known = before
                    self._forget_copies(own)
            elif isinstance(statement, RegisterLoad):
                self.barrier = dict(self.queue_length)
                self.queue_known = {queue: dict(self.barrier) for queue in self.queue_length}
            elif not isinstance(statement, Alloc | RegisterMove):
                raise TypeError(f"unknown statement {type(statement).__name__}")

    def _forget_copies(self, own: Sequence[Tile]) -> None:
        """Nobody knows in which copy a loop of unknown length ends: no wait on it is certain."""
        rotating = {tile.name for tile in own if tile.copies > 1}
        for instances in self.history.values():
            for number, instance in enumerate(instances):
                if rotating & instance.copies.keys():
                    kept = {n: c for n, c in instance.copies.items() if n not in rotating}
                    instances[number] = replace(instance, copies=kept)

    def _instruction(
        self, instruction: Instruction, iterations: tuple[tuple[str, int], ...]
    ) -> None:
        queue = isa.queue(instruction)
        known = dict(self.queue_known.get(queue, self.barrier))
        self.time += 1
        position = self.queue_length.get(queue, 0) + 1
        instance = _Instance(
            instruction, queue, position, self.time, iterations, dict(self.copies), known
        )
        chosen = self.deps.setdefault(instruction.id, set())
        conflicts = self.conflicts
        needed = [
            other
            for rival in self.rivals[instruction.id]
            if (other := self._latest(rival, instance, conflicts.possible)) is not None
        ]
        # Edges that are there anyway come first; then the latest, which implies the most.
        needed.sort(key=lambda other: (other.instruction.id not in chosen, -other.time))
        for other in needed:
            rival = other.instruction.id
            if rival not in chosen:
                if known.get(other.queue, 0) >= other.position:
                    continue
                chosen.add(rival)
            waited = self._latest(rival, instance, conflicts.certain)
            if waited is not None:
                for name, count in waited.known.items():
                    known[name] = max(known.get(name, 0), count)
                known[waited.queue] = max(known.get(waited.queue, 0), waited.position)
        self.queue_length[queue] = position
        self.queue_known[queue] = known
        self.history.setdefault(instruction.id, []).append(instance)

    def _latest(
        self, rival: int, instance: _Instance, test: Callable[[_Instance, _Instance], bool]
    ) -> _Instance | None:
        return next((o for o in reversed(self.history.get(rival, ())) if test(o, instance)), None)
