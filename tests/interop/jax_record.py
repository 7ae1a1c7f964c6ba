"""The committed outcome of the sweep, and the page that is generated from it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("jax_record.json")
PAGE = ROOT / "docs" / "jax_support.md"

JAX_VERSION = "0.10.2"
"""The version whose harnesses the record is about."""

Outcomes = Mapping[str, tuple[str, str]]

_HEAD = """# JAX programs in trnx

`trnx.interop.jax.from_jax(f)` makes a trnx function of a JAX function: JAX traces it, and trnx runs
the primitives of the jaxpr as its own. This page is generated from the harnesses that JAX's own
tests use for its primitives, every dtype included (`python -m tests.interop.sweep --state FILE
--write`). A harness passes when dtype, shape and values agree with JAX on the CPU, at the tolerance
of JAX's tests: equality for integers, 1e-6 for f32, 1e-15 for f64. 64-bit floats run on device
`cpu`, the rest on `neuron`.

**{passed} of the {scope} harnesses in scope pass ({percent:.1f} %)**; {out} more use a primitive
that trnx does not mean to have. Numbers in reasons are replaced by `#`.

| harness group | passed | failed | out of scope | reasons |
| --- | ---: | ---: | ---: | --- |
"""


def group_of(name: str) -> str:
    """The group of a harness: most often the name of a primitive."""
    from tests.interop import jax_harness

    return str(jax_harness.harnesses()[name].group_name)


def by_group(outcomes: Outcomes) -> dict[str, dict[str, tuple[str, str]]]:
    """Outcomes per group, groups by name."""
    groups: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for name, outcome in outcomes.items():
        groups[group_of(name)][name] = outcome
    return dict(sorted(groups.items()))


def summary(outcomes: Outcomes) -> str:
    """Counts, and the failures by group and reason."""
    total = Counter(status for status, _ in outcomes.values())
    lines = [f"{_share(total)}; {dict(total)}"]
    for group, found in by_group(outcomes).items():
        count = Counter(status for status, _ in found.values())
        if count["failed"]:
            lines.append(f"{group}: {count['failed']} of {count['failed'] + count['passed']} fail")
            reasons: dict[str, list[str]] = defaultdict(list)
            for name, (status, reason) in found.items():
                if status == "failed":
                    reasons[_short(reason)].append(name)
            for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1]))[:8]:
                lines.append(f"    {len(names):4d} x {reason}\n             {names[0]}")
    return "\n".join(lines)


def _short(reason: str) -> str:
    """A reason without its numbers, so that equal causes meet."""
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", reason)[:160]


def _share(total: Mapping[str, int]) -> str:
    scope = total["passed"] + total["failed"]
    percent = 100 * total["passed"] / max(scope, 1)
    return f"{total['passed']} of {scope} in scope pass ({percent:.1f} %)"


def write(outcomes: Outcomes) -> None:
    """Write the record and the page."""
    groups = {}
    for group, found in by_group(outcomes).items():
        count = Counter(status for status, _ in found.values())
        entry: dict[str, object] = {"passed": count["passed"]}
        for status in ("failed", "out of scope", "not implemented by JAX"):
            names = {n: r for n, (s, r) in sorted(found.items()) if s == status}
            if names:
                entry[status] = names
        groups[group] = entry
    RECORD.write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(groups), encoding="utf-8")


def read() -> dict[str, dict[str, object]]:
    """The committed record: group -> passed count, failed and out of scope with reasons."""
    found: dict[str, dict[str, object]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


@cache
def recorded(name: str) -> str:
    """The recorded status of a harness."""
    entry = read()[group_of(name)]
    for status in ("failed", "out of scope", "not implemented by JAX"):
        if name in dict(entry.get(status, {})):  # type: ignore[call-overload]
            return status
    return "passed"


def counts(groups: Mapping[str, Mapping[str, object]]) -> tuple[int, int]:
    """How many passed and how many failed."""
    passed = sum(int(str(entry["passed"])) for entry in groups.values())
    return passed, sum(len(dict(e.get("failed", {}))) for e in groups.values())  # type: ignore[call-overload]


def size(entry: Mapping[str, object]) -> int:
    """Number of harnesses of a group."""
    others = ("failed", "out of scope", "not implemented by JAX")
    return int(str(entry["passed"])) + sum(len(dict(entry.get(s, {}))) for s in others)  # type: ignore[call-overload]


def page(groups: Mapping[str, Mapping[str, object]]) -> str:
    """docs/jax_support.md."""
    total: Counter[str] = Counter()
    rows = []
    for group, entry in groups.items():
        passed = int(str(entry["passed"]))
        failed, out = (dict(entry.get(k, {})) for k in ("failed", "out of scope"))  # type: ignore[call-overload]
        total["passed"] += passed
        total["failed"] += len(failed)
        total["out"] += len(out)
        reasons = Counter(
            _short(str(r)).replace("|", "\\|") for r in (*failed.values(), *out.values())
        )
        text = "; ".join(f"{reason} ({n})" for reason, n in reasons.most_common(4))
        rows.append(f"| `{group}` | {passed} | {len(failed)} | {len(out)} | {text} |")
    scope = total["passed"] + total["failed"]
    head = _HEAD.format(
        passed=total["passed"],
        scope=scope,
        percent=100 * total["passed"] / max(scope, 1),
        out=total["out"],
    )
    return head + "\n".join(rows) + "\n"
