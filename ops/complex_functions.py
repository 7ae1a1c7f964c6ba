"""Arithmetic and functions of complex operands as array code on their real and imaginary parts.

Each function takes complex operands (a binary one also real ones beside them) and is free of
intermediate results that overflow or cancel where the result does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.core import dtypes
from trnx.ops import functions as op

Array = Any

PART: dict[np.dtype[Any], np.dtype[Any]] = {
    dtypes.complex64: dtypes.float32,
    dtypes.complex128: dtypes.float64,
}
"""dtype of the parts of a complex dtype."""

WHOLE: dict[np.dtype[Any], np.dtype[Any]] = {part: whole for whole, part in PART.items()}
"""Complex dtype whose parts have a dtype."""


def parts(z: Array) -> tuple[Array, Array]:
    """Real and imaginary part."""
    return op.real(z), op.imag(z)


# ---------------------------------------------------------------- arithmetic
def mul(x: Array, y: Array) -> Array:
    """The product."""
    (a, b), (c, d) = parts(x), parts(y)
    return op.make_complex(op.sub(op.mul(a, c), op.mul(b, d)), op.add(op.mul(a, d), op.mul(b, c)))


def div(x: Array, y: Array) -> Array:
    """The quotient, by a divisor scaled to magnitude 1 so that its square does not overflow."""
    (a, b), (c, d) = parts(x), parts(y)
    scale = op.max(op.abs(c), op.abs(d))
    usable = op.bitwise_and(op.gt(scale, 0.0), op.lt(scale, math.inf))
    scale = op.select(usable, scale, 1.0)
    c, d = op.div(c, scale), op.div(d, scale)
    size = op.add(op.mul(c, c), op.mul(d, d))
    real = op.div(op.add(op.mul(a, c), op.mul(b, d)), size)
    imag = op.div(op.sub(op.mul(b, c), op.mul(a, d)), size)
    return op.make_complex(op.div(real, scale), op.div(imag, scale))


def eq(x: Array, y: Array) -> Array:
    """Both parts equal."""
    (a, b), (c, d) = parts(x), parts(y)
    return op.bitwise_and(op.eq(a, c), op.eq(b, d))


def ne(x: Array, y: Array) -> Array:
    """Some part differs."""
    (a, b), (c, d) = parts(x), parts(y)
    return op.bitwise_or(op.ne(a, c), op.ne(b, d))


def magnitude(z: Array) -> Array:
    """|z|, from the larger part; infinite when a part is."""
    return _radius(*parts(z))


def _radius(a: Array, b: Array) -> Array:
    a, b = op.abs(a), op.abs(b)
    large, small = op.max(a, b), op.min(a, b)
    plain = op.bitwise_or(op.eq(large, 0.0), op.eq(large, math.inf))
    ratio = op.div(small, op.select(plain, 1.0, large))
    size = op.mul(large, op.sqrt(op.add(1.0, op.mul(ratio, ratio))))
    return op.select(plain, large, size)


def sign(z: Array) -> Array:
    """z / |z|, and z itself at 0."""
    a, b = parts(z)
    size = _radius(a, b)
    size = op.select(op.eq(size, 0.0), 1.0, size)
    return op.make_complex(op.div(a, size), op.div(b, size))


# ---------------------------------------------------------------- exp, log, powers
def exp(z: Array) -> Array:
    """e^a (cos b + i sin b); a real operand keeps its zero imaginary part where e^a overflows."""
    a, b = parts(z)
    size = op.exp(a)
    real = op.eq(b, 0.0)
    return op.make_complex(op.mul(size, op.cos(b)), op.select(real, b, op.mul(size, op.sin(b))))


def expm1(z: Array) -> Array:
    """e^z - 1; expm1 of the real part keeps the small results."""
    a, b = parts(z)
    half = op.sin(op.mul(b, 0.5))
    real = op.sub(op.mul(op.expm1(a), op.cos(b)), op.mul(op.mul(half, half), 2.0))
    return op.make_complex(real, op.mul(op.exp(a), op.sin(b)))


def log(z: Array) -> Array:
    """log|z| and the angle; near the unit circle log|z| comes from |z|² - 1, which is exact."""
    a, b = parts(z)
    x, y = op.abs(a), op.abs(b)
    large, small = op.max(x, y), op.min(x, y)
    near = op.bitwise_and(op.gt(large, 0.5), op.lt(large, 2.0))
    safe = op.select(near, large, 1.0)
    less = op.select(near, small, 0.0)
    excess = op.add(op.mul(op.sub(safe, 1.0), op.add(safe, 1.0)), op.mul(less, less))
    size = op.select(near, op.mul(op.log1p(excess), 0.5), op.log(_radius(a, b)))
    return op.make_complex(size, op.atan2(b, a))


def log1p(z: Array) -> Array:
    """log(1 + z): |1 + z|² - 1 is a(2 + a) + b²."""
    a, b = parts(z)
    excess = op.add(op.mul(a, op.add(a, 2.0)), op.mul(b, b))
    small = op.lt(op.max(op.abs(a), op.abs(b)), 0.5)
    near = op.mul(op.log1p(op.select(small, excess, 0.0)), 0.5)
    one = op.add(a, 1.0)
    size = op.select(small, near, op.real(log(op.make_complex(one, b))))
    return op.make_complex(size, op.atan2(b, one))


def sqrt(z: Array) -> Array:
    """The root with a real part >= 0: the larger part first, the other from the product."""
    a, b = parts(z)
    # sqrt((|a| + |z|) / 2), halves first so that the sum does not overflow.
    larger = op.sqrt(op.add(op.mul(op.abs(a), 0.5), op.mul(_radius(a, b), 0.5)))
    zero = op.eq(larger, 0.0)
    smaller = op.div(op.mul(op.abs(b), 0.5), op.select(zero, 1.0, larger))
    right = op.ge(a, 0.0)
    real, imag = op.select(right, larger, smaller), op.select(right, smaller, larger)
    return op.make_complex(real, op.select(op.lt(b, 0.0), op.neg(imag), imag))


def rsqrt(z: Array) -> Array:
    """1 / sqrt(z)."""
    return reciprocal(sqrt(z))


def reciprocal(z: Array) -> Array:
    """1 / z."""
    a = op.real(z)
    one = op.add(op.mul(a, 0.0), 1.0)
    return div(op.make_complex(one, op.zeros_like(a)), z)


def power(x: Array, y: Array) -> Array:
    """e^(y log x); 0^0 is 1 and other powers of 0 are 0."""
    if not op.shape_of(x) and op.shape_of(y):
        x = op.spread(x, y)
    zero = op.eq(x, op.scalar_like(0, x))
    found = exp(mul(op.spread(y, x), log(op.select(zero, op.scalar_like(1, x), x))))
    at_zero = op.select(op.eq(y, op.scalar_like(0, y)), op.scalar_like(1, y), 0.0)
    return op.select(zero, op.spread(at_zero, found), found)


# ---------------------------------------------------------------- circular, hyperbolic
def _hyperbolic(b: Array) -> tuple[Array, Array]:
    """sinh and cosh of a real operand."""
    small = op.expm1(op.abs(b))
    # With e = exp|b| - 1: sinh|b| = (e + e/(1+e)) / 2, cosh b = 1 + e²/(2(1+e)).
    full = op.add(small, 1.0)
    large = op.gt(small, 1e18)
    safe = op.select(large, 1.0, small)
    whole = op.select(large, 2.0, full)
    sinh = op.select(large, op.mul(small, 0.5), op.mul(op.add(safe, op.div(safe, whole)), 0.5))
    cosh = op.select(
        large,
        op.mul(full, 0.5),
        op.add(op.div(op.mul(op.mul(safe, safe), 0.5), whole), 1.0),
    )
    return op.select(op.lt(b, 0.0), op.neg(sinh), sinh), cosh


def sin(z: Array) -> Array:
    """sin a cosh b + i cos a sinh b."""
    a, b = parts(z)
    sinh, cosh = _hyperbolic(b)
    return op.make_complex(op.mul(op.sin(a), cosh), op.mul(op.cos(a), sinh))


def cos(z: Array) -> Array:
    """cos a cosh b - i sin a sinh b."""
    a, b = parts(z)
    sinh, cosh = _hyperbolic(b)
    return op.make_complex(op.mul(op.cos(a), cosh), op.neg(op.mul(op.sin(a), sinh)))


def tanh(z: Array) -> Array:
    """(sinh a cosh a + i sin b cos b) / (sinh² a + cos² b); ±1 where e^2|a| hides the rest."""
    a, b = parts(z)
    limit = 40.0 if op.dtype_of(a) == dtypes.float64 else 20.0
    sinh, cosh = _hyperbolic(op.max(op.min(a, limit), -limit))
    s, c = op.sin(b), op.cos(b)
    size = op.add(op.mul(sinh, sinh), op.mul(c, c))
    real = op.div(op.mul(sinh, cosh), size)
    return op.make_complex(real, op.div(op.mul(s, c), size))


def logistic(z: Array) -> Array:
    """(1 + tanh(z/2)) / 2."""
    a, b = parts(z)
    x, y = parts(tanh(op.make_complex(op.mul(a, 0.5), op.mul(b, 0.5))))
    return op.make_complex(op.mul(op.add(x, 1.0), 0.5), op.mul(y, 0.5))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "abs": magnitude, "cos": cos, "div": div, "eq": eq, "exp": exp, "expm1": expm1, "log": log,
    "log1p": log1p, "logistic": logistic, "mul": mul, "ne": ne, "pow": power, "rsqrt": rsqrt,
    "sign": sign, "sin": sin, "sqrt": sqrt, "tanh": tanh,
}  # fmt: skip
"""Primitive name -> its meaning for complex operands, in terms of the parts."""
