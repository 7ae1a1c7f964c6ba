"""Composite functions of arrays with symbolic sizes: losses, norms, attention, loops, sampling.

Each is tried on padded buffers against exact shapes, by references and by compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import trnx.numpy as tn
from trnx import lax, nn, random
from trnx.core import Aval, Dim, Program, Size, dim, dtypes, evaluate, make_aval, trace_program
from trnx.transforms import grad, jvp, value_and_grad, vmap

N = dim("n", 0, 8)
M = dim("m", 0, 6)
N1, M1 = dim("n", 1, 8), dim("m", 1, 6)
N2 = dim("n", 2, 8)
K = dim("k", 1, 4)
BUCKETS = {"n": 8, "m": 6, "k": 4}


@dataclass(frozen=True)
class Composite:
    """A function and the types of its arguments.

    Attributes:
        function: takes one array per shape.
        shapes: shapes of ints and symbolic sizes.
        kinds: per argument `f` (normal floats), `i` (ints in -9..9), `b` (bools), `k` (a random
            key), or a size: ints below it.
    """

    function: Callable[..., Any]
    shapes: tuple[tuple[Size, ...], ...]
    kinds: tuple[Any, ...] = ()

    def kind(self, index: int) -> Any:
        """Kind of an argument; floats when not given."""
        return self.kinds[index] if index < len(self.kinds) else "f"

    def avals(self, dtype: Any) -> list[Aval]:
        """Types of the arguments, floats as `dtype`."""
        named = {"f": dtype, "i": dtypes.int32, "b": dtypes.bool_, "k": dtypes.uint32}
        return [
            make_aval(s, named.get(self.kind(i), dtypes.int32) if isinstance(self.kind(i), str)
                      else dtypes.int32)
            for i, s in enumerate(self.shapes)
        ]  # fmt: skip

    def program(self, dtype: Any) -> Program:
        """The function traced for symbolic sizes; outputs in the order of the tree's leaves."""
        from trnx.core import tree

        return trace_program(
            lambda *args: tree.leaves(self.function(*args)), self.avals(dtype), "composite"
        )

    def arguments(self, sizes: dict[str, int], seed: int, dtype: Any) -> list[np.ndarray]:
        """Random arguments of exact shapes."""
        rng = np.random.default_rng(seed)
        found = []
        for i, aval in enumerate(self.avals(dtype)):
            shape = tuple(evaluate(size, sizes) for size in aval.shape)
            kind = self.kind(i)
            if kind == "f":
                values = rng.normal(size=shape)
            elif kind == "b":
                values = rng.random(shape) < 0.5
            elif kind == "k":
                values = rng.integers(0, 2**32, shape)
            elif kind == "i":
                values = rng.integers(-9, 10, shape)
            else:
                values = rng.integers(0, max(evaluate(kind, sizes), 1), shape)
            found.append(np.asarray(values).astype(aval.dtype))
        return found


def _total(x: Any) -> Any:
    return tn.sum(x * tn.sin(x))


def _attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = q @ tn.swapaxes(k, -1, -2) / 2.0
    return nn.softmax(tn.where(mask, scores, -1e9)) @ v


def _causal(q: Any, k: Any, v: Any) -> Any:
    return _attention(q, k, v, tn.tril(tn.ones((q.shape[0], k.shape[0]), bool)))


def _heads(x: Any, w: Any) -> Any:
    """Two heads over [batch, length, 4], causal."""
    b, n, _ = x.shape
    q, k, v = (tn.swapaxes((x @ w[i]).reshape(b, n, 2, 2), 1, 2) for i in range(3))
    mask = tn.tril(tn.ones((n, n), bool))
    return tn.swapaxes(_attention(q, k, v, mask), 1, 2).reshape(b, n, 4)


def _block(x: Any, w: Any, w1: Any, w2: Any) -> Any:
    """A transformer block."""
    y = x + _heads(nn.layer_norm(x), w)
    return y + nn.gelu(nn.layer_norm(y) @ w1) @ w2


def _mlp(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
    return nn.gelu(x @ w1 + b1) @ w2


def _lstm(x: Any, w: Any) -> Any:
    """x [n, m, 3]; w [6, 12]; the state has size 3."""

    def step(carry: Any, xt: Any) -> Any:
        h, c = carry
        z = tn.concatenate([xt, h], 1) @ w
        i, f, g, o = (z[:, 3 * j : 3 * j + 3] for j in range(4))
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * tn.tanh(g)
        h = nn.sigmoid(o) * tn.tanh(c)
        return (h, c), h

    start = tn.zeros((x.shape[1], 3), x.dtype)
    (h, _), hs = lax.scan(step, (start, start), x)
    return h, hs


def _conv(x: Any, w: Any) -> Any:
    """Length-3 filter over axis 1 of [n, 2 + m, 2], zero padded at the ends."""
    length = x.shape[1]
    wide = tn.pad(x, ((0, 0), (1, 1), (0, 0)))
    return sum(wide[:, j : j + length] @ w[j] for j in range(3))


def _conv_net(x: Any, w1: Any, w2: Any) -> Any:
    return tn.max(_conv(nn.relu(_conv(x, w1)), w2), axis=1)


def _batch_norm(x: Any) -> Any:
    return (x - tn.mean(x, axis=0)) / tn.sqrt(tn.var(x, axis=0) + 1e-3)


def _huber(x: Any, y: Any) -> Any:
    d = tn.abs(x - y)
    return tn.mean(tn.where(d < 1.0, 0.5 * d * d, d - 0.5))


def _kl(x: Any, y: Any) -> Any:
    p = nn.log_softmax(x)
    return tn.sum(tn.exp(p) * (p - nn.log_softmax(y)), axis=-1)


def _distances(x: Any, y: Any) -> Any:
    return tn.sum(x * x, 1)[:, None] - 2 * x @ y.T + tn.sum(y * y, 1)


def _cosine(x: Any, y: Any) -> Any:
    def unit(v: Any) -> Any:
        return v / tn.sqrt(tn.sum(v * v, axis=-1, keepdims=True) + 1e-6)

    return unit(x) @ unit(y).T


def _segment_mean(x: Any, segments: Any, like: Any) -> Any:
    sums = tn.zeros(like.shape, x.dtype).at[segments].add(x)
    counts = tn.zeros(like.shape, x.dtype).at[segments].add(1.0)
    return sums / tn.maximum(counts, 1.0)


def _adam(p: Any, g: Any, mu: Any, nu: Any) -> Any:
    mu, nu = 0.9 * mu + 0.1 * g, 0.99 * nu + 0.01 * g * g
    return p - 0.1 * mu / (tn.sqrt(nu) + 1e-8), mu, nu


def _linear_3d(x: Any, w: Any, b: Any) -> Any:
    """The road of torch's Linear: merge, multiply, split."""
    rows = x.reshape(x.shape[0] * x.shape[1], 4)
    return (rows @ w + b).reshape(x.shape[0], x.shape[1], 5)


def _merged_loss(x: Any, w: Any, labels: Any) -> Any:
    """Merged rows all the way into a loss."""
    rows = nn.layer_norm(x.reshape(-1, 4)) @ w
    return nn.cross_entropy(rows, labels.reshape(-1))


def _mean_pool(ids: Any, table: Any, keep: Any) -> Any:
    vectors = nn.embedding(ids, table)
    weights = keep.astype(vectors.dtype)[:, None]
    return tn.sum(vectors * weights, axis=0) / tn.maximum(tn.sum(weights), 1.0)


def _sample(key: Any, like: Any) -> Any:
    shape = like.shape
    drawn = random.normal(key, shape)
    return drawn, random.randint(key, shape, -5, 17), random.uniform(key, (shape[1], shape[0]))


def _sampled_classes(key: Any, logits: Any) -> Any:
    return random.categorical(key, logits), random.bernoulli(key, 0.3, logits.shape)


def _moves(x: Any, y: Any) -> Any:
    joined = tn.concatenate([x, y, x], axis=0)
    return joined, tn.flip(x, 0), tn.stack([y, y], axis=1), tn.roll(y, 1, axis=0)


def _cuts(x: Any) -> Any:
    return x[1:], x[:-1], x[-1], x[::2], x[0] - x[-2]


def _counts(x: Any, keep: Any) -> Any:
    return (
        tn.any(keep, axis=0),
        tn.all(keep, axis=1),
        tn.sum(keep),
        tn.where(keep, x, -x).sum(),
        tn.mean(keep.astype(x.dtype)),
    )


def _integers(x: Any, y: Any) -> Any:
    return x // 3 + x % 5, (x & 7) | (y << 1), tn.sum(x * y, axis=0), tn.max(x ^ y, axis=1)


def _newton(x: Any) -> Any:
    """Square roots by a loop whose end depends on all elements."""

    def unfinished(state: Any) -> Any:
        y, step = state
        return (tn.max(tn.abs(y * y - x - 1.0)) > 1e-9) & (step < 50)

    def improve(state: Any) -> Any:
        y, step = state
        return 0.5 * (y + (x + 1.0) / y), step + 1

    x = x * x
    return lax.while_loop(unfinished, improve, (tn.ones_like(x) + x, 0))


def _either(x: Any) -> Any:
    return lax.cond(tn.sum(x) > 0, lambda v: tn.flip(nn.softmax(v), 0), lambda v: -v, x)


def _ranked(x: Any) -> Any:
    """Position of each element in its row, by comparison with all others."""
    return tn.sum((x[:, None, :] > x[:, :, None]).astype(tn.int32), axis=1)


COMPOSITES: dict[str, Composite] = {
    "mse": Composite(nn.mse_loss, ((N, M), (N, M))),
    "huber": Composite(value_and_grad(_huber), ((N, M), (N, M))),
    "kl divergence": Composite(_kl, ((N, M), (N, M))),
    "cross entropy": Composite(
        lambda x, y: nn.cross_entropy(x, y, reduction="none"), ((N, M), (N,)), ("f", M)
    ),
    "gradient of cross entropy": Composite(
        value_and_grad(nn.cross_entropy), ((N, M), (N,)), ("f", M)
    ),
    "softmax over rows": Composite(nn.softmax, ((N, M),)),
    "softmax over columns": Composite(lambda x: nn.softmax(x, axis=0), ((N, M),)),
    "log softmax and logsumexp": Composite(
        lambda x: (nn.log_softmax(x), nn.logsumexp(x, axis=0)), ((N, M1),)
    ),
    "gradient of softmax": Composite(grad(lambda x: _total(nn.softmax(x))), ((N, M),)),
    "layer norm": Composite(nn.layer_norm, ((N, M), (M,), (M,))),
    "gradient of layer norm": Composite(
        grad(lambda x, w, b: _total(nn.layer_norm(x, w, b)), (0, 1, 2)), ((N, M1), (M1,), (M1,))
    ),
    "rms norm and gradient": Composite(
        value_and_grad(lambda x, w: _total(nn.rms_norm(x, w)), (0, 1)), ((N, M1), (M1,))
    ),
    "batch norm": Composite(_batch_norm, ((N, M),)),
    "gradient of batch norm": Composite(grad(lambda x: _total(_batch_norm(x))), ((N1, M),)),
    "moments": Composite(
        lambda x: (tn.mean(x), tn.std(x, axis=1), tn.var(x, axis=0), tn.ptp(x, axis=1)), ((N, M1),)
    ),
    "attention with mask": Composite(
        _attention, ((N, 4), (M, 4), (M, 3), (N, M)), ("f", "f", "f", "b")
    ),
    "causal attention": Composite(_causal, ((N, 4), (N, 4), (N, 3))),
    "gradient of attention": Composite(
        grad(lambda q, k, v: _total(_causal(q, k, v)), (0, 1, 2)), ((N, 4), (N, 4), (N, 3))
    ),
    "transformer block": Composite(_block, ((M, N, 4), (3, 4, 4), (4, 6), (6, 4))),
    "gradient of transformer block": Composite(
        value_and_grad(lambda *a: _total(_block(*a)), (0, 1, 2, 3)),
        ((M, N, 4), (3, 4, 4), (4, 6), (6, 4)),
    ),
    "mlp": Composite(_mlp, ((N, M), (M, 5), (5,), (5, 3))),
    "gradient of mlp": Composite(
        value_and_grad(lambda *a: _total(_mlp(*a)), (0, 1, 2, 3)), ((N, M), (M, 5), (5,), (5, 3))
    ),
    "per-example gradients": Composite(
        vmap(grad(lambda x, y: tn.sum((x - y) ** 2) / x.shape[0])), ((N, M), (N, M))
    ),
    "lstm": Composite(_lstm, ((N, M, 3), (6, 12))),
    "gradient of lstm": Composite(
        grad(lambda x, w: _total(_lstm(x, w)[1]), (0, 1)), ((N, M, 3), (6, 12))
    ),
    "conv net": Composite(_conv_net, ((N, M1, 2), (3, 2, 3), (3, 3, 2))),
    "gradient of conv net": Composite(
        grad(lambda x, *w: _total(_conv_net(x, *w)), (0, 1, 2)), ((N, M1, 2), (3, 2, 3), (3, 3, 2))
    ),
    "distances": Composite(_distances, ((N, 3), (M, 3))),
    "cosine similarity": Composite(_cosine, ((N, 3), (M, 3))),
    "mean of embeddings": Composite(_mean_pool, ((N,), (M1, 3), (N,)), (M1, "f", "b")),
    "gradient of embeddings": Composite(
        grad(lambda t, i, k: _total(_mean_pool(i, t, k))), ((M1, 3), (N,), (N,)), ("f", M1, "b")
    ),
    "segment mean": Composite(_segment_mean, ((N,), (N,), (M,)), ("f", "i", "f")),
    "adam": Composite(
        lambda p, g, mu, nu: _adam(p, g, mu, nu * nu), ((N, M), (N, M), (N, M), (N, M))
    ),
    "linear over merged rows": Composite(_linear_3d, ((N, M, 4), (4, 5), (5,))),
    "gradient over merged rows": Composite(
        grad(lambda *a: _total(_linear_3d(*a)), (0, 1, 2)), ((N, M, 4), (4, 5), (5,))
    ),
    "loss over merged rows": Composite(
        value_and_grad(_merged_loss, (0, 1)), ((N, M, 4), (4, 5), (N, M)), ("f", "f", 5)
    ),
    "sampling": Composite(_sample, ((2,), (N, M)), ("k", "f")),
    "sampling classes": Composite(_sampled_classes, ((2,), (N, M1)), ("k", "f")),
    "dropout": Composite(lambda k, x: nn.dropout(k, x, 0.4), ((2,), (M, N)), ("k", "f")),
    "moves": Composite(_moves, ((N, M), (K, M))),
    "cuts": Composite(_cuts, ((N2, M),)),
    "counts": Composite(_counts, ((N, M), (N, M)), ("f", "b")),
    "integers": Composite(_integers, ((N, M1), (N, M1)), ("i", "i")),
    "arg-reductions": Composite(
        lambda x: (tn.argmax(x, axis=1), tn.argmin(x, axis=0), tn.max(x), tn.argmax(x)),
        ((N1, M1),),
    ),
    "einsum": Composite(lambda a, b: tn.einsum("ij,jk,ki->j", a, b, (a @ b).T), ((N, M), (M, 3))),
    "ranks": Composite(_ranked, ((N, M),)),
    "hessian-vector product": Composite(
        lambda x, v: jvp(grad(lambda y: _total(nn.softmax(y))), (x,), (v,))[1], ((N, M), (N, M))
    ),
    "newton": Composite(_newton, ((N, M),)),
    "either": Composite(_either, ((N, M),)),
}


def sizes_to_try(composite: Composite, count: int, seed: int) -> list[dict[str, int]]:
    """Values of the named sizes: the least ones, ones, the buckets, and random ones."""
    found: dict[str, Dim] = {}
    for shape in composite.shapes:
        for size in shape:
            if isinstance(size, Dim):
                found[str(size)] = size
    from trnx.core.dims import variables

    bounds = {v.name: (v.min, BUCKETS[v.name]) for size in found.values() for v in variables(size)}
    rng = np.random.default_rng(seed)
    fixed = [
        {name: low for name, (low, _) in bounds.items()},
        {name: max(low, 1) for name, (low, _) in bounds.items()},
        {name: high for name, (_, high) in bounds.items()},
    ]
    drawn = [
        {name: int(rng.integers(low, high + 1)) for name, (low, high) in bounds.items()}
        for _ in range(count)
    ]
    return fixed + drawn
