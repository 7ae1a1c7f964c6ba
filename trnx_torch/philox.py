"""Philox-4x32-10 as array code: the random stream of a `neuron` generator.

Number i of a stream is word ``i % 4`` of block ``i // 4``; the block number is the counter and the
generator's seed is the key (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
A number depends on seed and position alone, so eager kernels, compiled graphs and padded programs
draw the same ones. Only 32-bit integer arithmetic is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import trnx.numpy as np
from trnx.core.dims import Size

Value = Any

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFF


def _word(value: int) -> Value:
    return np.full((), value, dtype=np.uint32)


def _multiply(factor: int, x: Value) -> tuple[Value, Value]:
    """High and low word of a 64-bit product, from products of 16-bit halves."""
    f0, f1 = _word(factor & _LOW), _word(factor >> 16)
    x0, x1 = x & _LOW, x >> 16
    lowest = f0 * x0
    middle = f0 * x1 + (lowest >> 16)
    other = f1 * x0 + (middle & _LOW)
    return f1 * x1 + (middle >> 16) + (other >> 16), _word(factor) * x


def blocks(key: tuple[Value, Value], counter: tuple[Value, Value]) -> tuple[Value, ...]:
    """Four random words per counter.

    Args:
        key: low and high word of the seed.
        counter: low and high words of block numbers, arrays of one shape.
    """
    k0, k1 = key
    zero = np.zeros_like(counter[0])
    x0, x1, x2, x3 = counter[0], counter[1], zero, zero
    for number in range(_ROUNDS):
        if number:
            k0, k1 = k0 + _word(_WEYL[0]), k1 + _word(_WEYL[1])
        high0, low0 = _multiply(_MULTIPLIERS[0], x0)
        high1, low1 = _multiply(_MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
    return x0, x1, x2, x3


def _counter(start: Value, index: Value) -> tuple[Value, Value]:
    """Block numbers ``start + index`` of 64 bits; `start` is u32[4], see :func:`words`."""
    low = start[2] + index
    return low, start[3] + (low < index).astype(np.uint32)


def words(start: Value, shape: Sequence[Size], skip: Size = 0) -> Value:
    """Random 32-bit words.

    Args:
        start: u32[4]: low and high word of the seed, low and high word of the first block's number.
        shape: sizes of the result.
        skip: how many blocks after the first one to begin.

    Returns:
        u32 of that shape: numbers in row-major order.
    """
    count: Size = 1
    for size in shape:
        count = count * size
    key = (start[0], start[1])
    if isinstance(count, int):
        number = -(-count // 4)
        index = np.arange(number, dtype=np.uint32) + _size(skip)
        four = blocks(key, _counter(start, index))
        flat = np.reshape(np.stack(four, axis=1), (4 * number,))
        return np.reshape(flat[:count], tuple(shape))
    place = _positions(shape)
    four = blocks(key, _counter(start, (place >> 2) + _size(skip)))
    lane = place & 3
    first = np.where(lane == 0, four[0], four[1])
    return np.where(lane < 2, first, np.where(lane == 2, four[2], four[3]))


def _size(size: Size) -> Value:
    if isinstance(size, int):
        return _word(size)
    return np.multiply(size, _word(1)).astype(np.uint32)


def _positions(shape: Sequence[Size]) -> Value:
    """The row-major index of each element."""
    total: Value = np.zeros((), dtype=np.uint32)
    for axis, size in enumerate(shape):
        along = np.reshape(
            np.arange(size, dtype=np.uint32),
            tuple(-1 if a == axis else 1 for a in range(len(shape))),
        )
        total = total * _size(size) + along
    return np.broadcast_to(total, tuple(shape))


def unit(word: Value, bits: int = 24) -> Value:
    """Words as float32 in [0, 1), multiples of ``2**-bits``; at most 24 bits."""
    return (word >> (32 - bits)).astype(np.int32).astype(np.float32) * 2.0**-bits


def normal(first: Value, second: Value) -> Value:
    """Standard normal numbers of float32, one per pair of words (Box and Muller)."""
    radius = np.sqrt(-2.0 * np.log(1.0 - unit(first)))
    return radius * np.cos(2.0 * math.pi * unit(second))
