"""Programs that random search found wrong, kept as a table: native code and simulator vs NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tn

RNG = np.random.default_rng(0)


def _half(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float16)


def _both_ways(m: Any, x: Any) -> Any:
    """A value that the kernel of its scaling walks across, and then along with the result."""
    wide = x + 1
    across = tn.einsum("i,ji->ij", m, tn.negative(wide))
    return tn.negative(across) / wide


# name -> (function, arguments, NumPy result)
FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    # A product that is compared with itself was rounded for one side only.
    "argmin of a rounded product": (
        lambda x: tn.argmin(tn.sum(x, 0, keepdims=True), 0, keepdims=True),
        (_half(129, 7),),
        np.zeros((1, 7), np.int32),
    ),
    "rounded product equals itself": (
        lambda x, y: tn.reshape(tn.matmul(x, y), (1, 9, 5)) == tn.max(tn.matmul(x, y)[None], 0),
        (_half(9, 200), _half(200, 5)),
        np.ones((1, 9, 5), np.bool_),
    ),
    # Axes of size 0 were divided by.
    "minimum with an empty sum": (
        lambda x: tn.minimum(tn.concatenate([x, x], 0), tn.sum(x, 0)),
        (np.zeros((0,), np.float32),),
        np.zeros((0,), np.float32),
    ),
    "empty slice of a fused value": (
        lambda x: tn.exp(tn.minimum(tn.exp(x)[None, 3:], 2.0)),
        (_half(3, 257, 1),),
        np.zeros((1, 0, 257, 1), np.float16),
    ),
    "empty rows, tiled": (
        trnx.vmap(lambda x: tn.tile(x < tn.concatenate([x] * 6), 2)),
        (np.zeros((3, 0), np.int32),),
        np.zeros((3, 0), np.bool_),
    ),
    "sums, maxima and products over nothing": (
        lambda x: tn.concatenate([tn.sum(x, 0)[None], trnx.lax.reduce_max(x, (0,))[None], x.T @ x]),
        (np.zeros((0, 2), np.float32),),
        np.array([[0, 0], [-np.inf, -np.inf], [0, 0], [0, 0]], np.float32),
    ),
    "parts without elements": (
        lambda x, y: tn.concatenate([x, y, x], 1) * 2,
        (np.zeros((2, 0), np.float32), np.ones((2, 3), np.float32)),
        np.full((2, 3), 2, np.float32),
    ),
    # Values of one kernel over the same axes in another order, continued element by element.
    "a value walked both ways": (
        _both_ways,
        (np.full(3, 2, np.float32), np.full((3, 3), 3, np.float32)),
        np.full((3, 3), 2, np.float32),
    ),
    # The simulator did not know the functions of host calls.
    "int64 product": (
        lambda x: tn.matmul(x, x) + 1,
        (np.array([[2**40, -1], [3, 4]]),),
        np.array([[2**80 % 2**64 - 3 + 1, -(2**40) - 4 + 1], [3 * 2**40 + 13, 14]], np.int64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, device: str) -> None:
    """Compiled and simulated results equal NumPy's."""
    function, args, wanted = FOUND[name]
    with trnx.use_device(device):
        lowered = trnx.jit(function).lower(*args)
        simulated = lowered.simulate()
        native = trnx.jit(function)(*args)
    assert simulated.findings == ()
    for got in (np.asarray(native), simulated.outputs[0]):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
