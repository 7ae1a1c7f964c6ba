"""Inlining: a call becomes the equations of the program it calls.

Calls with derivatives of their own and checkpoints are calls here: derivatives have been taken.
Programs in parameters (bodies of loops, branches) are inlined too.
"""

from __future__ import annotations

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.core import Atom, Equation, Program, Var, sub_programs
from trnx.core.program import map_sub_programs


def _has_call(program: Program) -> bool:
    return any(
        kind_of(equation.primitive.name) is Kind.CALL
        or any(_has_call(inner) for _, inner in sub_programs(equation.params))
        for equation in program.equations
    )


def inline(program: Program) -> Program:
    """The program without calls; constants of called programs become its own."""
    if not _has_call(program):
        return program
    equations: list[Equation] = []
    constants = list(program.constants)
    values: dict[Var, Atom] = {}

    def run(body: Program, names: dict[Var, Atom], outermost: bool) -> list[Atom]:
        def atom(item: Atom) -> Atom:
            return names.get(item, item) if isinstance(item, Var) else item

        for equation in body.equations:
            inputs = tuple(atom(a) for a in equation.inputs)
            if kind_of(equation.primitive.name) is Kind.CALL:
                called: Program = equation.params["program"]
                constants.extend(called.constants)
                inner = dict(zip(called.inputs, inputs, strict=True))
                names.update(zip(equation.outputs, run(called, inner, False), strict=True))
                continue
            outputs = equation.outputs
            if not outermost:
                outputs = tuple(Var(v.aval) for v in outputs)
                names.update(zip(equation.outputs, outputs, strict=True))
            params = map_sub_programs(equation.params, inline)
            equations.append(Equation(equation.primitive, inputs, outputs, params, equation.source))
        return [atom(a) for a in body.outputs]

    results = run(program, values, True)
    seen: dict[Var, object] = dict(constants)
    return program.replace(equations=equations, constants=tuple(seen.items()), outputs=results)
