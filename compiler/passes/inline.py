"""Inlining: a call becomes the equations of the program it calls.

Calls with derivatives of their own and checkpoints are calls here: derivatives have been taken.
Programs in parameters (bodies of loops, branches) are inlined too.

A checkpoint that computes values a second time in the backward pass stays a call until just before
fusion: inlined earlier, common subexpressions would merge it with the first computation, and the
memory it is there to save would be kept.
"""

from __future__ import annotations

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.core import Atom, Equation, Program, Var, sub_programs
from trnx.core.program import map_sub_programs


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
    return _inline(program, False)


def inline_recomputing(program: Program) -> Program:
    """The program without recomputing checkpoints; bodies of loops keep theirs."""
    return _inline(program, True)


def _inline(program: Program, late: bool) -> Program:
    if not _has_call(program, late):
        return program
    equations: list[Equation] = []
    constants = list(program.constants)
    values: dict[Var, Atom] = {}

    def run(body: Program, names: dict[Var, Atom], outermost: bool) -> list[Atom]:
        def atom(item: Atom) -> Atom:
            return names.get(item, item) if isinstance(item, Var) else item

        for equation in body.equations:
            inputs = tuple(atom(a) for a in equation.inputs)
            if _is_call(equation, late):
                called: Program = equation.params["program"]
                constants.extend(called.constants)
                inner = dict(zip(called.inputs, inputs, strict=True))
                names.update(zip(equation.outputs, run(called, inner, False), strict=True))
                continue
            outputs = equation.outputs
            if not outermost:
                outputs = tuple(Var(v.aval) for v in outputs)
                names.update(zip(equation.outputs, outputs, strict=True))
            params = equation.params if late else map_sub_programs(equation.params, inline)
            equations.append(Equation(equation.primitive, inputs, outputs, params, equation.source))
        return [atom(a) for a in body.outputs]

    results = run(program, values, True)
    seen: dict[Var, object] = dict(constants)
    return program.replace(equations=equations, constants=tuple(seen.items()), outputs=results)
