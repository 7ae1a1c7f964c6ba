"""Sorting, counting and accumulation of trnx.numpy against NumPy and jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx.core import UnsupportedError

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 7, 3)).astype(np.float32)
INTS = RNG.integers(-5, 6, (4, 9)).astype(np.int32)
V = RNG.integers(0, 6, 40).astype(np.float32)
HOLES = np.where(RNG.random(X.shape) < 0.2, np.nan, X).astype(np.float32)
Call = Callable[[Any], Any]

SAME: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "sort": (lambda n: lambda x: n.sort(x), (X,)),
    "sort axis": (lambda n: lambda x: n.sort(x, axis=1), (X,)),
    "sort flat": (lambda n: lambda x: n.sort(x, axis=None), (X,)),
    "argsort": (lambda n: lambda x: n.argsort(x, axis=1, stable=True), (INTS,)),
    "lexsort": (lambda n: lambda a, b: n.lexsort((a, b)), (V, V[::-1].copy())),
    "median": (lambda n: lambda x: n.median(x), (X,)),
    "median axis": (lambda n: lambda x: n.median(x, axis=1, keepdims=True), (X,)),
    "median of integers": (lambda n: lambda x: n.median(x, axis=1), (INTS,)),
    "quantile": (lambda n: lambda x: n.quantile(x, 0.3, axis=(0, 2)), (X,)),
    "quantiles": (lambda n: lambda x: n.quantile(x, n.asarray([0.0, 0.4, 1.0]), axis=1), (X,)),
    "quantile with NaN": (lambda n: lambda x: n.quantile(x, 0.5, axis=1), (HOLES,)),
    "nanquantile": (lambda n: lambda x: n.nanquantile(x, 0.7, axis=1, keepdims=True), (HOLES,)),
    "nanmedian": (lambda n: lambda x: n.nanmedian(x, axis=0), (HOLES,)),
    "percentile": (lambda n: lambda x: n.percentile(x, 35.0, axis=2), (X,)),
    "searchsorted": (lambda n: lambda x: n.searchsorted(n.sort(x), x[:5]), (V,)),
    "digitize": (lambda n: lambda x: n.digitize(x, n.asarray([1.0, 2.5, 4.0])), (V,)),
    "digitize down": (
        lambda n: lambda x: n.digitize(x, n.asarray([4.0, 2.0, 1.0]), right=True), (V,),
    ),
    "histogram": (lambda n: lambda x: n.histogram(x, bins=6, range=(0.0, 5.0)), (V,)),
    "histogram density": (lambda n: lambda x: n.histogram(x, bins=4, density=True), (X,)),
    "histogram edges": (
        lambda n: lambda x: n.histogram(x, bins=n.asarray([0.0, 1.0, 3.0, 4.0]))[0], (V,),
    ),
    "cumsum": (lambda n: lambda x: n.cumsum(x, axis=1), (INTS,)),
    "cumprod": (lambda n: lambda x: n.cumprod(x, axis=0), (X,)),
    "nancumsum": (lambda n: lambda x: n.nancumsum(x, axis=1), (HOLES,)),
    "cumulative_sum": (
        lambda n: lambda x: n.cumulative_sum(x, axis=1, include_initial=True), (X,),
    ),
    "diff": (lambda n: lambda x: n.diff(x, n=2, axis=1), (X,)),
    "roll": (lambda n: lambda x: n.roll(x, 2, axis=1), (X,)),
}  # fmt: skip


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("key", SAME)
def test_same_as_numpy(key: str, jit: bool) -> None:
    """Values, shapes; eager by references, jitted natively."""
    make, arrays = SAME[key]
    function = make(tnp)
    got = trnx.jit(function)(*arrays) if jit else function(*map(tnp.asarray, arrays))
    want = make(np)(*arrays)
    gots, wants = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    for one, two in zip(gots, wants, strict=True):
        two = np.asarray(two)
        assert np.asarray(one).shape == two.shape
        np.testing.assert_allclose(np.asarray(one), two, rtol=2e-5, atol=2e-6)


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@pytest.mark.parametrize("method", METHODS)
def test_quantile_methods(method: str) -> None:
    """As NumPy; at an infinity the element itself, not NaN."""
    x = np.array([3.0, -5.0, 2.0, 9.0, 7.0, 1.0], np.float32)
    for q in (0.0, 0.2, 0.41, 0.5, 1.0):
        got = trnx.jit(lambda x, q=q: tnp.quantile(x, q, method=method))(x)
        np.testing.assert_allclose(np.asarray(got), np.quantile(x, q, method=method), rtol=1e-6)
    assert np.asarray(tnp.quantile(np.float32([1, np.inf]), 1.0, method=method)) == np.inf


def test_descending() -> None:
    """Equal elements keep their order when places are asked for."""
    np.testing.assert_array_equal(
        np.asarray(tnp.argsort(V, descending=True)), jnp.argsort(V, descending=True)
    )
    np.testing.assert_array_equal(np.asarray(tnp.sort(V, descending=True)), np.sort(V)[::-1])


def test_partition() -> None:
    """The kth is in place."""
    got = np.asarray(tnp.partition(V, 7))
    assert got[7] == np.partition(V, 7)[7]
    assert np.sort(got).tolist() == np.sort(V).tolist()
    with pytest.raises(ValueError, match="kth"):
        tnp.partition(V, 99)


def test_unique() -> None:
    """Elements, first places, inverse and counts; a fixed size in a trace cuts and fills."""
    x = np.append(V, [np.nan, np.nan]).astype(np.float32)
    got = tnp.unique(x, return_index=True, return_inverse=True, return_counts=True)
    want = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for one, two in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(one), two)
    for size in (3, 9):
        jitted = trnx.jit(lambda x, size=size: tnp.unique(x, size=size, return_counts=True))(V)
        expected = jnp.unique(V, size=size, return_counts=True)
        np.testing.assert_array_equal(np.asarray(jitted[0]), expected[0])
        if size > 6:
            np.testing.assert_array_equal(np.asarray(jitted[1]), expected[1])
    with pytest.raises(UnsupportedError, match="size="):
        trnx.jit(tnp.unique)(V)


def test_nonzero_and_bincount() -> None:
    """Places per axis, with and without a size; counts and sums."""
    flags = INTS > 2
    for one, two in zip(tnp.nonzero(flags), np.nonzero(flags), strict=True):
        np.testing.assert_array_equal(np.asarray(one), two)
    got = trnx.jit(lambda x: tnp.nonzero(x, size=20, fill_value=-1))(flags)
    want = jnp.nonzero(flags, size=20, fill_value=-1)
    for one, two in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(one), two)
    np.testing.assert_array_equal(np.asarray(tnp.argwhere(flags)), np.argwhere(flags))
    counted = V.astype(np.int32)
    np.testing.assert_array_equal(np.asarray(tnp.bincount(counted)), np.bincount(counted))
    got = trnx.jit(lambda x, w: tnp.bincount(x, w, length=4))(counted, V)
    np.testing.assert_allclose(np.asarray(got), np.bincount(counted, V)[:4])


def test_put_along_axis() -> None:
    """The inverse of take_along_axis."""
    places = np.argsort(X, axis=1)[:, :2]
    want = X.copy()
    np.put_along_axis(want, places, 9.0, axis=1)
    np.testing.assert_array_equal(np.asarray(tnp.put_along_axis(X, places, 9.0, 1)), want)


def test_dynamic_sizes() -> None:
    """Quantiles, sorts and running sums of padded arrays see the true size only."""
    functions: dict[str, Call] = {
        "median": tnp.median,
        "sort": tnp.sort,
        "argsort": tnp.argsort,
        "cumsum": tnp.cumsum,
        "last": lambda x: tnp.flip(tnp.cumprod(tnp.flip(x))),
    }
    dynamic = trnx.jit(lambda x: {k: f(x) for k, f in functions.items()}, dynamic=True)
    for n in (1, 5, 6, 9):
        x = RNG.normal(size=n).astype(np.float32)
        got = dynamic(x)
        assert np.asarray(got["median"]) == pytest.approx(np.median(x), rel=1e-6)
        np.testing.assert_array_equal(np.asarray(got["sort"]), np.sort(x))
        np.testing.assert_array_equal(np.asarray(got["argsort"]), np.argsort(x, kind="stable"))
        np.testing.assert_allclose(np.asarray(got["cumsum"]), np.cumsum(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            np.asarray(got["last"]), np.cumprod(x[::-1])[::-1], rtol=1e-5, atol=1e-6
        )


def test_gradient_of_median() -> None:
    """Half to each of the middle two."""
    got = np.asarray(trnx.grad(tnp.median)(tnp.asarray([4.0, 1.0, 3.0, 2.0])))
    np.testing.assert_array_equal(got, [0, 0, 0.5, 0.5])


def test_roll() -> None:
    """Several axes, and a shift that is traced."""
    np.testing.assert_array_equal(
        np.asarray(tnp.roll(X, (1, -2), (0, 1))), np.roll(X, (1, -2), (0, 1))
    )
    got = trnx.jit(lambda x, s: tnp.roll(x, s, axis=1))(X, np.int32(-9))
    np.testing.assert_array_equal(np.asarray(got), np.roll(X, -9, axis=1))


def test_numpy_functions_call_methods() -> None:
    """np.sum and its kin hand over to the methods; a real out= is refused."""
    x = tnp.asarray(X)
    for name in ("sum", "prod", "max", "min", "mean", "std", "var", "cumsum", "argmax"):
        got, want = getattr(np, name)(x), getattr(np, name)(X)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedError, match="immutable"):
        x.sum(out=np.zeros(()))
