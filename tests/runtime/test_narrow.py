"""float64 on device neuron: computed in float32, said once per call site; exact on device cpu."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from trnx.ops import functions as F
from trnx.runtime.array import Array
from trnx.runtime.convert import from_host
from trnx.runtime.jit import jit
from trnx.runtime.narrow import PrecisionWarning

THIRD = np.array([1 / 3, 2.0, -5.5])


def double(x: Array) -> Array:
    """One call site for several calls."""
    return F.add(x, x)


def test_values_are_those_of_float32_and_the_dtype_stays() -> None:
    """In and out are f64, the arithmetic is f32."""
    x = from_host(THIRD)
    with pytest.warns(PrecisionWarning, match=r"add \(at test_narrow.py:\d+ .*f64 arrays.*f32"):
        y = F.add(x, x)
    assert y.dtype == np.float64
    expected = (THIRD.astype(np.float32) * np.float32(2)).astype(np.float64)
    np.testing.assert_array_equal(np.asarray(y), expected)


def test_one_warning_per_call_site() -> None:
    """The same line is silent the second time; another line speaks again."""
    x = from_host(THIRD)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        double(x)
        double(x)
        F.mul(x, x)
    assert [str(w.message).split(" ")[0] for w in seen] == ["add", "mul"]


def test_device_cpu_computes_in_float64() -> None:
    """No warning (warnings are errors here), no rounding."""
    x = from_host(THIRD, device="cpu")
    np.testing.assert_array_equal(np.asarray(F.mul(x, x)), THIRD * THIRD)


def test_under_jit_with_captured_and_donated_arrays() -> None:
    """Captured f64 arrays are narrowed once; a donated f64 array is gone, whoever reused it."""
    k = from_host(np.full(3, 2.0))
    f = jit(lambda x, y: (F.mul(x, k), F.add(y, y)), donate_argnums=(0, 1))
    x, y = from_host(THIRD), from_host(np.ones(3, np.float32))
    with pytest.warns(PrecisionWarning, match="lambda"):
        a, b = f(x, y)
    assert (a.dtype, b.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(np.asarray(a), THIRD * 2, rtol=1e-7)
    assert x.is_donated()
    assert y.is_donated()


def test_a_cast_to_float32_gives_its_true_value() -> None:
    """f64 in, f32 out: one rounding."""
    x = from_host(THIRD)
    with pytest.warns(PrecisionWarning, match="f64 arrays"):
        y = F.convert(x, np.float32)
    np.testing.assert_array_equal(np.asarray(y), THIRD.astype(np.float32))
