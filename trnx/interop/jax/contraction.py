"""Rules of contractions."""

from __future__ import annotations

from typing import Any

from trnx.core import dtypes
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op


@rule("dot_general")
def _dot_general(
    site: Site,
    lhs: Value,
    rhs: Value,
    *,
    dimension_numbers: Any,
    preferred_element_type: Any = None,
    **_: Any,
) -> Value:
    """Operands of different dtypes meet in the result's; `precision` is always the highest."""
    (contract_l, contract_r), (batch_l, batch_r) = dimension_numbers
    out = site.result.dtype
    left, right = site.operands
    common = left.dtype if left.dtype == right.dtype else out
    if dtypes.is_integer(common) and common != out:
        common = out  # integers grow before they are multiplied
    if dtypes.is_float(common) and out == dtypes.float64:
        common = out
    lhs, rhs = op.convert(lhs, common), op.convert(rhs, common)
    if common == dtypes.bool_:
        # A sum of bools is a disjunction.
        count = op.dot_general(
            op.convert(lhs, dtypes.float32), op.convert(rhs, dtypes.float32),
            (contract_l, contract_r), (batch_l, batch_r),
        )  # fmt: skip
        return op.convert(op.gt(count, 0.0), out)
    return op.dot_general(lhs, rhs, (contract_l, contract_r), (batch_l, batch_r), out)
