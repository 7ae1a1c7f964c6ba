"""Matrix products."""

from __future__ import annotations

from typing import Any

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any


@lowers("mm.default", "bmm.default", "mv.default", "dot.default")
def _matmul(x: Value, y: Value) -> Value:
    return np.matmul(x, y)


def _scaled_sum(bias: Value, product: Value, beta: float, alpha: float) -> Value:
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # the bias must not be read: it may hold NaN
        return product
    return product + (bias if beta == 1 else bias * beta)


@lowers("addmm.default", "baddbmm.default")
def _addmm(bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    return _scaled_sum(bias, np.matmul(x, y), beta, alpha)
