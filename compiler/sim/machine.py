"""The simulator: runs a tile program on byte memories and defines what instructions mean."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim.compute import COMPUTE
from trnx.compiler.sim.dependencies import Touch
from trnx.compiler.sim.frames import Binding, RowsView, Window, tile_text, windows
from trnx.compiler.sim.hazards import Finding, ParallelLoop, Race, Races
from trnx.compiler.sim.memory import Memory, View, on_chip
from trnx.compiler.sim.moves import MOVES
from trnx.compiler.sim.operation import Operation
from trnx.compiler.sim.report import CostReport, make_report
from trnx.compiler.sim.timeline import Event, Timeline
from trnx.compiler.sim.walk import Walk
from trnx.compiler.tile import isa
from trnx.compiler.tile.expr import evaluate
from trnx.compiler.tile.ir import (
    SBUF,
    Alloc,
    Attribute,
    Buffer,
    For,
    HostCall,
    Instruction,
    Kernel,
    RegisterLoad,
    Tile,
    TileProgram,
    While,
    row_major,
)
from trnx.compiler.tile.text import access_text
from trnx.core.dtypes import short_name
from trnx.core.errors import TileError, message
from trnx.core.source import Source

Semantic = Callable[[Operation], list[NDArray[Any]]]
HostFunction = Callable[[Sequence[NDArray[Any]], Mapping[str, Attribute]], Sequence[NDArray[Any]]]

SEMANTICS: dict[str, Semantic] = {**MOVES, **COMPUTE}
"""The meaning of every instruction of ``isa.SPECS``."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """What the simulator checks and records.

    Attributes:
        raise_findings: raise the first finding as TileError instead of collecting it.
        uninitialised: report reads of memory that was never written.
        races: report unordered overlapping accesses.
        capacity: report tiles beyond the usable SBUF and PSUM.
        timeline: keep one event per instruction.
        max_findings: findings kept; further ones are counted in a last one.
        max_while: iterations after which a ``while`` counts as endless.
        host_functions: name to function for ``HostCall``s; takes arrays and attributes, returns
            the outputs.
    """

    raise_findings: bool = False
    uninitialised: bool = True
    races: bool = True
    capacity: bool = True
    timeline: bool = True
    max_findings: int = 50
    max_while: int = 1_000_000
    host_functions: Mapping[str, HostFunction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimResult:
    """What a run gave.

    Attributes:
        outputs: arrays in the order of ``TileProgram.outputs``.
        timeline: one event per executed instruction, with time.
        findings: everything wrong that was seen, each one sentence.
        cost: time per engine and bytes moved.
    """

    outputs: list[NDArray[Any]]
    timeline: Timeline
    findings: tuple[Finding, ...]
    cost: CostReport

    @property
    def total_us(self) -> float:
        """Modelled time in us, without the launch."""
        return self.cost.total_us

    def __repr__(self) -> str:
        shapes = ", ".join(f"{short_name(o.dtype)}{list(o.shape)}" for o in self.outputs)
        return (
            f"<SimResult {self.timeline.program.name}: {shapes}; {len(self.findings)} findings; "
            f"{self.total_us:,.2f} us on {self.cost.target}>"
        )

    def _repr_html_(self) -> str:
        found = "".join(f"<li>{html.escape(str(finding))}</li>" for finding in self.findings)
        count = f"{len(self.findings)} findings" if found else "no findings"
        return f"<div>{count}<ul>{found}</ul>{self.timeline.to_svg()}</div>"


def simulate(
    program: TileProgram,
    inputs: Sequence[NDArray[Any]],
    registers: Sequence[int] = (),
    options: SimOptions | None = None,
) -> SimResult:
    """Run a placed and scheduled program.

    Args:
        program: the tile program.
        inputs: one array per buffer of kind ``input`` and then ``constant``, in program order, of
            the buffer's shape and dtype. They are not modified, even when an output aliases one.
        registers: values of ``program.registers``.
        options: what to check and record.

    Raises:
        TileError: an access out of bounds, operands that do not fit an instruction, wrong inputs,
            or (with ``raise_findings``) the first finding.
    """
    machine = Machine(program, inputs, registers, options or SimOptions())
    machine.run()
    return machine.result()


class Machine(Walk):
    """The walk that computes."""

    def __init__(
        self,
        program: TileProgram,
        inputs: Sequence[NDArray[Any]],
        registers: Sequence[int],
        options: SimOptions,
    ) -> None:
        super().__init__(program, registers)
        self.options = options
        self.memories = on_chip(self.target)
        self.native = self.target.native_f64
        self.findings: list[Finding] = []
        self._suppressed = 0
        self._reported: set[tuple[object, ...]] = set()
        self.races = Races()
        self.parallel: list[ParallelLoop] = []
        self.events: list[Event] = []
        self._bindings = self._make_bindings(inputs)

    # Buffers ----------------------------------------------------------------------------------

    def _make_bindings(self, inputs: Sequence[NDArray[Any]]) -> dict[str, Binding]:
        given = [b for b in self.program.buffers if b.kind in ("input", "constant")]
        if len(given) != len(inputs):
            raise TileError(
                message(
                    f"program '{self.program.name}' takes {len(given)} arrays "
                    f"({', '.join(b.name for b in given)}), not {len(inputs)}",
                    None,
                    "Pass the inputs, then the constants",
                )
            )
        bindings: dict[str, Binding] = {}
        for buffer, array in zip(given, inputs, strict=True):
            bindings[buffer.name] = self._input(buffer, np.asarray(array))
        arena = Memory("the temporaries", self.program.arena_bytes)
        for buffer in self.program.buffers:
            if buffer.name in bindings:
                continue
            size = self._buffer_bytes(buffer)
            if buffer.alias is not None:
                alias = bindings[buffer.alias]
                bindings[buffer.name] = Binding(alias.memory, alias.base, size, buffer.dtype)
            elif buffer.kind == "temp" and buffer.offset is not None:
                if buffer.offset + size > arena.size:
                    raise TileError(
                        message(
                            f"temporary '{buffer.name}' ends at byte {buffer.offset + size} of an "
                            f"arena of {arena.size}",
                            None,
                            "Plan the memory of the program again",
                        )
                    )
                bindings[buffer.name] = Binding(arena, buffer.offset, size, buffer.dtype)
            else:
                bindings[buffer.name] = Binding(
                    Memory(f"'{buffer.name}'", size), 0, size, buffer.dtype
                )
        return bindings

    def _shape(self, buffer: Buffer) -> tuple[int, ...]:
        return tuple(evaluate(s, self.registers) for s in buffer.shape)

    def _strides(self, buffer: Buffer) -> tuple[int, ...]:
        strides = buffer.strides
        if strides is None:
            strides = tuple(s.stride for s in row_major(buffer.shape))
        return tuple(evaluate(s, self.registers) for s in strides)

    def _buffer_bytes(self, buffer: Buffer) -> int:
        shape = self._shape(buffer)
        if 0 in shape:
            return 0
        reach = sum(s * (c - 1) for s, c in zip(self._strides(buffer), shape, strict=True))
        return (reach + 1) * buffer.dtype.itemsize

    def _input(self, buffer: Buffer, array: NDArray[Any]) -> Binding:
        shape = self._shape(buffer)
        if array.shape != shape or array.dtype != buffer.dtype:
            raise TileError(
                message(
                    f"input '{buffer.name}' is {array.dtype}{list(array.shape)}, the program "
                    f"takes {short_name(buffer.dtype)}{list(shape)}",
                    None,
                    "Pass an array of that type",
                )
            )
        memory = Memory(f"'{buffer.name}'", self._buffer_bytes(buffer), initialised=True)
        binding = Binding(memory, 0, memory.size, buffer.dtype)
        if array.size:
            self._array(buffer, binding).array[...] = array
        return binding

    def _array(self, buffer: Buffer, binding: Binding) -> View:
        item = buffer.dtype.itemsize
        strides = tuple(s * item for s in self._strides(buffer))
        return View(binding.memory, binding.base, self._shape(buffer), strides, buffer.dtype)

    def binding(self, buffer: Buffer) -> Binding:
        """Where a buffer lives."""
        return self._bindings[buffer.name]

    def host_call(self, call: HostCall) -> None:
        """Run a host function on copies of its buffers."""
        function = self.options.host_functions.get(call.function)
        if function is None:
            raise TileError(
                message(
                    f"host function '{call.function}' is not known to the simulator",
                    call.source,
                    "Pass it in SimOptions.host_functions",
                )
            )
        arrays = [self._read_buffer(name, call.source) for name in call.ins]
        results = function(arrays, dict(call.attrs))
        for name, value in zip(call.outs, results, strict=True):
            buffer = self.buffers[name]
            if value.shape != self._shape(buffer) or value.dtype != buffer.dtype:
                raise TileError(
                    message(
                        f"host function '{call.function}' gave {value.dtype}{list(value.shape)} "
                        f"for '{name}', which is {short_name(buffer.dtype)}"
                        f"{list(self._shape(buffer))}",
                        call.source,
                        "Return arrays of the declared types",
                    )
                )
            self._array(buffer, self._bindings[name]).write(value)

    def _read_buffer(self, name: str, source: Source | None) -> NDArray[Any]:
        buffer = self.buffers[name]
        values, missing = self._array(buffer, self._bindings[name]).read()
        if missing and self.options.uninitialised:
            self._find(
                "output" if name in self.program.outputs else "uninitialised",
                f"{missing} of {values.size} elements of {short_name(buffer.dtype)}"
                f"{list(values.shape)} buffer '{name}' were never written",
                source,
                (name,),
            )
        return values

    # Findings ---------------------------------------------------------------------------------

    def _find(self, kind: str, cause: str, source: Source | None, key: tuple[object, ...]) -> None:
        if (kind, *key) in self._reported:
            return
        self._reported.add((kind, *key))
        text = message(cause, source) if source is not None else f"{cause}."
        if self.options.raise_findings:
            raise TileError(text)
        if len(self.findings) < self.options.max_findings:
            self.findings.append(Finding(kind, text, source))
        else:
            self._suppressed += 1

    def _missing(self, operation: Operation, text: str, count: int) -> None:
        if not self.options.uninitialised:
            return
        instruction = operation.instruction
        self._find(
            "uninitialised",
            f"{instruction.op} of kernel '{self.frame.kernel.name}' reads {count} elements of "
            f"{text} that were never written",
            instruction.source or self.frame.kernel.source,
            (self.call_index, instruction.id, text),
        )

    def _race(self, race: Race) -> None:
        first, second = race.first, race.second
        where = "HBM" if race.view.partitions is None else race.view.memory.name.upper()
        self._find(
            "race",
            f"{second.op} #{second.id} on {race.second_queue} and {first.op} #{first.id} on "
            f"{race.first_queue} of kernel '{self.frame.kernel.name}' touch the same bytes of "
            f"{where} with no order between them (access {short_name(race.view.dtype)}"
            f"{list(race.view.shape)})",
            second.source or self.frame.kernel.source,
            (self.call_index, first.id, second.id),
        )

    def _check_capacity(self, tile: Tile) -> None:
        assert tile.address is not None
        target = self.target
        usable = target.sbuf_usable_bytes if tile.memory == SBUF else target.psum_partition_bytes
        end = tile.address[1] + tile.copies * tile.free_bytes
        rows = tile.address[0] + tile.shape[0]
        if end > usable or rows > target.partitions:
            self._find(
                "capacity",
                f"tile {tile_text(tile)} ({tile.copies} x {tile.free_bytes} B at {tile.address}) "
                f"of kernel '{self.frame.kernel.name}' ends at byte {end} and partition {rows} of "
                f"{tile.memory.upper()}, where {target.name} has {usable} usable bytes in "
                f"{target.partitions} partitions",
                self.frame.kernel.source,
                (self.call_index, tile.name),
            )

    # Statements -------------------------------------------------------------------------------

    def enter_kernel(self, kernel: Kernel) -> None:
        """Order inside a kernel starts afresh: everything before has finished."""
        super().enter_kernel(kernel)
        self.races = Races()
        self.parallel = []

    def alloc(self, statement: Alloc, iteration: int) -> None:
        """Bring a tile into scope and check that it fits."""
        super().alloc(statement, iteration)
        if iteration == 0 and self.options.capacity:
            self._check_capacity(statement.tile)

    def for_loop(self, loop: For) -> None:
        """Run every iteration; those of a parallel loop must not meet in HBM."""
        if not loop.parallel or not self.options.races:
            super().for_loop(loop)
            return
        record = ParallelLoop()
        self.parallel.append(record)
        for position, index in enumerate(self.indices(loop)):
            record.iteration = position
            self.iteration(loop, position, index)
        self.parallel.remove(record)
        conflict = record.conflict()
        if conflict is not None:
            first, second = conflict
            self._find(
                "parallel",
                f"{first.op} #{first.id} and {second.op} #{second.id} of kernel "
                f"'{self.frame.kernel.name}' touch the same HBM bytes in different iterations of "
                f"parallel loop '{loop.index}'",
                first.source or self.frame.kernel.source,
                (self.call_index, loop.index, first.id, second.id),
            )

    def while_loop(self, loop: While) -> None:
        """Run while the condition register is non-zero."""
        iteration = 0
        while self.frame.env.get(loop.condition, 0):
            if iteration == self.options.max_while:
                raise TileError(
                    message(
                        f"while {loop.condition} of kernel '{self.frame.kernel.name}' ran "
                        f"{iteration} times",
                        self.frame.kernel.source,
                        "Update the condition in the body, or raise SimOptions.max_while",
                    )
                )
            self.body(loop.body, iteration)
            iteration += 1

    def register_load(self, statement: RegisterLoad) -> None:
        """Read one element into a register, after everything before."""
        values, missing = self.frame.view(statement.access, self.frame.kernel.source).read()
        if missing or values.size != 1:
            raise TileError(
                message(
                    f"register '{statement.register}' loads {access_text(statement.access)}, which "
                    f"holds {values.size} elements, {missing} of them never written",
                    self.frame.kernel.source,
                    "Load one written element",
                )
            )
        self.frame.env[statement.register] = int(values.reshape(-1)[0])
        self.wait_for_register(statement)
        self.races.barrier()

    def instruction(self, instruction: Instruction) -> None:
        """Compute one instance, check its order, and charge its time."""
        operation = Operation(instruction, self.frame, self.native, self._missing)
        if any(w.empty for w in operation.outs):
            return
        results = SEMANTICS[instruction.op](operation)
        for index, value in enumerate(results):
            window = operation.outs[index]
            if isinstance(window, View) and index in operation.unwritten:
                window.write(value, operation.unwritten[index])
            else:
                window.write(value)
        touches = self._touches(operation)
        waits = self.dependencies.waits(instruction, touches)
        queue = isa.queue(instruction)
        position, known = self.races.start(queue, waits)
        ins = [w if isinstance(w, Window) else None for w in operation.ins]
        times, _ = self.place_in_time(
            instruction, operation.outs, ins, touches, waits, known, position
        )
        if self.options.races:
            instance = self.dependencies.history[instruction.id][-1]
            for race in self.races.check(instruction, instance):
                self._race(race)
            for loop in self.parallel:
                loop.record(instruction, touches)
        if self.options.timeline:
            shapes = tuple(w.shape for w in (*operation.outs, *ins) if w is not None)
            self.events.append(
                Event(
                    queue, times.issue, times.start, times.end, instruction, self.call_index, shapes
                )
            )

    def _touches(self, operation: Operation) -> tuple[Touch, ...]:
        found: list[Touch] = []
        for window in operation.outs:
            found += _touch(window, True)
        for operand in operation.ins:
            if isinstance(operand, Window):
                found += _touch(operand, False)
        return tuple(found)

    # Result -----------------------------------------------------------------------------------

    def result(self) -> SimResult:
        """Outputs, timeline, findings and cost."""
        outputs = [self._read_buffer(name, None) for name in self.program.outputs]
        if self._suppressed:
            self.findings.append(Finding("more", f"{self._suppressed} further findings."))
        cost = make_report(self.clock, self.kernel_uses(), self.host_calls)
        timeline = Timeline(self.program, tuple(self.events), cost)
        return SimResult(outputs, timeline, tuple(self.findings), cost)


def _touch(window: Window, writes: bool) -> list[Touch]:
    found = []
    if isinstance(window, RowsView):
        found += _touch(window.index, False)
    for view in windows(window):
        box = None
        if view.partitions is not None:
            first, count = view.partitions
            box = (first, first + count, *view.extent)
        found.append(Touch(writes, view.memory.name, box, view))
    return found
