"""Sums over the iterations of a loop that can wait until the loop is done.

The cotangent of a loop's constant is a sum over its iterations. When each share is a contraction of
two values, the sum is one contraction of the stacked values: a large matrix product instead of many
small ones, and nothing to accumulate inside the loop. It is done where stacking costs no more than
accumulating: the values are stacked anyway, or are no larger than the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import Aval, Equation, Program, Size, Var, cached_by_program, prune, trace_program
from trnx.core.program import Atom
from trnx.ops import functions as op
from trnx.ops._programs import Flags

Array = Any

_RELABELLING = ("transpose", "reshape")


@dataclass(frozen=True, slots=True)
class LateSum:
    """One sum that is taken after the loop.

    Attributes:
        share: which share it sums.
        program: from stacked values ``[length, ...]`` to the sum.
        sources: per stacked value the body's input it is, or ``~k`` for extra output k.
    """

    share: int
    program: Program
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    share: int
    operands: tuple[Var, ...]
    equation: Equation | None  # None: the share is the value itself
    relabelling: tuple[Equation, ...]


@cached_by_program
def postpone(
    body: Program, shares: int, stacked: Flags, length: Size
) -> tuple[Program, tuple[LateSum, ...]]:
    """Take sums out of a loop.

    Args:
        body: its first `shares` outputs are summed over the iterations.
        shares: number of sums.
        stacked: which inputs are slices of stacked arrays.
        length: number of iterations.

    Returns:
        The body without the shares that are summed late, with the values to stack for them as extra
        outputs at the end; and the late sums.
    """
    made: dict[Var, Equation] = {var: e for e in body.equations for var in e.outputs}
    inputs = {
        var: i for i, (var, flag) in enumerate(zip(body.inputs, stacked, strict=True)) if flag
    }
    extra: list[Var] = []
    late: list[LateSum] = []
    found = [_candidate(made, i, atom) for i, atom in enumerate(body.outputs[:shares])]
    candidates = [c for c in found if c is not None]
    # Contractions first: what they stack, other sums may use for nothing.
    for candidate in sorted(candidates, key=lambda c: len(c.operands), reverse=True):
        new = [v for v in dict.fromkeys(candidate.operands) if v not in inputs and v not in extra]
        allowed = _elements([body.outputs[candidate.share]]) if len(candidate.operands) == 2 else 0
        if new and _elements(new) > allowed:
            continue
        extra += new
        sources = tuple(inputs[v] if v in inputs else ~extra.index(v) for v in candidate.operands)
        late.append(LateSum(candidate.share, _sum_program(candidate, length), sources))
    done = {item.share for item in late}
    outputs = [atom for i, atom in enumerate(body.outputs) if i not in done]
    return prune(body.replace(outputs=[*outputs, *extra])), tuple(late)


def _candidate(made: dict[Var, Equation], share: int, atom: Atom) -> _Candidate | None:
    relabelling: list[Equation] = []
    while isinstance(atom, Var) and atom in made and made[atom].primitive.name in _RELABELLING:
        relabelling.append(made[atom])
        atom = made[atom].inputs[0]
    if not isinstance(atom, Var):
        return None
    equation = made.get(atom)
    if equation is None or equation.primitive.name not in ("dot_general", "reduce_sum"):
        return _Candidate(share, (atom,), None, tuple(relabelling))
    operands = tuple(x for x in equation.inputs if isinstance(x, Var))
    if len(operands) != len(equation.inputs):
        return None
    return _Candidate(share, operands, equation, tuple(relabelling))


def _elements(atoms: Sequence[Atom]) -> float:
    """Number of elements; infinite when it is symbolic."""
    sizes = [atom.aval.size for atom in atoms]
    return sum(size if isinstance(size, int) else math.inf for size in sizes)


def _sum_program(candidate: _Candidate, length: Size) -> Program:
    """From stacked operands to the sum of the shares over the leading axis."""

    def run(*values: Array) -> list[Array]:
        result = _summed(candidate.equation, values)
        for equation in reversed(candidate.relabelling):
            (result,) = equation.primitive.bind_all([result], equation.params)
        return [result]

    avals = [_stacked(var.aval, length) for var in candidate.operands]
    return trace_program(run, avals, "late_sum")


def _stacked(aval: Aval, length: Size) -> Aval:
    return Aval((length, *aval.shape), aval.dtype)


def _summed(equation: Equation | None, values: Sequence[Array]) -> Array:
    if equation is None:
        return op.reduce_sum(values[0], (0,))
    params = equation.params
    if equation.primitive.name == "reduce_sum":
        return op.reduce_sum(values[0], (0, *(axis + 1 for axis in params["axes"])))
    contract = [(0, *(axis + 1 for axis in side)) for side in params["contract"]]
    batch = [tuple(axis + 1 for axis in side) for side in params["batch"]]
    return op.dot_general(
        values[0],
        values[1],
        (contract[0], contract[1]),
        (batch[0], batch[1]),
        params["out_dtype"],
    )
