"""Emits one kernel: its function, and one more per parallel loop.

A kernel is ``void kernel(ptr buffers, ptr registers)`` with an address per HBM parameter and an
i64 per register argument. Tiles live in a scratch block of the calling thread. The body of a
parallel loop becomes ``void body(ptr context, i64 first, i64 last, ptr scratch)`` over iteration
numbers, so that the thread pool can hand out ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from trnx.compiler.host.across import emit_across
from trnx.compiler.host.cost import body_cost, instruction_cost, sum_of
from trnx.compiler.host.emit import I64, PTR, Function, Module, Value, i64
from trnx.compiler.host.index import Indices
from trnx.compiler.host.layout import panel_layouts
from trnx.compiler.host.memory import TileMemory, byte_address, row_pitch
from trnx.compiler.host.nodes import (
    ALL_ROWS,
    ONE_ROW,
    Body,
    GroupNode,
    InstructionNode,
    LoopNode,
    Node,
    RegisterNode,
    RowsNode,
)
from trnx.compiler.host.phases import APART, Aliases
from trnx.compiler.host.plan import Planner
from trnx.compiler.host.product import emit_product_loop
from trnx.compiler.host.region import Frame, Region, emit_region
from trnx.compiler.host.rowgroup import RowGroup
from trnx.compiler.host.staging import elide_staging
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.types import DType, convert, storage
from trnx.compiler.targets import TARGETS
from trnx.compiler.tile.analysis import accesses, declared_tiles, written_registers
from trnx.compiler.tile.expr import add, floordiv, maximum, scale
from trnx.compiler.tile.ir import (
    Access,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    RegisterLoad,
    RegisterMove,
    Statement,
    TileAccess,
    While,
    tiles,
    walk,
)
from trnx.core.dtypes import int64

SCRATCH = "trnx_scratch"


class KernelEmitter:
    """Emits one kernel into a module.

    Args:
        module: the module.
        kernel: the kernel.
        symbol: name of its function.
        target: row of ``targets.TARGETS`` whose arithmetic rules apply.
        aliases: which parameters may share memory.
        threads: how many threads a parallel loop may use.
    """

    def __init__(
        self,
        module: Module,
        kernel: Kernel,
        symbol: str,
        target: str,
        aliases: Aliases,
        threads: int,
    ) -> None:
        self.module, self.symbol = module, symbol
        self.native = TARGETS[target].native_f64
        self._aliases = aliases
        self._threads = threads
        self._dtypes: dict[str, DType] = {p.name: p.dtype for p in kernel.params}
        declared = tiles(kernel)
        self._dtypes.update({name: tile.dtype for name, tile in declared.items()})
        self._shapes = {name: tile.shape for name, tile in declared.items()}
        written = [p.name for p in kernel.params if p.role != "in"]

        def read_only(param: str) -> bool:
            return all(aliases(param, other) == APART for other in written)

        in_place = elide_staging(kernel, self.dtype_of, read_only)
        self.kernel, self._panels = panel_layouts(in_place, module.cpu)
        self._regions = 0

    def dtype_of(self, access: Access) -> DType:
        """Element type of a tile or HBM access."""
        name = access.tile if isinstance(access, TileAccess) else access.buffer
        return self._dtypes[name]

    def emit(self) -> None:
        """Add the kernel's functions to the module."""
        body = Planner(self.kernel, self.dtype_of, self._aliases).plan()
        arguments = [(PTR, "buffers"), (PTR, "registers")]
        f = Function(self.module, self.symbol, "void", arguments, self._attributes(body))
        params = {}
        for k, param in enumerate(self.kernel.params):
            params[param.name] = f.load(PTR, f.pointer(f.argument("buffers"), i64(k), PTR))
        values = {}
        for k, name in enumerate(self.kernel.registers):
            values[name] = f.load(I64, f.pointer(f.argument("registers"), i64(k), I64))
        slots = self._slots(f, values, written_registers(self.kernel.body))
        frame = Frame(f, Indices(f, values, slots), params, slots=slots)
        frame.scratch = f.reserve(PTR)
        self._emit_body(frame, body)
        if frame.peak:
            f.fill(frame.scratch, f"call {PTR} @{SCRATCH}({i64(frame.peak)})")
            self.module.declare(SCRATCH, PTR, [I64])
        else:
            f.fill(frame.scratch, "getelementptr i8, ptr null, i64 0")
        f.finish()

    def _attributes(self, body: Body) -> str:
        """Quick code generation for a function that only hands its loops to the thread pool."""
        hands_over = all(
            isinstance(node, LoopNode) and self._loop_region(node) is not None
            for node in body.nodes
        )
        return "nounwind noinline optnone" if hands_over else "nounwind"

    def _slots(self, f: Function, values: dict[str, Value], written: set[str]) -> dict[str, Value]:
        """Stack slots for the registers the kernel assigns, holding their first values."""
        slots = {}
        for name in sorted(written):
            slots[name] = f.stack(I64)
            f.store(values.pop(name, i64(0)), slots[name])
        return slots

    # Statements -------------------------------------------------------------------------------

    def _emit_body(self, frame: Frame, body: Body) -> None:
        mark, outer = frame.used, dict(frame.tiles)
        self._place_tiles(frame, body)
        for node in body.nodes:
            if isinstance(node, GroupNode):
                self._emit_group(frame, body, node)
            elif isinstance(node, RowsNode):
                self._emit_rows(frame, node)
            elif isinstance(node, InstructionNode):
                used = frame.used
                with frame.indices.scope():
                    emit_across(self._around(frame), node.instruction)
                frame.used = used
            elif isinstance(node, RegisterNode):
                self._emit_register(frame, node.statement)
            elif isinstance(node.statement, For):
                self._emit_for(frame, node, node.statement)
            else:
                self._emit_while(frame, node, node.statement)
        frame.used, frame.tiles = mark, outer

    def _place_tiles(self, frame: Frame, body: Body) -> None:
        """Memory for the tiles that a body brings into scope."""
        for tile, kind in body.tiles:
            layout = self._panels.get(tile.name)
            if layout is not None:
                place = self._allocate(frame, 1, layout.size)
                frame.tiles[tile.name] = TileMemory(place.base, layout.pitch, layout.step)
                continue
            rows = tile.shape[0] if kind == ALL_ROWS else 1
            frame.tiles[tile.name] = self._allocate(frame, rows, tile.free_bytes)

    def _emit_rows(self, frame: Frame, node: RowsNode) -> None:
        """Everything of one row, then the next row."""
        f = frame.f
        runs = isinstance(node.partitions, int)
        loop = f.begin_loop(i64(0), frame.indices.value(node.partitions), runs=runs)
        with frame.indices.scope():
            self._emit_in_row(frame, node.nodes, loop.index)
        f.end_loop(loop)

    def _emit_in_row(self, frame: Frame, nodes: Sequence[Node], row: Value) -> None:
        for node in nodes:
            if isinstance(node, GroupNode):
                with frame.indices.scope():
                    RowGroup(self._around(frame), node.schedule, in_pieces=True).emit_row(row)
            elif isinstance(node, RowsNode):
                self._emit_in_row(frame, node.nodes, row)
            else:
                assert isinstance(node, LoopNode) and isinstance(node.statement, For)
                with self._opened(frame, node.statement):
                    mark, outer = frame.used, dict(frame.tiles)
                    self._place_tiles(frame, node.body)
                    self._emit_in_row(frame, node.body.nodes, row)
                    frame.used, frame.tiles = mark, outer

    @contextmanager
    def _opened(self, frame: Frame, loop: For) -> Iterator[None]:
        """Code inside a counted loop."""
        f, indices = frame.f, frame.indices
        low, high = indices.value(loop.low), indices.value(loop.high)
        runs = isinstance(loop.low, int) and isinstance(loop.high, int) and loop.low < loop.high
        opened = f.begin_loop(low, high, loop.step, runs=runs)
        with indices.bound(loop.index, opened.index):
            yield
        f.end_loop(opened)

    def _around(self, frame: Frame) -> Surroundings:
        def allocate(rows: int, row_bytes: int) -> TileMemory:
            return self._allocate(frame, rows, row_bytes)

        return Surroundings(
            frame.f,
            frame.indices,
            frame.tiles,
            frame.params,
            self.dtype_of,
            self.native,
            self._shapes,
            allocate,
        )

    def _allocate(self, frame: Frame, rows: int, row_bytes: int) -> TileMemory:
        pitch = row_pitch(row_bytes, rows)
        base = byte_address(frame.f, frame.scratch, i64(0), 1, i64(frame.used))
        # Half a vector line of slack lets a kernel read past the last element of a row.
        frame.used += rows * pitch + 64
        frame.peak = max(frame.peak, frame.used)
        return TileMemory(base, pitch if rows > 1 else 0)

    def _emit_register(self, frame: Frame, statement: RegisterLoad | RegisterMove) -> None:
        f = frame.f
        with frame.indices.scope():
            if isinstance(statement, RegisterMove):
                value = frame.indices.value(statement.value)
            else:
                value = self._load_register(frame, statement.access)
            f.store(value, frame.slots[statement.register])

    def _load_register(self, frame: Frame, access: Access) -> Value:
        f, dtype = frame.f, self.dtype_of(access)
        offset = frame.indices.value(access.offset)
        if isinstance(access, HbmAccess):
            base, row = frame.params[access.buffer], i64(0)
        else:
            memory = frame.tiles[access.tile]
            base, row = memory.base, i64(access.start * memory.pitch)
        place = byte_address(f, base, offset, dtype.itemsize, row)
        return convert(f, f.load(storage(dtype), place), dtype, int64)

    def _emit_while(self, frame: Frame, node: LoopNode, statement: While) -> None:
        f = frame.f
        head, inside, leave = f.new_block("while"), f.new_block(), f.new_block()
        f.jump(head)
        f.place(head)
        with frame.indices.scope():
            again = f.icmp("ne", f.load(I64, frame.slots[statement.condition]), i64(0))
            f.branch(again, inside, leave)
            f.place(inside)
            self._emit_body(frame, node.body)
            f.jump(head)
        f.place(leave)

    def _emit_for(self, frame: Frame, node: LoopNode, loop: For) -> None:
        region = None if frame.nested else self._loop_region(node)
        if region is not None:
            self._hand_over(frame, region)
            return
        product = _only_product(node.body)
        if product is not None and emit_product_loop(self._around(frame), loop, product):
            return
        with self._opened(frame, loop):
            self._emit_body(frame, node.body)

    # Parallel regions -------------------------------------------------------------------------

    def _hand_over(self, frame: Frame, region: Region) -> None:
        name = f"{self.symbol}_{self._regions}"
        self._regions += 1
        emit_region(self.module, frame, region, name, self._threads)

    def _loop_region(self, node: LoopNode) -> Region | None:
        """A parallel loop as a region; None when it runs inline."""
        loop = node.statement
        if not isinstance(loop, For) or not loop.parallel or self._threads < 2:
            return None
        if written_registers(loop.body):
            return None
        span = add(loop.high, scale(loop.low, -1))
        trips = maximum(0, floordiv(add(span, loop.step - 1), loop.step))

        def emit(frame: Frame, first: Value, last: Value) -> None:
            f, indices = frame.f, frame.indices
            opened = f.begin_loop(first, last)
            index = opened.index
            if loop.step != 1:
                index = f.binary("mul nsw", index, i64(loop.step))
            index = f.binary("add nsw", index, indices.value(loop.low))
            with indices.bound(loop.index, index):
                self._emit_body(frame, node.body)
            f.end_loop(opened)

        used = _tiles_in(loop.body) - declared_tiles(loop.body)
        cost = body_cost(loop, self._dtypes)
        region = Region(trips, cost, loop, frozenset(used), emit)
        return None if region.is_small else region

    def _emit_group(self, frame: Frame, body: Body, node: GroupNode) -> None:
        region = None if frame.nested else self._group_region(body, node)
        if region is None:
            RowGroup(self._around(frame), node.schedule).emit(node.partitions)
        else:
            self._hand_over(frame, region)

    def _group_region(self, body: Body, node: GroupNode) -> Region | None:
        """The rows of a large row group outside all loops as a region; None to run inline."""
        instructions = tuple(op.instruction for op in node.ops)
        cost = sum_of(instruction_cost(i, self._dtypes) for i in instructions)
        rows = node.partitions
        if self._threads < 2 or not isinstance(cost, int) or not isinstance(rows, int):
            return None
        if rows < 2 or any(not _rows_are_apart(i) for i in instructions):
            return None
        private = [t for t, kind in body.tiles if kind == ONE_ROW]
        used = _tiles_in(instructions)
        mine = [t for t in private if t.name in used]

        def emit(part: Frame, first: Value, last: Value) -> None:
            for tile in mine:
                part.tiles[tile.name] = self._allocate(part, 1, tile.free_bytes)
            RowGroup(self._around(part), node.schedule).emit_rows(first, last)

        shared = frozenset(used - {t.name for t in mine})
        region = Region(rows, max(1, cost // rows), instructions, shared, emit)
        return None if region.is_small else region


def _only_product(body: Body) -> Instruction | None:
    """The matrix product that a loop's body consists of."""
    if len(body.nodes) != 1 or body.tiles:
        return None
    node = body.nodes[0]
    if isinstance(node, InstructionNode) and node.instruction.op == "nc_matmul":
        return node.instruction
    return None


def _rows_are_apart(instruction: Instruction) -> bool:
    """Whether no two rows of an instruction write one HBM element."""
    target = instruction.outs[0]
    if not isinstance(target, HbmAccess):
        return True
    return target.index is None and bool(target.spans) and target.spans[0].stride != 0


def _tiles_in(body: Iterable[Statement]) -> set[str]:
    return {
        access.tile
        for statement in walk(tuple(body))
        for access, _ in accesses(statement)
        if isinstance(access, TileAccess)
    }
