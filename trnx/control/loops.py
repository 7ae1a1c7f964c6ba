"""Loops over traced values: scan, map, while_loop and fori_loop."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.control.bodies import (
    Traced,
    as_type,
    check_structure,
    keep_types,
    kind_of,
    settle_carry,
    trace,
)
from trnx.core import (
    Aval,
    Dim,
    DTypeError,
    ShapeError,
    Size,
    TraceError,
    Tracer,
    aval_of,
    bounds,
    config,
    dtypes,
    message,
    structurally_equal,
    tree,
    user_traceback,
)
from trnx.ops import functions as op
from trnx.ops import scan as scan_op
from trnx.ops import while_loop as while_op
from trnx.transforms.arguments import argument_names, function_name

Tree = Any


# ---------------------------------------------------------------- scan
@user_traceback
def scan(
    f: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree = None,
    length: Size | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Tree, Tree]:
    """Run ``f`` over the leading axis of `xs`, with a value carried from step to step.

    ::

        carry, ys = init, []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, stack(ys)

    Args:
        f: ``f(carry, x) -> (carry, y)``; the carry keeps its structure, shapes and dtypes.
        init: the first carry, a tree of arrays. Python numbers give way to the dtype `f` returns.
        xs: a tree of arrays ``[length, ...]``, or None.
        length: number of steps; needed when `xs` has no arrays.
        reverse: run from the last step to the first; ys stay in the order of xs.
        unroll: steps per iteration of the compiled loop; True for all.

    Returns:
        The last carry, and the ys as a tree of arrays ``[length, ...]``.

    Raises:
        TraceError: `f` returns no pair, or the carry in another structure.
        ShapeError, DTypeError: the carry comes back with another type (names path, both types and
            the line that made it); leading axes of xs differ.
    """
    name = function_name(f)
    what = f"scan of {name}"
    root, x_root = _two_names(f, init, xs)
    tree.check_leaves(init, "init")
    tree.check_leaves(xs, "xs")
    steps = _length(what, xs, length)
    count = _unroll(what, unroll, steps)

    def step(carry: Tree, x: Tree) -> tuple[Tree, Tree]:
        return _pair(what, root, init, f(carry, x))

    if config.disable_jit.value and isinstance(steps, int):
        return _scan_in_python(step, init, xs, steps, reverse, what)
    paths = [*tree.paths(init, root), *tree.paths(xs, x_root)]
    return _scan(what, name, step, init, xs, paths, steps, bool(reverse), count)


def _scan(
    what: str,
    name: str,
    step: Callable[[Tree, Tree], tuple[Tree, Tree]],
    init: Tree,
    xs: Tree,
    paths: Sequence[str],
    steps: Size,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Tree, Tree]:
    """A scan whose step gives the carry in the structure of `init`."""
    carry_leaves, carry_structure = tree.flatten(init)
    structure = tree.structure((init, xs))
    x_avals = [_slice_type(aval_of(x)) for x in tree.leaves(xs)]
    y_structure: tree.TreeDef | None = None

    def run(avals: list[Aval]) -> Traced:
        def change(result: tuple[Tree, Tree]) -> list[Any]:
            nonlocal y_structure
            carry, y = result
            tree.check_leaves(y, "y", "value")
            ys, y_structure = tree.flatten(y)
            return [*keep_types(tree.leaves(carry), avals), *ys]

        return trace(step, structure, [*avals, *x_avals], paths, name, change)

    traced, avals = settle_carry(what, carry_leaves, paths, run)
    results = scan_op.bind(
        (),
        traced.constants,
        list(builtins.map(as_type, carry_leaves, avals)),
        tree.leaves(xs),
        body=traced.program,
        length=steps,
        reverse=reverse,
        unroll=unroll,
    )
    assert y_structure is not None
    count = len(carry_leaves)
    last = tree.unflatten(carry_structure, results[:count])
    return last, tree.unflatten(y_structure, results[count:])


def _two_names(f: Callable[..., Any], first: Any, second: Any) -> tuple[str, str]:
    """Names of the two parameters of a body."""
    one, two, *_ = argument_names(f, (first, second), {})
    return one, two


def _slice_type(aval: Aval) -> Aval:
    return aval.with_shape(aval.shape[1:])


def _pair(what: str, root: str, init: Any, result: Any) -> tuple[Any, Any]:
    """Carry and y of a body's result, after checking their structure."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TraceError(
            message(
                f"{what} needs a body that returns a pair ({root}, y), and it returns "
                f"{kind_of(result)}",
                None,
                f"Return ({root}, None) when there is nothing to stack",
            )
        )
    carry, y = result
    tree.check_leaves(carry, root, "value")
    check_structure(what, root, init, carry)
    return carry, y


def _length(what: str, xs: Any, length: Size | None) -> Size:
    """Number of steps from xs and the `length` argument."""
    found: Size | None = None
    where = ""
    if length is not None:
        found = length if isinstance(length, Dim) else operator.index(length)
        where = f"length is {found}"
        if isinstance(found, int) and found < 0:
            raise ShapeError(message(f"{what} has length {found}", None, "Use at least 0"))
    for leaf, path in zip(tree.leaves(xs), tree.paths(xs, "xs"), strict=True):
        aval = aval_of(leaf)
        if not aval.shape:
            raise ShapeError(
                message(
                    f"{what} runs over the leading axis of {path}, which is {aval}",
                    None,
                    "Pass arrays with a leading axis, and what all steps share by closure",
                )
            )
        size = aval.shape[0]
        if found is None:
            found, where = size, f"{path} is {aval}"
        elif not structurally_equal(found, size):
            raise ShapeError(
                message(
                    f"{what} needs one number of steps, but {where} and {path} is {aval}",
                    None,
                    "Make the leading axes equal",
                )
            )
    if found is None:
        raise ShapeError(
            message(f"{what} has no xs, so the number of steps is unknown", None, "Pass length")
        )
    return found


def _unroll(what: str, unroll: int | bool, steps: Size) -> int:
    if isinstance(unroll, bool):
        return max(steps, 1) if unroll and isinstance(steps, int) else 1
    count = operator.index(unroll)
    if count < 1:
        raise ValueError(message(f"{what} has unroll {count}", None, "Use at least 1"))
    return count


def _scan_in_python(
    step: Callable[..., Any], init: Any, xs: Any, steps: int, reverse: bool, what: str
) -> tuple[Any, Any]:
    """The loop step by step, for option `disable_jit`."""
    leaves, structure = tree.flatten(xs)
    carry = init
    rows: list[list[Any]] = []
    y_structure: tree.TreeDef | None = None
    for i in reversed(range(steps)) if reverse else range(steps):
        x = tree.unflatten(structure, [op.take(leaf, np.int32(i), 0) for leaf in leaves])
        carry, y = step(carry, x)
        row, y_structure = tree.flatten(y)
        rows.append(row)
    if y_structure is None:
        raise ShapeError(
            message(
                f"{what} takes no step, so the types of its ys are unknown under disable_jit",
                None,
                "Run it with the option off",
            )
        )
    if reverse:
        rows.reverse()
    columns = zip(*rows, strict=True)
    ys = [op.concatenate([op.expand(y, 0) for y in column], 0) for column in columns]
    return carry, tree.unflatten(y_structure, ys)


@user_traceback
def map(f: Callable[[Tree], Tree], xs: Tree) -> Tree:
    """Apply `f` to each slice of `xs` along the leading axis, one after the other.

    `vmap` computes the same at once and is faster; `map` needs the memory of one slice.

    Args:
        f: takes a tree of slices.
        xs: a tree of arrays ``[length, ...]``.

    Returns:
        The results, stacked along a new leading axis.
    """

    def map_body(carry: None, x: Tree) -> tuple[None, Tree]:
        return None, f(x)

    return scan(map_body, None, xs)[1]


# ---------------------------------------------------------------- while
@user_traceback
def while_loop(
    cond_fun: Callable[[Tree], Any], body_fun: Callable[[Tree], Tree], init_val: Tree
) -> Tree:
    """Apply `body_fun` as long as `cond_fun` holds.

    ::

        value = init_val
        while cond_fun(value):
            value = body_fun(value)
        return value

    It has forward derivatives (`jvp`, `jacfwd`), no reverse ones: use `scan`, or `fori_loop` with
    bounds that are Python ints.

    Args:
        cond_fun: takes the value, returns one bool.
        body_fun: takes the value, returns it with the same structure, shapes and dtypes.
        init_val: the first value, a tree of arrays.

    Returns:
        The last value.

    Raises:
        TraceError: the value comes back in another structure.
        ShapeError, DTypeError: it comes back with another type, or `cond_fun` returns no bool.
    """
    name = function_name(body_fun)
    what = f"while_loop of {name}"
    (root,) = argument_names(body_fun, (init_val,), {})
    tree.check_leaves(init_val, "init_val")
    if config.disable_jit.value and not _has_tracer(init_val):
        value = init_val
        while _condition(cond_fun, value):
            value = body_fun(value)
            check_structure(what, root, init_val, value)
        return value

    def step(value: Tree) -> Tree:
        result = body_fun(value)
        tree.check_leaves(result, root, "value")
        check_structure(what, root, init_val, result)
        return result

    return _while(what, name, cond_fun, step, init_val, tree.paths(init_val, root))


def _while(
    what: str,
    name: str,
    cond_fun: Callable[[Tree], Any],
    step: Callable[[Tree], Tree],
    init: Tree,
    paths: Sequence[str],
) -> Tree:
    """A while_loop whose step keeps the structure of `init`."""
    leaves, structure = tree.flatten(init)
    arguments = tree.structure((init,))

    def run(avals: list[Aval]) -> Traced:
        def change(result: Tree) -> list[Any]:
            return keep_types(tree.leaves(result), avals)

        return trace(step, arguments, avals, paths, name, change)

    body, avals = settle_carry(what, leaves, paths, run)
    cond = trace(cond_fun, arguments, avals, paths, function_name(cond_fun), _as_bool)
    results = while_op.bind(
        cond.constants,
        body.constants,
        list(builtins.map(as_type, leaves, avals)),
        cond=cond.program,
        body=body.program,
    )
    return tree.unflatten(structure, results)


def _has_tracer(value: Tree) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in tree.leaves(value))


def _condition(cond_fun: Callable[[Tree], Any], value: Tree) -> bool:
    return bool(np.asarray(_as_bool(cond_fun(value))))


def _as_bool(result: Any) -> Any:
    """The result of a condition, checked."""
    aval = aval_of(result) if tree.is_leaf(result) else None
    if aval is None or aval.shape or aval.dtype != dtypes.bool_:
        raise DTypeError(
            message(
                f"while_loop needs a condition that returns one bool, and it returns "
                f"{kind_of(result)}",
                None,
                "Compare, and reduce with any or all",
            )
        )
    return result


# ---------------------------------------------------------------- fori
@user_traceback
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Tree], Tree], init_val: Tree
) -> Tree:
    """Apply ``body_fun(i, value)`` for i from `lower` up to `upper`.

    ::

        value = init_val
        for i in range(lower, upper):
            value = body_fun(i, value)
        return value

    With bounds that are Python ints or symbolic sizes it is a scan, which has every derivative;
    with array bounds it is a while_loop, which has forward ones only.

    Args:
        lower: first index, int or integer scalar.
        upper: end, not reached.
        body_fun: takes the index, an int32 scalar (int64 if a bound is), and the value, and returns
            the value with the same structure, shapes and dtypes.
        init_val: the first value, a tree of arrays.

    Returns:
        The last value.

    Raises:
        DTypeError: a bound is no integer scalar.
        TraceError, ShapeError, DTypeError: as :func:`scan`.
    """
    steps = _static_steps(lower, upper)
    dtype = _index_type(lower, upper)
    start = _bound(lower, dtype)
    if config.disable_jit.value and isinstance(steps, int):
        value = init_val
        for i in range(operator.index(lower), operator.index(lower) + steps):
            value = body_fun(op.scalar(i, dtype), value)
        return value
    name = function_name(body_fun)
    what = f"fori_loop of {name}"
    index_name, root = _two_names(body_fun, 0, init_val)
    tree.check_leaves(init_val, "init_val")
    paths = [index_name, *tree.paths(init_val, root)]
    one = op.scalar(1, dtype)

    def next_value(i: Any, value: Tree) -> Tree:
        result = body_fun(i, value)
        tree.check_leaves(result, root, "value")
        check_structure(what, root, init_val, result)
        return result

    if steps is not None:

        def step(carry: tuple[Any, Tree], _: None) -> tuple[tuple[Any, Tree], None]:
            i, value = carry
            return (op.add(i, one), next_value(i, value)), None

        (_, last), _ = _scan(what, name, step, (start, init_val), None, paths, steps)
        return last
    end = _bound(upper, dtype)

    def more(carry: tuple[Any, Tree]) -> Any:
        return op.lt(carry[0], end)

    def body(carry: tuple[Any, Tree]) -> tuple[Any, Tree]:
        i, value = carry
        return op.add(i, one), next_value(i, value)

    return _while(what, name, more, body, (start, init_val), paths)[1]


def _static_steps(lower: Any, upper: Any) -> Size | None:
    """The number of iterations when the bounds are ints or sizes, else None."""
    if not all(isinstance(b, int | np.integer | Dim) and not isinstance(b, bool)
               for b in (lower, upper)):  # fmt: skip
        return None
    low = lower if isinstance(lower, Dim) else int(lower)
    high = upper if isinstance(upper, Dim) else int(upper)
    steps = high - low
    if isinstance(steps, Dim):
        least, _ = bounds(steps)
        return steps if least is not None and least >= 0 else None
    return max(steps, 0)


def _index_type(*bound: Any) -> np.dtype[Any]:
    kinds = []
    for value in bound:
        if isinstance(value, Dim):
            continue
        aval = aval_of(value)
        if aval.shape or not dtypes.is_integer(aval.dtype):
            raise DTypeError(
                message(f"fori_loop has a bound of type {aval}", None, "Pass integers without axes")
            )
        kinds.append(aval)
    strong = [aval.dtype for aval in kinds if not aval.weak]
    return dtypes.result_type(*strong)[0] if strong else dtypes.int32


def _bound(value: Any, dtype: np.dtype[Any]) -> Any:
    return op.dim_size(value, dtype) if isinstance(value, Dim) else op.convert(value, dtype)
