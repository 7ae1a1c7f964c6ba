"""``python -m benchmarks bucket``: sizes that change from call to call.

A transformer block with its gradient meets lengths drawn log-uniformly from 1 to 2048. trnx traces
it once with a dynamic length and compiles per bucket; JAX compiles per exact length. The figure
is the wall time from the first call to the last, tracing and compiling included, disk caches off.
Blocks of lengths alternate between the peers, and every loss and gradient is compared.
"""

from __future__ import annotations

import time
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import trnx
import trnx.nn as nn
import trnx.numpy as tnp
from benchmarks.harness import Row, row
from trnx import testing

COUNTS: Final = (20, 200)
LONGEST: Final = 2048
WIDTH: Final = 64
HEADS: Final = 4
BLOCK: Final = 20
NAMES: Final = tuple(f"transformer block, {count} lengths in 1..{LONGEST}" for count in COUNTS)
"""Workloads of this suite; the short one shows in a minute whether anything is wrong."""


def _lengths(count: int) -> list[int]:
    rng = np.random.default_rng(0)
    return [int(n) for n in np.exp(rng.uniform(0, np.log(LONGEST + 1), count))]


def _parameters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)

    def normal(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(rows**0.5)

    return {
        "qkv": normal(WIDTH, 3 * WIDTH),
        "out": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH),
    }


def _trnx_loss(p: dict[str, Any], x: Any) -> Any:
    q, k, v = ((x @ p["qkv"])[:, i * WIDTH : (i + 1) * WIDTH] for i in range(3))
    q, k, v = (tnp.reshape(a, (x.shape[0], HEADS, WIDTH // HEADS)) for a in (q, k, v))
    mixed = nn.dot_product_attention(q, k, v, is_causal=True)
    x = nn.rms_norm(x + tnp.reshape(mixed, (x.shape[0], WIDTH)) @ p["out"])
    x = nn.rms_norm(x + nn.gelu(x @ p["up"]) @ p["down"])
    return (x * x * x).mean()


def _jax_norm(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _jax_loss(p: dict[str, Any], x: Any) -> Any:
    q, k, v = ((x @ p["qkv"])[:, i * WIDTH : (i + 1) * WIDTH] for i in range(3))
    q, k, v = (jnp.reshape(a, (x.shape[0], HEADS, WIDTH // HEADS)) for a in (q, k, v))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = _jax_norm(x + jnp.reshape(mixed, (x.shape[0], WIDTH)) @ p["out"])
    x = _jax_norm(x + jax.nn.gelu(x @ p["up"], approximate=False) @ p["down"])
    return (x * x * x).mean()


def run(name: str) -> tuple[Row, dict[str, object]]:
    """Measures the workload; besides the row gives the numbers of compiles.

    Raises:
        AssertionError: a loss or gradient differs.
    """
    rng = np.random.default_rng(2)
    parameters = _parameters()
    inputs = [
        rng.standard_normal((n, WIDTH), dtype=np.float32)
        for n in _lengths(COUNTS[NAMES.index(name)])
    ]
    ours = {k: tnp.asarray(v) for k, v in parameters.items()}
    theirs = {k: jnp.asarray(v) for k, v in parameters.items()}
    dynamic = {"x": {0: trnx.dim("n", 1, LONGEST)}}
    step = trnx.jit(trnx.value_and_grad(_trnx_loss), dynamic=dynamic)
    exact = jax.jit(jax.value_and_grad(_jax_loss))
    seconds = {"trnx": 0.0, "jax": 0.0}
    with trnx.config.disk_cache(False), testing.count_compiles() as compiles:
        for first in range(0, len(inputs), BLOCK):
            block = inputs[first : first + BLOCK]
            start = time.perf_counter()
            mine = [step(ours, x) for x in block]
            seconds["trnx"] += time.perf_counter() - start
            start = time.perf_counter()
            other = [jax.block_until_ready(exact(theirs, x)) for x in block]
            seconds["jax"] += time.perf_counter() - start
            for (loss, grads), (loss_j, grads_j) in zip(mine, other, strict=True):
                np.testing.assert_allclose(loss, loss_j, rtol=1e-4, atol=1e-5)
                for key in grads:
                    np.testing.assert_allclose(grads[key], grads_j[key], rtol=1e-3, atol=2e-4)
        count = compiles()
    facts = {"compiles": count, "jax_compiles": len({len(x) for x in inputs})}
    return row(name, {peer: 1e3 * s for peer, s in seconds.items()}), facts
