"""The timeline of a run: events, their text, and the forms they are shown in.

``Timeline.to_html`` writes one self-contained page, ``to_perfetto`` a trace-event file for
ui.perfetto.dev, ``to_svg`` a static picture (which Jupyter shows).
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trnx.compiler.sim.report import QUEUES, CostReport
from trnx.compiler.tile.ir import Instruction, KernelCall, TileProgram
from trnx.core.source import Source

AGGREGATE_ABOVE = 20_000
"""Events beyond which neighbours in a lane are drawn as one block."""
BINS = 3_000
"""Blocks per lane when events are aggregated."""
MAX_ROWS = 3
"""Rows a lane is split into when its events overlap (DMAs in flight at one time)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One executed instruction: times in ns; ``issue`` is when its queue started it."""

    queue: str
    issue: float
    start: float
    end: float
    instruction: Instruction
    call: int
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Block:
    """What is drawn: one event, or ``count`` neighbours of one lane and kernel call.

    ``busy`` is the busy part of ``end - start``, 0 to 1; ``row`` the row inside the lane.
    """

    lane: int
    row: int
    start: float
    end: float
    event: Event
    count: int = 1
    busy: float = 1.0


@dataclass(frozen=True)
class Timeline:
    """Everything one run executed, in program order."""

    program: TileProgram
    events: tuple[Event, ...]
    cost: CostReport

    @property
    def lanes(self) -> tuple[str, ...]:
        """Every engine and DMA queue, idle ones too, in display order."""
        return QUEUES

    @property
    def total_ns(self) -> float:
        """Length of the run in ns."""
        return self.cost.total_us * 1e3

    def kernel_name(self, call: int) -> str:
        """Name of the kernel of a call."""
        made = self.program.calls[call]
        assert isinstance(made, KernelCall)
        return self.program.kernels[made.kernel].name

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """Kernel names in order of first appearance: the legend."""
        return tuple(dict.fromkeys(self.kernel_name(event.call) for event in self.events))

    @cached_property
    def call_spans(self) -> tuple[tuple[int, float, float], ...]:
        """``(call, start, end)`` of every kernel call, in ns."""
        spans: dict[int, tuple[float, float]] = {}
        for event in self.events:
            start, end = spans.get(event.call, (event.start, event.end))
            spans[event.call] = (min(start, event.issue), max(end, event.end))
        return tuple((call, *span) for call, span in sorted(spans.items()))

    def blocks(self, limit: int = AGGREGATE_ABOVE, bins: int = BINS) -> list[Block]:
        """What to draw: every event; beyond ``limit`` events, at most ``bins`` blocks per lane."""
        if len(self.events) <= limit:
            return self._rows()
        return self._bins(bins)

    def _rows(self) -> list[Block]:
        number = {name: i for i, name in enumerate(self.lanes)}
        ends: dict[str, list[float]] = {name: [] for name in self.lanes}
        found = []
        for event in sorted(self.events, key=lambda e: e.start):
            rows = ends[event.queue]
            row = next((r for r, end in enumerate(rows) if end <= event.start + 1e-9), len(rows))
            if row == len(rows) and len(rows) < MAX_ROWS:
                rows.append(0.0)
            elif row == len(rows):
                row = min(range(MAX_ROWS), key=lambda r: rows[r])
            rows[row] = max(rows[row], event.end)
            found.append(Block(number[event.queue], row, event.start, event.end, event))
        return found

    def _bins(self, bins: int) -> list[Block]:
        width = max(self.total_ns / bins, 1e-9)
        found = []
        for lane, name in enumerate(self.lanes):
            groups: dict[tuple[int, int], list[Event]] = {}
            for event in self.events:
                if event.queue == name:
                    groups.setdefault((int(event.start / width), event.call), []).append(event)
            for group in groups.values():
                start = min(e.start for e in group)
                end = max(e.end for e in group)
                spent = sum(e.end - e.start for e in group)
                busy = min(1.0, spent / (end - start)) if end > start else 1.0
                common = Counter(e.instruction.id for e in group).most_common(1)[0][0]
                shown = next(e for e in group if e.instruction.id == common)
                found.append(Block(lane, 0, start, end, shown, len(group), busy))
        return found

    def to_html(self, path: str | Path) -> Path:
        """Write the interactive page; returns its path. It loads nothing from elsewhere."""
        from trnx.compiler.sim.timeline_page import render

        file = Path(path)
        file.write_text(render(self), encoding="utf-8")
        return file

    def to_perfetto(self, path: str | Path) -> Path:
        """Write a trace-event JSON file for ui.perfetto.dev; returns its path."""
        from trnx.compiler.sim.perfetto import render

        file = Path(path)
        file.write_text(render(self), encoding="utf-8")
        return file

    def to_svg(self, width: int = 960) -> str:
        """A static picture, ``width`` pixels wide."""
        from trnx.compiler.sim.timeline_svg import render

        return render(self, width)

    def __repr__(self) -> str:
        return (
            f"<Timeline {self.program.name}: {len(self.events):,} instructions, "
            f"{format_time(self.total_ns)} on {self.cost.target}>"
        )

    def _repr_html_(self) -> str:
        return self.to_svg()

    def _repr_svg_(self) -> str:
        """The same picture for viewers that show no SVG inside HTML."""
        return self.to_svg()


def shapes_text(shapes: Sequence[tuple[int, ...]]) -> str:
    """``[128,512] [128,1]``."""
    return " ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)


def source_of(timeline: Timeline, event: Event) -> Source | None:
    """The user's line of an event: the instruction's, else its kernel's."""
    if event.instruction.source is not None:
        return event.instruction.source
    call = timeline.program.calls[event.call]
    assert isinstance(call, KernelCall)
    return timeline.program.kernels[call.kernel].source


def source_text(source: Source | None) -> tuple[str, str]:
    """``digits.py:31 (loss)`` and the text of that line; empty when unknown."""
    if source is None or not source.file:
        return "", ""
    return str(source), linecache.getline(source.file, source.line).strip()


def format_time(ns: float) -> str:
    """A time with its unit: ``850 ns``, ``12.4 µs``, ``3.21 ms``."""
    if ns < 1e3:
        return f"{ns:.0f} ns"
    if ns < 1e6:
        return f"{ns / 1e3:.2f} µs" if ns < 1e5 else f"{ns / 1e3:.1f} µs"
    return f"{ns / 1e6:.2f} ms"
