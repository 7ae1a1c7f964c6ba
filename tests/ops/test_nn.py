"""trnx.nn against jax.nn, values and gradients, and where it must stay finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx.core import DTypeError, ShapeError
from trnx.core.tracing import trace_program

pytestmark = pytest.mark.usefixtures("by_references")

_RNG = np.random.default_rng(1)
X = (3 * _RNG.normal(size=(5, 7))).astype(np.float32)
W = _RNG.normal(size=(4, 7)).astype(np.float32)
BIAS = _RNG.normal(size=4).astype(np.float32)
SCALE = _RNG.normal(size=7).astype(np.float32)
LABELS = np.array([0, 6, 3, 3, 1], np.int32)


def _jax_layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + bias


def _jax_cross_entropy(x: Any) -> Any:
    return -jax.nn.log_softmax(x)[jnp.arange(5), LABELS].mean()


# name -> (ours, theirs, operands); derivatives are taken in the first operand
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "relu": (trnx.nn.relu, jax.nn.relu, (X,)),
    "leaky_relu": (trnx.nn.leaky_relu, jax.nn.leaky_relu, (X,)),
    "sigmoid": (trnx.nn.sigmoid, jax.nn.sigmoid, (X,)),
    "tanh": (trnx.nn.tanh, jnp.tanh, (X,)),
    "silu": (trnx.nn.silu, jax.nn.silu, (X,)),
    "softplus": (trnx.nn.softplus, jax.nn.softplus, (X,)),
    "gelu": (trnx.nn.gelu, lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    "gelu_tanh": (lambda x: trnx.nn.gelu(x, approximate=True), jax.nn.gelu, (X,)),
    "softmax": (trnx.nn.softmax, jax.nn.softmax, (X,)),
    "softmax_axis": (lambda x: trnx.nn.softmax(x, 0), lambda x: jax.nn.softmax(x, 0), (X,)),
    "softmax_axes": (
        lambda x: trnx.nn.softmax(x, (0, 1)),
        lambda x: jax.nn.softmax(x, (0, 1)),
        (X,),
    ),
    "log_softmax": (trnx.nn.log_softmax, jax.nn.log_softmax, (X,)),
    "logsumexp": (
        lambda x: trnx.nn.logsumexp(x, 1),
        lambda x: jax.nn.logsumexp(x, 1),
        (X,),
    ),
    "linear": (trnx.nn.linear, lambda x, w, b: x @ w.T + b, (X, W, BIAS)),
    "layer_norm": (trnx.nn.layer_norm, _jax_layer_norm, (X, SCALE, SCALE[::-1].copy())),
    "rms_norm": (
        trnx.nn.rms_norm,
        lambda x, s: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * s,
        (X, SCALE),
    ),
    "cross_entropy": (lambda x: trnx.nn.cross_entropy(x, LABELS), _jax_cross_entropy, (X,)),
    "mse_loss": (trnx.nn.mse_loss, lambda x, y: ((x - y) ** 2).mean(), (X, X[::-1].copy())),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_jax(name: str) -> None:
    """Values, and the gradient of a weighted sum."""
    ours, theirs, operands = CASES[name]
    got, want = np.asarray(ours(*operands)), np.asarray(theirs(*operands))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=3e-6)
    weights = np.asarray(_RNG.normal(size=want.shape), np.float32)

    def our_sum(x: Any, *rest: Any) -> Any:
        return tnp.sum(ours(x, *rest) * weights)

    def their_sum(x: Any, *rest: Any) -> Any:
        return jnp.sum(theirs(x, *rest) * weights)

    got = np.asarray(trnx.grad(our_sum)(*map(tnp.asarray, operands)))
    np.testing.assert_allclose(
        got, np.asarray(jax.grad(their_sum)(*operands)), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "gelu", "silu", "layer_norm"])
def test_low_precision_rounds_once(name: str) -> None:
    """bf16 results are the rounded f32 results."""
    ours, _, operands = CASES[name]
    low = [x.astype(ml_dtypes.bfloat16) for x in operands[:1]]
    got = np.asarray(ours(tnp.asarray(low[0])))
    want = np.asarray(ours(tnp.asarray(low[0].astype(np.float32)))).astype(ml_dtypes.bfloat16)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got, want)


def test_masked_rows_stay_finite() -> None:
    """-inf logits get probability 0 and gradient 0, large ones do not overflow."""
    x = np.array([[0.0, -np.inf, 1.0], [1e4, -1e4, 9e3]], np.float32)
    probabilities = np.asarray(trnx.nn.softmax(tnp.asarray(x)))
    assert np.isfinite(probabilities).all() and probabilities[0, 1] == 0

    def loss(v: Any) -> Any:
        return trnx.nn.cross_entropy(v, np.array([0, 2]))

    assert np.isfinite(float(loss(tnp.asarray(x))))
    gradient = np.asarray(trnx.grad(loss)(tnp.asarray(x)))
    assert np.isfinite(gradient).all() and gradient[0, 1] == 0


def test_logsumexp_of_infinities() -> None:
    """All -inf gives -inf, any inf gives inf: no NaN on the way."""
    x = np.array([[-np.inf, -np.inf], [np.inf, 0.0], [-np.inf, 2.0]], np.float32)
    got = np.asarray(trnx.nn.logsumexp(tnp.asarray(x), axis=1))
    np.testing.assert_array_equal(got, np.array([-np.inf, np.inf, 2.0], np.float32))


def test_kinks() -> None:
    """Subgradients at kinks: relu and norm 0, max shared by ties."""
    zero = tnp.zeros(3)
    np.testing.assert_array_equal(np.asarray(trnx.grad(lambda x: trnx.nn.relu(x).sum())(zero)), 0)
    norm = trnx.grad(lambda x: tnp.linalg.norm(x) ** 2)(zero)
    np.testing.assert_array_equal(np.asarray(norm), 0)
    np.testing.assert_array_equal(np.asarray(trnx.grad(lambda x: tnp.std(x))(zero)), 0)
    ties = trnx.grad(lambda x: tnp.max(x))(tnp.asarray(np.array([1.0, 1.0, 0.0], np.float32)))
    np.testing.assert_array_equal(np.asarray(ties), [0.5, 0.5, 0])
    pair = trnx.grad(lambda x: tnp.maximum(x, 0.0).sum())(zero)
    np.testing.assert_array_equal(np.asarray(pair), 0.5)
    power = trnx.grad(lambda x: (x ** tnp.zeros(3)).sum())(zero)
    np.testing.assert_array_equal(np.asarray(power), 0)
    product = trnx.grad(lambda x: tnp.prod(x))(tnp.asarray(np.array([0.0, 2.0, 3.0], np.float32)))
    np.testing.assert_array_equal(np.asarray(product), [6, 0, 0])


def test_nan_is_not_hidden() -> None:
    """relu and softmax of NaN are NaN; a class out of range gives NaN, not a plausible loss."""
    bad = tnp.asarray(np.array([np.nan, 1.0], np.float32))
    assert np.isnan(np.asarray(trnx.nn.relu(bad))[0])
    assert np.isnan(np.asarray(trnx.nn.softmax(bad))).all()
    losses = trnx.nn.cross_entropy(tnp.asarray(X), np.array([0, 7, -1, 2, 3]), reduction="none")
    np.testing.assert_array_equal(np.isnan(np.asarray(losses)), [0, 1, 1, 0, 0])


def test_one_hot_and_embedding() -> None:
    """Classes out of range give zero rows; embedding reads rows."""
    got = np.asarray(trnx.nn.one_hot(tnp.asarray(np.array([1, 5, -1])), 3))
    np.testing.assert_array_equal(got, [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    first = np.asarray(trnx.nn.one_hot(tnp.asarray(LABELS), 7, axis=0))
    np.testing.assert_array_equal(first, np.eye(7, dtype=np.float32)[:, LABELS])
    rows = np.asarray(trnx.nn.embedding(tnp.asarray(LABELS), tnp.asarray(X)[:, :2][:5]))
    np.testing.assert_array_equal(rows, X[np.clip(LABELS, 0, 4), :2])


def test_dropout() -> None:
    """Kept elements are scaled, the share of dropped ones is near the rate."""
    x = tnp.ones(20000)
    got = np.asarray(trnx.nn.dropout(trnx.random.key(0), x, 0.25))
    assert set(np.unique(got)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((got == 0).mean() - 0.25) < 0.01


def test_cross_entropy_has_no_gather() -> None:
    """One pass over each row: the label's score is selected, so that the loss fuses."""
    program = trace_program(
        lambda x: [trnx.nn.cross_entropy(x, LABELS)], [tnp.asarray(X).aval], "loss"
    )
    names = {equation.primitive.name for equation in program.equations}
    assert not names & {"take", "take_along", "scatter_add"}


def test_errors() -> None:
    """Shapes and dtypes that do not fit."""
    x = tnp.asarray(X)
    with pytest.raises(ShapeError, match=r"linear of x f32\[5,7\] with weight f32\[7,4\]"):
        trnx.nn.linear(x, W.T.copy())
    with pytest.raises(DTypeError, match="integer labels"):
        trnx.nn.cross_entropy(x, X[:, 0])
    with pytest.raises(ShapeError, match=r"labels i32\[4\]"):
        trnx.nn.cross_entropy(x, LABELS[:4])
    with pytest.raises(ShapeError, match=r"layer_norm of f32\[5,7\].*f32\[5\].*shape \(7\)"):
        trnx.nn.layer_norm(x, tnp.ones(5))
    with pytest.raises(ValueError, match=r"rate 1\.5"):
        trnx.nn.dropout(trnx.random.key(0), x, 1.5)
