"""`checkpoint`: a call that keeps its operands instead of its residuals.

Reverse mode runs the program a second time, when the cotangents arrive: the linear part of a
checkpoint is itself a checkpoint that recomputes the residuals from the operands and from what the
policy lets it save. ``recompute`` marks such equations: a compiler must not share their work with
equal work outside, or the saved memory is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import (
    Annotation,
    Aval,
    Cost,
    Linear,
    NamedAnnotation,
    OpCase,
    Params,
    Primitive,
    Program,
    Size,
    TestRecord,
    TraceError,
    Var,
    Zero,
    aval_of,
    cached_by_program,
    eval_program,
    message,
    prune,
    reference_program,
    trace_program,
)
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray
from trnx.ops._programs import (
    Flags,
    LazyCases,
    case_of,
    check_inputs,
    needed_inputs,
    nonzero,
    of_type,
    pick,
    place,
    program_cost,
    repeated_cost,
    restricted,
    split,
    with_only,
)

Array = Any


@dataclass(frozen=True)
class Policy(NamedAnnotation):
    """What a checkpoint may keep.

    Attributes:
        saveable: ``saveable(primitive, *avals, **params)`` says whether the results of such an
            equation are kept; avals are those of its operands.
    """

    saveable: Callable[..., bool]


def bind(
    operands: Sequence[Array],
    program: Program,
    policy: Annotation | None,
    prevent_cse: bool,
    recompute: bool,
) -> list[Array]:
    """Apply `checkpoint`, without the operands that the program does not use."""
    small, used = _without_unused(program)
    return list(
        checkpoint_p.bind(
            *(operands[i] for i in used),
            program=small,
            policy=policy,
            prevent_cse=prevent_cse,
            recompute=recompute,
        )
    )


@cached_by_program
def _without_unused(program: Program) -> tuple[Program, tuple[int, ...]]:
    flags = needed_inputs(program)
    used = tuple(i for i, flag in enumerate(flags) if flag)
    return program.replace(inputs=pick(program.inputs, flags)), used


def _abstract(
    *avals: Aval,
    program: Program,
    policy: Annotation | None,
    prevent_cse: bool,
    recompute: bool,
) -> tuple[Aval, ...]:
    check_inputs("checkpoint", f"function {program.name}", avals, program.in_avals)
    return program.out_avals


checkpoint_p = Primitive(
    "checkpoint",
    abstract=_abstract,
    multiple_results=True,
    doc="A call whose residuals are recomputed in reverse mode.",
    tests=TestRecord(LazyCases(lambda: _cases()), (), {"f64": 1e-12, "f32": 2e-6}, grad_order=2),
)


@checkpoint_p.def_reference
def _reference(*arrays: NumpyArray, program: Program, **params: Any) -> list[NumpyArray]:
    return reference_program(program, arrays)


@checkpoint_p.def_composite
def _composite(*args: Array, program: Program, **params: Any) -> list[Array]:
    return eval_program(program, args)


# ---------------------------------------------------------------- derivatives
@checkpoint_p.def_jvp_all
def _jvp(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, **params: Any
) -> tuple[list[Any], list[Any]]:
    flags = nonzero(tangents)
    derived, out_flags = ctx.jvp(program, flags)
    results = bind([*primals, *pick(tangents, flags)], derived, **params)
    outs, out_tangents = split(results, len(out_flags))
    return outs, place(out_tangents, out_flags, [aval_of(out) for out in outs])


@checkpoint_p.def_linearize
def _linearize(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    program: Program,
    policy: Annotation | None,
    prevent_cse: bool,
    recompute: bool,
) -> tuple[list[Any], list[Any]]:
    flags = nonzero(tangents)
    parts = ctx.linearize(program, flags)
    count = len(program.outputs)
    forward, again = _split_by_policy(parts.forward, count, policy)
    outs, saved = split(bind(primals, forward, policy, prevent_cse, recompute), count)
    avals = [aval_of(out) for out in outs]
    if not any(parts.out_nonzero):
        return outs, [Zero(aval.strong()) for aval in avals]
    linear = _recomputing(parts.linear, again, parts.residual_inputs)
    operands = [*primals, *saved, *pick(tangents, flags)]
    found = bind(operands, linear, policy, prevent_cse, prevent_cse)
    return outs, place(found, parts.out_nonzero, avals)


@cached_by_program
def _split_by_policy(
    forward: Program, count: int, policy: Annotation | None
) -> tuple[Program, Program]:
    """What runs at once and what runs again.

    Args:
        forward: gives `count` outputs and then residuals.
        count: number of outputs.
        policy: what may be kept.

    Returns:
        A program from the inputs to the outputs and the saved values; and one from the inputs and
        the saved values to the residuals.
    """
    if policy is not None and not isinstance(policy, Policy):
        raise TraceError(
            message(
                f"The policy {policy.name} is not part of the text this program was read from",
                None,
                "Take derivatives before writing the program down",
            )
        )
    outs, residuals = split(forward.outputs, count)
    needed = {atom for atom in residuals if isinstance(atom, Var)}
    saved: list[Var] = []
    kept = []
    for equation in reversed(forward.equations):
        results = [var for var in equation.outputs if var in needed]
        avals = [atom.aval for atom in equation.inputs]
        if (
            policy is not None
            and results
            and policy.saveable(equation.primitive, *avals, **equation.params)
        ):
            saved += results
            continue
        kept.append(equation)
        if results:
            needed.update(atom for atom in equation.inputs if isinstance(atom, Var))
    first = prune(forward.replace(outputs=[*outs, *saved]))
    again = prune(
        forward.replace(
            inputs=[*forward.inputs, *saved], equations=reversed(kept), outputs=residuals
        )
    )
    return first, again


@cached_by_program
def _recomputing(
    linear: Program, again: Program, residual_inputs: tuple[int | None, ...]
) -> Program:
    """A linear program that takes operands, saved values and tangents instead of residuals."""
    tangents = linear.in_avals[len(residual_inputs) :]

    def run(*args: Array) -> list[Array]:
        known, given = split(args, len(again.inputs))
        new = iter(eval_program(again, known))
        residuals = [known[i] if i is not None else next(new) for i in residual_inputs]
        return eval_program(linear, [*residuals, *given])

    return trace_program(run, [*again.in_avals, *tangents], linear.name)


@checkpoint_p.def_transpose_all
def _transpose(
    ctx: Any, cts: Sequence[Any], operands: Sequence[Any], *, program: Program, **params: Any
) -> list[Any]:
    linear: Flags = tuple(isinstance(operand, Linear) for operand in operands)
    given = nonzero(cts)
    derived, flags = ctx.transpose(program, linear, given)
    if not any(flags):
        return [None] * len(operands)
    fixed = [operand for operand in operands if not isinstance(operand, Linear)]
    found = iter(bind([*fixed, *pick(cts, given)], derived, **params))
    left = iter(flags)
    return [next(found) if flag and next(left) else None for flag in linear]


# ---------------------------------------------------------------- vmap, pad, cost, trim
@checkpoint_p.def_trim
def _trim(params: Params, used: Flags) -> tuple[Params, tuple[int, ...], Flags]:
    program = params["program"]
    _, inputs = restricted(program, used)
    kept = tuple(i for i, flag in enumerate(inputs) if flag)
    return params.replace(program=with_only(program, inputs, used)), kept, used


@checkpoint_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    program: Program,
    **params: Any,
) -> tuple[list[Array], Sequence[int | None]]:
    batched, out_dims = ctx.vmap(program, size, tuple(dims))
    return bind(args, batched, **params), out_dims


@checkpoint_p.def_pad
def _pad(
    ctx: Any, args: Sequence[Array], true_shapes: Any, *, program: Program, **params: Any
) -> list[Array]:
    padded, sizes = ctx.pad(program)
    return bind([*sizes, *args], padded, **params)


@checkpoint_p.def_cost
def _cost(*avals: Aval, program: Program, **params: Any) -> Cost:
    return repeated_cost(program_cost(program), 1, avals, program.out_avals)


# ---------------------------------------------------------------- test record
def _cases() -> list[OpCase]:
    def layer(w: Array, x: Array) -> list[Array]:
        hidden = op.tanh(op.dot_general(w, x, ((1,), (0,))))
        return [op.sin(op.mul(hidden, hidden)), hidden]

    products = Policy("products", lambda primitive, *avals, **params: (
        primitive.name == "dot_general"))  # fmt: skip
    everything = Policy("everything", lambda primitive, *avals, **params: True)
    found = []
    for policy in (None, products, everything):
        kinds = of_type("f64", (3, 3), (3,))
        program = trace_program(layer, kinds, "layer")
        found.append(
            case_of(kinds, program=program, policy=policy, prevent_cse=True, recompute=False)
        )
    return found
