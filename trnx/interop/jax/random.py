"""Rules of random keys and bits, equal to JAX's Threefry-2x32 with partitionable counters.

A key array of shape [...] is a uint32 array [..., 2] here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import aval_of, dtypes
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op

_UINT32 = dtypes.uint32


@rule("random_wrap", "random_unwrap")
def _same(site: Site, keys: Value, **_: Any) -> Value:
    return keys


@rule("random_clone")
def _clone(site: Site, keys: Value) -> Value:
    return keys


@rule("random_seed")
def _seed(site: Site, seeds: Value, *, impl: Any) -> Value:
    """The low and high words of the seed; a 32-bit seed has the high word 0."""
    dtype = aval_of(seeds).dtype
    low = op.convert(seeds, _UINT32)
    high = (
        op.convert(op.shift_right_logical(seeds, op.scalar(32, dtype)), _UINT32)
        if dtype.itemsize == 8
        else op.zeros_like(low)
    )
    rank = len(aval_of(low).shape)
    return op.concatenate([op.expand(high, rank), op.expand(low, rank)], rank)


def _words(keys: Value) -> tuple[Value, Value]:
    """First and second word of each key."""
    shape = aval_of(keys).shape
    last = len(shape) - 1
    return (
        op.reshape(op.slice_axis(keys, 0, 1, last), shape[:-1]),
        op.reshape(op.slice_axis(keys, 1, 2, last), shape[:-1]),
    )


def _hash(keys: Value, shape: Sequence[int]) -> tuple[Value, Value]:
    """Two words per position of `shape` for each key: Threefry of the row-major position."""
    first, second = _words(keys)
    batch = aval_of(first).shape
    full = (*batch, *shape)
    at = range(len(batch))
    total = math.prod(shape)
    if total > 2**32:
        raise NotImplementedError("more than 2^32 random words from one key")
    flat = op.iota((total,), 0, _UINT32)
    low = op.broadcast(op.reshape(flat, tuple(shape)), full, range(len(batch), len(full)))
    high = op.zeros_like(low)
    return op.threefry2x32(op.broadcast(first, full, at), op.broadcast(second, full, at), high, low)


@rule("random_bits")
def _bits(site: Site, keys: Value, *, bit_width: int, shape: Sequence[int]) -> Value:
    high, low = _hash(keys, shape)
    if bit_width == 64:
        wide = op.shift_left(op.convert(high, dtypes.uint64), op.scalar(32, dtypes.uint64))
        return op.bitwise_or(wide, op.convert(low, dtypes.uint64))
    return op.convert(op.bitwise_xor(high, low), np.dtype(f"uint{bit_width}"))


@rule("random_split")
def _split(site: Site, keys: Value, *, shape: Sequence[int]) -> Value:
    first, second = _hash(keys, shape)
    rank = len(aval_of(first).shape)
    return op.concatenate([op.expand(first, rank), op.expand(second, rank)], rank)


@rule("random_fold_in")
def _fold_in(site: Site, keys: Value, data: Value) -> Value:
    first, second = _words(keys)
    data = op.convert(data, _UINT32)
    shape = aval_of(first).shape or aval_of(data).shape
    values = [op.broadcast(x, shape, ()) if not aval_of(x).shape else x
              for x in (first, second, data)]  # fmt: skip
    one, two = op.threefry2x32(values[0], values[1], op.zeros_like(values[2]), values[2])
    rank = len(shape)
    return op.concatenate([op.expand(one, rank), op.expand(two, rank)], rank)


@rule("threefry2x32")
def _threefry(site: Site, *operands: Value) -> list[Value]:
    return list(op.threefry2x32(*operands))
