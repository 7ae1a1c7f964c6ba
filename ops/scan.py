"""`scan`: a loop with a known number of iterations, a carry, and stacked inputs and outputs.

Operands are ``([count], *consts, *init, *xs)``. Iteration i calls ``body(*consts, *carry, *x[i])``,
which gives the next carry and the values ``y[i]``; results are the last carry and the stacked ys.

``bounded`` adds the leading operand `count`, an int32 scalar: iterations from `count` on do nothing
and their ys are zero. Padding makes such scans when the length is symbolic, so that a loop in a
bucket runs as often as the true length says.

Its rules for reverse mode are in `_scan_reverse.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    fixed_point,
    interleaved,
    joined,
    nonzero,
    of_type,
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
class Layout:
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


def layout_of(params: dict[str, Any]) -> Layout:
    return Layout(params["consts"], params["carries"], params["bounded"])


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
    layout = Layout(consts, carries, bounded)
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
    layout = layout_of(params)
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
    layout = layout_of(params)
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


# ---------------------------------------------------------------- vmap, pad, cost, trim
@scan_p.def_trim
def _trim(params: Params, used: Flags) -> tuple[Params, tuple[int, ...], Flags]:
    layout = Layout(params["consts"], params["carries"], params["bounded"])
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
    layout = layout_of(params)
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
def _masked(body: Program, layout: Layout) -> Program:
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
    count, consts, init, xs = layout_of(params).operands(args)
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
