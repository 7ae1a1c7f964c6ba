"""The transcendental functions of ``activation``, each written once for every consumer.

A function takes a ``VectorBuilder`` and an fp32 value and returns an fp32 value. The simulator
hands in a builder that computes with NumPy, the host target one that emits LLVM vector IR, so both
evaluate the same algorithm with the same coefficients. Every function is within 2 ulp of the exact
value for every fp32 input, denormals included, has the limits of the mathematical function at ±inf,
and returns nan for nan. The coefficients were fitted by ``tools/fit_functions.py``.

f64 tiles (target ``cpu``) do not come here: host and simulator call the C library and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol, TypeVar

V = TypeVar("V")


class VectorBuilder(Protocol[V]):
    """Elementwise operations on values of one shape: fp32, int32, fp64 or masks.

    ``add``, ``sub``, ``mul`` and ``round`` take two values of the same float type.
    """

    def const(self, value: float) -> V:
        """``value`` rounded to an fp32 constant."""

    def const_int(self, value: int) -> V:
        """An int32 constant; values above 2^31 - 1 stand for their bit pattern."""

    def add(self, a: V, b: V) -> V:
        """``a + b``."""

    def sub(self, a: V, b: V) -> V:
        """``a - b``."""

    def mul(self, a: V, b: V) -> V:
        """``a * b``."""

    def div(self, a: V, b: V) -> V:
        """``a / b``, correctly rounded."""

    def inverse(self, a: V) -> V:
        """``1 / a`` within one ulp, for ``a`` in 1..8 (or nan)."""

    def sqrt(self, a: V) -> V:
        """Square root, correctly rounded."""

    def fma(self, a: V, b: V, c: V) -> V:
        """``a * b + c`` in fp32 with one rounding."""

    def abs(self, a: V) -> V:
        """``a`` with a clear sign bit."""

    def neg(self, a: V) -> V:
        """``a`` with its sign bit flipped."""

    def copysign(self, magnitude: V, sign: V) -> V:
        """``magnitude`` with the sign bit of ``sign``."""

    def minimum(self, a: V, b: V) -> V:
        """``a if a < b else b``: ``b`` when either is nan."""

    def maximum(self, a: V, b: V) -> V:
        """``a if a > b else b``: ``b`` when either is nan."""

    def less(self, a: V, b: V) -> V:
        """Mask of ``a < b``; false when either is nan."""

    def equal(self, a: V, b: V) -> V:
        """Mask of ``a == b``; false when either is nan."""

    def select(self, mask: V, a: V, b: V) -> V:
        """``a`` where ``mask``, else ``b``."""

    def round(self, a: V) -> V:
        """Nearest integer, ties to even."""

    def scale_by_power(self, a: V, n: V) -> V:
        """``a * 2**n`` rounded once, for integral fp32 ``n`` in -180..180; exact ``a`` at n = 0.

        ``|a|`` is within 2^-20 and 2^20 unless ``n`` is 0.
        """

    def bits(self, a: V) -> V:
        """The int32 bit pattern of an fp32 value."""

    def from_bits(self, a: V) -> V:
        """The fp32 value of an int32 bit pattern."""

    def int_add(self, a: V, b: V) -> V:
        """Wrapping int32 sum."""

    def int_and(self, a: V, b: V) -> V:
        """Bitwise and of int32 values."""

    def int_shift_left(self, a: V, count: int) -> V:
        """``a << count``."""

    def int_shift_right(self, a: V, count: int) -> V:
        """Arithmetic ``a >> count``."""

    def int_to_float(self, a: V) -> V:
        """int32 to fp32, rounded to nearest even."""

    def float_to_int(self, a: V) -> V:
        """fp64 to int32, truncated; the value must fit."""

    def widen(self, a: V) -> V:
        """fp32 to fp64."""

    def narrow(self, a: V) -> V:
        """fp64 to fp32."""

    def table(self, entries: Sequence[float], index: V) -> V:
        """``entries[index]`` as fp64 for an int32 ``index`` within the table."""

    def where_any(self, mask: V, rare: Callable[[], V], usual: V) -> V:
        """``rare()`` where ``mask``, else ``usual``; ``rare`` runs only if some mask is set."""


Function = Callable[[VectorBuilder[V], V], V]

# exp(r) = 1 + r + r²·q(r) for |r| <= ln(2)/2
_EXP: Final = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166826233267784,
    0.008368674665689468,
    0.0013821057509630919,
)
# log(1 + f) = f - f²/2 + f³·p(f) for 1/√2 <= 1 + f < √2
_LOG: Final = (
    0.3333331346511841,
    -0.25000008940696716,
    0.20002073049545288,
    -0.16667994856834412,
    0.1422031670808792,
    -0.1240605041384697,
    0.1188373938202858,
    -0.11671516299247742,
    0.06750603020191193,
)
# log(1 + e) = q + q³·p(q²) with q = 2e / (2 + e), 0 <= e <= 1
_LOG1P: Final = (
    0.0833333432674408,
    0.01249967236071825,
    0.002235553925856948,
    0.0004188565944787115,
    0.00011835357145173475,
)
# 2^r = 1 + r·p(r) for |r| <= 1/2, to 2^-22
_EXP2: Final = (
    0.6931470036506653,
    0.24022245407104492,
    0.05550706386566162,
    0.00967136025428772,
    0.001327154110185802,
)
# erf(x) = x + x·p(x²) for |x| <= 0.875
_ERF_SMALL: Final = (
    0.12837915122509003,
    -0.37612512707710266,
    0.11282113194465637,
    -0.026780178770422935,
    0.005016573704779148,
    -0.0006126331863924861,
)
# erf(x) = 1 - 2^g(x) for 0.875 <= x <= 4
_ERF_LARGE: Final = (
    -0.00019268100732006133,
    -1.6272679567337036,
    -0.9186174869537354,
    -0.1505129188299179,
    0.03234562650322914,
    -0.004461268894374371,
    0.00028998206835240126,
)
# Phi(-t) = exp(-t²/2)·u·p(2u - 1) with u = 1 / (1 + slope·t), 0 <= t <= 14.6
_MILLS: Final = (
    0.310287207365036,
    0.17130132019519806,
    0.03346036374568939,
    -0.013207298703491688,
    -0.00432620570063591,
    0.002674540039151907,
    0.0002520570415072143,
    -0.0006206988473422825,
    0.0001319614239037037,
    8.996127871796489e-05,
    -4.321175583754666e-05,
)
_MILLS_SLOPE: Final = 0.44999998807907104
# sin(r) = r + r³·p(r²) for |r| <= π/2
_SIN: Final = (
    -0.1666666716337204,
    0.008333350531756878,
    -0.00019843103655148298,
    2.762832991720643e-06,
    -2.5539863557355602e-08,
)
# arctan(x) = x + x³·p(x²) for |x| <= 1
_ARCTAN: Final = (
    -0.33333298563957214,
    0.1999853104352951,
    -0.14264054596424103,
    0.109512098133564,
    -0.08400626480579376,
    0.0579097718000412,
    -0.03113066963851452,
    0.010889495722949505,
    -0.0017880486557260156,
)

_LOG2E: Final = 1.4426950216293335
_LN2_HIGH: Final = 0.693145751953125
_LN2_LOW: Final = 1.428606765330187e-06
_HALF_PI: Final = 1.5707963705062866
_HALF_PI_LOW: Final = -4.371138828673793e-08
_INV_PI: Final = 0.31830987334251404
# π as a sum of three fp32 numbers
_PI: Final = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)
_SMALLEST_NORMAL: Final = 1.1754943508222875e-38
# Beyond this the first Cody-Waite product has more bits than fp32 holds.
_SIN_NEAR: Final = 131072.0
# Biased exponent of _SIN_NEAR: where the table of the far reduction starts.
_FIRST_EXPONENT: Final = 144
# 2·√(2/π), its high part of 12 bits, and 2·√(2/π)·0.044715, each as a high and a low fp32 part
_GELU_LINEAR: Final = (1.595703125, 6.599660264328122e-05)
_GELU_CUBIC: Final = (0.07135481387376785, 2.3988324659995897e-09)


def _horner(b: VectorBuilder[V], table: Sequence[float], x: V) -> V:
    value = b.const(table[-1])
    for coefficient in table[-2::-1]:
        value = b.fma(value, x, b.const(coefficient))
    return value


def _exp_parts(b: VectorBuilder[V], x: V, low: V | None = None) -> tuple[V, V]:
    """``(n, s)`` with ``exp(x + low) = 2**n·(1 + s)`` and ``|s| < 0.42``, for ``|x| <= 180``."""
    n = b.round(b.mul(x, b.const(_LOG2E)))
    r = b.fma(n, b.const(-_LN2_HIGH), x)
    r = b.fma(n, b.const(-_LN2_LOW), r)
    if low is not None:
        r = b.add(r, low)
    q = _horner(b, _EXP, r)
    return n, b.fma(b.mul(r, r), q, r)


def exp(b: VectorBuilder[V], x: V) -> V:
    """``e**x``; 0 below -104, inf above 88.73."""
    x = b.minimum(b.const(89.0), x)
    # Results that underflow cost a processor over 100 cycles each, and masks make many of them.
    gone, zero = b.less(x, b.const(-104.0)), b.const(0.0)
    n, s = _exp_parts(b, b.select(gone, zero, x))
    return b.select(gone, zero, b.scale_by_power(b.add(s, b.const(1.0)), n))


def log(b: VectorBuilder[V], x: V) -> V:
    """Natural logarithm; -inf at ±0, nan below."""
    tiny = b.less(x, b.const(_SMALLEST_NORMAL))
    scaled = b.select(tiny, b.mul(x, b.const(8388608.0)), x)
    bias = b.select(tiny, b.const(-23.0), b.const(0.0))
    # Subtracting the bits of 1/√2 puts the mantissa into [1/√2, √2).
    offset = b.int_add(b.bits(scaled), b.const_int(-0x3F3504F3))
    exponent = b.add(b.int_to_float(b.int_shift_right(offset, 23)), bias)
    mantissa = b.int_add(b.int_and(offset, b.const_int(0x007FFFFF)), b.const_int(0x3F3504F3))
    f = b.sub(b.from_bits(mantissa), b.const(1.0))
    square = b.mul(f, f)
    tail = b.mul(b.mul(square, f), _horner(b, _LOG, f))
    tail = b.fma(exponent, b.const(_LN2_LOW), tail)
    tail = b.fma(square, b.const(-0.5), tail)
    value = b.fma(exponent, b.const(_LN2_HIGH), b.add(f, tail))
    # inf and nan pass through; zero is -inf; negative numbers are nan.
    value = b.select(b.less(x, b.const(float("inf"))), value, x)
    value = b.select(b.equal(x, b.const(0.0)), b.const(float("-inf")), value)
    return b.select(b.less(x, b.const(0.0)), b.const(float("nan")), value)


def tanh(b: VectorBuilder[V], x: V) -> V:
    """Hyperbolic tangent: ``-expm1(t)/(2 + expm1(t))`` or ``1 - 2e/(1 + e)``, with t = -2|x|."""
    t = b.maximum(b.const(-40.0), b.mul(b.abs(x), b.const(-2.0)))
    n, s = _exp_parts(b, t)
    one = b.const(1.0)
    power = b.scale_by_power(one, n)
    e = b.fma(power, s, power)
    minus_expm1 = b.sub(b.sub(one, power), b.mul(power, s))
    # The quotient is below 1/2 either way, so its error hardly reaches the result.
    large = b.less(e, b.const(1 / 3))
    quotient = _refined_quotient(b, b.select(large, b.add(e, e), minus_expm1), None, e)
    return b.copysign(b.select(large, b.sub(one, quotient), quotient), x)


def sigmoid(b: VectorBuilder[V], x: V) -> V:
    """``1 / (1 + exp(-x))``."""
    return _times_sigmoid(b, b.const(1.0), x, None)


def silu(b: VectorBuilder[V], x: V) -> V:
    """``x·sigmoid(x)``; -0 at -inf."""
    return _times_sigmoid(b, b.maximum(b.const(-150.0), x), x, None)


def gelu_apprx_tanh(b: VectorBuilder[V], x: V) -> V:
    """``x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2``, that is ``x·sigmoid`` of twice the argument."""
    bounded = b.maximum(b.const(-20.0), b.minimum(b.const(20.0), x))
    square = b.mul(bounded, bounded)
    square_low = b.fma(bounded, bounded, b.neg(square))
    linear, cubic = b.const(_GELU_LINEAR[0]), b.const(_GELU_CUBIC[0])
    factor = b.fma(square, cubic, linear)
    factor_low = b.fma(square, cubic, b.sub(linear, factor))
    factor_low = b.add(factor_low, b.fma(square_low, cubic, b.const(_GELU_LINEAR[1])))
    factor_low = b.fma(square, b.const(_GELU_CUBIC[1]), factor_low)
    z = b.mul(bounded, factor)
    z_low = b.fma(bounded, factor_low, b.fma(bounded, factor, b.neg(z)))
    return _times_sigmoid(b, b.maximum(b.const(-20.0), x), z, z_low)


def _times_sigmoid(b: VectorBuilder[V], factor: V, x: V, low: V | None) -> V:
    """``factor·sigmoid(x + low)``, relatively accurate in the lower tail."""
    t = b.maximum(b.const(-120.0), b.neg(b.abs(x)))
    positive = b.less(b.const(0.0), x)
    if low is not None:
        low = b.select(positive, b.neg(low), low)
    n, s = _exp_parts(b, t, low)
    zero, one = b.const(0.0), b.const(1.0)
    e = b.scale_by_power(b.add(s, one), n)
    # (factor + factor·s) / (1 + e) with the rounding errors of both sides taken back.
    s = b.select(positive, zero, s)
    numerator = b.fma(factor, s, factor)
    numerator_low = b.fma(factor, s, b.sub(factor, numerator))
    quotient = _refined_quotient(b, numerator, numerator_low, e)
    # The power of two comes last, so that a denormal result is rounded once.
    value = b.scale_by_power(quotient, b.select(positive, zero, n))
    return b.select(b.equal(factor, b.const(float("inf"))), factor, value)


def _refined_quotient(b: VectorBuilder[V], numerator: V, numerator_low: V | None, e: V) -> V:
    """``(numerator + numerator_low) / (1 + e)`` to little more than half an ulp, 0 <= e <= 1."""
    one = b.const(1.0)
    denominator = b.add(e, one)
    denominator_low = b.sub(e, b.sub(denominator, one))
    inverse = b.inverse(denominator)
    quotient = b.mul(numerator, inverse)
    minus = b.neg(quotient)
    rest = b.fma(minus, denominator, numerator)
    if numerator_low is not None:
        rest = b.add(rest, numerator_low)
    rest = b.fma(minus, denominator_low, rest)
    return b.fma(rest, inverse, quotient)


def gelu(b: VectorBuilder[V], x: V) -> V:
    """``x·Phi(x)`` with the normal distribution ``Phi``, relatively accurate in the lower tail."""
    t = b.minimum(b.const(14.6), b.abs(x))
    square = b.mul(t, t)
    square_low = b.fma(t, t, b.neg(square))
    half = b.const(-0.5)
    n, s = _exp_parts(b, b.mul(square, half), b.mul(square_low, half))
    # u = 1/(1 + slope·t) with its rounding error e, so that u·(1 + e) is the exact quotient.
    slope, one = b.const(_MILLS_SLOPE), b.const(1.0)
    d = b.fma(slope, t, one)
    d_low = b.fma(slope, t, b.sub(one, d))
    u = b.inverse(d)
    minus_u = b.neg(u)
    e = b.fma(minus_u, d_low, b.fma(minus_u, d, one))
    double = b.add(u, u)
    w = b.fma(double, e, b.sub(double, one))
    slope_part, first = _horner(b, _MILLS[1:], w), b.const(_MILLS[0])
    ratio = b.fma(slope_part, w, first)
    ratio_low = b.fma(slope_part, w, b.sub(first, ratio))
    mills = b.mul(u, ratio)
    mills_low = b.fma(u, ratio_low, b.fma(u, ratio, b.neg(mills)))
    tail = b.mul(mills, t)
    tail_low = b.fma(mills_low, t, b.fma(mills, t, b.neg(tail)))
    tail = b.add(tail, b.fma(tail, b.fma(e, s, b.add(s, e)), tail_low))
    tail = b.scale_by_power(tail, n)
    return b.sub(b.maximum(b.const(0.0), x), tail)


def erf(b: VectorBuilder[V], x: V) -> V:
    """The error function."""
    near = b.fma(x, _horner(b, _ERF_SMALL, b.mul(x, x)), x)
    t = b.abs(x)
    # erfc is at most 0.22 here, so its logarithm and power may be short.
    y = _horner(b, _ERF_LARGE, b.minimum(b.const(4.0), t))
    n = b.round(y)
    r = b.sub(y, n)
    one = b.const(1.0)
    erfc = b.scale_by_power(b.fma(r, _horner(b, _EXP2, r), one), n)
    far = b.copysign(b.sub(one, erfc), x)
    return b.select(b.less(t, b.const(0.875)), near, far)


def softplus(b: VectorBuilder[V], x: V) -> V:
    """``log(1 + exp(x))``."""
    t = b.maximum(b.const(-120.0), b.neg(b.abs(x)))
    n, s = _exp_parts(b, t)
    one = b.const(1.0)
    mantissa = b.add(s, one)
    half = b.scale_by_power(b.mul(mantissa, b.const(0.5)), n)
    mantissa_low = b.sub(s, b.sub(mantissa, one))
    q = b.scale_by_power(_refined_quotient(b, mantissa, mantissa_low, half), n)
    square = b.mul(q, q)
    log1p = b.fma(b.mul(square, q), _horner(b, _LOG1P, square), q)
    return b.add(b.maximum(b.const(0.0), x), log1p)


def sin(b: VectorBuilder[V], x: V) -> V:
    """Sine in radians of any finite number; nan at ±inf."""
    # 1.5·2^23 leaves the rounded multiple of π in the low mantissa bits.
    magic = b.const(12582912.0)
    shifted = b.fma(x, b.const(_INV_PI), magic)
    n = b.sub(shifted, magic)
    r = b.fma(n, b.const(-_PI[0]), x)
    r = b.fma(n, b.const(-_PI[1]), r)
    r = b.fma(n, b.const(-_PI[2]), r)
    near = _sin_reduced(b, r, b.bits(shifted))
    return b.where_any(b.less(b.const(_SIN_NEAR), b.abs(x)), lambda: _sin_far(b, x), near)


def _sin_reduced(b: VectorBuilder[V], r: V, half_turns: V) -> V:
    """``sin(r + π·half_turns)`` for ``|r| <= π/2`` and int32 ``half_turns``."""
    square = b.mul(r, r)
    value = b.fma(b.mul(square, r), _horner(b, _SIN, square), r)
    return b.from_bits(b.int_add(b.bits(value), b.int_shift_left(half_turns, 31)))


def _sin_far(b: VectorBuilder[V], x: V) -> V:
    """Payne-Hanek: ``x = m·2^e``, and a table holds ``2^e/π mod 2`` to 111 bits."""
    magnitude = b.bits(b.abs(x))
    exponent = b.int_add(b.int_shift_right(magnitude, 23), b.const_int(-_FIRST_EXPONENT))
    # Lanes that take the near road, and inf, may hold any exponent.
    exponent = b.int_and(exponent, b.const_int(127))
    mantissa = b.int_add(b.int_and(magnitude, b.const_int(0x7FFFFF)), b.const_int(0x800000))
    m = b.widen(b.int_to_float(mantissa))
    high, middle, low = _inverse_pi_tables()
    turns = b.mul(m, b.table(high, exponent))
    rest = b.mul(m, b.table(middle, exponent))
    half_turns = b.round(b.add(turns, rest))
    part = b.add(b.sub(turns, half_turns), rest)
    part = b.add(part, b.mul(m, b.table(low, exponent)))
    pi = b.add(b.widen(b.const(_PI[0])), b.widen(b.const(_PI[1])))
    value = _sin_reduced(b, b.narrow(b.mul(part, pi)), b.float_to_int(half_turns))
    # x - x is nan at inf and adds nothing elsewhere.
    return b.add(b.mul(value, b.copysign(b.const(1.0), x)), b.sub(x, x))


@cache
def _inverse_pi_tables() -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """``2^(k + first exponent - 150)/π mod 2`` as sums of 29, 29 and 53 bits, for k = 0..127."""
    bits = 320
    inverse_pi = (1 << (2 * bits)) // _pi_fixed(bits)
    parts: tuple[list[float], list[float], list[float]] = ([], [], [])
    for k in range(128):
        value = (inverse_pi << k >> (150 - _FIRST_EXPONENT)) % (2 << bits)
        for part, keep in zip(parts, (28, 57, 110), strict=True):
            head = value >> (bits - keep)
            part.append(head / (1 << keep))
            value -= head << (bits - keep)
    return tuple(parts[0]), tuple(parts[1]), tuple(parts[2])


def _pi_fixed(bits: int) -> int:
    """π·2^bits by Machin's formula."""

    def arctan_inverse(n: int) -> int:
        term = (1 << (bits + 16)) // n
        total, k = term, 1
        while term:
            term //= n * n
            k += 2
            total += -term // k if k % 4 == 3 else term // k
        return total

    return (16 * arctan_inverse(5) - 4 * arctan_inverse(239)) >> 16


def arctan(b: VectorBuilder[V], x: V) -> V:
    """Inverse tangent."""
    t = b.abs(x)
    beyond = b.less(b.const(1.0), t)
    t = b.select(beyond, b.div(b.const(1.0), t), t)
    square = b.mul(t, t)
    a = b.fma(b.mul(square, t), _horner(b, _ARCTAN, square), t)
    complement = b.sub(b.const(_HALF_PI), b.sub(a, b.const(_HALF_PI_LOW)))
    return b.copysign(b.select(beyond, complement, a), x)


def rsqrt(b: VectorBuilder[V], x: V) -> V:
    """``1/√x``; inf at 0, nan below."""
    return b.div(b.const(1.0), b.sqrt(x))


def reciprocal(b: VectorBuilder[V], x: V) -> V:
    """``1/x``, correctly rounded."""
    return b.div(b.const(1.0), x)


FUNCTIONS: Final[dict[str, Function]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "gelu": gelu,
    "gelu_apprx_tanh": gelu_apprx_tanh,
    "silu": silu,
    "softplus": softplus,
    "sin": sin,
    "arctan": arctan,
    "rsqrt": rsqrt,
    "reciprocal": reciprocal,
}
"""The functions by their ``activation`` name; ``copy``, ``square``, ``abs``, ``sign``, ``relu`` and
``sqrt`` are single operations of either consumer."""
