"""Inlining: a call becomes the equations of the program it calls.

Calls with derivatives of their own and checkpoints are calls here: derivatives have been taken.
Programs in parameters (bodies of loops, branches) are inlined too.

A checkpoint that computes values a second time in the backward pass stays a call until just before
fusion: inlined earlier, common subexpressions would merge it with the first computation, and the
memory it is there to save would be kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.core import Atom, Equation, Program, Var, sub_programs
from trnx.core.program import map_sub_programs

Waits: TypeAlias = Mapping[Var, tuple[Var, ...]]
"""First output of an equation -> values that must be there before it runs."""


def is_recomputing(equation: Equation) -> bool:
    """Whether an equation is a checkpoint whose work must not be shared with equal work outside."""
    return equation.primitive.name == "checkpoint" and bool(equation.params["recompute"])


def _is_call(equation: Equation, late: bool) -> bool:
    return kind_of(equation.primitive.name) is Kind.CALL and (late or not is_recomputing(equation))


def _has_call(program: Program, late: bool) -> bool:
    return any(
        _is_call(equation, late)
        or (not late and any(_has_call(p, late) for _, p in sub_programs(equation.params)))
        for equation in program.equations
    )


def inline(program: Program) -> Program:
    """The program without calls but recomputing checkpoints.

    Constants of called programs become its own.
    """
    return _inline(program, False)[0]


def inline_recomputing(program: Program) -> tuple[Program, Waits]:
    """The program without recomputing checkpoints; bodies of loops keep theirs.

    Returns:
        The program, and what the equations of a checkpoint wait for: all operands of it, the
        cotangents among them. Run earlier, they would keep what they compute for longer.
    """
    return _inline(program, True)


def _inline(program: Program, late: bool) -> tuple[Program, Waits]:
    if not _has_call(program, late):
        return program, {}
    equations: list[Equation] = []
    constants = list(program.constants)
    values: dict[Var, Atom] = {}
    waits: dict[Var, tuple[Var, ...]] = {}

    def run(
        body: Program, names: dict[Var, Atom], outermost: bool, wait: tuple[Var, ...]
    ) -> list[Atom]:
        def atom(item: Atom) -> Atom:
            return names.get(item, item) if isinstance(item, Var) else item

        for equation in body.equations:
            inputs = tuple(atom(a) for a in equation.inputs)
            if _is_call(equation, late):
                called: Program = equation.params["program"]
                constants.extend(called.constants)
                inner = dict(zip(called.inputs, inputs, strict=True))
                more = wait
                if is_recomputing(equation):
                    more = (*wait, *(a for a in inputs if isinstance(a, Var)))
                results = run(called, inner, False, more)
                names.update(zip(equation.outputs, results, strict=True))
                continue
            outputs = equation.outputs
            if not outermost:
                outputs = tuple(Var(v.aval) for v in outputs)
                names.update(zip(equation.outputs, outputs, strict=True))
            params = equation.params if late else map_sub_programs(equation.params, inline)
            equations.append(Equation(equation.primitive, inputs, outputs, params, equation.source))
            if wait:
                waits[outputs[0]] = wait
        return [atom(a) for a in body.outputs]

    results = run(program, values, True, ())
    seen: dict[Var, object] = dict(constants)
    return program.replace(
        equations=equations, constants=tuple(seen.items()), outputs=results
    ), waits
