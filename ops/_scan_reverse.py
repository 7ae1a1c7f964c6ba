"""Reverse mode of `scan`: the linearize and transpose rules.

A forward scan stacks residuals, a linear scan uses them, and the transpose of that runs the other
way. Residuals that are the same in every iteration are computed once, in front of the loops; those
that are stacked anyway (inputs, results) are not stacked again. Sums over the iterations that are
contractions wait until after the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import (
    Aval,
    Linear,
    Literal,
    Program,
    Size,
    Var,
    Zero,
    aval_of,
    cached_by_program,
    eval_program,
    prune,
    trace_program,
)
from trnx.core.program import scalar_of
from trnx.ops import functions as op
from trnx.ops._late_sums import LateSum, postpone
from trnx.ops._programs import (
    Flags,
    as_array,
    dependent,
    fixed_point,
    hoist,
    nonzero,
    permuted,
    pick,
    place,
    split,
)
from trnx.ops.scan import Layout, bind, layout_of, scan_p

Array = Any


# ---------------------------------------------------------------- linearize
@scan_p.def_linearize
def _linearize(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    body: Program,
    length: Size,
    reverse: bool,
    unroll: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    layout = layout_of(params)
    count, consts, init, xs = layout.operands(primals)
    _, consts_t, init_t, xs_t = layout.operands(tangents)
    const_flags, x_flags = nonzero(consts_t), nonzero(xs_t)
    ys = len(body.outputs) - layout.carries

    def find(carry: Flags) -> Any:
        parts = ctx.linearize(body, (*const_flags, *carry, *x_flags), (*carry, *(False,) * ys))
        return (parts, parts.out_nonzero[layout.carries :]), parts.out_nonzero[: layout.carries]

    (parts, y_flags), carry_flags = fixed_point(find, nonzero(init_t))
    plan = _plan_residuals(parts.forward, parts.residual_inputs, layout, ys)
    known = eval_program(plan.outer, consts)
    options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}
    results = bind(count, [*known, *consts], init, xs, body=plan.forward, **options)
    outs, stacked = split(results, layout.carries + ys)
    avals = [aval_of(out) for out in outs]
    if not any((*carry_flags, *y_flags)):
        return outs, [Zero(aval.strong()) for aval in avals]
    literals = [scalar_of(a) if isinstance(a, Literal) else None for a in parts.forward.outputs]
    sources = {
        "const": consts,
        "known": known,
        "literal": literals,
        "x": xs,
        "y": outs,
        "new": stacked,
    }
    values = [sources[kind][number] for kind, number in plan.places]
    is_fixed = [kind in ("const", "known", "literal") for kind, _ in plan.places]
    changing = [not flag for flag in is_fixed]
    residuals = range(len(values))
    const_in, carry_in, x_in = split(
        range(len(values), len(parts.linear.inputs)), sum(const_flags), sum(carry_flags)
    )
    linear = permuted(
        parts.linear,
        (*pick(residuals, is_fixed), *const_in, *carry_in, *pick(residuals, changing), *x_in),
        tuple(range(len(parts.linear.outputs))),
    )
    found = bind(
        count,
        [*pick(values, is_fixed), *pick(consts_t, const_flags)],
        [as_array(t) for t in pick(init_t, carry_flags)],
        [*pick(values, changing), *pick(xs_t, x_flags)],
        body=linear,
        **options,
    )
    return outs, place(found, (*carry_flags, *y_flags), avals)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the linear scan finds its residuals.

    Attributes:
        outer: from the consts to values that are the same in every iteration.
        forward: the body of the forward scan; takes those values first, and gives residuals that
            change from iteration to iteration after its own outputs.
        places: per residual a kind and a number: operand ``const``, value ``known`` of `outer`,
            operand ``x``, result ``y``, stacked residual ``new``, or output ``literal``.
    """

    outer: Program
    forward: Program
    places: tuple[tuple[str, int], ...]


@cached_by_program
def _plan_residuals(
    forward: Program, residual_inputs: tuple[int | None, ...], layout: Layout, ys: int
) -> _Plan:
    own = layout.carries + ys
    invariant = [index < layout.consts for index in range(len(forward.inputs))]
    changes = dependent(forward, [not flag for flag in invariant])
    position = {atom: i for i, atom in reversed(list(enumerate(forward.outputs[:own])))
                if isinstance(atom, Var) and i >= layout.carries}  # fmt: skip
    places: list[tuple[str, int]] = []
    hoisted: list[int] = []
    stacked: list[Any] = []
    extra = iter(range(own, len(forward.outputs)))
    for index in residual_inputs:
        if index is not None and index < layout.consts:
            places.append(("const", index))
            continue
        if index is not None and index >= layout.consts + layout.carries:
            places.append(("x", index - layout.consts - layout.carries))
            continue
        number = next(extra) if index is None else -1
        atom = forward.outputs[number] if index is None else forward.inputs[index]
        if isinstance(atom, Literal):
            places.append(("literal", number))
        elif atom in position:
            places.append(("y", position[atom]))
        elif index is None and not changes[number]:
            places.append(("known", len(hoisted)))
            hoisted.append(number)
        else:
            places.append(("new", len(stacked)))
            stacked.append(atom)
    outer, inner = hoist(forward, layout.consts, tuple(hoisted))
    outputs = [*forward.outputs[:own], *stacked]
    return _Plan(outer, prune(inner.replace(outputs=outputs)), tuple(places))


# ---------------------------------------------------------------- transpose
def _linear(operands: Sequence[Any]) -> Flags:
    return tuple(isinstance(operand, Linear) for operand in operands)


@scan_p.def_transpose_all
def _transpose(
    ctx: Any,
    cts: Sequence[Any],
    operands: Sequence[Any],
    *,
    body: Program,
    length: Size,
    reverse: bool,
    unroll: int,
    **params: Any,
) -> list[Any]:
    layout = layout_of(params)
    count, consts, init, xs = layout.operands(operands)
    last_cts, y_cts = layout.outputs(cts)
    const_flags, x_flags = _linear(consts), _linear(xs)
    carry_flags = _linear_carries(body, layout, const_flags, _linear(init), x_flags)
    options: dict[str, Any] = {"length": length, "unroll": unroll}
    fixed_consts = [x for x in consts if not isinstance(x, Linear)]
    fixed_xs = [x for x in xs if not isinstance(x, Linear)]
    linear_xs = x_flags
    if not all(carry_flags):
        known, body = _without_fixed_carries(body, layout, const_flags, carry_flags, x_flags)
        fixed = [x for x, flag in zip(init, carry_flags, strict=True) if not flag]
        results = bind(count, fixed_consts, fixed, fixed_xs, body=known, reverse=reverse, **options)
        fixed_xs = [*results[len(fixed) :], *fixed_xs]
        linear_xs = (*(False,) * len(fixed), *x_flags)
        last_cts = pick(last_cts, carry_flags)
    carries = sum(carry_flags)
    linear = (*const_flags, *(True,) * carries, *linear_xs)
    y_flags = nonzero(y_cts)

    def find(carry: Flags) -> Any:
        derived, flags = ctx.transpose(body, linear, (*carry, *y_flags))
        parts = [tuple(part) for part in split(flags, sum(const_flags), carries)]
        return (derived, *parts), parts[1]

    (derived, const_ct, carry_ct, x_ct), given = fixed_point(find, nonzero(last_cts))
    sums = pick(pick(body.in_avals[: layout.consts], const_flags), const_ct)
    fixed_counts = (len(fixed_consts), len(fixed_xs))
    late: tuple[LateSum, ...] = ()
    if not layout.bounded:  # rows that a bounded scan skips hold anything
        is_stacked = (False,) * fixed_counts[0] + (True,) * fixed_counts[1]
        is_stacked += (False,) * sum(given) + (True,) * sum(y_flags)
        derived, late = postpone(derived, len(sums), is_stacked, length)
    waiting = {item.share for item in late}
    early = tuple(aval for i, aval in enumerate(sums) if i not in waiting)
    backward = _backward_body(derived, early, given, carry_ct, fixed_counts)
    given_cts = pick(y_cts, y_flags)
    results = bind(
        count,
        fixed_consts,
        [*(op.zeros_like(aval.strong()) for aval in early), *map(as_array, pick(last_cts, given))],
        [*given_cts, *fixed_xs],
        body=backward,
        reverse=not reverse,
        **options,
    )
    found_early, found_carry, found_xs, extra = split(results, len(early), sum(given), sum(x_ct))
    operands_of = [*fixed_consts, *fixed_xs, *pick(last_cts, given), *given_cts]
    found_late = {
        item.share: eval_program(
            item.program, [operands_of[i] if i >= 0 else extra[~i] for i in item.sources]
        )[0]
        for item in late
    }
    rest = iter(found_early)
    found_sums = [found_late[i] if i in found_late else next(rest) for i in range(len(sums))]
    return [
        *(None for _ in count),
        *_answers(const_flags, const_ct, found_sums),
        *_answers(carry_flags, given, found_carry),
        *_answers(x_flags, x_ct, found_xs),
    ]


def _answers(linear: Flags, given: Flags, found: Sequence[Any]) -> list[Any]:
    """A cotangent per operand; None for fixed operands and where it is symbolically zero."""
    values, flags = iter(found), iter(given)
    return [next(values) if flag and next(flags) else None for flag in linear]


def _linear_carries(body: Program, layout: Layout, consts: Flags, init: Flags, xs: Flags) -> Flags:
    """Which carries depend on linear operands in some iteration."""

    def find(carry: Flags) -> tuple[None, Flags]:
        return None, dependent(body, (*consts, *carry, *xs))[: layout.carries]

    return tuple(fixed_point(find, init)[1])


@cached_by_program
def _without_fixed_carries(
    body: Program, layout: Layout, consts: Flags, carry: Flags, xs: Flags
) -> tuple[Program, Program]:
    """Carries that are not linear (a counter) leave the loop that is transposed.

    Returns:
        A body that runs the fixed carries alone and stacks the values with which each iteration
        begins; and the body of the linear carries, which takes these values before its xs.
    """
    const_in, carry_in, x_in = layout.inputs(body.inputs)
    carry_out, ys = layout.outputs(body.outputs)
    fixed = [not flag for flag in carry]
    begins = pick(carry_in, fixed)
    known = body.replace(
        inputs=[
            *pick(const_in, [not flag for flag in consts]),
            *begins,
            *pick(x_in, [not flag for flag in xs]),
        ],
        outputs=[*pick(carry_out, fixed), *begins],
    )
    rest = body.replace(
        inputs=[*const_in, *pick(carry_in, carry), *begins, *x_in],
        outputs=[*pick(carry_out, carry), *ys],
    )
    return prune(known), prune(rest)


@cached_by_program
def _backward_body(
    derived: Program,
    sums: tuple[Aval, ...],
    given: Flags,
    carry_ct: Flags,
    fixed_counts: tuple[int, int],
) -> Program:
    """The body of the backward scan from the transpose of the body.

    Args:
        derived: from fixed consts, fixed xs, cotangents of the carry and of the ys to the nonzero
            cotangents of consts, carry and xs.
        sums: types of the consts whose cotangents are summed over the iterations.
        given: per carry, whether it has a cotangent.
        carry_ct: per carry, whether an iteration gives it one.
        fixed_counts: number of fixed consts and xs.
    """
    const_avals, x_avals, carry_avals, y_avals = split(derived.in_avals, *fixed_counts, sum(given))

    def run(*values: Array) -> list[Array]:
        consts, totals, carry, ys, xs = split(
            values, fixed_counts[0], len(sums), len(carry_avals), len(y_avals)
        )
        found = eval_program(derived, [*consts, *xs, *carry, *ys])
        shares, carried, x_cts = split(found, len(sums), sum(carry_ct))
        totals = [op.add(total, share) for total, share in zip(totals, shares, strict=True)]
        following = iter(carried)
        comes = pick(carry_ct, given)
        carry = [
            next(following) if flag else op.zeros_like(aval)
            for flag, aval in zip(comes, carry_avals, strict=True)
        ]
        return [*totals, *carry, *x_cts]

    strong = [aval.strong() for aval in sums]
    avals = [*const_avals, *strong, *carry_avals, *y_avals, *x_avals]
    return trace_program(run, avals, derived.name)
