"""The workloads in trnx: each function is jitted by whoever measures it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import trnx
import trnx.lax as lax
import trnx.nn as nn
import trnx.numpy as tnp
from benchmarks.workloads import ADAM_DECAYS, ADAM_EPSILON, ADAM_RATE, Case

Array = Any


def matmul(x: Array, y: Array) -> Array:
    return x @ y


def linear_gelu(x: Array, w: Array, b: Array) -> Array:
    return nn.gelu(x @ w.T + b)


def gelu_chain(x: Array, y: Array) -> Array:
    return nn.gelu(x * 1.5 + y) * y + x


def softmax(x: Array) -> Array:
    return nn.softmax(x)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return nn.layer_norm(x, weight, bias)


def layer_norm_dot(x: Array, weight: Array, bias: Array, cotangent: Array) -> Array:
    return (nn.layer_norm(x, weight, bias) * cotangent).sum()


def cross_entropy(logits: Array, labels: Array) -> Array:
    return nn.cross_entropy(logits, labels)


def sum_rows(x: Array) -> Array:
    return x.sum(axis=0)


def sum_all(x: Array) -> Array:
    return x.sum()


def transpose_add(x: Array, y: Array) -> Array:
    return x.T + y


def mlp(*values: Array) -> Array:
    count = (len(values) - 2) // 2
    h, labels = values[-2], values[-1]
    for layer in range(count):
        h = h @ values[layer].T + values[count + layer]
        h = tnp.tanh(h) if layer + 1 < count else h
    return nn.cross_entropy(h, labels)


def attention(q: Array, k: Array, v: Array) -> Array:
    return nn.dot_product_attention(q, k, v, is_causal=True)


def attention_sum(q: Array, k: Array, v: Array) -> Array:
    out = nn.dot_product_attention(q, k, v, is_causal=True)
    return (out * out).sum()


def conv_net(w1: Array, w2: Array, w3: Array, x: Array, labels: Array) -> Array:
    h = nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME"))
    h = nn.relu(lax.conv_general_dilated(h, w2, (2, 2), "SAME"))
    return nn.cross_entropy(h.mean(axis=(2, 3)) @ w3.T, labels)


def gather(table: Array, rows: Array) -> Array:
    return table[rows]


def scatter_add(table: Array, rows: Array, updates: Array) -> Array:
    return table.at[rows].add(updates)


def lstm(xs: Array, w: Array, u: Array, b: Array) -> Array:
    width = w.shape[0]
    zero = tnp.zeros((xs.shape[1], width), xs.dtype)

    def step(carry: Any, x: Array) -> Any:
        h, c = carry
        gates = x @ w + h @ u + b
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * tnp.tanh(g)
        h = nn.sigmoid(o) * tnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (zero, zero), xs)[1]


def adam(p: Array, g: Array, m: Array, v: Array) -> Any:
    b1, b2 = ADAM_DECAYS
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p - ADAM_RATE * m / (tnp.sqrt(v) + ADAM_EPSILON), m, v


def jitted(case: Case) -> Callable[..., Any]:
    """The workload under `jit`, with its gradients if it has some."""
    function = globals()[case.function]
    if case.grads:
        function = trnx.value_and_grad(function, argnums=case.grads)
    return trnx.jit(function)


def inputs(arrays: Sequence[np.ndarray]) -> list[Array]:
    """The library's own arrays."""
    return [tnp.asarray(a) for a in arrays]


def wait(result: Any) -> Any:
    """Return when a result is complete: calls of trnx are."""
    return result


def warm_up() -> Array:
    """A result that needs the library's devices, threads and compiler to have started."""
    return trnx.jit(lambda x: x + 1)(tnp.zeros(3))
