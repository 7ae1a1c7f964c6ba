"""The `call` primitive: a named sub-program, with all its transform rules, and inlining.

``jit`` inside another trace binds a `call`. Transforms rewrite its program and keep the call, so
that a jitted function stays one executable under grad and vmap. The compiler inlines calls first.

A call of a dynamic function carries a program of symbolic sizes and their values. Its derivatives
are programs of the same sizes, so they too are compiled once per bucket and not once per size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from trnx.core import (
    Atom,
    Aval,
    Cost,
    Dim,
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
    reference_program,
)
from trnx.core.program import dim_variables, map_sub_programs, sub_programs
from trnx.core.program_cache import cached_by_program
from trnx.ops._programs import program_cost, repeated_cost
from trnx.transforms import zeros
from trnx.transforms.specialise import specialise, substitute_value

Sizes: TypeAlias = tuple[tuple[str, int], ...]
"""Values of the named sizes of a called program, by name."""


def _call_abstract(
    *avals: Aval, program: Program, sizes: Sizes = (), buckets: Any = None
) -> tuple[Aval, ...]:
    if len(avals) != len(program.inputs):
        raise ShapeError(
            message(
                f"call of {program.name} has {len(avals)} operands for "
                f"{len(program.inputs)} inputs",
                None,
                "Pass one operand per input",
            )
        )
    for index, (aval, wanted) in enumerate(zip(avals, _in_avals(program, sizes), strict=True)):
        if aval.strong() != wanted.strong():
            raise ShapeError(
                message(
                    f"call of {program.name} has operand {index} of type {aval}, "
                    f"its input has type {wanted}",
                    None,
                    "Trace the function again for this type",
                )
            )
    return _out_avals(program, sizes)


def _in_avals(program: Program, sizes: Sizes) -> tuple[Aval, ...]:
    return substitute_value(program.in_avals, dict(sizes)) if sizes else program.in_avals


def _out_avals(program: Program, sizes: Sizes) -> tuple[Aval, ...]:
    return substitute_value(program.out_avals, dict(sizes)) if sizes else program.out_avals


call_p = Primitive(
    "call",
    abstract=_call_abstract,
    multiple_results=True,
    doc="Runs a sub-program, of symbolic sizes when values are given for them.",
    not_needed={"pad": "it is inlined before padding"},
)


@call_p.def_reference
def _call_reference(
    *arrays: Any, program: Program, sizes: Sizes = (), buckets: Any = None
) -> list[Any]:
    return reference_program(with_sizes(program, sizes), arrays)


@call_p.def_cost
def _call_cost(*avals: Aval, program: Program, sizes: Sizes = (), buckets: Any = None) -> Cost:
    fixed = with_sizes(program, sizes)
    return repeated_cost(program_cost(fixed), 1, avals, fixed.out_avals)


def call(
    program: Program, args: Sequence[Any], sizes: Sizes = (), buckets: Any = None
) -> list[Any]:
    """Bind a call of `program`; its constants become operands.

    Args:
        program: what to run.
        args: one operand per input.
        sizes: a value for each named size of `program`, when it has some. They hold inside it
            only: a name of the enclosing program is another size.
        buckets: policy by which the evaluator pads `program`; needed with `sizes`.
    """
    closed, constants = constants_to_inputs(program)
    if not sizes:
        return list(call_p.bind(*constants, *args, program=closed))
    return list(call_p.bind(*constants, *args, program=closed, sizes=sizes, buckets=buckets))


@call_p.def_jvp_all
def _call_jvp(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    sizes: Sizes = (),
    buckets: Any = None,
) -> tuple[list[Any], list[Any]]:
    nonzero = zeros.nonzero_mask(tangents)
    derived, out_nonzero = ctx.jvp(program, nonzero)
    given = [t for t in tangents if not isinstance(t, Zero)]
    results = call(derived, [*primals, *given], sizes, buckets)
    count = len(program.outputs)
    return results[:count], _with_zeros(results[count:], out_nonzero, _out_avals(program, sizes))


@call_p.def_linearize
def _call_linearize(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    sizes: Sizes = (),
    buckets: Any = None,
) -> tuple[list[Any], list[Any]]:
    parts = ctx.linearize(program, zeros.nonzero_mask(tangents))
    results = call(parts.forward, primals, sizes, buckets)
    count = len(program.outputs)
    residuals = parts.residuals(primals, results[count:])
    given = [t for t in tangents if not isinstance(t, Zero)]
    found = call(parts.linear, [*residuals, *given], sizes, buckets) if parts.linear.outputs else []
    return results[:count], _with_zeros(found, parts.out_nonzero, _out_avals(program, sizes))


@call_p.def_transpose_all
def _call_transpose(
    ctx: Any,
    cts: Sequence[Any],
    operands: Sequence[Any],
    *,
    program: Program,
    sizes: Sizes = (),
    buckets: Any = None,
) -> list[Any]:
    linear = tuple(isinstance(operand, Linear) for operand in operands)
    given = zeros.nonzero_mask(cts)
    derived, nonzero = ctx.transpose(program, linear, given)
    fixed = [operand for operand in operands if not isinstance(operand, Linear)]
    seeds = [ct for ct in cts if not isinstance(ct, Zero)]
    found = iter(call(derived, [*fixed, *seeds], sizes, buckets))
    flags = iter(nonzero)
    return [next(found) if flag and next(flags) else None for flag in linear]


@call_p.def_vmap
def _call_vmap(
    ctx: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    size: Size,
    *,
    program: Program,
    sizes: Sizes = (),
    buckets: Any = None,
) -> tuple[list[Any], tuple[int | None, ...]]:
    if isinstance(size, Dim):  # its names and those of the program are different sizes
        program, sizes, buckets = with_sizes(program, sizes), (), None
    batched, out_dims = ctx.vmap(program, size, tuple(dims))
    return call(batched, args, sizes, buckets), out_dims


def with_sizes(program: Program, sizes: Sizes) -> Program:
    """The program for given sizes, of exact shapes; the same object each time."""
    if not sizes:
        return program
    known = {variable.name for variable in dim_variables(program)}
    used = tuple(item for item in sizes if item[0] in known)
    return _specialised(program, used) if used else program


@cached_by_program
def _specialised(program: Program, sizes: Sizes) -> Program:
    return specialise(program, dict(sizes))


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
            called = with_sizes(equation.params["program"], equation.params.get("sizes", ()))
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
