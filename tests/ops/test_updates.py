"""x.at[...] against jax.numpy: every method, index arrays of several axes, masks, modes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx.core import DTypeError, ShapeError

X = np.random.default_rng(0).uniform(0.5, 2, (4, 5, 6)).astype(np.float32)
A, B = np.array([0, 2, -1]), np.array([[1], [3]])

INDICES: dict[str, Any] = {
    "int": 1,
    "array": A,
    "repeated": np.array([1, 1, 3]),
    "two": (A, A),
    "two broadcast": (A, B),
    "apart": (A, slice(None), A),
    "middle": (slice(None), A),
    "cut": (A, slice(1, 4)),
    "cut in front": (slice(1, 3), A),
    "strided": (slice(None), A, slice(0, 6, 2)),
    "backwards": (slice(None, None, -1), A),
    "int beside": (A, 2),
    "int in front": (1, slice(None), A),
    "scalar array": (np.int32(2),),
    "last two": (..., A, A),
    "out of range": np.array([1, 9, -7]),
}
METHODS = ("set", "add", "subtract", "multiply", "divide", "power", "min", "max")


def _methods(key: str) -> tuple[str, ...]:
    if key in ("array", "cut"):
        return METHODS
    # Which of several writes stays is not defined in JAX.
    return ("set", "multiply") if key != "repeated" else ("add", "multiply")


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("key", INDICES)
def test_methods_as_jax(key: str) -> None:
    """Values that fill the index, and a scalar."""
    index = INDICES[key]
    static = key != "out of range"
    own = index if static else tnp.asarray(index.astype(np.int32))
    want_shape = jnp.asarray(X)[index].shape
    values = np.random.default_rng(1).uniform(0.5, 2, want_shape).astype(np.float32)
    for method in _methods(key):
        for given in (values, 1.5) if key in ("array", "two") else (values,):
            got = getattr(tnp.asarray(X).at[own], method)(given)
            want = getattr(jnp.asarray(X).at[index], method)(given)
            np.testing.assert_allclose(
                np.asarray(got), want, rtol=1e-6, err_msg=f"{key} {method} {type(given)}"
            )


def test_compiled_and_traced_indices() -> None:
    """Traced index arrays, jitted: set, min and a window between others."""
    i = np.array([3, 0, 9, -1], np.int32)
    v = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)

    def ours(x: Any, i: Any, v: Any) -> Any:
        return x.at[i, 2].set(v), x.at[i].min(0.7), x.at[:, i[:2] % 5, 1:4].multiply(2.0)

    got = trnx.jit(ours)(X, i, v)
    want = jax.jit(ours)(X, i, v)
    for one, two in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(one), two, rtol=1e-6)


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_gradients_as_jax(method: str) -> None:
    """Derivatives to the array and to the values, with an index that is named twice for add."""
    index = np.array([2, 0, 3], np.int32) if method != "add" else np.array([2, 0, 2], np.int32)
    v = np.random.default_rng(2).uniform(0.5, 2, (3, 5, 6)).astype(np.float32)

    def ours(x: Any, v: Any) -> Any:
        return (getattr(x.at[index], method)(v) * X).sum()

    def theirs(x: Any, v: Any) -> Any:
        options = {"unique_indices": True} if method == "multiply" else {}
        return (getattr(x.at[index], method)(v, **options) * X).sum()

    got = trnx.grad(ours, (0, 1))(tnp.asarray(X), tnp.asarray(v))
    if method in ("min", "max"):  # JAX has no rule: the larger or smaller side takes it
        wins = np.less if method == "min" else np.greater
        kept = wins(v, X[index])
        want_x = X.copy()
        want_x[index] = np.where(kept, 0, X[index])
        want: Any = (want_x, np.where(kept, X[index], 0))
    else:
        want = jax.grad(theirs, (0, 1))(jnp.asarray(X), jnp.asarray(v))
    for one, two in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(one), two, rtol=1e-5)


@pytest.mark.usefixtures("by_references")
def test_set_twice_differentiates_the_write_that_stays() -> None:
    """Of two writes to one element the last stays, and only it has a derivative."""
    index = np.array([1, 1], np.int32)
    out = trnx.grad(lambda v: tnp.zeros(3).at[index].set(v).sum())(tnp.asarray([5.0, 7.0]))
    np.testing.assert_array_equal(np.asarray(out), [0.0, 1.0])


@pytest.mark.usefixtures("by_references")
def test_masks() -> None:
    """Masks update where they hold; of known values they also choose elements."""
    mask = X > 1
    x = tnp.asarray(X)
    for ours, theirs in (
        (x.at[mask].set(0), jnp.asarray(X).at[mask].set(0)),
        (x.at[tnp.asarray(mask)].add(1), jnp.asarray(X).at[mask].add(1)),
        (x.at[mask[:, 0, 0]].set(np.arange(6)), jnp.asarray(X).at[mask[:, 0, 0]].set(np.arange(6))),
        (x.at[mask].add(np.ones(mask.sum())), jnp.asarray(X).at[mask].add(1)),
        (x[mask], X[mask]),
        (x[:, mask[0, :, 0]], X[:, mask[0, :, 0]]),
    ):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    traced = trnx.jit(lambda x: x.at[x > 1].set(0))(x)
    np.testing.assert_array_equal(np.asarray(traced), np.where(mask, 0, X))
    with pytest.raises(DTypeError, match="where"):
        trnx.jit(lambda x: x[x > 1])(x)
    with pytest.raises(ShapeError, match="mask"):
        trnx.jit(lambda x: x.at[x > 1].set(tnp.ones(3)))(x)


@pytest.mark.usefixtures("by_references")
def test_modes() -> None:
    """get fills, set clips."""
    i = tnp.asarray(np.array([0, 9, -9], np.int32))
    x = tnp.asarray(X[:, 0, 0])
    got = np.asarray(x.at[i].get(mode="fill", fill_value=-1.0))
    np.testing.assert_array_equal(got, [X[0, 0, 0], -1, -1])
    assert np.isnan(np.asarray(x.at[i].get(mode="fill"))[1:]).all()
    np.testing.assert_array_equal(np.asarray(x.at[i].get()), X[[0, 3, 0], 0, 0])
    clipped = np.asarray(x.at[i[1:2]].set(5.0, mode="clip"))
    np.testing.assert_array_equal(clipped, [*X[:3, 0, 0], 5])
    assert np.asarray(x.at[i[1:]].set(5.0)).tolist() == X[:, 0, 0].tolist()
    with pytest.raises(ValueError, match="Use one of"):
        x.at[i].set(1.0, mode="wrap")


@pytest.mark.usefixtures("by_references")
def test_apply() -> None:
    """The function sees the elements once."""
    got = tnp.asarray(X).at[A, A].apply(tnp.exp)
    np.testing.assert_allclose(np.asarray(got), jnp.asarray(X).at[A, A].apply(jnp.exp), rtol=1e-6)
