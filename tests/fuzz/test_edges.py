"""Functions at the edges of their dtypes: extremes, infinities, NaN, zeros, denormals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import trnx
import trnx.numpy as tn

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
PAIRS = (
    "add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum", "less",
    "less_equal", "greater", "greater_equal", "equal", "not_equal", "bitwise_and", "bitwise_or",
    "bitwise_xor", "left_shift", "right_shift",
)  # fmt: skip
ONES = ("negative", "abs", "sign", "invert", "square")
REDUCTIONS = ("max", "min", "argmax", "argmin", "sum", "any", "all")

SPECIAL = np.array(
    [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1.2e-38, 3.4e38,
     -3.4e38, 1e20, 65504, 88.7, -88.7, -103.9, 100, -104, 123456.79, 16777217, 0.49999997]
)  # fmt: skip
# name -> ulps of the result's dtype, with one more where NumPy's own value rounds
FLOAT_FUNCTIONS = {
    "exp": 3, "exp2": 4, "expm1": 4, "tanh": 4, "log": 4, "log1p": 4, "sqrt": 2, "negative": 0,
    "abs": 0, "sign": 0, "floor": 0, "ceil": 0, "trunc": 0, "rint": 0, "square": 1, "isnan": 0,
    "isinf": 0, "isfinite": 0, "logical_not": 0,
}  # fmt: skip
FLOAT_PAIRS = {
    "add": 1, "subtract": 1, "multiply": 1, "maximum": 0, "minimum": 0, "less": 0, "equal": 0,
    "not_equal": 0, "greater_equal": 0, "power": 6,
}  # fmt: skip


def extremes(name: str) -> Any:
    """Integers around every place where a width, a sign or float32 would go wrong."""
    dtype = np.dtype({"i": "int", "u": "uint"}[name[0]] + name[1:])
    info = np.iinfo(dtype)
    half = 2 ** (info.bits // 2)
    values = {0, 1, 2, 3, 7, -1, -2, -7, info.min, info.min + 1, info.max, info.max - 1, half,
              half - 1, half + 1, -half, 2**24, 2**24 + 1, -(2**24) - 1, 2**31 - 1, 2**31, -(2**31),
              2**32 - 1, 46341}  # fmt: skip
    return np.array(sorted(v for v in values if info.min <= v <= info.max), dtype)


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact(name: str, device: str) -> None:
    """Every pair of extremes through every function, in one program, equals NumPy's result."""
    x = extremes(name)
    a, b = (m.ravel() for m in np.meshgrid(x, x))
    count = (b.astype(object) % np.iinfo(b.dtype).bits).astype(b.dtype)
    kept = b != 0
    with np.errstate(all="ignore"):
        wanted: dict[str, Any] = {}
        for function in PAIRS:
            left, right = (a, count) if "shift" in function else (a, b)
            if function in ("floor_divide", "remainder"):
                left, right = a[kept], b[kept]
            wanted[function] = getattr(np, function)(left, right)
        wanted |= {function: getattr(np, function)(x) for function in ONES}
        wanted |= {function: getattr(np, function)(x) for function in REDUCTIONS}
        wanted |= {to: x.astype(extremes(to).dtype) for to in INTEGERS} | {"bool": x.astype(bool)}

    def run(x: Any, a: Any, b: Any, count: Any, left: Any, right: Any) -> dict[str, Any]:
        got: dict[str, Any] = {}
        for function in PAIRS:
            pair = (a, count) if "shift" in function else (a, b)
            if function in ("floor_divide", "remainder"):
                pair = (left, right)
            got[function] = getattr(tn, function)(*pair)
        got |= {function: getattr(tn, function)(x) for function in (*ONES, *REDUCTIONS)}
        return got | {to: tn.astype(x, to) for to in (*INTEGERS, "bool")}

    with trnx.use_device(device):
        got = trnx.jit(run)(*map(tn.asarray, (x, a, b, count, a[kept], b[kept])))
    for function, value in wanted.items():
        result = np.asarray(got[function])
        np.testing.assert_array_equal(result, value.astype(result.dtype), function)


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_special_floats(dtype: Any, device: str) -> None:
    """Infinities, NaN, signs of zero and magnitudes at the ends of the range."""
    if device == "neuron" and dtype == np.float64:
        pytest.skip("computed in float32, which the float32 case covers")
    with np.errstate(all="ignore"):
        x = SPECIAL.astype(dtype)
        a, b = (m.ravel() for m in np.meshgrid(x, x))
        wide = [v.astype(np.float64) for v in (x, a, b)]
        wanted = {f: getattr(np, f)(wide[0]) for f in FLOAT_FUNCTIONS}
        wanted |= {f: getattr(np, f)(wide[1], wide[2]) for f in FLOAT_PAIRS}

    def run(x: Any, a: Any, b: Any) -> dict[str, Any]:
        got = {f: getattr(tn, f)(x) for f in FLOAT_FUNCTIONS}
        return got | {f: getattr(tn, f)(a, b) for f in FLOAT_PAIRS}

    with trnx.use_device(device):
        got = trnx.jit(run)(*map(tn.asarray, (x, a, b)))
    unit = float(ml_dtypes.finfo(dtype).eps)
    tiny = float(ml_dtypes.finfo(dtype).tiny)
    for function, value in wanted.items():
        result = np.asarray(got[function])
        with np.errstate(all="ignore"):
            rounded = value.astype(result.dtype).astype(np.float64)
            ulps = (FLOAT_FUNCTIONS | FLOAT_PAIRS)[function]
            near = np.abs(result.astype(np.float64) - rounded) <= ulps * unit * np.abs(rounded) + (
                tiny if ulps else 0.0
            )
        same = result.astype(np.float64) == rounded
        signs = np.signbit(result.astype(np.float64)) == np.signbit(rounded)
        both_nan = np.isnan(result.astype(np.float64)) & np.isnan(rounded)
        right = both_nan | (same & (signs | (rounded != 0))) | (near & ~same)
        wrong = np.flatnonzero(~right)[:5]
        assert not wrong.size, (function, wrong, result[wrong], rounded[wrong])


@pytest.mark.parametrize("shape", [10**20, 10**14, (2**40, 2**40)])
def test_more_memory_than_there_is(shape: Any) -> None:
    """Also where the number of bytes fits no machine word."""
    with pytest.raises(MemoryError, match=r"no memory for .* bytes \(at test_edges"):
        tn.zeros(shape)
