"""Products that are functions of the Scalar engine: gelu (both forms) and silu.

Array code writes them out (``0.5·x·(1 + erf(x/√2))``); one `activation` computes them whole. A
product is recognised when every node inside it has this one use.
"""

from __future__ import annotations

import math

from trnx.compiler.kernels.emitter import Emitter
from trnx.compiler.kernels.group import Node
from trnx.core.dtypes import float32, float64

_CLOSE = 1e-6
"""Relative distance within which a constant is the one of the formula (it was rounded to fp32)."""


def activation_of(e: Emitter, node: Node) -> tuple[str, Node] | None:
    """``(function, x)`` when a product is gelu, gelu by tanh or silu of x; else None."""
    if node.dtype not in (float32, float64):
        return None
    constant, factors = _factors(e, node, True)
    if len(factors) != 2:
        return None
    for x, other in (factors, factors[::-1]):
        if not _inside(e, other):
            continue
        if other.op == "logistic" and constant == 1.0 and other.operands[0] is x:
            return "silu", x
        if constant == 0.5 and (inner := _plus_one(e, other)) is not None:
            if inner.op == "erf" and _is_scaled(e, inner.operands[0], x, 1 / math.sqrt(2)):
                return "gelu", x
            if inner.op == "tanh" and _is_cubic(e, inner.operands[0], x):
                return "gelu_tanh", x
    return None


def _inside(e: Emitter, node: Node) -> bool:
    return e.is_private(node)


def _factors(e: Emitter, node: Node, is_root: bool = False) -> tuple[float, list[Node]]:
    """A product as its constant and its other factors."""
    if e.is_number(node):
        return float(node.value), []
    if node.op != "mul" or not (is_root or _inside(e, node)):
        return 1.0, [node]
    constant, found = 1.0, []
    for operand in node.operands:
        number, factors = _factors(e, operand)
        constant *= number
        found += factors
    return constant, found


def _plus_one(e: Emitter, node: Node) -> Node | None:
    """y, when the node is y + 1 and y has no other use."""
    if node.op != "add":
        return None
    for y, one in (node.operands, node.operands[::-1]):
        if e.is_number(one) and one.value == 1.0 and not e.is_number(y) and _inside(e, y):
            return y
    return None


def _is_scaled(e: Emitter, node: Node, x: Node, factor: float) -> bool:
    """Whether the node is x·factor."""
    constant, factors = _factors(e, node)
    return factors == [x] and math.isclose(constant, factor, rel_tol=_CLOSE)


def _is_cubic(e: Emitter, node: Node, x: Node) -> bool:
    """Whether the node is √(2/π)·(x + 0.044715·x³)."""
    constant, factors = _factors(e, node)
    if len(factors) != 1 or not math.isclose(constant, math.sqrt(2 / math.pi), rel_tol=_CLOSE):
        return False
    (total,) = factors
    if total.op != "add" or not _inside(e, total):
        return False
    for first, second in (total.operands, total.operands[::-1]):
        number, cube = _factors(e, second)
        if first is x and cube == [x, x, x] and math.isclose(number, 0.044715, rel_tol=_CLOSE):
            return True
    return False
