"""How long an instruction takes, and when it runs.

``work`` turns one instruction with evaluated operands into busy time on its queue and bytes on the
DMA engines; the formulas are the per-instruction cycles published for NeuronCore-v2 with the
v3/v4 modes on top (source keys as in ``targets``; N is elements per partition of the largest
operand). ``Clock`` holds when every queue, DMA engine and HBM is free and places work in time.
All times are in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from trnx.compiler.sim.channels import Channel, DmaEngines
from trnx.compiler.sim.frames import RowsView, Window
from trnx.compiler.targets import Target
from trnx.compiler.tile import isa
from trnx.compiler.tile.ir import Instruction
from trnx.core.dtypes import float64, short_name

Operands: TypeAlias = "Sequence[Window | None]"

TABLE_FREE = ("copy", "square", "abs", "sign", "relu")
"""Activation functions that need no table; any other one is a table of its own (which functions
share a table is not published)."""

DMA_TRANSPOSE_RATE = 0.9
"""Share of the DMA bandwidth a transpose of 2- or 4-byte elements reaches from HBM (T2)."""
DMA_TRANSPOSE_ON_CHIP_RATE = 0.5
"""The same between SBUF and SBUF (T2)."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one instruction costs.

    Attributes:
        queue: the queue it waits in.
        engine: compute engine, or ``dma``.
        busy_ns: time until the queue can start its next instruction (DMA: the issue time).
        engine_bytes: DMA only: bytes charged to each DMA engine.
        hbm_read: bytes read from HBM.
        hbm_write: bytes written to HBM.
        load_ns: TensorE: weight load, hidden unless the engine was idle.
        table: activation table needed, empty for none.
        flops: multiply-adds of a matmul times two.
        psum: whether an operand is in PSUM.
    """

    queue: str
    engine: str
    busy_ns: float
    engine_bytes: tuple[float, ...] = ()
    hbm_read: int = 0
    hbm_write: int = 0
    load_ns: float = 0.0
    table: str = ""
    flops: int = 0
    psum: bool = False

    @property
    def is_dma(self) -> bool:
        """Whether DMA engines do the work."""
        return self.engine == "dma"


# Cycles per compute instruction ---------------------------------------------------------------


def _size(window: Window | None) -> int:
    return int(np.prod(window.shape[1:], dtype=np.int64)) if isinstance(window, Window) else 0


def _largest(outs: Operands, ins: Operands) -> int:
    return max((_size(w) for w in (*outs, *ins)), default=0)


def _contiguous(window: Window) -> bool:
    return len(window.shape) < 2 or window.strides[-1] == window.dtype.itemsize


def _in_psum(window: Window | None) -> bool:
    return isinstance(window, Window) and window.memory.name == "psum"


def _all_dtypes(windows: Iterable[Window], names: Sequence[str]) -> bool:
    return all(short_name(w.dtype) in names for w in windows)


def _speedup(engine: str, outs: Operands, ins: Operands, target: Target) -> int:
    """Divisor of the wide modes of tensor_copy and tensor_scalar (T2, T3)."""
    source, destination = ins[0], outs[0]
    assert source is not None and destination is not None
    both = (source, destination)
    if engine == isa.SCALAR:
        return (
            2 if target.scalar_wide_dtypes and _all_dtypes(both, target.scalar_wide_dtypes) else 1
        )
    if engine != isa.VECTOR or not target.vector_wide_dtypes:
        return 1
    if not _all_dtypes(both, target.vector_wide_dtypes):
        return 1
    contiguous = all(_contiguous(w) for w in both)
    in_psum = sum(_in_psum(w) for w in both)
    if in_psum == 0:
        return 4 if contiguous else 2
    return 2 if in_psum == 1 and contiguous else 1


Cycles: TypeAlias = Callable[[Instruction, Operands, Operands, Target], float]


def _elementwise(_: Instruction, outs: Operands, ins: Operands, __: Target) -> float:
    return _largest(outs, ins)


def _copy(instruction: Instruction, outs: Operands, ins: Operands, target: Target) -> float:
    return _largest(outs, ins) / _speedup(instruction.engine, outs, ins, target)


def _two_tiles(instruction: Instruction, outs: Operands, ins: Operands, target: Target) -> float:
    size = _largest(outs, ins)
    left, right = ins[0], ins[1]
    out = outs[0]
    assert left is not None and right is not None and out is not None
    if instruction.engine == isa.VECTOR:
        if _in_psum(left) != _in_psum(right):
            return size
        if not _in_psum(left):
            every = (left, right, out)
            plain = instruction.attr("op") in ("add", "subtract", "multiply")
            wide = [n for n in target.vector_wide_dtypes if n in ("bf16", "f16")]
            if plain and _all_dtypes(every, ("bf16",)) and all(_contiguous(w) for w in every):
                return size
            if wide and _all_dtypes(every, wide):
                return size
    return 2 * size


def _scalar_two_tiles(instruction: Instruction, outs: Operands, ins: Operands, _: Target) -> float:
    size = _largest(outs, ins)
    tiles = [w for w in (ins[0], ins[2]) if w is not None]
    fast = instruction.attr("op0") == "subtract" and instruction.attr("op1") == "multiply"
    return size if fast and size % 2 == 0 and _all_dtypes(tiles, ("bf16",)) else 2 * size


def _reduce(instruction: Instruction, outs: Operands, ins: Operands, _: Target) -> float:
    both = [w for w in (*outs, *ins) if w is not None]
    half = instruction.attr("op") in ("add", "maximum") and _all_dtypes(both, ("bf16",))
    return _largest(outs, ins) / (2 if half else 1)


def _predicated(_: Instruction, outs: Operands, ins: Operands, __: Target) -> float:
    size = _largest(outs, ins)
    return size if any(_in_psum(w) for w in ins[:2]) else 2 * size


def _memset(instruction: Instruction, outs: Operands, ins: Operands, _: Target) -> float:
    out = outs[0]
    assert out is not None
    half = out.dtype.itemsize == 2 and instruction.ins[0] == 0
    return _size(out) / (2 if half else 1)


def _activation(_: Instruction, outs: Operands, ins: Operands, target: Target) -> float:
    size = max(target.min_cycles, _largest(outs[:1], ins[:1]))
    return size + (target.read_accumulator_cycles if len(outs) > 1 else 0)


def _gpsimd_ramp(_: Instruction, outs: Operands, __: Operands, target: Target) -> float:
    return target.gpsimd_start_cycles + _size(outs[0])


def _partition_reduce(_: Instruction, __: Operands, ins: Operands, target: Target) -> float:
    # Not published. A GpSimd core is wired to 16 partitions (T1) and is taken to add them in turn.
    return target.gpsimd_start_cycles + 16 * _size(ins[0])


def _matmul_factor(windows: Iterable[Window | None], target: Target) -> int:
    present = [w for w in windows if w is not None]
    if any(w.dtype == float64 for w in present):
        return target.matmul_fp64_factor or target.matmul_fp32_factor
    if any(w.dtype.itemsize == 4 for w in present) or not target.concurrent_engines:
        return target.matmul_fp32_factor
    return 1


def _matmul(_: Instruction, __: Operands, ins: Operands, target: Target) -> float:
    columns = max(min(target.min_cycles, _size(ins[0])), _size(ins[1]))
    return columns * _matmul_factor(ins, target)


def _transpose(instruction: Instruction, outs: Operands, ins: Operands, target: Target) -> float:
    data = ins[0]
    assert data is not None
    if instruction.engine != isa.TENSOR:
        return _largest(outs, ins)
    # The transpose mode of v3 and v4 moves 4-byte elements twice as fast as an fp32 matmul (T2).
    factor = _matmul_factor(ins, target)
    if factor > 1 and target.transpose_keeps_dtype:
        factor //= 2
    return max(data.shape[0], min(target.min_cycles, _size(data))) * factor


CYCLES: dict[str, Cycles] = {
    "nc_matmul": _matmul,
    "nc_transpose": _transpose,
    "activation": _activation,
    "tensor_tensor": _two_tiles,
    "tensor_scalar": _copy,
    "scalar_tensor_tensor": _scalar_two_tiles,
    "tensor_reduce": _reduce,
    "tensor_tensor_scan": lambda i, o, s, t: 2 * _largest(o, s),
    "tensor_copy": _copy,
    "tensor_copy_predicated": _predicated,
    "reciprocal": lambda i, o, s, t: 8 * _largest(o, s),
    "memset": _memset,
    "iota": _gpsimd_ramp,
    "affine_select": _gpsimd_ramp,
    "tensor_partition_reduce": _partition_reduce,
    "max8": _elementwise,
    "nc_find_index8": _elementwise,
    "row_sort": lambda i, o, s, t: _largest(o, s) * max(1, _largest(o, s).bit_length()) ** 2,
}
"""Cycles of each compute instruction on its engine's clock, before the minimum is applied
(ISA-2510, T1, T2, T3)."""


# Bytes per DMA --------------------------------------------------------------------------------


def contiguous_elements(window: Window) -> int:
    """Elements of the innermost contiguous run; on chip a run never leaves its partition."""
    run = 1
    item = window.dtype.itemsize
    first = 1 if window.partitions is not None or isinstance(window, RowsView) else 0
    for count, stride in zip(window.shape[:first:-1], window.strides[:first:-1], strict=True):
        if count == 1:
            continue
        if stride != run * item:
            return run
        run *= count
    if len(window.shape) > first and window.strides[first] == run * item:
        run *= max(1, window.shape[first])
    return run


def _dma(instruction: Instruction, outs: Operands, ins: Operands, target: Target) -> Work:
    destination, source = outs[0], ins[0]
    assert destination is not None and source is not None
    count = int(np.prod(destination.shape, dtype=np.int64))
    item = max(destination.dtype.itemsize, source.dtype.itemsize)
    charged = float(count * item)
    if instruction.op == "dma_transpose":
        if item in (2, 4):
            on_chip = all(w.partitions is not None for w in (destination, source))
            charged /= DMA_TRANSPOSE_ON_CHIP_RATE if on_chip else DMA_TRANSPOSE_RATE
        else:
            charged = float(count * target.dma_packet_bytes)
    elif count:
        run = min(contiguous_elements(destination), contiguous_elements(source))
        charged = count / run * max(run * item, target.dma_packet_bytes)
        if instruction.op == "dma_compute":
            charged *= 2  # the old destination is read as well
    tile = next((w for w in (destination, source) if w.partitions is not None), None)
    engines = target.dma_engines
    if tile is None or tile.partitions is None or not tile.partitions[1]:
        share = [charged / engines] * engines
    else:
        first, rows = tile.partitions
        share = [0.0] * engines
        for partition in range(first, first + rows):
            share[partition * engines // target.partitions] += charged / rows
    read = count * source.dtype.itemsize if source.partitions is None else 0
    write = count * destination.dtype.itemsize if destination.partitions is None else 0
    if instruction.op == "dma_compute":
        read += write
    return Work(isa.queue(instruction), "dma", target.dma_issue_ns, tuple(share), read, write)


def work(
    instruction: Instruction, outs: Operands, ins: Operands, target: Target, dynamic: bool = False
) -> Work:
    """The cost of one instance.

    Args:
        instruction: the static instruction.
        outs: evaluated destinations.
        ins: evaluated sources, None where an operand is no access.
        target: the hardware row.
        dynamic: whether a register takes part in an address or count.
    """
    if isa.spec(instruction.op).is_dma:
        return _dma(instruction, outs, ins, target)
    engine = instruction.engine
    cycles = max(float(target.min_cycles), CYCLES[instruction.op](instruction, outs, ins, target))
    if instruction.op == "nc_matmul":
        # Small matmuls are bound by the larger of the stationary columns and 64 (ISA-2510).
        cycles = max(1.0, CYCLES["nc_matmul"](instruction, outs, ins, target))
    if dynamic:
        cycles = max(cycles, float(target.dynamic_offset_cycles))
    clock = target.clock_ghz(engine)
    load, flops, table = 0.0, 0, ""
    if instruction.op == "nc_matmul" and ins[0] is not None:
        columns = _size(ins[0])
        load = columns / target.fast_weight_load * _matmul_factor(ins, target) / clock
        flops = 2 * ins[0].shape[0] * columns * _size(ins[1])
    if instruction.op == "activation":
        name = str(instruction.attr("op"))
        table = "" if name in TABLE_FREE else name
    psum = any(_in_psum(w) for w in (*outs, *ins))
    return Work(
        instruction.engine,
        engine,
        cycles / clock,
        load_ns=load,
        table=table,
        flops=flops,
        psum=psum,
    )


# Placing work in time -------------------------------------------------------------------------


@dataclass(slots=True)
class Times:
    """When one instance ran: ``start`` to ``end`` on its lane, results usable at ``finish``."""

    issue: float
    start: float
    end: float
    finish: float


@dataclass(slots=True)
class Usage:
    """Totals of one queue."""

    busy_ns: float = 0.0
    instructions: int = 0


@dataclass
class Clock:
    """When every resource of the core is free, in ns since the program started."""

    target: Target
    queue_free: dict[str, float] = field(default_factory=dict)
    hbm: Channel = field(default_factory=Channel)
    ports: dict[str, Channel] = field(default_factory=dict)
    dma: DmaEngines = field(init=False)
    tile_ready: dict[str, tuple[str, float]] = field(default_factory=dict)
    queue_end: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    table: str = ""
    table_loads: int = 0
    usage: dict[str, Usage] = field(default_factory=dict)
    hbm_read: int = 0
    hbm_write: int = 0
    flops: int = 0

    def __post_init__(self) -> None:
        self.dma = DmaEngines(self.target.dma_engines)

    @property
    def total_ns(self) -> float:
        """Time at which everything issued so far has finished."""
        return max(self.queue_end.values(), default=self.now) if self.queue_end else self.now

    def barrier(self, extra_ns: float = 0.0) -> None:
        """Everything issued later starts after everything issued so far, plus ``extra_ns``."""
        self.now = max(self.now, self.total_ns) + extra_ns
        self.tile_ready.clear()
        self.dma.forget()
        for channel in (self.hbm, *self.ports.values()):
            channel.forget()

    def issue(
        self,
        item: Work,
        waits: Iterable[tuple[str, float]],
        reads: Sequence[str],
        writes: Sequence[str],
    ) -> Times:
        """Place one instance in time.

        Args:
            item: its cost.
            waits: ``(queue, finish)`` of the instances it waits for.
            reads: names of the tiles it reads.
            writes: names of the tiles it writes.
        """
        queue = item.queue if self.target.concurrent_engines else "one"
        start = max(self.now, self.queue_free.get(queue, 0.0))
        for other, finish in waits:
            # A DMA's finish already holds the time its completion takes to reach a consumer.
            signal = 0.0 if other.startswith("dma:") else self.target.semaphore_ns
            start = max(start, finish + signal)
        for tile in reads:
            writer, ready = self.tile_ready.get(tile, ("", 0.0))
            if writer == item.queue:
                start = max(start, ready)
        times = self._dma(item, queue, start) if item.is_dma else self._compute(item, queue, start)
        for tile in writes:
            self.tile_ready[tile] = (item.queue, times.finish)
        use = self.usage.setdefault(item.queue, Usage())
        use.busy_ns += times.end - times.start
        use.instructions += 1
        self.queue_end[item.queue] = max(self.queue_end.get(item.queue, 0.0), times.finish)
        self.hbm_read += item.hbm_read
        self.hbm_write += item.hbm_write
        self.flops += item.flops
        return times

    def _compute(self, item: Work, queue: str, start: float) -> Times:
        issue = start
        if item.load_ns and start > self.queue_free.get(queue, 0.0):
            start += item.load_ns
        if item.table and item.table != self.table:
            self.table = item.table
            self.table_loads += 1
            start += self.target.activation_table_ns
        end = start + item.busy_ns
        port = self._port(item)
        if port:
            start, end = self.ports.setdefault(port, Channel()).take(start, item.busy_ns)
        self.queue_free[queue] = end
        return Times(issue, start, end, end + self.target.latency_ns(item.engine))

    def _port(self, item: Work) -> str:
        """The memory port two engines take turns on (NeuronCore-v2), empty when there is none."""
        target = self.target
        if target.vector_scalar_share_psum and item.psum and item.engine in ("vector", "scalar"):
            return "psum"
        both = item.engine in ("vector", "gpsimd")
        return "sbuf" if target.vector_gpsimd_share_sbuf and both and not item.psum else ""

    def _dma(self, item: Work, queue: str, issue: float) -> Times:
        target = self.target
        begin = issue + target.dma_start_ns
        rate = target.dma_engine_bytes_per_ns
        start, end = self.dma.take(begin, [amount / rate for amount in item.engine_bytes])
        moved = item.hbm_read + item.hbm_write
        if moved:
            first, last = self.hbm.take(begin, moved / target.hbm_bytes_per_ns)
            start, end = max(start, first), max(end, last)
        # A queue finishes in order.
        finish = max(end + target.dma_completion_ns, self.queue_end.get(item.queue, 0.0))
        self.queue_free[queue] = issue + item.busy_ns if target.concurrent_engines else end
        return Times(issue, start, end, finish)
