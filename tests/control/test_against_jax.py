"""Loops and branches under every transform, against JAX on the same functions.

JAX compiles for seconds where the rules take milliseconds, so values and gradients are compared in
every run and the rest in the nightly one; test_consistency.py ties the rest to these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.control.functions import FORWARD_ONLY, FUNCTIONS, JAX, REVERSIBLE, TRNX, Library

X = np.array([0.3, -0.4, 0.9], np.float32)
V = np.array([1.0, -0.5, 0.25], np.float32)
# Examples that take other branches and stop at other times.
BATCH = np.array(
    [[0.3, -0.4, 0.9], [-0.7, 0.5, 0.2], [0.8, 0.6, -1.1], [0.05, 0.3, 0.2]], np.float32
)

Transform = Callable[[Library, Callable[[Any], Any]], Any]


def summed(lib: Library, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """f as a scalar function with a curved loss, so that second derivatives are not zero."""
    return lambda x: (f(x) ** 2).sum() + f(x)[0]


FORWARD: dict[str, Transform] = {
    "value": lambda lib, f: f(lib.np.asarray(X)),
    "jit": lambda lib, f: lib.top.jit(f)(lib.np.asarray(X)),
    "jvp": lambda lib, f: lib.top.jvp(f, (lib.np.asarray(X),), (lib.np.asarray(V),)),
    "jvp of jit": lambda lib, f: lib.top.jvp(
        lib.top.jit(f), (lib.np.asarray(X),), (lib.np.asarray(V),)
    ),
    "second jvp": lambda lib, f: lib.top.jvp(
        lambda x: lib.top.jvp(f, (x,), (lib.np.asarray(V),))[1],
        (lib.np.asarray(X),),
        (lib.np.asarray(V),),
    ),
    "vmap": lambda lib, f: lib.top.vmap(f)(lib.np.asarray(BATCH)),
    "vmap of jit, last axis": lambda lib, f: lib.top.vmap(lib.top.jit(f), 1, 1)(
        lib.np.asarray(BATCH.T.copy())
    ),
    "jvp of vmap": lambda lib, f: lib.top.jvp(
        lib.top.vmap(f), (lib.np.asarray(BATCH),), (lib.np.asarray(BATCH),)
    ),
    "jacfwd": lambda lib, f: lib.top.jacfwd(f)(lib.np.asarray(X)),
}
REVERSE: dict[str, Transform] = {
    "grad": lambda lib, f: lib.top.grad(summed(lib, f))(lib.np.asarray(X)),
    "jit of grad": lambda lib, f: lib.top.jit(lib.top.grad(summed(lib, f)))(lib.np.asarray(X)),
    "grad of jit": lambda lib, f: lib.top.grad(lib.top.jit(summed(lib, f)))(lib.np.asarray(X)),
    "vmap of grad": lambda lib, f: lib.top.vmap(lib.top.grad(summed(lib, f)))(
        lib.np.asarray(BATCH)
    ),
    "grad of vmap": lambda lib, f: lib.top.grad(lambda x: lib.top.vmap(summed(lib, f))(x).sum())(
        lib.np.asarray(BATCH)
    ),
    "jacrev": lambda lib, f: lib.top.jacrev(f)(lib.np.asarray(X)),
    "hessian": lambda lib, f: lib.top.hessian(summed(lib, f))(lib.np.asarray(X)),
    "grad of grad": lambda lib, f: lib.top.grad(
        lambda x: (lib.top.grad(summed(lib, f))(x) * lib.np.asarray(V)).sum()
    )(lib.np.asarray(X)),
}


def compare(transform: Transform, make: Callable[[Library], Callable[[Any], Any]]) -> None:
    expected = transform(JAX, make(JAX))
    found = transform(TRNX, make(TRNX))
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    for got, want in zip(found, expected, strict=True):
        assert np.asarray(got).dtype == np.asarray(want).dtype
        scale = max(1.0, float(np.abs(np.asarray(want)).max()))
        np.testing.assert_allclose(np.asarray(got) / scale, np.asarray(want) / scale, atol=2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_derivative(name: str) -> None:
    """Values, and gradients or forward derivatives, are those of JAX."""

    def both(lib: Library, f: Callable[[Any], Any]) -> tuple[Any, ...]:
        x, v = lib.np.asarray(X), lib.np.asarray(V)
        if name in FORWARD_ONLY:
            return lib.top.jvp(f, (x,), (v,))
        return lib.top.value_and_grad(summed(lib, f))(x)

    def compiled(lib: Library, f: Callable[[Any], Any]) -> tuple[Any, ...]:
        return JAX.top.jit(lambda: both(lib, f))() if lib is JAX else both(lib, f)

    compare(compiled, FUNCTIONS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("transform", FORWARD)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward(name: str, transform: str) -> None:
    """Values, forward derivatives and batches are those of JAX."""
    compare(FORWARD[transform], FUNCTIONS[name])


@pytest.mark.nightly
@pytest.mark.parametrize("transform", REVERSE)
@pytest.mark.parametrize("name", REVERSIBLE)
def test_reverse(name: str, transform: str) -> None:
    """Reverse derivatives of first and second order are those of JAX."""
    compare(REVERSE[transform], REVERSIBLE[name])


@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_reverse_mode_of_while_tells_what_to_do(name: str) -> None:
    """The error names the loop's line and the remedy; so does jit, before anything runs."""
    f = TRNX.top.grad(summed(TRNX, FORWARD_ONLY[name](TRNX)))
    for run in (f, TRNX.top.jit(f), TRNX.top.vmap(f, None, None, 2)):
        with pytest.raises(NotImplementedError) as error:
            run(TRNX.np.asarray(X))
        text = str(error.value)
        assert "while_loop has no transpose rule because reverse mode needs" in text
        assert "functions.py:" in text
        assert "Use scan, or fori_loop with bounds that are Python ints" in text


def test_linearize_of_while_is_its_jvp() -> None:
    """The linear function of a while_loop runs the loop again."""
    f = FORWARD_ONLY["while_counted"](TRNX)
    x, v = TRNX.np.asarray(X), TRNX.np.asarray(V)
    out, push = TRNX.top.linearize(f, x)
    want, tangent = TRNX.top.jvp(f, (x,), (v,))
    np.testing.assert_allclose(np.asarray(out), np.asarray(want), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(push(v)), np.asarray(tangent), rtol=1e-6)
