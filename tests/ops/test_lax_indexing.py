"""trnx.lax slices, gathers and scatters by JAX's names and arguments, against jax.lax."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax as jlax

import trnx
from trnx import lax

X = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)


def _both(function: Any, *arrays: Any) -> None:
    """A function of a lax module, jitted by trnx and by JAX."""
    got = trnx.jit(lambda *a: function(lax, *a))(*arrays)
    want = jax.jit(lambda *a: function(jlax, *a))(*arrays)
    gots, wants = (r if isinstance(r, tuple | list) else (r,) for r in (got, want))
    for one, two in zip(gots, wants, strict=True):
        np.testing.assert_allclose(np.asarray(one), two, rtol=1e-6)


SLICES: dict[str, Any] = {
    "dynamic_slice": lambda m, x, i: m.dynamic_slice(x, (i, 2, i), (2, 3, 1)),
    "dynamic_slice array": lambda m, x, i: m.dynamic_slice(x, [i, i, i], (1, 1, 6)),
    "dynamic_update_slice": lambda m, x, i: m.dynamic_update_slice(x, x[:2, :2], (i, 0, i)),
    "dynamic_slice_in_dim": lambda m, x, i: m.dynamic_slice_in_dim(x, i, 2, axis=-1),
    "dynamic_index_in_dim": lambda m, x, i: m.dynamic_index_in_dim(x, i, 1, keepdims=False),
    "dynamic_update_slice_in_dim": lambda m, x, i: m.dynamic_update_slice_in_dim(
        x, x[:, :2], i, axis=1
    ),
    "dynamic_update_index_in_dim": lambda m, x, i: m.dynamic_update_index_in_dim(
        x, x[:, 0], i, axis=1
    ),
    "slice_in_dim": lambda m, x, i: m.slice_in_dim(x, 1, -1, 2, axis=2),
    "index_in_dim": lambda m, x, i: m.index_in_dim(x, -2, axis=1, keepdims=False),
    "index_take": lambda m, x, i: m.index_take(x, (x[0, :, 0].astype(np.int32) + i,) * 2, (0, 2)),
    "sort": lambda m, x, i: m.sort((x, x[::-1]), dimension=1, num_keys=1),
    "top_k": lambda m, x, i: m.top_k(x, 3),
    "cumsum": lambda m, x, i: m.cumsum(x, axis=1, reverse=True),
    "cumlogsumexp": lambda m, x, i: m.cumlogsumexp(x, axis=2),
}


@pytest.mark.parametrize("key", SLICES)
def test_slices(key: str) -> None:
    """Traced starts inside, out of range on both sides."""
    places = (1, 9, -2) if "dynamic" in key else (0,)
    for place in places:
        _both(SLICES[key], X, np.int32(place))


GATHERS: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "rows": (
        {"offset_dims": (1, 2), "collapsed_slice_dims": (0,), "start_index_map": (0,)},
        (1, 5, 6), (3, 1),
    ),
    "windows": (
        {"offset_dims": (0, 2, 3), "collapsed_slice_dims": (), "start_index_map": (2, 0)},
        (2, 5, 3), (3, 2),
    ),
    "elements": (
        {"offset_dims": (), "collapsed_slice_dims": (0, 1, 2), "start_index_map": (0, 1, 2)},
        (1, 1, 1), (2, 2, 3),
    ),
    "batched": (
        {"offset_dims": (2,), "collapsed_slice_dims": (1,), "start_index_map": (1,),
         "operand_batching_dims": (0,), "start_indices_batching_dims": (1,)},
        (1, 1, 6), (3, 4, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize("key", GATHERS)
def test_gather(key: str, mode: str) -> None:
    """Every kind of dimension number, some windows out of range."""
    numbers, sizes, shape = GATHERS[key]
    indices = np.random.default_rng(1).integers(-1, 6, shape).astype(np.int32)

    def run(m: Any, x: Any, i: Any) -> Any:
        return m.gather(x, i, m.GatherDimensionNumbers(**numbers), sizes, mode=mode)

    _both(run, X, indices)


@pytest.mark.parametrize(
    "name", ["scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"]
)
@pytest.mark.parametrize("key", GATHERS)
def test_scatter(key: str, name: str) -> None:
    """The inverse dimension numbers, no place twice."""
    numbers, sizes, shape = GATHERS[key]
    names = {
        "offset_dims": "update_window_dims",
        "collapsed_slice_dims": "inserted_window_dims",
        "start_index_map": "scatter_dims_to_operand_dims",
        "start_indices_batching_dims": "scatter_indices_batching_dims",
    }
    own = {names.get(k, k): v for k, v in numbers.items()}
    rng = np.random.default_rng(2)
    indices = np.zeros(shape, np.int32)
    flat = indices.reshape(-1, shape[-1])
    flat[:, 0] = rng.permutation(len(flat))
    if key == "windows":
        flat[:] = [[0, 0], [3, 0], [0, 9]]
    if key == "batched":
        indices[..., 0] = np.array([[0], [2], [9]])
    if key == "elements":
        flat[:] = [[0, 1, 2], [3, 4, 5], [1, 1, 1], [7, 0, 0]]
    template = jax.eval_shape(
        lambda x, i: jlax.gather(x, i, jlax.GatherDimensionNumbers(**numbers), sizes), X, indices
    )
    updates = rng.normal(size=template.shape).astype(np.float32)

    def run(m: Any, x: Any, i: Any, u: Any) -> Any:
        return getattr(m, name)(x, i, u, m.ScatterDimensionNumbers(**own))

    _both(run, X, indices, updates)


def test_vmapped_starts() -> None:
    """A slice per example is a gather, an update per example a scatter."""
    starts = np.array([0, 3, 9, -1], np.int32)

    def run(m: Any, jit: Any, vmap: Any) -> Any:
        def one(x: Any, s: Any) -> Any:
            part = m.dynamic_slice(x, (s, 1), (2, 3))
            return part, m.dynamic_update_slice(x, part * 2, (1, s))

        return jit(vmap(one))(X, starts)

    for got, want in zip(run(lax, trnx.jit, trnx.vmap), run(jlax, jax.jit, jax.vmap), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
