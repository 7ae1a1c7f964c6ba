"""Special and inverse functions, and the elementwise operators between them, as array code.

Bessel functions and the error function's scaled complement are the polynomials of Abramowitz and
Stegun (9.4.1-9.4.6, 9.8.1-9.8.8) and a rational-exponential fit: relative error below 2e-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
from trnx.core.dtypes import is_bool, is_integer
from trnx.ops.trigonometry import atan2_p
from trnx_torch.compile.aten.registry import RULES, lowers

Value = Any


def _rule(*names: str, kind: KIND = KIND.INT_TO_FLOAT) -> Callable[[Any], Any]:
    """Registers array code for the overloads that no other family has a rule for."""
    return lowers(*(name for name in names if name not in RULES), promotion=kind)


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Coefficients from the lowest power."""
    result: Value = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def _whole(x: Value) -> bool:
    return is_integer(x.dtype) or is_bool(x.dtype)


# ---------------------------------------------------------------- inverse functions
def _angle(y: Value, x: Value) -> Value:
    return atan2_p.bind(*np.broadcast_arrays(y, x))


@_rule("atan2.default")
def _atan2(y: Value, x: Value) -> Value:
    return _angle(y, x)


@_rule("atan.default")
def _atan(x: Value) -> Value:
    return _angle(x, np.ones_like(x))


@_rule("asin.default")
def _asin(x: Value) -> Value:
    return _angle(x, np.sqrt((1 - x) * (1 + x)))


@_rule("acos.default")
def _acos(x: Value) -> Value:
    return _angle(np.sqrt((1 - x) * (1 + x)), x)


@_rule("angle.default")
def _angle_of_number(x: Value) -> Value:
    return np.where(np.isnan(x), x, np.where(x < 0, math.pi, 0.0))


_LARGE = 1e9  # beyond it a square root of x² ± 1 is x in every dtype that computes here


@_rule("asinh.default")
def _asinh(x: Value) -> Value:
    a = np.abs(x)
    small = np.minimum(a, _LARGE)
    near = np.log1p(small + small * small / (1 + np.sqrt(1 + small * small)))
    result = np.where(a > _LARGE, np.log(a) + math.log(2.0), near)
    return np.where(x < 0, -result, np.where(x == 0, x, result))


@_rule("acosh.default")
def _acosh(x: Value) -> Value:
    small = np.where(x > _LARGE, 1.0, x)
    less = small - 1
    near = np.log1p(less + np.sqrt(less * (small + 1)))
    return np.where(x > _LARGE, np.log(x) + math.log(2.0), near)


@_rule("atanh.default")
def _atanh(x: Value) -> Value:
    a = np.abs(x)
    result = 0.5 * np.log1p(2 * a / (1 - a))
    return np.where(x < 0, -result, result)


# ---------------------------------------------------------------- gamma family
def _sine_of_pi(x: Value) -> Value:
    """sin(π r) for the fraction r of x: only its magnitude is sin(π x)'s."""
    return np.sin(math.pi * (x - np.floor(x)))


def _log_gamma_positive(x: Value) -> Value:
    low = x < 7
    w = np.where(low, x + 7, x)
    product: Value = x
    for k in range(1, 7):
        product = product * (x + k)
    y = 1 / w
    series = y * _polynomial(y * y, (1 / 12, -1 / 360, 1 / 1260, -1 / 1680))
    result = (w - 0.5) * np.log(w) - w + 0.5 * math.log(2 * math.pi) + series
    return result - np.where(low, np.log(np.where(low, product, 1.0)), 0.0)


@_rule("lgamma.default")
def _lgamma(x: Value) -> Value:
    reflected = x < 0.5
    positive = _log_gamma_positive(np.where(reflected, 1 - x, x))
    mirror = math.log(math.pi) - np.log(np.abs(_sine_of_pi(x))) - positive
    result = np.where(reflected, mirror, positive)
    return np.where(np.isinf(x), math.inf, result)


@_rule("digamma.default")
def _digamma(x: Value) -> Value:
    reflected = x < 0
    z = np.where(reflected, 1 - x, x)
    shifted: Value = 0.0
    for k in range(8):
        shifted = shifted + 1 / (z + k)
    low = z < 8
    w = np.where(low, z + 8, z)
    y = 1 / (w * w)
    series = y * _polynomial(y, (1 / 12, -1 / 120, 1 / 252, -1 / 240))
    result = np.log(w) - 0.5 / w - series - np.where(low, shifted, 0.0)
    fraction = x - np.floor(x)
    mirror = result - math.pi / np.tan(math.pi * fraction)
    mirror = np.where(fraction == 0, math.nan, mirror)
    pole = np.where(1 / np.where(x == 0, x, 1.0) > 0, -math.inf, math.inf)
    return np.where(x == 0, pole, np.where(reflected, mirror, result))


# ---------------------------------------------------------------- Bessel functions
_I0_SMALL = (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813)
_I0_LARGE = (
    0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537,
    -0.01647633, 0.00392377,
)  # fmt: skip
_I1_SMALL = (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411)
_I1_LARGE = (
    0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312,
    0.01787654, -0.00420059,
)  # fmt: skip
_K0_SMALL = (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740)
_K0_LARGE = (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208)
_K1_SMALL = (1.0, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686)
_K1_LARGE = (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245)
_J0_SMALL = (1.0, -2.2499997, 1.2656208, -0.3163866, 0.0444479, -0.0039444, 0.0002100)
_Y0_SMALL = (
    0.36746691, 0.60559366, -0.74350384, 0.25300117, -0.04261214, 0.00427916, -0.00024846,
)  # fmt: skip
_F0 = (0.79788456, -0.00000077, -0.00552740, -0.00009512, 0.00137237, -0.00072805, 0.00014476)
_T0 = (-0.78539816, -0.04166397, -0.00003954, 0.00262573, -0.00054125, -0.00029333, 0.00013558)
_J1_SMALL = (0.5, -0.56249985, 0.21093573, -0.03954289, 0.00443319, -0.00031761, 0.00001109)
_Y1_SMALL = (-0.6366198, 0.2212091, 2.1682709, -1.3164827, 0.3123951, -0.0400976, 0.0027873)
_F1 = (0.79788456, 0.00000156, 0.01659667, 0.00017105, -0.00249511, 0.00113653, -0.00020033)
_T1 = (-2.35619449, 0.12499612, 0.00005650, -0.00637879, 0.00074348, 0.00079824, -0.00029166)


def _modified(x: Value, order: int, scaled: bool) -> Value:
    """I0 or I1, times exp(-|x|) if scaled."""
    a = np.abs(x)
    small, large = (_I0_SMALL, _I0_LARGE) if order == 0 else (_I1_SMALL, _I1_LARGE)
    near = np.minimum(a, 3.75)
    low = _polynomial((near / 3.75) ** 2, small) * (1.0 if order == 0 else near)
    far = np.maximum(a, 3.75)
    high = _polynomial(3.75 / far, large) / np.sqrt(far)
    if scaled:
        result = np.where(a <= 3.75, low * np.exp(-a), high)
    else:
        # exp(a) overflows before the quotient does.
        half = np.exp(0.5 * far)
        result = np.where(a <= 3.75, low, high * half * half)
    return result if order == 0 else np.where(x < 0, -result, result)


for _name, _order, _scaled in (
    ("i0", 0, False),
    ("special_i0e", 0, True),
    ("special_i1", 1, False),
    ("special_i1e", 1, True),
    ("special_modified_bessel_i0", 0, False),
    ("special_modified_bessel_i1", 1, False),
):
    _rule(f"{_name}.default")(lambda x, order=_order, scaled=_scaled: _modified(x, order, scaled))


def _second_modified(x: Value, order: int, scaled: bool) -> Value:
    """K0 or K1, times exp(x) if scaled; infinite at 0, NaN below."""
    near = np.clip(x, 1e-38, 2.0)
    t = (near / 2) ** 2
    if order == 0:
        low = -np.log(near / 2) * _modified(near, 0, False) + _polynomial(t, _K0_SMALL)
    else:
        low = np.log(near / 2) * _modified(near, 1, False) + _polynomial(t, _K1_SMALL) / near
    far = np.maximum(x, 2.0)
    high = _polynomial(2 / far, _K0_LARGE if order == 0 else _K1_LARGE) / np.sqrt(far)
    low, high = (low * np.exp(near), high) if scaled else (low, high * np.exp(-far))
    result = np.where(x <= 2, low, high)
    return np.where(x == 0, math.inf, np.where(x < 0, math.nan, result))


for _name, _order, _scaled in (
    ("special_modified_bessel_k0", 0, False),
    ("special_modified_bessel_k1", 1, False),
    ("special_scaled_modified_bessel_k0", 0, True),
    ("special_scaled_modified_bessel_k1", 1, True),
):
    _rule(f"{_name}.default")(
        lambda x, order=_order, scaled=_scaled: _second_modified(x, order, scaled)
    )


def _wave(x: Value, order: int, turn: Callable[[Value], Value]) -> Value:
    """The form of J and Y for x >= 3: amplitude times cosine or sine of a phase."""
    y = 3 / x
    amplitude = _polynomial(y, _F0 if order == 0 else _F1) / np.sqrt(x)
    return amplitude * turn(x + _polynomial(y, _T0 if order == 0 else _T1))


def _first(x: Value, order: int) -> Value:
    """J0 or J1."""
    a = np.abs(x)
    near, far = np.minimum(a, 3.0), np.maximum(a, 3.0)
    low = _polynomial((near / 3) ** 2, _J0_SMALL if order == 0 else _J1_SMALL)
    low = low if order == 0 else low * near
    result = np.where(a <= 3, low, _wave(far, order, np.cos))
    return result if order == 0 else np.where(x < 0, -result, result)


def _second(x: Value, order: int) -> Value:
    """Y0 or Y1; minus infinity at 0, NaN below."""
    near, far = np.clip(x, 1e-38, 3.0), np.maximum(x, 3.0)
    t = (near / 3) ** 2
    own = (2 / math.pi) * np.log(near / 2) * _first(near, order)
    if order == 0:
        low = own + _polynomial(t, _Y0_SMALL)
    else:
        low = own + _polynomial(t, _Y1_SMALL) / near
    result = np.where(x <= 3, low, _wave(far, order, np.sin))
    return np.where(x == 0, -math.inf, np.where(x < 0, math.nan, result))


for _order in (0, 1):
    _rule(f"special_bessel_j{_order}.default")(lambda x, order=_order: _first(x, order))
    _rule(f"special_bessel_y{_order}.default")(lambda x, order=_order: _second(x, order))


@_rule("special_spherical_bessel_j0.default")
def _spherical(x: Value) -> Value:
    small = np.abs(x) < 0.5
    safe = np.where(small, 1.0, x)
    t = x * x
    return np.where(
        small, _polynomial(t, (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880)), np.sin(safe) / safe
    )


_ERFCX = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


@_rule("special_erfcx.default")
def _erfcx(x: Value) -> Value:
    t = 1 / (1 + 0.5 * np.abs(x))
    positive = t * np.exp(_polynomial(t, _ERFCX))
    return np.where(x < 0, 2 * np.exp(x * x) - positive, positive)


# ---------------------------------------------------------------- entropy-like
@_rule("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def _xlogy(x: Value, y: Value) -> Value:
    return np.where(np.isnan(y), math.nan, np.where(x == 0, 0.0, x * np.log(y)))


@_rule("special_xlog1py.default", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def _xlog1py(x: Value, y: Value) -> Value:
    return np.where(np.isnan(y), math.nan, np.where(x == 0, 0.0, x * np.log1p(y)))


@_rule("special_entr.default")
def _entropy(x: Value) -> Value:
    positive = np.where(x > 0, -x * np.log(np.where(x > 0, x, 1.0)), x)
    return np.where(x < 0, -math.inf, np.where(x == 0, 0.0, positive))


@_rule("logaddexp2.default")
def _logaddexp2(x: Value, y: Value) -> Value:
    top = np.maximum(x, y)
    less = np.where(x == y, 0.0, -np.abs(x - y))
    return top + np.log1p(np.exp2(less)) * (1 / math.log(2.0))


@_rule("sinc.default")
def _sinc(x: Value) -> Value:
    scaled = math.pi * np.where(x == 0, 1.0, x)
    return np.where(x == 0, 1.0, np.sin(scaled) / scaled)


@_rule("logit.default")
def _logit(x: Value, eps: float | None = None) -> Value:
    z = x if eps is None else np.minimum(np.maximum(x, eps), 1 - eps)
    return np.log(z / (1 - z))


@_rule("logit_backward.default", kind=KIND.DEFAULT)
def _logit_backward(grad: Value, x: Value, eps: float | None = None) -> Value:
    slope = grad / (x * (1 - x))
    if eps is None:
        return np.where((x < 0) | (x > 1), math.nan, slope)
    return np.where((x < eps) | (x > 1 - eps), 0.0, slope)


# ---------------------------------------------------------------- parts and choices
@_rule("floor_divide.default", "floor_divide.Scalar", kind=KIND.DEFAULT)
def _floor_divide(x: Value, y: Value) -> Value:
    return np.floor_divide(x, y)


@_rule("frac.default", kind=KIND.DEFAULT)
def _frac(x: Value) -> Value:
    return x - np.trunc(x)


@_rule("isposinf.default", kind=KIND.ALWAYS_BOOL)
def _is_positive_infinity(x: Value) -> Value:
    return np.zeros_like(x, dtype=np.bool_) if _whole(x) else x == math.inf


@_rule("isneginf.default", kind=KIND.ALWAYS_BOOL)
def _is_negative_infinity(x: Value) -> Value:
    return np.zeros_like(x, dtype=np.bool_) if _whole(x) else x == -math.inf


@_rule("heaviside.default", kind=KIND.DEFAULT)
def _heaviside(x: Value, values: Value) -> Value:
    step = (x > 0).astype(x.dtype)
    return np.where(x == 0, values, step)


@_rule("fmax.default", kind=KIND.DEFAULT)
def _fmax(x: Value, y: Value) -> Value:
    if _whole(x):
        return np.maximum(x, y)
    return np.where(np.isnan(y), x, np.where(np.isnan(x), y, np.maximum(x, y)))


@_rule("fmin.default", kind=KIND.DEFAULT)
def _fmin(x: Value, y: Value) -> Value:
    if _whole(x):
        return np.minimum(x, y)
    return np.where(np.isnan(y), x, np.where(np.isnan(x), y, np.minimum(x, y)))


@_rule("nan_to_num.default", kind=KIND.DEFAULT)
def _nan_to_num(
    x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if _whole(x):
        return x
    limits = ml_dtypes.finfo(x.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    x = np.where(np.isnan(x), 0.0 if nan is None else nan, x)
    return np.where(x == math.inf, high, np.where(x == -math.inf, low, x))


# ---------------------------------------------------------------- activations
@_rule("hardshrink.default", kind=KIND.DEFAULT)
def _hardshrink(x: Value, lambd: float = 0.5) -> Value:
    return np.where((x >= -lambd) & (x <= lambd), 0.0, x)


@_rule("hardshrink_backward.default", "softshrink_backward.default", kind=KIND.DEFAULT)
def _shrink_backward(grad: Value, x: Value, lambd: float = 0.5) -> Value:
    return np.where((x >= -lambd) & (x <= lambd), 0.0, grad)


@_rule("softshrink.default", kind=KIND.DEFAULT)
def _softshrink(x: Value, lambd: float = 0.5) -> Value:
    inside = np.where(np.isnan(x), x, 0.0)
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, inside))


@_rule("mish.default", kind=KIND.DEFAULT)
def _mish(x: Value) -> Value:
    return x * np.tanh(nn.softplus(x))


@_rule("mish_backward.default", kind=KIND.DEFAULT)
def _mish_backward(grad: Value, x: Value) -> Value:
    t = np.tanh(nn.softplus(x))
    return grad * (t + x * nn.sigmoid(x) * (1 - t * t))


@_rule("hardswish_backward.default", kind=KIND.DEFAULT)
def _hardswish_backward(grad: Value, x: Value) -> Value:
    return np.where(x < -3, 0.0, np.where(x <= 3, grad * (x / 3 + 0.5), grad))


@_rule("hardsigmoid_backward.default", kind=KIND.DEFAULT)
def _hardsigmoid_backward(grad: Value, x: Value) -> Value:
    return np.where((x > -3) & (x < 3), grad * (1 / 6), 0.0)


@_rule("_prelu_kernel.default", kind=KIND.DEFAULT)
def _prelu(x: Value, weight: Value) -> Value:
    return np.where(x > 0, x, weight * x)


# ---------------------------------------------------------------- losses of two tensors
@_rule("special_log_ndtr.default")
def _log_ndtr(x: Value) -> Value:
    t = x * math.sqrt(0.5)
    low = np.minimum(t, -0.5)
    tail = np.log(0.5 * _erfcx(-low)) - low * low
    return np.where(x < -1, tail, np.log1p(-0.5 * (1 - lax.erf(np.maximum(t, -1.0)))))


__all__: Sequence[str] = ()
