"""Error texts of the derivative functions, and traced values under derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.transforms.functions import total
from trnx.core import DTypeError, ShapeError, TraceError, trace_program
from trnx.core.avals import aval_of
from trnx.ops import functions as op
from trnx.transforms import grad, jvp, linearize, value_and_grad, vjp, vmap

X = np.linspace(0.0, 1.0, 3)


def loss(x: Any) -> Any:
    return total(op.mul(x, x))


ERRORS = [
    (
        lambda: grad(loss)(np.arange(3)),
        DTypeError,
        "grad needs a float input, but x has type i64[3]",
    ),
    (lambda: grad(loss)(3), DTypeError, "x has type i32[]~ (at"),
    (lambda: grad(loss)(3), DTypeError, "write 3.0 instead of 3"),
    (
        lambda: grad(lambda p: loss(p["w"]))({"w": X, "n": np.array(True)}),
        DTypeError,
        "p['n'] has type bool[]",
    ),
    (
        lambda: value_and_grad(op.sin)(X),
        ShapeError,
        "value_and_grad needs a scalar output, but sin returns f64[3]",
    ),
    (lambda: grad(lambda x: (x, x))(1.0), TraceError, "returns a tree of 2 arrays"),
    (lambda: grad(lambda x: [loss(x)])(X), TraceError, "returns a tree of 1 arrays"),
    (lambda: grad(lambda x: op.argmax(x, 0))(X), DTypeError, "a real float output, but <lambda>"),
    (lambda: grad(loss, argnums=2)(X), TraceError, "argnums 2 but 1 positional arguments"),
    (lambda: grad(loss, has_aux=True)(X), TraceError, "with has_aux but returns f64[]"),
    (lambda: grad(lambda x: "text")(X), TypeError, "The value output has type builtins.str"),
    (lambda: grad(loss)("text"), TypeError, "The argument x has type builtins.str"),
    (lambda: jvp(loss, (X,), (X[:2],)), ShapeError, "tangent[0] of jvp has type f64[2]"),
    (lambda: jvp(loss, (X,), (np.float32(1),)), ShapeError, "its primal has type f64[3]"),
    (lambda: jvp(loss, (X,), (X, X)), TraceError, "tangents of jvp have another structure"),
    (lambda: jvp(loss, (np.arange(3),), (X,)), DTypeError, "jvp needs a float input"),
    (lambda: linearize(loss, 3), DTypeError, "linearize needs a float input"),
    (lambda: linearize(loss, X)[1](X[:1]), ShapeError, "tangent[0] of linearize has type f64[1]"),
    (lambda: vjp(loss, X)[1](X), ShapeError, "cotangent of vjp has type f64[3]"),
]


@pytest.mark.parametrize(("use", "kind", "text"), ERRORS, ids=range(len(ERRORS)))
def test_error_texts(use: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        use()
    assert text in str(error.value)
    assert "test_errors.py:" in str(error.value)


def test_numpy_on_a_differentiated_value() -> None:
    def f(x: Any) -> Any:
        return np.sin(x).sum()

    with pytest.raises(TypeError) as error:
        grad(f)(np.ones((10, 10), np.float32))
    text = str(error.value)
    assert "f32[10,10] in derivative of f was passed to NumPy" in text
    assert "test_errors.py:" in text
    assert "trnx.numpy" in text
    assert len(text) < 500


@pytest.mark.parametrize("use", [float, complex, np.asarray, lambda x: x.item()])
def test_a_derivative_is_never_lost_in_a_conversion(use: Any) -> None:
    with pytest.raises(TraceError, match="derivative of"):
        grad(lambda x: op.mul(x, use(x)))(2.0)


def test_branches_on_known_values_work_outside_of_jit() -> None:
    def f(x: Any) -> Any:
        if op.gt(x, 1.0):
            return op.mul(x, x)
        return op.neg(x)

    assert float(grad(f)(3.0)) == 6
    assert float(grad(f)(0.5)) == -1
    assert float(grad(lambda x: op.mul(x, x) if x else x)(3.0)) == 6
    with pytest.raises(TraceError, match="has no truth value"):
        trace_program(lambda x: [grad(f)(x)], [aval_of(1.0)])
    with pytest.raises(TraceError, match="vmap of f has no truth value"):
        vmap(f)(X)


def test_leaked_tracers() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(op.sin(x))
        return total(x)

    for transform in (grad(f), vmap(f), lambda x: vjp(f, x)):
        kept.clear()
        transform(X)
        for use in (lambda: op.exp(kept[0]), lambda: bool(kept[0])):
            with pytest.raises(TraceError, match=r"made at test_errors\.py:\d+ \(f\) leaked out"):
                use()
