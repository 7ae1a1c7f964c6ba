"""Transforms of loops and branches against each other: differences in f64, loops over examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from tests.control.functions import FORWARD_ONLY, FUNCTIONS, REVERSIBLE, TRNX
from trnx import numpy as tnp
from trnx.core import check, config, equal, parse_program

Array = Any
X = np.array([0.3, -0.4, 0.9])
V = np.array([1.0, -0.5, 0.25])
W = np.array([-0.3, 0.8, 0.6])
BATCH = np.array([[0.3, -0.4, 0.9], [-0.7, 0.5, 0.2], [0.8, 0.6, -1.1], [0.05, 0.3, 0.2]])
STEP = 1e-6

every_function = pytest.mark.parametrize("name", FUNCTIONS)
every_reversible = pytest.mark.parametrize("name", REVERSIBLE)


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tolerance)


def difference(f: Callable[[Array], Array], x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Central difference along v in f64."""
    above, below = f(tnp.asarray(x + STEP * v)), f(tnp.asarray(x - STEP * v))
    return (np.asarray(above) - np.asarray(below)) / (2 * STEP)


def loss_of(name: str) -> Callable[[Array], Array]:
    f = FUNCTIONS[name](TRNX)
    return lambda x: (f(x) ** 2).sum() + f(x)[0]


def along(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The derivative of f along V."""
    return lambda x: trnx.jvp(f, (x,), (tnp.asarray(V),))[1]


@every_function
def test_jvp(name: str) -> None:
    f = FUNCTIONS[name](TRNX)
    out, tangent = trnx.jvp(f, (tnp.asarray(X),), (tnp.asarray(V),))
    close(out, f(tnp.asarray(X)))
    close(tangent, difference(f, X, V), 1e-7)
    close(along(along(f))(tnp.asarray(X)), difference(along(f), X, V), 1e-6)


@every_reversible
def test_vjp(name: str) -> None:
    """Reverse mode is the adjoint of forward mode, of first and second order."""
    f = REVERSIBLE[name](TRNX)
    _, tangent = trnx.jvp(f, (tnp.asarray(X),), (tnp.asarray(V),))
    out, pull_back = trnx.vjp(f, tnp.asarray(X))
    (ct,) = pull_back(tnp.asarray(W))
    close(out, f(tnp.asarray(X)))
    close(np.dot(np.asarray(ct), V), np.dot(W, np.asarray(tangent)))
    gradient = trnx.grad(loss_of(name))
    expected = difference(gradient, X, V)
    close(along(gradient)(tnp.asarray(X)), expected, 1e-6)
    x, v = tnp.asarray(X), tnp.asarray(V)
    close(trnx.grad(lambda y: (gradient(y) * v).sum())(x), expected, 1e-6)
    close(trnx.grad(along(loss_of(name)))(x), expected, 1e-6)


@every_reversible
def test_jacobians(name: str) -> None:
    f = REVERSIBLE[name](TRNX)
    x = tnp.asarray(X)
    columns = np.stack([difference(f, X, row) for row in np.eye(3)], -1)
    close(trnx.jacfwd(f)(x), columns, 1e-7)
    close(trnx.jacrev(f)(x), columns, 1e-7)
    gradient = trnx.grad(loss_of(name))
    second = np.stack([difference(gradient, X, row) for row in np.eye(3)], -1)
    close(trnx.hessian(loss_of(name))(x), second, 1e-6)


@every_function
@pytest.mark.parametrize("axis", [0, 1])
def test_vmap(name: str, axis: int) -> None:
    """A batch is a loop over its examples, which take different branches and numbers of steps."""
    f = FUNCTIONS[name](TRNX)
    batch = tnp.asarray(np.moveaxis(BATCH, 0, axis))
    close(
        trnx.vmap(f, axis, axis)(batch),
        np.stack([np.asarray(f(tnp.asarray(row))) for row in BATCH], axis),
    )
    push = along(f)
    close(
        trnx.vmap(push, axis)(batch),
        np.stack([np.asarray(push(tnp.asarray(row))) for row in BATCH]),
    )


@every_reversible
def test_vmap_and_grad(name: str) -> None:
    gradient = trnx.grad(loss_of(name))
    rows = np.stack([np.asarray(gradient(tnp.asarray(row))) for row in BATCH])
    close(trnx.vmap(gradient)(tnp.asarray(BATCH)), rows)
    total = trnx.grad(lambda batch: trnx.vmap(loss_of(name))(batch).sum())
    close(total(tnp.asarray(BATCH)), rows)
    hessian = trnx.hessian(loss_of(name))
    close(
        trnx.vmap(hessian)(tnp.asarray(BATCH)),
        np.stack([np.asarray(hessian(tnp.asarray(row))) for row in BATCH]),
    )


@every_function
def test_jit(name: str) -> None:
    """Compiled programs agree, in every order of jit and derivatives (f32)."""
    f = FUNCTIONS[name](TRNX)
    x = tnp.asarray(X.astype(np.float32))
    v = tnp.asarray(V.astype(np.float32))
    want, tangent = trnx.jvp(f, (x,), (v,))
    close(trnx.jit(f)(x), want, 1e-5)
    close(trnx.jvp(trnx.jit(f), (x,), (v,))[1], tangent, 1e-5)
    close(trnx.jit(lambda a, b: trnx.jvp(f, (a,), (b,))[1])(x, v), tangent, 1e-5)
    if name in REVERSIBLE:
        gradient = trnx.grad(loss_of(name))
        want = gradient(x)
        close(trnx.jit(gradient)(x), want, 1e-5)
        close(trnx.grad(trnx.jit(loss_of(name)))(x), want, 1e-5)


@every_function
def test_programs_are_well_formed(name: str) -> None:
    """Derived programs satisfy the verifier, and their text reads back."""
    f = FUNCTIONS[name](TRNX)
    functions: list[Callable[[Array], Any]] = [f, along(f), trnx.vmap(f)]
    if name in REVERSIBLE:
        gradient = trnx.grad(loss_of(name))
        functions += [gradient, along(gradient)]
    for number, function in enumerate(functions):
        argument = BATCH if number == 2 else X
        program = trnx.make_ir(function)(tnp.asarray(argument))
        check(program)
        again = parse_program(str(program), program.constant_values)
        assert equal(again, program)


@every_function
def test_disable_jit(name: str) -> None:
    """Under the option loops and branches run in Python, with equal results."""
    f = FUNCTIONS[name](TRNX)
    want = f(tnp.asarray(X))
    with config.disable_jit(True):
        close(f(tnp.asarray(X)), want)


@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_vmap_runs_until_the_last_example_is_done(name: str) -> None:
    """Examples that are done keep their values, also with a batch of none and of one."""
    f = FORWARD_ONLY[name](TRNX)
    for count in (0, 1):
        got = trnx.vmap(f)(tnp.asarray(BATCH[:count]))
        assert got.shape == (count, 3)
        close(got, [np.asarray(f(tnp.asarray(row))) for row in BATCH[:count]] or np.zeros((0, 3)))
