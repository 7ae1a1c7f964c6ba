"""jacfwd, jacrev, hessian and associative_scan as users call them, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trnx
from trnx import lax
from trnx import numpy as tnp

X = np.array([0.5, -1.0, 2.0], np.float32)
PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3) / 5, "b": np.ones(2, np.float32)}


def model(np_: Any) -> Callable[..., Any]:
    def f(params: Any, x: Any) -> Any:
        h = np_.tanh(params["w"] @ x + params["b"])
        return {"h": h, "s": (h * h).sum()}

    return f


def compare(found: Any, want: Any) -> None:
    leaves, structure = jax.tree.flatten(want)
    got, found_structure = jax.tree.flatten(found, is_leaf=lambda x: hasattr(x, "aval"))
    assert found_structure == structure
    for a, b in zip(got, leaves, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,), -1])
@pytest.mark.parametrize("transform", ["jacfwd", "jacrev"])
def test_trees_in_and_out(transform: str, argnums: Any) -> None:
    f = getattr(trnx, transform)(model(tnp), argnums)
    compare(f(PARAMS, X), getattr(jax, transform)(model(jnp), argnums)(PARAMS, X))


def test_hessian_of_a_tree() -> None:
    found = trnx.hessian(lambda p, x: model(tnp)(p, x)["s"])(PARAMS, X)
    compare(found, jax.hessian(lambda p, x: model(jnp)(p, x)["s"])(PARAMS, X))


@pytest.mark.parametrize("transform", [trnx.jacfwd, trnx.jacrev])
def test_aux_and_jit_and_vmap(transform: Any) -> None:
    jac, aux = transform(lambda x: (tnp.sin(x), {"y": x * 2.0, "n": 3}), has_aux=True)(X)
    np.testing.assert_allclose(np.asarray(jac), np.diag(np.cos(X)), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(aux["y"]), X * 2)
    batch = trnx.vmap(transform(tnp.sin))(np.stack([X, X + 1]))
    np.testing.assert_allclose(np.asarray(batch[1]), np.diag(np.cos(X + 1)), rtol=1e-6)
    compiled = trnx.jit(transform(lambda x: tnp.exp(x)[:, None] * x))(X)
    want = jax.jacfwd(lambda x: jnp.exp(x)[:, None] * x)(X)
    np.testing.assert_allclose(np.asarray(compiled), want, rtol=1e-5)


@pytest.mark.parametrize("transform", [trnx.jacfwd, trnx.jacrev])
def test_outputs_that_do_not_depend_on_the_input(transform: Any) -> None:
    jac = transform(lambda x: (tnp.ones(2), x[:1], 1.5))(X)
    assert [j.shape for j in jac] == [(2, 3), (1, 3), (3,)]
    assert not np.asarray(jac[0]).any()
    assert transform(lambda x: x * 1.0)(np.zeros(0, np.float32)).shape == (0, 0)


ERRORS = [
    (
        lambda t: t(lambda x: x)(np.arange(3)),
        TypeError,
        "needs a float input, but x has type i64[3]",
    ),
    (lambda t: t(lambda x: {"n": x > 0})(X), TypeError, "output['n'] of <lambda> has type bool[3]"),
    (lambda t: t(lambda x: x)(X + 1j), TypeError, "needs real inputs, but x has type c64[3]"),
    (lambda t: t(lambda x: x, argnums=1)(X), TypeError, "argnums 1 but 1 positional arguments"),
    (lambda t: t(lambda x: x, has_aux=True)(X), TypeError, "Return a pair (output, aux)"),
]


@pytest.mark.parametrize("transform", [trnx.jacfwd, trnx.jacrev])
@pytest.mark.parametrize(("use", "kind", "text"), ERRORS, ids=range(len(ERRORS)))
def test_error_texts(use: Any, kind: type[Exception], text: str, transform: Any) -> None:
    with pytest.raises(kind) as error:
        use(transform)
    assert text in str(error.value)
    assert "test_jacobians.py:" in str(error.value)


# ---------------------------------------------------------------- associative_scan
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_prefixes(size: int, reverse: bool) -> None:
    """An operation that is associative but not commutative: affine maps."""
    rng = np.random.default_rng(size)
    a, b = rng.uniform(0.5, 1.5, (2, 2, size)).astype(np.float32)

    def compose(f: Any, g: Any) -> Any:
        return {"a": f["a"] * g["a"], "b": f["b"] * g["a"] + g["b"]}

    found = lax.associative_scan(compose, {"a": tnp.asarray(a), "b": tnp.asarray(b)}, reverse, -1)
    want: list[Any] = []
    order = range(size - 1, -1, -1) if reverse else range(size)
    for i in order:
        item = {"a": a[:, i], "b": b[:, i]}
        want.append(compose(want[-1], item) if want else item)
    if reverse:
        want.reverse()
    for name in "ab":
        expected = np.stack([w[name] for w in want], 1) if want else np.zeros((2, 0), np.float32)
        np.testing.assert_allclose(np.asarray(found[name]), expected, rtol=1e-5)


def test_prefixes_have_derivatives() -> None:
    x = tnp.asarray(np.linspace(0.5, 1.5, 5, dtype=np.float32))
    found = trnx.grad(lambda v: lax.associative_scan(lambda a, b: a * b, v).sum())(x)
    want = jax.grad(lambda v: jnp.cumprod(v).sum())(np.asarray(x))
    np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda: lax.associative_scan(tnp.add, [X, X[:2]]), "got sizes [3, 2] along axis 0"),
        (lambda: lax.associative_scan(tnp.add, X, axis=1), "runs along axis 1 of elems"),
        (lambda: lax.associative_scan(lambda a, b: a > b, X), "changes the type of its operands"),
    ],
)
def test_prefix_errors(use: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError) as error:
        use()
    assert text in str(error.value)
    assert "test_jacobians.py:" in str(error.value)
