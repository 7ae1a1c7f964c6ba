"""Turns a kernel's body into the nodes that are emitted: row groups, single instructions, loops.

A row group is a maximal run of partition-local instructions over the same partitions. The plan
also decides where tiles live: nowhere (registers), one row (intermediate of one group), or all
rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from trnx.compiler.host.interchange import by_rows
from trnx.compiler.host.moves import is_transposing
from trnx.compiler.host.nodes import (
    ALL_ROWS,
    ONE_ROW,
    Body,
    GroupNode,
    InstructionNode,
    LoopNode,
    Node,
    RegisterNode,
)
from trnx.compiler.host.phases import (
    APART,
    SAME_BASE,
    Aliases,
    same_place,
    schedule,
)
from trnx.compiler.host.rowops import (
    ELEMENTWISE,
    SEQUENTIAL,
    RowOp,
    Walk,
    overlaps_itself,
    partitions,
    row_op,
)
from trnx.compiler.host.types import DType
from trnx.compiler.tile.analysis import accesses
from trnx.compiler.tile.expr import add, scale
from trnx.compiler.tile.ir import (
    Access,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Statement,
    TileAccess,
    While,
    walk,
)


class Planner:
    """Plans one kernel.

    Args:
        kernel: the kernel.
        dtype_of: element type of an access.
        aliases: which HBM parameters may share memory.
    """

    def __init__(
        self, kernel: Kernel, dtype_of: Callable[[Access], DType], aliases: Aliases
    ) -> None:
        self.kernel = kernel
        self._dtype_of = dtype_of
        self._aliases = aliases
        self._uses = Counter(name for s in walk(kernel.body) for name in _tiles_used(s))

    def plan(self) -> Body:
        """The planned body of the kernel."""
        return self._body(self.kernel.body, False)

    def _body(self, statements: Sequence[Statement], handed_over: bool) -> Body:
        own = [s.tile for s in statements if isinstance(s, Alloc)]
        names = {tile.name for tile in own}
        nodes: list[Node] = []
        pending: list[RowOp] = []
        stored: dict[str, str] = {}

        def close() -> None:
            if pending:
                nodes.append(self._group(pending, names, stored))
                pending.clear()

        for statement in statements:
            if isinstance(statement, Alloc):
                continue
            if isinstance(statement, Instruction) and self._is_row_local(statement):
                op = row_op(len(pending), statement, self._dtype_of)
                if pending and not self._joins(pending, op):
                    close()
                    op = row_op(0, statement, self._dtype_of)
                pending.append(op)
                continue
            close()
            stored.update(dict.fromkeys(_tiles_used(statement), ALL_ROWS))
            if isinstance(statement, Instruction):
                nodes.append(InstructionNode(statement))
            elif isinstance(statement, For | While):
                for inner in walk(statement.body):
                    stored.update(dict.fromkeys(_tiles_used(inner), ALL_ROWS))
                parallel = isinstance(statement, For) and statement.parallel
                body = self._body(statement.body, handed_over or parallel)
                nodes.append(LoopNode(statement, body))
            else:
                nodes.append(RegisterNode(statement))
        close()
        tiles = tuple((tile, stored[tile.name]) for tile in own if tile.name in stored)
        return Body(tuple(by_rows(nodes, self._aliases, handed_over)), tiles)

    def _group(self, ops: Sequence[RowOp], own: set[str], stored: dict[str, str]) -> GroupNode:
        inside = Counter(name for op in ops for name in _tiles_used(op.instruction))
        outside = {name for name, n in inside.items() if name not in own or self._uses[name] != n}
        planned = schedule(ops, outside, self._aliases)
        stored.update(dict.fromkeys(outside, ALL_ROWS))
        stored.update(dict.fromkeys(planned.stored - outside, ONE_ROW))
        return GroupNode(partitions(ops[0].instruction), tuple(ops), planned)

    def _is_row_local(self, instruction: Instruction) -> bool:
        if instruction.op not in ELEMENTWISE | SEQUENTIAL:
            return False
        if is_transposing(instruction, self._dtype_of):
            return False
        return not overlaps_itself(row_op(0, instruction, self._dtype_of))

    def _joins(self, group: Sequence[RowOp], op: RowOp) -> bool:
        """Whether ``op`` may run row by row together with ``group``."""
        if partitions(group[0].instruction) != partitions(op.instruction):
            return False
        return all(self._compatible(other, op) for other in group)

    def _compatible(self, first: RowOp, second: RowOp) -> bool:
        pairs = [(w, r, True) for w, _ in first.results for r in second.reads]
        pairs += [(w, o, True) for w, _ in first.results for o, _ in second.results]
        pairs += [(r, w, True) for r in first.reads for w, _ in second.results]
        return all(self._row_local(a, b) for a, b, _ in pairs)

    def _row_local(self, a: Walk, b: Walk) -> bool:
        """Whether rows of ``a`` meet only the same row of ``b`` (one of them writes)."""
        if isinstance(a.access, TileAccess) and isinstance(b.access, TileAccess):
            return a.memory != b.memory or a.access.start == b.access.start
        if isinstance(a.access, HbmAccess) and isinstance(b.access, HbmAccess):
            kind = self._aliases(a.memory, b.memory)
            if kind == APART:
                return True
            return kind == SAME_BASE and rows_apart(a.access, b.access)
        return True


def rows_apart(a: HbmAccess, b: HbmAccess) -> bool:
    """Whether two accesses from one base, one a write, meet at most in the same row and place.

    True for equal accesses (what is written has no element twice, so rows do not overlap), and
    for accesses that share no element.
    """
    if a.index is not None or b.index is not None or not a.spans or not b.spans:
        return False
    if same_place(a, b):
        return a.spans[0].stride != 0
    step = a.spans[0].stride
    if step != b.spans[0].stride or not isinstance(step, int) or step <= 0:
        return False
    reach_a, reach_b = _reach(a), _reach(b)
    gap = add(b.offset, scale(a.offset, -1))
    if reach_a is None or reach_b is None or not isinstance(gap, int):
        return False
    low, high = (reach_a, gap) if gap > 0 else (reach_b, -gap)
    upper = reach_b if gap > 0 else reach_a
    return low < high and high + upper < step


def _reach(access: HbmAccess) -> int | None:
    total = 0
    for span in access.spans[1:]:
        if not isinstance(span.stride, int) or not isinstance(span.count, int) or span.stride < 0:
            return None
        total += span.stride * (span.count - 1)
    return total


def _tiles_used(statement: Statement) -> set[str]:
    """Tiles a statement reads or writes (not those inside a loop's body)."""
    return {a.tile for a, _ in accesses(statement) if isinstance(a, TileAccess)}
