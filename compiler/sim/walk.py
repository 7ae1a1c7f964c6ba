"""The walk through a tile program that the simulator and the cost estimate share.

It keeps loop indices, registers, tile scopes and rotating copies, and hands each instance of an
instruction to a subclass. Kernels run one after another: a call starts when the one before ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trnx.compiler.sim.clock import Clock, Times, Work, work
from trnx.compiler.sim.dependencies import Dependencies, Instance, Touch
from trnx.compiler.sim.frames import Binding, Frame, Window
from trnx.compiler.sim.memory import Memory
from trnx.compiler.sim.report import KernelUse
from trnx.compiler.targets import TARGETS, Target
from trnx.compiler.tile.expr import Index, evaluate, symbols
from trnx.compiler.tile.ir import (
    Alloc,
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    KernelCall,
    RegisterLoad,
    RegisterMove,
    Statement,
    TileAccess,
    TileProgram,
    While,
    walk,
)
from trnx.core.errors import TileError, message


class Walk(ABC):
    """One run through a program.

    Args:
        program: placed and scheduled.
        registers: values of ``program.registers`` in order.
    """

    check_bounds = True

    def __init__(self, program: TileProgram, registers: Sequence[int]) -> None:
        if len(registers) != len(program.registers):
            raise TileError(
                message(
                    f"program '{program.name}' takes {len(program.registers)} registers "
                    f"({', '.join(program.registers) or 'none'}), not {len(registers)}",
                    None,
                    "Pass one integer per register",
                )
            )
        self.program = program
        self.target: Target = TARGETS[program.target]
        self.registers = dict(zip(program.registers, map(int, registers), strict=True))
        self.clock = Clock(self.target)
        self.memories: dict[str, Memory] = {}
        self.buffers = {b.name: b for b in program.buffers}
        self.kernel_ns: dict[int, tuple[int, float]] = {}
        self.host_calls: list[str] = []
        self.call_index = -1
        self.frame: Frame
        self.dependencies = Dependencies()
        self._dynamic: dict[int, bool] = {}
        self._static_names: set[str] = set()
        self._work: dict[tuple[object, ...], Work] = {}
        self._tiles: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    # Program ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run every call in order."""
        for index, call in enumerate(self.program.calls):
            self.call_index = index
            if isinstance(call, HostCall):
                self.clock.barrier()
                self.host_calls.append(call.function)
                self.host_call(call)
            else:
                self.kernel_call(call)
        self.clock.barrier()

    def kernel_call(self, call: KernelCall) -> None:
        """Run one kernel to its end."""
        kernel = self.program.kernels[call.kernel]
        _require_scheduled(kernel)
        self.clock.barrier()
        begin = self.clock.total_ns
        bindings = {
            param.name: replace(self.binding(self.buffers[name]), dtype=param.dtype)
            for param, name in zip(kernel.params, call.buffers, strict=True)
        }
        values = {
            name: evaluate(value, self.registers)
            for name, value in zip(kernel.registers, call.registers, strict=True)
        }
        self.frame = Frame(kernel, bindings, values, self.memories, self.check_bounds)
        self._static_names = static_indices(kernel)
        self.enter_kernel(kernel)
        self.body(kernel.body, 0)
        self.clock.barrier()
        calls, time = self.kernel_ns.get(call.kernel, (0, 0.0))
        self.kernel_ns[call.kernel] = (calls + 1, time + self.clock.total_ns - begin)

    def kernel_uses(self) -> list[KernelUse]:
        """Calls and time per kernel."""
        return [
            KernelUse(self.program.kernels[k].name, calls, time / 1e3)
            for k, (calls, time) in self.kernel_ns.items()
        ]

    @abstractmethod
    def binding(self, buffer: Buffer) -> Binding:
        """Where a buffer lives."""

    @abstractmethod
    def host_call(self, call: HostCall) -> None:
        """Run a counted fallback."""

    def enter_kernel(self, kernel: Kernel) -> None:
        """Forget the instances of the kernel call before: a call starts when it has ended."""
        self.dependencies = Dependencies()

    # Statements -------------------------------------------------------------------------------

    def body(self, statements: Sequence[Statement], iteration: int) -> None:
        """Run a body; ``iteration`` is that of the loop around it and picks rotating copies."""
        for statement in statements:
            if isinstance(statement, Instruction):
                self.instruction(statement)
            elif isinstance(statement, Alloc):
                self.alloc(statement, iteration)
            elif isinstance(statement, For):
                self.for_loop(statement)
            elif isinstance(statement, While):
                self.while_loop(statement)
            elif isinstance(statement, RegisterMove):
                self.frame.env[statement.register] = self.frame.value(statement.value)
            else:
                self.register_load(statement)

    def alloc(self, statement: Alloc, iteration: int) -> None:
        """Bring a tile into scope."""
        self.frame.declare(statement.tile, iteration % statement.tile.copies)

    def indices(self, loop: For) -> range:
        """The index values of a loop."""
        return range(self.frame.value(loop.low), self.frame.value(loop.high), loop.step)

    def iteration(self, loop: For, position: int, index: int) -> None:
        """Run one iteration."""
        self.frame.env[loop.index] = index
        self.body(loop.body, position)

    def for_loop(self, loop: For) -> None:
        """Run every iteration."""
        for position, index in enumerate(self.indices(loop)):
            self.iteration(loop, position, index)

    @abstractmethod
    def while_loop(self, loop: While) -> None:
        """Run while the condition register is non-zero."""

    @abstractmethod
    def register_load(self, statement: RegisterLoad) -> None:
        """Read a register."""

    def wait_for_register(self, statement: RegisterLoad) -> None:
        """Every engine waits: all earlier work, then the trip of the value to the sequencers."""
        if isinstance(statement.access, HbmAccess):
            self.clock.barrier(self.target.dma_start_ns + self.target.dma_completion_ns)
        else:
            self.clock.barrier(self.target.semaphore_ns)

    @abstractmethod
    def instruction(self, instruction: Instruction) -> None:
        """Run one instance."""

    # Cost -------------------------------------------------------------------------------------

    def place_in_time(
        self,
        instruction: Instruction,
        outs: Sequence[Window],
        ins: Sequence[Window | None],
        touches: tuple[Touch, ...],
        waits: Sequence[Instance],
        known: Mapping[str, int],
        position: int,
    ) -> tuple[Times, Work]:
        """Charge an instance to the clock and remember it for later waits."""
        key: tuple[object, ...] = (
            id(instruction),
            *((w.shape, w.strides, w.partitions) for w in outs),
            *((w.shape, w.strides, w.partitions) for w in ins if w is not None),
        )
        item = self._work.get(key)
        if item is None:
            item = work(instruction, outs, ins, self.target, self._is_dynamic(instruction))
            self._work[key] = item
        reads, writes = self._tile_names(instruction)
        times = self.clock.issue(item, [(w.queue, w.finish) for w in waits], reads, writes)
        instance = Instance(item.queue, position, touches, known, times.finish)
        self.dependencies.record(instruction, instance)
        return times, item

    def _tile_names(self, instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names = self._tiles.get(id(instruction))
        if names is None:
            reads = tuple(o.tile for o in instruction.ins if isinstance(o, TileAccess))
            writes = tuple(o.tile for o in instruction.outs if isinstance(o, TileAccess))
            names = self._tiles[id(instruction)] = (reads, writes)
        return names

    def _is_dynamic(self, instruction: Instruction) -> bool:
        known = self._dynamic.get(id(instruction))
        if known is None:
            used: set[str] = set()
            for operand in (*instruction.outs, *instruction.ins):
                if isinstance(operand, TileAccess | HbmAccess):
                    values: list[Index] = [operand.offset, *operand.shape]
                    for value in (*values, *(s.stride for s in operand.spans)):
                        used |= symbols(value)
            known = self._dynamic[id(instruction)] = not used <= self._static_names
        return known


def static_indices(kernel: Kernel) -> set[str]:
    """Indices of loops whose bounds hold no register: constants once NKI has unrolled the loop."""
    found: set[str] = set()
    for statement in walk(kernel.body):
        if not isinstance(statement, For):
            continue
        if symbols(statement.low) | symbols(statement.high) <= found:
            found.add(statement.index)
    return found


def _require_scheduled(kernel: Kernel) -> None:
    for statement in walk(kernel.body):
        if isinstance(statement, Instruction) and statement.id < 0:
            raise TileError(
                message(
                    f"{statement.op} of kernel '{kernel.name}' has no id",
                    statement.source or kernel.source,
                    "Run schedule(kernel) before simulating",
                )
            )
