"""The counter-based random generator Threefry-2x32 (Salmon et al., SC 2011), 20 rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnx.core import Aval, Cost, OpCase, Primitive, TestRecord, dtypes
from trnx.ops import functions as op
from trnx.ops._factories import (
    NO_DERIVATIVE,
    NumpyArray,
    check_dtypes,
    elements,
    elementwise_shape,
    nbytes,
    pad_elementwise,
    vmap_elementwise,
)

Array = Any

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
_ROUNDS = 20
_UINT32 = dtypes.uint32


def _abstract(*avals: Aval) -> tuple[Aval, Aval]:
    check_dtypes("threefry2x32", avals, (_UINT32,))
    aval = Aval(elementwise_shape("threefry2x32", avals), _UINT32)
    return aval, aval


def _rounds(key0: Any, key1: Any, x0: Any, x1: Any, add: Any, xor: Any, rotate: Any) -> Any:
    """The algorithm, for any kind of uint32 arithmetic."""
    keys = (key0, key1, xor(xor(key0, key1), PARITY))
    x0, x1 = add(x0, keys[0]), add(x1, keys[1])
    for group in range(_ROUNDS // 4):
        for distance in ROTATIONS[group % 2]:
            x0 = add(x0, x1)
            x1 = xor(rotate(x1, distance), x0)
        x0 = add(x0, keys[(group + 1) % 3])
        x1 = add(add(x1, keys[(group + 2) % 3]), group + 1)
    return x0, x1


def _reference(
    key0: NumpyArray, key1: NumpyArray, x0: NumpyArray, x1: NumpyArray
) -> tuple[NumpyArray, NumpyArray]:
    def wide(function: Any) -> Any:
        # 64-bit arithmetic cut to 32 bits: NumPy warns when a uint32 scalar wraps.
        return lambda a, b: function(np.uint64(a), np.uint64(b)) & np.uint64(0xFFFFFFFF)

    def rotate(x: Any, distance: int) -> Any:
        x = np.uint64(x)
        turned = (x << np.uint64(distance)) | (x >> np.uint64(32 - distance))
        return turned & np.uint64(0xFFFFFFFF)

    a, b, c, d = (np.asarray(x, np.uint64) for x in (key0, key1, x0, x1))
    first, second = _rounds(a, b, c, d, wide(np.add), wide(np.bitwise_xor), rotate)
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape, d.shape)
    return (
        np.broadcast_to(first.astype(np.uint32), shape),
        np.broadcast_to(second.astype(np.uint32), shape),
    )


threefry2x32_p = Primitive(
    "threefry2x32",
    abstract=_abstract,
    multiple_results=True,
    doc="Two uint32 counters under a key of two uint32 words to two random words.",
    reference=_reference,
    tests=TestRecord(
        tuple(
            OpCase(shapes)
            for shapes in [((5,),) * 4, ((), (), (7, 9), (7, 9)), ((),) * 4, ((), (), (), (131,))]
        ),
        (_UINT32,),
    ),
    not_needed={"transpose": NO_DERIVATIVE},
)
threefry2x32_p.def_jvp(None)
threefry2x32_p.def_vmap(vmap_elementwise(threefry2x32_p))
threefry2x32_p.def_pad(pad_elementwise(threefry2x32_p))


@threefry2x32_p.def_composite
def _composite(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    def rotate(x: Array, distance: int) -> Array:
        left, right = op.shift_left(x, distance), op.shift_right_logical(x, 32 - distance)
        return op.bitwise_or(left, right)

    first, second = _rounds(key0, key1, x0, x1, op.add, op.bitwise_xor, rotate)
    avals = [op.aval_of(x) for x in (key0, key1, x0, x1)]
    shape = elementwise_shape("threefry2x32", avals)
    return tuple(
        x if op.shape_of(x) == shape else op.broadcast(x, shape, ()) for x in (first, second)
    )


@threefry2x32_p.def_cost
def _cost(*avals: Aval) -> Cost:
    out = _abstract(*avals)
    return Cost(_ROUNDS * 6 * elements(out[0]), nbytes(*avals), nbytes(*out))
