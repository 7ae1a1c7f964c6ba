"""Known surprises of array libraries, each with the value or error one would expect.

Every table entry runs compiled code: eagerly, and again inside jit where that can differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx.core.errors import BoundsError, DTypeError, IntegerRangeError, TrnxError
from trnx.runtime.array import DonatedError

NAN, INF = float("nan"), float("inf")
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def f32(*values: float) -> np.ndarray[Any, Any]:
    """A NumPy float32 vector."""
    return np.array(values, np.float32)


def i32(*values: int) -> np.ndarray[Any, Any]:
    """A NumPy int32 vector."""
    return np.array(values, np.int32)


def same(got: Any, want: Any) -> None:
    """Equal shape, dtype and bits of sign; NaN equals NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)
    if got.dtype.kind == "f":
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


# ---------------------------------------------------------------- values: function, operands, want
VALUES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    # integers wrap like the hardware's, and only there
    "int32 wraps": (lambda x: x + 1, (i32(INT_MAX),), i32(INT_MIN)),
    "uint8 wraps": (lambda x: x - 1, (np.uint8([0]),), np.uint8([255])),
    "minus the smallest": (lambda x: (-x) + abs(x) * 0, (i32(INT_MIN),), i32(INT_MIN)),
    "small sums are int32": (lambda x: x.sum(), (np.int8([100] * 4),), np.int32(400)),
    "small running sums too": (
        lambda x: tnp.cumsum(x), (np.int8([100] * 3),), i32(100, 200, 300),
    ),
    "a sum of bools counts": (lambda x: x.sum(), (np.ones(300, bool),), np.int32(300)),
    "a mean of large ints": (lambda x: x.mean(), (i32(INT_MAX, INT_MAX),), np.float32(2**31)),
    "floor division": (lambda x: x // 2, (i32(-7, 7),), i32(-4, 3)),
    "the sign of a remainder": (lambda x, y: x % y, (i32(-7, 7), i32(2, -2)), i32(1, -1)),
    "division by 0": (lambda x: (x // 0) + (x % 0), (i32(7, INT_MIN),), i32(0, 0)),
    "the smallest by -1": (lambda x, y: x // y, (i32(INT_MIN), i32(-1)), i32(INT_MIN)),
    "its remainder": (lambda x, y: x % y, (i32(INT_MIN), i32(-1)), i32(0)),
    "true division of ints": (lambda x: x / 2, (i32(1, -1),), f32(0.5, -0.5)),
    "shifts past the width": (lambda x, y: x >> y, (i32(-8, 8), i32(40, 40)), i32(-1, 0)),
    "left shifts past the width": (lambda x, y: x << y, (i32(1, 1), i32(31, 32)), i32(INT_MIN, 0)),
    "neighbours above 2^24": (lambda x, y: x == y, (i32(2**24 + 1), i32(2**24)), np.array([False])),
    "argmax above 2^24": (lambda x: x.argmax(), (i32(2**24, 2**24 + 1),), np.int32(1)),
    "large unsigned compare": (
        lambda x, y: x > y, (np.uint32([2**32 - 1]), np.uint32([1])), np.array([True]),
    ),
    "int64 is 64 bits wide": (
        lambda x: x * 3 + 1, (np.array([2**53 + 1]),), np.array([3 * 2**53 + 4]),
    ),
    "float to int saturates": (
        lambda x: x.astype(tnp.int32), (f32(NAN, INF, -INF, 3e9, -1.9),),
        i32(0, INT_MAX, INT_MIN, INT_MAX, -1),
    ),
    "float to uint8": (
        lambda x: x.astype(tnp.uint8), (f32(NAN, 300, -1, 1.9),), np.uint8([0, 255, 0, 1]),
    ),
    "NaN is true": (lambda x: x.astype(bool), (f32(NAN, 0, -0.0),), np.array([True, False, False])),
    # NaN is never lost
    "argmax finds NaN": (lambda x: x.argmax(), (f32(1, NAN, 3, NAN),), np.int32(1)),
    "argmin finds NaN": (lambda x: x.argmin(), (f32(1, NAN, -3),), np.int32(1)),
    "argmax of -inf": (lambda x: x.argmax(), (f32(-INF, -INF),), np.int32(0)),
    "max of NaN": (lambda x: x.max(), (f32(1, NAN),), np.float32(NAN)),
    "maximum of NaN": (lambda x, y: tnp.maximum(x, y), (f32(1, NAN), f32(NAN, 1)), f32(NAN, NAN)),
    "clip keeps NaN": (lambda x: tnp.clip(x, -1, 1), (f32(NAN, 5, -5),), f32(NAN, 1, -1)),
    "0 times inf": (lambda x: x * 0, (f32(INF, NAN, 1),), f32(NAN, NAN, 0)),
    "x - x": (lambda x: x - x, (f32(INF, NAN, 1),), f32(NAN, NAN, 0)),
    "x / x": (lambda x: x / x, (f32(0, INF, 1),), f32(NAN, NAN, 1)),
    "x == x": (lambda x: x == x, (f32(0, NAN),), np.array([True, False])),
    "a zero row does not hide NaN": (
        lambda x, y: x @ y, (np.zeros((1, 2), np.float32), f32(NAN, 1)), f32(NAN),
    ),
    # the sign of zero
    "-0": (lambda x: -x, (f32(0.0),), f32(-0.0)),
    "-0 + 0": (lambda x: x + 0.0, (f32(-0.0),), f32(0.0)),
    "-0 - 0": (lambda x: x - 0.0, (f32(-0.0),), f32(-0.0)),
    "0 - x": (lambda x: 0.0 - x, (f32(0.0),), f32(0.0)),
    "x * -1": (lambda x: x * -1, (f32(0.0),), f32(-0.0)),
    "sqrt of -0": (lambda x: tnp.sqrt(x), (f32(-0.0),), f32(-0.0)),
    "ceil of -1/2": (lambda x: tnp.ceil(x), (f32(-0.5),), f32(-0.0)),
    "relu of -0": (lambda x: trnx.nn.relu(x), (f32(-0.0),), f32(0.0)),
    "round half to even": (
        lambda x: tnp.round(x), (f32(0.5, 1.5, 2.5, -0.4),), f32(0, 2, 2, -0.0),
    ),
    # nothing at all
    "sum of nothing": (lambda x: x.sum(), (f32(),), np.float32(0)),
    "product of nothing": (lambda x: x.prod(), (f32(),), np.float32(1)),
    "mean of nothing": (lambda x: x.mean(), (f32(),), np.float32(NAN)),
    "all of nothing": (lambda x: x.all(), (f32(),), np.True_),
    "any of nothing": (lambda x: x.any(), (f32(),), np.False_),
    "logsumexp of nothing": (lambda x: tnp.logsumexp(x), (f32(),), np.float32(-INF)),
    "softmax of nothing": (lambda x: trnx.nn.softmax(x), (f32(),), f32()),
    "a product over nothing": (
        lambda x, y: x @ y, (np.zeros((2, 0), np.float32), np.zeros((0, 1), np.float32)),
        np.zeros((2, 1), np.float32),
    ),
    "rows of nothing": (lambda x: x.max(axis=1), (np.zeros((0, 3), np.float32),), f32()),
    "an empty index": (lambda x: x[[]], (f32(1, 2),), f32()),
    "a slice past the end": (lambda x: x[1:9], (f32(1, 2),), f32(2)),
    # logsumexp and softmax at the ends of the range
    "logsumexp of -inf": (lambda x: tnp.logsumexp(x), (f32(-INF, -INF),), np.float32(-INF)),
    "logsumexp of inf": (lambda x: tnp.logsumexp(x), (f32(INF, 1),), np.float32(INF)),
    "softmax of large": (lambda x: trnx.nn.softmax(x), (f32(1e30, -1e30),), f32(1, 0)),
    "sigmoid of large": (lambda x: trnx.nn.sigmoid(x), (f32(-200, 200),), f32(0, 1)),
    "small numbers stay": (lambda x: x + 0.0, (f32(1e-40),), f32(1e-40)),
    "a variance far from 0": (lambda x: x.var(), (f32(1e6, 1e6 + 3),), np.float32(2.25)),
    "a mean of large f16": (
        lambda x: x.mean(), (np.full(4, 30000, np.float16),), np.float16(30000),
    ),
    # dynamic indices: clamped on reading, dropped on writing, negative from the end
    "a read past the end": (lambda x, i: x[i], (f32(1, 2), i32(5, -9, -1)), f32(2, 1, 2)),
    "an index of 2^32": (lambda x, i: x[i], (f32(1, 2), np.array([2**32])), f32(2)),
    "a uint8 index": (lambda x, i: x[i], (f32(1, 2), np.uint8([255])), f32(2)),
    "a write past the end": (lambda x, i: x.at[i].add(5), (f32(1, 2), i32(7)), f32(1, 2)),
    "repeated writes add up": (lambda x, i: x.at[i].add(5), (f32(1, 2), i32(1, 1)), f32(1, 12)),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_value(name: str) -> None:
    """Eager and compiled give the value one expects, bit for bit."""
    function, operands, want = VALUES[name]
    arrays = [tnp.asarray(operand) for operand in operands]
    same(function(*arrays), want)
    same(trnx.jit(function)(*arrays), want)


# ---------------------------------------------------------------- dtypes
BF16 = tnp.bfloat16
DTYPES: dict[str, tuple[Callable[[], Any], str]] = {
    "a Python float": (lambda: tnp.ones(1, BF16) * 2.0, "bfloat16"),
    "a Python int": (lambda: tnp.ones(1, tnp.int8) + 1, "int8"),
    "int times float": (lambda: tnp.ones(1, tnp.int32) * 0.5, "float32"),
    "int / int": (lambda: tnp.ones(1, tnp.int8) / tnp.ones(1, tnp.int8), "float32"),
    "bool times int": (lambda: tnp.ones(1, bool) * 2, "int32"),
    "a Python float through jit": (
        lambda: trnx.jit(lambda x, s: x * s)(tnp.ones(1, BF16), 2.0),
        "bfloat16",
    ),
    "a number that stays a number": (
        lambda: tnp.ones(1, BF16) * trnx.jit(lambda s: s * 2)(2.0),
        "bfloat16",
    ),
    "where of two numbers": (
        lambda: tnp.where(tnp.ones(1, bool), 1.0, 0.0) * tnp.ones(1, BF16),
        "bfloat16",
    ),
    "an array of a number": (lambda: tnp.asarray(2.0) * tnp.ones(1, BF16), "float32"),
    "a scalar array / 2, in jit": (
        lambda: trnx.jit(lambda x: x * (tnp.full((), 3) / 2))(tnp.ones(1)),
        "float32",
    ),
    "int32 array from a list": (lambda: tnp.asarray([1, 2]), "int32"),
    "float32 array from a list": (lambda: tnp.asarray([1, 2.5]), "float32"),
    "a NumPy array keeps its dtype": (lambda: tnp.asarray(np.arange(2)), "int64"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtype(name: str) -> None:
    """Python numbers never widen an array; arrays of numbers are arrays."""
    function, want = DTYPES[name]
    assert function().dtype.name == want


def _assign(x: Any) -> Any:
    x[0] = 5
    return x


_INT8 = np.zeros(2, np.int8)
_X, _I = f32(1, 2), i32(1, 2)
ERRORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = {
    "300 + int8": (lambda x: x + 300, (_INT8,), IntegerRangeError, "300 does not fit into i8"),
    "-1 + uint8": (lambda x: x + -1, (np.uint8([1]),), IntegerRangeError, "-1 does not fit"),
    "300 into int8": (lambda x: x.at[0].set(300), (_INT8,), IntegerRangeError, "300 does not fit"),
    "1.7 into ints": (
        lambda x: x.at[0].set(1.7), (_I,), DTypeError, r"f32\[\]~ do not go into i32",
    ),
    "floats added to ints": (
        lambda x, y: x.at[i32(0)].add(y), (_I, _X), DTypeError, "without loss",
    ),
    "bool - bool": (lambda x: x - x, (np.ones(1, bool),), DTypeError, "logical_xor"),
    "int ** -1": (lambda x: x**-1, (_I,), DTypeError, "negative exponent -1"),
    "max of nothing": (lambda x: x.max(), (f32(),), ValueError, "over no elements"),
    "argmax of nothing": (lambda x: x.argmax(), (f32(),), ValueError, "empty"),
    "a static index": (lambda x: x[2], (_X,), BoundsError, "Index 2 is out of range.*size 2"),
    "a static index array": (lambda x: x[np.array([-3])], (_X,), BoundsError, "Index -3"),
    "a float index": (lambda x: x[1.0], (_X,), DTypeError, "cannot be an index"),
    "too many indices": (lambda x: x[0, 0], (_X,), BoundsError, "1 axes got 2 indices"),
    "assignment": (_assign, (_X,), TypeError, r"x = x\.at\[index\]\.set\(value\)"),
    "hash": (hash, (_X,), TypeError, "hash"),
    "a ragged list": (lambda x: tnp.asarray([[1, 2], [3]]), (_X,), ValueError, "ragged"),
    "a masked array": (
        lambda x: x * np.ma.array(_X, mask=[0, 1]), (_X,), TypeError, r"no mask.*x\.filled",
    ),
    "two devices": (
        lambda x: x + trnx.device_put(_X, "cpu"), (_X,), TrnxError, "device_put|on cpu and on",
    ),
    "an empty range": (
        lambda x: trnx.random.randint(trnx.random.key(0), (2,), 3, 3), (_X,), ValueError, "empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("how", [lambda f: f, trnx.jit], ids=["eager", "jit"])
def test_error(name: str, how: Callable[..., Any]) -> None:
    """What has no right value is an error, eagerly and under jit, on this file's line."""
    function, operands, kind, text = ERRORS[name]
    with pytest.raises(kind, match=f"(?s){text}") as caught:
        how(function)(*map(tnp.asarray, operands))
    assert "test_footguns.py" in str(caught.value)


# ---------------------------------------------------------------- value semantics
@pytest.mark.parametrize(
    "make",
    [
        tnp.asarray,
        trnx.device_put,
        trnx.from_dlpack,
        tnp.ravel,
        tnp.squeeze,
        tnp.positive,
        trnx.jit(lambda x: x),
        lambda a: trnx.vjp(lambda x: x, a)[0],
        lambda a: tnp.broadcast_arrays(a, a)[1],
    ],
    ids=[
        "asarray",
        "device_put",
        "from_dlpack",
        "ravel",
        "squeeze",
        "positive",
        "jit",
        "vjp",
        "tuple",
    ],
)
def test_writable_memory_is_copied(make: Callable[[Any], Any]) -> None:
    """What NumPy writes later is not seen, also by functions that have nothing to compute."""
    a = f32(1, 2)
    x = make(a)
    a[0] = 9
    assert isinstance(x, trnx.Array)
    same(x, f32(1, 2))


def test_captured_array_survives_donation() -> None:
    """A donated argument that a closure also holds is copied, not overwritten."""
    x = tnp.asarray(f32(1, 2))
    add = trnx.jit(lambda y: y + x)
    same(add(tnp.asarray(f32(1, 1))), f32(2, 3))
    trnx.jit(lambda v: v * 2, donate_argnums=0)(x)
    same(add(tnp.asarray(f32(1, 1))), f32(2, 3))


def test_donated_array_cannot_be_read() -> None:
    """The error names the donation, and the new value is right."""
    x = tnp.asarray(f32(1, 2))
    same(trnx.jit(lambda v: v * 2, donate_argnums=0)(x), f32(2, 4))
    with pytest.raises(DonatedError, match="donated"):
        x + 1


def test_equal_statics_of_other_types_are_other_programs() -> None:
    """1 == 1.0 == True, yet each makes a program of its own."""
    scale = trnx.jit(lambda x, by: x * by[0], static_argnums=1)
    ints = tnp.asarray(i32(3))
    assert [scale(ints, (by,)).dtype.name for by in (1, 1.0, True)] == ["int32", "float32", "int32"]


def test_closures_are_read_when_traced() -> None:
    """A captured Python value is part of the traced program: a new function, a new value."""
    results = [trnx.jit(lambda x, k=k: x * k)(tnp.asarray(f32(1))) for k in (2.0, 3.0)]
    same(results[0], f32(2))
    same(results[1], f32(3))
