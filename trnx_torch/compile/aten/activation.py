"""Activation functions and their derivatives."""

from __future__ import annotations

import math
from typing import Any

from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any

lowers("relu.default", promotion=KIND.DEFAULT)(nn.relu)
lowers("silu.default", promotion=KIND.DEFAULT)(nn.silu)


@lowers("silu_backward.default", promotion=KIND.DEFAULT)
def _silu_backward(grad: Value, x: Value) -> Value:
    s = nn.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@lowers("gelu.default", promotion=KIND.DEFAULT)
def _gelu(x: Value, *, approximate: str = "none") -> Value:
    return nn.gelu(x, approximate=approximate == "tanh")


@lowers("gelu_backward.default", promotion=KIND.DEFAULT)
def _gelu_backward(grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        c, k = math.sqrt(2.0 / math.pi), 0.044715
        t = np.tanh(c * (x + k * x * x * x))
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * k * x * x))
    cdf = 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))
    return grad * (cdf + x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


@lowers("tanh_backward.default", promotion=KIND.DEFAULT)
def _tanh_backward(grad: Value, out: Value) -> Value:
    return grad * (1 - out * out)


@lowers("sigmoid_backward.default", promotion=KIND.DEFAULT)
def _sigmoid_backward(grad: Value, out: Value) -> Value:
    return grad * (1 - out) * out


@lowers("threshold.default", promotion=KIND.DEFAULT)
def _threshold(x: Value, threshold: float, value: float) -> Value:
    return np.where(x <= threshold, np.full((), value, dtype=x.dtype), x)


@lowers("threshold_backward.default", promotion=KIND.DEFAULT)
def _threshold_backward(grad: Value, x: Value, threshold: float) -> Value:
    return np.where(x <= threshold, np.zeros_like(grad), grad)


@lowers("leaky_relu.default", promotion=KIND.DEFAULT)
def _leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    return np.where(x > 0, x, x * negative_slope)


@lowers("leaky_relu_backward.default", promotion=KIND.DEFAULT)
def _leaky_relu_backward(grad: Value, x: Value, slope: float, self_is_result: bool) -> Value:
    return np.where(x > 0, grad, grad * slope)


@lowers("hardtanh.default", promotion=KIND.DEFAULT)
def _hardtanh(x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return np.clip(x, low, high)


@lowers("hardtanh_backward.default", promotion=KIND.DEFAULT)
def _hardtanh_backward(grad: Value, x: Value, low: float, high: float) -> Value:
    return np.where((x <= low) | (x >= high), np.zeros_like(grad), grad)


@lowers("elu.default", promotion=KIND.DEFAULT)
def _elu(x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    below = alpha * np.expm1(np.minimum(x, 0) * input_scale)
    return scale * np.where(x > 0, x, below)


@lowers("elu_backward.default", promotion=KIND.DEFAULT)
def _elu_backward(
    grad: Value, alpha: float, scale: float, input_scale: float, is_result: bool, x: Value
) -> Value:
    if is_result:
        below = input_scale * (x + alpha * scale)
    else:
        below = input_scale * alpha * scale * np.exp(np.minimum(x, 0) * input_scale)
    return grad * np.where(x > 0, np.full((), scale, dtype=grad.dtype), below)


@lowers("softplus.default", promotion=KIND.DEFAULT)
def _softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = x * beta
    return np.where(scaled > threshold, x, nn.softplus(scaled) / beta)


@lowers("softplus_backward.default", promotion=KIND.DEFAULT)
def _softplus_backward(grad: Value, x: Value, beta: float, threshold: float) -> Value:
    scaled = x * beta
    return np.where(scaled > threshold, grad, grad * nn.sigmoid(scaled))


@lowers("log_sigmoid_forward.default")
def _log_sigmoid(x: Value) -> tuple[Value, Value]:
    # The second value is a buffer of PyTorch's CPU kernel; the derivative does not need it.
    return -nn.softplus(-x), np.zeros((0,), dtype=x.dtype)


@lowers("log_sigmoid_backward.default")
def _log_sigmoid_backward(grad: Value, x: Value, buffer: Value) -> Value:
    return grad * nn.sigmoid(-x)


@lowers("hardswish.default", promotion=KIND.DEFAULT)
def _hardswish(x: Value) -> Value:
    return x * np.clip(x + 3, 0, 6) / 6


@lowers("hardsigmoid.default", promotion=KIND.DEFAULT)
def _hardsigmoid(x: Value) -> Value:
    return np.clip(x + 3, 0, 6) / 6


@lowers("glu.default", promotion=KIND.DEFAULT)
def _glu(x: Value, dim: int = -1) -> Value:
    left, right = np.split(x, 2, axis=dim % x.ndim)
    return left * nn.sigmoid(right)
