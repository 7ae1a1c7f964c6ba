"""Device kernels of matrix products: mm, addmm, bmm, baddbmm."""

from __future__ import annotations

from typing import Any

import torch

import trnx.numpy as np
from trnx_torch import registration
from trnx_torch.eager.generic import Place, build, place, sizes, supported
from trnx_torch.registration import Kernel, KernelRequest, Layout

Value = Any

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})


def _make(request: KernelRequest) -> Kernel | None:
    if not supported(request) or request.compute not in _FLOATS:
        return None
    batched = request.ranks == (3,)
    b, m, n, k = sizes(["b", "m", "n", "k"])
    registers = ["b", "m", "n", "k"]

    def operand(name: str, rows: Value, columns: Value, layout: Layout, along: str) -> Place:
        names = [f"{name}_b", f"{name}_r", f"{name}_c"]
        registers.extend(names)
        used = names if batched else names[1:]
        made = place((b, rows, columns) if batched else (rows, columns), used, layout)
        strides = list(made.strides)
        row_layout = request.option(along, "strided")
        if row_layout != "strided":
            strides[-2] = 1 if row_layout == "contiguous" else 0
        return Place(made.shape, tuple(strides))

    places = [
        operand("l", m, k, request.inputs[0].layout, "left_rows"),
        operand("r", k, n, request.inputs[1].layout, "right_rows"),
    ]
    addend = len(request.inputs) == 3
    if addend:
        places.append(operand("a", m, n, request.inputs[2].layout, "addend_rows"))
    out = operand("y", m, n, request.outputs[0].layout, "output_rows")
    names = [o.name for o in request.inputs]

    def formula(beta: Value = 1, alpha: Value = 1, **operands: Value) -> Value:
        product = np.matmul(operands[names[0]], operands[names[1]])
        if not addend:
            return product
        # beta == 0 means that the addend is not read: it may hold NaN.
        return np.where(beta == 0, 0.0, operands[names[2]] * beta) + product * alpha

    return build(request, formula, places, [out], registers, {})


def register() -> None:
    """Registers the matrix products and their out= forms."""
    ops = [f"aten::{name}{suffix}" for name in ("mm", "addmm", "bmm", "baddbmm")
           for suffix in ("", ".out")]  # fmt: skip
    registration.matmul(*ops)(_make)
