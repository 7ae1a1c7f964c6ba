"""from_jax: what it keeps of a JAX function, and what its errors say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trnx
from trnx.core import DTypeError, UnsupportedError
from trnx.interop.jax import RULES, from_jax
from trnx.interop.jax.registry import rule
from trnx.testing import count_compiles

ROOT = Path(__file__).resolve().parents[2]


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def same(got: Any, want: Any, bound: float = 2e-6) -> None:
    """Equal structure, dtypes and shapes, values within a bound."""
    mine, theirs = jax.tree.flatten(got), jax.tree.flatten(want)
    assert mine[1] == theirs[1]
    for x, y in zip(mine[0], theirs[0], strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(x, y, bound, bound)


def recurrent(x: Any) -> Any:
    """A scan, a loop with a condition, and a branch."""

    def step(carry: Any, item: Any) -> Any:
        return carry * 0.5 + item, jnp.sin(carry)

    carry, ys = jax.lax.scan(step, x[0], x, reverse=True)
    _, grown = jax.lax.while_loop(
        lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 1.25), (jnp.int32(0), carry)
    )
    return {"y": ys, "b": jax.lax.cond(grown.sum() > 0, lambda: grown * 2, lambda: grown - 1)}


def attention(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("qd,kd->qk", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("qk,kd->qd", weights, v)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "recurrent": (recurrent, (floats(6, 3),)),
    "attention": (attention, (floats(5, 4), floats(7, 4, seed=1), floats(7, 3, seed=2))),
    "logsumexp": (jax.scipy.special.logsumexp, (floats(4, 5),)),
    "indexing": (lambda x: (x[::2, 1], x[jnp.array([2, 0])], x.at[1].add(3.0)), (floats(4, 3),)),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), (floats(3, 8),)),
    "solve": (jnp.linalg.solve, (floats(4, 4), floats(4, 2, seed=1))),
    "conv": (
        lambda x, w: jax.lax.conv(x, w, (2, 1), "SAME"),
        (floats(2, 3, 8, 7), floats(4, 3, 3, 3, seed=1)),
    ),
    "running": (lambda x: (jnp.cumsum(x, 0), jnp.sort(x, 1)), (floats(5, 6),)),
    "complex": (lambda x: jnp.exp(1j * x) * (2 - 1j), (floats(3, 4),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    """Results have JAX's structure, dtypes and values."""
    function, args = FUNCTIONS[name]
    want = function(*map(jnp.asarray, args))
    same(from_jax(function)(*args), want, 2e-5 if name in ("solve", "conv") else 3e-6)


@pytest.mark.parametrize("name", ["attention", "logsumexp", "conv", "recurrent", "solve"])
def test_gradients(name: str) -> None:
    """Reverse mode of trnx through the imported program is that of JAX."""
    function, args = FUNCTIONS[name]
    if name == "recurrent":  # a while loop has no reverse derivative
        function = lambda x: jax.lax.scan(lambda c, i: (jnp.tanh(c + i), c), x[0], x)[1]  # noqa: E731
    numbers = tuple(range(len(args)))

    def loss(*values: Any) -> Any:
        return (function(*values) ** 2).sum()

    mine = trnx.grad(from_jax(loss), argnums=numbers)(*args)
    same(mine, jax.grad(loss, argnums=numbers)(*args), 1e-4)


def test_one_program_per_type() -> None:
    """A second call with equal types neither traces nor compiles."""
    traces = []

    def function(x: Any) -> Any:
        traces.append(1)
        return jnp.tanh(x) + 1

    imported = from_jax(function)
    imported(floats(3))
    with count_compiles() as count:
        imported(floats(3, seed=1))
    assert count() == 0 and len(traces) == 1
    imported(floats(4))
    assert len(traces) == 2


def test_custom_rules_are_kept() -> None:
    """Wrong derivatives on purpose: only the user's rules give them."""

    @jax.custom_vjp
    def scaled(x: Any, y: Any) -> Any:
        return x * 2 * y

    scaled.defvjp(
        lambda x, y: (x * 2 * y, (x, jnp.sin(y))),
        lambda saved, ct: (ct * 3 * saved[1], ct * saved[0]),
    )
    grads = trnx.grad(from_jax(lambda x, y: scaled(x, y)), argnums=(0, 1))(
        np.float32(2), np.float32(5)
    )
    np.testing.assert_allclose([float(g) for g in grads], [3 * np.sin(5), 2], 1e-6)

    @jax.custom_jvp
    def squared(x: Any, n: Any) -> Any:
        return x**2 * n

    @squared.defjvp
    def _rule(primals: Any, tangents: Any) -> Any:
        return squared(*primals), primals[0] * tangents[0] * 7

    assert float(trnx.grad(from_jax(lambda x, n: squared(x, n)))(np.float32(3), np.int32(2))) == 21
    batch = trnx.vmap(trnx.grad(from_jax(lambda x: squared(x, 2))))(floats(4))
    np.testing.assert_allclose(np.asarray(batch), 7 * floats(4), 1e-6)


def test_composes_with_transforms() -> None:
    """jit, vmap and grad of an imported function."""
    imported = from_jax(lambda x: jnp.sin(x) * x)
    x = floats(5)
    batch = trnx.jit(trnx.vmap(trnx.grad(imported)))(x)
    np.testing.assert_allclose(np.asarray(batch), np.cos(x) * x + np.sin(x), 2e-6, 2e-6)


def test_random_numbers_are_those_of_jax() -> None:
    """Bits, splits and folds of keys, old style and new style."""
    key = np.array([7, 11], np.uint32)

    def draw(key: Any) -> Any:
        one, two = jax.random.split(jax.random.fold_in(key, 3))
        return jax.random.bits(one, (4,), np.uint32), jax.random.bits(two, (2, 3), np.uint8)

    same(from_jax(draw)(key), draw(key), 0)

    def typed(seed: Any) -> Any:
        keys = jax.random.split(jax.random.key(seed), 3)
        return jax.vmap(lambda k: jax.random.bits(k, (2,), np.uint32))(keys[1:])

    same(from_jax(typed)(np.int32(5)), typed(np.int32(5)), 0)


def test_unsupported_primitive_names_the_line() -> None:
    """One error: the primitive, the user's line, a remedy."""

    def function(x: Any) -> Any:
        return jax.lax.igamma(x, x)

    with pytest.raises(UnsupportedError) as caught:
        from_jax(function)(floats(3))
    text = str(caught.value)
    assert "igamma" in text and "test_from_jax.py" in text and "function" in text


def test_refused_parameter_names_it() -> None:
    with pytest.raises(UnsupportedError, match="of some singular values"):
        from_jax(lambda x: jnp.linalg.svd(x, full_matrices=False, subset_by_index=(0, 1)))(
            floats(3, 3)
        )


def test_64_bit_arguments_need_64_bit_jax() -> None:
    imported = from_jax(lambda x: x + 1)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(DTypeError, match="jax_enable_x64"):
            imported(np.ones(3))
    finally:
        jax.config.update("jax_enable_x64", True)


def test_a_rule_is_entered_once() -> None:
    with pytest.raises(ValueError, match="has a rule already"):
        rule("add")(lambda site, x, y: x)
    assert callable(RULES["add"])


def test_importing_trnx_imports_no_jax() -> None:
    code = "import sys, trnx, trnx.numpy, trnx.interop; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
