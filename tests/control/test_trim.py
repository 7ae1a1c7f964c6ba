"""Unused results of loops, branches and checkpoints go, with all that only they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core import (
    Program,
    aval_of,
    check,
    prune,
    reference_program,
    sub_programs,
    trace_program,
)

X = np.linspace(0.1, 0.9, 3).astype(np.float32)
XS = np.linspace(-1, 1, 12).astype(np.float32).reshape(4, 3)


def scanned(x: Any, xs: Any) -> Any:
    """Three carries, of which b needs a, and c nothing; two ys."""

    def step(carry: Any, row: Any) -> Any:
        a, b, c = carry
        return (a + row, b + tnp.sin(a), c * tnp.exp(x)), (tnp.cos(c), tnp.tanh(b))

    (a, b, c), (y, z) = lax.scan(step, (x, x * 2.0, x * 3.0), xs)
    return [a, b, c, y, z]


def counted(x: Any, xs: Any) -> Any:
    """The condition needs n; b needs a."""
    n, a, b, c = lax.while_loop(
        lambda v: v[0] < 3,
        lambda v: (v[0] + 1, tnp.sin(v[1]), v[2] + v[1], tnp.exp(v[3] * xs[0])),
        (0, x, x, x),
    )
    return [n, a, b, c]


def chosen(x: Any, xs: Any) -> Any:
    return list(
        lax.cond(
            x[0] > 0,
            lambda: (tnp.sin(x), tnp.exp(xs), x * 2.0),
            lambda: (tnp.cos(x), tnp.tanh(xs), x),
        )
    )


def kept(x: Any, xs: Any) -> Any:
    return list(trnx.checkpoint(lambda v, w: (tnp.sin(v), tnp.exp(w).sum(0)))(x, xs))


# function, which results are read, primitives that stay, primitives that go, operands left
CASES: list[tuple[Callable[..., Any], list[int], set[str], set[str], int]] = [
    (scanned, [0], {"add"}, {"sin", "cos", "tanh", "mul"}, 2),
    (scanned, [1], {"add", "sin"}, {"cos", "tanh", "mul"}, 3),
    (scanned, [4], {"add", "sin", "tanh"}, {"cos", "mul"}, 3),
    (scanned, [3], {"cos", "mul"}, {"sin", "tanh", "add"}, 2),
    (scanned, [2, 0], {"mul", "add"}, {"sin", "cos", "tanh"}, 4),
    (counted, [0], {"add"}, {"sin", "exp"}, 1),
    (counted, [2], {"add", "sin"}, {"exp"}, 3),
    (counted, [3], {"add", "exp"}, {"sin"}, 3),
    (chosen, [0], {"sin", "cos"}, {"exp", "tanh"}, 2),
    (chosen, [1, 2], {"exp", "tanh", "mul"}, {"sin", "cos"}, 3),
    (kept, [0], {"sin"}, {"exp"}, 1),
    (kept, [1], {"exp"}, {"sin"}, 1),
]


def inner_names(program: Program) -> set[str]:
    names = {equation.primitive.name for equation in program.equations}
    for equation in program.equations:
        for _, inner in sub_programs(equation.params):
            names |= inner_names(inner)
    return names


@pytest.mark.parametrize(
    ("function", "read", "stay", "go", "operands"), CASES, ids=range(len(CASES))
)
def test_dead_results_go(
    function: Callable[..., Any], read: list[int], stay: set[str], go: set[str], operands: int
) -> None:
    avals = [aval_of(X), aval_of(XS)]
    whole = trace_program(function, avals, "whole")

    def part(*values: Any) -> list[Any]:
        results = function(*values)
        return [results[i] for i in read]

    program = prune(trace_program(part, avals, "part"))
    check(program)
    (equation,) = [e for e in program.equations if any(sub_programs(e.params))]
    inside = inner_names(program.replace(equations=[equation]))
    assert stay <= inside
    assert not go & inside
    assert len(equation.inputs) == operands
    want = reference_program(whole, [X, XS])
    for got, index in zip(reference_program(program, [X, XS]), read, strict=True):
        np.testing.assert_array_equal(got, want[index])
    assert prune(program) is program


def test_nested_loops_are_trimmed() -> None:
    def f(x: Any) -> Any:
        def outer(c: Any, _: Any) -> Any:
            (a, b), _ = lax.scan(
                lambda v, _: ((v[0] * 2.0, tnp.exp(v[1])), None), (c[0], c[1]), None, 2
            )
            return (a, b), None

        return lax.scan(outer, (x, x), None, 3)[0][0]

    program = trnx.make_ir(f)(X)
    assert "exp" not in inner_names(program)
    np.testing.assert_allclose(reference_program(program, [X])[0], X * 64)
