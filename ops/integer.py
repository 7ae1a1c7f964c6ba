"""Exact division with remainder, and bits.

``floor_divide`` and ``remainder`` follow Python: the quotient is rounded down and the remainder has
the sign of the divisor, exactly, whatever the hardware's division does. Integer division by zero
gives 0, and the smallest signed integer divided by -1 wraps to itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnx.ops import functions as op
from trnx.ops._factories import (
    BOOL,
    FLOAT,
    INTEGER,
    REAL,
    NumpyArray,
    binary,
    quiet,
    unary,
    wide,
)

Array = Any


# ---------------------------------------------------------------- division with remainder
@quiet
def _floor_divide(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    if np.asarray(x).dtype in FLOAT:
        return np.asarray(wide(lambda a, b: np.floor_divide(a, b))(x, y))
    return np.asarray(np.floor_divide(x, y))


@quiet
def _remainder(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    if np.asarray(x).dtype in FLOAT:
        return np.asarray(wide(np.remainder)(x, y))
    return np.asarray(np.remainder(x, y))


floor_divide_p = binary(
    "floor_divide",
    "Quotient rounded down, exact; an integer divided by 0 gives 0.",
    accepts=REAL,
    reference=_floor_divide,
    ranges=((-50.0, 50.0), (1.0, 9.0)),
    flops=4,
)
remainder_p = binary(
    "remainder",
    "What floor_divide leaves, with the sign of the divisor; an integer modulo 0 gives 0.",
    accepts=REAL,
    reference=_remainder,
    ranges=((7.1, 7.9), (2.1, 2.2)),
    skips={"huge": "the rest of an f32 quotient above 2**46 has no correct digit: NaN"},
    grad_order=1,
    flops=6,
)
remainder_p.def_jvp(
    lambda t, x, y, *, out: op.spread(t, out),
    lambda t, x, y, *, out: op.neg(op.mul(op.floor_divide(x, y), t)),
)

# ---------------------------------------------------------------- bits
and_p = binary("and", "Bits set in both.", accepts=INTEGER + BOOL, reference=np.bitwise_and)
or_p = binary("or", "Bits set in either.", accepts=INTEGER + BOOL, reference=np.bitwise_or)
xor_p = binary("xor", "Bits set in one only.", accepts=INTEGER + BOOL, reference=np.bitwise_xor)
not_p = unary("not", "Every bit inverted.", accepts=INTEGER + BOOL, reference=np.bitwise_not)


def _bits(x: NumpyArray) -> int:
    return 8 * np.asarray(x).dtype.itemsize


def _unsigned(x: NumpyArray) -> NumpyArray:
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def _outside(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """Where the shift amount is not in [0, bits): read as unsigned, negative amounts are large."""
    return np.asarray(_unsigned(y) >= _bits(x))


def _shift_left(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    shifted = np.left_shift(x, np.where(_outside(x, y), 0, y).astype(x.dtype))
    return np.where(_outside(x, y), 0, shifted).astype(x.dtype)


def _shift_right_logical(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    amount = np.where(_outside(x, y), 0, y).astype(_unsigned(x).dtype)
    shifted = np.right_shift(_unsigned(x), amount)
    return np.where(_outside(x, y), 0, shifted).astype(shifted.dtype).view(x.dtype)


def _shift_right_arithmetic(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    signed = np.asarray(x).view(f"i{x.dtype.itemsize}")
    amount = np.where(_outside(x, y), _bits(x) - 1, y).astype(signed.dtype)
    return np.asarray(np.right_shift(signed, amount)).view(x.dtype)


_AMOUNTS = (None, (0.0, 40.0))

shift_left_p = binary(
    "shift_left", "x << y; 0 for an amount outside [0, bits).", accepts=INTEGER,
    reference=_shift_left, ranges=_AMOUNTS,
)  # fmt: skip
shift_right_logical_p = binary(
    "shift_right_logical", "x >> y filling with 0; 0 for an amount outside [0, bits).",
    accepts=INTEGER, reference=_shift_right_logical, ranges=_AMOUNTS,
)  # fmt: skip
shift_right_arithmetic_p = binary(
    "shift_right_arithmetic", "x >> y filling with the sign bit, whatever the amount.",
    accepts=INTEGER, reference=_shift_right_arithmetic, ranges=_AMOUNTS,
)  # fmt: skip
