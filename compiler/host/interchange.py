"""Loops of row groups, turned inside out: the row outside, the loop inside.

A row that is too long for a tile is walked in pieces by a loop whose body is a row group. Done
piece by piece for all rows, every piece is a jump to another page; done row by row, memory is read
in one run and what later loops of the same row read again is still in the cache. Both orders give
the same values when rows never meet: no row reads or writes what another one writes, in any
iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trnx.compiler.host.nodes import GroupNode, LoopNode, Node, RowsNode
from trnx.compiler.host.phases import APART, Aliases
from trnx.compiler.host.rowops import RowOp, Walk
from trnx.compiler.tile.expr import Bounds, Call, Expr, Index, add, bounds, scale, symbols
from trnx.compiler.tile.ir import For, HbmAccess, TileAccess


@dataclass(frozen=True, slots=True)
class _Placed:
    """An operand with the loops around it, inside the row."""

    walk: Walk
    written: bool
    loops: tuple[For, ...]


def by_rows(nodes: Sequence[Node], aliases: Aliases, handed_over: bool) -> list[Node]:
    """The nodes with runs of groups and loops of groups over the same rows made one node.

    Args:
        nodes: the nodes of one body.
        aliases: which HBM parameters may share memory.
        handed_over: whether a loop around these nodes goes to the thread pool; if not, parallel
            loops stay as they are so that they can.
    """
    result: list[Node] = []
    run: list[GroupNode | LoopNode | RowsNode] = []

    def close() -> None:
        if any(isinstance(node, LoopNode) for node in run) and _rows_never_meet(run, aliases):
            rows = rows_of(run[0], True)
            assert rows is not None
            result.append(RowsNode(rows, tuple(run)))
        else:
            result.extend(run)
        run.clear()

    for node in nodes:
        rows = rows_of(node, handed_over)
        if rows is None or (run and rows != rows_of(run[0], handed_over)):
            close()
        if rows is None:
            result.append(node)
        else:
            assert isinstance(node, GroupNode | LoopNode | RowsNode)
            run.append(node)
    close()
    return result


def rows_of(node: Node, handed_over: bool) -> Index | None:
    """The rows that everything in a node works on; None when there is no such number, or one."""
    if isinstance(node, RowsNode):
        return node.partitions
    if isinstance(node, GroupNode):
        return None if node.partitions == 1 else node.partitions
    if not isinstance(node, LoopNode) or not isinstance(node.statement, For):
        return None
    loop = node.statement
    if loop.parallel and not handed_over:
        return None
    found = {rows_of(inner, handed_over) for inner in node.body.nodes}
    if len(found) != 1:
        return None
    (rows,) = found
    return None if rows is None or loop.index in symbols(rows) else rows


def _rows_never_meet(nodes: Sequence[Node], aliases: Aliases) -> bool:
    tiles: dict[str, int] = {}
    transfers: list[_Placed] = []
    for placed in _operands(nodes, ()):
        access = placed.walk.access
        if isinstance(access, TileAccess):
            if tiles.setdefault(access.tile, access.start) != access.start:
                return False
        else:
            transfers.append(placed)
    return all(
        _apart(a, b)
        for k, a in enumerate(transfers)
        for b in transfers[k:]
        if (a.written or b.written) and aliases(a.walk.memory, b.walk.memory) != APART
    )


def _operands(nodes: Sequence[Node], loops: tuple[For, ...]) -> Iterator[_Placed]:
    for node in nodes:
        if isinstance(node, GroupNode):
            for op in node.ops:
                yield from _of(op, loops)
        elif isinstance(node, LoopNode):
            assert isinstance(node.statement, For)
            yield from _operands(node.body.nodes, (*loops, node.statement))
        elif isinstance(node, RowsNode):
            yield from _operands(node.nodes, loops)


def _of(op: RowOp, loops: tuple[For, ...]) -> Iterator[_Placed]:
    for walk in op.reads:
        yield _Placed(walk, False, loops)
    for walk, _ in op.results:
        yield _Placed(walk, True, loops)


def _apart(a: _Placed, b: _Placed) -> bool:
    """Whether a row of ``a`` never meets another row of ``b``, whatever the inner loops are at.

    Both have to cross memory in rows of one distance, and all they touch of a row has to lie within
    that distance.
    """
    first, second = a.walk.access, b.walk.access
    assert isinstance(first, HbmAccess) and isinstance(second, HbmAccess)
    if first.index is not None or second.index is not None:
        return False
    if not first.spans or not second.spans:
        return False
    step = first.spans[0].stride
    if step != second.spans[0].stride or not isinstance(step, int) or step <= 0:
        return False
    reach_a, reach_b = _extent(a), _extent(b)
    if reach_a is None or reach_b is None:
        return False
    outer_a, low_a, high_a = reach_a
    outer_b, low_b, high_b = reach_b
    gap = add(outer_b, scale(outer_a, -1))
    if not isinstance(gap, int):
        return False
    return max(high_a, high_b + gap) - min(low_a, low_b + gap) < step


def _extent(placed: _Placed) -> tuple[Index, int, int] | None:
    """The part of the offset that is the same in all inner iterations, and the first and the last
    element of a row relative to it.
    """
    access = placed.walk.access
    assert isinstance(access, HbmAccess)
    inner = {loop.index for loop in placed.loops}
    fixed, moving = _split(access.offset, inner)
    env: dict[str, Bounds] = {}
    for loop in placed.loops:
        if not isinstance(loop.low, int) or not isinstance(loop.high, int):
            return None
        env[loop.index] = (loop.low, max(loop.low, loop.high - 1))
    low = bounds(moving, env)[0]
    # The last element, once for every way to bound counts of min(tile, n - tile·j).
    lasts = [moving]
    for span in access.spans[1:]:
        if not isinstance(span.stride, int) or span.stride < 0:
            return None
        lasts = [
            add(last, scale(add(count, -1), span.stride))
            for last in lasts
            for count in _at_most(span.count)
        ]
    highs = [high for last in lasts if (high := bounds(last, env)[1]) is not None]
    return None if low is None or not highs else (fixed, low, min(highs))


def _at_most(count: Index) -> tuple[Index, ...]:
    """Expressions none of which is below ``count``."""
    if isinstance(count, int) or count.const or len(count.terms) != 1:
        return (count,)
    atom, coefficient = count.terms[0]
    if coefficient != 1 or not isinstance(atom, Call) or atom.op != "min":
        return (count,)
    return atom.args


def _split(offset: Index, inner: set[str]) -> tuple[Index, Index]:
    """An offset as a part without and a part with the inner loop indices."""
    if isinstance(offset, int):
        return offset, 0
    fixed: Index = offset.const
    moving: Index = 0
    for atom, coefficient in offset.terms:
        term = Expr(0, ((atom, coefficient),))
        if inner.isdisjoint(symbols(term)):
            fixed = add(fixed, term)
        else:
            moving = add(moving, term)
    return fixed, moving
