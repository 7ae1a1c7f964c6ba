"""Simplification: common subexpressions, scalar constants, views of views, casts of casts.

Every rule keeps the value bit for bit (floating-point identities that do not are absent). The table
at the end lists them by primitive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trnx.compiler.kernels.registry import Kind, kind_of
from trnx.compiler.passes.empty import empty_parts, empty_product, empty_reduction, empty_result
from trnx.compiler.passes.rewrite import Rewriter, Rule
from trnx.compiler.passes.simplify_control import CONTROL_RULES
from trnx.core import (
    Atom,
    Equation,
    Literal,
    Params,
    Program,
    Var,
    cached_by_program,
    literal,
    primitives,
    same_shape,
    structurally_equal,
    sub_programs,
)
from trnx.core.dtypes import is_bool, is_complex, is_float, is_integer
from trnx.core.program import map_sub_programs

_MAX_ROUNDS = 4


# Scalars ----------------------------------------------------------------------------------------


def fold_scalars(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """An elementwise operation on literals is computed now, by the primitive's own meaning."""
    if not e.inputs or not all(isinstance(a, Literal) for a in e.inputs):
        return None
    if kind_of(e.primitive.name) is not Kind.ELEMENTWISE and e.primitive.composite is None:
        return None
    if e.primitive.reference is None or any(v.aval.shape for v in e.outputs):
        return None
    values = [a.value for a in e.inputs if isinstance(a, Literal)]
    result = e.primitive.reference(*values, **e.params)
    parts = result if e.primitive.multiple_results else (result,)
    return [literal(np.asarray(part), var.aval) for part, var in zip(parts, e.outputs, strict=True)]


def scalar_operands(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """An operand that is one number repeated becomes the number, if another operand has axes."""
    if kind_of(e.primitive.name) is not Kind.ELEMENTWISE or len(e.inputs) < 2:
        return None
    inputs = list(e.inputs)
    shaped = sum(1 for a in inputs if a.aval.shape)
    changed = False
    for position, atom in enumerate(inputs):
        made = r.definition(atom, "broadcast")
        if made is None or made.inputs[0].aval.shape or shaped < 2:
            continue
        inputs[position] = made.inputs[0]
        shaped -= 1
        changed = True
    return r.emit(e.primitive, inputs, e.params, e.source) if changed else None


def _is_number(atom: Atom, number: float) -> bool:
    return isinstance(atom, Literal) and bool(atom.value == number)


def _same_type(a: Atom, b: Atom) -> bool:
    return a.aval.dtype == b.aval.dtype and same_shape(a.aval.shape, b.aval.shape)


def unit_operand(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """x·1, 1·x, x/1, x-0 and, for integers, x+0: exactly x."""
    x, y = e.inputs
    name = e.primitive.name
    exact = not is_float(x.aval.dtype) and not is_complex(x.aval.dtype)
    if name in ("mul", "div") and _is_number(y, 1) and _same_type(x, e.outputs[0]):
        return (x,)
    if name == "mul" and _is_number(x, 1) and _same_type(y, e.outputs[0]):
        return (y,)
    positive_zero = isinstance(y, Literal) and _is_number(y, 0) and not np.signbit(float(y.value))
    if name == "sub" and positive_zero and _same_type(x, e.outputs[0]):
        return (x,)
    if name == "add" and exact and _is_number(y, 0) and _same_type(x, e.outputs[0]):
        return (x,)
    if name == "add" and exact and _is_number(x, 0) and _same_type(y, e.outputs[0]):
        return (y,)
    return None


def double_negation(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """-(-x) and not(not(x)) are x."""
    made = r.definition(e.inputs[0], e.primitive.name)
    return None if made is None else (made.inputs[0],)


def power(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """x**1 is x."""
    return (e.inputs[0],) if e.params["y"] == 1 else None


def forget(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """stop_gradient means nothing once derivatives are taken."""
    return (e.inputs[0],)


def known_choice(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A select whose predicate is known, or whose sides are the same."""
    predicate, on_true, on_false = e.inputs
    chosen: Atom | None = None
    if isinstance(predicate, Literal):
        chosen = on_true if predicate.value else on_false
    elif on_true is on_false:
        chosen = on_true
    return (chosen,) if chosen is not None and _same_type(chosen, e.outputs[0]) else None


# Casts ------------------------------------------------------------------------------------------


def _widens(source: np.dtype, target: np.dtype) -> bool:
    """Whether every value of `source` is a value of `target`."""
    if is_bool(source):
        return True
    if is_integer(source) and is_integer(target):
        return bool(np.can_cast(source, target))
    if is_float(source) and is_float(target):
        if source == target:
            return True
        return target.itemsize > source.itemsize and target.itemsize >= 4
    if is_integer(source) and is_float(target):
        return (
            source.itemsize <= 2 and target.itemsize >= 4
        ) or source.itemsize == 4 < target.itemsize
    return False


def cast_of_cast(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A cast to the same dtype, and a cast of a cast that lost nothing."""
    (x,) = e.inputs
    target = e.params["dtype"]
    if x.aval.dtype == target:
        return (x,)
    made = r.definition(x, "convert")
    if made is not None and _widens(made.inputs[0].aval.dtype, x.aval.dtype):
        origin = made.inputs[0]
        if origin.aval.dtype == target:
            return (origin,)
        # From bool to 64 bits stays in two steps: hardware widens from 32-bit words.
        if not (is_bool(origin.aval.dtype) and target.itemsize == 8):
            return r.emit(e.primitive, (origin,), e.params, e.source)
    spread = r.definition(x, "broadcast")
    if spread is not None and not spread.inputs[0].aval.shape:
        (inner,) = r.emit(e.primitive, spread.inputs, e.params, e.source)
        return r.emit(spread.primitive, (inner,), spread.params, e.source)
    return None


# Views ------------------------------------------------------------------------------------------


def _spread_scalar(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A view of one repeated number is the number repeated."""
    made = r.definition(e.inputs[0], "broadcast")
    if made is None or made.inputs[0].aval.shape:
        return None
    params = Params({"shape": e.outputs[0].aval.shape, "dims": ()})
    return r.emit(made.primitive, made.inputs, params, e.source)


def broadcast_of_broadcast(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """Two broadcasts are one; a broadcast that changes nothing vanishes."""
    (x,) = e.inputs
    dims = e.params["dims"]
    if same_shape(x.aval.shape, e.params["shape"]) and dims == tuple(range(len(dims))):
        return (x,)
    made = r.definition(x, "broadcast")
    if made is None:
        return None
    # An axis the inner broadcast repeats must not have been size 1 where the outer repeats it.
    inner = tuple(dims[d] for d in made.params["dims"])
    params = Params({"shape": e.params["shape"], "dims": inner})
    return r.emit(e.primitive, made.inputs, params, e.source)


def reshape_of_reshape(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """Two reshapes are one; a reshape to the same shape vanishes."""
    (x,) = e.inputs
    if same_shape(x.aval.shape, e.params["shape"]):
        return (x,)
    made = r.definition(x, "reshape")
    if made is not None:
        return r.emit(e.primitive, made.inputs, e.params, e.source)
    return None


def transpose_of_transpose(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """Two transposes are one; the identity vanishes."""
    (x,) = e.inputs
    order = e.params["permutation"]
    if order == tuple(range(len(order))):
        return (x,)
    made = r.definition(x, "transpose")
    if made is not None:
        inner = made.params["permutation"]
        params = Params({"permutation": tuple(inner[i] for i in order)})
        return r.emit(e.primitive, made.inputs, params, e.source)
    return None


def whole_slice(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A slice that takes everything vanishes."""
    (x,) = e.inputs
    shape = x.aval.shape
    everything = (
        all(structurally_equal(s, 0) for s in e.params["start"])
        and same_shape(e.params["limit"], shape)
        and all(s == 1 for s in e.params["strides"])
    )
    return (x,) if everything else None


def reduce_of_transpose(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A reduction of a transposed value reduces the value itself, in its own layout."""
    made = r.definition(e.inputs[0], "transpose")
    if made is None:
        return None
    order = made.params["permutation"]
    axes = tuple(sorted(order[a] for a in e.params["axes"]))
    left = [order[i] for i in range(len(order)) if i not in e.params["axes"]]
    results = r.emit(e.primitive, made.inputs, e.params.replace(axes=axes), e.source)
    if left == sorted(left):
        return results
    permutation = tuple(sorted(left).index(i) for i in left)
    return r.emit(made.primitive, results, Params({"permutation": permutation}), e.source)


# Contraction ------------------------------------------------------------------------------------


def dot_of_transpose(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A transposed operand is the operand with other axis numbers, if its free axes keep order."""
    inputs = list(e.inputs)
    contract, batch = [list(c) for c in e.params["contract"]], [list(b) for b in e.params["batch"]]
    changed = False
    for side in (0, 1):
        made = r.definition(inputs[side], "transpose")
        if made is None:
            continue
        order = made.params["permutation"]
        used = {*contract[side], *batch[side]}
        free = [order[i] for i in range(len(order)) if i not in used]
        if free != sorted(free):
            continue
        inputs[side] = made.inputs[0]
        contract[side] = [order[i] for i in contract[side]]
        batch[side] = [order[i] for i in batch[side]]
        changed = True
    if not changed:
        return None
    params = e.params.replace(contract=tuple(map(tuple, contract)), batch=tuple(map(tuple, batch)))
    return r.emit(e.primitive, inputs, params, e.source)


def transpose_of_dot(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A product whose free axes are swapped is the product of the swapped operands."""
    made = r.definition(e.inputs[0], "dot_general")
    if made is None or r.use_count(e.inputs[0]) > 1:
        return None
    (lhs, rhs), params = made.inputs, made.params
    batch = len(params["batch"][0])
    rows = lhs.aval.ndim - batch - len(params["contract"][0])
    columns = rhs.aval.ndim - batch - len(params["contract"][1])
    swapped = (*range(batch), *range(batch + rows, batch + rows + columns),
               *range(batch, batch + rows))  # fmt: skip
    if not rows or not columns or e.params["permutation"] != swapped:
        return None
    turned = params.replace(contract=params["contract"][::-1], batch=params["batch"][::-1])
    return r.emit(made.primitive, (rhs, lhs), turned, made.source)


def view_mm_view(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """reshape(dot(reshape(x), w)) that merges and splits the same leading axes is dot(x, w)."""
    made = r.definition(e.inputs[0], "dot_general")
    if made is None or made.params["batch"] != ((), ()):
        return None
    lhs, rhs = made.inputs
    merged = r.definition(lhs, "reshape")
    if merged is None or lhs.aval.ndim != 2 or made.params["contract"][0] != (1,):
        return None
    (x,) = merged.inputs
    shape, result = x.aval.shape, e.outputs[0].aval.shape
    columns = made.outputs[0].aval.shape[1:]
    fits = (
        len(shape) > 2
        and structurally_equal(shape[-1], lhs.aval.shape[1])
        and same_shape(result, (*shape[:-1], *columns))
    )
    if not fits:
        return None
    params = made.params.replace(contract=((len(shape) - 1,), made.params["contract"][1]))
    return r.emit(made.primitive, (x, rhs), params, made.source)


RULES: Mapping[str, Sequence[Rule]] = {
    "mul": (unit_operand,),
    "div": (unit_operand,),
    "sub": (unit_operand,),
    "add": (unit_operand,),
    "neg": (double_negation,),
    "not": (double_negation,),
    "integer_pow": (power,),
    "stop_gradient": (forget,),
    "select": (known_choice,),
    "convert": (cast_of_cast,),
    "broadcast": (broadcast_of_broadcast,),
    "reshape": (_spread_scalar, view_mm_view, reshape_of_reshape),
    "transpose": (_spread_scalar, transpose_of_transpose, transpose_of_dot),
    "slice": (_spread_scalar, whole_slice),
    "reverse": (_spread_scalar,),
    "reduce_sum": (empty_reduction, reduce_of_transpose),
    "reduce_max": (empty_reduction, reduce_of_transpose),
    "reduce_min": (empty_reduction, reduce_of_transpose),
    "dot_general": (empty_product, dot_of_transpose),
    "concatenate": (empty_parts,),
    **CONTROL_RULES,
}
"""Primitive -> rules, tried in order."""

GENERAL: Sequence[Rule] = (empty_result, fold_scalars, scalar_operands)
"""Rules for every primitive."""


def simplify(program: Program, more: Mapping[str, Sequence[Rule]] | None = None) -> Program:
    """Apply the rules until none applies (a few rounds at most), in bodies of loops too.

    Args:
        program: what to simplify.
        more: rules to try before the table's.
    """
    program = with_simple_bodies(program)
    rules = RULES
    if more:
        rules = {n: (*more.get(n, ()), *RULES.get(n, ())) for n in (*RULES, *more)}
    for _ in range(_MAX_ROUNDS):
        before = len(program.equations)
        program = Rewriter(program, rules, GENERAL).run()
        if len(program.equations) == before:
            break
    return program


@cached_by_program
def _simple_body(program: Program) -> Program:
    return simplify(program)


def with_simple_bodies(program: Program) -> Program:
    """The program with the programs in its equations' parameters simplified."""
    if all(next(sub_programs(e.params), None) is None for e in program.equations):
        return program
    return program.replace(
        equations=[
            Equation(
                e.primitive, e.inputs, e.outputs, map_sub_programs(e.params, _simple_body), e.source
            )
            for e in program.equations
        ]
    )


def with_literals(program: Program, numbers: Sequence[Literal | None]) -> Program:
    """The program without the inputs that are numbers, simplified when there are some.

    Args:
        program: has one input per entry of `numbers`.
        numbers: the number that an input is, or None.
    """
    known = {v: n for v, n in zip(program.inputs, numbers, strict=True) if n is not None}
    if not known:
        return program

    def atom(item: Atom) -> Atom:
        return known.get(item, item) if isinstance(item, Var) else item

    equations = [
        Equation(e.primitive, tuple(map(atom, e.inputs)), e.outputs, e.params, e.source)
        for e in program.equations
    ]
    return simplify(
        program.replace(
            inputs=[v for v in program.inputs if v not in known],
            equations=equations,
            outputs=[atom(a) for a in program.outputs],
        )
    )


def known_primitives() -> frozenset[str]:
    """Names in the rule table that are declared primitives."""
    return frozenset(RULES) & frozenset(primitives)


def is_scalar(atom: Atom) -> bool:
    """Whether an atom has no axes."""
    return isinstance(atom, Literal) or (isinstance(atom, Var) and not atom.aval.shape)
