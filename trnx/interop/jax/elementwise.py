"""Rules of elementwise primitives, comparisons, selection and casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trnx import numpy as tnp
from trnx.core import dtypes
from trnx.interop.jax.registry import Site, Value, elementwise, elementwise_table, rule
from trnx.ops import functions as op
from trnx.ops.trigonometry import is_negative

elementwise_table(
    {
        "neg": op.neg,
        "sign": op.sign,
        "floor": op.floor,
        "ceil": op.ceil,
        "exp": op.exp,
        "expm1": op.expm1,
        "log": op.log,
        "log1p": op.log1p,
        "tanh": op.tanh,
        "logistic": op.logistic,
        "erf": op.erf,
        "erf_inv": op.erf_inv,
        "sqrt": op.sqrt,
        "rsqrt": op.rsqrt,
        "sin": op.sin,
        "cos": op.cos,
        "exp2": tnp.exp2,
        "atan2": op.atan2,
        "complex": op.make_complex,
        "real": op.real,
        "imag": op.imag,
        "abs": op.abs,
        "square": lambda x: op.mul(x, x),
        "add": op.add,
        "add_any": op.add,
        "sub": op.sub,
        "mul": op.mul,
        "and": op.bitwise_and,
        "or": op.bitwise_or,
        "xor": op.bitwise_xor,
        "not": op.bitwise_not,
        "stop_gradient": op.stop_gradient,
        "is_finite": tnp.isfinite,
        "population_count": op.population_count,
    }
)


# ---------------------------------------------------------------- arithmetic
@elementwise("div")
def _div(site: Site, x: Value, y: Value) -> Value:
    """Integers divide towards zero, with JAX's results for a divisor of 0."""
    dtype = site.result.dtype
    if not dtypes.is_integer(dtype):
        return op.div(x, y)
    quotient = op.floor_divide(x, y)
    if dtypes.is_unsigned_integer(dtype):
        return op.select(op.eq(y, 0), op.scalar(np.iinfo(dtype).max, dtype), quotient)
    inexact = op.ne(op.mul(quotient, y), x)
    below = op.ne(op.lt(x, 0), op.lt(y, 0))
    towards_zero = op.add(quotient, op.convert(op.bitwise_and(inexact, below), dtype))
    return op.select(op.eq(y, 0), op.scalar(-1, dtype), towards_zero)


@elementwise("rem")
def _rem(site: Site, x: Value, y: Value) -> Value:
    """The remainder with the sign of `x`; an integer modulo 0 is itself."""
    dtype = site.result.dtype
    if dtypes.is_integer(dtype):
        if dtypes.is_unsigned_integer(dtype):
            return op.select(op.eq(y, 0), x, op.remainder(x, y))
        rest = op.remainder(x, y)
        other = op.bitwise_and(op.ne(rest, 0), op.lt(op.bitwise_xor(rest, x), 0))
        return op.select(op.eq(y, 0), x, op.select(other, op.sub(rest, y), rest))
    size = op.remainder(op.abs(x), op.abs(y))
    return op.select(is_negative(x), op.neg(size), size)


@elementwise("pow")
def _pow(site: Site, x: Value, y: Value) -> Value:
    _, exponent = site.operands
    if dtypes.is_integer(exponent.dtype):
        return _power_of_bits(x, y)
    return op.pow(x, y)


def _power_of_bits(x: Value, y: Value) -> Value:
    """x to an integer array power: repeated squaring over the bits of `y`."""
    dtype = op.dtype_of(y)
    size = op.abs(y) if dtypes.is_signed_integer(dtype) else y
    one = op.scalar_like(1, x)
    out: Value = one
    base = x
    for bit in range(dtype.itemsize * 8 - int(dtypes.is_signed_integer(dtype))):
        has = op.ne(op.bitwise_and(op.shift_right_logical(size, bit), 1), 0)
        out = op.select(has, op.mul(out, base), op.spread(out, has))
        base = op.mul(base, base)
    if not dtypes.is_signed_integer(dtype):
        return out
    if dtypes.is_integer(op.dtype_of(x)):
        return out
    return op.select(op.lt(y, 0), op.div(1.0, out), out)


@elementwise("integer_pow")
def _integer_pow(site: Site, x: Value, *, y: int) -> Value:
    return op.integer_pow(x, y)


@elementwise("round")
def _round(site: Site, x: Value, *, rounding_method: Any) -> Value:
    """Ties to even, or away from zero."""
    if int(rounding_method) == 1:
        return op.round(x)
    size = op.abs(x)
    whole = op.floor(size)
    away = op.select(op.ge(op.sub(size, whole), 0.5), op.add(whole, 1.0), whole)
    return op.select(op.eq(size, whole), x, op.mul(op.sign(x), away))


_EXTREMA = {"max": op.max, "min": op.min}


@elementwise(*_EXTREMA)
def _extremum(site: Site, x: Value, y: Value) -> Value:
    """Complex operands are ordered by real parts, then by imaginary ones."""
    if not dtypes.is_complex(site.result.dtype):
        return _EXTREMA[site.primitive](x, y)
    above = op.gt if site.primitive == "max" else op.lt
    (a, b), (c, d) = (op.real(x), op.imag(x)), (op.real(y), op.imag(y))
    wins = op.bitwise_or(above(a, c), op.bitwise_and(op.eq(a, c), above(b, d)))
    wins = op.bitwise_or(wins, op.ne(x, x))
    return op.select(wins, op.spread(x, wins), op.spread(y, wins))


@elementwise("clamp")
def _clamp(site: Site, low: Value, x: Value, high: Value) -> Value:
    return op.min(op.max(x, low), high)


@elementwise("erfc")
def _erfc(site: Site, x: Value) -> Value:
    return erfc(x)


def erfc(x: Value) -> Value:
    """1 - erf(x), with relative accuracy where it is small."""
    dtype = op.dtype_of(x)
    if dtype.itemsize < 4:
        return op.convert(erfc(op.convert(x, dtypes.float32)), dtype)
    size = op.abs(x)
    # A continued fraction for exp(x^2) erfc(x), exact to f64 from 2 on with 60 terms (Lentz's
    # backward form); below, 1 - erf(x) loses no more than two bits.
    terms = 60 if dtype == dtypes.float64 else 24
    wide = op.max(size, 2.0)
    fraction = wide
    for k in range(terms, 0, -1):
        fraction = op.add(wide, op.div(0.5 * k, fraction))
    tail = op.div(op.exp(op.neg(op.mul(wide, wide))), op.mul(fraction, math.sqrt(math.pi)))
    near = op.sub(1.0, op.erf(size))
    positive = op.select(op.lt(size, 2.0), near, tail)
    return op.select(op.lt(x, 0.0), op.sub(2.0, positive), positive)


# ---------------------------------------------------------------- circular and hyperbolic
def _i(z: Value) -> Value:
    """i z."""
    return op.make_complex(op.neg(op.imag(z)), op.real(z))


def _minus_i(z: Value) -> Value:
    """-i z."""
    return op.make_complex(op.imag(z), op.neg(op.real(z)))


def _one(x: Value) -> Value:
    return op.scalar_like(1, x)


def _atanh(x: Value) -> Value:
    """log1p(2x / (1 - x)) / 2 is exact near 0; by oddness the argument is not negative."""
    if dtypes.is_complex(op.dtype_of(x)):
        one = _one(x)
        return op.mul(op.sub(op.log1p(x), op.log1p(op.neg(x))), op.scalar_like(0.5, one))
    size = op.abs(x)
    value = op.mul(op.log1p(op.div(op.mul(size, 2.0), op.sub(1.0, size))), 0.5)
    return op.select(op.lt(x, 0.0), op.neg(value), op.select(op.eq(x, 0.0), x, value))


def _asinh(x: Value) -> Value:
    if dtypes.is_complex(op.dtype_of(x)):
        return _minus_i(_asin(_i(x)))
    size = op.abs(x)
    # log1p(x + x² / (1 + sqrt(1 + x²))); the square is left out where it would overflow.
    large = op.gt(size, 1e4 if op.dtype_of(x).itemsize > 2 else 100.0)
    safe = op.select(large, 1.0, size)
    square = op.mul(safe, safe)
    near = op.log1p(op.add(safe, op.div(square, op.add(op.sqrt(op.add(square, 1.0)), 1.0))))
    far = op.add(op.log(op.select(large, size, 1.0)), math.log(2))
    value = op.select(large, far, near)
    return op.select(op.lt(x, 0.0), op.neg(value), op.select(op.eq(x, 0.0), x, value))


def _acosh(x: Value) -> Value:
    if dtypes.is_complex(op.dtype_of(x)):
        one = _one(x)
        roots = op.mul(op.sqrt(op.add(x, one)), op.sqrt(op.sub(x, one)))
        return op.log(op.add(x, roots))
    large = op.gt(x, 1e4 if op.dtype_of(x).itemsize > 2 else 100.0)
    safe = op.sub(op.select(large, 2.0, x), 1.0)
    near = op.log1p(op.add(safe, op.sqrt(op.mul(safe, op.add(safe, 2.0)))))
    far = op.add(op.log(op.select(large, x, 1.0)), math.log(2))
    return op.select(large, far, near)


def _asin(x: Value) -> Value:
    if not dtypes.is_complex(op.dtype_of(x)):
        return op.atan2(x, op.sqrt(op.mul(op.sub(1.0, x), op.add(1.0, x))))
    # Kahan: the parts from roots of 1 - z and 1 + z, which keep the branch cuts.
    one = _one(x)
    a, b = op.sqrt(op.sub(one, x)), op.sqrt(op.add(one, x))
    real = op.atan2(op.real(x), op.real(op.mul(a, b)))
    return op.make_complex(real, _asinh(op.imag(op.mul(op.conj(a), b))))


def _acos(x: Value) -> Value:
    if not dtypes.is_complex(op.dtype_of(x)):
        return op.mul(op.atan2(op.sqrt(op.sub(1.0, x)), op.sqrt(op.add(1.0, x))), 2.0)
    one = _one(x)
    a, b = op.sqrt(op.sub(one, x)), op.sqrt(op.add(one, x))
    real = op.mul(op.atan2(op.real(a), op.real(b)), 2.0)
    return op.make_complex(real, _asinh(op.imag(op.mul(op.conj(b), a))))


def _atan(x: Value) -> Value:
    if dtypes.is_complex(op.dtype_of(x)):
        return _minus_i(_atanh(_i(x)))
    return op.atan2(x, op.full(op.shape_of(x), _one(x)))


def _tan(x: Value) -> Value:
    return _minus_i(op.tanh(_i(x))) if dtypes.is_complex(op.dtype_of(x)) else tnp.tan(x)


def _sinh(x: Value) -> Value:
    return _minus_i(op.sin(_i(x))) if dtypes.is_complex(op.dtype_of(x)) else tnp.sinh(x)


def _cosh(x: Value) -> Value:
    return op.cos(_i(x)) if dtypes.is_complex(op.dtype_of(x)) else tnp.cosh(x)


def _cbrt(x: Value) -> Value:
    """A power of the magnitude, made exact by one Newton step."""
    dtype = op.dtype_of(x)
    if dtype.itemsize < 4:
        return op.convert(_cbrt(op.convert(x, dtypes.float32)), dtype)
    size = op.abs(x)
    plain = op.bitwise_or(op.eq(size, 0.0), op.bitwise_not(op.lt(size, math.inf)))
    safe = op.select(plain, 1.0, size)
    y = op.exp(op.div(op.log(safe), 3.0))
    y = op.sub(y, op.div(op.sub(y, op.div(safe, op.mul(y, y))), 3.0))
    return op.select(plain, x, op.mul(y, op.sign(x)))


def _low_in_f32(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """bf16 and f16 are computed in f32 and rounded once."""

    def run(x: Value) -> Value:
        dtype = op.dtype_of(x)
        if dtype.itemsize >= 4:
            return function(x)
        return op.convert(function(op.convert(x, dtypes.float32)), dtype)

    return run


elementwise_table(
    {
        name: _low_in_f32(function)
        for name, function in {
            "acos": _acos,
            "acosh": _acosh,
            "asin": _asin,
            "asinh": _asinh,
            "atan": _atan,
            "atanh": _atanh,
            "cbrt": _cbrt,
            "cosh": _cosh,
            "sinh": _sinh,
            "tan": _tan,
        }.items()
    }
)


@elementwise("conj")
def _conj(site: Site, x: Value, **_: Any) -> Value:
    """A real operand, which JAX allows here, becomes complex."""
    if dtypes.is_complex(op.dtype_of(x)):
        return op.conj(x)
    return op.make_complex(x, op.zeros_like(x))


# ---------------------------------------------------------------- shifts
_SHIFTS = {
    "shift_left": op.shift_left,
    "shift_right_logical": op.shift_right_logical,
    "shift_right_arithmetic": op.shift_right_arithmetic,
}


@elementwise(*_SHIFTS)
def _shift(site: Site, x: Value, y: Value) -> Value:
    """Counts outside of the width shift everything out."""
    dtype = site.result.dtype
    width = dtype.itemsize * 8
    inside = op.lt(y, width)
    if dtypes.is_signed_integer(dtype):
        inside = op.bitwise_and(inside, op.ge(y, 0))
    shifted = _SHIFTS[site.primitive](x, op.select(inside, y, op.scalar(0, dtype)))
    if site.primitive == "shift_right_arithmetic":
        out = op.shift_right_arithmetic(x, op.scalar(width - 1, dtype))
        if dtypes.is_unsigned_integer(dtype):
            signed = np.dtype(f"int{width}")
            moved = op.shift_right_arithmetic(
                op.convert(x, signed), op.convert(op.select(inside, y, width - 1), signed)
            )
            return op.convert(moved, dtype)
    else:
        out = op.scalar(0, dtype)
    return op.select(inside, shifted, out)


# ---------------------------------------------------------------- comparison, selection, casts
_COMPARE = {"eq": op.eq, "ne": op.ne, "lt": op.lt, "le": op.le, "gt": op.gt, "ge": op.ge}


@elementwise(*_COMPARE)
def _compare(site: Site, x: Value, y: Value) -> Value:
    return _COMPARE[site.primitive](x, y)


@elementwise("select_n")
def _select_n(site: Site, which: Value, *cases: Value) -> Value:
    if site.operands[0].dtype == dtypes.bool_:
        if len(cases) == 1:
            return cases[0]
        return op.select(which, cases[1], cases[0])
    out = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        out = op.select(op.le(which, index), cases[index], out)
    return out


@rule("convert_element_type")
def _convert(site: Site, x: Value, *, new_dtype: Any, **_: Any) -> Value:
    target = site.result.dtype
    if dtypes.is_complex(op.dtype_of(x)) and not dtypes.is_complex(target):
        x = op.real(x)
    return op.convert(x, target)


@rule("bitcast_convert_type")
def _bitcast(site: Site, x: Value, *, new_dtype: Any, **_: Any) -> Value:
    return op.bitcast(x, site.result.dtype)


@rule("copy", "copy_p", "optimization_barrier", "pvary")
def _copy(site: Site, *operands: Value, **_: Any) -> list[Value]:
    return list(operands)


@rule("device_put")
def _device_put(site: Site, *operands: Value, **_: Any) -> list[Value]:
    """A program runs on one device, so placement inside of it has no meaning."""
    return list(operands)


@rule("reduce_precision")
def _reduce_precision(site: Site, x: Value, *, exponent_bits: int, mantissa_bits: int) -> Value:
    dtype = site.result.dtype
    known = {(8, 23): dtypes.float32, (11, 52): dtypes.float64, (8, 7): dtypes.bfloat16,
             (5, 10): dtypes.float16}  # fmt: skip
    narrow = known.get((exponent_bits, mantissa_bits))
    if narrow is None or not dtypes.is_float(dtype):
        raise site.refuse(
            f"to {exponent_bits} exponent and {mantissa_bits} mantissa bits",
            "Round to the precision of bf16, f16, f32 or f64",
        )
    return op.convert(op.convert(x, narrow), dtype)
