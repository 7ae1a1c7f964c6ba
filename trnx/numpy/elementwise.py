"""Functions of one element at a time, with promotion and broadcasting by the Array API's rules."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from trnx.core import DTypeError, UnsupportedError, aval_of, dtypes, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_float,
    as_operand,
    broadcast,
    cast,
    common_type,
    operands_of,
    promote,
    type_of,
    types_text,
)
from trnx.ops import functions as op


# ---------------------------------------------------------------- arithmetic
def add(x: ArrayLike, y: ArrayLike) -> Array:
    """x + y; of two bools, logical or."""
    x, y = operands_of("add", x, y)
    return op.bitwise_or(x, y) if _are_bool(x) else op.add(x, y)


def subtract(x: ArrayLike, y: ArrayLike) -> Array:
    """x - y.

    Raises:
        DTypeError: two bools.
    """
    x, y = operands_of("subtract", x, y)
    if _are_bool(x):
        raise DTypeError(message("subtract of two bools", None, "Use logical_xor"))
    return op.sub(x, y)


def multiply(x: ArrayLike, y: ArrayLike) -> Array:
    """x * y; of two bools, logical and."""
    x, y = operands_of("multiply", x, y)
    return op.bitwise_and(x, y) if _are_bool(x) else op.mul(x, y)


def divide(x: ArrayLike, y: ArrayLike) -> Array:
    """x / y; integers divide as float32."""
    return op.div(*operands_of("divide", x, y, inexact=True))


true_divide = divide


def floor_divide(x: ArrayLike, y: ArrayLike) -> Array:
    """floor(x / y), exact; an integer divided by 0 gives 0."""
    return op.floor_divide(*_numbers("floor_divide", x, y))


def remainder(x: ArrayLike, y: ArrayLike) -> Array:
    """x - floor(x / y) * y, exact, with the sign of y; an integer modulo 0 gives 0."""
    return op.remainder(*_numbers("remainder", x, y))


mod = remainder


def divmod(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """(floor_divide, remainder)."""
    return floor_divide(x, y), remainder(x, y)


def _are_bool(x: Array) -> bool:
    return aval_of(x).dtype == dtypes.bool_


def _numbers(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    """Promoted operands; bools become int32."""
    if common_type(name, (x, y))[0] == dtypes.bool_:
        x, y = cast(x, dtypes.int32), cast(y, dtypes.int32)
    return operands_of(name, x, y)


# Exponents above this take the general power; repeated squaring would lose more accuracy.
_LARGEST_STATIC_EXPONENT = 64


def power(x: ArrayLike, y: ArrayLike) -> Array:
    """x ** y.

    A Python number with a whole value as exponent multiplies; anything else goes through exp and
    log in a float dtype.

    Raises:
        DTypeError: an integer to the power of an integer array or of a negative int, whose result
            may be no integer.
    """
    base = type_of(x)
    if isinstance(y, int | float) and not isinstance(y, bool | np.generic):
        whole = isinstance(y, int) or y.is_integer()
        dtype, _ = common_type("power", (x, y))
        if whole and -_LARGEST_STATIC_EXPONENT <= y <= _LARGEST_STATIC_EXPONENT:
            if dtypes.is_integer(dtype) and y < 0:
                raise DTypeError(
                    message(
                        f"power of {base} with the negative exponent {y} is no integer",
                        None,
                        "Cast the base to float32 first",
                    )
                )
            return op.integer_pow(cast(x, dtype, base.weak), int(y))
    if isinstance(y, int) and dtypes.is_inexact(base.dtype):
        y = float(y)
    a, b = operands_of("power", x, y)
    if not dtypes.is_float(aval_of(a).dtype):
        raise DTypeError(
            message(
                f"power of {types_text((x, y))} has no exact result in one integer type",
                None,
                "Cast the base to float32, or use a Python int as exponent",
            )
        )
    return op.pow(a, b)


def negative(x: ArrayLike) -> Array:
    """-x; unsigned integers wrap.

    Raises:
        DTypeError: bool.
    """
    if type_of(x).dtype == dtypes.bool_:
        raise DTypeError(message("negative of bool", None, "Use logical_not"))
    return op.neg(as_operand(x))


def positive(x: ArrayLike) -> Array:
    """x."""
    return as_operand(x)


def absolute(x: ArrayLike) -> Array:
    """|x| of real numbers; bools stay as they are."""
    return x if type_of(x).dtype == dtypes.bool_ else op.abs(as_operand(x))


abs = absolute


def sign(x: ArrayLike) -> Array:
    """-1, 0 or 1; NaN stays NaN."""
    return op.sign(as_operand(x))


def square(x: ArrayLike) -> Array:
    """x * x."""
    return multiply(x, x)


def reciprocal(x: ArrayLike) -> Array:
    """1 / x; integers divide as float32."""
    return divide(1, x)


def maximum(x: ArrayLike, y: ArrayLike) -> Array:
    """The larger one; NaN when either is NaN."""
    return op.max(*operands_of("maximum", x, y))


def minimum(x: ArrayLike, y: ArrayLike) -> Array:
    """The smaller one; NaN when either is NaN."""
    return op.min(*operands_of("minimum", x, y))


def clip(x: ArrayLike, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """`x` held inside [min, max]; None leaves that side open. NaN stays NaN."""
    out = x
    if min is not None:
        out = maximum(out, min)
    return out if max is None else minimum(out, max)


# ---------------------------------------------------------------- functions of reals
def _of_float(name: str, function: Callable[[Array], Array], doc: str) -> Callable[..., Array]:
    def wrapper(x: ArrayLike) -> Array:
        return function(as_float(name, x))

    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__doc__ = f"{doc} Integers are computed in float32."
    return wrapper


exp = _of_float("exp", op.exp, "e ** x.")
expm1 = _of_float("expm1", op.expm1, "e ** x - 1, accurate near 0.")
log = _of_float("log", op.log, "Natural logarithm; NaN below 0.")
log1p = _of_float("log1p", op.log1p, "log(1 + x), accurate near 0.")
sqrt = _of_float("sqrt", op.sqrt, "Square root; NaN below 0.")
tanh = _of_float("tanh", op.tanh, "Hyperbolic tangent.")
sin = _of_float("sin", op.sin, "Sine of radians.")
cos = _of_float("cos", op.cos, "Cosine of radians.")
tan = _of_float("tan", lambda x: op.div(op.sin(x), op.cos(x)), "Tangent of radians.")
exp2 = _of_float("exp2", lambda x: op.pow(2.0, x), "2 ** x.")
log2 = _of_float("log2", lambda x: op.mul(op.log(x), 1 / math.log(2)), "Logarithm to base 2.")
log10 = _of_float("log10", lambda x: op.mul(op.log(x), 1 / math.log(10)), "Logarithm to base 10.")


def _sinh(x: Array) -> Array:
    # expm1 keeps the small values that exp(x) - exp(-x) would cancel away.
    e = op.expm1(op.abs(x))
    half = op.mul(op.add(e, op.div(e, op.add(e, 1.0))), 0.5)
    large = op.mul(op.exp(op.sub(op.abs(x), math.log(2))), op.sign(x))
    return op.select(op.lt(op.abs(x), 20.0), op.mul(half, op.sign(x)), large)


def _cosh(x: Array) -> Array:
    half = op.exp(op.sub(op.abs(x), math.log(2)))
    return op.add(half, op.div(0.25, half))


sinh = _of_float("sinh", _sinh, "Hyperbolic sine.")
cosh = _of_float("cosh", _cosh, "Hyperbolic cosine.")


def logaddexp(x: ArrayLike, y: ArrayLike) -> Array:
    """log(exp(x) + exp(y)) without overflow."""
    a, b = operands_of("logaddexp", x, y, inexact=True)
    top, difference = op.max(a, b), op.sub(a, b)
    # Equal infinities have no difference; the sum is that infinity, or log 2 above a finite value.
    same = op.eq(a, b)
    distance = op.abs(op.select(same, 0.0, difference))
    return op.add(top, op.log1p(op.exp(op.neg(distance))))


def degrees(x: ArrayLike) -> Array:
    """Radians to degrees."""
    return op.mul(as_float("degrees", x), 180 / math.pi)


def radians(x: ArrayLike) -> Array:
    """Degrees to radians."""
    return op.mul(as_float("radians", x), math.pi / 180)


# ---------------------------------------------------------------- rounding
def _rounding(name: str, function: Callable[[Array], Array], doc: str) -> Callable[..., Array]:
    def wrapper(x: ArrayLike) -> Array:
        x = as_operand(x)
        return function(x) if dtypes.is_float(aval_of(x).dtype) else x

    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__doc__ = f"{doc} Integers and bools stay as they are."
    return wrapper


floor = _rounding("floor", op.floor, "Largest whole number <= x.")
ceil = _rounding("ceil", op.ceil, "Smallest whole number >= x.")
rint = _rounding("rint", op.round, "Nearest whole number, ties to even.")
trunc = _rounding(
    "trunc",
    lambda x: op.select(op.lt(x, 0.0), op.ceil(x), op.floor(x)),
    "The whole number towards 0.",
)


def round(x: ArrayLike, decimals: int = 0) -> Array:
    """The nearest multiple of ``10 ** -decimals``, ties to even."""
    places = operator.index(decimals)
    if places == 0:
        return rint(x)
    if dtypes.is_integer(type_of(x).dtype):
        if places > 0:
            return as_operand(x)
        raise UnsupportedError(
            message("round of integers to tens or more", None, "Cast to a float dtype first")
        )
    scale = 10.0 ** builtin_abs(places)
    if places > 0:
        return op.div(rint(op.mul(x, scale)), scale)
    return op.mul(rint(op.div(x, scale)), scale)


def builtin_abs(x: int) -> int:
    """|x| of a Python int (`abs` here is the array function)."""
    return -x if x < 0 else x


# ---------------------------------------------------------------- comparison and logic
def equal(x: ArrayLike, y: ArrayLike) -> Array:
    """x == y as bool."""
    return op.eq(*operands_of("equal", x, y))


def not_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """x != y as bool."""
    return op.ne(*operands_of("not_equal", x, y))


def less(x: ArrayLike, y: ArrayLike) -> Array:
    """x < y as bool."""
    return op.lt(*operands_of("less", x, y))


def less_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """x <= y as bool."""
    return op.le(*operands_of("less_equal", x, y))


def greater(x: ArrayLike, y: ArrayLike) -> Array:
    """x > y as bool."""
    return op.gt(*operands_of("greater", x, y))


def greater_equal(x: ArrayLike, y: ArrayLike) -> Array:
    """x >= y as bool."""
    return op.ge(*operands_of("greater_equal", x, y))


def as_bool(x: ArrayLike) -> Array:
    """x != 0; bools stay as they are."""
    return x if type_of(x).dtype == dtypes.bool_ else cast(x, dtypes.bool_)


def logical_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Both nonzero."""
    return op.bitwise_and(*broadcast("logical_and", as_bool(x), as_bool(y)))


def logical_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Either nonzero."""
    return op.bitwise_or(*broadcast("logical_or", as_bool(x), as_bool(y)))


def logical_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """One nonzero, not both."""
    return op.bitwise_xor(*broadcast("logical_xor", as_bool(x), as_bool(y)))


def logical_not(x: ArrayLike) -> Array:
    """Zero."""
    return op.bitwise_not(as_bool(x))


def isnan(x: ArrayLike) -> Array:
    """NaN; False for integers and bools."""
    return op.ne(as_float("isnan", x), as_float("isnan", x))


def isinf(x: ArrayLike) -> Array:
    """inf or -inf."""
    return op.eq(op.abs(as_float("isinf", x)), math.inf)


def isfinite(x: ArrayLike) -> Array:
    """Neither NaN nor infinite."""
    return op.lt(op.abs(as_float("isfinite", x)), math.inf)


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """Elements of `x` where `condition` is nonzero, else of `y`; all three broadcast."""
    a, b = promote("where", x, y)
    return op.select(*broadcast("where", as_bool(condition), a, b))


# ---------------------------------------------------------------- bits
def _bits(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    operands = operands_of(name, x, y)
    if dtypes.is_inexact(aval_of(operands[0]).dtype):
        raise DTypeError(
            message(
                f"{name} of {types_text((x, y))} takes integers and bools only",
                None,
                "Cast to an integer dtype first",
            )
        )
    return operands


def bitwise_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Bits set in both; logical and of bools."""
    return op.bitwise_and(*_bits("bitwise_and", x, y))


def bitwise_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Bits set in either; logical or of bools."""
    return op.bitwise_or(*_bits("bitwise_or", x, y))


def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """Bits set in one only; logical xor of bools."""
    return op.bitwise_xor(*_bits("bitwise_xor", x, y))


def bitwise_invert(x: ArrayLike) -> Array:
    """All bits inverted; logical not of bools."""
    _bits("bitwise_invert", x, x)
    return op.bitwise_not(as_operand(x))


invert = bitwise_not = bitwise_invert


def left_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """x << y in the dtype of x; 0 when y is negative or at least the width."""
    return op.shift_left(*_shift("left_shift", x, y))


def right_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """x >> y in the dtype of x: signed integers keep their sign, unsigned ones fill with 0."""
    x, y = _shift("right_shift", x, y)
    if dtypes.is_unsigned_integer(aval_of(x).dtype):
        return op.shift_right_logical(x, y)
    return op.shift_right_arithmetic(x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


def _shift(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    # A shift keeps the kind of its left operand: promoting u32 with i32 would change its meaning.
    kinds = type_of(x), type_of(y)
    if not all(dtypes.is_integer(kind.dtype) for kind in kinds):
        raise DTypeError(
            message(f"{name} of {types_text((x, y))} takes integers only", None, "Cast first")
        )
    dtype = common_type(name, (x, y))[0] if kinds[0].weak else kinds[0].dtype
    return broadcast(name, cast(x, dtype), cast(y, dtype))
