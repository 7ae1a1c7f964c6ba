"""`while_loop`: a body applied to a carry as long as a condition holds.

Operands are ``(*cond consts, *body consts, *init)``, results are the last carry. The number of
iterations is not known beforehand, so there is no reverse mode: nothing could hold the values of
every iteration. Under vmap with a condition that differs between examples all examples run until
the last one is done; the carries of those that are done stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    OpCase,
    Params,
    Primitive,
    Program,
    ShapeError,
    Size,
    TestRecord,
    aval_of,
    cached_by_program,
    dtypes,
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
    as_array,
    case_of,
    check_inputs,
    either,
    fixed_point,
    interleaved,
    joined,
    needed_inputs,
    nonzero,
    of_type,
    pick,
    place,
    program_cost,
    repeated_cost,
    restricted,
    same_type,
    split,
    with_inputs,
    with_only,
)

Array = Any
_BOOL = Aval((), dtypes.bool_)


def bind(
    cond_consts: Sequence[Array],
    body_consts: Sequence[Array],
    init: Sequence[Array],
    *,
    cond: Program,
    body: Program,
) -> list[Array]:
    """Apply `while_loop`."""
    return list(
        while_loop_p.bind(
            *cond_consts,
            *body_consts,
            *init,
            cond=cond,
            body=body,
            cond_consts=len(cond_consts),
            body_consts=len(body_consts),
        )
    )


def _abstract(
    *avals: Aval, cond: Program, body: Program, cond_consts: int, body_consts: int
) -> tuple[Aval, ...]:
    for_cond, for_body, init = split(avals, cond_consts, body_consts)
    check_inputs("while_loop", "condition", [*for_cond, *init], cond.in_avals)
    check_inputs("while_loop", "body", [*for_body, *init], body.in_avals)
    if len(cond.outputs) != 1 or not same_type(cond.out_avals[0], _BOOL):
        found = ", ".join(map(str, cond.out_avals))
        raise ShapeError(
            message(f"The condition of a while_loop gives {found}", None, "Return one bool[]")
        )
    carry_in = body.in_avals[body_consts:]
    if len(body.outputs) != len(carry_in) or not all(map(same_type, carry_in, body.out_avals)):
        before, after = (", ".join(map(str, a)) for a in (carry_in, body.out_avals))
        raise ShapeError(
            message(
                f"The body of a while_loop turns its carry from ({before}) into ({after})",
                None,
                "Give the carry one type",
            )
        )
    return tuple(map(joined, carry_in, body.out_avals))


while_loop_p = Primitive(
    "while_loop",
    abstract=_abstract,
    multiple_results=True,
    doc="A body applied to a carry as long as a condition holds.",
    tests=TestRecord(
        LazyCases(lambda: _cases()),
        (),
        {"f64": 1e-12, "f32": 1e-5},
        grad_order=2,
        skips={"transpose": "there is no reverse mode"},
    ),
    not_needed={
        "transpose": "reverse mode needs the values of every iteration, and how many there are "
        "is not known beforehand"
    },
    remedies={"transpose": "Use scan, or fori_loop with bounds that are Python ints"},
)


@while_loop_p.def_reference
def _reference(
    *arrays: NumpyArray, cond: Program, body: Program, cond_consts: int, body_consts: int
) -> tuple[NumpyArray, ...]:
    for_cond, for_body, carry = split(arrays, cond_consts, body_consts)
    while bool(reference_program(cond, [*for_cond, *carry])[0]):
        carry = reference_program(body, [*for_body, *carry])
    return tuple(carry)


# ---------------------------------------------------------------- derivatives
@while_loop_p.def_jvp_all
def _jvp(
    ctx: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    cond: Program,
    body: Program,
    cond_consts: int,
    body_consts: int,
) -> tuple[list[Any], list[Any]]:
    for_cond, for_body, init = split(primals, cond_consts, body_consts)
    _, body_t, init_t = split(tangents, cond_consts, body_consts)
    const_flags, carries = nonzero(body_t), len(init)

    def find(carry: Flags) -> Any:
        return ctx.jvp(body, (*const_flags, *carry), carry)

    derived, flags = fixed_point(find, nonzero(init_t))
    both = interleaved(
        derived,
        (body_consts, carries),
        (sum(const_flags), sum(flags)),
        (carries,),
        (sum(flags),),
    )
    avals = [aval_of(x) for x in init]
    # The condition sees the tangents of the carry and does not use them.
    extended = with_inputs(
        cond,
        (*range(len(cond.inputs)), *(None,) * sum(flags)),
        tuple(aval.strong() for aval in pick(avals, flags)),
    )
    results = bind(
        for_cond,
        [*for_body, *pick(body_t, const_flags)],
        [*init, *(as_array(t) for t in pick(init_t, flags))],
        cond=extended,
        body=both,
    )
    return results[:carries], place(results[carries:], flags, avals)


@while_loop_p.def_linearize
def _linearize(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    # The linear part runs the whole loop again: there are no residuals of an unknown number.
    outs = list(while_loop_p.bind(*primals, **params))
    _, out_tangents = _jvp(ctx, primals, tangents, **params)
    return outs, out_tangents


# ---------------------------------------------------------------- vmap, pad, cost, trim
@while_loop_p.def_trim
def _trim(params: Params, used: Flags) -> tuple[Params, tuple[int, ...], Flags]:
    cond, body = params["cond"], params["body"]
    cond_count, body_count = params["cond_consts"], params["body_consts"]
    cond_inputs = needed_inputs(prune(cond))

    def find(carry: Flags) -> tuple[Flags, Flags]:
        inputs = restricted(body, carry)[1]
        return inputs, inputs[body_count:]

    # A carry stays if it is read afterwards, by the condition, or for another that stays.
    body_inputs, carry = fixed_point(find, either(used, cond_inputs[cond_count:]))
    consts = (*cond_inputs[:cond_count], *body_inputs[:body_count])
    kept = tuple(i for i, flag in enumerate((*consts, *carry)) if flag)
    small = params.replace(
        cond=with_only(cond, (*cond_inputs[:cond_count], *carry), (True,)),
        body=with_only(body, (*body_inputs[:body_count], *carry), carry),
        cond_consts=sum(cond_inputs[:cond_count]),
        body_consts=sum(body_inputs[:body_count]),
    )
    return small, kept, carry


@while_loop_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    cond: Program,
    body: Program,
    cond_consts: int,
    body_consts: int,
) -> tuple[list[Array], list[int | None]]:
    for_cond, for_body, init = split(args, cond_consts, body_consts)
    cond_dims, body_dims, init_dims = split(dims, cond_consts, body_consts)

    def in_dims(consts: Sequence[int | None], carry: Flags) -> tuple[int | None, ...]:
        return (*(None if d is None else 0 for d in consts), *(0 if c else None for c in carry))

    def find(carry: Flags) -> Any:
        batched, out_dims = ctx.vmap(body, size, in_dims(body_dims, carry), carry)
        test, test_dims = ctx.vmap(cond, size, in_dims(cond_dims, carry))
        differs = test_dims[0] is not None
        # Where examples stop at different times, every carry differs between them.
        found = tuple(differs or d is not None for d in out_dims)
        return (batched, test, differs), found

    (batched, test, differs), flags = fixed_point(find, tuple(d is not None for d in init_dims))
    cond_args = [_front(ctx, x, d) for x, d in zip(for_cond, cond_dims, strict=True)]
    body_args = [_front(ctx, x, d) for x, d in zip(for_body, body_dims, strict=True)]
    carry = [
        ctx.to_front(x, d, size) if flag else x
        for x, d, flag in zip(init, init_dims, flags, strict=True)
    ]
    if not differs:
        results = bind(cond_args, body_args, carry, cond=test, body=batched)
        return results, [0 if flag else None for flag in flags]
    (running,) = eval_program(test, [*cond_args, *carry])
    results = bind(
        [],
        [*cond_args, *body_args],
        [running, *carry],
        cond=_any_running(test, cond_consts),
        body=_masked(batched, test, cond_consts, body_consts),
    )
    return results[1:], [0] * len(carry)


def _front(ctx: Any, value: Array, dim: int | None) -> Array:
    return value if dim is None else ctx.move(value, dim, 0)


@cached_by_program
def _any_running(test: Program, cond_consts: int) -> Program:
    """The condition of a masked loop: is there an example that still runs?"""
    avals = [test.out_avals[0].strong(), *test.in_avals[cond_consts:]]
    return trace_program(lambda running, *carry: [op.reduce_max(running, (0,))], avals, test.name)


@cached_by_program
def _masked(body: Program, test: Program, cond_consts: int, body_consts: int) -> Program:
    """The body of a masked loop: takes and gives the mask of running examples, then the carry."""

    def run(*values: Array) -> list[Array]:
        for_cond, for_body, (running, *carry) = split(values, cond_consts, body_consts)
        found = eval_program(body, [*for_body, *carry])
        after = [_select(running, new, old) for new, old in zip(found, carry, strict=True)]
        (more,) = eval_program(test, [*for_cond, *after])
        return [op.bitwise_and(running, more), *after]

    avals = [*test.in_avals[:cond_consts], *body.in_avals[:body_consts]]
    avals += [test.out_avals[0].strong(), *body.in_avals[body_consts:]]
    return trace_program(run, avals, body.name)


def _select(mask: Array, on_true: Array, on_false: Array) -> Array:
    """Examples of one or the other by a mask over the leading axis."""
    return op.select(op.broadcast(mask, op.shape_of(on_false), (0,)), on_true, on_false)


@while_loop_p.def_pad
def _pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[Any],
    *,
    cond: Program,
    body: Program,
    cond_consts: int,
    body_consts: int,
) -> list[Array]:
    for_cond, for_body, init = split(args, cond_consts, body_consts)
    padded_cond, cond_sizes = ctx.pad(cond)
    padded_body, body_sizes = ctx.pad(body)
    return bind(
        [*cond_sizes, *for_cond],
        [*body_sizes, *for_body],
        init,
        cond=padded_cond,
        body=padded_body,
    )


@while_loop_p.def_cost
def _cost(*avals: Aval, cond: Program, body: Program, **params: Any) -> Cost:
    """One iteration: how many there are is not known."""
    results = _abstract(*avals, cond=cond, body=body, **params)
    return repeated_cost(program_cost(cond) + program_cost(body), 1, avals, results)


# ---------------------------------------------------------------- test record
def _cases() -> list[OpCase]:
    """Loops that end by a counter, by a value of the carry, by a limit, and at once."""

    def below(limit: Array, x: Array) -> list[Array]:
        return [op.lt(op.reduce_max(x, (0,)), op.reduce_max(limit, (0,)))]

    def grow(rate: Array, x: Array) -> list[Array]:
        return [op.add(op.mul(x, 1.25), op.mul(rate, op.sin(x)))]

    def small(x: Array, y: Array) -> list[Array]:
        return [op.lt(x, 20.0)]

    def step(x: Array, y: Array) -> list[Array]:
        return [op.add(op.mul(x, 1.5), 1.0), op.mul(op.cos(y), x)]

    def positive(n: Array, x: Array) -> list[Array]:
        return [op.gt(n, 0)]

    def count_down(n: Array, x: Array) -> list[Array]:
        return [op.sub(n, 1), op.add(op.mul(x, 3), n)]

    def never(x: Array) -> list[Array]:
        return [np.bool_(False)]

    def case(
        cond: Any,
        body: Any,
        kinds: Sequence[Aval],
        ranges: Sequence[tuple[float, float]],
        consts: tuple[int, int] = (0, 0),
    ) -> OpCase:
        for_cond, for_body, init = split(kinds, *consts)
        return case_of(
            kinds,
            tuple(ranges),
            cond=trace_program(cond, [*for_cond, *init], cond.__name__),
            body=trace_program(body, [*for_body, *init], body.__name__),
            cond_consts=consts[0],
            body_consts=consts[1],
        )

    limit, rate, positive_range = (4.0, 9.0), (0.1, 0.3), (0.3, 1.0)
    return [
        case(below, grow, of_type("f64", (3,), (3,), (3,)), (limit, rate, positive_range), (1, 1)),
        case(small, step, of_type("f64", (), ()), (positive_range, positive_range)),
        case(positive, count_down, of_type("i32", (), (3,)), ((0.0, 6.0), (-9.0, 9.0))),
        case(never, lambda x: [op.exp(x)], of_type("f32", (2, 3)), (rate,)),
    ]
