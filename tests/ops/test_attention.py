"""nn.dot_product_attention, softmax with `where`, segment_sum: values, gradients, empty rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx import config
from trnx.core import DTypeError, ShapeError

_RNG = np.random.default_rng(5)
references = pytest.mark.usefixtures("by_references")


def _normal(*shape: int) -> np.ndarray[Any, Any]:
    return _RNG.normal(size=shape).astype(np.float32)


Q, K, V = _normal(2, 5, 4, 6), _normal(2, 7, 4, 6), _normal(2, 7, 4, 6)
MASK = _RNG.random((2, 1, 5, 7)) < 0.6
MASK[..., 0] = True  # every query looks somewhere, as jax wants it
BIAS = _normal(4, 5, 7)

# operands, options
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((Q, K, V), {}),
    "mask": ((Q, K, V), {"mask": MASK}),
    "bias": ((Q, K, V), {"bias": BIAS}),
    "causal and mask": ((Q, K, V), {"mask": MASK, "is_causal": True}),
    "scale": ((Q, K, V), {"scale": 0.7, "bias": BIAS, "mask": MASK}),
    "shared heads": ((Q, K[:, :, ::2].copy(), V[:, :, ::2].copy()), {"mask": MASK}),
    "no batch": ((Q[0], K[0], V[0]), {"is_causal": True}),
}


@references
@pytest.mark.parametrize("name", CASES)
def test_attention_equals_jax(name: str) -> None:
    """Values, and the gradients of a weighted sum in query, key and value."""
    operands, options = CASES[name]
    rank = operands[0].ndim
    theirs = {k: v if np.ndim(v) in (0, rank) else v[None] for k, v in options.items()}
    weights = _normal(*operands[0].shape)

    def our_sum(*args: Any) -> Any:
        return tnp.sum(trnx.nn.dot_product_attention(*args, **options) * weights)

    def their_sum(*args: Any) -> Any:
        return jnp.sum(jax.nn.dot_product_attention(*args, **theirs) * weights)

    got = np.asarray(trnx.nn.dot_product_attention(*operands, **options))
    want = np.asarray(jax.nn.dot_product_attention(*operands, **theirs))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    arrays = [tnp.asarray(operand) for operand in operands]
    ours = trnx.grad(our_sum, argnums=(0, 1, 2))(*arrays)
    for mine, jaxs in zip(ours, jax.jit(jax.grad(their_sum, (0, 1, 2)))(*operands), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(jaxs), rtol=2e-4, atol=2e-5)


def test_queries_that_see_nothing_give_zero() -> None:
    """A fully masked row is 0 with gradient 0, compiled, and no NaN is made on the way."""
    mask = MASK.copy()
    mask[0, :, 2] = False

    def loss(q: Any, k: Any, v: Any) -> Any:
        out = trnx.nn.dot_product_attention(q, k, v, mask=mask)
        return tnp.sum(out * out), out

    with config.debug_nans(True):
        value = trnx.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        (_, out), (dq, dk, dv) = trnx.jit(value)(Q, K, V)
    assert not np.asarray(out)[0, 2].any() and np.asarray(out)[0, 1].all()
    assert not np.asarray(dq)[0, 2].any() and np.asarray(dq)[0, 1].any()
    assert all(np.isfinite(np.asarray(d)).all() for d in (dk, dv))


@references
def test_low_precision_scores_are_f32() -> None:
    """bf16 operands: scores beyond bf16's 8 bits of fraction still choose the right key."""
    bf16 = ml_dtypes.bfloat16
    q, k = np.full((1, 1, 128), 16, bf16), np.full((2, 1, 128), 1, bf16)
    k[1, 0, 0] = 1.25  # scores 2048 and 2052: equal in bf16
    v = np.array([[[0.0]], [[1.0]]], bf16)
    got = trnx.nn.dot_product_attention(q, k, v, scale=1.0)
    assert got.dtype == bf16 and abs(float(got[0, 0, 0]) - 1 / (1 + np.exp(-4))) < 4e-3


@references
def test_softmax_where() -> None:
    """Others give 0, also inf and NaN ones; rows without any give 0; gradients agree."""
    x = np.array([[1, np.nan, 2], [np.inf, 0, 0], [3, 4, 5]], np.float32)
    where = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 0]], bool)
    got = np.asarray(trnx.nn.softmax(tnp.asarray(x), where=where))
    e = np.exp(1.0)
    np.testing.assert_allclose(got, [[1 / (1 + e), 0, e / (1 + e)], [0, 0.5, 0.5], [0] * 3], 1e-6)
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    gradient = trnx.grad(lambda v: (trnx.nn.softmax(v, where=where) * weights).sum())
    slope = 2 * e / (1 + e) ** 2
    np.testing.assert_allclose(
        np.asarray(gradient(tnp.asarray(x))),
        [[-slope, 0, slope], [0, -0.25, 0.25], [0, 0, 0]],
        rtol=1e-6,
    )
    columns = np.asarray(trnx.nn.softmax(tnp.ones((3, 3)), axis=0, where=where))
    np.testing.assert_array_equal(columns, where / where.sum(0).astype(np.float32))


@references
def test_segment_sum() -> None:
    """Rows of several axes; ids outside 0..n-1 count nowhere, forward and backward."""
    data = _normal(6, 2)
    ids = np.array([0, 2, 2, -1, 3, 2**40])
    got = np.asarray(trnx.nn.segment_sum(tnp.asarray(data), tnp.asarray(ids), 3))
    np.testing.assert_allclose(got, [data[0], [0, 0], data[1] + data[2]], rtol=1e-6)
    gradient = trnx.grad(lambda d: trnx.nn.segment_sum(d, ids, 3).sum())(tnp.asarray(data))
    np.testing.assert_array_equal(np.asarray(gradient)[:, 0], [1, 1, 1, 0, 0, 0])
    pairs = trnx.nn.segment_sum(tnp.ones((2, 2, 3)), np.array([[0, 1], [1, 1]]), 2)
    np.testing.assert_array_equal(np.asarray(pairs), [[1] * 3, [3] * 3])
    counts = trnx.nn.segment_sum(tnp.ones(4, tnp.int32), np.array([1, 1, 0, 1], np.uint8), 2)
    assert counts.dtype == np.int32 and np.asarray(counts).tolist() == [1, 3]


@references
def test_errors() -> None:
    """Shapes, heads, masks and ids that do not fit."""
    attention = trnx.nn.dot_product_attention
    with pytest.raises(ShapeError, match=r"query f32\[2,5,4,6\], key f32\[2,7,4,5\]"):
        attention(Q, K[..., :5], V)
    with pytest.raises(ShapeError, match="N a static multiple of K"):
        attention(Q, K[:, :, :3], V[:, :, :3])
    with pytest.raises(DTypeError, match=r"mask f32\[5,7\], which is not bool"):
        attention(Q, K, V, mask=MASK[0, 0].astype(np.float32))
    with pytest.raises(ShapeError, match=r"mask bool\[3,1,5,7\].*\(2,4,5,7\)|do not broadcast"):
        attention(Q, K, V, mask=np.ones((3, 1, 5, 7), bool))
    with pytest.raises(ShapeError, match=r"segment_sum of f32\[3\] with ids i32\[2\]"):
        trnx.nn.segment_sum(tnp.ones(3), np.zeros(2, np.int32), 2)
    with pytest.raises(DTypeError, match=r"f32\[3\] cannot be an index"):
        trnx.nn.segment_sum(tnp.ones(3), tnp.ones(3), 2)
