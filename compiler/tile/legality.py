"""Whether a tile program obeys the hardware, checked before anything runs.

Every rule is a numbered constraint of ``CONSTRAINTS``; a violation raises one ``TileError`` whose
text starts with the number and shows the instruction, the tiles' shapes and memories, the user's
line and a remedy. Rules marked ``hardware`` do not apply to the ``cpu`` target. Rules about one
instruction are in ``rules``; this module walks the program and checks structure and scope.

Sources: the public ``nki.isa`` reference and the NeuronCore v2-v4 architecture guides; numbers
come from ``targets``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnx.compiler.targets import Target
from trnx.compiler.targets import target as find_target
from trnx.compiler.tile import isa
from trnx.compiler.tile.analysis import Env, index_bounds, kernel_env, trip_count
from trnx.compiler.tile.constraints import CONSTRAINTS, Context, fail
from trnx.compiler.tile.expr import Expr, Index, symbols
from trnx.compiler.tile.ir import (
    PSUM,
    SBUF,
    Alloc,
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    KernelCall,
    Param,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Statement,
    Tile,
    TileAccess,
    TileProgram,
    While,
    instructions,
    walk,
)
from trnx.compiler.tile.parallel import is_parallel
from trnx.compiler.tile.place import Life, capacity, lives
from trnx.compiler.tile.rules import check_instruction, check_load
from trnx.core.source import Source

__all__ = ["CONSTRAINTS", "check_kernel", "check_program"]


def check_program(program: TileProgram, target: Target | str | None = None) -> None:
    """Check every kernel and call of ``program`` for ``target`` (the program's own when None).

    Raises:
        TileError: a constraint is violated.
    """
    row = _row(program.target if target is None else target)
    for kernel in program.kernels:
        check_kernel(kernel, row)
    _check_calls(program)


def check_kernel(kernel: Kernel, target: Target | str) -> None:
    """Check one kernel.

    Raises:
        TileError: a constraint is violated.
    """
    _Checker(kernel, _row(target)).run()


def _row(target: Target | str) -> Target:
    return find_target(target) if isinstance(target, str) else target


class _Checker:
    """One walk over a kernel with the names in scope."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.kernel = kernel
        self.target = target
        self.params: dict[str, Param] = {}
        self.tiles: dict[str, Tile] = {}
        self.declared: set[str] = set()
        self.ids = {i.id for i in instructions(kernel) if i.id >= 0}

    def run(self) -> None:
        kernel = self.kernel
        for param in kernel.params:
            self._declare(param.name, kernel.source)
            self.params[param.name] = param
            unknown = set().union(*map(symbols, param.shape)) - set(kernel.registers)
            if unknown:
                self._fail("T1", f"size '{min(unknown)}' of '{param.name}' is not declared")
        for register in kernel.registers:
            self._declare(register, kernel.source)
        seen: set[int] = set()
        for instruction in instructions(kernel):
            if instruction.id >= 0 and instruction.id in seen:
                self._fail("T1", f"id #{instruction.id} is used twice", instruction.source)
            seen.add(instruction.id)
        self._body(kernel.body, kernel_env(kernel), set(kernel.registers), {})
        self._check_memory()
        self._check_accumulators()

    def _fail(
        self, number: str, cause: str, source: Source | None = None, remedy: str = ""
    ) -> None:
        fail(
            number, f"{cause} in kernel '{self.kernel.name}'", source or self.kernel.source, remedy
        )

    def _declare(self, name: str, source: Source | None) -> None:
        if name in self.declared:
            self._fail("T1", f"name '{name}' is declared twice", source)
        self.declared.add(name)

    def _body(
        self,
        body: Sequence[Statement],
        env: Env,
        registers: set[str],
        scope: Mapping[str, Tile],
    ) -> None:
        tiles = dict(scope)
        env = dict(env)
        for statement in body:
            if isinstance(statement, Alloc):
                self._check_tile(statement.tile)
                tiles[statement.tile.name] = statement.tile
            elif isinstance(statement, Instruction):
                self._instruction(statement, env, registers, tiles)
            elif isinstance(statement, For):
                self._loop(statement, env, registers, tiles)
            elif isinstance(statement, While):
                self._known(statement.condition, registers, env, "condition of a while loop")
                self._body(statement.body, env, registers, tiles)
            elif isinstance(statement, RegisterLoad):
                context = Context(self.kernel, self.target, self.params, tiles, env, None)
                self._symbols_of(statement.access, registers, env, "register load", None)
                check_load(context, statement)
                registers.add(statement.register)
            elif isinstance(statement, RegisterMove):
                for name in symbols(statement.value):
                    self._known(name, registers, env, f"value of register '{statement.register}'")
                registers.add(statement.register)

    def _loop(self, loop: For, env: Env, registers: set[str], tiles: Mapping[str, Tile]) -> None:
        self._declare(loop.index, None)
        for bound in (loop.low, loop.high):
            for name in symbols(bound):
                self._known(name, registers, env, f"bound of loop '{loop.index}'")
        if loop.step < 1:
            self._fail("T1", f"loop '{loop.index}' has step {loop.step}")
        if loop.parallel and trip_count(loop) != 1 and not is_parallel(loop, env, self.params):
            first = next((s for s in walk(loop.body) if isinstance(s, Instruction)), None)
            self._fail(
                "T21",
                f"loop '{loop.index}' is marked parallel, but its iterations may share data",
                first.source if first else None,
            )
        inner = {**env, loop.index: index_bounds(loop, env)}
        self._body(loop.body, inner, registers, tiles)

    def _known(self, name: str, registers: set[str], env: Env, what: str) -> None:
        if name not in registers and name not in env:
            self._fail("T1", f"'{name}' in the {what} is not set before")

    def _symbols_of(
        self,
        access: TileAccess | HbmAccess,
        registers: set[str],
        env: Env,
        what: str,
        source: Source | None,
    ) -> None:
        values: list[Index] = [access.offset]
        for span in access.spans:
            values += [span.stride, span.count]
        if isinstance(access, TileAccess):
            values.append(access.partitions)
        elif access.index is not None:
            self._symbols_of(access.index, registers, env, what, source)
        for value in values:
            for name in symbols(value):
                if name not in registers and name not in env:
                    self._fail("T1", f"'{name}' in an operand of {what} is not set", source)

    def _check_tile(self, tile: Tile) -> None:
        self._declare(tile.name, None)
        context = Context(self.kernel, self.target, self.params, {tile.name: tile}, {}, None)
        if tile.memory not in (SBUF, PSUM):
            context.fail("T1", f"tile '{tile.name}' is in memory '{tile.memory}'")
        if tile.shape[0] > self.target.partitions:
            context.fail("T2", f"tile {context.tile_text(tile)} has {tile.shape[0]} partitions")
        if not self.target.holds(tile.dtype):
            context.fail("T10", f"{self.target.name} holds no {context.tile_text(tile)}")
        if tile.copies < 1:
            context.fail("T1", f"tile '{tile.name}' has {tile.copies} copies")

    def _instruction(
        self,
        instruction: Instruction,
        env: Env,
        registers: set[str],
        tiles: Mapping[str, Tile],
    ) -> None:
        context = Context(self.kernel, self.target, self.params, tiles, env, instruction)
        if instruction.op not in isa.SPECS:
            context.fail("T8", f"there is no instruction '{instruction.op}'")
        for access in (*instruction.outs, *instruction.ins):
            if isinstance(access, TileAccess | HbmAccess):
                self._scope_of(context, access)
                self._symbols_of(access, registers, env, instruction.op, instruction.source)
            elif isinstance(access, RegisterValue):
                for name in symbols(access.value):
                    if name not in registers and name not in env:
                        context.fail("T1", f"register '{name}' is not set")
        for name, value in instruction.attrs:
            self._attribute_scope(context, name, value, registers)
        missing = [d for d in instruction.deps if d not in self.ids]
        if missing:
            context.fail("T1", f"it waits for #{missing[0]}, which does not exist")
        check_instruction(context)

    def _scope_of(self, context: Context, access: TileAccess | HbmAccess) -> None:
        if isinstance(access, TileAccess):
            if access.tile not in context.tiles:
                context.fail("T1", f"tile '{access.tile}' is not in scope")
        else:
            if access.buffer not in self.params:
                context.fail("T1", f"there is no parameter '{access.buffer}'")
            if access.index is not None:
                self._scope_of(context, access.index)

    def _attribute_scope(
        self, context: Context, name: str, value: Any, registers: set[str]
    ) -> None:
        if isinstance(value, Predicate):
            for used in symbols(value.left) | symbols(value.right):
                if used not in context.env:
                    context.fail("T18", f"'{used}' in {name} = {value} is no index of its loops")
        elif isinstance(value, Expr):
            for used in symbols(value):
                if used not in context.env and used not in registers:
                    context.fail("T1", f"'{used}' in {name} is not set")
        elif isinstance(value, tuple):
            for item in value:
                self._attribute_scope(context, name, item, registers)

    def _check_memory(self) -> None:
        found = list(lives(self.kernel).values())
        for life in found:
            tile = life.tile
            if tile.address is None:
                continue
            end = tile.address[1] + tile.free_bytes * tile.copies
            if end > capacity(self.target, tile.memory) or tile.address[1] < 0:
                self._fail(
                    "T15",
                    f"{tile.name} ends at byte {end:,} of {tile.memory.upper()}, which has "
                    f"{capacity(self.target, tile.memory):,} per partition on {self.target.name}",
                    life.source,
                )
            if tile.address[0] + tile.shape[0] > self.target.partitions:
                self._fail("T2", f"{tile.name} ends beyond the last partition", life.source)
        placed = [life for life in found if life.tile.address is not None]
        for position, life in enumerate(placed):
            for other in placed[:position]:
                if _collide(life, other):
                    self._fail(
                        "T15",
                        f"{life.tile.name} and {other.tile.name} are alive at the same time and "
                        f"share {life.tile.memory.upper()} memory",
                        life.source,
                    )

    def _check_accumulators(self) -> None:
        accumulated: dict[str, Instruction] = {}
        for instruction in instructions(self.kernel):
            if instruction.op == "nc_matmul" and instruction.attr("accumulate", False):
                access = instruction.outs[0]
                assert isinstance(access, TileAccess)
                accumulated[access.tile] = instruction
        for instruction in instructions(self.kernel):
            for access in instruction.outs:
                if (
                    isinstance(access, TileAccess)
                    and access.tile in accumulated
                    and instruction.engine != isa.TENSOR
                    and self.target.nki_name
                ):
                    self._fail(
                        "T22",
                        f"{instruction.op} writes PSUM tile '{access.tile}', into which a matmul "
                        "accumulates",
                        instruction.source,
                    )


def _collide(first: Life, second: Life) -> bool:
    a, b = first.tile, second.tile
    if a.memory != b.memory or a.address is None or b.address is None:
        return False
    alive = first.first <= second.last and second.first <= first.last
    rows = a.address[0] < b.address[0] + b.shape[0] and b.address[0] < a.address[0] + a.shape[0]
    ends = [t.address[1] + t.free_bytes * t.copies for t in (a, b) if t.address]
    return alive and rows and a.address[1] < ends[1] and b.address[1] < ends[0]


def _check_calls(program: TileProgram) -> None:
    buffers = {b.name: b for b in program.buffers}

    def bad(cause: str) -> None:
        fail("T23", f"{cause} in program '{program.name}'", None)

    if len(buffers) != len(program.buffers):
        bad("two buffers have one name")
    for buffer in program.buffers:
        if buffer.kind not in ("input", "output", "constant", "temp"):
            bad(f"buffer '{buffer.name}' has kind '{buffer.kind}'")
        if buffer.alias is not None and buffer.alias not in buffers:
            bad(f"buffer '{buffer.name}' reuses '{buffer.alias}', which does not exist")
        if buffer.kind == "temp":
            _check_temp(program, buffer, bad)
    for name in program.outputs:
        if name not in buffers:
            bad(f"output '{name}' is no buffer")
    for call in program.calls:
        if isinstance(call, HostCall):
            missing = [n for n in (*call.ins, *call.outs) if n not in buffers]
            if missing:
                bad(f"host call '{call.function}' uses '{missing[0]}', which is no buffer")
        else:
            _check_call(program, call, buffers, bad)


def _check_temp(program: TileProgram, buffer: Buffer, bad: Any) -> None:
    sizes = [s for s in buffer.shape if isinstance(s, int)]
    if buffer.offset is None or len(sizes) != len(buffer.shape):
        return
    total = buffer.dtype.itemsize
    for size in sizes:
        total *= size
    if buffer.offset + total > program.arena_bytes:
        bad(
            f"temporary '{buffer.name}' ends at byte {buffer.offset + total:,} of an arena of "
            f"{program.arena_bytes:,}"
        )


def _check_call(
    program: TileProgram, call: KernelCall, buffers: Mapping[str, Buffer], bad: Any
) -> None:
    if not 0 <= call.kernel < len(program.kernels):
        bad(f"a call names kernel {call.kernel} of {len(program.kernels)}")
    kernel = program.kernels[call.kernel]
    if len(call.buffers) != len(kernel.params):
        bad(f"kernel '{kernel.name}' takes {len(kernel.params)} buffers, not {len(call.buffers)}")
    if len(call.registers) != len(kernel.registers):
        bad(
            f"kernel '{kernel.name}' takes {len(kernel.registers)} registers, "
            f"not {len(call.registers)}"
        )
    for value in call.registers:
        unknown = symbols(value) - set(program.registers)
        if unknown:
            bad(f"a call of '{kernel.name}' passes '{min(unknown)}', which is no register")
    for name, param in zip(call.buffers, kernel.params, strict=True):
        if name not in buffers:
            bad(f"kernel '{kernel.name}' gets '{name}', which is no buffer")
        buffer = buffers[name]
        # A 64-bit integer buffer may be seen as 32-bit words: how a NeuronCore reads an index.
        words = buffer.dtype.kind in "iu" and param.dtype.kind in "iu"
        if buffer.dtype.itemsize != param.dtype.itemsize and not (
            words and buffer.dtype.itemsize == 2 * param.dtype.itemsize
        ):
            bad(
                f"'{name}' ({buffer.dtype}) is bound to parameter '{param.name}' ({param.dtype}) "
                f"of kernel '{kernel.name}'"
            )
        if param.role != "in" and buffer.kind == "constant":
            bad(f"kernel '{kernel.name}' writes constant '{name}'")
