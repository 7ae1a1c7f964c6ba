"""Sorts beyond the table: special values and ties as in JAX, long rows, padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trnx
from trnx.ops import functions as op
from trnx.runtime.convert import from_host

NumpyArray = np.ndarray[Any, Any]


def _special(dtype: Any, size: int) -> NumpyArray:
    rng = np.random.default_rng(3)
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3.5], np.float32)
    return rng.choice(values, (3, size)).astype(dtype)


@pytest.mark.parametrize("size", [9, 200])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16], ids=str)
def test_special_values_as_jax(dtype: Any, size: int) -> None:
    """NaN last, zeros of both signs equal and in place, equal elements in order: bit for bit."""
    x = _special(dtype, size)
    got = trnx.jit(lambda a: op.sort((a, op.iota((3, size), 1)), 1))(from_host(x))
    want = jax.lax.sort((jnp.asarray(x), jax.lax.broadcasted_iota(np.int32, (3, size), 1)), 1)
    for ours, theirs in zip(got, want, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("k", [1, 8, 60])
def test_top_k_as_jax(k: int) -> None:
    """NaN is largest; the lower index wins among equals.

    JAX's top_k orders by sign bits, so that -NaN is smallest and -0.0 below 0.0; here, as in sort,
    NaN is NaN and zero is zero.
    """
    x = _special(np.float32, 200)
    x = np.where(np.isnan(x), np.float32(np.nan), x + np.float32(0))
    values, places = trnx.jit(lambda a: op.top_k(a, k, 1))(from_host(x))
    want_values, want_places = jax.lax.top_k(x, k)
    np.testing.assert_array_equal(np.asarray(values), want_values)
    np.testing.assert_array_equal(np.asarray(places), want_places)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64], ids=str)
@pytest.mark.parametrize("size", [3000, 60_000])
def test_long_rows(size: int, dtype: Any) -> None:
    """Rows of any length: sorted on chip up to what SBUF holds, by a counted host call beyond."""
    x = np.random.default_rng(0).integers(-(10**6), 10**6, size).astype(dtype)
    values, order = trnx.jit(lambda a: op.sort((a, op.iota((size,), 0)), 0))(from_host(x))
    expected = np.argsort(x, kind="stable")
    np.testing.assert_array_equal(np.asarray(order), expected)
    np.testing.assert_array_equal(np.asarray(values), x[expected])


def test_host_calls_only_where_rows_are_long() -> None:
    """A sort that fits SBUF is one kernel; a longer one is counted as a host call."""
    for size, fallbacks in ((3000, 0), (60_000, 1)):
        lowered = trnx.jit(lambda a: op.sort((a,), 0)).lower(from_host(np.zeros(size, np.float32)))
        text = lowered.as_text("tile")
        assert text.count("host_call") == fallbacks, text[:300]
