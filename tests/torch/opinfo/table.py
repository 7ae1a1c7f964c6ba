"""Figures and tables from results; nothing here measures."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Entry = dict[str, Any]
Results = dict[str, dict[str, Entry]]

DTYPES = ("float32", "int64", "bool", "bfloat16")
PARTS: dict[str, tuple[str, ...]] = {
    "operators": (*DTYPES, "gradient", "compiled"),
    "modules": ("train", "eval"),
    "optimizers": ("plain", "foreach", "fused"),
}
RANK = ("unsupported", "fallback", "composite", "native")
"""How an operator runs, worst first."""


def part_text(part: Entry | None) -> str:
    """One cell: how it runs, and what failed."""
    if part is None:
        return ""
    failed = part.get("failed", 0)
    share = f"{part['samples'] - failed}/{part['samples']}"
    word = part.get("runs") or ("fallback" if part.get("fallbacks") else "yes")
    if failed == part["samples"]:
        return "no" if "runs" not in part else "unsupported"
    return word if not failed else f"{word} {share}"


def line(kind: str, entry: Entry) -> str:
    """An entry in one line for people."""
    if "crash" in entry:
        return str(entry["crash"])
    return ", ".join(f"{p} {part_text(entry[p])}" for p in PARTS[kind] if p in entry)


def _agreement(entries: dict[str, Entry], part: str) -> tuple[int, int, int, int]:
    """(samples that agree, samples, entries without a failure, entries)."""
    found = [e[part] for e in entries.values() if part in e]
    samples = sum(p["samples"] for p in found)
    failed = sum(p.get("failed", 0) for p in found)
    return samples - failed, samples, sum(not p.get("failed") for p in found), len(found)


def summary(results: Results) -> str:
    """The figures as a Markdown table."""
    lines = ["| what | samples that agree | entries without a difference | without fallback |"]
    lines.append("| --- | --- | --- | --- |")
    for kind, parts in PARTS.items():
        entries = results.get(kind, {})
        for part in parts:
            good, samples, clean, count = _agreement(entries, part)
            if not count:
                continue
            own = [e[part] for e in entries.values() if part in e]
            without = sum(not p.get("failed") and not p.get("fallbacks") for p in own)
            lines.append(
                f"| {kind}, {part} | {good} of {samples} ({good / samples:.1%}) "
                f"| {clean} of {count} ({clean / count:.1%}) | {without} |"
            )
        crashes = sum("crash" in e for e in entries.values())
        if crashes:
            lines.append(f"| {kind}, crashed | | {crashes} | |")
    return "\n".join(lines)


def failures(results: Results) -> str:
    """Failures, and operators by the fallback they meet: what to work on next."""
    lines = [summary(results), ""]
    for kind, entries in results.items():
        for name, entry in sorted(entries.items()):
            if "crash" in entry:
                lines.append(f"CRASH {kind} {name}: {entry['crash']}")
    for kind, parts in PARTS.items():
        for part in parts:
            lines += ["", f"== {kind}: {part}: failures"]
            for name, entry in sorted(results.get(kind, {}).items()):
                found = entry.get(part, {})
                if found.get("failed"):
                    share = f"{found['failed']}/{found['samples']}"
                    lines.append(f"{name} ({share}): {found['why']}")
    for part in ("float32", "int64", "bool", "bfloat16", "gradient", "compiled"):
        met: dict[str, list[str]] = defaultdict(list)
        sole: dict[str, int] = defaultdict(int)
        for name, entry in results.get("operators", {}).items():
            fallbacks = entry.get(part, {}).get("fallbacks", ())
            for fallback in fallbacks:
                met[fallback].append(name)
            if len(fallbacks) == 1:
                sole[fallbacks[0]] += 1
        lines += ["", f"== {part}: fallbacks (operators met, of which by this one alone)"]
        for fallback, names in sorted(met.items(), key=lambda item: (-len(item[1]), item[0])):
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            lines.append(f"{len(names):4} {sole[fallback]:4} {fallback}: {shown}")
    return "\n".join(lines)
