"""The timeline as a static SVG picture: what a notebook shows."""

from __future__ import annotations

import html
from math import floor, log10

from trnx.compiler.sim.timeline import (
    Timeline,
    format_time,
    shapes_text,
    source_of,
    source_text,
)
from trnx.compiler.tile.text import instruction_text

PALETTE = (
    "#3b6fb6",
    "#d9822b",
    "#3a9a5c",
    "#c24a4a",
    "#7d5fb2",
    "#1f9aa6",
    "#b5577f",
    "#8a7d2f",
    "#5b6b7b",
    "#a0622d",
)
"""Colours of kernels, in order of first appearance; they repeat after ten."""

GUTTER = 128
LANE = 30
TOP = 46
MAX_BLOCKS = 1500


def colour(timeline: Timeline, call: int) -> str:
    """The colour of the kernel of a call."""
    position = timeline.kernels.index(timeline.kernel_name(call))
    return PALETTE[position % len(PALETTE)]


def nice_step(span: float, ticks: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts ``span`` into at most ``ticks`` parts."""
    exponent = floor(log10(span / ticks))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if span <= ticks * factor * 10.0**exponent * (1 + 1e-9):
            return factor * 10.0**exponent
    return 10.0 ** (exponent + 1)


def render(timeline: Timeline, width: int) -> str:
    """The SVG text, ``width`` pixels wide; hovering a block shows its instruction."""
    total = max(timeline.total_ns, 1.0)
    scale = (width - GUTTER - 14) / total
    height = TOP + LANE * len(timeline.lanes) + 30
    name = html.escape(timeline.program.name)
    summary = html.escape(timeline.cost.summary())
    size = f"width='{width}' height='{height}'"
    font = "font-family='system-ui, sans-serif' font-size='11'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {width} {height}' {font}>",
        f"<rect {size} fill='#ffffff'/>",
        f"<text x='8' y='18' font-size='13' font-weight='600' fill='#1d2733'>{name}</text>",
        f"<text x='{width - 8}' y='18' text-anchor='end' fill='#52606d'>{summary}</text>",
    ]
    step = nice_step(total, 10)
    tick = 0.0
    bottom = TOP + LANE * len(timeline.lanes)
    while tick <= total:
        x = GUTTER + tick * scale
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{TOP - 6}' y2='{bottom}' stroke='#e4e8ee'/>"
            f"<text x='{x:.1f}' y='{TOP - 10}' text-anchor='middle' fill='#7b8794'>"
            f"{tick / 1e3:g}</text>"
        )
        tick += step
    parts.append(f"<text x='8' y='{TOP - 10}' fill='#7b8794'>time in µs</text>")
    for lane, name in enumerate(timeline.lanes):
        y = TOP + lane * LANE
        share = 100 * timeline.cost.share(name)
        parts.append(
            f"<line x1='0' x2='{width}' y1='{y}' y2='{y}' stroke='#eef1f5'/>"
            f"<text x='8' y='{y + 19}' fill='#1d2733'>{name}</text>"
            f"<text x='{GUTTER - 8}' y='{y + 19}' text-anchor='end' fill='#7b8794'>"
            f"{share:.0f} %</text>"
        )
    blocks = timeline.blocks(MAX_BLOCKS, MAX_BLOCKS // len(timeline.lanes))
    rows = [1] * len(timeline.lanes)
    for block in blocks:
        rows[block.lane] = max(rows[block.lane], block.row + 1)
    for block in blocks:
        event = block.event
        y = TOP + block.lane * LANE + 4
        tall = (LANE - 8) / rows[block.lane]
        where, line = source_text(source_of(timeline, event))
        opacity = 0.35 + 0.65 * block.busy
        count = f"{block.count} instructions, mostly " if block.count > 1 else ""
        title = (
            f"{count}{instruction_text(event.instruction)}\n{shapes_text(event.shapes)}\n"
            f"{format_time(block.end - block.start)} at {format_time(block.start)}\n"
            f"{timeline.kernel_name(event.call)}  {where}  {line}"
        )
        parts.append(
            f"<rect x='{GUTTER + block.start * scale:.2f}' y='{y + block.row * tall:.1f}' "
            f"width='{max(0.6, (block.end - block.start) * scale):.2f}' height='{tall - 0.5:.1f}' "
            f"rx='1' fill='{colour(timeline, event.call)}' opacity='{opacity:.2f}'>"
            f"<title>{html.escape(title)}</title></rect>"
        )
    x = GUTTER
    for position, name in enumerate(timeline.kernels[:8]):
        fill = PALETTE[position % len(PALETTE)]
        parts.append(
            f"<rect x='{x}' y='{bottom + 12}' width='10' height='10' rx='2' fill='{fill}'/>"
            f"<text x='{x + 14}' y='{bottom + 21}' fill='#1d2733'>{html.escape(name)}</text>"
        )
        x += 30 + 7 * len(name)
    parts.append("</svg>")
    return "".join(parts)
