"""Emits ``nc_matmul``: one library call per product, or per loop of accumulating products.

The library wants dense or paneled rows of one dtype; other operands are copied first. A loop over
the contracted dimension whose body is one accumulating product becomes one call, so that sums stay
in registers over the whole loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnx.compiler.host.emit import I64, Value, i64
from trnx.compiler.host.matmul import matmul_symbol, needs_of, panel_columns
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.temporaries import PackedPanels, Temporaries, base_address
from trnx.compiler.host.types import DType
from trnx.compiler.tile.expr import (
    Call,
    Index,
    add,
    minimum,
    mul,
    scale,
    substitute,
    symbol,
    symbols,
)
from trnx.compiler.tile.ir import (
    Access,
    For,
    HbmAccess,
    Instruction,
    Predicate,
    TileAccess,
)
from trnx.compiler.tile.views import merge_spans
from trnx.core.dtypes import float32, float64
from trnx.core.errors import TileError, message


@dataclass(frozen=True, slots=True)
class _Contraction:
    """Tiles of the contracted dimension: rows of a tile, rows in all, steps of both operands."""

    tile: Index
    total: Index
    stationary_step: Index
    moving_step: Index


def _free_size(access: TileAccess) -> Index:
    total: Index = 1
    for span in access.spans:
        total = mul(total, span.count)
    return total


def _is_dense(access: TileAccess) -> bool:
    spans = merge_spans(access.spans)
    return not spans or (len(spans) == 1 and spans[0].stride == 1)


def _operands(instruction: Instruction) -> tuple[TileAccess, TileAccess, TileAccess | HbmAccess]:
    destination, (stationary, moving) = instruction.outs[0], instruction.ins[:2]
    if not isinstance(destination, TileAccess) or not isinstance(stationary, TileAccess):
        raise TileError(
            message("nc_matmul: an operand is no tile", instruction.source, "Pass tile accesses")
        )
    assert isinstance(moving, TileAccess | HbmAccess)
    return destination, stationary, moving


def _dtype(around: Surroundings, instruction: Instruction) -> DType:
    dtypes = [around.dtype_of(a) for a in _operands(instruction)]
    return float64 if around.native and float64 in dtypes else float32


def emit_product(around: Surroundings, instruction: Instruction) -> None:
    """Emit a single ``nc_matmul``."""
    temps = Temporaries(around)
    around = temps.around
    f, indices = around.f, around.indices
    destination, stationary, moving = _operands(instruction)
    dtype = _dtype(around, instruction)

    def plain(access: TileAccess) -> TileAccess:
        if _is_direct(around, access, dtype):
            return access
        copy = temps.add(around.shapes[access.tile][0], access, dtype)
        temps.run([Instruction("tensor_copy", (copy,), (access,))])
        return copy

    attribute = instruction.attr("accumulate", False)
    if isinstance(attribute, Predicate):
        accumulate = f.convert("zext", indices.predicate(attribute), I64)
    else:
        accumulate = i64(1 if attribute else 0)
    direct = around.dtype_of(destination) == dtype and _is_dense(destination)
    target = destination
    if not direct:
        target = temps.add(around.shapes[destination.tile][0], destination, dtype)
        if attribute is not False:
            temps.run([Instruction("tensor_copy", (target,), (destination,))])
    k = stationary.partitions
    left = plain(stationary)
    right = plain(moving) if isinstance(moving, TileAccess) else moving
    _call(around, dtype, target, left, right, _Contraction(k, k, 0, 0), accumulate)
    if not direct:
        temps.run([Instruction("tensor_copy", (destination,), (target,))])


def _is_direct(around: Surroundings, access: TileAccess, dtype: DType) -> bool:
    """Whether the library can read an operand where it is."""
    paneled = around.tiles[access.tile].panel != 0
    return around.dtype_of(access) == dtype and (paneled or _is_dense(access))


def _call(
    around: Surroundings,
    dtype: DType,
    destination: TileAccess,
    stationary: TileAccess,
    moving: TileAccess | HbmAccess,
    contraction: _Contraction,
    accumulate: Value,
    panel: int = 0,
) -> None:
    """One library call; `panel` is the distance of the panels of a packed moving operand."""
    f, indices = around.f, around.indices

    def place(access: Access) -> list[Value]:
        base, pitch = base_address(around, access)
        if isinstance(access, HbmAccess):
            return [base, indices.value(access.spans[0].stride)]
        return [base, i64(pitch // dtype.itemsize)]

    if not panel:
        own = around.tiles[moving.tile].panel if isinstance(moving, TileAccess) else 0
        panel = own or panel_columns(f.cpu, dtype)
    rows, columns = _free_size(stationary), _free_size(destination)
    needs = needs_of(f.cpu, dtype, _values(rows), _values(columns))
    f.call_void(
        matmul_symbol(dtype, f.cpu, needs),
        *place(destination),
        *place(stationary),
        indices.value(contraction.stationary_step),
        *place(moving),
        indices.value(contraction.moving_step),
        i64(panel),
        indices.value(rows),
        indices.value(columns),
        indices.value(contraction.tile),
        indices.value(contraction.total),
        accumulate,
    )


def _values(size: Index) -> set[int] | None:
    """The values above 0 that a size may have: a number, or the tile of ``min(tile, n - k·i)`` and
    what is left of it at the end when the tile divides every k. None when nobody knows.
    """
    if isinstance(size, int):
        return {size} if size > 0 else set()
    if size.const or len(size.terms) != 1:
        return None
    atom, coefficient = size.terms[0]
    if coefficient != 1 or not isinstance(atom, Call) or atom.op != "min":
        return None
    tile, rest = atom.args
    if isinstance(rest, int):
        tile, rest = rest, tile
    if not isinstance(tile, int) or isinstance(rest, int) or tile <= 0:
        return None
    if any(step % tile for _, step in rest.terms):
        return None
    left = rest.const % tile
    return {tile, left} if left else {tile}


# Loops ------------------------------------------------------------------------------------------


def emit_product_loop(around: Surroundings, loop: For, instruction: Instruction) -> bool:
    """Emit ``for k: nc_matmul`` as one call; False (and nothing) when it is no such loop."""
    dtype = _dtype(around, instruction)
    destination, stationary, moving = _operands(instruction)
    if loop.step != 1 or loop.index in _symbols(destination):
        return False
    if around.dtype_of(destination) != dtype or not _is_dense(destination):
        return False
    first = _accumulates_after_first(instruction, loop)
    if first is None or not _is_direct(around, stationary, dtype):
        return False
    contraction = _contraction(loop, stationary, moving)
    direct = not isinstance(moving, TileAccess) or _is_direct(around, moving, dtype)
    if contraction is None or not direct:
        return _emit_packed(around, loop, instruction, first)
    start = {loop.index: loop.low}
    f, indices = around.f, around.indices
    work, done = f.new_block(), f.new_block()
    # A loop without iterations leaves the destination alone.
    f.branch(f.icmp("sgt", indices.value(contraction.total), i64(0)), work, done)
    f.place(work)
    with indices.scope():
        _call(
            around,
            dtype,
            destination,
            replace(
                stationary,
                offset=substitute(stationary.offset, start),
                partitions=contraction.tile,
            ),
            replace(moving, offset=substitute(moving.offset, start)),
            contraction,
            i64(first),
        )
    f.jump(done)
    f.place(done)
    return True


_MOST_PACKED = 1 << 18
"""Elements of a moving operand that are packed for one call."""


def _emit_packed(around: Surroundings, loop: For, instruction: Instruction, first: int) -> bool:
    """``for k: nc_matmul`` with a moving operand of several runs: one call over packed panels.

    The runs of every iteration (the taps of a convolution) are copied side by side into panels that
    hold the contracted dimension of the whole loop.
    """
    destination, stationary, moving = _operands(instruction)
    dtype = _dtype(around, instruction)
    if not isinstance(moving, TileAccess) or loop.low != 0 or not isinstance(loop.high, int):
        return False
    rows, columns = stationary.partitions, _free_size(moving)
    step = _step(loop, stationary.offset)
    plain = isinstance(rows, int) and rows == moving.partitions and isinstance(columns, int)
    varying = {n for s in (*stationary.spans, *moving.spans) for n in (s.stride, s.count)}
    if not plain or step is None or any(loop.index in symbols(n) for n in varying):
        return False
    assert isinstance(rows, int) and isinstance(columns, int)
    if loop.high < 2:
        return False
    # As many iterations at a time as stay in the second-level cache.
    many = max(1, min(loop.high, _MOST_PACKED // max(1, rows * columns)))
    temps = Temporaries(around)
    panels = temps.add_panels(rows * many, columns, panel_columns(around.f.cpu, dtype), dtype)
    line = temps.add(rows, moving, dtype)
    for low in range(0, loop.high, many):
        count = min(many, loop.high - low)
        with temps.around.indices.scope():
            _pack(temps, panels, line, loop.index, moving, (low, low + count))
            at = substitute(stationary.offset, {loop.index: low})
            _call(
                temps.around,
                dtype,
                destination,
                replace(stationary, offset=at),
                panels.access,
                _Contraction(rows, rows * count, step, rows * panels.pitch),
                i64(1 if low else first),
                panels.step,
            )
    return True


def _pack(
    temps: Temporaries,
    panels: PackedPanels,
    line: TileAccess,
    index: str,
    moving: TileAccess,
    iterations: tuple[int, int],
) -> None:
    """Copy the moving operand of some iterations into panels, by way of dense rows."""
    f, indices = temps.around.f, temps.around.indices
    low, high = iterations
    rows = moving.partitions
    assert isinstance(rows, int)
    opened = f.begin_loop(i64(low), i64(high), runs=True)
    with indices.bound(index, opened.index):
        temps.run([Instruction("tensor_copy", (line,), (moving,))])
        for first, part in panels.parts(mul(add(symbol(index), -low), rows), rows):
            taken = replace(line, offset=first, spans=part.columns)
            temps.run([Instruction("tensor_copy", (part.access,), (taken,))])
    f.end_loop(opened)


def _symbols(access: Access) -> set[str]:
    found = set(symbols(access.offset))
    for span in access.spans:
        found |= symbols(span.stride) | symbols(span.count)
    if isinstance(access, TileAccess):
        found |= symbols(access.partitions)
    return found


def _accumulates_after_first(instruction: Instruction, loop: For) -> int | None:
    """Whether the first product adds to the destination (0 or 1), if all later ones do."""
    attribute = instruction.attr("accumulate", False)
    if attribute is True:
        return 1
    if not isinstance(attribute, Predicate):
        return None
    left, relation, right = attribute.left, attribute.relation, attribute.right
    if relation in ("<", "<="):
        left, relation, right = right, {"<": ">", "<=": ">="}[relation], left
    difference = add(left, scale(right, -1))
    if loop.index in symbols(add(difference, scale(symbol(loop.index), -1))):
        return None
    # k > low, k != low and k >= low + 1 say: all but the first.
    wanted = {">": 0, "!=": 0, ">=": -1}.get(relation)
    return 0 if substitute(difference, {loop.index: loop.low}) == wanted else None


def _contraction(
    loop: For, stationary: TileAccess, moving: TileAccess | HbmAccess
) -> _Contraction | None:
    """How the loop walks the contracted dimension; None when not in even steps."""
    rows = moving.partitions if isinstance(moving, TileAccess) else moving.spans[0].count
    if rows != stationary.partitions:
        return None
    free = moving.spans if isinstance(moving, TileAccess) else moving.spans[1:]
    fixed: list[Index] = [n for s in (*stationary.spans, *free) for n in (s.stride, s.count)]
    if isinstance(moving, HbmAccess):
        fixed.append(moving.spans[0].stride)
    if any(loop.index in symbols(n) for n in fixed):
        return None
    steps = [_step(loop, access.offset) for access in (stationary, moving)]
    if steps[0] is None or steps[1] is None:
        return None
    trips = add(loop.high, scale(loop.low, -1))
    if loop.index not in symbols(rows):
        return _Contraction(rows, mul(rows, trips), steps[0], steps[1])
    whole = _last_may_be_short(loop, rows)
    if whole is None:
        return None
    tile, count = whole
    left = add(count, scale(loop.low, -tile) if isinstance(loop.low, int) else mul(loop.low, -tile))
    return _Contraction(tile, minimum(left, scale(trips, tile)), steps[0], steps[1])


def _step(loop: For, offset: Index) -> Index | None:
    """What an offset grows by from one iteration to the next; None when that differs."""
    following = substitute(offset, {loop.index: add(symbol(loop.index), 1)})
    step = add(following, scale(offset, -1))
    return None if loop.index in symbols(step) else step


def _last_may_be_short(loop: For, rows: Index) -> tuple[int, Index] | None:
    """(t, n) when ``rows`` is ``min(t, n - t·k)``."""
    if isinstance(rows, int) or rows.const or len(rows.terms) != 1:
        return None
    atom, coefficient = rows.terms[0]
    if coefficient != 1 or not isinstance(atom, Call) or atom.op != "min":
        return None
    tile, rest = atom.args
    if not isinstance(tile, int):
        return None
    count = add(rest, scale(symbol(loop.index), tile))
    return None if loop.index in symbols(count) else (tile, count)
