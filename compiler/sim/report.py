"""What a run or an estimate costs: time per engine, bytes moved, utilisation."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from trnx.compiler.sim.clock import Clock
from trnx.core.display import table_html

QUEUES = ("tensor", "vector", "scalar", "gpsimd", "dma:sync", "dma:scalar", "dma:gpsimd")
"""Lanes in display order: compute engines, then DMA queues by their trigger."""


@dataclass(frozen=True, slots=True)
class QueueUse:
    """One engine or DMA queue: instructions run and time busy, of ``total_us``."""

    name: str
    instructions: int
    busy_us: float
    total_us: float

    @property
    def share(self) -> float:
        """Busy part of the total time, 0 to 1."""
        return self.busy_us / self.total_us if self.total_us else 0.0

    @property
    def idle_us(self) -> float:
        """Time not busy."""
        return max(0.0, self.total_us - self.busy_us)


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Calls of one kernel and the time they took together, in us."""

    name: str
    calls: int
    total_us: float


@dataclass(frozen=True, slots=True)
class CostReport:
    """Modelled cost of a tile program on one core of ``target``.

    Attributes:
        target: name of the target row.
        total_us: time from the first to the last instruction, in us, without the launch.
        launch_us: start and teardown of a program on the device, in us.
        queues: use per compute engine and DMA queue (only those with instructions).
        dma_busy_us: busy time of the busiest of the DMA engines, in us.
        hbm_read: bytes read from HBM.
        hbm_write: bytes written to HBM.
        flops: floating point operations of the matmuls.
        peak_flops: the matmul peak in 16-bit floats, operations per us.
        table_loads: ScalarE function table loads.
        kernels: calls and time per kernel, in order of first call.
        host_calls: names of host functions called; their time is not part of the model.
        assumptions: what the estimate had to assume, one sentence each.
    """

    target: str
    total_us: float
    launch_us: float
    queues: tuple[QueueUse, ...]
    dma_busy_us: float
    hbm_read: int
    hbm_write: int
    flops: int
    peak_flops: float
    table_loads: int
    kernels: tuple[KernelUse, ...]
    host_calls: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def busiest(self) -> str:
        """Name of the busiest compute engine, or ``dma`` when the DMA engines are."""
        best, time = "", 0.0
        for use in self.queues:
            if not use.name.startswith("dma:") and use.busy_us > time:
                best, time = use.name, use.busy_us
        return "dma" if self.dma_busy_us > time or not best else best

    @property
    def hbm_bytes(self) -> int:
        """Bytes moved between HBM and the core, both directions."""
        return self.hbm_read + self.hbm_write

    @property
    def flop_utilisation(self) -> float:
        """Share of the 16-bit matmul peak over the whole time, 0 to 1."""
        return self.flops / (self.peak_flops * self.total_us) if self.total_us else 0.0

    @property
    def hbm_gigabytes_per_second(self) -> float:
        """Average HBM traffic in GB/s."""
        return self.hbm_bytes / (self.total_us * 1e3) if self.total_us else 0.0

    def share(self, name: str) -> float:
        """Busy share of an engine or queue (0 when it ran nothing); ``dma`` is the DMA engines."""
        if name == "dma":
            return self.dma_busy_us / self.total_us if self.total_us else 0.0
        return next((use.share for use in self.queues if use.name == name), 0.0)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """``(name, instructions, busy us, busy %)`` as text, for tables."""
        return [
            (use.name, f"{use.instructions:,}", f"{use.busy_us:,.2f}", f"{100 * use.share:.1f}")
            for use in self.queues
        ]

    def summary(self) -> str:
        """One line."""
        text = (
            f"{self.total_us:,.2f} us on {self.target} (+ {self.launch_us:,.1f} us launch), "
            f"busiest {self.busiest} {100 * self.share(self.busiest):.0f} %, "
            f"HBM {self.hbm_bytes / 1e6:,.2f} MB at {self.hbm_gigabytes_per_second:,.0f} GB/s"
        )
        if self.flops:
            text += f", matmul {100 * self.flop_utilisation:.1f} % of 16-bit peak"
        return text

    def __str__(self) -> str:
        lines = [self.summary()]
        lines += [f"  {n:<11} {c:>9} instr {b:>12} us {p:>6} %" for n, c, b, p in self.rows()]
        lines += [f"  kernel {k.name}: {k.calls} x, {k.total_us:,.2f} us" for k in self.kernels]
        lines += [f"  host call {name}" for name in self.host_calls]
        lines += [f"  assumed: {text}" for text in self.assumptions]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<CostReport: {self.summary()}>"

    def _repr_html_(self) -> str:
        queues = [
            (use.name, _bar(use.share), count, busy, f"{share} %")
            for use, (_, count, busy, share) in zip(self.queues, self.rows(), strict=True)
        ]
        kernels = [
            (
                html.escape(k.name),
                _bar(share),
                f"{k.calls:,}",
                f"{k.total_us:,.2f}",
                f"{100 * share:.1f} %",
            )
            for k in self.kernels
            for share in [k.total_us / self.total_us if self.total_us else 0.0]
        ]
        notes = [f"host call {name}" for name in self.host_calls]
        notes += [f"assumed: {text}" for text in self.assumptions]
        below = "".join(f"<div>{html.escape(note)}</div>" for note in notes)
        return (
            f"<div><b>Modelled cost</b> {html.escape(self.summary())}"
            f"{table_html(('engine or queue', '', 'instructions', 'busy µs', 'busy'), queues, 3)}"
            f"{table_html(('kernel', '', 'calls', 'µs', 'of total'), kernels, 3)}{below}</div>"
        )


def _bar(share: float) -> str:
    """A bar of at most 160 pixels."""
    inner = f"width:{160 * min(share, 1.0):.0f}px;height:9px;background:#3b6fb6"
    outer = "width:160px;background:rgba(128,128,128,0.15)"
    return f'<div style="{outer}"><div style="{inner}"></div></div>'


def make_report(
    clock: Clock,
    kernels: Sequence[KernelUse],
    host_calls: Sequence[str] = (),
    assumptions: Sequence[str] = (),
) -> CostReport:
    """The report of a clock at the end of a program."""
    target = clock.target
    total = clock.total_ns / 1e3
    queues = tuple(
        QueueUse(name, use.instructions, use.busy_ns / 1e3, total)
        for name in QUEUES
        if (use := clock.usage.get(name)) is not None
    )
    array = target.matmul_max_contract * target.matmul_max_stationary
    return CostReport(
        target=target.name,
        total_us=total,
        launch_us=target.launch_ns / 1e3,
        queues=queues,
        dma_busy_us=clock.dma.busiest / 1e3,
        hbm_read=clock.hbm_read,
        hbm_write=clock.hbm_write,
        flops=clock.flops,
        peak_flops=2.0 * array * target.tensor_clock_ghz * 1e3,
        table_loads=clock.table_loads,
        kernels=tuple(kernels),
        host_calls=tuple(host_calls),
        assumptions=tuple(assumptions),
    )
