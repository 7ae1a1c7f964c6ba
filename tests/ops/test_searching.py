"""searchsorted and interp against NumPy, at ties, ends, NaN and under transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx import config
from trnx.core import ShapeError

_RNG = np.random.default_rng(3)
QUERIES = np.array([-9, -2.5, -1, 0, 0.5, 1, 2, 3, 99, np.inf, -np.inf], np.float32)


def _sorted(count: int, nans: int = 0) -> np.ndarray[Any, Any]:
    """Ascending numbers with ties, then NaN."""
    numbers = np.sort(_RNG.integers(-3, 4, count).astype(np.float32))
    numbers[count - nans :] = np.nan
    return numbers


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("count", "nans"), [(0, 0), (1, 0), (2, 1), (7, 0), (8, 3), (100, 0)])
def test_searchsorted_equals_numpy(count: int, nans: int, side: str) -> None:
    """Every length from none, ties on both sides, NaN after every number."""
    a, v = _sorted(count, nans), np.append(QUERIES, np.float32(np.nan))
    got = np.asarray(tnp.searchsorted(tnp.asarray(a), tnp.asarray(v), side))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, np.searchsorted(a, v, side))


def test_searchsorted_of_integers_compiled() -> None:
    """int32 beyond 2^24, where float32 has gaps, and a length that is known at run time only."""
    a = np.array([2**24, 2**24 + 1, 2**24 + 3, 2**31 - 1], np.int32)
    v = np.array([[2**24 + 1, 2**24 + 2], [2**31 - 1, -(2**31)]], np.int32)
    found = trnx.jit(tnp.searchsorted)(a, v)
    np.testing.assert_array_equal(np.asarray(found), np.searchsorted(a, v))
    dynamic = trnx.jit(tnp.searchsorted, dynamic=True)
    for count in (1, 3, 4):
        np.testing.assert_array_equal(np.asarray(dynamic(a[:count], v)), a[:count].searchsorted(v))


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("ends", [{}, {"left": -7.0, "right": np.float32(5)}])
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_interp_equals_numpy(count: int, ends: dict[str, Any]) -> None:
    """Between points, on them, at steps, outside; no NaN is made on the way."""
    xp, fp = _sorted(count), _RNG.normal(size=count).astype(np.float32)
    x = np.concatenate([QUERIES[:-2], xp, _RNG.uniform(-4, 4, 30).astype(np.float32)])
    got = np.asarray(tnp.interp(tnp.asarray(x), tnp.asarray(xp), tnp.asarray(fp), **ends))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.interp(x, xp, fp, **ends), rtol=2e-6, atol=2e-6)
    assert np.isnan(np.asarray(tnp.interp(np.float32(np.nan), xp, fp)))


def test_interp_makes_no_nan_and_has_slopes() -> None:
    """A step in the points passes the NaN check; the gradient is the slope of the segment."""
    xp, fp = tnp.asarray([0.0, 1.0, 1.0, 3.0]), tnp.asarray([0.0, 2.0, 5.0, 1.0])
    with config.debug_nans(True), config.disable_jit(True):
        assert float(tnp.interp(0.5, xp, fp)) == 1.0
        slopes = [float(trnx.grad(lambda x: tnp.interp(x, xp, fp))(at)) for at in (0.5, 2.0, 9.0)]
    assert slopes == [2.0, -2.0, 0.0]


@pytest.mark.usefixtures("by_references")
def test_errors() -> None:
    """Ranks, lengths and names."""
    with pytest.raises(ShapeError, match=r"searchsorted in f32\[2,2\]"):
        tnp.searchsorted(tnp.ones((2, 2)), 1.0)
    with pytest.raises(ValueError, match="side='middle' is unknown"):
        tnp.searchsorted(tnp.ones(2), 1.0, "middle")
    with pytest.raises(ShapeError, match=r"between xp f32\[3\] and fp f32\[2\]"):
        tnp.interp(1.0, tnp.ones(3), tnp.ones(2))
    with pytest.raises(ShapeError, match=r"xp f32\[0\]"):
        tnp.interp(1.0, tnp.ones(0), tnp.ones(0))
