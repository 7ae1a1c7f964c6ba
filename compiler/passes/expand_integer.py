"""Expansions for integers on NeuronCores, whose engines compute in fp32.

* 32-bit comparisons compare 16-bit halves, which are exact in fp32, unless one side is known to be
  small: rounding keeps order, so a comparison with a number below 2^24 is right as it is.
* 32-bit maximum and minimum compare, then select. 8- and 16-bit values are exact in fp32.
* 8- and 16-bit arithmetic runs in int32 (GpSimd, exact) and keeps the low bits.
* Quotients are estimated through the reciprocal and repaired by the exact remainder.

64-bit arithmetic is left alone here; the compiler makes a counted host call of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from trnx.compiler.passes.expand import (
    EXACT,
    Array,
    Choose,
    _halves,
    as_is,
    expansion,
    maker_of,
)
from trnx.compiler.targets import Target
from trnx.core import Aval, Literal, Params
from trnx.core.dtypes import (
    float32,
    int32,
    is_float,
    is_integer,
    is_signed_integer,
    uint32,
)
from trnx.core.tracing import RecordTracer
from trnx.ops import functions as op

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _is_small(x: Array) -> bool:
    """Whether every value of an integer operand is known to be below 2^24 in size."""
    if isinstance(x, RecordTracer):
        return _known_small(x)
    if isinstance(x, Literal):
        return abs(int(x.value)) < EXACT
    return abs(int(x)) < EXACT


def _known_small(x: RecordTracer) -> bool:
    """Looks at the equation that made the value: an index ramp, or a cast of a short integer."""
    made = maker_of(x)
    if made is None:
        return False
    name = made.primitive.name
    if name == "iota":
        size = made.params["shape"][made.params["axis"]]
        return isinstance(size, int) and size <= EXACT
    if name == "convert":
        source = made.inputs[0].aval.dtype
        return source.kind in "biu" and source.itemsize <= 2
    if name == "and" and any(
        isinstance(a, Literal) and 0 <= int(a.value) < EXACT for a in made.inputs
    ):
        return True
    if name not in ("broadcast", "reshape", "transpose", "slice", "reverse"):
        return False
    origin = made.inputs[0]
    if isinstance(origin, Literal):
        return abs(int(origin.value)) < EXACT
    return _known_small(RecordTracer(x._trace, origin, x.source))


def _is_plain(target: Target, dtype: Any) -> bool:
    """Whether instructions on this dtype need no help."""
    return target.native_i64 or not is_integer(dtype) or dtype.itemsize == 8


# Comparison -------------------------------------------------------------------------------------


def _compare(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        dtype = avals[0].dtype
        if _is_plain(target, dtype) or dtype.itemsize <= 2:
            return None

        def compare(x: Array, y: Array) -> Array:
            if _is_small(x) or _is_small(y):
                return as_is(name, x, y)
            if name in ("eq", "ne"):
                # No bit pattern but 0 becomes 0 in fp32.
                return as_is(name, op.bitwise_xor(x, y), dtype.type(0))
            return as_is(name, _difference(x, y), float32.type(0))

        return compare

    return choose


def _difference(x: Array, y: Array) -> Array:
    """An fp32 number with the sign of x - y: 2^17·(high halves) + (low halves) cannot cancel."""
    high_x, low_x = _halves(x)
    high_y, low_y = _halves(y)
    return op.add(op.mul(op.sub(high_x, high_y), 131072.0), op.sub(low_x, low_y))


for _name in COMPARISONS:
    expansion(_name)(_compare(_name))


def _extremum(name: str, wins: Callable[[Array, Array], Array]) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        dtype = avals[0].dtype
        if _is_plain(target, dtype) or dtype.itemsize <= 2:
            return None
        return lambda x, y: op.select(wins(x, y), x, y)

    return choose


expansion("max")(_extremum("max", op.gt))
expansion("min")(_extremum("min", op.lt))


# Short arithmetic -------------------------------------------------------------------------------


def _short(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        dtype = avals[0].dtype
        if _is_plain(target, dtype) or dtype.itemsize > 2:
            return None

        def run(*operands: Array) -> Array:
            wide = [op.convert(x, int32) for x in operands]
            return op.convert(as_is(name, *wide), dtype)

        return run

    return choose


for _name in ("add", "sub", "mul", "neg"):
    expansion(_name)(_short(_name))


# Shifts -----------------------------------------------------------------------------------------


@expansion("shift_right_arithmetic")
def _choose_arithmetic_shift(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    dtype = avals[0].dtype
    if _is_plain(target, dtype):
        return None
    if dtype.itemsize <= 2:

        def narrow(x: Array, y: Array) -> Array:
            bits = 8 * dtype.itemsize
            signed = x if is_signed_integer(dtype) else _as_signed(x, bits)
            count = op.bitwise_and(op.convert(y, int32), (1 << bits) - 1)
            count = op.select(op.gt(count, bits - 1), bits - 1, count)
            return op.convert(_shift(op.convert(signed, int32), count), dtype)

        return narrow

    def wide(x: Array, y: Array) -> Array:
        signed, count = op.convert(x, int32), op.convert(y, int32)
        outside = op.bitwise_or(op.lt(count, 0), op.gt(count, 31))
        return op.convert(_shift(signed, op.select(outside, 31, count)), dtype)

    return wide


def _as_signed(x: Array, bits: int) -> Array:
    wide = op.convert(x, int32)
    half = 1 << (bits - 1)
    return op.sub(op.bitwise_xor(wide, half), half)


def _shift(x: Array, count: Array) -> Array:
    """int32 x >> count for 0 <= count < 32: logical shift, then the sign bit is carried up."""
    sign = op.shift_right_logical(op.full(op.shape_of(count), -(2**31), int32), count)
    if op.shape_of(sign) != op.shape_of(x):
        sign = op.spread(sign, x)
    return op.sub(op.bitwise_xor(op.shift_right_logical(x, count), sign), sign)


# Division ---------------------------------------------------------------------------------------


def _division(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        dtype = avals[0].dtype
        if target.native_i64 or not (is_integer(dtype) or is_float(dtype)) or dtype.itemsize == 8:
            return None
        if is_float(dtype):
            divide: Callable[..., tuple[Array, Array]] = _divide_all_floats
        elif dtype.itemsize <= 2:
            divide = _divide_short
        else:
            divide = _divide_words

        def run(x: Array, y: Array) -> Array:
            quotient, rest = divide(x, y)
            return op.convert(quotient if name == "floor_divide" else rest, dtype)

        return run

    return choose


for _name in ("floor_divide", "remainder"):
    expansion(_name)(_division(_name))


def _paired(x: Array, y: Array) -> tuple[Array, Array]:
    """Both operands with the axes of the result."""
    if op.shape_of(x) == op.shape_of(y):
        return x, y
    return (op.spread(x, y), y) if not op.shape_of(x) else (x, op.spread(y, x))


def _split(x: Array) -> tuple[Array, Array]:
    """x as a sum of two numbers of 12 bits each (Veltkamp), so that their products are exact."""
    scaled = op.mul(x, 4097.0)
    high = op.sub(scaled, op.sub(scaled, x))
    return high, op.sub(x, high)


def _divide_floats(x: Array, y: Array) -> tuple[Array, Array]:
    """floor(x / y) and the rest of finite floats, exact while the quotient is below 2^24."""
    x, y = _paired(op.convert(x, float32), op.convert(y, float32))
    quotient, rest = _floor_and_rest(op.abs(x), op.abs(y))
    return _signed_floats(x, y, quotient, rest)


def _floor_and_rest(a: Array, b: Array) -> tuple[Array, Array]:
    """floor(a / b) and the rest for b > 0; the rest shows where the estimate is off by one."""
    quotient = op.floor(op.div(a, b))
    rest = _rest(a, b, quotient)
    step = op.sub(op.convert(op.ge(rest, b), float32), op.convert(op.lt(rest, 0.0), float32))
    return op.add(quotient, step), op.sub(rest, op.mul(step, b))


def _signed_floats(x: Array, y: Array, quotient: Array, rest: Array) -> tuple[Array, Array]:
    """From magnitudes: rounded down, the rest with the sign of y. Only the last step rounds."""
    differ = op.ne(op.lt(x, 0.0), op.lt(y, 0.0))
    crossed = op.bitwise_and(differ, op.ne(rest, 0.0))
    quotient = op.select(differ, op.neg(quotient), quotient)
    quotient = op.sub(quotient, op.convert(crossed, float32))
    rest = op.select(crossed, op.sub(op.abs(y), rest), rest)
    return quotient, op.select(op.lt(y, 0.0), op.neg(rest), rest)


# Quotients from here on are whole numbers in fp32, and a second division is needed for the rest.
_WHOLE = 2.0**23


def _divide_all_floats(x: Array, y: Array) -> tuple[Array, Array]:
    """floor(x / y) and the rest over all of f32.

    * Huge and infinite operands are scaled down first; an infinite divisor then acts like one far
      above every dividend: a finite x is its own rest, or lies one quotient below 0.
    * A quotient of 2^23 to 2^46 is taken in two divisions, so that the rest stays exact. Above, the
      quotient is that of the division and the rest is NaN: it would have no correct digit.
    """
    x, y = _paired(op.convert(x, float32), op.convert(y, float32))
    huge = op.ge(op.max(op.abs(x), op.abs(y)), 2.0**100)
    down = op.select(huge, float32.type(2.0**-64), float32.type(1.0))
    a = op.mul(op.abs(x), down)
    b = op.min(op.mul(op.abs(y), down), 2.0**110)
    ratio = op.div(a, b)
    large, endless = op.ge(ratio, _WHOLE), op.ge(ratio, _WHOLE * _WHOLE)
    first = op.select(large, op.select(endless, math.nan, ratio), 0.0)
    second, rest = _floor_and_rest(_rest(a, b, first), b)
    up = op.select(huge, float32.type(2.0**64), float32.type(1.0))
    quotient, rest = _signed_floats(x, y, op.add(first, second), op.mul(rest, up))
    # Division by 0 and quotients beyond every exact one; an infinite dividend has no quotient.
    quotient = op.select(endless, op.div(x, y), quotient)
    lost = op.bitwise_and(op.eq(op.abs(x), math.inf), op.gt(op.abs(y), 0.0))
    return op.select(lost, math.nan, quotient), rest


def _rest(x: Array, y: Array, quotient: Array) -> Array:
    q_high, q_low = _split(quotient)
    y_high, y_low = _split(y)
    rest = op.sub(x, op.mul(q_high, y_high))
    rest = op.sub(rest, op.mul(q_high, y_low))
    rest = op.sub(rest, op.mul(q_low, y_high))
    return op.sub(rest, op.mul(q_low, y_low))


def _divide_short(x: Array, y: Array) -> tuple[Array, Array]:
    """8- and 16-bit operands: every intermediate is exact in fp32."""
    zero = op.eq(y, 0)
    a, b = op.convert(x, float32), op.convert(op.select(zero, op.dtype_of(y).type(1), y), float32)
    quotient, rest = _divide_floats(a, b)
    none = op.spread(zero, quotient)
    dtype = op.dtype_of(x)
    whole = op.select(none, 0.0, quotient), op.select(none, 0.0, rest)
    # The quotient of the smallest number by -1 wraps.
    return op.convert(op.convert(whole[0], int32), dtype), op.convert(whole[1], int32)


def _divide_words(x: Array, y: Array) -> tuple[Array, Array]:
    """32-bit operands: unsigned long division by fp32 estimates that are never too large."""
    dtype = op.dtype_of(x)
    x, y = _paired(x, y)
    signed = is_signed_integer(dtype)
    zero = op.eq(y, 0)
    a = op.convert(op.abs(x) if signed else x, uint32)
    b = op.select(zero, uint32.type(1), op.convert(op.abs(y) if signed else y, uint32))
    inverse = op.mul(op.div(1.0, op.convert(b, float32)), 1.0 - 2.0**-21)
    quotient = op.full(op.shape_of(a), 0, uint32)
    rest = a
    for _ in range(3):
        part = op.convert(op.mul(op.convert(rest, float32), inverse), uint32)
        quotient, rest = op.add(quotient, part), op.sub(rest, op.mul(part, b))
    for _ in range(2):
        more = op.ge(rest, b)
        quotient = op.add(quotient, op.convert(more, uint32))
        rest = op.sub(rest, op.select(more, b, uint32.type(0)))
    if signed:
        quotient, rest = _signed_result(x, y, quotient, rest, b)
    nothing = dtype.type(0)
    return (
        op.select(zero, nothing, op.convert(quotient, dtype)),
        op.select(zero, nothing, op.convert(rest, dtype)),
    )


def _signed_result(
    x: Array, y: Array, quotient: Array, rest: Array, b: Array
) -> tuple[Array, Array]:
    """Quotient rounded down and remainder with the divisor's sign, from magnitudes."""
    quotient, rest = op.convert(quotient, int32), op.convert(rest, int32)
    differ = op.lt(op.bitwise_xor(x, y), 0)
    inexact = op.ne(rest, 0)
    crossed = op.bitwise_and(differ, inexact)
    quotient = op.select(differ, op.neg(quotient), quotient)
    quotient = op.sub(quotient, op.convert(crossed, int32))
    rest = op.select(crossed, op.sub(op.convert(b, int32), rest), rest)
    return quotient, op.select(op.lt(y, 0), op.neg(rest), rest)
