"""The workloads in JAX: each function is jitted by whoever measures it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import ADAM_DECAYS, ADAM_EPSILON, ADAM_RATE, Case

Array = Any


def matmul(x: Array, y: Array) -> Array:
    return x @ y


def linear_gelu(x: Array, w: Array, b: Array) -> Array:
    return jax.nn.gelu(x @ w.T + b, approximate=False)


def gelu_chain(x: Array, y: Array) -> Array:
    return jax.nn.gelu(x * 1.5 + y, approximate=False) * y + x


def softmax(x: Array) -> Array:
    return jax.nn.softmax(x)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def layer_norm_dot(x: Array, weight: Array, bias: Array, cotangent: Array) -> Array:
    return (layer_norm(x, weight, bias) * cotangent).sum()


def cross_entropy(logits: Array, labels: Array) -> Array:
    logp = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logp, labels[:, None], axis=1).mean()


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
        h = jnp.tanh(h) if layer + 1 < count else h
    return cross_entropy(h, labels)


def attention(q: Array, k: Array, v: Array) -> Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def attention_sum(q: Array, k: Array, v: Array) -> Array:
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    return (out * out).sum()


def conv_net(w1: Array, w2: Array, w3: Array, x: Array, labels: Array) -> Array:
    h = jax.nn.relu(jax.lax.conv_general_dilated(x, w1, (1, 1), "SAME"))
    h = jax.nn.relu(jax.lax.conv_general_dilated(h, w2, (2, 2), "SAME"))
    return cross_entropy(h.mean(axis=(2, 3)) @ w3.T, labels)


def gather(table: Array, rows: Array) -> Array:
    return table[rows]


def scatter_add(table: Array, rows: Array, updates: Array) -> Array:
    return table.at[rows].add(updates)


def lstm(xs: Array, w: Array, u: Array, b: Array) -> Array:
    width = w.shape[0]
    zero = jnp.zeros((xs.shape[1], width), xs.dtype)

    def step(carry: Any, x: Array) -> Any:
        h, c = carry
        gates = x @ w + h @ u + b
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, (zero, zero), xs)[1]


def adam(p: Array, g: Array, m: Array, v: Array) -> Any:
    b1, b2 = ADAM_DECAYS
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p - ADAM_RATE * m / (jnp.sqrt(v) + ADAM_EPSILON), m, v


def jitted(case: Case) -> Callable[..., Any]:
    """The workload under `jax.jit`, with its gradients if it has some."""
    function = globals()[case.function]
    if case.grads:
        function = jax.value_and_grad(function, argnums=case.grads)
    return jax.jit(function)


def inputs(arrays: Sequence[np.ndarray]) -> list[Array]:
    """The library's own arrays."""
    return [jnp.asarray(a) for a in arrays]


def wait(result: Any) -> Any:
    """Return when a result is complete."""
    return jax.block_until_ready(result)


def warm_up() -> Array:
    """A result that needs the library's devices, threads and compiler to have started."""
    return jax.jit(lambda x: x + 1)(jnp.zeros(3))
