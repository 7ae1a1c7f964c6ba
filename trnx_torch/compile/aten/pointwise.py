"""Elementwise ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
from trnx.core.dtypes import is_bool, is_integer
from trnx_torch.compile.aten.registry import lowers
from trnx_torch.dtypes import to_trnx_dtype

Value = Any


def _unary(name: str, fn: Callable[[Value], Value], kind: KIND = KIND.INT_TO_FLOAT) -> None:
    lowers(f"{name}.default", promotion=kind)(fn)


_unary("neg", np.negative, KIND.DEFAULT)
_unary("abs", np.abs, KIND.COMPLEX_TO_FLOAT)
_unary("sign", np.sign, KIND.DEFAULT)
_unary("exp", np.exp)
_unary("log", np.log)
_unary("sqrt", np.sqrt)
_unary("rsqrt", lambda x: np.reciprocal(np.sqrt(x)))
_unary("reciprocal", np.reciprocal)
_unary("tanh", np.tanh)
_unary("sigmoid", nn.sigmoid)
_unary("erf", lax.erf)
_unary("square", np.square, KIND.BOOL_TO_LONG)
_unary("erfinv", lax.erf_inv)
_unary("erfc", lambda x: 1 - lax.erf(x))
_unary("exp2", np.exp2)
_unary("expm1", np.expm1)
_unary("log1p", np.log1p)
_unary("log2", np.log2)
_unary("log10", np.log10)
_unary("sin", np.sin)
_unary("cos", np.cos)
_unary("tan", np.tan)
_unary("sinh", np.sinh)
_unary("cosh", np.cosh)
_unary("floor", np.floor, KIND.DEFAULT)
_unary("ceil", np.ceil, KIND.DEFAULT)
_unary("trunc", np.trunc, KIND.DEFAULT)
_unary("isnan", np.isnan, KIND.ALWAYS_BOOL)
_unary("isinf", np.isinf, KIND.ALWAYS_BOOL)
_unary("isfinite", np.isfinite, KIND.ALWAYS_BOOL)
_unary(
    "signbit", lambda x: x < 0 if _whole(x) else (x < 0) | (1 / x == -math.inf), KIND.ALWAYS_BOOL
)
_unary("logical_not", np.logical_not, KIND.ALWAYS_BOOL)
_unary("bitwise_not", np.invert, KIND.DEFAULT)


def _whole(x: Value) -> bool:
    return is_integer(x.dtype) or is_bool(x.dtype)


@lowers("round.default", "round.decimals", promotion=KIND.DEFAULT)
def _round(x: Value, *, decimals: int = 0) -> Value:
    return x if _whole(x) else np.round(x, decimals)


@lowers("sgn.default", promotion=KIND.DEFAULT)
def _sgn(x: Value) -> Value:
    return np.sign(x)


def _binary(name: str, fn: Callable[[Value, Value], Value], kind: KIND = KIND.DEFAULT) -> None:
    lowers(f"{name}.Tensor", f"{name}.Scalar", promotion=kind)(fn)


_binary("mul", np.multiply)
_binary("div", np.divide, KIND.INT_TO_FLOAT)
_binary("remainder", np.remainder)
_binary("bitwise_and", np.bitwise_and)
_binary("bitwise_or", np.bitwise_or)
_binary("bitwise_xor", np.bitwise_xor)
_binary("eq", np.equal, KIND.ALWAYS_BOOL)
_binary("ne", np.not_equal, KIND.ALWAYS_BOOL)
_binary("lt", np.less, KIND.ALWAYS_BOOL)
_binary("le", np.less_equal, KIND.ALWAYS_BOOL)
_binary("gt", np.greater, KIND.ALWAYS_BOOL)
_binary("ge", np.greater_equal, KIND.ALWAYS_BOOL)
lowers("maximum.default", promotion=KIND.DEFAULT)(np.maximum)
lowers("minimum.default", promotion=KIND.DEFAULT)(np.minimum)
_binary("bitwise_left_shift", np.left_shift)
_binary("bitwise_right_shift", np.right_shift)
lowers("logaddexp.default", promotion=KIND.DEFAULT)(np.logaddexp)
lowers("logical_xor.default", promotion=KIND.ALWAYS_BOOL)(np.logical_xor)
lowers("logical_and.default", promotion=KIND.ALWAYS_BOOL)(np.logical_and)
lowers("logical_or.default", promotion=KIND.ALWAYS_BOOL)(np.logical_or)


@lowers("add.Tensor", "add.Scalar", promotion=KIND.DEFAULT)
def _add(x: Value, y: Value, alpha: float = 1) -> Value:
    return np.add(x, y if alpha == 1 else np.multiply(y, alpha))


@lowers("sub.Tensor", "sub.Scalar", promotion=KIND.DEFAULT)
def _sub(x: Value, y: Value, alpha: float = 1) -> Value:
    return np.subtract(x, y if alpha == 1 else np.multiply(y, alpha))


@lowers("rsub.Tensor", "rsub.Scalar", promotion=KIND.DEFAULT)
def _rsub(x: Value, y: Value, alpha: float = 1) -> Value:
    return _sub(y, x, alpha)


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", promotion=KIND.BOOL_TO_LONG)
def _pow(x: Value, exponent: Value) -> Value:
    return np.power(x, exponent)


@lowers("pow.Scalar", promotion=KIND.BOOL_TO_LONG)
def _pow_of_number(base: float, exponent: Value) -> Value:
    return np.power(np.full((), base, dtype=exponent.dtype), exponent)


@lowers("div.Tensor_mode", "div.Scalar_mode", promotion=KIND.DEFAULT)
def _div_mode(x: Value, y: Value, *, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return np.divide(x, y)
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    if not _whole(x):
        return np.trunc(np.divide(x, y))
    return (x - _fmod(x, y)) // y


@lowers("fmod.Tensor", "fmod.Scalar", promotion=KIND.DEFAULT)
def _fmod(x: Value, y: Value) -> Value:
    """The remainder with the sign of the dividend."""
    rest = np.remainder(np.abs(x), np.abs(y))
    return np.where(x < 0, -rest, rest)


@lowers("copysign.Tensor", "copysign.Scalar", promotion=KIND.INT_TO_FLOAT)
def _copysign(x: Value, y: Value) -> Value:
    negative = (y < 0) | ((y == 0) & (1 / y < 0))
    return np.where(negative, -np.abs(x), np.abs(x))


@lowers("hypot.default", promotion=KIND.DEFAULT)
def _hypot(x: Value, y: Value) -> Value:
    large, small = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    ratio = np.where(large == 0, np.zeros_like(small), small / np.where(large == 0, 1, large))
    return large * np.sqrt(1 + ratio * ratio)


@lowers("addcmul.default", promotion=KIND.DEFAULT)
def _addcmul(x: Value, left: Value, right: Value, *, value: float = 1) -> Value:
    product = left * right
    return x + (product if value == 1 else value * product)


@lowers("addcdiv.default", promotion=KIND.INT_TO_FLOAT)
def _addcdiv(x: Value, left: Value, right: Value, *, value: float = 1) -> Value:
    return x + (left if value == 1 else value * left) / right


@lowers("lerp.Scalar", "lerp.Tensor", promotion=KIND.DEFAULT)
def _lerp(start: Value, end: Value, weight: Value) -> Value:
    """From the nearer end, as PyTorch computes it."""
    if isinstance(weight, int | float):
        near = start + weight * (end - start)
        return near if abs(weight) < 0.5 else end - (end - start) * (1 - weight)
    return np.where(
        np.abs(weight) < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight)
    )


@lowers("clamp_min.default", "clamp_min.Tensor", promotion=KIND.DEFAULT)
def _clamp_min(x: Value, low: Value) -> Value:
    return np.maximum(x, low)


@lowers("clamp_max.default", "clamp_max.Tensor", promotion=KIND.DEFAULT)
def _clamp_max(x: Value, high: Value) -> Value:
    return np.minimum(x, high)


@lowers("clamp.default", "clamp.Tensor", promotion=KIND.DEFAULT)
def _clamp(x: Value, low: Value = None, high: Value = None) -> Value:
    return np.clip(x, low, high)


@lowers("where.self")
def _where(condition: Value, x: Value, y: Value) -> Value:
    # Both branches arrive in their own dtypes; PyTorch promotes them as tensors, never weakly.
    return np.where(condition.astype(np.bool_), x, y)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Value, mask: Value, value: Value) -> Value:
    fill = np.full((), value, dtype=x.dtype) if _is_number(value) else value.astype(x.dtype)
    return np.where(mask, fill, x)


def _is_number(value: Value) -> bool:
    return isinstance(value, bool | int | float | complex)


@lowers("_to_copy.default")
def _to_copy(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return x if dtype is None else x.astype(to_trnx_dtype(dtype))


@lowers("fill.Scalar", "fill.Tensor")
def _fill(x: Value, value: Value) -> Value:
    fill = np.full((), value, dtype=x.dtype) if _is_number(value) else value.astype(x.dtype)
    return np.broadcast_to(fill, x.shape)


@lowers("copy.default")
def _copy(x: Value, source: Value, non_blocking: bool = False) -> Value:
    return np.broadcast_to(source.astype(x.dtype), x.shape)


@lowers(
    "clone.default",
    "alias.default",
    "detach.default",
    "lift_fresh_copy.default",
    "contiguous.default",
    "lift_fresh.default",
)
def _same(x: Value, **_: Any) -> Value:
    return x
