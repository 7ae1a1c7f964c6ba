"""`cond`: one of several branches, chosen by an index.

Operands are ``(index, *operands)``; the index is an int32 scalar, clamped to the branches. Branches
are programs of the operands with results of the same types. Under vmap with an index that differs
between examples all branches run and the results are selected.

Reverse mode: every branch leaves its residuals in slots that the branches share by type; a branch
fills the slots that it does not use with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Linear,
    OpCase,
    Params,
    Primitive,
    Program,
    ShapeError,
    Size,
    TestRecord,
    Zero,
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
    case_of,
    check_inputs,
    either,
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
    with_zeros,
)

Array = Any
Branches = tuple[Program, ...]
_INDEX = Aval((), dtypes.int32)


def bind(index: Array, operands: Sequence[Array], branches: Sequence[Program]) -> list[Array]:
    """Apply `cond`."""
    return list(cond_p.bind(index, *operands, branches=tuple(branches)))


def _abstract(index: Aval, *avals: Aval, branches: Branches) -> tuple[Aval, ...]:
    if not branches or not same_type(index, _INDEX):
        raise ShapeError(
            message(
                f"cond has an index {index} for {len(branches)} branches",
                None,
                f"Pass one of {_INDEX}, and a branch",
            )
        )
    results = list(branches[0].out_avals)
    for number, branch in enumerate(branches):
        check_inputs("cond", f"branch {number}", avals, branch.in_avals)
        found = branch.out_avals
        if len(found) != len(results) or not all(map(same_type, found, results)):
            texts = [", ".join(map(str, a)) for a in (results, found)]
            raise ShapeError(
                message(
                    f"Branch 0 of cond gives ({texts[0]}), branch {number} gives ({texts[1]})",
                    None,
                    "Give the branches results of the same types",
                )
            )
        results = list(map(joined, results, found))
    return tuple(results)


cond_p = Primitive(
    "cond",
    abstract=_abstract,
    multiple_results=True,
    doc="One of several branches, chosen by a clamped int32 index.",
    tests=TestRecord(LazyCases(lambda: _cases()), (), {"f64": 1e-12, "f32": 1e-5}, grad_order=2),
)


@cond_p.def_reference
def _reference(
    index: NumpyArray, *arrays: NumpyArray, branches: Branches
) -> tuple[NumpyArray, ...]:
    chosen = min(max(int(index), 0), len(branches) - 1)
    return tuple(reference_program(branches[chosen], arrays))


# ---------------------------------------------------------------- derivatives
def _union(masks: Sequence[Sequence[bool]]) -> Flags:
    """Flags that are set for some branch."""
    flags = tuple(masks[0])
    for mask in masks[1:]:
        flags = either(flags, mask)
    return flags


@cond_p.def_jvp_all
def _jvp(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches
) -> tuple[list[Any], list[Any]]:
    index, *operands = primals
    flags = nonzero(tangents[1:])
    wanted = _union([ctx.jvp(branch, flags)[1] for branch in branches])
    derived = [ctx.jvp(branch, flags, wanted)[0] for branch in branches]
    results = bind(index, [*operands, *pick(tangents[1:], flags)], derived)
    outs, out_tangents = split(results, len(wanted))
    return outs, place(out_tangents, wanted, [aval_of(out) for out in outs])


@cond_p.def_linearize
def _linearize(
    ctx: Any, primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches
) -> tuple[list[Any], list[Any]]:
    index, *operands = primals
    flags = nonzero(tangents[1:])
    wanted = _union([ctx.linearize(branch, flags).out_nonzero for branch in branches])
    parts = [ctx.linearize(branch, flags, wanted) for branch in branches]
    count = len(wanted)
    slots: list[Aval] = []
    used = [_assign(part.forward.out_avals[count:], slots) for part in parts]
    forward = [
        _with_slots(part.forward, count, places, tuple(slots))
        for part, places in zip(parts, used, strict=True)
    ]
    outs, residuals = split(bind(index, operands, forward), count)
    avals = [aval_of(out) for out in outs]
    if not any(wanted):
        return outs, [Zero(aval.strong()) for aval in avals]
    # Operands that some branch needs again are passed on, each once.
    kept = sorted({i for part in parts for i in part.residual_inputs if i is not None})
    fixed_avals = (*(branches[0].in_avals[i] for i in kept), *slots)
    linear = [
        _from_slots(part.linear, _sources(part.residual_inputs, kept, places), fixed_avals)
        for part, places in zip(parts, used, strict=True)
    ]
    fixed = [*(operands[i] for i in kept), *residuals]
    found = bind(index, [*fixed, *pick(tangents[1:], flags)], linear)
    return outs, place(found, wanted, avals)


def _assign(avals: Sequence[Aval], slots: list[Aval]) -> tuple[int, ...]:
    """A slot of its own for each residual, of its type; new slots are appended."""
    places: list[int] = []
    for aval in avals:
        free = (i for i, slot in enumerate(slots) if i not in places and same_type(slot, aval))
        number = next(free, len(slots))
        if number == len(slots):
            slots.append(aval.strong())
        places.append(number)
    return tuple(places)


@cached_by_program
def _with_slots(
    forward: Program, count: int, places: tuple[int, ...], slots: tuple[Aval, ...]
) -> Program:
    """A forward program whose residuals lie in their slots, with zeros in the others."""

    def run(*args: Array) -> list[Array]:
        outs, residuals = split(eval_program(forward, args), count)
        filled = dict(zip(places, residuals, strict=True))
        return [
            *outs,
            *(filled[i] if i in filled else op.zeros_like(slot) for i, slot in enumerate(slots)),
        ]

    return trace_program(run, forward.in_avals, forward.name)


def _sources(
    residual_inputs: Sequence[int | None], kept: Sequence[int], places: Sequence[int]
) -> tuple[int, ...]:
    """Where each residual is among the operands passed on and the slots."""
    new = iter(places)
    return tuple(len(kept) + next(new) if i is None else kept.index(i) for i in residual_inputs)


@cached_by_program
def _from_slots(linear: Program, sources: tuple[int, ...], fixed: tuple[Aval, ...]) -> Program:
    """A linear program that takes all fixed values, of which it uses some, and the tangents."""
    tangents = linear.in_avals[len(sources) :]

    def run(*args: Array) -> list[Array]:
        return eval_program(linear, [*(args[i] for i in sources), *args[len(fixed) :]])

    return trace_program(run, [*fixed, *tangents], linear.name)


@cond_p.def_transpose_all
def _transpose(
    ctx: Any, cts: Sequence[Any], operands: Sequence[Any], *, branches: Branches
) -> list[Any]:
    index, *values = operands
    linear = tuple(isinstance(value, Linear) for value in values)
    given = nonzero(cts)
    parts = [ctx.transpose(branch, linear, given) for branch in branches]
    wanted = _union([flags for _, flags in parts])
    if not any(wanted):
        return [None] * len(operands)
    avals = tuple(aval.strong() for aval in pick(branches[0].in_avals, linear))
    backward = [with_zeros(derived, tuple(flags), wanted, avals) for derived, flags in parts]
    fixed = [value for value in values if not isinstance(value, Linear)]
    found = iter(bind(index, [*fixed, *pick(cts, given)], backward))
    flags = iter(wanted)
    return [None, *(next(found) if flag and next(flags) else None for flag in linear)]


# ---------------------------------------------------------------- vmap, pad, cost, trim
@cond_p.def_trim
def _trim(params: Params, used: Flags) -> tuple[Params, tuple[int, ...], Flags]:
    branches = params["branches"]
    inputs = _union([restricted(branch, used)[1] for branch in branches])
    kept = (0, *(i for i, flag in enumerate(inputs, 1) if flag))
    small = tuple(with_only(branch, inputs, used) for branch in branches)
    return params.replace(branches=small), kept, used


@cond_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    branches: Branches,
) -> tuple[list[Array], list[int | None]]:
    (index, *operands), (index_dim, *operand_dims) = args, dims
    in_dims = tuple(operand_dims)
    count = len(branches[0].outputs)
    if index_dim is not None:
        everything = (True,) * count
        batched = [ctx.vmap(branch, size, in_dims, everything)[0] for branch in branches]
        results = eval_program(batched[0], operands)
        for number, branch in enumerate(batched[1:], 1):
            chosen = op.ge(index, np.int32(number))
            found = eval_program(branch, operands)
            results = [_select(chosen, new, old) for new, old in zip(found, results, strict=True)]
        return results, [0] * count
    found_dims = [ctx.vmap(branch, size, in_dims)[1] for branch in branches]
    mapped = _union([[d is not None for d in out_dims] for out_dims in found_dims])
    batched = [ctx.vmap(branch, size, in_dims, mapped)[0] for branch in branches]
    return bind(index, operands, batched), [0 if flag else None for flag in mapped]


def _select(mask: Array, on_true: Array, on_false: Array) -> Array:
    """Examples of one or the other by a mask over the leading axis."""
    return op.select(op.broadcast(mask, op.shape_of(on_false), (0,)), on_true, on_false)


@cond_p.def_pad
def _pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Any], *, branches: Branches
) -> list[Array]:
    index, *operands = args
    sizes: list[Array] = []
    padded = []
    for branch in branches:
        program, own = ctx.pad(branch)
        padded.append((program, len(sizes), len(own)))
        sizes += own
    programs = [_with_sizes(program, len(sizes), at, own) for program, at, own in padded]
    return bind(index, [*sizes, *operands], programs)


@cached_by_program
def _with_sizes(program: Program, count: int, at: int, own: int) -> Program:
    """A padded branch that takes the true sizes of all branches; its own ones begin at `at`."""

    def run(*args: Array) -> list[Array]:
        return eval_program(program, [*args[at : at + own], *args[count:]])

    sizes = [Aval((), dtypes.int32)] * count
    return trace_program(run, [*sizes, *program.in_avals[own:]], program.name)


@cond_p.def_cost
def _cost(index: Aval, *avals: Aval, branches: Branches) -> Cost:
    """The dearest branch."""
    results = _abstract(index, *avals, branches=branches)
    costs = [program_cost(branch) for branch in branches]
    dearest = max(costs, key=lambda cost: (cost.flops + cost.transcendental, cost.bytes_read))
    return repeated_cost(dearest, 1, (index, *avals), results)


# ---------------------------------------------------------------- test record
def _cases() -> list[OpCase]:
    """Two and three branches, results that some branches do not compute, residuals of all types."""

    def case(functions: Sequence[Any], kinds: Sequence[Aval], high: float) -> OpCase:
        branches = tuple(trace_program(f, kinds, f"branch_{i}") for i, f in enumerate(functions))
        ranges = ((-1.0, high), *((0.2, 1.5),) * len(kinds))
        return case_of([_INDEX, *kinds], ranges, branches=branches)

    def total(x: Array) -> Array:
        return op.reduce_sum(op.mul(x, op.sin(x)), (0,))

    two = [
        lambda x, y: [op.mul(x, y), op.exp(x)],
        lambda x, y: [op.sin(x), x],
    ]
    three = [
        lambda x, y: [total(x), y],
        lambda x, y: [op.mul(y, total(op.exp(x))), op.mul(y, y)],
        lambda x, y: [np.float64(2.5), op.div(y, total(x))],
    ]
    integers = [lambda x: [op.add(x, 1)], lambda x: [op.mul(x, x)]]
    return [
        case(two, of_type("f64", (3,), (3,)), 1.0),
        case(two, of_type("f64", (), ()), 1.0),
        case(two, of_type("f32", (2, 3), (2, 3)), 0.0),
        case(three, of_type("f64", (4,), ()), 4.0),
        case(three, of_type("f64", (4,), ()), 1.0),
        case(two[:1], of_type("f64", (3,), (3,)), 1.0),
        case(integers, of_type("i32", (3,)), 1.0),
    ]
