"""Host-target workloads: kernels and one training step, against JAX, torch eager and Inductor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import trnx
import trnx.nn as nn
import trnx.numpy as tnp
from benchmarks.harness import Workload

Peer = Callable[[], object]


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return _rng().standard_normal(shape, dtype=np.float32)


def _leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in _leaves(part)]
    return [np.asarray(result.detach() if isinstance(result, torch.Tensor) else result)]


def _workload(
    name: str,
    arrays: list[np.ndarray],
    trnx_fn: Callable[..., Any],
    jax_fn: Callable[..., Any],
    torch_fn: Callable[..., Any],
    flops: float,
    bytes_moved: float,
    atol: float = 2e-5,
) -> Workload:
    ours = [tnp.asarray(a) for a in arrays]
    theirs = [jnp.asarray(a) for a in arrays]
    tensors = [torch.from_numpy(a) for a in arrays]
    jitted, jaxed = trnx.jit(trnx_fn), jax.jit(jax_fn)
    compiled = torch.compile(torch_fn)
    calls: dict[str, Callable[[], Any]] = {
        "trnx": lambda: jitted(*ours),
        "jax": lambda: jax.block_until_ready(jaxed(*theirs)),
        "torch": lambda: torch_fn(*tensors),
        "inductor": lambda: compiled(*tensors),
    }
    outputs = {peer: (lambda c=call: _leaves(c())) for peer, call in calls.items()}
    return Workload(name, calls, outputs, flops, bytes_moved, atol=atol)


def _matmul(n: int) -> Workload:
    a, b = _normal(n, n), _normal(n, n)
    return _workload(
        f"matmul {n}x{n}x{n}",
        [a, b],
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        lambda x, y: x @ y,
        2.0 * n**3,
        3.0 * 4 * n * n,
        atol=1e-6 * n,  # sums of n products of unit normals
    )


def _softmax(rows: int, columns: int) -> Workload:
    return _workload(
        f"softmax {rows}x{columns}",
        [_normal(rows, columns)],
        nn.softmax,
        jax.nn.softmax,
        lambda x: torch.softmax(x, -1),
        5.0 * rows * columns,
        2.0 * 4 * rows * columns,
    )


def _gelu_chain(rows: int, columns: int) -> Workload:
    def chain(gelu: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda x, y: gelu(x * 1.5 + y) * y + x

    return _workload(
        f"gelu chain {rows}x{columns}",
        [_normal(rows, columns), _normal(rows, columns)],
        chain(nn.gelu),
        chain(lambda v: jax.nn.gelu(v, approximate=False)),
        chain(torch.nn.functional.gelu),
        30.0 * rows * columns,
        3.0 * 4 * rows * columns,
    )


def _mlp_step() -> Workload:
    """The digits MLP's loss and gradients on a batch of 64."""
    sizes = (64, 128, 64, 10)
    rng = _rng()
    weights = [
        rng.standard_normal((o, i), dtype=np.float32) / np.float32(i**0.5)
        for i, o in itertools.pairwise(sizes)
    ]
    biases = [np.zeros(o, np.float32) for o in sizes[1:]]
    x, labels = _normal(64, 64), rng.integers(0, 10, 64).astype(np.int32)
    arrays = [*weights, *biases, x, labels]
    count = len(weights)

    def forward(np_tanh: Callable[[Any], Any], values: tuple[Any, ...]) -> Any:
        h = values[2 * count]
        for layer in range(count):
            h = h @ values[layer].T + values[count + layer]
            h = np_tanh(h) if layer + 1 < count else h
        return h

    def trnx_loss(*values: Any) -> Any:
        return nn.cross_entropy(forward(tnp.tanh, values), values[-1])

    def jax_loss(*values: Any) -> Any:
        logp = jax.nn.log_softmax(forward(jnp.tanh, values))
        return -jnp.take_along_axis(logp, values[-1][:, None], axis=1).mean()

    def torch_step(*values: Any) -> Any:
        leaves = [v.detach().requires_grad_() for v in values[: 2 * count]]
        logits = forward(torch.tanh, (*leaves, *values[2 * count :]))
        loss = torch.nn.functional.cross_entropy(logits, values[-1].long())
        return loss, list(torch.autograd.grad(loss, leaves))

    arguments = tuple(range(2 * count))
    flops = 3 * sum(2.0 * 64 * i * o for i, o in itertools.pairwise(sizes))
    return _workload(
        "digits MLP value_and_grad, batch 64",
        arrays,
        trnx.value_and_grad(trnx_loss, argnums=arguments),
        jax.value_and_grad(jax_loss, argnums=arguments),
        torch_step,
        flops,
        4.0 * sum(a.size for a in arrays) * 2,
    )


def workloads() -> Iterator[Workload]:
    """The host workloads, made one at a time."""
    yield _matmul(1024)
    yield _softmax(1024, 4096)
    yield _gelu_chain(1024, 4096)
    yield _mlp_step()
