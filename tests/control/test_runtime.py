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
