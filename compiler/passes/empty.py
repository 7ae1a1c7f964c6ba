"""Rewrite rules for arrays without elements, so that no kernel has to walk an axis of size 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trnx.compiler.kernels.reduction import identity_of
from trnx.compiler.passes.rewrite import Rewriter
from trnx.core import Atom, Aval, Equation, Params, literal, primitives


def is_empty(aval: Aval) -> bool:
    """Whether an axis is known to have size 0."""
    return any(isinstance(size, int) and size == 0 for size in aval.shape)


def _repeated(r: Rewriter, e: Equation, number: object) -> Sequence[Atom]:
    """The output of an equation as one number repeated."""
    aval = e.outputs[0].aval
    scalar = literal(np.asarray(number).astype(aval.dtype)[()], Aval((), aval.dtype, aval.weak))
    if not aval.shape:
        return (scalar,)
    params = Params({"shape": aval.shape, "dims": ()})
    return r.emit(primitives["broadcast"], (scalar,), params, e.source)


def empty_result(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A result without elements is a repeated number, whatever it would be computed from."""
    if len(e.outputs) != 1 or not is_empty(e.outputs[0].aval) or e.primitive.has_effect:
        return None
    if e.primitive.name == "broadcast" and not e.inputs[0].aval.shape:
        return None
    return _repeated(r, e, 0)


def empty_reduction(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A reduction of nothing is its identity."""
    (x,) = e.inputs
    return (
        _repeated(r, e, identity_of(e.primitive.name, x.aval.dtype)) if is_empty(x.aval) else None
    )


def empty_product(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A product summed over nothing is 0."""
    return _repeated(r, e, 0) if is_empty(e.inputs[0].aval) else None


def empty_parts(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """A concatenation leaves out parts without elements, and is its only part."""
    parts = [x for x in e.inputs if not is_empty(x.aval)]
    if len(parts) == 1:
        return (parts[0],)
    return r.emit(e.primitive, parts, e.params, e.source) if len(parts) < len(e.inputs) else None
