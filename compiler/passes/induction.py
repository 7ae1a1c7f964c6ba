"""Induction variables: carries that only count become expressions of the loop's index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.compiler.kernels.splice import INDEX
from trnx.compiler.passes.known_index import INDEX_RULES
from trnx.compiler.passes.simplify import simplify
from trnx.compiler.tile.expr import Index
from trnx.core import (
    Equation,
    Literal,
    Params,
    Program,
    Size,
    Source,
    Var,
    dim,
    primitives,
)
from trnx.core.dtypes import is_integer
from trnx.core.program import dim_variables


@dataclass(frozen=True, slots=True)
class Counter:
    """A carry that starts at a number and grows by a number: ``start``, ``step`` per iteration."""

    start: Literal
    step: int
    source: Source

    @property
    def first(self) -> int:
        """The value in the first iteration."""
        return int(self.start.value)

    def after(self, iterations: int) -> int:
        """The value after some iterations."""
        return self.first + iterations * self.step


def find_counters(
    body: Program, init: Sequence[Any], consts: int, length: int
) -> dict[int, Counter]:
    """Carries of the form ``i, i + step, …`` that start at a number and stay in their dtype.

    Args:
        body: inputs (*consts, *carry, *x), outputs (*carry, *y).
        init: first values of the carries.
        consts: how many inputs come before the carries.
        length: most iterations there may be.
    """
    made = {var: e for e in body.equations for var in e.outputs}
    found: dict[int, Counter] = {}
    for number, first in enumerate(init):
        old, new = body.inputs[consts + number], body.outputs[number]
        equation = made.get(new) if isinstance(new, Var) else None
        if not isinstance(first, Literal) or not is_integer(first.aval.dtype) or equation is None:
            continue
        step = _step(equation, old)
        if step is None:
            continue
        counter = Counter(first, step, equation.source)
        limits = np.iinfo(first.aval.dtype)
        if limits.min <= counter.after(length) <= limits.max:
            found[number] = counter
    return found


def _step(equation: Equation, old: Var) -> int | None:
    if equation.primitive.name not in ("add", "sub"):
        return None
    left, right = equation.inputs
    if left is old and isinstance(right, Literal):
        return int(right.value) if equation.primitive.name == "add" else -int(right.value)
    if right is old and isinstance(left, Literal) and equation.primitive.name == "add":
        return int(left.value)
    return None


def with_index(
    body: Program, consts: int, counters: Mapping[int, Counter], step: Index, length: int
) -> tuple[Program, dict[str, Index]]:
    """The body with its counters computed from the loop's index, which is below `length`.

    Returns:
        The body without the counters among its inputs and outputs; and the value of the register
        that stands for the index.
    """
    if not counters:
        return body, {}
    taken = {variable.name for variable in dim_variables(body)}
    name = next(f"{INDEX}{k}" for k in range(len(taken) + 1) if f"{INDEX}{k}" not in taken)
    index = dim(name, 0, max(0, length - 1))
    names: dict[Var, Var] = {}
    equations: list[Equation] = []
    for number, counter in counters.items():
        old = body.inputs[consts + number]
        value = Var(old.aval)
        size: Size = index * counter.step + counter.first
        params = Params({"size": size, "dtype": old.aval.dtype})
        equations.append(Equation(primitives["dim_size"], (), (value,), params, counter.source))
        names[old] = value
    for equation in body.equations:
        inputs = tuple(names.get(a, a) if isinstance(a, Var) else a for a in equation.inputs)
        equations.append(
            Equation(equation.primitive, inputs, equation.outputs, equation.params, equation.source)
        )
    left = body.replace(
        inputs=[v for v in body.inputs if v not in names],
        equations=equations,
        outputs=[
            names.get(a, a) if isinstance(a, Var) else a
            for k, a in enumerate(body.outputs)
            if k not in counters
        ],
    )
    return simplify(left, INDEX_RULES), {name: step}
