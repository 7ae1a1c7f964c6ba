"""Branches over traced values: cond and switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.control.bodies import Traced, as_type, difference, trace
from trnx.core import (
    Aval,
    DTypeError,
    Program,
    ShapeError,
    TraceError,
    Tracer,
    Var,
    aval_of,
    config,
    dtypes,
    eval_program,
    is_array_like,
    message,
    result_type,
    same_shape,
    trace_program,
    tree,
    user_traceback,
)
from trnx.ops import cond as cond_op
from trnx.ops import functions as op
from trnx.transforms.arguments import argument_names, function_name

Tree = Any


@user_traceback
def cond(
    pred: Any, true_fun: Callable[..., Tree], false_fun: Callable[..., Tree], *operands: Tree
) -> Tree:
    """``true_fun(*operands)`` if `pred` holds, else ``false_fun(*operands)``.

    Only one of them runs, unless `vmap` makes `pred` differ between examples: then both run and the
    results are selected.

    Args:
        pred: a bool, or a number that counts as true unless it is 0; no axes.
        true_fun: takes the operands.
        false_fun: takes the operands; returns the structure, shapes and dtypes of `true_fun`.
        operands: trees of arrays.

    Raises:
        DTypeError: `pred` has axes, or is no number.
        TraceError, ShapeError, DTypeError: the branches return different structures or types; names
            the path, both types and the lines that made them.
    """
    names = [function_name(true_fun), function_name(false_fun)]
    if not is_array_like(pred) or aval_of(pred).shape:
        found = aval_of(pred) if is_array_like(pred) else f"a value of type {type(pred).__name__}"
        raise DTypeError(
            message(
                f"cond of {names[0]} and {names[1]} needs one bool and got {found}",
                None,
                "Reduce it with any or all, or use trnx.numpy.where for each element",
            )
        )
    if aval_of(pred).dtype != dtypes.bool_:
        pred = op.ne(pred, op.scalar_like(0, pred))
    if config.disable_jit.value and not isinstance(pred, Tracer):
        return (true_fun if bool(np.asarray(pred)) else false_fun)(*operands)
    index = op.convert(pred, dtypes.int32)
    return _branch("cond", index, [false_fun, true_fun], operands, first=1)


@user_traceback
def switch(index: Any, branches: Sequence[Callable[..., Tree]], *operands: Tree) -> Tree:
    """``branches[index](*operands)``, with the index clamped to the branches.

    Args:
        index: an integer without axes.
        branches: functions of the operands that return the same structure, shapes and dtypes.
        operands: trees of arrays.

    Raises:
        ValueError: no branches.
        DTypeError: `index` is no integer scalar.
        TraceError, ShapeError, DTypeError: as :func:`cond`.
    """
    functions = list(branches)
    if not functions:
        raise ValueError(message("switch has no branches", None, "Pass at least one function"))
    aval = aval_of(index)
    if aval.shape or not dtypes.is_integer(aval.dtype):
        raise DTypeError(
            message(f"switch needs an integer without axes and got {aval}", None, "Cast it")
        )
    if len(functions) == 1:
        return functions[0](*operands)
    last = len(functions) - 1
    clamped = op.clamp(op.scalar_like(0, index), index, op.scalar_like(last, index))
    if config.disable_jit.value and not isinstance(index, Tracer):
        return functions[int(np.asarray(clamped))](*operands)
    return _branch("switch", op.convert(clamped, dtypes.int32), functions, operands)


def _branch(
    kind: str,
    index: Any,
    functions: Sequence[Callable[..., Tree]],
    operands: Sequence[Tree],
    first: int = 0,
) -> Tree:
    """Bind `cond`; `first` is the branch that error texts name first."""
    leaves: list[Any] = []
    paths: list[str] = []
    for value, name in zip(operands, argument_names(functions[first], operands, {}), strict=True):
        tree.check_leaves(value, name)
        leaves += tree.leaves(value)
        paths += tree.paths(value, name)
    avals = [aval_of(leaf) for leaf in leaves]
    structure = tree.structure(tuple(operands))
    traced = [trace(f, structure, avals, paths, function_name(f)) for f in functions]
    results = _common_results(kind, [function_name(f) for f in functions], traced, first)
    constants: dict[int, Any] = {id(c): c for branch in traced for c in branch.constants}
    programs = [
        _with_results(_with_constants(branch, list(constants.values())), results)
        for branch in traced
    ]
    outs = cond_op.bind(index, [*constants.values(), *leaves], programs)
    return tree.unflatten(traced[0].structure, outs)


def _with_constants(branch: Traced, constants: Sequence[Any]) -> Program:
    """The branch as a program that takes the captured values of all branches."""
    count = len(branch.constants)
    own = {id(c): var for c, var in zip(branch.constants, branch.program.inputs, strict=False)}
    inputs = [own.get(id(c)) or Var(aval_of(c)) for c in constants]
    return branch.program.replace(inputs=[*inputs, *branch.program.inputs[count:]])


def _with_results(program: Program, avals: Sequence[Aval]) -> Program:
    """The program with its results in these dtypes."""
    if program.out_avals == tuple(avals):
        return program

    def run(*args: Any) -> list[Any]:
        return list(map(as_type, eval_program(program, args), avals))

    return trace_program(run, program.in_avals, program.name)


def _common_results(
    kind: str, names: Sequence[str], traced: Sequence[Traced], first: int
) -> list[Aval]:
    """The types in which all branches can return their results."""
    base = traced[first]
    for name, branch in zip(names, traced, strict=True):
        if branch.structure != base.structure:
            one, two = (tree.unflatten(t.structure, t.program.out_avals) for t in (base, branch))
            path, a, b = difference(one, two, "output") or ("output", str(base.structure),
                                                            str(branch.structure))  # fmt: skip
            raise TraceError(
                message(
                    f"{kind} branches return different structures: {path} is {a} in "
                    f"{names[first]} and {b} in {name}",
                    None,
                    "Return the same containers from every branch",
                )
            )
    return [
        _common_type(kind, names, traced, first, index)
        for index in range(len(base.program.outputs))
    ]


def _common_type(
    kind: str, names: Sequence[str], traced: Sequence[Traced], first: int, index: int
) -> Aval:
    avals = [branch.program.out_avals[index] for branch in traced]
    strong = [aval for aval in avals if not aval.weak] or avals
    dtype, weak = result_type(*avals) if len(strong) == len(avals) else result_type(*strong)
    for number, aval in enumerate(avals):
        fits = same_shape(aval.shape, avals[first].shape)
        gives_way = aval.weak and result_type(dtype, aval)[0] == dtype
        if fits and (aval.dtype == dtype or gives_way):
            continue
        other = number if number != first else next(i for i in range(len(avals)) if i != first)
        one, two = traced[first], traced[other]
        path = tree.paths(tree.unflatten(one.structure, one.program.out_avals), "output")[index]
        cause = (
            f"{kind} branches return different types: {path} is {avals[first]} in {names[first]}"
            f"{one.made_at(index)}, and {avals[other]} in {names[other]}{two.made_at(index)}"
        )
        if not same_shape(avals[first].shape, avals[other].shape):
            raise ShapeError(message(cause, None, "Return the same shape from every branch"))
        raise DTypeError(message(cause, None, "Cast one of them with astype"))
    return avals[first].with_dtype(dtype, weak and all(aval.weak for aval in avals))
