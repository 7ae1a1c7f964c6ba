"""The interactive timeline page: one HTML text with its data, style and script inside."""

from __future__ import annotations

import html
import json
from typing import Any

from trnx.compiler.sim.timeline import (
    AGGREGATE_ABOVE,
    Timeline,
    format_time,
    shapes_text,
    source_of,
    source_text,
)
from trnx.compiler.sim.timeline_script import SCRIPT, STYLE
from trnx.compiler.sim.timeline_svg import PALETTE
from trnx.compiler.tile.text import instruction_text


def render(timeline: Timeline) -> str:
    """The page; it loads nothing and works from a file."""
    name = html.escape(timeline.program.name)
    hint = "wheel zooms, drag pans, double click fits"
    if len(timeline.events) > AGGREGATE_ABOVE:
        hint = f"a block is several neighbouring instructions; {hint}"
    data = json.dumps(page_data(timeline), separators=(",", ":")).replace("</", "<\\/")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name} on {timeline.program.target}</title>",
            f"<style>{STYLE}</style></head><body><main>",
            _header(timeline),
            '<section class="card">',
            '<div class="bar"><div id="legend"></div><div class="buttons">',
            f'<span class="hint">{hint}</span>',
            '<button id="in" title="zoom in (+)">+</button>',
            '<button id="out" title="zoom out (-)">&minus;</button>',
            '<button id="fit" title="whole run (0)">Fit</button>',
            "</div></div>",
            '<canvas id="lanes" tabindex="0"></canvas><canvas id="map"></canvas>',
            "</section>",
            _tables(timeline),
            '<div id="tip"></div>',
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{SCRIPT}</script>",
            "</main></body></html>",
        ]
    )


def page_data(timeline: Timeline) -> dict[str, Any]:
    """Everything the script draws, with instructions, shapes and sources stored once."""
    instructions: dict[tuple[int, int], int] = {}
    texts: list[list[str]] = []
    shapes: dict[str, int] = {}
    columns: dict[str, list[float]] = {
        key: [] for key in ("lane", "row", "start", "time", "text", "call", "shape", "n", "busy")
    }
    rows = [1] * len(timeline.lanes)
    for block in timeline.blocks():
        event = block.event
        key = (event.call, event.instruction.id)
        if key not in instructions:
            instructions[key] = len(texts)
            where, line = source_text(source_of(timeline, event))
            text = instruction_text(event.instruction)
            texts.append([event.instruction.op, text, where, line])
        shape = shapes.setdefault(shapes_text(event.shapes), len(shapes))
        rows[block.lane] = max(rows[block.lane], block.row + 1)
        columns["lane"].append(block.lane)
        columns["row"].append(block.row)
        columns["start"].append(round(block.start, 1))
        columns["time"].append(round(block.end - block.start, 1))
        columns["text"].append(instructions[key])
        columns["call"].append(event.call)
        columns["shape"].append(shape)
        columns["n"].append(block.count)
        columns["busy"].append(round(block.busy, 3))
    counts = {use.name: use.instructions for use in timeline.cost.queues}
    return {
        "total": timeline.total_ns,
        "lanes": [
            {
                "name": name,
                "share": timeline.cost.share(name),
                "count": counts.get(name, 0),
                "rows": rows[i],
            }
            for i, name in enumerate(timeline.lanes)
        ],
        "kernels": list(timeline.kernels),
        "colours": [PALETTE[i % len(PALETTE)] for i in range(len(timeline.kernels))],
        "calls": {
            call: [timeline.kernels.index(timeline.kernel_name(call)), start, end]
            for call, start, end in timeline.call_spans
        },
        "texts": texts,
        "shapes": list(shapes),
        "blocks": columns,
    }


def _header(timeline: Timeline) -> str:
    cost = timeline.cost
    busiest = cost.busiest
    calls = sum(k.calls for k in cost.kernels)
    figures = [
        ("Modelled time", format_time(timeline.total_ns), f"plus {cost.launch_us:g} µs launch"),
        (
            "Busiest",
            "DMA engines" if busiest == "dma" else busiest,
            f"{100 * cost.share(busiest):.0f} % of the time",
        ),
        (
            "HBM traffic",
            f"{cost.hbm_bytes / 1e6:,.2f} MB",
            f"{cost.hbm_gigabytes_per_second:,.0f} GB/s on average",
        ),
        (
            "Matmul",
            f"{cost.flops / 1e9:,.2f} GFLOP"
            if cost.flops >= 1e8
            else f"{cost.flops / 1e6:,.2f} MFLOP",
            f"{100 * cost.flop_utilisation:.1f} % of the 16-bit peak",
        ),
        (
            "Instructions",
            f"{sum(use.instructions for use in cost.queues):,}",
            f"{calls:,} kernel call{'' if calls == 1 else 's'}",
        ),
    ]
    tiles = "".join(
        f'<div class="figure"><div class="label">{label}</div>'
        f'<div class="value">{html.escape(value)}</div><div class="note">{note}</div></div>'
        for label, value, note in figures
    )
    name = html.escape(timeline.program.name)
    return (
        f"<header><h1>{name}</h1><p>Tile program on one {timeline.program.target} core, timed by "
        f"the cost model of the simulator</p></header>"
        f'<div class="figures">{tiles}</div>'
    )


def _tables(timeline: Timeline) -> str:
    cost = timeline.cost
    queues = "".join(
        f"<tr><td>{name}</td><td>{count}</td><td>{busy}</td><td>{share} %</td></tr>"
        for name, count, busy, share in cost.rows()
    )
    kernels = "".join(
        f"<tr><td>{html.escape(k.name)}</td><td>{k.calls:,}</td><td>{k.total_us:,.2f}</td>"
        f"<td>{100 * k.total_us / cost.total_us if cost.total_us else 0:.1f} %</td></tr>"
        for k in cost.kernels
    )
    return (
        '<div class="tables"><section class="card"><h2>Engines and DMA queues</h2><table>'
        "<tr><th>queue</th><th>instructions</th><th>busy µs</th><th>busy</th></tr>"
        f"{queues}</table></section>"
        '<section class="card"><h2>Kernels</h2><table>'
        "<tr><th>kernel</th><th>calls</th><th>time µs</th><th>share</th></tr>"
        f"{kernels}</table></section></div>"
    )
