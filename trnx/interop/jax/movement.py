"""Rules of primitives that move, create and shape data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import dtypes
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op


@rule("broadcast_in_dim")
def _broadcast(
    site: Site, x: Value, *dynamic: Value, broadcast_dimensions: Sequence[int], **_: Any
) -> Value:
    return op.broadcast(x, site.result.shape, broadcast_dimensions)


@rule("reshape")
def _reshape(site: Site, x: Value, *, dimensions: Sequence[int] | None = None, **_: Any) -> Value:
    if dimensions is not None:
        x = op.transpose(x, dimensions)
    return op.reshape(x, site.result.shape)


@rule("squeeze", "expand_dims")
def _squeeze(site: Site, x: Value, **_: Any) -> Value:
    return op.reshape(x, site.result.shape)


@rule("transpose")
def _transpose(site: Site, x: Value, *, permutation: Sequence[int]) -> Value:
    return op.transpose(x, permutation)


@rule("rev")
def _rev(site: Site, x: Value, *, dimensions: Sequence[int]) -> Value:
    return op.reverse(x, tuple(dimensions))


@rule("slice")
def _slice(
    site: Site,
    x: Value,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
) -> Value:
    return op.slice(x, start_indices, limit_indices, strides)


@rule("split")
def _split(site: Site, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [op.slice_axis(x, end - size, end, axis) for end, size in zip(ends, sizes, strict=True)]


@rule("concatenate")
def _concatenate(site: Site, *operands: Value, dimension: int) -> Value:
    return op.concatenate(operands, dimension)


@rule("pad")
def _pad(
    site: Site, x: Value, value: Value, *, padding_config: Sequence[tuple[int, int, int]]
) -> Value:
    """Negative padding cuts elements off, after the interior is filled."""
    low = [entry[0] for entry in padding_config]
    high = [entry[1] for entry in padding_config]
    interior = [entry[2] for entry in padding_config]
    out = op.pad(x, value, [max(n, 0) for n in low], [max(n, 0) for n in high], interior)
    if min([0, *low, *high]) == 0:
        return out
    shape = op.shape_of(out)
    start = [max(-n, 0) for n in low]
    limit = [size - max(-n, 0) for size, n in zip(shape, high, strict=True)]
    return op.slice(out, start, limit)


@rule("iota")
def _iota(site: Site, *dynamic: Value, dimension: int, **_: Any) -> Value:
    aval = site.result
    kind = aval.dtype if dtypes.is_integer(aval.dtype) else dtypes.int32
    return op.convert(op.iota(aval.shape, dimension, kind), aval.dtype)


@rule("iota_2x32_shape")
def _iota_2x32(site: Site, *, shape: Sequence[int]) -> list[Value]:
    """The row-major index of each element in two words, high and low."""
    high, _ = site.results
    count: Value = op.iota(high.shape, len(shape) - 1, dtypes.uint32)
    step = 1
    for axis in range(len(shape) - 1, -1, -1):
        along = op.iota(high.shape, axis, dtypes.uint32)
        term = op.mul(along, op.scalar(step, dtypes.uint32))
        count = term if axis == len(shape) - 1 else op.add(count, term)
        step *= shape[axis]
    if step > 2**32:
        raise site.refuse("with more than 2^32 elements", "Draw in parts")
    return [op.zeros_like(high), count]
