"""The timeline page, the Perfetto file and the SVG: complete, self-contained, with the line."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import compile_kernel, rng, run
from trnx.compiler.sim import SimResult, simulate
from trnx.compiler.sim.report import QUEUES
from trnx.compiler.sim.timeline import Timeline, format_time
from trnx.compiler.sim.timeline_svg import nice_step
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.ir import Buffer, KernelCall, TileProgram
from trnx.core.dtypes import float32

F = float32


def _scale(b: KernelBuilder) -> None:
    x, y = b.param("x", (512, 128), F), b.param("y", (512, 128), F, "out")
    with b.loop("i", 0, 4) as i:
        t = b.sbuf((128, 128), F)
        b.dma_copy(t, x[i * 128 : i * 128 + 128], engine="sync")
        b.tensor_scalar(t, t, 2.0, op0="multiply")
        b.dma_copy(y[i * 128 : i * 128 + 128], t, engine="scalar")


def _square(b: KernelBuilder) -> None:
    x, y = b.param("x", (512, 128), F), b.param("y", (512, 128), F, "out")
    with b.loop("i", 0, 4) as i:
        t = b.sbuf((128, 128), F)
        b.dma_copy(t, x[i * 128 : i * 128 + 128], engine="sync")
        b.activation(t, t, op="square")
        b.dma_copy(y[i * 128 : i * 128 + 128], t, engine="scalar")


@pytest.fixture(scope="module")
def result() -> SimResult:
    """Two kernels, the first one called twice."""
    kernels = (compile_kernel(_scale, name="scale"), compile_kernel(_square, name="square"))
    shape = (512, 128)
    buffers = (
        Buffer("x", shape, F, "input"),
        Buffer("a", shape, F, "temp", 0),
        Buffer("b", shape, F, "temp", 512 * 128 * 4),
        Buffer("y", shape, F, "output"),
    )
    calls = (
        KernelCall(0, ("x", "a")),
        KernelCall(1, ("a", "b")),
        KernelCall(0, ("b", "y")),
    )
    program = TileProgram(
        "demo </script>", "trn2", buffers, kernels, calls, ("y",), (), 512 * 128 * 8
    )
    x = rng().standard_normal(shape).astype(F)
    made = simulate(program, [x])
    np.testing.assert_array_equal(made.outputs[0], (x * 2) ** 2 * 2)
    return made


def page_data(text: str) -> dict[str, Any]:
    """The data the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found.group(1))


def test_html_is_self_contained_and_complete(result: SimResult, tmp_path: Path) -> None:
    """One lane per engine and DMA queue, all events, kernels, lines; nothing loaded."""
    path = result.timeline.to_html(tmp_path / "timeline.html")
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)\s*=|@import|https?://", text)
    data = page_data(text)
    assert [lane["name"] for lane in data["lanes"]] == list(QUEUES)
    assert data["kernels"] == ["scale", "square"]
    blocks = data["blocks"]
    assert len(blocks["start"]) == len(result.timeline.events) == 36
    assert data["total"] == pytest.approx(result.total_us * 1e3)
    assert max(s + t for s, t in zip(blocks["start"], blocks["time"], strict=True)) <= data["total"]
    lines = {text[3] for text in data["texts"]}
    assert 'b.activation(t, t, op="square")' in lines
    assert any(re.match(r"test_timeline\.py:\d+ \(_square\)", text[2]) for text in data["texts"])
    assert "[128,128] [128,128]" in data["shapes"]
    counts = {lane["name"]: lane["count"] for lane in data["lanes"]}
    assert counts["vector"] == 8 and counts["scalar"] == 4 and counts["gpsimd"] == 0
    assert "<h1>demo &lt;/script&gt;</h1>" in text
    assert "Modelled time" in text and "µs" in text


def test_calls_follow_each_other(result: SimResult) -> None:
    """A kernel starts when the one before it has ended."""
    spans = result.timeline.call_spans
    assert [call for call, _, _ in spans] == [0, 1, 2]
    for (_, _, end), (_, start, _) in pairwise(spans):
        assert start >= end


def test_rows_of_a_lane_do_not_overlap(result: SimResult) -> None:
    """DMAs in flight at one time are drawn in rows of their own."""
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for block in result.timeline.blocks():
        rows.setdefault((block.lane, block.row), []).append((block.start, block.end))
    for spans in rows.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-6


def test_aggregation_keeps_counts_and_busy_time(result: SimResult) -> None:
    """Beyond the limit neighbours become one block with a count."""
    timeline = result.timeline
    blocks = timeline.blocks(limit=10, bins=5)
    assert len(blocks) < len(timeline.events)
    assert sum(block.count for block in blocks) == len(timeline.events)
    assert any(block.count > 1 for block in blocks)
    assert all(0 < block.busy <= 1 for block in blocks)
    busy = sum(b.busy * (b.end - b.start) for b in blocks if QUEUES[b.lane] == "vector")
    assert busy == pytest.approx(1e3 * result.cost.share("vector") * result.total_us, rel=1e-6)


def test_perfetto(result: SimResult, tmp_path: Path) -> None:
    """Complete events in us on named tracks."""
    path = result.timeline.to_perfetto(tmp_path / "trace.json")
    trace = json.loads(path.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"vector", "scalar", "dma:sync", "dma:scalar"} <= names
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(result.timeline.events)
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in complete:
        tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
        assert event["args"]["source"].startswith("test_timeline.py:")
    for spans in tracks.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-6


def test_svg_is_well_formed_and_shown_in_notebooks(result: SimResult) -> None:
    """Parses as XML; a title per block with instruction, time, kernel and line."""
    svg = result._repr_html_()
    tree = ElementTree.fromstring(svg)
    titles = [t.text or "" for t in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(result.timeline.events)
    assert all("test_timeline.py:" in t and (" ns" in t or " µs" in t) for t in titles)
    assert "demo &lt;/script&gt;" in svg and ">square<" in svg and "time in µs" in svg


def test_empty_timeline_has_a_page(result: SimResult, tmp_path: Path) -> None:
    """Nothing ran: still a page and a picture."""
    empty = Timeline(result.timeline.program, (), result.cost)
    assert (
        page_data(empty.to_html(tmp_path / "e.html").read_text(encoding="utf-8"))["kernels"] == []
    )
    ElementTree.fromstring(empty.to_svg())


def test_timeline_can_be_switched_off() -> None:
    """No events kept, the cost is still there."""
    result = run(_scale, [np.ones((512, 128), F)], timeline=False)
    assert not result.timeline.events and result.total_us > 0


@pytest.mark.parametrize(
    ("ns", "text"),
    [(12.0, "12 ns"), (1500.0, "1.50 µs"), (123456.0, "123.5 µs"), (2.5e6, "2.50 ms")],
)
def test_format_time(ns: float, text: str) -> None:
    """A unit is always there."""
    assert format_time(ns) == text


@pytest.mark.parametrize(
    ("span", "step"), [(100.0, 10.0), (101.0, 20.0), (7.0, 1.0), (0.03, 0.005)]
)
def test_ticks_are_round_numbers(span: float, step: float) -> None:
    """1, 2 or 5 times a power of ten, at most ten ticks."""
    assert nice_step(span, 10) == pytest.approx(step)
