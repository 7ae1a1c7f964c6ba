"""Conversions at the write of an instruction and of a DMA.

* float to integer: round to nearest even, saturate, NaN becomes 0;
* float to bool: non-zero (NaN too) becomes 1;
* f64 to a float of 16 or 8 bits rounds to fp32 first;
* integer to integer keeps the low bits; integer to float rounds to nearest even;
* float to float8: as ml_dtypes (e4m3 and e5m2 overflow to inf, e4m3fn to NaN).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.core.dtypes import bool_, float32, float64

Array = NDArray[Any]


def is_integral(dtype: np.dtype[Any]) -> bool:
    """Whether ``dtype`` is an integer or bool."""
    return dtype.kind in "iub"


def cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """``values`` as ``dtype`` by the rules of this module; the same array when nothing changes."""
    source = values.dtype
    if source == dtype:
        return values
    with np.errstate(all="ignore"):
        if is_integral(source):
            if dtype == bool_:
                return values != 0
            if is_integral(dtype) or dtype in (float32, float64):
                return values.astype(dtype)
            return values.astype(float32).astype(dtype)
        if dtype == bool_:
            return values.astype(float32) != 0 if source.itemsize < 4 else values != 0
        if is_integral(dtype):
            return _float_to_integer(values, dtype)
        if source == float64 and dtype != float32:
            values = values.astype(float32)
        return values.astype(dtype)


def _float_to_integer(values: Array, dtype: np.dtype[Any]) -> Array:
    rounded = np.rint(values.astype(float64))
    info = np.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    # high + 1 is a power of two, so both bounds are exact in f64 even for 64-bit integers.
    inside = (rounded >= low) & (rounded < float(high + 1))
    result = np.where(inside, rounded, 0.0).astype(dtype)
    result[rounded >= float(high + 1)] = high
    result[rounded < low] = low
    return result


def through_fp32(values: Array, dtype: np.dtype[Any]) -> Array:
    """The cast of a compute engine's copy: to fp32, then to ``dtype``; equal dtypes keep bits."""
    if values.dtype == dtype:
        return values
    if values.dtype == float64 or dtype == float64:
        return cast(cast(values, float64), dtype)
    return cast(cast(values, float32), dtype)


def transfer(values: Array, dtype: np.dtype[Any]) -> Array:
    """The cast of a DMA: exact between integers, else through fp32 (f64 where f64 takes part)."""
    if is_integral(values.dtype) and is_integral(dtype):
        return cast(values, dtype)
    return through_fp32(values, dtype)
