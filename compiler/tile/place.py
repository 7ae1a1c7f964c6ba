"""``place``: gives every tile an address, and rotating buffers to the tiles that gain from them.

Every tile gets memory of its own while that fits, because sharing makes engines wait. Else tiles
whose lives do not meet share memory (``schedule`` orders the accesses): a tile lives from its
allocation to its last use, and one of an outer body that a loop uses lives through the whole loop.
Offsets are chosen largest tile first, lowest free offset, so the result is the same in every run.
SBUF tiles that a DMA touches inside a loop, and PSUM tiles that fill whole banks there, get two
copies while the capacity allows, so that one iteration can load while the previous one computes;
targets whose engines do not run at the same time get none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trnx.compiler.targets import Target
from trnx.compiler.targets import target as find_target
from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import accesses, trip_count
from trnx.compiler.tile.ir import (
    PSUM,
    SBUF,
    Alloc,
    For,
    Instruction,
    Kernel,
    Statement,
    Tile,
    TileAccess,
    While,
)
from trnx.core.dtypes import short_name
from trnx.core.errors import TileError, message
from trnx.core.source import Source

ALIGNMENT: Final = 64
"""Bytes; a tile starts on such a multiple, so that the host loads whole vectors."""


@dataclass(slots=True)
class Life:
    """A tile with its first and last position in program order (loop bodies counted once)."""

    tile: Tile
    first: int
    last: int
    in_loop: bool
    loop: tuple[int, int]
    touched_by: set[str]
    source: Source | None = None


def lives(kernel: Kernel) -> dict[str, Life]:
    """The life of every tile, by name, in the order of allocation."""
    found: dict[str, Life] = {}
    depth_of: dict[str, int] = {}
    position = 0

    def use(statement: Statement, spans: list[set[str]]) -> None:
        for access, _ in accesses(statement):
            if isinstance(access, TileAccess) and access.tile in found:
                life = found[access.tile]
                life.last = max(life.last, position)
                # Used inside loops that do not contain its allocation: alive until they end.
                for span in spans[depth_of[access.tile] :]:
                    span.add(access.tile)
                if isinstance(statement, Instruction):
                    life.touched_by.add(isa.queue(statement))
                    life.source = life.source or statement.source

    def scan(body: Sequence[Statement], spans: list[set[str]], rotates: bool) -> None:
        nonlocal position
        mine: list[Life] = []
        start = position
        for statement in body:
            position += 1
            if isinstance(statement, Alloc):
                life = Life(statement.tile, position, position, rotates, (0, 0), set())
                found[statement.tile.name] = life
                depth_of[statement.tile.name] = len(spans)
                mine.append(life)
            elif isinstance(statement, For | While):
                inner: set[str] = set()
                # A device loop of unknown length keeps one buffer per tile, as NKI does.
                trips = trip_count(statement)
                scan(statement.body, [*spans, inner], trips is not None and trips > 1)
                for name in inner:
                    found[name].last = max(found[name].last, position)
            else:
                use(statement, spans)
        for life in mine:
            life.loop = (start, position)

    scan(kernel.body, [], False)
    return found


def place(kernel: Kernel, target: Target | str) -> Kernel:
    """The kernel with an address and a number of copies on every tile.

    Raises:
        TileError: the tiles alive at one time do not fit into SBUF or PSUM.
    """
    row = find_target(target) if isinstance(target, str) else target
    found = lives(kernel)
    placed: dict[str, Tile] = {}
    for memory in (SBUF, PSUM):
        group = [life for life in found.values() if life.tile.memory == memory]
        placed |= _place_memory(kernel, row, memory, group)
    return replace(kernel, body=_rebuild(kernel.body, placed))


def _place_memory(
    kernel: Kernel, target: Target, memory: str, group: list[Life]
) -> dict[str, Tile]:
    rotating = [life for life in group if _gains_from_copies(life, target)]
    # The widest tile loses its second copy first: that frees the most per lost overlap.
    rotating.sort(key=lambda life: (-life.tile.free_bytes, life.first))
    share = False
    while True:
        copies = {life.tile.name: 2 for life in rotating}
        addresses, needed = _assign(target, memory, group, copies, share)
        if needed <= capacity(target, memory):
            break
        if not share:
            share = True
            continue
        if not rotating:
            raise _overflow(kernel, target, memory, group, needed)
        rotating.pop(0)
    return {
        life.tile.name: replace(
            life.tile,
            address=(0, addresses[life.tile.name]),
            copies=copies.get(life.tile.name, 1),
        )
        for life in group
    }


def capacity(target: Target, memory: str) -> int:
    """Bytes per partition that tiles may use."""
    return target.sbuf_usable_bytes if memory == SBUF else target.psum_partition_bytes


def _gains_from_copies(life: Life, target: Target) -> bool:
    if not life.in_loop or not target.concurrent_engines:
        return False
    if life.tile.memory == PSUM:
        return life.tile.free_bytes % target.psum_bank_bytes == 0
    return any(queue.startswith("dma:") for queue in life.touched_by)


def _assign(
    target: Target, memory: str, group: Sequence[Life], copies: Mapping[str, int], share: bool
) -> tuple[dict[str, int], int]:
    """Offsets by tile name, and the bytes per partition they need."""
    unit = ALIGNMENT if memory == SBUF else target.psum_bank_bytes
    order = sorted(group, key=lambda life: (-_size(life, copies), life.first))
    done: list[tuple[int, int, Life]] = []
    offsets: dict[str, int] = {}
    needed = 0
    for life in order:
        size = -(-_size(life, copies) // unit) * unit
        offset = 0
        for start, end, other in sorted(done, key=lambda item: item[0]):
            meet = not share or _meet(life, other, copies)
            if meet and start < offset + size and offset < end:
                offset = end
        done.append((offset, offset + size, life))
        offsets[life.tile.name] = offset
        needed = max(needed, offset + size)
    return offsets, needed


def _size(life: Life, copies: Mapping[str, int]) -> int:
    return life.tile.free_bytes * copies.get(life.tile.name, 1)


def _span(life: Life, copies: Mapping[str, int]) -> tuple[int, int]:
    # The copies of a rotating tile belong to neighbouring iterations: together they are alive
    # all through the loop.
    return life.loop if copies.get(life.tile.name, 1) > 1 else (life.first, life.last)


def _meet(first: Life, second: Life, copies: Mapping[str, int]) -> bool:
    a, b = _span(first, copies), _span(second, copies)
    return a[0] <= b[1] and b[0] <= a[1]


def _overflow(
    kernel: Kernel, target: Target, memory: str, group: Sequence[Life], needed: int
) -> TileError:
    widest = sorted(group, key=lambda life: (-life.tile.free_bytes, life.first))
    shown = [
        f"{life.tile.name} {short_name(life.tile.dtype)}{list(life.tile.shape)} "
        f"{life.tile.free_bytes:,} B"
        for life in widest[:4]
    ]
    more = f" and {len(widest) - 4} more" if len(widest) > 4 else ""
    remedy = (
        "Split the free axis of the widest tile into a loop over smaller tiles"
        if memory == SBUF
        else "Copy finished PSUM tiles to SBUF before new ones start, or use narrower ones"
    )
    return TileError(
        message(
            f"kernel '{kernel.name}' needs {needed:,} B of {memory.upper()} per partition where "
            f"{target.name} has {capacity(target, memory):,} B: {', '.join(shown)}{more}",
            widest[0].source or kernel.source,
            remedy,
        )
    )


def _rebuild(body: tuple[Statement, ...], placed: Mapping[str, Tile]) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Alloc):
            statement = Alloc(placed[statement.tile.name])
        elif isinstance(statement, For | While):
            statement = replace(statement, body=_rebuild(statement.body, placed))
        result.append(statement)
    return tuple(result)
