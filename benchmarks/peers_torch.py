"""The workloads in PyTorch on the CPU, eager and compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.workloads import ADAM_DECAYS, ADAM_EPSILON, ADAM_RATE, Case

Array = Any


def matmul(x: Array, y: Array) -> Array:
    return x @ y


def linear_gelu(x: Array, w: Array, b: Array) -> Array:
    return functional.gelu(functional.linear(x, w, b))


def gelu_chain(x: Array, y: Array) -> Array:
    return functional.gelu(x * 1.5 + y) * y + x


def softmax(x: Array) -> Array:
    return torch.softmax(x, -1)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias)


def layer_norm_dot(x: Array, weight: Array, bias: Array, cotangent: Array) -> Array:
    return (layer_norm(x, weight, bias) * cotangent).sum()


def cross_entropy(logits: Array, labels: Array) -> Array:
    return functional.cross_entropy(logits, labels.long())


def sum_rows(x: Array) -> Array:
    return x.sum(0)


def sum_all(x: Array) -> Array:
    return x.sum()


def transpose_add(x: Array, y: Array) -> Array:
    return x.T + y


def mlp(*values: Array) -> Array:
    count = (len(values) - 2) // 2
    h, labels = values[-2], values[-1]
    for layer in range(count):
        h = functional.linear(h, values[layer], values[count + layer])
        h = torch.tanh(h) if layer + 1 < count else h
    return cross_entropy(h, labels)


def attention(q: Array, k: Array, v: Array) -> Array:
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    return out[0].transpose(0, 1)


def attention_sum(q: Array, k: Array, v: Array) -> Array:
    out = attention(q, k, v)
    return (out * out).sum()


def conv_net(w1: Array, w2: Array, w3: Array, x: Array, labels: Array) -> Array:
    # "SAME" of a 3x3 window: one on each side for stride 1, one after the end for stride 2.
    h = functional.relu(functional.conv2d(x, w1, padding=1))
    h = functional.relu(functional.conv2d(functional.pad(h, (0, 1, 0, 1)), w2, stride=2))
    return cross_entropy(h.mean((2, 3)) @ w3.T, labels)


def gather(table: Array, rows: Array) -> Array:
    return table[rows]


def scatter_add(table: Array, rows: Array, updates: Array) -> Array:
    return table.index_add(0, rows, updates)


def lstm(xs: Array, w: Array, u: Array, b: Array) -> Array:
    h = c = torch.zeros(xs.shape[1], w.shape[0])
    outputs = []
    for x in xs:
        i, f, g, o = (x @ w + h @ u + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


_lstm_modules: dict[tuple[int, ...], torch.nn.LSTM] = {}


def lstm_module(xs: Array, w: Array, u: Array, b: Array) -> Array:
    """The same by torch's own LSTM, which is what one would use; its gates have the same order."""
    key = (w.data_ptr(), u.data_ptr(), b.data_ptr())
    module = _lstm_modules.get(key)
    if module is None:
        module = torch.nn.LSTM(w.shape[0], u.shape[0])
        with torch.no_grad():
            module.weight_ih_l0.copy_(w.T)
            module.weight_hh_l0.copy_(u.T)
            module.bias_ih_l0.copy_(b)
            module.bias_hh_l0.zero_()
        _lstm_modules[key] = module
    with torch.no_grad():
        return module(xs)[0]


def adam(p: Array, g: Array, m: Array, v: Array) -> Any:
    b1, b2 = ADAM_DECAYS
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p - ADAM_RATE * m / (torch.sqrt(v) + ADAM_EPSILON), m, v


_EAGER = {"lstm": lstm_module}
"""Faster ways eager PyTorch has, and its users take."""

_NOT_COMPILED = frozenset({"lstm"})
"""Inductor unrolls the 128 steps, which takes minutes to compile; users call the module."""


def eager(case: Case) -> Callable[..., Any]:
    """The workload in eager mode."""
    return _with_grads(_EAGER.get(case.function, globals()[case.function]), case.grads)


def compiled(case: Case) -> Callable[..., Any] | None:
    """The workload with its forward (and so its backward) compiled; None where nobody would."""
    if case.function in _NOT_COMPILED:
        return None
    return _with_grads(torch.compile(globals()[case.function], dynamic=False), case.grads)


def _with_grads(function: Callable[..., Any], grads: tuple[int, ...]) -> Callable[..., Any]:
    if not grads:
        return function

    def value_and_grad(*values: Array) -> Any:
        given = list(values)
        for k in grads:
            given[k] = values[k].detach().requires_grad_()
        value = function(*given)
        return value.detach(), torch.autograd.grad(value, [given[k] for k in grads])

    return value_and_grad


def inputs(arrays: Sequence[np.ndarray]) -> list[Array]:
    """The library's own arrays."""
    return [torch.from_numpy(a) for a in arrays]
