"""Rough cost of loop bodies in core cycles: decides whether a loop is worth several threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from trnx.compiler.host.phases import Phase
from trnx.compiler.host.rowops import RowOp
from trnx.compiler.host.types import DType
from trnx.compiler.tile.expr import Index, add, floordiv, maximum, mul, scale, substitute
from trnx.compiler.tile.ir import For, HbmAccess, Instruction, Statement, TileAccess, While

PARALLEL_CYCLES: Final = 150_000
"""Estimated work from which on a loop is split: about 60 us, where a second thread still pays
after an idle period (docs/design)."""

_ASSUMED_TRIPS: Final = 8
"""Trips of a ``while``, whose count nobody knows."""


def body_cost(loop: For, dtypes: Mapping[str, DType]) -> Index:
    """Estimated cycles of one iteration of ``loop``, in the symbols in scope outside it."""
    return substitute(_cost(loop.body, dtypes), {loop.index: loop.low})


def _cost(body: tuple[Statement, ...], dtypes: Mapping[str, DType]) -> Index:
    total: Index = 0
    for statement in body:
        if isinstance(statement, Instruction):
            total = add(total, instruction_cost(statement, dtypes))
        elif isinstance(statement, For):
            inner = substitute(_cost(statement.body, dtypes), {statement.index: statement.low})
            span = add(statement.high, scale(statement.low, -1))
            trips = maximum(0, floordiv(add(span, statement.step - 1), statement.step))
            total = add(total, mul(inner, trips))
        elif isinstance(statement, While):
            total = add(total, scale(_cost(statement.body, dtypes), _ASSUMED_TRIPS))
    return total


def sum_of(costs: Iterable[Index]) -> Index:
    """The sum of several costs."""
    total: Index = 0
    for cost in costs:
        total = add(total, cost)
    return total


def instruction_cost(instruction: Instruction, dtypes: Mapping[str, DType]) -> Index:
    """Estimated cycles of one instruction on one core."""
    shaped = instruction.ins[0] if instruction.op == "tensor_reduce" else instruction.outs[0]
    assert isinstance(shaped, TileAccess | HbmAccess)
    elements: Index = 1
    for count in shaped.shape:
        elements = mul(elements, count)
    if instruction.op == "nc_matmul":
        stationary = instruction.ins[0]
        assert isinstance(stationary, TileAccess)
        return floordiv(mul(elements, stationary.partitions), 16)
    cycles_per_16 = {"activation": 20, "tensor_tensor_scan": 100, "max8": 200, "row_sort": 500}
    name = shaped.tile if isinstance(shaped, TileAccess) else shaped.buffer
    wide = 2 if dtypes[name].itemsize == 8 else 1
    return floordiv(scale(elements, wide * cycles_per_16.get(instruction.op, 3)), 16)


def weight_of(op: RowOp) -> int:
    """Vector instructions per chunk, roughly: what decides about unrolling and cost."""
    instruction = op.instruction
    if instruction.op == "activation":
        simple = ("copy", "square", "abs", "sign", "relu", "sqrt", "reciprocal")
        name = instruction.attr("op")
        return 3 if name in simple else 16 if name == "exp" else 40
    return 1 if instruction.op in ("dma_copy", "tensor_copy", "memset") else 2


def weight_of_phase(phase: Phase) -> int:
    """The weights of a phase's operations together."""
    return sum(weight_of(op) for op in phase.ops)
