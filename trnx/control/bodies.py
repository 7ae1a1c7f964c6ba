"""Tracing of loop bodies and branches: user functions of trees to programs, with settled types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import (
    Aval,
    DTypeError,
    Program,
    ShapeError,
    TraceError,
    Var,
    aval_of,
    constants_to_inputs,
    is_array_like,
    message,
    prune,
    result_type,
    same_shape,
    trace_program,
    tree,
)
from trnx.core.dtypes import short_name
from trnx.ops import functions as op


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced function.

    Attributes:
        program: takes the captured values and then the leaves of the arguments.
        constants: the captured values.
        structure: of the result.
    """

    program: Program
    constants: tuple[Any, ...]
    structure: tree.TreeDef

    def made_at(self, index: int) -> str:
        """``, made at loop.py:12 (step)``: the line of an output; empty when it is an input."""
        atom = self.program.outputs[index]
        for equation in self.program.equations:
            if isinstance(atom, Var) and atom in equation.outputs and equation.source.file:
                return f", made at {equation.source}"
        return ""


def trace(
    function: Callable[..., Any],
    structure: tree.TreeDef,
    avals: Sequence[Aval],
    paths: Sequence[str],
    name: str,
    change: Callable[[Any], Any] | None = None,
) -> Traced:
    """Trace a function of trees.

    Args:
        function: takes the children of `structure`, a tuple, as arguments.
        structure: of the argument tuple.
        avals: types of its leaves.
        paths: names of its leaves for error texts.
        name: of the program.
        change: applied to the result while tracing.
    """
    found: list[tree.TreeDef] = []

    def flat(*leaves: Any) -> list[Any]:
        result = function(*tree.unflatten(structure, leaves))
        if change is not None:
            result = change(result)
        tree.check_leaves(result, "output", "value")
        outs, out_structure = tree.flatten(result)
        found.append(out_structure)
        return outs

    program, constants = constants_to_inputs(prune(trace_program(flat, avals, name, paths)))
    return Traced(program, constants, found[0])


def as_type(value: Any, aval: Aval) -> Any:
    """An operand with the dtype and weakness of `aval`."""
    return op.convert(value, aval.dtype, aval.weak)


# ---------------------------------------------------------------- carries
def settle_carry(
    what: str, init: Sequence[Any], paths: Sequence[str], run: Callable[[list[Aval]], Traced]
) -> tuple[Traced, list[Aval]]:
    """Find the types of a carry that a body keeps.

    Initial values that are Python numbers give way to what the body makes of them.

    Args:
        what: the loop and its body for error texts, ``scan of step``.
        init: leaves of the initial carry.
        paths: their names in the body.
        run: traces the body for these types of the carry; its first outputs are the next carry.

    Returns:
        The traced body and the types of the carry's leaves.

    Raises:
        ShapeError: a leaf comes back with another shape.
        DTypeError: a leaf comes back with another dtype.
    """
    avals = [aval_of(leaf) for leaf in init]
    while True:
        traced = run(avals)
        outs = traced.program.out_avals[: len(avals)]
        settled = [
            _settled(what, paths[index], before, after, traced, index)
            for index, (before, after) in enumerate(zip(avals, outs, strict=True))
        ]
        if settled == avals:
            return traced, avals
        avals = settled


def _settled(what: str, path: str, before: Aval, after: Aval, traced: Traced, index: int) -> Aval:
    """The type with which to trace again; `before` when the body keeps it."""
    if before == after:
        return before
    if same_shape(before.shape, after.shape) and before.weak:
        dtype, weak = result_type(before, after)
        if (dtype, weak) != (before.dtype, before.weak):
            return before.with_dtype(dtype, weak)
    cause = f"{what} takes {path} as {before} and returns it as {after}{traced.made_at(index)}"
    if not same_shape(before.shape, after.shape):
        remedy = "Return it with the shape it comes in with, or start with that shape"
        raise ShapeError(message(cause, None, remedy))
    remedy = (
        f"Return it with astype({short_name(before.dtype)!r}), or start with an initial value of "
        f"dtype {short_name(after.dtype)}"
    )
    raise DTypeError(message(cause, None, remedy))


def keep_types(values: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    """Weak values with the types to which they give way in arithmetic; others unchanged."""
    return [_kept(value, aval) for value, aval in zip(values, avals, strict=True)]


def _kept(value: Any, aval: Aval) -> Any:
    own = aval_of(value)
    if own == aval or not own.weak or not same_shape(own.shape, aval.shape):
        return value
    return as_type(value, aval) if result_type(aval, own)[0] == aval.dtype else value


def check_structure(what: str, root: str, before: Any, after: Any) -> None:
    """Raise TraceError when a carry comes back in another structure; names the first difference."""
    found = difference(before, after, root)
    if found is not None:
        path, old, new = found
        raise TraceError(
            message(
                f"{what} takes {path} as {old} and returns it as {new}",
                None,
                f"Return {root} in the containers it comes in",
            )
        )


def difference(a: Any, b: Any, path: str) -> tuple[str, str, str] | None:
    """Where two trees differ in structure: the path and what is there in each."""
    one, two = tree.children(a), tree.children(b)
    if one is None and two is None:
        return None
    if one is None or two is None or type(a) is not type(b):
        return path, kind_of(a), kind_of(b)
    if one.keys() != two.keys():
        return path, kind_of(a), kind_of(b)
    for key in one:
        found = difference(one[key], two[key], f"{path}{_step(a, key)}")
        if found is not None:
            return found
    return None


def _step(parent: Any, key: Any) -> str:
    """How Python gets from a container to its child."""
    if hasattr(parent, "_fields"):
        return f".{parent._fields[key]}"
    is_attribute = isinstance(key, str) and not isinstance(parent, dict)
    return f".{key}" if is_attribute else f"[{key!r}]"


def kind_of(value: Any) -> str:
    """What a node of a tree is, for error texts."""
    if value is None or isinstance(value, Aval):
        return str(value)
    parts = tree.children(value)
    if parts is None:
        return (
            str(aval_of(value))
            if is_array_like(value)
            else f"a value of type {type(value).__name__}"
        )
    if isinstance(value, dict):
        return f"a dict with keys {sorted(map(str, value))}"
    return f"a {type(value).__name__} of {len(parts)}"
