"""The NumPy builder of ``functions``: the transcendentals as the simulator computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.tile.functions import FUNCTIONS

Value = NDArray[Any]


class NumpyBuilder:
    """Evaluates ``VectorBuilder`` operations on arrays; fp32 ``fma`` is rounded from fp64."""

    def const(self, value: float) -> Value:
        return np.asarray(np.float32(value))

    def const_int(self, value: int) -> Value:
        return np.asarray(value & 0xFFFFFFFF, np.uint32).view(np.int32)

    def add(self, a: Value, b: Value) -> Value:
        return np.asarray(a + b)

    def sub(self, a: Value, b: Value) -> Value:
        return np.asarray(a - b)

    def mul(self, a: Value, b: Value) -> Value:
        return np.asarray(a * b)

    def div(self, a: Value, b: Value) -> Value:
        return np.asarray(a / b)

    def inverse(self, a: Value) -> Value:
        return np.asarray(np.float32(1) / a)

    def sqrt(self, a: Value) -> Value:
        return np.asarray(np.sqrt(a))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        # The product is exact in fp64; only the sum is rounded twice, rarely to another fp32.
        product = a.astype(np.float64) * b.astype(np.float64)
        return np.asarray((product + c.astype(np.float64)).astype(np.float32))

    def abs(self, a: Value) -> Value:
        return np.asarray(np.abs(a))

    def neg(self, a: Value) -> Value:
        return np.asarray(-a)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return np.asarray(np.copysign(magnitude, sign))

    def minimum(self, a: Value, b: Value) -> Value:
        return np.where(a < b, a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return np.where(a > b, a, b)

    def less(self, a: Value, b: Value) -> Value:
        return np.asarray(a < b)

    def equal(self, a: Value, b: Value) -> Value:
        return np.asarray(a == b)

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        return np.where(mask, a, b)

    def round(self, a: Value) -> Value:
        return np.asarray(np.rint(a))

    def scale_by_power(self, a: Value, n: Value) -> Value:
        exponent = np.where(np.isnan(n), 0, n).astype(np.int32)
        return np.asarray(np.ldexp(a, exponent)) + n * np.float32(0)

    def bits(self, a: Value) -> Value:
        return np.asarray(a).view(np.int32)

    def from_bits(self, a: Value) -> Value:
        return np.asarray(a).view(np.float32)

    def int_add(self, a: Value, b: Value) -> Value:
        return np.asarray(a + b)

    def int_and(self, a: Value, b: Value) -> Value:
        return np.asarray(a & b)

    def int_shift_left(self, a: Value, count: int) -> Value:
        return np.asarray(a << np.int32(count))

    def int_shift_right(self, a: Value, count: int) -> Value:
        return np.asarray(a >> np.int32(count))

    def int_to_float(self, a: Value) -> Value:
        return np.asarray(a.astype(np.float32))

    def float_to_int(self, a: Value) -> Value:
        return np.asarray(a.astype(np.int64).astype(np.int32))

    def widen(self, a: Value) -> Value:
        return np.asarray(a.astype(np.float64))

    def narrow(self, a: Value) -> Value:
        return np.asarray(a.astype(np.float32))

    def table(self, entries: Sequence[float], index: Value) -> Value:
        return np.asarray(entries, np.float64)[index]

    def where_any(self, mask: Value, rare: Callable[[], Value], usual: Value) -> Value:
        return np.where(mask, rare(), usual) if mask.any() else usual


_BUILDER = NumpyBuilder()


def apply(name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The function ``name`` of ``functions.FUNCTIONS`` on an fp32 array of any shape.

    Raises:
        KeyError: there is no function of that name.
    """
    function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        return np.asarray(function(_BUILDER, np.asarray(x, np.float32)), np.float32)
