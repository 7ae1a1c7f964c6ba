"""Arithmetic and elementary functions, element by element.

Integers wrap on overflow. Functions of floats follow IEEE: NaN spreads (also through max and min),
infinities and signed zeros keep their meaning. A binary primitive takes operands of one shape, or
one without axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from trnx.core import Aval, DTypeError, Linear, Primitive, Zero, aval_of, dtypes, message
from trnx.ops import complex_functions
from trnx.ops import functions as op
from trnx.ops._factories import (
    COMPLEX,
    FLOAT,
    FUNCTION,
    INTEGER,
    NUMBER,
    REAL,
    ROUNDED,
    NumpyArray,
    binary,
    quiet,
    unary,
    wide,
)

Array = Any


def unbroadcast(ct: Array, aval: Aval) -> Array:
    """The cotangent of an operand that had no axes: the sum of what every element received."""
    rank = len(op.shape_of(ct))
    return op.reduce_sum(ct, range(rank)) if rank and not aval.shape else ct


def _stdlib(function: Callable[[float], float]) -> Callable[[NumpyArray], NumpyArray]:
    """A scalar function of the standard library over an array, computed in f64."""
    vectorised = np.frompyfunc(function, 1, 1)
    return wide(lambda x: np.asarray(vectorised(np.asarray(x, np.float64)), dtype=np.float64))


# ---------------------------------------------------------------- linear
neg_p = unary(
    "neg", "Negation.", accepts=NUMBER, reference=quiet(np.negative), grad_order=2, linear=True
)
neg_p.def_linear()
neg_p.def_transpose(lambda ct, x: (op.neg(ct),))

add_p = binary("add", "Sum.", accepts=NUMBER, reference=quiet(np.add), grad_order=2, linear=True)
add_p.def_jvp(
    lambda t, x, y, *, out: op.spread(t, out),
    lambda t, x, y, *, out: op.spread(t, out),
)


@add_p.def_transpose
def _add_transpose(ct: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return (
        unbroadcast(ct, x.aval) if isinstance(x, Linear) else None,
        unbroadcast(ct, y.aval) if isinstance(y, Linear) else None,
    )


sub_p = binary(
    "sub", "Difference.", accepts=NUMBER, reference=quiet(np.subtract), grad_order=2, linear=True
)
sub_p.def_jvp(
    lambda t, x, y, *, out: op.spread(t, out),
    lambda t, x, y, *, out: op.spread(op.neg(t), out),
)


@sub_p.def_transpose
def _sub_transpose(ct: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return (
        unbroadcast(ct, x.aval) if isinstance(x, Linear) else None,
        op.neg(unbroadcast(ct, y.aval)) if isinstance(y, Linear) else None,
    )


# ---------------------------------------------------------------- products
mul_p = binary(
    "mul", "Product.", accepts=NUMBER, reference=quiet(np.multiply), grad_order=2, linear=True,
    tolerance={"c64": 5e-7, "c128": 1e-15},  # a part is the sum of two products
)  # fmt: skip
mul_p.def_jvp(
    lambda t, x, y, *, out: op.mul(t, y),
    lambda t, x, y, *, out: op.mul(x, t),
)


@mul_p.def_transpose
def _mul_transpose(ct: Array, x: Array, y: Array) -> tuple[Array, Array]:
    if isinstance(x, Linear):
        return unbroadcast(op.mul(ct, y), x.aval), None
    return None, unbroadcast(op.mul(x, ct), y.aval)


div_p = binary(
    "div",
    "Quotient of inexact operands; x / 0 is an infinity or NaN.",
    accepts=FLOAT + COMPLEX,
    reference=quiet(np.true_divide),
    ranges=((-4.0, 4.0), (0.5, 4.0)),
    tolerance={**ROUNDED, "c64": 5e-7, "c128": 1e-15},
    grad_order=2,
    linear=True,
)
div_p.def_jvp(
    lambda t, x, y, *, out: op.div(t, y),
    lambda t, x, y, *, out: op.neg(op.div(op.mul(out, t), y)),
)
div_p.def_transpose(lambda ct, x, y: (unbroadcast(op.div(ct, y), x.aval), None))


@quiet
def _integer_pow(x: NumpyArray, *, y: int) -> NumpyArray:
    if y < 0:
        return np.asarray(np.reciprocal(_integer_pow(x, y=-y)))
    if x.dtype in INTEGER:
        out, base, rest = np.ones_like(x), x, y
        while rest:
            out = out * base if rest & 1 else out
            base, rest = base * base, rest >> 1
        return out
    wide_x = x.astype(np.float64) if x.dtype in FLOAT else x
    return np.asarray(np.power(wide_x, y)).astype(x.dtype)


integer_pow_p = unary(
    "integer_pow",
    "Power with a static integer exponent.",
    accepts=NUMBER,
    reference=_integer_pow,
    domain=(0.5, 2.0),
    tolerance={"f32": 1e-6, "f64": 2e-15, "bf16": 4e-2, "f16": 6e-3, "c64": 2e-6, "c128": 4e-15},
    grad_order=2,
    flops=2,
    params=({"y": 2}, {"y": 3}, {"y": 0}, {"y": 1}, {"y": 7}),
)
_elementwise_integer_pow = integer_pow_p.abstract


def _integer_pow_abstract(x: Aval, *, y: int) -> Aval:
    if y < 0 and x.dtype in INTEGER:
        raise DTypeError(
            message(f"integer_pow of {x} with exponent {y} is no integer", None, "Cast to float")
        )
    out = _elementwise_integer_pow(x)
    assert isinstance(out, Aval)
    return out


integer_pow_p.abstract = _integer_pow_abstract


def _integer_pow_jvp(t: Array, x: Array, *, out: Array, y: int) -> Array:
    if y == 0:
        return op.zeros_like(x)
    return t if y == 1 else op.mul(t, op.mul(op.integer_pow(x, y - 1), float(y)))


integer_pow_p.def_jvp(_integer_pow_jvp)


@integer_pow_p.def_composite
def _integer_pow_composite(x: Array, *, y: int) -> Array:
    """Repeated squaring: at most 2 log2(|y|) products."""
    if y == 0:
        return op.full(op.shape_of(x), op.scalar_like(1, x))
    out, base, rest = None, x, y if y > 0 else -y
    while rest:
        if rest & 1:
            out = base if out is None else op.mul(out, base)
        rest >>= 1
        base = op.mul(base, base) if rest else base
    return op.div(1, out) if y < 0 else out


@wide
def _pow(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    return np.asarray(np.power(x, y))


pow_p = binary(
    "pow",
    "Power of inexact operands; 0**0 is 1.",
    accepts=FLOAT + COMPLEX,
    reference=_pow,
    ranges=((0.2, 3.0), (-3.0, 3.0)),
    tolerance={
        "f32": 4e-6,
        "f64": 4e-15,
        "bf16": 1.6e-2,
        "f16": 4e-3,
        "c64": 2e-5,
        "c128": 4e-14,
    },
    grad_order=2,
    flops=2,
    transcendental=True,
)


def _pow_jvp_base(t: Array, x: Array, y: Array, *, out: Array) -> Array:
    # y * x**(y-1), where y = 0 gives 0 whatever x is (0 * inf would be NaN).
    zero = op.eq(y, 0.0)
    slope = op.mul(op.pow(x, op.select(zero, 1.0, op.sub(y, 1.0))), y)
    return op.mul(t, op.select(zero, 0.0, slope))


def _pow_jvp_exponent(t: Array, x: Array, y: Array, *, out: Array) -> Array:
    # out * log(x), where x = 0 gives 0: out is 0 there and log is not finite.
    safe = op.select(op.eq(x, 0.0), 1.0, x)
    return op.mul(t, op.mul(out, op.log(safe)))


pow_p.def_jvp(_pow_jvp_base, _pow_jvp_exponent)


# ---------------------------------------------------------------- sign and rounding
# A complex operand has a root of a sum in its magnitude; real ones are exact.
_MAGNITUDE = {"f32": 2.4e-7, "f64": 4.5e-16}


@quiet
def _abs(x: NumpyArray) -> NumpyArray:
    return (
        np.asarray(np.abs(x.astype(np.complex128))).astype(complex_functions.PART[x.dtype])
        if (x.dtype in COMPLEX)
        else np.asarray(np.abs(x))
    )


abs_p = unary(
    "abs",
    "Absolute value; the magnitude, a real number, of a complex operand.",
    accepts=NUMBER,
    reference=_abs,
    domain=(0.5, 4.0),
    tolerance=_MAGNITUDE,
    grad_order=2,
)
_elementwise_abs = abs_p.abstract


def _abs_abstract(x: Aval) -> Aval:
    out = _elementwise_abs(x)
    assert isinstance(out, Aval)
    return Aval(out.shape, complex_functions.PART.get(out.dtype, out.dtype), out.weak)


abs_p.abstract = _abs_abstract


def _abs_jvp(t: Array, x: Array, *, out: Array) -> Array:
    if dtypes.is_complex(op.dtype_of(x)):
        size = op.select(op.eq(out, 0), 1, out)
        return op.div(op.real(op.mul(t, op.conj(x))), size)
    return op.mul(t, op.sign(x))


abs_p.def_jvp(_abs_jvp)


@quiet
def _sign(x: NumpyArray) -> NumpyArray:
    if x.dtype in COMPLEX:
        wide_x = x.astype(np.complex128)
        return np.where(x == 0, x, wide_x / np.where(x == 0, 1, np.abs(wide_x))).astype(x.dtype)
    return np.where(x == 0, x, np.sign(x)).astype(x.dtype)


sign_p = unary(
    "sign",
    "-1, 0 or 1; keeps NaN and the sign of zero. x / |x| of a complex operand.",
    accepts=NUMBER,
    reference=_sign,
    tolerance={"c64": 5e-7, "c128": 1e-15},
    grad_order=2,
)


def _sign_jvp(t: Array, x: Array, *, out: Array) -> Array:
    """Steps have no derivative; the direction of a complex number turns: (t - s·Re(s̄t)) / |x|."""
    if not dtypes.is_complex(op.dtype_of(x)):
        return Zero(aval_of(out).strong())
    size = op.abs(x)
    along = op.real(op.mul(op.conj(out), t))
    turned = op.sub(t, op.mul(out, op.make_complex(along, op.zeros_like(along))))
    scale = op.select(op.eq(size, 0), 0, op.div(1, op.select(op.eq(size, 0), 1, size)))
    return op.mul(turned, op.make_complex(scale, op.zeros_like(scale)))


sign_p.def_jvp(_sign_jvp)


@sign_p.def_composite
def _sign_composite(x: Array) -> Array:
    if dtypes.is_complex(op.dtype_of(x)):
        return complex_functions.sign(x)
    if dtypes.is_unsigned_integer(op.dtype_of(x)):
        return op.min(x, 1)
    return op.select(op.gt(x, 0), 1, op.select(op.lt(x, 0), -1, x))


floor_p = unary("floor", "Largest whole number <= x.", accepts=FLOAT, reference=quiet(np.floor))
ceil_p = unary("ceil", "Smallest whole number >= x.", accepts=FLOAT, reference=quiet(np.ceil))
round_p = unary(
    "round", "Nearest whole number, ties to even.", accepts=FLOAT, reference=quiet(np.rint)
)


@floor_p.def_composite
def _floor_composite(x: Array) -> Array:
    nearest = op.round(x)
    return op.select(op.gt(nearest, x), op.sub(nearest, 1.0), nearest)


@ceil_p.def_composite
def _ceil_composite(x: Array) -> Array:
    return op.neg(op.floor(op.neg(x)))


# ---------------------------------------------------------------- exp, log, roots
def _function(name: str, doc: str, reference: Callable[..., Any], **options: Any) -> Primitive:
    """A transcendental function of a float or, where `accepts` says so, a complex number."""
    options = {"tolerance": FUNCTION, "grad_order": 2, "transcendental": True, **options}
    accepts = options.pop("accepts", FLOAT)
    return unary(name, doc, accepts=accepts, reference=reference, depth=3, **options)


exp_p = _function("exp", "Exponential.", wide(np.exp), domain=(-4.0, 4.0), accepts=FLOAT + COMPLEX)
exp_p.def_jvp(lambda t, x, *, out: op.mul(t, out))

expm1_p = _function(
    "expm1",
    "exp(x) - 1, accurate near 0.",
    wide(np.expm1),
    domain=(-2.0, 2.0),
    accepts=FLOAT + COMPLEX,
)
expm1_p.def_jvp(lambda t, x, *, out: op.mul(t, op.add(out, 1.0)))


@expm1_p.def_composite
def _expm1_composite(x: Array) -> Array:
    """tanh(x/2) * (exp(x) + 1) has no cancellation; far from 0 the plain form is exact enough."""
    if dtypes.is_complex(op.dtype_of(x)):
        return complex_functions.expm1(x)
    wide_x = _in_f32(x)
    e = op.exp(wide_x)
    small = op.mul(op.tanh(op.mul(wide_x, 0.5)), op.add(e, 1.0))
    return op.convert(op.select(op.lt(op.abs(wide_x), 1.0), small, op.sub(e, 1.0)), op.dtype_of(x))


log_p = _function(
    "log", "Natural logarithm.", wide(np.log), domain=(0.2, 6.0), accepts=FLOAT + COMPLEX
)
log_p.def_jvp(lambda t, x, *, out: op.div(t, x))

log1p_p = _function(
    "log1p",
    "log(1 + x), accurate near 0.",
    wide(np.log1p),
    domain=(-0.5, 3.0),
    accepts=FLOAT + COMPLEX,
)
log1p_p.def_jvp(lambda t, x, *, out: op.div(t, op.add(x, 1.0)))


@log1p_p.def_composite
def _log1p_composite(x: Array) -> Array:
    """log(u) * (x / (u - 1)) with u = 1 + x: the rounding error of u cancels in the quotient."""
    if dtypes.is_complex(op.dtype_of(x)):
        return complex_functions.log1p(x)
    wide_x = _in_f32(x)
    u = op.add(wide_x, 1.0)
    change = op.sub(u, 1.0)
    # u == 1 means log1p(x) == x to the last bit; an infinite u must not become inf / inf.
    plain = op.bitwise_or(op.eq(change, 0.0), op.eq(u, math.inf))
    corrected = op.mul(op.log(u), op.div(wide_x, op.select(plain, 1.0, change)))
    return op.convert(op.select(plain, wide_x, corrected), op.dtype_of(x))


sqrt_p = _function(
    "sqrt", "Square root.", wide(np.sqrt), domain=(0.2, 6.0), transcendental=False,
    tolerance={**ROUNDED, "c64": 6e-7, "c128": 1e-15}, accepts=FLOAT + COMPLEX,
)  # fmt: skip
sqrt_p.def_jvp(lambda t, x, *, out: op.div(op.mul(t, 0.5), out))

rsqrt_p = _function(
    "rsqrt",
    "Reciprocal of the square root.",
    wide(lambda x: 1 / np.sqrt(x)),
    domain=(0.2, 6.0),
    accepts=FLOAT + COMPLEX,
)
rsqrt_p.def_jvp(lambda t, x, *, out: op.mul(t, op.mul(op.div(out, x), -0.5)))


# ---------------------------------------------------------------- sigmoids, error function
tanh_p = _function(
    "tanh", "Hyperbolic tangent.", wide(np.tanh), domain=(-3.0, 3.0), accepts=FLOAT + COMPLEX
)
tanh_p.def_jvp(lambda t, x, *, out: op.mul(t, op.sub(1.0, op.mul(out, out))))


@wide
def _logistic(x: NumpyArray) -> NumpyArray:
    if dtypes.is_complex(x.dtype):
        return np.asarray(1 / (1 + np.exp(-x)))
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)) + 0 * np.where(np.isnan(x), x, 0)


logistic_p = _function(
    "logistic", "1 / (1 + exp(-x)).", _logistic, domain=(-4.0, 4.0), accepts=FLOAT + COMPLEX,
    tolerance={**FUNCTION, "c64": 8e-6, "c128": 2e-14},  # 1 + tanh cancels
)  # fmt: skip
logistic_p.def_jvp(lambda t, x, *, out: op.mul(t, op.mul(out, op.sub(1.0, out))))

erf_p = _function("erf", "Gauss error function.", _stdlib(math.erf), domain=(-3.0, 3.0))
erf_p.def_jvp(
    lambda t, x, *, out: op.mul(t, op.mul(op.exp(op.neg(op.mul(x, x))), 2 / math.sqrt(math.pi)))
)


def _erf_inv(x: float) -> float:
    if not -1.0 < x < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    if x == 0.0:
        return x
    # Newton steps on erf near 0 and on the tail elsewhere: where each is free of cancellation.
    tail = (1.0 - abs(x)) / 2
    near = abs(x) < 0.5
    y = abs(x) * math.sqrt(math.pi) / 2 if near else -NormalDist().inv_cdf(tail) / math.sqrt(2)
    for _ in range(6):
        excess = (math.erf(y) - abs(x)) / 2 if near else tail - math.erfc(y) / 2
        y -= excess * math.sqrt(math.pi) * math.exp(y * y)
    return math.copysign(y, x)


erf_inv_p = _function(
    "erf_inv",
    "Inverse of erf; infinite at -1 and 1, NaN outside.",
    _stdlib(_erf_inv),
    domain=(-0.95, 0.95),
    tolerance={"f32": 2e-6, "f64": 1e-12, "bf16": 1.6e-2, "f16": 2e-3},
)
erf_inv_p.def_jvp(
    lambda t, x, *, out: op.mul(t, op.mul(op.exp(op.mul(out, out)), math.sqrt(math.pi) / 2))
)

# Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011), single precision: powers of
# w - 2.5 for w = -log(1 - x*x) < 5, powers of sqrt(w) - 3 above; highest power first.
_ERF_INV_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERF_INV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


@erf_inv_p.def_composite
def _erf_inv_composite(x: Array) -> Array:
    """Giles' polynomials; f64 adds two Newton steps."""
    y = _in_f32(x)
    w = op.neg(op.log1p(op.neg(op.mul(y, y))))
    central = op.lt(w, 5.0)
    z = op.select(central, op.sub(w, 2.5), op.sub(op.sqrt(op.max(w, 5.0)), 3.0))
    p: Array = 0.0
    for centre, tail in zip(_ERF_INV_CENTRE, _ERF_INV_TAIL, strict=True):
        coefficient = op.select(central, op.scalar_like(centre, z), op.scalar_like(tail, z))
        p = op.add(op.mul(p, z), coefficient)
    result = op.mul(p, y)
    if op.dtype_of(x) == dtypes.float64:
        for _ in range(2):
            slope = op.mul(op.exp(op.mul(result, result)), math.sqrt(math.pi) / 2)
            result = op.sub(result, op.mul(op.sub(op.erf(result), y), slope))
    # log1p gives -inf and NaN at and beyond the ends; say what the result is there.
    beyond = op.select(op.eq(op.abs(y), 1.0), op.mul(y, math.inf), math.nan)
    result = op.select(op.lt(op.abs(y), 1.0), result, beyond)
    return op.convert(result, op.dtype_of(x))


def _in_f32(x: Array) -> Array:
    """x in f32 when it is bf16 or f16: composites compute there and round once."""
    wider = op.dtype_of(x) in (dtypes.bfloat16, dtypes.float16)
    return op.convert(x, dtypes.float32) if wider else x


# Beyond 2**17 (f32) or 2**27 (f64) rounding has lost the angle; compiled code gives NaN there.
_LOST_ANGLE = {"huge": "compiled sin and cos give NaN where rounding has lost the angle"}
sin_p = _function(
    "sin", "Sine.", wide(np.sin), domain=(-6.0, 6.0), accepts=FLOAT + COMPLEX, skips=_LOST_ANGLE
)
sin_p.def_jvp(lambda t, x, *, out: op.mul(t, op.cos(x)))
cos_p = _function(
    "cos", "Cosine.", wide(np.cos), domain=(-6.0, 6.0), accepts=FLOAT + COMPLEX, skips=_LOST_ANGLE
)
cos_p.def_jvp(lambda t, x, *, out: op.neg(op.mul(t, op.sin(x))))


# ---------------------------------------------------------------- max, min
def _extremum_share(wins: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """The share of one operand: all of t where it wins alone, half of it at a tie."""

    def share(t: Array, mine: Array, other: Array, out: Array) -> Array:
        t = op.spread(t, out)
        tie = op.select(op.eq(mine, other), op.mul(t, 0.5), 0.0)
        return op.select(wins(mine, other), t, tie)

    return share


_max_share, _min_share = _extremum_share(op.gt), _extremum_share(op.lt)

max_p = binary(
    "max", "The larger operand; NaN spreads.", accepts=(*REAL, dtypes.bool_),
    reference=quiet(np.maximum), grad_order=2,
)  # fmt: skip
max_p.def_jvp(
    lambda t, x, y, *, out: _max_share(t, x, y, out),
    lambda t, x, y, *, out: _max_share(t, y, x, out),
)
min_p = binary(
    "min", "The smaller operand; NaN spreads.", accepts=(*REAL, dtypes.bool_),
    reference=quiet(np.minimum), grad_order=2,
)  # fmt: skip
min_p.def_jvp(
    lambda t, x, y, *, out: _min_share(t, x, y, out),
    lambda t, x, y, *, out: _min_share(t, y, x, out),
)


# ---------------------------------------------------------------- stop_gradient
stop_gradient_p = unary(
    "stop_gradient",
    "The operand, with zero derivative.",
    accepts=dtypes.ALL_DTYPES,
    reference=lambda x: x,
    flops=0,
    skips={"jvp": "its derivative is zero by definition, unlike that of its values"},
)
stop_gradient_p.def_composite(lambda x: x)
