"""Loops are parallel exactly when it can be proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tile import kernels
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import minimum
from trnx.compiler.tile.ir import For, Kernel, walk
from trnx.compiler.tile.parallel import mark_parallel
from trnx.core.dtypes import float32, int32


def marks(kernel: Kernel) -> dict[str, bool]:
    """Loop index to its mark."""
    return {s.index: s.parallel for s in walk(mark_parallel(kernel).body) if isinstance(s, For)}


def looped(write: Callable[[KernelBuilder, Any, Any, Any], None], trips: int = 4) -> Kernel:
    """A loop i over x f32[512,64] and y f32[512,64]."""
    b = KernelBuilder("k")
    x = b.param("x", (512, 64), float32, "in")
    y = b.param("y", (512, 64), float32, "inout")
    with b.loop("i", 0, trips) as i:
        write(b, x, y, i)
    return b.finish()


def _rows(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((128, 64), float32)
    b.dma_copy(t, x[i * 128 : i * 128 + 128])
    b.dma_copy(y[i * 128 : i * 128 + 128], t)


def _columns(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((128, 16), float32)
    b.dma_copy(t, x[0:128, i * 16 : i * 16 + 16])
    b.dma_copy(y[0:128, i * 16 : i * 16 + 16], t)


def _interleaved(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((64, 64), float32)
    b.memset(t, 0.0)
    b.dma_copy(y[i * 128 : i * 128 + 128 : 2], t)
    b.dma_copy(y[i * 128 + 1 : i * 128 + 128 : 2], t)


def _read_own_rows(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((128, 64), float32)
    b.dma_copy(t, y[i * 128 : i * 128 + 128])
    b.dma_copy(y[i * 128 : i * 128 + 128], t)


def _same_rows(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((128, 64), float32)
    b.dma_copy(t, x[i * 128 : i * 128 + 128])
    b.dma_copy(y[0:128], t)


def _overlapping(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((128, 64), float32)
    b.memset(t, 0.0)
    b.dma_copy(y[i * 64 : i * 64 + 128], t)


def _reads_next(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t = b.sbuf((64, 64), float32)
    b.dma_copy(t, y[i * 64 + 64 : i * 64 + 128])
    b.dma_copy(y[i * 64 : i * 64 + 64], t)


def _scatter(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    t, index = b.sbuf((8, 64), float32), b.sbuf((8, 1), int32)
    b.memset(t, 0.0)
    b.memset(index, 0)
    b.dma_copy(y.indexed(index), t)


def _register(b: KernelBuilder, x: Any, y: Any, i: Any) -> None:
    b.register("r", 0)
    _rows(b, x, y, i)


PARALLEL = {
    "row blocks": (_rows, True),
    "column blocks": (_columns, True),
    "interleaved rows": (_interleaved, True),
    "in place": (_read_own_rows, True),
    "one place": (_same_rows, False),
    "overlapping blocks": (_overlapping, False),
    "neighbour": (_reads_next, False),
    "scatter": (_scatter, False),
    "register": (_register, False),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_marks(name: str) -> None:
    """Disjoint writes are proved, shared ones are not."""
    write, expected = PARALLEL[name]
    assert marks(looped(write)) == {"i": expected}


def test_one_iteration_is_not_marked() -> None:
    """There is nothing to run at once."""
    assert marks(looped(_rows, 1)) == {"i": False}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("softmax", {"i": True}),
        ("matmul", {"i": True, "j": True, "kk": False}),
        ("gather", {"i": False}),
        ("control", {"r": True}),
    ],
)
def test_sample_kernels(name: str, expected: dict[str, bool]) -> None:
    """Tails and nested loops; accumulation and scatter-add stay serial."""
    if name == "control":
        # Its row tile is outside the loop, so iterations share it.
        expected = {"r": False}
    assert marks(kernels.ALL[name]()) == expected


@pytest.mark.parametrize("strided", [False, True])
def test_run_time_sizes(strided: bool) -> None:
    """Shape-generic rows, dense or with a run-time stride, are proved symbolically."""
    b = KernelBuilder("generic")
    n, m, s = (b.register_argument(name) for name in ("n", "m", "s"))
    x = b.param("x", (n, m), float32, "in", strides=(s, 1) if strided else None)
    y = b.param("y", (n, m), float32, "out", strides=(s, 1) if strided else None)
    with b.loop("i", 0, (n + 127) // 128) as i, b.loop("j", 0, (m + 511) // 512) as j:
        rows, cols = minimum(128, n - i * 128), minimum(512, m - j * 512)
        block = (slice(i * 128, i * 128 + rows), slice(j * 512, j * 512 + cols))
        t = b.sbuf((128, 512), float32)
        b.dma_copy(t[:rows, :cols], x[block])
        b.dma_copy(y[block], t[:rows, :cols])
    assert marks(b.finish()) == {"i": True, "j": True}


def test_outer_tile_makes_a_loop_serial() -> None:
    """An accumulator outside the loop carries state."""
    b = KernelBuilder("k")
    y = b.param("y", (512, 64), float32, "out")
    t = b.sbuf((128, 64), float32)
    b.memset(t, 0.0)
    with b.loop("i", 0, 4) as i:
        b.tensor_scalar(t, t, 1.0, op0="add")
        b.dma_copy(y[i * 128 : i * 128 + 128], t)
    with b.loop("j", 0, 4) as j:
        b.dma_copy(y[j * 128 : j * 128 + 128], t)
    assert marks(b.finish()) == {"i": False, "j": True}
