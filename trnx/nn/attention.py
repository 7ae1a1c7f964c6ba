"""Scaled dot-product attention."""

from __future__ import annotations

import math

from trnx.core import DTypeError, ShapeError, aval_of, dtypes, message, same_shape
from trnx.nn.activations import softmax
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    Shape,
    as_float,
    broadcast_shape,
    cast,
    promote,
    spread_to,
    type_of,
)
from trnx.ops import functions as op


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
) -> Array:
    """softmax(query @ key.T * scale + bias) @ value, per head.

    A query that may look at no key gives 0, and so does its gradient. Scores and softmax of bf16
    and f16 are f32.

    Args:
        query: ``[..., T, N, H]``: T queries, N heads, H features; no or one axis in front.
        key: ``[..., S, K, H]``; N is a multiple of K, and N/K neighbouring heads share a key.
        value: ``[..., S, K, D]``.
        bias: added to the scores; broadcasts to ``[..., N, T, S]``.
        mask: bools, True where a query may look; broadcasts to ``[..., N, T, S]``.
        scale: factor of the scores, 1/sqrt(H) unless given.
        is_causal: query t looks at keys 0..t only.

    Returns:
        ``[..., T, N, D]``, the dtype of the operands.

    Raises:
        ShapeError: shapes that do not fit together.
        DTypeError: a mask that is not bool.
    """
    query, key, value = promote("dot_product_attention", query, key, value, inexact=True)
    heads, shared = _heads(query, key, value)
    q, k, v = aval_of(query), aval_of(key), aval_of(value)
    lead = q.ndim - 3
    batch = tuple(range(lead))
    dtype = q.dtype
    wide = dtypes.float32 if dtype in (dtypes.bfloat16, dtypes.float16) else dtype
    length, keys = q.shape[lead], k.shape[lead]
    group = heads // shared

    split = op.reshape(query, (*q.shape[:-2], shared, group, q.shape[-1]))
    sides = ((*batch, lead + 1), (*batch, lead + 1))
    scores = op.dot_general(split, key, ((lead + 3,), (lead + 2,)), sides, wide)
    # [..., K, T, N/K, S] to [..., N, T, S]
    scores = op.transpose(scores, (*batch, lead, lead + 2, lead + 1, lead + 3))
    full = (*q.shape[:lead], heads, length, keys)
    scores = op.reshape(scores, full)
    if scale is None and not isinstance(q.shape[-1], int):
        scores = op.mul(scores, op.rsqrt(op.dim_size(q.shape[-1], wide)))
    else:
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
        scores = op.mul(scores, factor)
    if bias is not None:
        bias = cast(as_float("dot_product_attention", bias), wide)
        scores = op.add(scores, _spread("bias", bias, full))
    weights = softmax(scores, where=_visible(mask, is_causal, full))

    weights = op.reshape(weights, (*q.shape[:lead], shared, group, length, keys))
    sides = ((*batch, lead), (*batch, lead + 1))
    out = op.dot_general(cast(weights, dtype), value, ((lead + 3,), (lead,)), sides)
    # [..., K, N/K, T, D] to [..., T, N, D]
    out = op.transpose(out, (*batch, lead + 2, lead, lead + 1, lead + 3))
    return op.reshape(out, (*q.shape[:-1], v.shape[-1]))


def _heads(query: Array, key: Array, value: Array) -> tuple[int, int]:
    """(heads of the query, heads of key and value).

    Raises:
        ShapeError: ranks, batches, lengths, heads or features do not fit together.
    """
    q, k, v = aval_of(query), aval_of(key), aval_of(value)
    if 3 <= q.ndim <= 4 and q.ndim == k.ndim == v.ndim:
        heads, shared = q.shape[-2], k.shape[-2]
        if (
            same_shape((*q.shape[:-3], q.shape[-1]), (*k.shape[:-3], k.shape[-1]))
            and same_shape(k.shape[:-1], v.shape[:-1])
            and isinstance(heads, int)
            and isinstance(shared, int)
            and shared
            and heads % shared == 0
        ):
            return heads, shared
    raise ShapeError(
        message(
            f"dot_product_attention of query {q}, key {k} and value {v}",
            None,
            "Give query [..., T, N, H], key [..., S, K, H] and value [..., S, K, D] with N a "
            "static multiple of K",
        )
    )


def _spread(name: str, x: Array, shape: Shape) -> Array:
    """`x` broadcast to the shape of the scores."""
    own = type_of(x).shape
    common = broadcast_shape(f"dot_product_attention with {name}", [own, shape], (x,))
    if not same_shape(common, shape):
        raise ShapeError(
            message(
                f"dot_product_attention got the {name} {type_of(x)} for scores of shape "
                f"({','.join(map(str, shape))})",
                None,
                "Use a shape that broadcasts to it",
            )
        )
    return spread_to(x, shape)


def _visible(mask: ArrayLike | None, is_causal: bool, shape: Shape) -> Array | None:
    """Where queries may look, spread to the scores; None: everywhere."""
    visible: Array | None = None
    if mask is not None:
        if type_of(mask).dtype != dtypes.bool_:
            raise DTypeError(
                message(
                    f"dot_product_attention got the mask {type_of(mask)}, which is not bool",
                    None,
                    "Compare it, or pass it as bias when it is to be added",
                )
            )
        visible = _spread("mask", mask, shape)
    if is_causal:
        rank = len(shape)
        past = op.ge(op.iota(shape, rank - 2), op.iota(shape, rank - 1))
        visible = past if visible is None else op.bitwise_and(visible, past)
    return visible
