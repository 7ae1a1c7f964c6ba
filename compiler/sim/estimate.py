"""Cost of a program without running it: the walk of the simulator with no data.

Loops that repeat are not walked to their end. When the clock's state after an iteration equals the
state one to four iterations earlier up to a constant time per queue, the rest of the loop is added
in closed form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from trnx.compiler.sim.channels import Channel
from trnx.compiler.sim.clock import Clock
from trnx.compiler.sim.dependencies import Dependencies, Touch
from trnx.compiler.sim.frames import Binding, Window
from trnx.compiler.sim.memory import Memory, View
from trnx.compiler.sim.report import CostReport, make_report
from trnx.compiler.sim.walk import Walk
from trnx.compiler.tile.expr import Index, symbols
from trnx.compiler.tile.ir import (
    Alloc,
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    RegisterLoad,
    RegisterMove,
    Statement,
    TileAccess,
    TileProgram,
    While,
    walk,
)

PERIODS = (1, 2, 3, 4)
"""Rotations of a loop's tiles after which its state is compared with itself."""
TOLERANCE_NS = 1e-6


def estimate(
    program: TileProgram,
    registers: Sequence[int] = (),
    *,
    loaded_registers: Mapping[str, int] | None = None,
    while_trips: int = 1,
) -> CostReport:
    """The modelled cost of a placed and scheduled program.

    Args:
        program: the tile program.
        registers: values of ``program.registers``.
        loaded_registers: values to assume for registers the program loads from memory (1 for the
            ones not named).
        while_trips: iterations to assume for a ``while``.

    Returns:
        The report; assumptions made are listed in it.
    """
    machine = Estimate(program, registers, dict(loaded_registers or {}), while_trips)
    machine.run()
    return make_report(
        machine.clock, machine.kernel_uses(), machine.host_calls, sorted(machine.assumptions)
    )


class Estimate(Walk):
    """The walk that only counts time."""

    check_bounds = False

    def __init__(
        self,
        program: TileProgram,
        registers: Sequence[int],
        loaded: Mapping[str, int],
        while_trips: int,
    ) -> None:
        super().__init__(program, registers)
        target = self.target
        # Addresses matter here, contents do not: memories of no bytes.
        self.memories = {
            "sbuf": Memory("sbuf", 0, target.sbuf_partition_bytes),
            "psum": Memory("psum", 0, target.psum_partition_bytes),
        }
        self.loaded = loaded
        self.while_trips = while_trips
        self.assumptions: set[str] = set()
        self._buffers: dict[str, Memory] = {}
        self._cost_symbols: dict[int, tuple[Index, ...]] = {}

    def binding(self, buffer: Buffer) -> Binding:
        """A stand-in: aliases share their memory's name."""
        name = buffer.alias or buffer.name
        memory = self._buffers.setdefault(name, Memory(f"'{name}'", 0))
        return Binding(memory, 0, 0, buffer.dtype)

    def host_call(self, call: HostCall) -> None:
        """Host calls take no modelled time."""
        self.assumptions.add(f"host call {call.function} takes no time")

    def while_loop(self, loop: While) -> None:
        """Run the assumed number of iterations."""
        self.assumptions.add(f"while {loop.condition} runs {self.while_trips} times")
        for iteration in range(self.while_trips):
            self.body(loop.body, iteration)

    def register_load(self, statement: RegisterLoad) -> None:
        """Take the assumed value."""
        value = self.loaded.get(statement.register, 1)
        self.frame.env[statement.register] = value
        if statement.register not in self.loaded:
            self.assumptions.add(f"register {statement.register} holds {value}")
        self.wait_for_register(statement)

    def instruction(self, instruction: Instruction) -> None:
        """Charge one instance."""
        frame = self.frame
        outs: list[Window] = [frame.geometry(a) for a in instruction.outs]
        if any(w.empty for w in outs):
            return
        ins: list[Window | None] = [
            frame.geometry(o) if isinstance(o, TileAccess | HbmAccess) else None
            for o in instruction.ins
        ]
        touches = tuple(
            touch
            for operand, writes in _operands(instruction)
            for touch in self._touch(operand, writes)
        )
        waits = self.dependencies.waits(instruction, touches)
        self.place_in_time(instruction, outs, ins, touches, waits, {}, 0)

    def _touch(self, access: TileAccess | HbmAccess, writes: bool) -> list[Touch]:
        view = self.frame.geometry(access)
        if isinstance(access, TileAccess):
            return [_on_chip(view, writes)]
        found = [Touch(writes, view.memory.name, None)]
        if access.index is not None:
            found.append(_on_chip(self.frame.geometry(access.index), False))
        return found

    # Loops ------------------------------------------------------------------------------------

    def for_loop(self, loop: For) -> None:
        """Run iterations until they repeat, then add the rest at once."""
        indices = self.indices(loop)
        if len(indices) < 8:
            super().for_loop(loop)
            return
        groups = self._equal_cost_groups(loop, indices)
        position = 0
        for size in groups:
            done = self._repeat(loop, indices, position, size)
            position += done
        assert position == len(indices)

    def _repeat(self, loop: For, indices: range, first: int, count: int) -> int:
        """Run ``count`` iterations of equal cost from ``first`` on; returns ``count``."""
        # A period that is no multiple of the rotation would leave tiles at the wrong copy.
        rotation = lcm(*(s.tile.copies for s in loop.body if isinstance(s, Alloc)))
        periods = [rotation * k for k in PERIODS]
        states: list[_State] = [_State.of(self.clock, self.dependencies)]
        done = 0
        while done < count:
            self.iteration(loop, first + done, indices[first + done])
            done += 1
            states.append(_State.of(self.clock, self.dependencies))
            left = count - done
            for period in periods:
                if left < period or len(states) <= 3 * period:
                    continue
                step = _steady(states, period)
                if step is not None:
                    times = left // period
                    step.apply(self.clock, self.dependencies, times)
                    done += times * period
                    states = [_State.of(self.clock, self.dependencies)]
                    break
        # Loop indices keep their last value for later expressions, as after a plain walk.
        self.frame.env[loop.index] = indices[first + count - 1]
        return count

    def _equal_cost_groups(self, loop: For, indices: range) -> list[int]:
        """Lengths of the runs of neighbouring iterations whose counts and bounds are equal."""
        relevant = self._cost_symbols.get(id(loop))
        if relevant is None:
            relevant = tuple(v for v in _cost_expressions(loop.body) if loop.index in symbols(v))
            self._cost_symbols[id(loop)] = relevant
        if not relevant:
            return [len(indices)]
        inner = {
            name
            for s in walk(loop.body)
            for name in (
                [s.index]
                if isinstance(s, For)
                else [s.register]
                if isinstance(s, RegisterLoad | RegisterMove)
                else []
            )
        }
        if any(symbols(v) & inner for v in relevant):
            return [1] * len(indices)
        groups: list[int] = []
        last: tuple[int, ...] | None = None
        for index in indices:
            self.frame.env[loop.index] = index
            signature = tuple(self.frame.value(v) for v in relevant)
            if signature == last:
                groups[-1] += 1
            else:
                groups.append(1)
                last = signature
        return groups


def _operands(instruction: Instruction) -> list[tuple[TileAccess | HbmAccess, bool]]:
    found: list[tuple[TileAccess | HbmAccess, bool]] = [(a, True) for a in instruction.outs]
    found += [(o, False) for o in instruction.ins if isinstance(o, TileAccess | HbmAccess)]
    return found


def _on_chip(view: View, writes: bool) -> Touch:
    assert view.partitions is not None
    first, count = view.partitions
    return Touch(writes, view.memory.name, (first, first + count, *view.extent))


def _cost_expressions(body: Sequence[Statement]) -> list[Index]:
    """Everything in a body whose value changes what it costs: counts, strides, loop bounds."""
    found: list[Index] = []
    for statement in walk(tuple(body)):
        if isinstance(statement, For):
            found += [statement.low, statement.high]
        elif isinstance(statement, Instruction):
            for access, _ in _operands(statement):
                found += [*access.shape, *(s.stride for s in access.spans)]
                if isinstance(access, TileAccess):
                    found.append(access.offset)  # decides which earlier instances conflict
    return [value for value in found if not isinstance(value, int)]


# Steady state ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    """All times of a clock and its history, and all counters, flattened by name."""

    times: dict[tuple[object, ...], float]
    counters: dict[tuple[object, ...], float]
    table: str

    @staticmethod
    def of(clock: Clock, dependencies: Dependencies) -> _State:
        times: dict[tuple[object, ...], float] = {("now",): clock.now}
        times |= {("queue", k): v for k, v in clock.queue_free.items()}
        times |= {("end", k): v for k, v in clock.queue_end.items()}
        for name, channel in _channels(clock):
            times |= {(*name, age): edge for age, edge in enumerate(channel.edges())}
        times |= {("tile", k): ready for k, (_, ready) in clock.tile_ready.items()}
        for identity, kept in dependencies.history.items():
            # The youngest instances are the ones later iterations can wait for.
            for age, instance in enumerate(reversed(kept)):
                if age == max(PERIODS):
                    break
                times["history", identity, age] = instance.finish
        counters: dict[tuple[object, ...], float] = {
            ("read",): clock.hbm_read,
            ("write",): clock.hbm_write,
            ("flops",): clock.flops,
            ("tables",): clock.table_loads,
        }
        counters |= {("busy", k): u.busy_ns for k, u in clock.usage.items()}
        counters |= {("count", k): u.instructions for k, u in clock.usage.items()}
        counters |= {("channel", *name): channel.busy for name, channel in _channels(clock)}
        return _State(times, counters, clock.table)


def _channels(clock: Clock) -> list[tuple[tuple[str, object], Channel]]:
    found: list[tuple[tuple[str, object], Channel]] = [(("hbm", 0), clock.hbm)]
    found += [(("dma", k), channel) for k, channel in enumerate(clock.dma.channels)]
    return found + [(("port", k), channel) for k, channel in clock.ports.items()]


@dataclass(frozen=True, slots=True)
class _Step:
    """What one period adds to each time and counter."""

    times: dict[tuple[object, ...], float]
    counters: dict[tuple[object, ...], float]

    def apply(self, clock: Clock, dependencies: Dependencies, repeats: int) -> None:
        """Advance the clock by ``repeats`` periods."""
        add = {key: value * repeats for key, value in self.times.items()}
        count = {key: value * repeats for key, value in self.counters.items()}
        clock.now += add[("now",)]
        for key in clock.queue_free:
            clock.queue_free[key] += add["queue", key]
        for key in clock.queue_end:
            clock.queue_end[key] += add["end", key]
        for name, channel in _channels(clock):
            channel.busy += count["channel", *name]
            if channel.ends:
                channel.shift(add[*name, 0])
        for key, (queue, ready) in clock.tile_ready.items():
            clock.tile_ready[key] = (queue, ready + add["tile", key])
        for identity, kept in dependencies.history.items():
            for age, instance in enumerate(reversed(kept)):
                instance.finish += add.get(("history", identity, min(age, max(PERIODS) - 1)), 0.0)
        clock.hbm_read += round(count[("read",)])
        clock.hbm_write += round(count[("write",)])
        clock.flops += round(count[("flops",)])
        clock.table_loads += round(count[("tables",)])
        for key, use in clock.usage.items():
            use.busy_ns += count["busy", key]
            use.instructions += round(count["count", key])


def _difference(
    new: dict[tuple[object, ...], float], old: dict[tuple[object, ...], float]
) -> dict[tuple[object, ...], float] | None:
    if new.keys() != old.keys():
        return None
    return {key: value - old[key] for key, value in new.items()}


def _same(
    a: dict[tuple[object, ...], float] | None, b: dict[tuple[object, ...], float] | None
) -> bool:
    if a is None or b is None:
        return False
    return all(abs(value - b[key]) <= TOLERANCE_NS for key, value in a.items())


def _steady(states: Sequence[_State], period: int) -> _Step | None:
    """The step per period if the last three periods advanced everything alike."""
    last, before, first = states[-1], states[-1 - period], states[-1 - 2 * period]
    if len({s.table for s in (last, before, first)}) != 1:
        return None
    times = _difference(last.times, before.times)
    counters = _difference(last.counters, before.counters)
    if not _same(times, _difference(before.times, first.times)):
        return None
    if not _same(counters, _difference(before.counters, first.counters)):
        return None
    assert times is not None and counters is not None
    if not _stays_ordered(last.times, times):
        return None
    return _Step(times, counters)


def _stays_ordered(
    now: dict[tuple[object, ...], float], step: dict[tuple[object, ...], float]
) -> bool:
    """Whether no resource that advances slower is ahead of one that advances faster.

    If it were, the faster one would pass it later and the pattern of waits would change.
    """
    ends = [key for key in now if key[0] == "queue" or (key[0] in ("dma", "hbm") and key[2] == 0)]
    queues = [key for key in ends if step[key] > TOLERANCE_NS]
    for a in queues:
        for b in queues:
            if step[a] < step[b] - TOLERANCE_NS and now[a] > now[b] + TOLERANCE_NS:
                return False
    return True
