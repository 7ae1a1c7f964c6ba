"""Rules for indices that are known expressions of a loop's index: gathers become slices.

A counter of a loop is a ``dim_size`` of an expression with bounds (`induction`). Arithmetic on it
is another such expression, comparisons that the bounds decide are constants, and what reads or
writes an array at it needs no index in memory: its place is an offset of an access pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add, ge, gt, le, lt, mul, sub

import numpy as np

from trnx.compiler.passes.identity import UPDATE
from trnx.compiler.passes.rewrite import Rewriter, Rule
from trnx.core import (
    Atom,
    Aval,
    Dim,
    Equation,
    Literal,
    Params,
    Size,
    bounds,
    literal,
    primitives,
)
from trnx.core.dtypes import is_integer


def known_size(r: Rewriter, atom: Atom) -> Size | None:
    """The integer an atom is, if it is a number or an expression of known sizes."""
    if atom.aval.shape or not is_integer(atom.aval.dtype):
        return None
    if isinstance(atom, Literal):
        return int(atom.value)
    made = r.definition(atom, "dim_size")
    return None if made is None else made.params["size"]


def _as_atom(r: Rewriter, e: Equation, size: Size) -> Sequence[Atom] | None:
    """A size as a value of the equation's type; None when it may not fit."""
    aval = e.outputs[0].aval
    low, high = bounds(size)
    limits = np.iinfo(aval.dtype)
    if low is None or high is None or low < limits.min or high > limits.max:
        return None
    if not isinstance(size, Dim):
        return (literal(np.asarray(size).astype(aval.dtype)[()], Aval((), aval.dtype)),)
    params = Params({"size": size, "dtype": aval.dtype})
    return r.emit(primitives["dim_size"], (), params, e.source)


def _arithmetic(apply: Callable[[Size, Size], Size]) -> Rule:
    def rule(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
        left, right = (known_size(r, a) for a in e.inputs)
        if left is None or right is None or not isinstance(left, Dim) | isinstance(right, Dim):
            return None
        return _as_atom(r, e, apply(left, right))

    return rule


def _comparison(apply: Callable[[int, int], bool]) -> Rule:
    def rule(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
        left, right = (known_size(r, a) for a in e.inputs)
        if left is None or right is None:
            return None
        low, high = bounds(left - right)
        if low is None or high is None or apply(low, 0) != apply(high, 0):
            return None
        return (literal(np.bool_(apply(low, 0))),)

    return rule


def _cast(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    size = known_size(r, e.inputs[0])
    if not isinstance(size, Dim) or not is_integer(e.params["dtype"]):
        return None
    return _as_atom(r, e, size)


def _extreme(largest: bool) -> Rule:
    """min and max of values whose order is known."""

    def rule(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
        chosen = _ordered(r, e.inputs[0], e.inputs[1], largest)
        return None if chosen is None else (chosen,)

    return rule


def _ordered(r: Rewriter, a: Atom, b: Atom, largest: bool) -> Atom | None:
    left, right = known_size(r, a), known_size(r, b)
    if left is None or right is None:
        return None
    low, high = bounds(left - right)
    if low is not None and low >= 0:
        return a if largest else b
    if high is not None and high <= 0:
        return b if largest else a
    return None


def _clamp(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    low, x, high = e.inputs
    above = _ordered(r, low, x, True)
    inside = None if above is None else _ordered(r, above, high, False)
    return None if inside is None else (inside,)


def _inside(size: Size | None, last: Size) -> bool:
    """Whether an index is sure to lie in 0 .. last."""
    if size is None:
        return False
    low, _ = bounds(size)
    _, over = bounds(size - last)
    return low is not None and low >= 0 and over is not None and over <= 0


def _take(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """One slice along an axis."""
    x, index = e.inputs
    place, axis = known_size(r, index), e.params["axis"]
    if place is None or not _inside(place, x.aval.shape[axis] - 1):
        return None
    starts: list[Size] = [0] * x.aval.ndim
    limits = list(x.aval.shape)
    starts[axis], limits[axis] = place, place + 1
    results = _slice(r, e, x, starts, limits)
    params = Params({"shape": e.outputs[0].aval.shape})
    return r.emit(primitives["reshape"], results, params, e.source)


def _slice(
    r: Rewriter, e: Equation, x: Atom, starts: Sequence[Size], limits: Sequence[Size]
) -> Sequence[Atom]:
    params = {"start": tuple(starts), "limit": tuple(limits), "strides": (1,) * len(starts)}
    return r.emit(primitives["slice"], (x,), Params(params), e.source)


def _starts(
    r: Rewriter, atoms: Sequence[Atom], shape: Sequence[Size], sizes: Sequence[Size]
) -> list[Size] | None:
    """Starts of a slice that is sure to lie inside; None when one is not known."""
    found: list[Size] = []
    for atom, whole, size in zip(atoms, shape, sizes, strict=True):
        start = known_size(r, atom)
        if isinstance(atom, Literal):
            start = min(max(int(atom.value), 0), int(whole - size))
        if start is None or not _inside(start, whole - size):
            return None
        found.append(start)
    return found


def _dynamic_slice(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    x, *atoms = e.inputs
    sizes = e.params["sizes"]
    starts = _starts(r, atoms, x.aval.shape, sizes)
    if starts is None:
        return None
    return _slice(r, e, x, starts, [a + n for a, n in zip(starts, sizes, strict=True)])


def _dynamic_update(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    x, update, *atoms = e.inputs
    starts = _starts(r, atoms, x.aval.shape, update.aval.shape)
    if starts is None:
        return None
    return r.record(UPDATE, (x, update), Params({"start": tuple(starts)}), e.source)


def _scatter_add(r: Rewriter, e: Equation) -> Sequence[Atom] | None:
    """An addition to one slice along an axis."""
    x, index, update = e.inputs
    place, axis = known_size(r, index), e.params["axis"]
    if place is None or not _inside(place, x.aval.shape[axis] - 1):
        return None
    starts: list[Size] = [0] * x.aval.ndim
    limits = list(x.aval.shape)
    starts[axis], limits[axis] = place, place + 1
    (old,) = _slice(r, e, x, starts, limits)
    shape = Params({"shape": old.aval.shape})
    (share,) = r.emit(primitives["reshape"], (update,), shape, e.source)
    (total,) = r.emit(primitives["add"], (old, share), Params({}), e.source)
    return r.record(UPDATE, (x, total), Params({"start": tuple(starts)}), e.source)


INDEX_RULES: Mapping[str, Sequence[Rule]] = {
    "add": (_arithmetic(add),),
    "sub": (_arithmetic(sub),),
    "mul": (_arithmetic(mul),),
    "lt": (_comparison(lt),),
    "le": (_comparison(le),),
    "gt": (_comparison(gt),),
    "ge": (_comparison(ge),),
    "max": (_extreme(True),),
    "min": (_extreme(False),),
    "clamp": (_clamp,),
    "convert": (_cast,),
    "take": (_take,),
    "scatter_add": (_scatter_add,),
    "dynamic_slice": (_dynamic_slice,),
    "dynamic_update_slice": (_dynamic_update,),
}
"""Primitive -> rules, tried before those of `simplify`."""
