"""docs/promotion.md is written from the promotion code (tests/core compares that with jax)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnx.core import DTypeError, dtypes
from trnx.core.dtypes import ALL_DTYPES, FLOAT8, promote_types, promote_weak, short_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "promotion.md"
COMMON = [dtype for dtype in ALL_DTYPES if dtype not in FLOAT8]
WEAK = {"int": dtypes.int32, "float": dtypes.float32, "complex": dtypes.complex64}

_HEAD = """# Promotion

Generated from `trnx.core.dtypes` by `tests/ops/test_promotion.py` (`make golden` rewrites it).

The dtype of `x + y` for arrays of the row's and the column's dtype, and for a Python number beside
an array. **error**: no implicit common dtype; cast one operand. A dtype in *italics* is weak: it
gives way to the next array. float8 types combine with their own kind and with Python numbers only
after a cast. A Python int that does not fit raises. No flag changes this table.
"""


def _common(a: Any, b: Any) -> str:
    try:
        return short_name(promote_types(a, b))
    except DTypeError:
        return "error"


def _with_number(dtype: Any, number: str) -> str:
    found, weak = promote_weak(dtype, False, WEAK[number], True)
    return f"*{short_name(found)}*" if weak else short_name(found)


def page() -> str:
    """The whole page."""
    names = [short_name(dtype) for dtype in COMMON]
    lines = [_HEAD, f"| | {' | '.join(names)} | {' | '.join(WEAK)} |"]
    lines.append("|---" * (len(names) + len(WEAK) + 1) + "|")
    for a in COMMON:
        cells = [_common(a, b) for b in COMMON] + [_with_number(a, n) for n in WEAK]
        lines.append(f"| **{short_name(a)}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.golden
def test_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    """docs/promotion.md says what the code does."""
    text = page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.exists() and PAGE.read_text(encoding="utf-8") == text, "run `make golden`"
