"""The `call` primitive: a named sub-program, with all its transform rules, and inlining.

``jit`` inside another trace binds a `call`. Transforms rewrite its program and keep the call, so
that a jitted function stays one executable under grad and vmap. The compiler inlines calls first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import (
    Atom,
    Aval,
    Equation,
    Linear,
    Primitive,
    Program,
    ShapeError,
    Size,
    Var,
    Zero,
    constants_to_inputs,
    message,
)
from trnx.core.program import map_sub_programs, sub_programs
from trnx.transforms import zeros


def _call_abstract(*avals: Aval, program: Program) -> tuple[Aval, ...]:
    if len(avals) != len(program.inputs):
        raise ShapeError(
            message(
                f"call of {program.name} has {len(avals)} operands for "
                f"{len(program.inputs)} inputs",
                None,
                "Pass one operand per input",
            )
        )
    for index, (aval, wanted) in enumerate(zip(avals, program.in_avals, strict=True)):
        if aval.strong() != wanted.strong():
            raise ShapeError(
                message(
                    f"call of {program.name} has operand {index} of type {aval}, "
                    f"its input has type {wanted}",
                    None,
                    "Trace the function again for this type",
                )
            )
    return program.out_avals


call_p = Primitive(
    "call",
    abstract=_call_abstract,
    multiple_results=True,
    doc="Runs a sub-program.",
    not_needed={
        "reference": "its meaning is that of its program",
        "cost": "it is inlined before costs are taken",
        "pad": "it is inlined before padding",
    },
)


def call(program: Program, args: Sequence[Any]) -> list[Any]:
    """Bind a call of `program`; its constants become operands."""
    closed, constants = constants_to_inputs(program)
    return list(call_p.bind(*constants, *args, program=closed))


@call_p.def_jvp_all
def _call_jvp(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], *, program: Program
) -> tuple[list[Any], list[Any]]:
    nonzero = zeros.nonzero_mask(tangents)
    derived, out_nonzero = ctx.jvp(program, nonzero)
    given = [t for t in tangents if not isinstance(t, Zero)]
    results = call(derived, [*primals, *given])
    count = len(program.outputs)
    return results[:count], _with_zeros(results[count:], out_nonzero, program.out_avals)


@call_p.def_linearize
def _call_linearize(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], *, program: Program
) -> tuple[list[Any], list[Any]]:
    parts = ctx.linearize(program, zeros.nonzero_mask(tangents))
    results = call(parts.forward, primals)
    count = len(program.outputs)
    residuals = parts.residuals(primals, results[count:])
    given = [t for t in tangents if not isinstance(t, Zero)]
    found = call(parts.linear, [*residuals, *given]) if parts.linear.outputs else []
    return results[:count], _with_zeros(found, parts.out_nonzero, program.out_avals)


@call_p.def_transpose_all
def _call_transpose(
    ctx: Any, cts: Sequence[Any], operands: Sequence[Any], *, program: Program
) -> list[Any]:
    linear = tuple(isinstance(operand, Linear) for operand in operands)
    given = zeros.nonzero_mask(cts)
    derived, nonzero = ctx.transpose(program, linear, given)
    fixed = [operand for operand in operands if not isinstance(operand, Linear)]
    found = iter(call(derived, [*fixed, *(ct for ct in cts if not isinstance(ct, Zero))]))
    flags = iter(nonzero)
    return [next(found) if flag and next(flags) else None for flag in linear]


@call_p.def_vmap
def _call_vmap(
    ctx: Any, args: Sequence[Any], dims: Sequence[int | None], size: Size, *, program: Program
) -> tuple[list[Any], tuple[int | None, ...]]:
    batched, out_dims = ctx.vmap(program, size, tuple(dims))
    return call(batched, args), out_dims


def _with_zeros(found: Sequence[Any], nonzero: Sequence[bool], avals: Sequence[Aval]) -> list[Any]:
    values = iter(found)
    return [
        next(values) if flag else Zero(aval.strong())
        for flag, aval in zip(nonzero, avals, strict=True)
    ]


def inline_calls(program: Program) -> Program:
    """The program with every `call`, also in sub-programs, replaced by its body.

    Equations keep their sources. Returns the same object when there is nothing to inline.
    """
    if not _has_call(program):
        return program
    equations: list[Equation] = []
    constants = list(program.constants)
    outputs = _emit(program, {}, equations, constants)
    return program.replace(constants=constants, equations=equations, outputs=outputs)


def _has_call(program: Program) -> bool:
    return any(
        equation.primitive is call_p
        or any(_has_call(sub) for _, sub in sub_programs(equation.params))
        for equation in program.equations
    )


def _emit(
    body: Program,
    values: dict[Var, Atom],
    equations: list[Equation],
    constants: list[tuple[Var, Any]],
) -> list[Atom]:
    """Append the body's equations with fresh outputs; `values` maps its variables to atoms."""

    def look(atom: Atom) -> Atom:
        return values.get(atom, atom) if isinstance(atom, Var) else atom

    for equation in body.equations:
        inputs = tuple(look(atom) for atom in equation.inputs)
        if equation.primitive is call_p:
            called = equation.params["program"]
            constants += called.constants
            inner = dict(zip(called.inputs, inputs, strict=True))
            results = _emit(called, inner, equations, constants)
            values.update(zip(equation.outputs, results, strict=True))
            continue
        outputs = tuple(Var(var.aval) for var in equation.outputs)
        params = map_sub_programs(equation.params, inline_calls)
        equations.append(Equation(equation.primitive, inputs, outputs, params, equation.source))
        values.update(zip(equation.outputs, outputs, strict=True))
    return [look(atom) for atom in body.outputs]
