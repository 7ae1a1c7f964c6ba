"""Elementwise ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
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
_unary("relu", nn.relu, KIND.DEFAULT)
_unary("silu", nn.silu, KIND.DEFAULT)
_unary("square", np.square, KIND.DEFAULT)
_unary("logical_not", np.logical_not, KIND.ALWAYS_BOOL)
_unary("bitwise_not", np.invert, KIND.DEFAULT)


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


@lowers("clamp.default", promotion=KIND.DEFAULT)
def _clamp(x: Value, low: Value = None, high: Value = None) -> Value:
    return np.clip(x, low, high)


@lowers("gelu.default", promotion=KIND.DEFAULT)
def _gelu(x: Value, approximate: str = "none") -> Value:
    return nn.gelu(x, approximate=approximate == "tanh")


@lowers("where.self")
def _where(condition: Value, x: Value, y: Value) -> Value:
    return np.where(condition, x, y)


@lowers("tanh_backward.default", promotion=KIND.DEFAULT)
def _tanh_backward(grad: Value, out: Value) -> Value:
    return grad * (1 - out * out)


@lowers("sigmoid_backward.default", promotion=KIND.DEFAULT)
def _sigmoid_backward(grad: Value, out: Value) -> Value:
    return grad * (1 - out) * out


@lowers("threshold_backward.default", promotion=KIND.DEFAULT)
def _threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    return np.where(x <= threshold, np.zeros_like(grad), grad)


@lowers("gelu_backward.default", promotion=KIND.DEFAULT)
def _gelu_backward(grad: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        c, k = math.sqrt(2.0 / math.pi), 0.044715
        t = np.tanh(c * (x + k * x * x * x))
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * k * x * x))
    cdf = 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    return grad * (cdf + x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


@lowers("_to_copy.default")
def _to_copy(x: Value, *, dtype: Any = None, **_: Any) -> Value:
    return x if dtype is None else x.astype(to_trnx_dtype(dtype))


@lowers("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default")
def _same(x: Value, **_: Any) -> Value:
    return x
