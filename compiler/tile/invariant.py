"""Statements of a loop's body that do the same in every iteration, such as loads of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnx.compiler.tile.analysis import accesses, declared_tiles, written_registers
from trnx.compiler.tile.expr import Expr, symbols
from trnx.compiler.tile.ir import (
    SBUF,
    Access,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Statement,
    Tile,
    TileAccess,
    While,
    walk,
)


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a statement uses: tiles from outside of it, HBM parameters, symbols it does not bind."""

    reads: frozenset[str]
    writes: frozenset[str]
    hbm_reads: frozenset[str]
    hbm_writes: frozenset[str]
    symbols: frozenset[str]


def split_invariant(
    body: Sequence[Statement], index: str, room: int, roots: Mapping[str, object]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Cut a loop's body into what may run once before the loop, and the rest.

    Only loads and what is computed from them on chip can move: their results stay in SBUF.

    Args:
        body: the loop's statements.
        index: name of its index or condition.
        room: bytes per partition that results may take through the whole loop.
        roots: the buffer behind each HBM parameter; views of one buffer in several dtypes share it.

    Returns:
        Statements for in front of the loop, and the new body.
    """
    changing = {index, *written_registers(body)}
    own = {s.tile.name: s.tile for s in body if isinstance(s, Alloc)}
    effects = {n: _effect(s) for n, s in enumerate(body) if isinstance(s, Instruction | For)}
    written_hbm = {name for effect in effects.values() for name in effect.hbm_writes}
    for statement in body:
        if not isinstance(statement, Alloc | Instruction | For):
            written_hbm |= {
                a.buffer
                for inner in walk((statement,))
                for a, writes in accesses(inner)
                if writes and isinstance(a, HbmAccess)
            }
    written_roots = {roots[name] for name in written_hbm if name in roots}
    written_hbm |= {name for name, root in roots.items() if root in written_roots}
    writers: dict[str, list[int]] = {}
    touching: dict[str, list[int]] = {}
    for number, statement in enumerate(body):
        for inner in walk((statement,)):
            for access, writes in accesses(inner):
                if not isinstance(access, TileAccess):
                    continue
                touching.setdefault(access.tile, []).append(number)
                if writes:
                    writers.setdefault(access.tile, []).append(number)
    moving = {
        n
        for n, e in effects.items()
        if not e.hbm_writes
        and not e.hbm_reads & written_hbm
        and not e.symbols & changing
        and e.writes <= own.keys()
        and not written_registers((body[n],))
    }
    while True:
        moving = _closed(moving, effects, own, writers)
        kept = [t for name, t in own.items() if _is_kept(name, moving, writers, touching)]
        surplus = _surplus(kept, moving, writers, touching, room)
        if not surplus:
            break
        moving -= surplus
    if not moving:
        return (), tuple(body)
    moved_tiles = {name for n in moving for name in effects[n].writes}
    front: list[Statement] = []
    rest: list[Statement] = []
    for number, statement in enumerate(body):
        goes = number in moving or (
            isinstance(statement, Alloc) and statement.tile.name in moved_tiles
        )
        (front if goes else rest).append(statement)
    return tuple(front), tuple(rest)


def free_symbols(body: Sequence[Statement]) -> set[str]:
    """Symbols that statements read and neither a loop nor an assignment among them defines."""
    used: set[str] = set()
    for statement in walk(tuple(body)):
        if isinstance(statement, For):
            used |= symbols(statement.low) | symbols(statement.high)
        elif isinstance(statement, While):
            used.add(statement.condition)
        elif isinstance(statement, RegisterMove):
            used |= symbols(statement.value)
        elif isinstance(statement, RegisterLoad):
            used |= _access_symbols(statement.access)
        elif isinstance(statement, Instruction):
            used |= _instruction_symbols(statement)
    indices = {s.index for s in walk(tuple(body)) if isinstance(s, For)}
    return used - indices - written_registers(body)


def _access_symbols(access: Access) -> set[str]:
    found: set[str] = set()
    for value in (access.offset, *access.shape, *(s.stride for s in access.spans)):
        found |= symbols(value)
    if isinstance(access, HbmAccess) and access.index is not None:
        found |= _access_symbols(access.index)
    return found


def _effect(statement: Instruction | For) -> _Effect:
    inside = declared_tiles((statement,))
    reads: set[str] = set()
    writes: set[str] = set()
    hbm_reads: set[str] = set()
    hbm_writes: set[str] = set()
    used: set[str] = set()
    bound: set[str] = set()
    for inner in walk((statement,)):
        if isinstance(inner, For):
            bound.add(inner.index)
            used |= symbols(inner.low) | symbols(inner.high)
        for access, written in accesses(inner):
            if isinstance(access, HbmAccess):
                (hbm_writes if written else hbm_reads).add(access.buffer)
            elif access.tile not in inside:
                (writes if written else reads).add(access.tile)
        if isinstance(inner, Instruction):
            used |= _instruction_symbols(inner)
    return _Effect(
        frozenset(reads),
        frozenset(writes),
        frozenset(hbm_reads),
        frozenset(hbm_writes),
        frozenset(used - bound),
    )


def _instruction_symbols(instruction: Instruction) -> set[str]:
    found: set[str] = set()

    def visit(value: object) -> None:
        if isinstance(value, Expr):
            found.update(symbols(value))
        elif isinstance(value, Predicate):
            visit(value.left)
            visit(value.right)
        elif isinstance(value, RegisterValue):
            visit(value.value)
        elif isinstance(value, tuple):
            for part in value:
                visit(part)
        elif isinstance(value, TileAccess | HbmAccess):
            found.update(_access_symbols(value))

    visit((*instruction.outs, *instruction.ins, *(value for _, value in instruction.attrs)))
    return found


def _closed(
    moving: set[int],
    effects: dict[int, _Effect],
    own: dict[str, Tile],
    writers: dict[str, list[int]],
) -> set[int]:
    """The statements whose operands are ready in front of the loop, and that write tiles whole."""
    moving = set(moving)
    while True:
        dropped = {
            n
            for n in moving
            if any(w not in moving for name in effects[n].writes for w in writers[name])
            or any(
                w not in moving or name not in own
                for name in effects[n].reads
                for w in writers.get(name, ())
            )
        }
        if not dropped:
            return moving
        moving -= dropped


def _is_kept(
    name: str, moving: set[int], writers: dict[str, list[int]], touching: dict[str, list[int]]
) -> bool:
    """Whether a tile that is filled in front of the loop is used inside it."""
    made = writers.get(name, [])
    return bool(made) and made[0] in moving and any(n not in moving for n in touching[name])


def _surplus(
    kept: Sequence[Tile],
    moving: set[int],
    writers: dict[str, list[int]],
    touching: dict[str, list[int]],
    room: int,
) -> set[int]:
    """Writers of tiles that must not stay: in PSUM, too large, or read while they are written."""
    surplus: set[int] = set()
    for tile in kept:
        inside = [n for n in touching[tile.name] if n not in moving]
        early = inside[0] < writers[tile.name][-1]
        if tile.memory != SBUF or tile.free_bytes > room or early:
            surplus.update(writers[tile.name])
        else:
            room -= tile.free_bytes
    return surplus & moving
