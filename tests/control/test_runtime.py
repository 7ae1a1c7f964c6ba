"""Loops and branches outside of jit: what the evaluator keeps of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp
from trnx.core.tracing import set_evaluator
from trnx.runtime import evaluate
from trnx.testing import assert_compiles


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """Undo the evaluation by references of this folder."""
    old = set_evaluator(evaluate.evaluate)
    yield
    set_evaluator(old)


def test_a_loop_called_again_compiles_nothing() -> None:
    """The body is traced anew each time; equal programs are one operation."""
    x, xs = tnp.ones(3), tnp.ones((4, 3))

    def run(factor: float) -> np.ndarray:
        return np.asarray(lax.scan(lambda c, r: (c * factor + r, None), x, xs)[0])

    want = run(0.5)
    kept = len(evaluate._operations)
    with assert_compiles(0):
        for _ in range(6):
            np.testing.assert_array_equal(run(0.5), want)
    assert len(evaluate._operations) == kept
    assert not np.array_equal(run(0.25), want)
    assert len(evaluate._operations) == kept + 1


def test_gradient_of_a_jitted_loop_compiles_once() -> None:
    loss = trnx.jit(lambda x: lax.scan(lambda c, _: (tnp.sin(c) * c, None), x, None, 3)[0].sum())
    x = tnp.ones(3)
    first = trnx.grad(loss)(x)
    with assert_compiles(0):
        again = trnx.grad(loss)(x)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))


def test_f64_loops_run_as_f32_on_neuron() -> None:
    """Bodies take the types their operands have on the device; on cpu they stay f64."""

    def f(x: np.ndarray, xs: np.ndarray) -> tuple[object, object]:
        def step(c: object, r: object) -> tuple[object, object]:
            inner = lax.cond(True, lambda v: v * np.float64(0.5), lambda v: v, c + r)
            return tnp.tanh(inner), c

        return lax.scan(step, x, xs)

    x, xs = np.full(3, 1 / 3), np.cos(np.arange(12.0)).reshape(4, 3)
    carry = x
    for row in xs:
        carry = np.tanh((carry + row) * 0.5)
    with pytest.warns(UserWarning, match="f64"):
        low = trnx.jit(f)(x, xs)[0]
    np.testing.assert_allclose(np.asarray(low), carry, rtol=1e-6)
    with trnx.use_device("cpu"):
        high = trnx.jit(f)(x, xs)[0]
    np.testing.assert_allclose(np.asarray(high), carry, rtol=1e-14)
