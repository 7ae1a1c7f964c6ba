"""The interactive timeline page."""

from __future__ import annotations

from trnx.compiler.sim.timeline import Timeline


def render(timeline: Timeline) -> str:
    """The page as one HTML text without external resources."""
    return f"<!doctype html><meta charset='utf-8'>{timeline.to_svg(1240)}"
