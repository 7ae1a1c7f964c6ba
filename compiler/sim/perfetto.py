"""The timeline as a trace-event JSON document, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from trnx.compiler.sim.timeline import (
    Timeline,
    shapes_text,
    source_of,
    source_text,
)
from trnx.compiler.tile.text import instruction_text

PROCESS = 1
ROWS_PER_LANE = 8


def render(timeline: Timeline) -> str:
    """The JSON text: one track per lane row, one complete event per instruction, times in us."""
    events: list[dict[str, Any]] = [
        {
            "ph": "M",
            "pid": PROCESS,
            "name": "process_name",
            "args": {"name": f"{timeline.program.name} on {timeline.program.target}"},
        }
    ]
    named: set[int] = set()
    for block in timeline.blocks(limit=10**9):
        track = 1 + block.lane * ROWS_PER_LANE + block.row
        if track not in named:
            named.add(track)
            events += _track(track, timeline.lanes[block.lane], block.row)
        event = block.event
        where, line = source_text(source_of(timeline, event))
        events.append(
            {
                "ph": "X",
                "pid": PROCESS,
                "tid": track,
                "ts": block.start / 1e3,
                "dur": (block.end - block.start) / 1e3,
                "name": event.instruction.op,
                "cat": timeline.kernel_name(event.call),
                "args": {
                    "instruction": instruction_text(event.instruction),
                    "shapes": shapes_text(event.shapes),
                    "kernel": timeline.kernel_name(event.call),
                    "issued_us": event.issue / 1e3,
                    "source": where,
                    "line": line,
                },
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"))


def _track(track: int, lane: str, row: int) -> list[dict[str, Any]]:
    name = lane if row == 0 else f"{lane} ({row + 1})"
    base = {"ph": "M", "pid": PROCESS, "tid": track}
    return [
        {**base, "name": "thread_name", "args": {"name": name}},
        {**base, "name": "thread_sort_index", "args": {"sort_index": track}},
    ]
