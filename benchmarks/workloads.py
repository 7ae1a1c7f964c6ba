"""The host workloads: their inputs, what they need at least, and how exact they are.

Each workload has one function per peer, of the same name, in `peers_trnx`, `peers_jax` and
`peers_torch`; those modules import only their own library, so that a process can measure one alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

Arrays: TypeAlias = list[np.ndarray]

VOCABULARY: Final = 32000
LSTM_STEPS: Final = 128
ADAM_RATE: Final = 1e-3
ADAM_DECAYS: Final = (0.9, 0.999)
ADAM_EPSILON: Final = 1e-8


@dataclass(frozen=True, slots=True)
class Case:
    """One workload.

    Attributes:
        name: its row's name.
        function: name of the function in each `peers_*` module.
        arrays: makes the inputs, equal in every process.
        flops: floating-point operations the algorithm needs at least.
        bytes: bytes it must read and write at least.
        grads: positions of the inputs whose gradients the call computes, besides the value; empty
            for a call of the function alone.
        rtol: relative tolerance of the comparison with the peers.
        atol: absolute tolerance.
    """

    name: str
    function: str
    arrays: Callable[[], Arrays]
    flops: float
    bytes: float
    grads: tuple[int, ...] = ()
    rtol: float = 2e-4
    atol: float = 2e-5


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _normals(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[], Arrays]:
    def make() -> Arrays:
        rng = _rng()
        return [rng.standard_normal(s, dtype=np.float32) * np.float32(scale) for s in shapes]

    return make


def _size(*shapes: tuple[int, ...]) -> float:
    return float(sum(np.prod(s, dtype=np.int64) for s in shapes))


def _elementwise(
    name: str,
    function: str,
    inputs: tuple[tuple[int, ...], ...],
    outputs: tuple[tuple[int, ...], ...],
    flops_per_element: float,
    grads: tuple[int, ...] = (),
    atol: float = 2e-5,
) -> Case:
    """A workload whose bytes are its inputs and outputs, and whose flops count elements."""
    moved = 4 * (_size(*inputs) + _size(*outputs))
    flops = flops_per_element * _size(inputs[0])
    return Case(name, function, _normals(*inputs), flops, moved, grads, atol=atol)


def _matmul(n: int) -> Case:
    # The difference of two sums of n products of unit normals grows with n.
    return Case(
        f"matmul {n}x{n}x{n}",
        "matmul",
        _normals((n, n), (n, n)),
        2.0 * n**3,
        3.0 * 4 * n * n,
        atol=1e-6 * n,
    )


def _linear() -> Case:
    m, k, n = 512, 768, 3072
    return Case(
        f"linear+bias+gelu {m}x{k}x{n}",
        "linear_gelu",
        lambda: [x * np.float32(k**-0.25) for x in _normals((m, k), (n, k), (n,))()],
        2.0 * m * k * n,
        4.0 * (m * k + k * n + n + m * n),
    )


def _cross_entropy() -> Case:
    rows = 512

    def arrays() -> Arrays:
        (logits,) = _normals((rows, VOCABULARY))()
        return [logits, _rng().integers(0, VOCABULARY, rows).astype(np.int32)]

    count = float(rows * VOCABULARY)
    return Case(f"cross-entropy {rows}x{VOCABULARY}", "cross_entropy", arrays, 4 * count, 4 * count)


MLP_SIZES: Final = (64, 128, 128, 64, 10)


def _mlp() -> Case:
    batch, layers = 64, len(MLP_SIZES) - 1

    def arrays() -> Arrays:
        rng = _rng()
        pairs = list(itertools.pairwise(MLP_SIZES))
        weights = [
            rng.standard_normal((o, i), dtype=np.float32) / np.float32(i**0.5) for i, o in pairs
        ]
        biases = [np.zeros(o, np.float32) for o in MLP_SIZES[1:]]
        x = rng.standard_normal((batch, MLP_SIZES[0]), dtype=np.float32)
        return [*weights, *biases, x, rng.integers(0, MLP_SIZES[-1], batch).astype(np.int32)]

    weights = sum(i * o for i, o in itertools.pairwise(MLP_SIZES))
    return Case(
        "4-layer MLP value_and_grad, batch 64",
        "mlp",
        arrays,
        3 * 2.0 * batch * weights,
        2 * 4.0 * weights,
        grads=tuple(range(2 * layers)),
    )


def _attention(backward: bool) -> Case:
    heads, length, width = 8, 512, 64
    shape = (length, heads, width)
    # Half of the score matrix is masked; the backward pass has five products for two.
    products = (2 + 5 * backward) * 2.0 * heads * length * length * width / 2
    return Case(
        f"attention {heads}x{length}x{width} causal" + (" fwd+bwd" if backward else ""),
        "attention_sum" if backward else "attention",
        _normals(shape, shape, shape),
        products,
        4.0 * (4 + 3 * backward) * heads * length * width,
        grads=(0, 1, 2) if backward else (),
        atol=1e-4 if backward else 2e-5,
    )


def _conv_net() -> Case:
    batch, side, classes = 16, 16, 10
    shapes = ((batch, 3, side, side), (16, 3, 3, 3), (32, 16, 3, 3), (classes, 32))

    def arrays() -> Arrays:
        rng = _rng()
        x, *weights = [rng.standard_normal(s, dtype=np.float32) for s in shapes]
        scaled = [w / np.float32(np.sqrt(np.prod(w.shape[1:]))) for w in weights]
        return [*scaled, x, rng.integers(0, classes, batch).astype(np.int32)]

    flops = 2.0 * batch * (side**2 * 16 * 27 + (side // 2) ** 2 * 32 * 144)
    moved = 4.0 * 2 * _size(*shapes)
    return Case("small conv net step, batch 16", "conv_net", arrays, 3 * flops, moved, (0, 1, 2))


def _gather() -> Case:
    rows, width = 4096, 256

    def arrays() -> Arrays:
        (table,) = _normals((VOCABULARY, width))()
        return [table, _rng().integers(0, VOCABULARY, rows).astype(np.int32)]

    return Case(
        f"embedding gather {VOCABULARY}x{width}, {rows} rows",
        "gather",
        arrays,
        0.0,
        2.0 * 4 * rows * width,
    )


def _scatter_add() -> Case:
    rows, width = 4096, 256

    def arrays() -> Arrays:
        table, updates = _normals((VOCABULARY, width), (rows, width))()
        return [table, _rng().integers(0, VOCABULARY, rows).astype(np.int32), updates]

    # The table is copied (values are immutable), then the rows are added.
    moved = 2.0 * 4 * VOCABULARY * width + 3.0 * 4 * rows * width
    return Case(
        f"embedding scatter-add {VOCABULARY}x{width}, {rows} rows",
        "scatter_add",
        arrays,
        float(rows * width),
        moved,
    )


def _lstm() -> Case:
    batch, width = 32, 128

    def arrays() -> Arrays:
        shapes = ((LSTM_STEPS, batch, width), (width, 4 * width), (width, 4 * width))
        x, w, u = _normals(*shapes)()
        scale = np.float32(width**-0.5)
        return [x, w * scale, u * scale, np.zeros(4 * width, np.float32)]

    flops = LSTM_STEPS * batch * 2.0 * 2 * width * 4 * width
    moved = 4.0 * (2 * LSTM_STEPS * batch * width + 2 * width * 4 * width)
    return Case(f"LSTM scan, {LSTM_STEPS} steps of 32x128", "lstm", arrays, flops, moved)


def _adam() -> Case:
    count = 5_000_000

    def arrays() -> Arrays:
        p, g, m, v = _normals(*[(count,)] * 4)()
        return [p, g, m * np.float32(0.1), v * v * np.float32(0.01)]

    return Case("Adam update, 5 M parameters", "adam", arrays, 12.0 * count, 7.0 * 4 * count)


_BIG, _ROWS = (4096, 4096), (1024, 4096)
_NORM, _SQUARE = (2048, 1024), (2048, 2048)

CASES: Final[tuple[Case, ...]] = (
    _matmul(1024),
    _matmul(64),
    _linear(),
    _elementwise("gelu chain 1024x4096", "gelu_chain", (_ROWS, _ROWS), (_ROWS,), 30.0),
    _elementwise("softmax 1024x4096", "softmax", (_ROWS,), (_ROWS,), 5.0),
    _elementwise("softmax 8x8", "softmax", ((8, 8),), ((8, 8),), 5.0),
    _elementwise("layernorm 2048x1024", "layer_norm", (_NORM, (1024,), (1024,)), (_NORM,), 8.0),
    _elementwise(
        "layernorm 2048x1024 fwd+bwd",
        "layer_norm_dot",
        (_NORM, (1024,), (1024,), _NORM),
        (_NORM, (1024,), (1024,)),
        20.0,
        grads=(0, 1, 2),
        atol=5e-4,  # sums over 2048 rows in different orders
    ),
    _cross_entropy(),
    _elementwise("sum axis 0 of 4096x4096", "sum_rows", (_BIG,), ((4096,),), 1.0, atol=2e-3),
    _elementwise("sum of 4096x4096", "sum_all", (_BIG,), ((),), 1.0, atol=5e-2),
    _elementwise("transpose+add 2048x2048", "transpose_add", (_SQUARE, _SQUARE), (_SQUARE,), 1.0),
    _mlp(),
    _attention(backward=False),
    _attention(backward=True),
    _conv_net(),
    _gather(),
    _scatter_add(),
    _lstm(),
    _adam(),
)
"""Every workload, in the order of the report."""


def case(name: str) -> Case:
    """The workload of that name; KeyError when there is none."""
    return {c.name: c for c in CASES}[name]
