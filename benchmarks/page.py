"""Writes the generated sections of docs/performance.md from the files in benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import geometric_mean, grouped

RESULTS: Final = Path(__file__).parent / "results"
PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"

_TIMES: Final = ("trnx_ms", "jax_ms", "torch_ms", "inductor_ms")
_BASE: Final = frozenset({"workload", *_TIMES, "ratio", "limit_share"})


def table(suite: str) -> str:
    """The rows of one suite's file as Markdown, with the machine above and the mean below.

    Columns no peer filled are left out; what a suite counts besides gets columns of its own.

    Raises:
        FileNotFoundError: the suite has no file in benchmarks/results.
    """
    document = json.loads((RESULTS / f"{suite}.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = document["rows"]
    columns = ["workload", *(c for c in (*_TIMES, "ratio", "limit_share") if _filled(rows, c))]
    columns += sorted({name for row in rows for name in row} - _BASE)
    lines = [_machine(document["machine"]), ""]
    lines.append(f"| {' | '.join(_title(c) for c in columns)} |")
    lines.append("|" + " --- |" * len(columns))
    lines += [f"| {' | '.join(_cell(row.get(c)) for c in columns)} |" for row in rows]
    for missing in document["not_available"]:
        reason = missing["reason"].replace("|", "\\|")
        lines.append(f"| {missing['workload']} | not yet available: {reason} |")
    lines.append("")
    for mode, ratios in grouped((row["workload"], row["ratio"]) for row in rows):
        mean, least = geometric_mean(ratios), min(ratios)
        lines.append(
            f"Geometric mean of best peer / trnx{mode}: **{mean:.2f}**; least {least:.2f}."
        )
    return "\n".join(lines) + "\n"


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['threads']} threads for every peer, measured limits "
        f"{machine['flops'] / 1e9:.0f} GFLOP/s (f32 FMA) and {machine['bytes'] / 1e9:.1f} GB/s "
        f"(copy, read plus written); {machine['versions']}."
    )


def _filled(rows: list[dict[str, Any]], column: str) -> bool:
    return any(row[column] is not None for row in rows)


def _title(column: str) -> str:
    return (
        column.removesuffix("_ms") + " ms" if column.endswith("_ms") else column.replace("_", " ")
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)


def write() -> None:
    """Writes the page's sections anew."""
    from tools import docs

    PAGE.write_text(docs.filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
