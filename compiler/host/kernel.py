"""Emits one kernel: its function, and one more per parallel loop.

A kernel is ``void kernel(ptr buffers, ptr registers)`` with an address per HBM parameter and an
i64 per register argument. Tiles live in a scratch block of the calling thread. The body of a
parallel loop becomes ``void body(ptr context, i64 first, i64 last, ptr scratch)`` over iteration
numbers, so that the thread pool can hand out ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trnx.compiler.host.across import emit_across
from trnx.compiler.host.cost import PARALLEL_CYCLES, body_cost
from trnx.compiler.host.emit import I64, PTR, Function, Module, Value, i64
from trnx.compiler.host.index import Indices
from trnx.compiler.host.layout import panel_layouts
from trnx.compiler.host.memory import TileMemory, byte_address, row_pitch
from trnx.compiler.host.phases import APART, Aliases
from trnx.compiler.host.plan import (
    ALL_ROWS,
    Body,
    GroupNode,
    InstructionNode,
    LoopNode,
    Planner,
    RegisterNode,
)
from trnx.compiler.host.rowgroup import RowGroup, Surroundings
from trnx.compiler.host.staging import elide_staging
from trnx.compiler.host.types import DType, convert, storage
from trnx.compiler.targets import TARGETS
from trnx.compiler.tile.analysis import accesses, declared_tiles, written_registers
from trnx.compiler.tile.expr import Expr, symbols
from trnx.compiler.tile.ir import (
    Access,
    For,
    HbmAccess,
    Kernel,
    RegisterLoad,
    RegisterMove,
    TileAccess,
    While,
    tiles,
    walk,
)
from trnx.core.dtypes import int64

SCRATCH = "trnx_scratch"
PARALLEL = "trnx_parallel"


@dataclass(slots=True)
class _Frame:
    """The function being written, and the symbols and tiles in scope."""

    f: Function
    indices: Indices
    params: dict[str, Value]
    tiles: dict[str, TileMemory] = field(default_factory=dict)
    scratch: Value = field(default_factory=lambda: Value(PTR, "null"))
    used: int = 0
    peak: int = 0
    slots: dict[str, Value] = field(default_factory=dict)
    nested: bool = False


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
        self._bodies = 0

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
        frame = _Frame(f, Indices(f, values, slots), params, slots=slots)
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
            isinstance(node, LoopNode)
            and isinstance(node.statement, For)
            and self._splits(node.statement)
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

    def _emit_body(self, frame: _Frame, body: Body) -> None:
        mark, outer = frame.used, dict(frame.tiles)
        for tile, kind in body.tiles:
            layout = self._panels.get(tile.name)
            if layout is not None:
                place = self._allocate(frame, 1, layout.size)
                frame.tiles[tile.name] = TileMemory(place.base, layout.pitch, layout.step)
                continue
            rows = tile.shape[0] if kind == ALL_ROWS else 1
            frame.tiles[tile.name] = self._allocate(frame, rows, tile.free_bytes)
        for node in body.nodes:
            if isinstance(node, GroupNode):
                around = self._around(frame)
                RowGroup(around, node.schedule).emit(node.partitions)
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

    def _around(self, frame: _Frame) -> Surroundings:
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

    def _allocate(self, frame: _Frame, rows: int, row_bytes: int) -> TileMemory:
        pitch = row_pitch(row_bytes, rows)
        base = byte_address(frame.f, frame.scratch, i64(0), 1, i64(frame.used))
        # Half a vector line of slack lets a kernel read past the last element of a row.
        frame.used += rows * pitch + 64
        frame.peak = max(frame.peak, frame.used)
        return TileMemory(base, pitch if rows > 1 else 0)

    def _emit_register(self, frame: _Frame, statement: RegisterLoad | RegisterMove) -> None:
        f = frame.f
        with frame.indices.scope():
            if isinstance(statement, RegisterMove):
                value = frame.indices.value(statement.value)
            else:
                value = self._load_register(frame, statement.access)
            f.store(value, frame.slots[statement.register])

    def _load_register(self, frame: _Frame, access: Access) -> Value:
        f, dtype = frame.f, self.dtype_of(access)
        offset = frame.indices.value(access.offset)
        if isinstance(access, HbmAccess):
            base, row = frame.params[access.buffer], i64(0)
        else:
            memory = frame.tiles[access.tile]
            base, row = memory.base, i64(access.start * memory.pitch)
        place = byte_address(f, base, offset, dtype.itemsize, row)
        return convert(f, f.load(storage(dtype), place), dtype, int64)

    def _emit_while(self, frame: _Frame, node: LoopNode, statement: While) -> None:
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

    def _emit_for(self, frame: _Frame, node: LoopNode, loop: For) -> None:
        if not frame.nested and self._splits(loop):
            self._emit_parallel(frame, node, loop)
            return
        f, indices = frame.f, frame.indices
        low, high = indices.value(loop.low), indices.value(loop.high)
        runs = isinstance(loop.low, int) and isinstance(loop.high, int) and loop.low < loop.high
        opened = f.begin_loop(low, high, loop.step, runs=runs)
        with indices.bound(loop.index, opened.index):
            self._emit_body(frame, node.body)
        f.end_loop(opened)

    # Parallel loops ---------------------------------------------------------------------------

    def _splits(self, loop: For) -> bool:
        """Whether the iterations of a loop go to the thread pool (when there is enough work)."""
        return loop.parallel and self._threads > 1 and not written_registers(loop.body)

    def _emit_parallel(self, frame: _Frame, node: LoopNode, loop: For) -> None:
        f, indices = frame.f, frame.indices
        low, high = indices.value(loop.low), indices.value(loop.high)
        span = f.binary("sub nsw", high, low)
        trips = span
        if loop.step != 1:
            trips = f.binary("sdiv", f.binary("add nsw", span, i64(loop.step - 1)), i64(loop.step))
        shared = sorted(_free_tiles(loop) & set(frame.tiles))
        known = {name: v for name, v in indices.snapshot().items() if name in _free_symbols(loop)}
        captured = [*frame.params.values(), *(frame.tiles[t].base for t in shared)]
        words = len(captured) + len(known) + 1
        context = f.stack(I64, words)
        for k, value in enumerate([*captured, *known.values(), low]):
            f.store(value, f.pointer(context, i64(k), I64))
        name = f"{self.symbol}_{self._bodies}"
        self._bodies += 1
        body_bytes = self._emit_part(name, frame, node, loop, shared, list(known))
        own = byte_address(f, frame.scratch, i64(0), 1, i64(frame.used))
        frame.peak = max(frame.peak, frame.used + body_bytes)
        threshold = i64(PARALLEL_CYCLES)
        with indices.scope():
            cost = indices.value(body_cost(loop, self._dtypes))
            work = f.binary("mul", trips, cost)
        together, alone, after = f.new_block(), f.new_block(), f.new_block()
        f.branch(f.icmp("sgt", work, threshold), together, alone)
        f.place(together)
        limit = i64(self._threads)
        body = Value(PTR, f"@{name}")
        f.call_void(PARALLEL, body, context, trips, i64(body_bytes), own, limit)
        f.jump(after)
        f.place(alone)
        f.line(f"call void @{name}({context}, {i64(0)}, {trips}, {own})")
        f.jump(after)
        f.place(after)

    def _emit_part(
        self,
        name: str,
        outer: _Frame,
        node: LoopNode,
        loop: For,
        shared: list[str],
        known: list[str],
    ) -> int:
        """The function of a parallel loop's body; returns the scratch bytes it needs."""
        arguments = [(PTR, "context"), (I64, "first"), (I64, "last"), (PTR, "scratch")]
        f = Function(self.module, name, "void", arguments, internal=True)
        context = f.argument("context")
        position = 0

        def next_word(kind: str) -> Value:
            nonlocal position
            position += 1
            return f.load(kind, f.pointer(context, i64(position - 1), I64), 8)

        params = {param: next_word(PTR) for param in outer.params}
        bases = {tile: next_word(PTR) for tile in shared}
        values = {symbol: next_word(I64) for symbol in known}
        low = next_word(I64)
        held = {t: replace(outer.tiles[t], base=bases[t]) for t in shared}
        frame = _Frame(f, Indices(f, values), params, held, f.argument("scratch"), nested=True)
        opened = f.begin_loop(f.argument("first"), f.argument("last"))
        index = opened.index
        if loop.step != 1:
            index = f.binary("mul nsw", index, i64(loop.step))
        index = f.binary("add nsw", index, low)
        with frame.indices.bound(loop.index, index):
            self._emit_body(frame, node.body)
        f.end_loop(opened)
        f.finish()
        return frame.peak


def _free_tiles(loop: For) -> set[str]:
    used = {a.tile for s in walk(loop.body) for a, _ in accesses(s) if isinstance(a, TileAccess)}
    return used - declared_tiles(loop.body)


def _free_symbols(loop: For) -> set[str]:
    """Symbols that expressions inside a loop may mention."""
    names: set[str] = set()

    def visit(value: object) -> None:
        if isinstance(value, Expr):
            names.update(symbols(value))
        elif isinstance(value, tuple):
            for part in value:
                visit(part)
        elif hasattr(value, "__dataclass_fields__"):
            for part in value.__dataclass_fields__:
                visit(getattr(value, part))

    visit(loop.body)
    return names
