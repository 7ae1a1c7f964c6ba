"""Rewrite rules for loops and branches: known branches, carries that stay, inputs that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trnx.compiler.passes.rewrite import Rewriter, Rule
from trnx.core import (
    Atom,
    Aval,
    Equation,
    Literal,
    Params,
    Program,
    Var,
    literal,
    primitives,
)
from trnx.core.dtypes import int32, is_integer


def known_branch(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A branch that a number chooses is what it computes."""
    index, *operands = e.inputs
    if not isinstance(index, Literal):
        return None
    branches: tuple[Program, ...] = e.params["branches"]
    branch = branches[min(max(int(index.value), 0), len(branches) - 1)]
    if branch.constants:
        return None
    names: dict[Var, Atom] = dict(zip(branch.inputs, operands, strict=True))

    def atom(item: Atom) -> Atom:
        return names.get(item, item) if isinstance(item, Var) else item

    for inner in branch.equations:
        inputs = tuple(atom(a) for a in inner.inputs)
        results = r.emit(inner.primitive, inputs, inner.params, inner.source)
        names.update(zip(inner.outputs, results, strict=True))
    return [atom(a) for a in branch.outputs]


def carries_that_stay(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A carry that every iteration gives back is a constant of the loop."""
    params = e.params
    body, consts, carries = params["body"], params["consts"], params["carries"]
    stays = [body.outputs[k] is body.inputs[consts + k] for k in range(carries)]
    if not any(stays):
        return None
    first = int(params["bounded"]) + consts
    init = e.inputs[first : first + carries]
    slots = body.inputs[consts : consts + carries]
    fixed = [k for k in range(carries) if stays[k]]
    moving = [k for k in range(carries) if not stays[k]]
    small = body.replace(
        inputs=[
            *body.inputs[:consts],
            *(slots[k] for k in (*fixed, *moving)),
            *body.inputs[consts + carries :],
        ],
        outputs=[*(body.outputs[k] for k in moving), *body.outputs[carries:]],
    )
    inputs = (
        *e.inputs[:first],
        *(init[k] for k in (*fixed, *moving)),
        *e.inputs[first + carries :],
    )
    changed = params.replace(body=small, consts=consts + len(fixed), carries=len(moving))
    found = iter(r.emit(e.primitive, inputs, changed, e.source))
    lasts = [init[k] if stays[k] else next(found) for k in range(carries)]
    return [*lasts, *found]


def inputs_that_count(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """Rows of ``0, 1, 2, …`` are a counter, which needs no memory."""
    params = e.params
    body, length = params["body"], params["length"]
    if not isinstance(length, int) or (params["bounded"] and params["reverse"]):
        return None
    first = int(params["bounded"]) + params["consts"] + params["carries"]
    for position in range(first, len(e.inputs)):
        made = r.definition(e.inputs[position], "iota")
        if made is not None and len(made.params["shape"]) == 1:
            row = body.inputs[position - int(params["bounded"])]
            if is_integer(row.aval.dtype) and np.iinfo(row.aval.dtype).max >= length:
                return _with_counter(r, e, position, row)
    return None


def _with_counter(r: Rewriter, e: Equation, position: int, row: Var) -> Sequence[Atom]:
    params = e.params
    body, carries, length = params["body"], params["carries"], params["length"]
    aval = Aval((), row.aval.dtype)
    after = Var(aval)
    step = literal(np.asarray(-1 if params["reverse"] else 1).astype(aval.dtype)[()], aval)
    count = Equation(primitives["add"], (row, step), (after,), Params({}), e.source)
    place = params["consts"] + carries
    inputs = [v for v in body.inputs if v is not row]
    inputs.insert(place, row)
    outputs = list(body.outputs)
    outputs.insert(carries, after)
    changed = params.replace(
        body=body.replace(inputs=inputs, equations=[*body.equations, count], outputs=outputs),
        carries=carries + 1,
    )
    begin = max(length - 1, 0) if params["reverse"] else 0
    operands = list(e.inputs)
    del operands[position]
    start = literal(np.asarray(begin).astype(aval.dtype)[()], aval)
    operands.insert(place + int(params["bounded"]), start)
    results = list(r.emit(e.primitive, operands, changed, e.source))
    del results[carries]
    return results


def counted_while(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A loop that counts up by 1 to a limit is a scan without rows, bounded by their distance.

    It starts at a number that is not negative, so that the distance fits the dtype.
    """
    params = e.params
    body, before = params["body"], params["cond_consts"] + params["body_consts"]
    found = _limit(params["cond"], params["cond_consts"])
    if found is None:
        return None
    number, place = found
    start = e.inputs[before + number]
    slot = body.inputs[params["body_consts"] + number]
    if not isinstance(start, Literal) or int(start.value) < 0:
        return None
    if not _adds_one(body, body.outputs[number], slot):
        return None
    limit = place if isinstance(place, Literal) else e.inputs[place]
    first, nothing = literal(np.int32(start.value)), literal(np.int32(0))
    (some,) = r.emit(primitives["gt"], (limit, first), Params({}), e.source)
    (distance,) = r.emit(primitives["sub"], (limit, first), Params({}), e.source)
    (count,) = r.emit(primitives["select"], (some, distance, nothing), Params({}), e.source)
    operands = (count, *e.inputs[params["cond_consts"] :])
    options = {
        "body": body,
        "length": int(np.iinfo(np.int32).max) - int(start.value),
        "consts": params["body_consts"],
        "carries": len(e.inputs) - before,
        "reverse": False,
        "unroll": 1,
        "bounded": True,
    }
    return r.emit(primitives["scan"], operands, Params(options), e.source)


def _limit(cond: Program, consts: int) -> tuple[int, Literal | int] | None:
    """(carry, limit) of a condition ``carry < limit``: a number, or the position of a constant."""
    if len(cond.equations) != 1:
        return None
    (equation,) = cond.equations
    if equation.primitive.name != "lt" or cond.outputs != equation.outputs:
        return None
    left, right = equation.inputs
    places = {var: k for k, var in enumerate(cond.inputs)}
    if not isinstance(left, Var) or places[left] < consts or left.aval.dtype != int32:
        return None
    if isinstance(right, Literal):
        return places[left] - consts, right
    return (places[left] - consts, places[right]) if places[right] < consts else None


def _adds_one(body: Program, new: Atom, old: Var) -> bool:
    made = next((e for e in body.equations if new in e.outputs), None)
    if made is None or made.primitive.name != "add" or old not in made.inputs:
        return False
    return any(isinstance(a, Literal) and int(a.value) == 1 for a in made.inputs)


CONTROL_RULES: Mapping[str, Sequence[Rule]] = {
    "cond": (known_branch,),
    "while_loop": (counted_while,),
    "scan": (carries_that_stay, inputs_that_count),
}
"""Primitive -> rules; part of the table of `simplify`."""
