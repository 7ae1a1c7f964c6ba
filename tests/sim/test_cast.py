"""The write casts: rounding, saturation, NaN, and what integers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trnx.compiler.sim.cast import cast, through_fp32, transfer
from trnx.core.dtypes import (
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
    uint64,
)

I8, U16 = np.dtype(np.int8), np.dtype(np.uint16)
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (I8, [0.5, 1.5, 2.5, -0.5, 127.4, 128.0, -129.0, INF, -INF, NAN], None),
        (uint8, [-1.0, 255.5, 254.5, 300.0, NAN], [0, 255, 254, 255, 0]),
        (int32, [2147483520.0, 2147483648.0, -2147483648.0, -3e9], None),
        (int64, [9.2e18, 9.3e18, -9.3e18], None),
        (uint64, [1.8e19, 1.9e19, -1.0], None),
    ],
)
def test_float_to_integer_rounds_to_even_and_saturates(
    dtype: np.dtype[Any], values: list[float], expected: list[int] | None
) -> None:
    """Against Python integers."""
    info = np.iinfo(dtype)
    if expected is None:
        expected = []
        for v in values:
            exact = float(np.float32(v))
            if exact != exact:
                expected.append(0)
            elif abs(exact) == INF:
                expected.append(int(info.max if exact > 0 else info.min))
            else:
                expected.append(min(max(round(exact), int(info.min)), int(info.max)))
    got = cast(np.array(values, float32), dtype)
    assert got.dtype == dtype
    assert got.tolist() == expected


@given(hnp.arrays(np.int64, 16))
def test_integers_keep_the_low_bits(values: np.ndarray) -> None:
    """Narrowing wraps, as two's complement does."""
    for dtype in (I8, U16, int32, uint8):
        bits = dtype.itemsize * 8
        wrapped = [v % (1 << bits) for v in values.tolist()]
        got = [v % (1 << bits) for v in cast(values, dtype).tolist()]
        assert got == wrapped


def test_anything_to_bool_is_nonzero() -> None:
    """NaN is true, -0.0 is false."""
    for dtype in (float32, bfloat16, float16, float8_e5m2):
        got = cast(np.array([0.0, -0.0, 2.0, NAN]).astype(float32).astype(dtype), bool_)
        assert got.tolist() == [False, False, True, True]
    assert cast(np.array([0, -3]), bool_).tolist() == [False, True]


@given(hnp.arrays(np.float64, 8, elements=st.floats(-1e30, 1e30)))
def test_f64_to_narrow_floats_goes_through_fp32(values: np.ndarray) -> None:
    """Two roundings, by definition."""
    with np.errstate(all="ignore"):
        for dtype in (bfloat16, float16, float8_e4m3):
            got, want = cast(values, dtype), values.astype(float32).astype(dtype)
            bits = f"u{dtype.itemsize}"
            np.testing.assert_array_equal(got.view(bits), want.view(bits))


def test_float8_overflow() -> None:
    """e4m3 and e5m2 have inf, e4m3fn only NaN."""
    big = np.array([1e6], float32)
    assert np.isinf(cast(big, float8_e4m3).astype(float32))[0]
    assert np.isinf(cast(big, float8_e5m2).astype(float32))[0]
    assert np.isnan(cast(big, float8_e4m3fn).astype(float32))[0]
    assert float(cast(np.array([240.0], float32), float8_e4m3)[0]) == 240.0


def test_copies_between_integers() -> None:
    """A DMA is exact; a compute engine's cast goes through fp32 and saturates."""
    a = np.array([2**24 + 1, 300, -5], int32)
    assert transfer(a, int64).tolist() == [2**24 + 1, 300, -5]
    assert transfer(a, uint8).tolist() == [1, 44, 251]
    assert through_fp32(a, uint8).tolist() == [255, 255, 0]
    assert through_fp32(a, int64).tolist() == [2**24, 300, -5]
    assert through_fp32(np.array([0.1], float64), float32)[0] == np.float32(0.1)
