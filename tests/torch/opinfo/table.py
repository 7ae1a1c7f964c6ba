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


def part_text(part: Entry | None) -> str:
    """One cell: how it runs, and the share of samples that agree if it is not all."""
    if part is None:
        return ""
    failed, samples = part.get("failed", 0), part["samples"]
    word = part.get("runs") or ("fallback" if part.get("fallbacks") else "yes")
    if failed == samples:
        return word if word == "unsupported" else "no"
    return word if not failed else f"{word}, {samples - failed} of {samples}"


def line(kind: str, entry: Entry) -> str:
    """An entry in one line for people."""
    if "crash" in entry:
        return str(entry["crash"])
    return ", ".join(f"{p} {part_text(entry[p])}" for p in PARTS[kind] if p in entry)


def agreement(entries: dict[str, Entry], part: str) -> tuple[int, int, int, int]:
    """(samples that agree, samples, entries without a failure, entries)."""
    found = [e[part] for e in entries.values() if part in e]
    samples = sum(p["samples"] for p in found)
    failed = sum(p.get("failed", 0) for p in found)
    return samples - failed, samples, sum(not p.get("failed") for p in found), len(found)


def summary(results: Results) -> str:
    """The figures as a Markdown table."""
    counts = [f"{len(results.get(kind, {}))} {kind}" for kind in PARTS]
    lines = [f"Measured: {', '.join(counts)}.", ""]
    lines += ["| what | samples that agree | entries without a difference | without fallback |"]
    lines.append("| --- | --- | --- | --- |")
    for kind, parts in PARTS.items():
        entries = results.get(kind, {})
        for part in parts:
            good, samples, clean, count = agreement(entries, part)
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


def operators(results: Results) -> str:
    """A Markdown table with a row per operator."""
    parts = PARTS["operators"]
    lines = [f"| operator | {' | '.join(parts)} | falls back in |"]
    lines.append("| --- " * (len(parts) + 2) + "|")
    for name, entry in sorted(results["operators"].items()):
        if "crash" in entry:
            lines.append(f"| `{name}` | {entry['crash']} |" + " |" * len(parts))
            continue
        met = {f for part in parts for f in entry.get(part, {}).get("fallbacks", ())}
        names = ", ".join(f"`{m.removeprefix('aten::')}`" for m in sorted(met))
        cells = " | ".join(part_text(entry.get(part)) for part in parts)
        lines.append(f"| `{name}` | {cells} | {names} |")
    return "\n".join(lines)


def others(results: Results) -> str:
    """A Markdown table with a row per module and optimizer."""
    lines = ["| class | runs | falls back in |", "| --- | --- | --- |"]
    for kind in ("modules", "optimizers"):
        for name, entry in sorted(results[kind].items()):
            met = {f for p in PARTS[kind] for f in entry.get(p, {}).get("fallbacks", ())}
            names = ", ".join(f"`{m.removeprefix('aten::')}`" for m in sorted(met))
            lines.append(f"| `{name}` | {line(kind, entry)} | {names} |")
    return "\n".join(lines)


def differences(results: Results) -> str:
    """A Markdown list of all eager differences, with the first one's text."""
    lines = []
    for kind, parts in PARTS.items():
        for name, entry in sorted(results[kind].items()):
            for part in parts:
                found = entry.get(part, {})
                if part != "compiled" and found.get("failed"):
                    share = f"{found['failed']} of {found['samples']}"
                    why = found["why"].replace("|", "\\|").replace("<", "&lt;")
                    lines.append(f"* `{name}`, {part}, {share}: {why}")
    return "\n".join(lines) or "None."


def worse(kind: str, recorded: Entry, measured: Entry) -> list[str]:
    """In which parts a measurement, perhaps of fewer samples, is worse than the record."""
    if "crash" in measured:
        return [] if "crash" in recorded else [measured["crash"]]
    found = []
    for part in PARTS[kind]:
        old, new = recorded.get(part), measured.get(part)
        if old is None or new is None:
            continue
        failed = new.get("failed", 0)
        if failed > old.get("failed", 0):
            found.append(f"{part}: {failed} of {new['samples']} samples differ: {new['why']}")
        more = set(new.get("fallbacks", ())) - set(old.get("fallbacks", ()))
        if more and not old.get("fallbacks"):
            found.append(f"{part}: falls back in {', '.join(sorted(more))}")
    return found


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
