"""Random numbers from keys: the same key always gives the same numbers, equal to `jax.random`'s.

A key is a uint32 array of shape ``[2]``. Numbers are a function of key and shape alone: position i
of the result is Threefry-2x32 of the 64-bit counter i, so any part can be computed on its own. Use
a key once; get more with :func:`split`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnx.core import DTypeError, ShapeError, Size, aval_of, bounds, dtypes, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    broadcast_shape,
    cast,
    normal_shape,
    spread_to,
    type_of,
)
from trnx.numpy._public import publish as _publish
from trnx.numpy.creation import asarray
from trnx.ops import functions as op

_UINT32 = dtypes.uint32
_WORD = 0xFFFFFFFF


def key(seed: int | ArrayLike) -> Array:
    """A key from an integer seed (a Python int of up to 64 bits, or an integer scalar)."""
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**64:
            raise OverflowError(
                message(f"The seed {seed} has more than 64 bits", None, "Use a smaller one")
            )
        # As with 32-bit integers in jax: a seed that fits has the high word 0.
        high = 0 if -(2**31) <= seed < 2**31 else (seed >> 32) & _WORD
        return asarray(np.array([high, seed & _WORD], np.uint32))
    aval = type_of(seed)
    if aval.shape or not dtypes.is_integer(aval.dtype):
        raise DTypeError(message(f"key of {aval}", None, "Use an integer scalar as seed"))
    low = cast(seed, _UINT32)
    if aval.dtype.itemsize < 8:
        return _words(np.uint32(0), low)
    return _words(cast(op.shift_right_logical(seed, 32), _UINT32), low)


PRNGKey = key


def _words(first: Array, second: Array) -> Array:
    """Two arrays of words, stacked along a new last axis."""
    rank = len(aval_of(second).shape)
    first = op.spread(first, second)
    return op.concatenate([op.expand(first, rank), op.expand(second, rank)], rank)


def _key_words(key: ArrayLike) -> tuple[Array, Array]:
    aval = type_of(key)
    if aval.dtype != _UINT32 or aval.shape != (2,):
        raise DTypeError(
            message(f"A random key has type u32[2], not {aval}", None, "Make one with random.key")
        )
    return (
        op.reshape(op.slice(key, (0,), (1,)), ()),
        op.reshape(op.slice(key, (1,), (2,)), ()),
    )


def _counters(shape: tuple[Size, ...]) -> Array:
    """The row-major index of each position, as uint32."""
    total: Size = 1
    for size in shape:
        total = total * size
    largest = bounds(total)[1]
    if largest is not None and largest > 2**32:
        raise ShapeError(
            message(f"{largest} random numbers at once", None, "Draw at most 2**32 per call")
        )
    counter: Array = np.uint32(0)
    for axis, size in enumerate(shape):
        place = op.iota(shape, axis, _UINT32)
        counter = op.add(op.mul(counter, op.dim_size(size, _UINT32)), place) if axis else place
    return counter


def _random_words(key: ArrayLike, shape: tuple[Size, ...]) -> tuple[Array, Array]:
    first, second = _key_words(key)
    return op.threefry2x32(first, second, np.uint32(0), _counters(shape))


def bits(key: ArrayLike, shape: Any = (), dtype: Any = np.uint32) -> Array:
    """Uniform random bits.

    Args:
        key: a key.
        shape: size or sizes.
        dtype: uint8, uint16, uint32 or uint64.
    """
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_unsigned_integer(dtype):
        raise DTypeError(
            message(
                f"random.bits of {dtypes.short_name(dtype)}", None, "Use an unsigned integer dtype"
            )
        )
    high, low = _random_words(key, normal_shape("bits", shape))
    if dtype.itemsize == 8:
        wide = op.shift_left(op.convert(high, dtype), 32)
        return op.bitwise_or(wide, op.convert(low, dtype))
    return op.convert(op.bitwise_xor(high, low), dtype)


def split(key: ArrayLike, num: int | tuple[int, ...] = 2) -> Array:
    """`num` new keys, a uint32 array of shape ``[num, 2]`` (or ``[*num, 2]``)."""
    return _words(*_random_words(key, normal_shape("split", num)))


def fold_in(key: ArrayLike, data: int | ArrayLike) -> Array:
    """A new key from a key and an integer scalar, such as a step number."""
    first, second = _key_words(key)
    counter = np.uint32(data & _WORD) if isinstance(data, int) else cast(data, _UINT32)
    return _words(*op.threefry2x32(first, second, np.uint32(0), counter))


# dtype -> (dtype of the bits drawn, bits of the mantissa)
_MANTISSA: dict[np.dtype[Any], tuple[np.dtype[Any], int]] = {
    dtypes.float32: (dtypes.uint32, 23),
    dtypes.float64: (dtypes.uint64, 52),
    dtypes.float16: (dtypes.uint16, 10),
    dtypes.bfloat16: (dtypes.uint8, 7),
}


def _float_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    found = dtypes.as_dtype(dtype)
    if found not in _MANTISSA:
        raise DTypeError(
            message(f"random.{name} of {dtypes.short_name(found)}", None, "Use a float dtype")
        )
    return found


def uniform(
    key: ArrayLike,
    shape: Any = (),
    dtype: Any = np.float32,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
) -> Array:
    """Uniform numbers in [minval, maxval).

    Args:
        key: a key.
        shape: size or sizes.
        dtype: a float dtype.
        minval: lower bound, broadcast to `shape`.
        maxval: upper bound, broadcast to `shape`.
    """
    dtype = _float_dtype("uniform", dtype)
    sizes = normal_shape("uniform", shape)
    word, mantissa = _MANTISSA[dtype]
    drawn = bits(key, sizes, word)
    # The top bits as a fraction: exact, because they fit into the mantissa.
    width = 8 * word.itemsize
    whole = op.shift_right_logical(drawn, width - mantissa)
    unit = op.mul(_exact_float(whole, dtype), 2.0**-mantissa)
    low, high = _bounds("uniform", sizes, dtype, minval, maxval)
    if isinstance(minval, int | float) and isinstance(maxval, int | float) and minval == 0:
        return unit if maxval == 1 else op.mul(unit, high)
    return op.max(op.add(op.mul(unit, op.sub(high, low)), low), low)


def _exact_float(whole: Array, dtype: np.dtype[Any]) -> Array:
    if dtypes.itemsize(aval_of(whole).dtype) < 4:
        whole = op.convert(whole, dtypes.int32)
    return op.convert(whole, dtype)


def _bounds(
    name: str, shape: tuple[Size, ...], dtype: np.dtype[Any], *values: ArrayLike
) -> list[Array]:
    found = []
    for value in values:
        operand = cast(value, dtype)
        own = type_of(operand).shape
        broadcast_shape(name, [own, shape], values)
        found.append(spread_to(operand, shape) if own else operand)
    return found


def normal(key: ArrayLike, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard normal numbers, by the inverse of the error function."""
    dtype = _float_dtype("normal", dtype)
    low = float(np.nextafter(np.array(-1, dtype), np.array(0, dtype)))
    drawn = uniform(key, shape, dtype, low, 1.0)
    return op.mul(op.erf_inv(drawn), math.sqrt(2))


def bernoulli(key: ArrayLike, p: ArrayLike = 0.5, shape: Any = None) -> Array:
    """True with probability `p`, which broadcasts to `shape` (default: the shape of `p`)."""
    aval = type_of(p)
    sizes = aval.shape if shape is None else normal_shape("bernoulli", shape)
    dtype = aval.dtype if dtypes.is_float(aval.dtype) else dtypes.float32
    (bound,) = _bounds("bernoulli", sizes, dtype, p)
    return op.lt(uniform(key, sizes, dtype), bound)


def exponential(key: ArrayLike, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Exponentially distributed numbers of rate 1."""
    return op.neg(op.log1p(op.neg(uniform(key, shape, dtype))))


def randint(key: ArrayLike, shape: Any, minval: int, maxval: int, dtype: Any = np.int32) -> Array:
    """Integers in [minval, maxval), with a bias below ``range / 2**64`` for 32-bit types.

    Args:
        key: a key.
        shape: size or sizes.
        minval: smallest value, a Python int.
        maxval: end of the range, not included; a Python int.
        dtype: an integer dtype that holds the range.

    Raises:
        ValueError: an empty range.
    """
    dtype = dtypes.as_dtype(dtype)
    if not dtypes.is_integer(dtype):
        raise DTypeError(
            message(f"randint of {dtypes.short_name(dtype)}", None, "Use an integer dtype")
        )
    for bound in (minval, maxval - 1):
        dtypes.check_python_int(bound, dtype)
    sizes = normal_shape("randint", shape)
    span = maxval - minval
    if span <= 0:
        raise ValueError(
            message(f"randint of [{minval}, {maxval}), which is empty", None, "Use maxval > minval")
        )
    # Narrow types are drawn in 32 bits, where the bias of the remainder is negligible.
    width = max(32, 8 * dtype.itemsize)
    word = dtypes.as_dtype(f"uint{width}")
    wide = dtypes.as_dtype(f"{'int' if dtype in dtypes.SIGNED else 'uint'}{width}")
    keys = split(key)
    high, low = (
        bits(op.reshape(op.slice_axis(keys, i, i + 1, 0), (2,)), sizes, word) for i in (0, 1)
    )
    if span < 2**width:  # otherwise every word is a value
        half = 2 ** (width // 2) % span
        # 2**width modulo the span, with the product cut to the word as jax does.
        factor = half * half % 2**width % span
        low = op.add(op.mul(op.remainder(high, span), factor), op.remainder(low, span))
        low = op.remainder(low, span)
    return op.convert(op.add(op.convert(low, wide), minval), dtype)


def gumbel(key: ArrayLike, shape: Any = (), dtype: Any = np.float32) -> Array:
    """Standard Gumbel numbers."""
    dtype = _float_dtype("gumbel", dtype)
    smallest = float(np.asarray(_tiny(dtype), np.float64))
    drawn = uniform(key, shape, dtype, smallest, 1.0)
    return op.neg(op.log(op.neg(op.log(drawn))))


def _tiny(dtype: np.dtype[Any]) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).tiny)


def categorical(key: ArrayLike, logits: ArrayLike, axis: int = -1, shape: Any = None) -> Array:
    """int32 classes drawn with probabilities softmax(logits) along `axis`."""
    from trnx.numpy.reductions import argmax

    aval = type_of(logits)
    sizes = list(aval.shape)
    if shape is not None:
        sizes = [*normal_shape("categorical", shape), sizes[axis]]
        axis = -1
    noise = gumbel(key, sizes, aval.dtype)
    return argmax(op.add(spread_to(logits, tuple(sizes)), noise), axis)


_publish(globals())
