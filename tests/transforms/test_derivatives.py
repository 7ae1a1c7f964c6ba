"""Derivatives against finite differences, and transforms of transforms against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.transforms.functions import FUNCTIONS, called, finite_difference, mix, total
from trnx.core import aval_of, check, make_aval, trace_program
from trnx.core.program import eval_program
from trnx.ops import functions as op
from trnx.transforms import grad, inline_calls, jvp, linearize, value_and_grad, vjp, vmap

X = np.linspace(-1.0, 1.3, 6).reshape(2, 3)
V = np.cos(np.arange(6.0)).reshape(2, 3)
W = np.sin(np.arange(6.0) + 1).reshape(2, 3)

every_function = pytest.mark.parametrize("name", FUNCTIONS)


def close(a: Any, b: Any, tolerance: float = 1e-7) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@every_function
def test_jvp_is_the_directional_derivative(name: str) -> None:
    f = FUNCTIONS[name]
    out, tangent = jvp(f, (X,), (V,))
    close(out, f(X))
    close(tangent, finite_difference(f, X, V))


@every_function
def test_vjp_is_the_transpose_of_jvp(name: str) -> None:
    f = FUNCTIONS[name]
    _, tangent = jvp(f, (X,), (V,))
    out, pull_back = vjp(f, X)
    (cotangent,) = pull_back(W)
    close(out, f(X))
    close(np.sum(cotangent * V), np.sum(W * tangent))


@every_function
def test_linearize_is_jvp_at_a_point(name: str) -> None:
    f = FUNCTIONS[name]
    out, push_forward = linearize(f, X)
    close(out, f(X))
    close(push_forward(V), jvp(f, (X,), (V,))[1])
    close(push_forward(2 * V - W), 2 * push_forward(V) - push_forward(W))


@every_function
def test_second_derivatives_agree_in_every_order(name: str) -> None:
    f = FUNCTIONS[name]

    def loss(x: Any) -> Any:
        return total(op.mul(f(x), f(x)))

    gradient = grad(loss)
    expected = finite_difference(gradient, X, V)
    forward_over_reverse = jvp(gradient, (X,), (V,))[1]
    reverse_over_reverse = grad(lambda x: total(op.mul(gradient(x), V)))(X)
    reverse_over_forward = grad(lambda x: jvp(loss, (x,), (V,))[1])(X)
    for found in (forward_over_reverse, reverse_over_reverse, reverse_over_forward):
        close(found, expected, 1e-5)


@every_function
def test_third_derivative_of_the_sum(name: str) -> None:
    f = FUNCTIONS[name]

    def loss(x: Any) -> Any:
        return total(f(op.mul(x, 0.5)))

    def second(x: Any) -> Any:
        return jvp(lambda y: jvp(loss, (y,), (V,))[1], (x,), (V,))[1]

    close(jvp(second, (X,), (V,))[1], finite_difference(second, X, V), 1e-5)


@every_function
@pytest.mark.parametrize("wrap", [lambda f: f, called], ids=["plain", "called"])
def test_recorded_derivatives_equal_evaluated_ones(name: str, wrap: Callable[[Any], Any]) -> None:
    f = FUNCTIONS[name]
    gradient = grad(lambda x: total(wrap(f)(x)))
    program = trace_program(lambda x: [gradient(x)], [aval_of(X)])
    check(program)
    inlined = inline_calls(program)
    check(inlined)
    assert all(equation.primitive.name != "call" for equation in inlined.equations)
    expected = gradient(X)
    close(eval_program(program, [X])[0], expected)
    close(eval_program(inlined, [X])[0], expected)


@every_function
def test_vmap_of_derivatives_is_a_loop(name: str) -> None:
    f = FUNCTIONS[name]
    batch = np.stack([X, X + 0.1, X * 2])
    gradient = grad(lambda x: total(f(x)))
    close(vmap(gradient)(batch), np.stack([gradient(x) for x in batch]))
    pushed = vmap(lambda x, v: jvp(f, (x,), (v,))[1], in_axes=(0, None))(batch, V)
    close(pushed, np.stack([jvp(f, (x,), (V,))[1] for x in batch]))


@every_function
def test_derivative_of_vmap_is_vmap_of_derivative(name: str) -> None:
    f = FUNCTIONS[name]
    batch = np.stack([X, X + 0.1, X * 2])
    found = grad(lambda xs: total(vmap(lambda x: total(f(x)))(xs)))(batch)
    close(found, vmap(grad(lambda x: total(f(x))))(batch))


def test_perturbations_do_not_mix() -> None:
    def outer(x: Any) -> Any:
        return op.mul(x, jvp(lambda y: op.add(x, y), (1.0,), (1.0,))[1])

    close(grad(outer)(2.0), 1.0)


def test_derivative_of_closed_over_value() -> None:
    def outer(x: Any) -> Any:
        inner = called(lambda y: op.mul(op.mul(y, y), x))
        return inner(op.sin(x))

    x = 0.7
    close(grad(outer)(x), 2 * np.sin(x) * np.cos(x) * x + np.sin(x) ** 2, 1e-6)


def test_value_and_grad_of_trees() -> None:
    params = {"w": X, "b": [V, None], "n": ()}

    def loss(p: Any, scale: float, *, offset: Any) -> Any:
        prediction = op.add(op.mul(p["w"], p["b"][0]), offset)
        value = total(op.mul(prediction, scale))
        return value, {"prediction": prediction, "count": 3}

    (value, aux), gradient = value_and_grad(loss, has_aux=True)(params, 2.0, offset=W)
    close(value, np.sum(2 * (X * V + W)))
    close(aux["prediction"], X * V + W)
    assert aux["count"] == 3
    close(gradient["w"], 2 * V)
    close(gradient["b"][0], 2 * X)
    assert gradient["b"][1] is None
    assert gradient["n"] == ()
    gradient, aux = grad(loss, has_aux=True)(params, 2.0, offset=W)
    close(gradient["w"], 2 * V)
    assert aux["count"] == 3


def test_argnums() -> None:
    def f(x: Any, y: Any) -> Any:
        return total(op.mul(op.mul(x, x), y))

    close(grad(f, argnums=1)(X, V), X * X)
    close(grad(f, argnums=-1)(X, V), X * X)
    gx, gy = grad(f, argnums=(0, 1))(X, V)
    close(gx, 2 * X * V)
    close(gy, X * X)
    gy, gx = grad(f, argnums=[1, 0])(X, V)
    close(gx, 2 * X * V)
    close(gy, X * X)


def test_unused_and_unreached_inputs_have_zero_gradients() -> None:
    gx, gy = grad(lambda x, y: total(op.mul(x, x)), argnums=(0, 1))(X, V)
    close(gx, 2 * X)
    close(gy, 0 * V)
    assert gy.shape == V.shape
    gradient = grad(lambda x: total(op.convert(op.gt(x, 0.0), np.float64)))(X)
    close(gradient, 0 * X)


def test_integer_outputs_have_zero_tangents() -> None:
    (out, index), (tangent, zero) = jvp(lambda x: (op.sin(x), op.argmax(x, 1)), (X,), (V,))
    close(tangent, np.cos(X) * V)
    assert index.dtype == np.int32
    assert zero.dtype == np.float32
    assert zero.shape == (2,)
    assert not zero.any()
    assert out.shape == (2, 3)
    _, push_forward = linearize(lambda x: (op.sin(x), op.argmax(x, 1)), X)
    assert push_forward(V)[1].dtype == np.float32


def test_python_numbers() -> None:
    value, gradient = value_and_grad(lambda x: op.mul(x, op.mul(x, 3.0)))(2.0)
    assert float(value) == 12
    assert float(gradient) == 12
    assert gradient.dtype == np.float32
    out, tangent = jvp(lambda x: op.mul(x, x), (3.0,), (1.0,))
    assert (float(out), float(tangent)) == (9, 6)


def test_vjp_with_aux_and_trees() -> None:
    out, pull_back, aux = vjp(lambda x, y: ({"p": op.mul(x, y)}, op.exp(x)), X, V, has_aux=True)
    close(out["p"], X * V)
    close(aux, np.exp(X))
    gx, gy = pull_back({"p": W})
    close(gx, W * V)
    close(gy, W * X)
    again = pull_back({"p": 2 * W})
    close(again[0], 2 * W * V)


def test_dtype_is_kept() -> None:
    x = X.astype(np.float16)
    assert grad(lambda x: total(mix(x)))(x).dtype == np.float16
    mixed = grad(lambda x: total(op.convert(x, np.float64)))(x)
    assert mixed.dtype == np.float16


def test_outputs_that_are_inputs_or_constants() -> None:
    out, pull_back = vjp(lambda x: [x, x, 3.0, np.ones(2)], X)
    assert len(out) == 4
    (gradient,) = pull_back([V, W, 1.0, np.ones(2)])
    close(gradient, V + W)


def test_recorded_gradient_has_types_of_inputs() -> None:
    program = trace_program(
        lambda x, y: list(grad(lambda a, b: total(op.mul(a, b)), argnums=(0, 1))(x, y)),
        [make_aval((3,), "bf16"), make_aval((3,), "bf16")],
    )
    assert [str(aval) for aval in program.out_avals] == ["bf16[3]", "bf16[3]"]
