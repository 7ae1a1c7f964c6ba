"""Cumulative operations beyond the table: long rows, special values, derivatives at zeros."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import trnx
from trnx.ops import functions as op
from trnx.runtime.convert import from_host

NumpyArray = np.ndarray[Any, Any]


def _run(name: str, x: NumpyArray, axis: int, reverse: bool = False) -> NumpyArray:
    function = trnx.jit(lambda a: getattr(op, name)(a, axis, reverse))
    return np.asarray(function(from_host(x)))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.uint8], ids=str)
@pytest.mark.parametrize("shape", [(2, 5000), (1, 2049)], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cummax"])
def test_long_rows(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Rows longer than a tile carry their last value on; integers wrap as NumPy's do."""
    x = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    if name == "cumsum":
        want = np.cumsum(x, 1, dtype=np.float64 if dtype == np.float32 else dtype)
    else:
        want = np.maximum.accumulate(x, 1)
    np.testing.assert_array_equal(_run(name, x, 1), want.astype(dtype))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_special_values_as_jax(name: str, reverse: bool) -> None:
    """Infinities and NaN spread as they do in JAX."""
    inf, nan = np.inf, np.nan
    x = np.array(
        [
            [1.0, -inf, 2.0, nan, 3.0, inf],
            [-inf, -inf, -2000.0, 1.0, 2000.0, 0.0],
            [inf, 1.0, -inf, 2.0, 0.0, -0.0],
        ],
        np.float32,
    )
    want = getattr(jax.lax, name)(x, axis=1, reverse=reverse)
    np.testing.assert_allclose(_run(name, x, 1, reverse), want, rtol=1e-6)


def test_product_rule_at_zeros() -> None:
    """Zeros in a running product leave the other derivatives finite and right."""
    x = np.array([2.0, 0.0, 3.0, 0.0, 5.0], np.float32)

    def total(a: Any) -> Any:
        return op.reduce_sum(op.cumprod(a, 0), (0,))

    got = np.asarray(trnx.grad(total)(from_host(x)))
    np.testing.assert_array_equal(got, [1.0, 8.0, 0.0, 0.0, 0.0])
