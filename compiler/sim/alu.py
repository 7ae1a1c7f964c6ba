"""ALU operators on arrays, and which arithmetic an instruction computes in.

``compute_dtype`` picks fp32, f64, an exact integer type, or raw bits; ``apply`` evaluates one
operator in it. Comparisons and logical operators give 1 or 0 in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim.cast import cast, is_integral
from trnx.compiler.tile import isa
from trnx.core.dtypes import bool_, float32, float64, int32, uint64

Array = NDArray[Any]
Binary = Callable[[Any, Any], Array]


def common_integer(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """The integer type that holds all of ``dtypes``; u64 with a signed type stays u64."""
    wide = np.result_type(*dtypes)
    if wide.kind == "b":
        return int32
    return wide if wide.kind in "iu" else uint64


def compute_dtype(
    dtypes: Sequence[np.dtype[Any]],
    destination: np.dtype[Any],
    ops: Sequence[str],
    *,
    native: bool,
    float_immediate: bool,
    exact_integer: bool,
) -> np.dtype[Any]:
    """The dtype an arithmetic instruction computes in.

    Args:
        dtypes: dtypes of the tile operands.
        destination: dtype of the destination.
        ops: names of the ALU operators applied.
        native: whether the target has f64 and 64-bit integers (``cpu``).
        float_immediate: whether an immediate operand is a Python float.
        exact_integer: whether ``isa.is_exact_integer`` holds on GpSimd.
    """
    if exact_integer:
        return destination
    if not native:
        return float32
    if float64 in dtypes or destination == float64:
        return float64
    integers = all(is_integral(d) for d in dtypes) and not float_immediate
    if integers and "divide" not in ops:
        return common_integer(dtypes)
    if integers:
        return float64 if any(d.itemsize == 8 for d in dtypes) else float32
    return float32


def operand(value: Any, dtype: np.dtype[Any]) -> Any:
    """A tile's values or a Python number as ``dtype``; integers wrap."""
    if isinstance(value, np.ndarray):
        return cast(value, dtype)
    if is_integral(dtype) and isinstance(value, int):
        bits = dtype.itemsize * 8
        wrapped = int(value) & ((1 << bits) - 1)
        return np.array(wrapped, np.dtype(f"u{dtype.itemsize}")).view(dtype)
    return np.array(value, dtype)


def _flag(function: Binary) -> Binary:
    def run(a: Any, b: Any) -> Array:
        return np.asarray(function(a, b)).astype(np.result_type(a, b))

    return run


def _divide(a: Any, b: Any) -> Array:
    return np.asarray(a / b)


def _power(a: Any, b: Any) -> Array:
    dtype = np.result_type(a, b)
    if not is_integral(dtype):
        return np.power(np.asarray(a, float64), np.asarray(b, float64)).astype(dtype)
    base, exponent = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    result = np.ones(base.shape, dtype)
    square, left = base.copy(), np.maximum(exponent, 0)
    while np.any(left):
        result = np.where(left & 1, result * square, result).astype(dtype)
        square, left = (square * square).astype(dtype), left >> 1
    # base ** -n is 0 unless the base is 1 or -1, whose powers do not depend on the sign of n.
    negative = exponent < 0
    unit = np.where(base == 1, 1, np.where(exponent & 1, -1, 1)).astype(dtype)
    is_unit = (base == 1) | ((base == dtype.type(-1)) if dtype.kind == "i" else False)
    return np.where(negative, np.where(is_unit, unit, 0), result).astype(dtype)


ARITHMETIC: dict[str, Binary] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": _power,
    "divide": _divide,
    "floordivide": np.floor_divide,
    "remainder": np.remainder,
    "equal": _flag(np.equal),
    "not_equal": _flag(np.not_equal),
    "less": _flag(np.less),
    "less_equal": _flag(np.less_equal),
    "greater": _flag(np.greater),
    "greater_equal": _flag(np.greater_equal),
    "logical_and": _flag(lambda a, b: (a != 0) & (b != 0)),
    "logical_or": _flag(lambda a, b: (a != 0) | (b != 0)),
    "logical_xor": _flag(lambda a, b: (a != 0) ^ (b != 0)),
    "logical_not": _flag(lambda a, _: a == 0),
}
"""Operators on values of one float or integer dtype. ``maximum`` and ``minimum`` give NaN when
either side is NaN; integer ``floordivide`` and ``remainder`` by zero give 0."""


def _shift(left: Array, count: Array, shift: Binary, filler: Any) -> Array:
    bits = left.dtype.itemsize * 8
    amount = count.astype(np.uint64)
    small = amount < bits
    safe = np.where(small, amount, 0).astype(left.dtype)
    return np.where(small, shift(left, safe), filler).astype(left.dtype)


def _arithmetic_shift(left: Array, count: Array) -> Array:
    signed = left.view(np.dtype(f"i{left.dtype.itemsize}"))
    filler = np.where(signed < 0, -1, 0).astype(signed.dtype)
    amount = count.view(np.dtype(f"u{count.dtype.itemsize}"))
    return _shift(signed, amount, np.right_shift, filler).view(left.dtype)


BITS: dict[str, Binary] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": lambda a, _: np.bitwise_not(a),
    "left_shift": lambda a, b: _shift(a, b, np.left_shift, 0),
    "right_shift": lambda a, b: _shift(a, b, np.right_shift, 0),
    "arithmetic_shift_right": _arithmetic_shift,
}
"""Operators on unsigned integers of the data's width. A shift count is taken as unsigned; counts of
the width or more give 0 (the sign for an arithmetic shift)."""


def apply(op: str, left: Any, right: Any, reverse: bool = False) -> Array:
    """``left op right`` for values of one compute dtype (``right op left`` when reversed)."""
    if reverse:
        left, right = right, left
    return np.asarray(ARITHMETIC[op](left, right))


def is_bitvec(ops: Sequence[str]) -> bool:
    """Whether the operators work on bits."""
    return bool(ops) and isa.ALU[ops[0]].kind == "bitvec"


def to_bits(value: Any, width: int) -> Array:
    """An operand as unsigned integers of ``width`` bytes: raw bits, or an integer cast."""
    unsigned = np.dtype(f"u{width}")
    if not isinstance(value, np.ndarray):
        if isinstance(value, float):
            raise TypeError("a bitwise operator takes no float immediate")
        return np.asarray(operand(int(value), unsigned))
    if value.dtype.itemsize == width:
        return np.ascontiguousarray(value).view(unsigned)
    return value.astype(unsigned)


def from_bits(bits: Array, data: np.dtype[Any], destination: np.dtype[Any]) -> Array:
    """Result bits, which have the width of ``data``, as the destination's dtype."""
    if data == bool_:
        bits = bits & 1
    if destination.itemsize == bits.dtype.itemsize and destination != bool_:
        return np.ascontiguousarray(bits).view(destination)
    signed = bits.view(data) if data.kind == "i" else bits
    return cast(signed, destination)
