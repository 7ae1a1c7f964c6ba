"""Small functions over f64 arrays that transforms are tried on, and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.core import trace_program
from trnx.core.avals import aval_of
from trnx.ops import functions as op
from trnx.transforms import call

Function = Callable[..., Any]


def total(x: Any) -> Any:
    """Sum of all elements."""
    return op.reduce_sum(x, range(aval_of(x).ndim))


def called(function: Function) -> Function:
    """`function` of arrays as a traced program behind a `call` equation, as jit makes it."""

    def run(*args: Any) -> Any:
        program = trace_program(
            lambda *values: [function(*values)], [aval_of(arg) for arg in args], "called"
        )
        return call(program, args)[0]

    return run


def mix(x: Any) -> Any:
    """Elementwise with shared subexpressions."""
    y = op.sin(op.mul(x, x))
    return op.add(op.mul(y, x), op.exp(op.neg(y)))


def normalised(x: Any) -> Any:
    """Softmax along the last axis: reductions, broadcasts, a maximum without derivative."""
    last = aval_of(x).ndim - 1
    shape = aval_of(x).shape
    top = op.stop_gradient(op.reduce_max(x, (last,)))
    e = op.exp(op.sub(x, op.broadcast(top, shape, range(last))))
    return op.div(e, op.broadcast(op.reduce_sum(e, (last,)), shape, range(last)))


def branching(x: Any) -> Any:
    """Selects by a comparison."""
    return op.select(op.gt(x, op.scalar_like(0.3, x)), op.mul(x, x), op.sin(x))


def nested_calls(x: Any) -> Any:
    """A call within a call, and a value used inside and outside."""
    inner = called(mix)
    return op.mul(called(lambda y: op.add(inner(y), y))(x), x)


FUNCTIONS: dict[str, Function] = {
    "mix": mix,
    "normalised": normalised,
    "branching": branching,
    "call of mix": called(mix),
    "call of normalised": called(normalised),
    "nested calls": nested_calls,
    "constant captured": lambda x: op.mul(x, np.full(aval_of(x).shape, 3.0)),
    "unused work": lambda x: (op.exp(x), op.mul(x, x))[1],
    "identity": lambda x: x,
}


def finite_difference(function: Function, x: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Central difference in f64."""
    h = 1e-6
    return (np.asarray(function(x + h * direction)) - function(x - h * direction)) / (2 * h)
