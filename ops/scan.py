"""`scan`: a loop with a known number of iterations, a carry, and stacked inputs and outputs.

Operands are ``([count], *consts, *init, *xs)``. Iteration i calls ``body(*consts, *carry, *x[i])``,
which gives the next carry and the values ``y[i]``; results are the last carry and the stacked ys.

``bounded`` adds the leading operand `count`, an int32 scalar: iterations from `count` on do nothing
and their ys are zero. Padding makes such scans when the length is symbolic, so that a loop in a
bucket runs as often as the true length says.

Reverse mode splits the body: a forward scan stacks residuals, a linear scan uses them. Values that
are the same in every iteration are computed once, in front of the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Linear,
    Literal,
    OpCase,
    Params,
    Primitive,
    Program,
    ShapeError,
    Size,
    TestRecord,
    Var,
    Zero,
    aval_of,
    cached_by_program,
    dtypes,
    eval_program,
    message,
    prune,
    reference_program,
    trace_program,
)
from trnx.core.program import scalar_of
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray
from trnx.ops._programs import (
    Flags,
    LazyCases,
    as_array,
    case_of,
    check_inputs,
    dependent,
    fixed_point,
    hoist,
    interleaved,
    joined,
    nonzero,
    of_type,
    permuted,
    pick,
    place,
    program_cost,
    repeated_cost,
    restricted,
    same_type,
    split,
    with_only,
)

Array = Any
_INT32 = dtypes.int32
_COUNT = Aval((), _INT32)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where operands and values of a body begin."""

    consts: int
    carries: int
    bounded: bool

    def operands(self, values: Sequence[Any]) -> list[list[Any]]:
        """[count or nothing], consts, init, xs."""
        return split(values, int(self.bounded), self.consts, self.carries)

    def inputs(self, values: Sequence[Any]) -> list[list[Any]]:
        """consts, carry, x of a body."""
        return split(values, self.consts, self.carries)

    def outputs(self, values: Sequence[Any]) -> list[list[Any]]:
        """carry, y of a body; last carry, ys of the scan."""
        return split(values, self.carries)


def _layout(params: dict[str, Any]) -> _Layout:
    return _Layout(params["consts"], params["carries"], params["bounded"])


def bind(
    count: Sequence[Array],
    consts: Sequence[Array],
    init: Sequence[Array],
    xs: Sequence[Array],
    *,
    body: Program,
    length: Size,
    reverse: bool = False,
    unroll: int = 1,
) -> list[Array]:
    """Apply `scan`; `count` has one operand when the scan is bounded, else none."""
    return list(
        scan_p.bind(
            *count,
            *consts,
            *init,
            *xs,
            body=body,
            length=length,
            consts=len(consts),
            carries=len(init),
            reverse=reverse,
            unroll=unroll,
            bounded=bool(count),
        )
    )


def _abstract(
    *avals: Aval,
    body: Program,
    length: Size,
    consts: int,
    carries: int,
    reverse: bool,
    unroll: int,
    bounded: bool,
) -> tuple[Aval, ...]:
    layout = _Layout(consts, carries, bounded)
    count, const_avals, init, xs = layout.operands(avals)
    if count and not same_type(count[0], _COUNT):
        raise ShapeError(message(f"scan has a count {count[0]}", None, f"Pass one of {_COUNT}"))
    _, carry_in, x_avals = layout.inputs(body.in_avals)
    stacked = [x.with_shape((length, *x.shape)) for x in x_avals]
    check_inputs("scan", "body", [*const_avals, *init], body.in_avals[: consts + carries])
    check_inputs("scan", "stacked inputs", xs, stacked)
    carry_out, ys = layout.outputs(body.out_avals)
    for index, (before, after) in enumerate(zip(carry_in, carry_out, strict=True)):
        if not same_type(before, after):
            raise ShapeError(
                message(
                    f"scan turns value {index} of its carry from {before} into {after}",
                    None,
                    "Give the carry one type",
                )
            )
    last = [joined(before, after) for before, after in zip(carry_in, carry_out, strict=True)]
    return (*last, *(y.with_shape((length, *y.shape)) for y in ys))


scan_p = Primitive(
    "scan",
    abstract=_abstract,
    multiple_results=True,
    doc="A body applied to a carry and to slices of the inputs, a known number of times.",
    tests=TestRecord(LazyCases(lambda: _cases()), (), {"f64": 1e-12, "f32": 1e-5}, grad_order=2),
)


@scan_p.def_reference
def _reference(
    *arrays: NumpyArray, body: Program, length: int, reverse: bool, **params: Any
) -> tuple[NumpyArray, ...]:
    layout = _layout(params)
    count, consts, carry, xs = layout.operands(arrays)
    times = min(max(int(count[0]), 0), length) if count else length
    _, y_avals = layout.outputs(body.out_avals)
    ys = [np.zeros((length, *(int(s) for s in y.shape)), y.dtype) for y in y_avals]
    for i in reversed(range(times)) if reverse else range(times):
        outs = reference_program(body, [*consts, *carry, *(x[i] for x in xs)])
        carry, values = layout.outputs(outs)
        for y, value in zip(ys, values, strict=True):
            y[i] = value
    return (*carry, *ys)


# ---------------------------------------------------------------- derivatives
@scan_p.def_jvp_all
def _jvp(
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
    layout = _layout(params)
    count, consts, init, xs = layout.operands(primals)
    _, consts_t, init_t, xs_t = layout.operands(tangents)
    const_flags, x_flags = nonzero(consts_t), nonzero(xs_t)
    ys = len(body.outputs) - layout.carries

    def find(carry: Flags) -> Any:
        derived, flags = ctx.jvp(body, (*const_flags, *carry, *x_flags), (*carry, *(False,) * ys))
        return (derived, flags[layout.carries :]), flags[: layout.carries]

    (derived, y_flags), carry_flags = fixed_point(find, nonzero(init_t))
    both = interleaved(
        derived,
        (layout.consts, layout.carries, len(xs)),
        (sum(const_flags), sum(carry_flags), sum(x_flags)),
        (layout.carries, ys),
        (sum(carry_flags), sum(y_flags)),
    )
    results = bind(
        count,
        [*consts, *pick(consts_t, const_flags)],
        [*init, *(as_array(t) for t in pick(init_t, carry_flags))],
        [*xs, *pick(xs_t, x_flags)],
        body=both,
        length=length,
        reverse=reverse,
        unroll=unroll,
    )
    last, last_t, stacked, stacked_t = split(results, layout.carries, sum(carry_flags), ys)
    outs = [*last, *stacked]
    avals = [aval_of(out) for out in outs]
    return outs, place([*last_t, *stacked_t], (*carry_flags, *y_flags), avals)


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
    layout = _layout(params)
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
    forward: Program, residual_inputs: tuple[int | None, ...], layout: _Layout, ys: int
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
    layout = _layout(params)
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
    sums = tuple(pick(pick(body.in_avals[: layout.consts], const_flags), const_ct))
    fixed_counts = (len(fixed_consts), len(fixed_xs))
    backward = _backward_body(derived, sums, given, carry_ct, fixed_counts)
    results = bind(
        count,
        fixed_consts,
        [*(op.zeros_like(aval.strong()) for aval in sums), *map(as_array, pick(last_cts, given))],
        [*pick(y_cts, y_flags), *fixed_xs],
        body=backward,
        reverse=not reverse,
        **options,
    )
    found_sums, found_carry, found_xs = split(results, len(sums), sum(given))
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


def _linear_carries(body: Program, layout: _Layout, consts: Flags, init: Flags, xs: Flags) -> Flags:
    """Which carries depend on linear operands in some iteration."""

    def find(carry: Flags) -> tuple[None, Flags]:
        return None, dependent(body, (*consts, *carry, *xs))[: layout.carries]

    return tuple(fixed_point(find, init)[1])


@cached_by_program
def _without_fixed_carries(
    body: Program, layout: _Layout, consts: Flags, carry: Flags, xs: Flags
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


# ---------------------------------------------------------------- vmap, pad, cost, trim
@scan_p.def_trim
def _trim(params: Params, used: Flags) -> tuple[Params, tuple[int, ...], Flags]:
    layout = _Layout(params["consts"], params["carries"], params["bounded"])
    body = params["body"]
    y_flags = used[layout.carries :]

    def find(carry: Flags) -> tuple[Flags, Flags]:
        inputs = restricted(body, (*carry, *y_flags))[1]
        return inputs, inputs[layout.consts : layout.consts + layout.carries]

    # A carry stays if its last value is read, or a result that stays depends on it.
    inputs, carry = fixed_point(find, used[: layout.carries])
    consts, _, xs = layout.inputs(inputs)
    flags = (*(True,) * layout.bounded, *consts, *carry, *xs)
    small = params.replace(
        body=with_only(body, (*consts, *carry, *xs), (*carry, *y_flags)),
        consts=sum(consts),
        carries=sum(carry),
    )
    return small, tuple(i for i, flag in enumerate(flags) if flag), (*carry, *y_flags)


@scan_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    body: Program,
    length: Size,
    reverse: bool,
    unroll: int,
    **params: Any,
) -> tuple[list[Array], list[int | None]]:
    layout = _layout(params)
    options: dict[str, Any] = {"length": length, "reverse": reverse, "unroll": unroll}
    if layout.bounded and dims[0] is not None:
        # Every example has its own number of iterations: all run all, behind masks.
        (count, *consts), init, xs = split(args, 1 + layout.consts, layout.carries)
        at = len(args) - len(xs)
        counters = op.iota((length,), 0)
        return _vmap(
            ctx,
            [count, *consts, *init, counters, *xs],
            [*dims[:at], None, *dims[at:]],
            size,
            body=_masked(body, layout),
            consts=layout.consts + 1,
            carries=layout.carries,
            bounded=False,
            **options,
        )
    count, consts, init, xs = layout.operands(args)
    _, const_dims, init_dims, x_dims = layout.operands(dims)
    const_flags, x_flags = _mapped(const_dims), _mapped(x_dims)
    ys = len(body.outputs) - layout.carries

    def find(carry: Flags) -> Any:
        in_dims = tuple(0 if flag else None for flag in (*const_flags, *carry, *x_flags))
        batched, out_dims = ctx.vmap(body, size, in_dims, (*carry, *(False,) * ys))
        return (batched, out_dims[layout.carries :]), _mapped(out_dims[: layout.carries])

    (batched, y_dims), carry_flags = fixed_point(find, _mapped(init_dims))
    results = bind(
        count,
        [x if d is None else ctx.move(x, d, 0) for x, d in zip(consts, const_dims, strict=True)],
        [
            ctx.to_front(x, d, size) if flag else x
            for x, d, flag in zip(init, init_dims, carry_flags, strict=True)
        ],
        [x if d is None else ctx.move(x, d, 1) for x, d in zip(xs, x_dims, strict=True)],
        body=batched,
        **options,
    )
    return results, [
        *(0 if flag else None for flag in carry_flags),
        *(None if d is None else d + 1 for d in y_dims),
    ]


def _mapped(dims: Sequence[int | None]) -> Flags:
    return tuple(dim is not None for dim in dims)


@cached_by_program
def _masked(body: Program, layout: _Layout) -> Program:
    """A body that takes a count before its consts and a counter before its xs.

    Where the counter is not below the count the carry stays and the ys are zero.
    """
    const_avals, carry_avals, x_avals = layout.inputs(body.in_avals)

    def run(count: Array, *values: Array) -> list[Array]:
        consts, carry, (counter, *xs) = layout.inputs(values)
        after, ys = layout.outputs(eval_program(body, [*consts, *carry, *xs]))
        active = op.lt(counter, count)
        return [
            *(op.select(active, new, old) for new, old in zip(after, carry, strict=True)),
            *(op.select(active, y, op.zeros_like(aval_of(y).strong())) for y in ys),
        ]

    avals = [_COUNT, *const_avals, *carry_avals, _COUNT, *x_avals]
    return trace_program(run, avals, body.name)


@scan_p.def_pad
def _pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[Any],
    *,
    body: Program,
    length: Size,
    reverse: bool,
    unroll: int,
    **params: Any,
) -> list[Array]:
    count, consts, init, xs = _layout(params).operands(args)
    padded, sizes = ctx.pad(body)
    if not count and ctx.is_padded(length):
        count = [ctx.true_size(length)]
    return bind(
        count,
        [*sizes, *consts],
        init,
        xs,
        body=padded,
        length=ctx.padded(length),
        reverse=reverse,
        unroll=unroll,
    )


@scan_p.def_cost
def _cost(*avals: Aval, body: Program, length: Size, **params: Any) -> Cost:
    results = _abstract(*avals, body=body, length=length, **params)
    return repeated_cost(program_cost(body), int(length), avals, results)


# ---------------------------------------------------------------- test record
def _cases() -> list[OpCase]:
    """Calls over f64, f32 and int32: recurrences, matrix steps, both directions, no iterations."""

    def recurrence(c: Array, x: Array) -> list[Array]:
        return [op.add(op.mul(c, x), op.sin(c)), op.mul(c, c)]

    def matrix_step(w: Array, h: Array, x: Array) -> list[Array]:
        after = op.tanh(op.add(op.dot_general(w, h, ((1,), (0,))), x))
        return [after, after]

    def two_carries(w: Array, a: Array, b: Array) -> list[Array]:
        return [op.mul(a, op.exp(op.neg(w))), op.add(b, op.sin(a))]

    def swapped(a: Array, b: Array, x: Array) -> list[Array]:
        return [b, op.add(a, x), op.mul(b, x)]

    def integers(c: Array, x: Array) -> list[Array]:
        return [op.add(op.mul(c, 3), x), c]

    def case(
        function: Any, kinds: Sequence[Aval], length: int, consts: int, carries: int, **params: Any
    ) -> OpCase:
        inputs = [*kinds[: consts + carries]]
        inputs += [aval.with_shape(aval.shape[1:]) for aval in kinds[consts + carries :]]
        body = trace_program(function, inputs, function.__name__)
        avals, ranges = list(kinds), [(-1.0, 1.0)] * len(kinds)
        if params.get("bounded"):
            avals, ranges = [_COUNT, *avals], [(-1.0, length + 1.0), *ranges]
        options = {"reverse": False, "unroll": 1, "bounded": False, **params}
        return case_of(avals, tuple(ranges), body=body, length=length, consts=consts,
                       carries=carries, **options)  # fmt: skip

    kinds = of_type("f64", (3,), (4, 3))
    return [
        case(recurrence, kinds, 4, 0, 1),
        case(recurrence, kinds, 4, 0, 1, reverse=True),
        case(recurrence, kinds, 4, 0, 1, bounded=True),
        case(recurrence, kinds, 4, 0, 1, bounded=True, reverse=True, unroll=2),
        case(recurrence, of_type("f64", (), (5,)), 5, 0, 1),
        case(recurrence, of_type("f64", (2,), (0, 2)), 0, 0, 1),
        case(recurrence, of_type("f32", (2, 3), (6, 2, 3)), 6, 0, 1),
        case(matrix_step, of_type("f64", (3, 3), (3,), (4, 3)), 4, 1, 1),
        case(matrix_step, of_type("f64", (2, 2), (2,), (3, 2)), 3, 1, 1, reverse=True),
        case(two_carries, of_type("f64", (2,), (2,), (2,)), 3, 1, 2),
        case(swapped, of_type("f64", (2,), (2,), (3, 2)), 3, 0, 2),
        case(integers, of_type("i32", (3,), (5, 3)), 5, 0, 1),
    ]
