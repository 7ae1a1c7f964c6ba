"""Every primitive x rule cell is present, derived, or not needed for a stated reason.

`docs/primitives.md` is generated from the same cells; ``pytest --update-golden`` writes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.compiled import lowering_of
from tests.ops.table import calls
from trnx.core import Primitive, dtypes, primitives
from trnx.core.primitive import RULE_SLOTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "primitives.md"
DECLARED = [p for p in primitives.values() if p.file.startswith("ops/")]

# A rule that another one gives, when it is not set itself.
_DERIVED_FROM = {"linearize": "jvp"}
_HEAD = """# Primitives

Generated from the declarations in `ops/` by `tests/ops/test_registry.py`; `make golden` does it.
A cell is **yes** (a rule of its own), **linear** (the tangent is the primitive itself), **zero**
(it carries no derivative), **from jvp**, or **-** with the reason below the table. *Composite*:
array code for compilers without a lowering. *Lowering*: the kernel family of the tile compiler,
an expansion into other primitives, or a counted host call. *Calls*: how many calls the table tests
make, with every operand dtype.
"""


def cell(primitive: Primitive, slot: str) -> str:
    """The text of one cell; empty when a rule is missing without a reason."""
    if slot == "jvp" and primitive.is_linear:
        return "linear"
    if slot == "jvp" and primitive.jvp_rules is not None and not any(primitive.jvp_rules):
        return "zero"
    source = _DERIVED_FROM.get(slot)
    if source is not None and getattr(primitive, slot) is None and primitive.has_rule(source):
        return f"from {source}"
    if primitive.has_rule(slot):
        return "yes"
    return "-" if primitive.not_needed.get(slot) else ""


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    files = sorted({p.file for p in DECLARED})
    for file in files:
        own = sorted((p for p in DECLARED if p.file == file), key=lambda p: p.name)
        columns = [*RULE_SLOTS, "composite", "lowering", "calls"]
        lines += [f"## {file}", "", f"| primitive | {' | '.join(columns)} | dtypes | meaning |"]
        lines.append("|---" * (len(columns) + 3) + "|")
        for p in own:
            cells = [cell(p, slot) for slot in RULE_SLOTS]
            cells += ["yes" if p.composite else "", lowering_of(p)]
            cells.append(str(sum(1 for _ in calls(p))))
            used = sorted({dtypes.short_name(d) for c in calls(p) for d in c.dtypes})
            lines.append(f"| `{p.name}` | {' | '.join(cells)} | {', '.join(used)} | {p.doc} |")
        absent: dict[tuple[str, str], list[str]] = {}
        for p in own:
            for slot in RULE_SLOTS:
                if cell(p, slot) == "-":
                    absent.setdefault((slot, p.not_needed[slot]), []).append(f"`{p.name}`")
        reasons = [
            f"- No {slot} rule because {reason}: {', '.join(names)}."
            for (slot, reason), names in absent.items()
        ]
        lines += ["", *reasons, ""] if reasons else [""]
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_no_cell_is_empty(primitive: Primitive) -> None:
    """A rule is there, follows from another, or has a reason to be absent."""
    empty = [slot for slot in RULE_SLOTS if not cell(primitive, slot)]
    assert not empty, f"{primitive.name} in {primitive.file} lacks {empty}"


@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_reasons_and_record_are_consistent(primitive: Primitive) -> None:
    """A reason stands only where a rule is absent; derivatives are tested where they exist."""
    stale = [slot for slot in primitive.not_needed if primitive.has_rule(slot)]
    assert not stale, f"{primitive.name} has the rules {stale} and reasons not to need them"
    assert set(primitive.not_needed) <= set(RULE_SLOTS)
    assert primitive.doc.endswith(".")
    zero = cell(primitive, "jvp") in ("zero", "-")
    assert zero == (primitive.tests.grad_order == 0), "derivatives without tests, or the reverse"
    linear_operands = primitive.is_linear or primitive.has_rule("transpose")
    assert linear_operands or "transpose" in primitive.not_needed


def test_missing_cell_is_seen() -> None:
    """The reader itself: a primitive without rules has empty cells."""
    bare = Primitive("bare", abstract=lambda x: x, register=False)
    assert [slot for slot in RULE_SLOTS if not cell(bare, slot)] == list(RULE_SLOTS)


@pytest.mark.golden
def test_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    """docs/primitives.md says what the declarations say."""
    text = page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.exists() and PAGE.read_text(encoding="utf-8") == text, "run `make golden`"
