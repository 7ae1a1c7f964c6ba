"""trnx.nki: kernels as callables on the host and in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trnx import nki
from trnx.core import config
from trnx.core.errors import TileError, UnsupportedError
from trnx.nki import isa as nisa
from trnx.nki import language as nl

Array = np.ndarray[Any, Any]
PARTITIONS = 128


def scale_tile(tile: Any, factor: Any) -> None:
    """A helper that kernels below inline."""
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)


@nki.jit
def scaled(x: Any, factor: float = 2.0) -> Any:
    """x times a compile-time factor."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range((x.shape[0] + PARTITIONS - 1) // PARTITIONS):
        rows = min(PARTITIONS, x.shape[0] - i * PARTITIONS)
        t = nl.ndarray((PARTITIONS, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t[:rows], src=x[i * PARTITIONS : i * PARTITIONS + rows])
        scale_tile(t[:rows], factor)
        nisa.dma_copy(dst=y[i * PARTITIONS : i * PARTITIONS + rows], src=t[:rows])
    return y


@nki.jit
def negate_in_place(x: Any) -> Any:
    """Writes its argument."""
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    scale_tile(t, -1.0)
    nisa.dma_copy(dst=x, src=t)
    return x


@nki.jit(unroll=True)
def by_parity(x: Any) -> Any:
    """A choice by the loop index."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(2):
        t = nl.ndarray((4, 8), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[4 * i : 4 * i + 4])
        if i == 1:
            scale_tile(t, 10.0)
        nisa.dma_copy(dst=y[4 * i : 4 * i + 4], src=t)
    return y


@nki.jit
def reads_too_much(x: Any) -> Any:
    """Reads a tile nobody wrote."""
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=y, src=t)
    return y


def ramp(*shape: int) -> Array:
    """0, 1, 2, … as float32."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("how", [lambda k: k, nki.simulate], ids=["host", "simulator"])
def test_kernels_run(how: Any) -> None:
    """Host and simulator give the kernel's result; compile-time arguments and tails work."""
    x = ramp(200, 16)
    assert np.array_equal(how(scaled)(x), 2 * x)
    assert np.array_equal(how(scaled)(x, factor=3.0), 3 * x)
    assert np.array_equal(how(scaled)(x[:7]), 2 * x[:7])
    expected = ramp(8, 8)
    expected[4:] *= 10
    assert np.array_equal(how(by_parity)(ramp(8, 8)), expected)


@pytest.mark.parametrize("how", [lambda k: k, nki.simulate], ids=["host", "simulator"])
def test_written_arguments_come_back(how: Any) -> None:
    """As in NKI's own simulator, an argument the kernel writes is updated; read-only ones stay."""
    x = ramp(4, 8)
    result = how(negate_in_place)(x)
    assert np.array_equal(x, -ramp(4, 8)) and np.array_equal(result, x)
    frozen = ramp(4, 8)
    frozen.flags.writeable = False
    assert np.array_equal(how(negate_in_place)(frozen), -frozen)


def test_simulation_reports() -> None:
    """`run` gives time and findings; a plain call raises the first finding."""
    result = nki.simulate(scaled).run(ramp(200, 16))
    assert result.total_us > 0 and not result.findings
    wrong = nki.simulate(reads_too_much).run(ramp(4, 4))
    assert "uninitialised" in {f.kind for f in wrong.findings}
    with pytest.raises(TileError, match="never written"):
        nki.simulate(reads_too_much)(ramp(4, 4))


def test_source_round_trip() -> None:
    """A kernel's tile program prints as NKI and becomes the same kernel again."""
    x = ramp(200, 16)
    program = scaled.tile_program(x)
    again = nki.from_source(nki.source(program))
    assert again.tile_program(x) == program
    assert np.array_equal(again(x), 2 * x)


def test_kernels_are_read_once_per_types() -> None:
    """The same types give the same program object; another target another one."""
    x = ramp(200, 16)
    assert scaled.tile_program(x) is scaled.tile_program(x + 1)
    assert scaled.tile_program(x) is not scaled.tile_program(x[:3])
    with config.target("trn1"):
        assert scaled.tile_program(x).target == "trn1"


def test_illegal_kernels_are_refused_before_they_run() -> None:
    """Legality speaks the kernel's line."""

    @nki.jit
    def tall(x: Any) -> Any:
        y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((256, 4), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x)
        nisa.dma_copy(dst=y, src=t)
        return y

    with pytest.raises(TileError, match=r"T2: tile t f32\[256,4\] in sbuf has 256 partitions"):
        tall(ramp(256, 4))


def test_face_errors() -> None:
    """Names of nl and nisa mean something inside kernels only; sources must be readable."""
    with pytest.raises(UnsupportedError, match=r"ndarray\(\) is called outside a kernel"):
        nl.ndarray((4, 4), dtype=nl.float32)
    namespace: dict[str, Any] = {}
    exec("def hidden(x):\n    return x", namespace)
    with pytest.raises(UnsupportedError, match="the source of 'hidden' cannot be read"):
        nki.jit(namespace["hidden"])
    with pytest.raises(UnsupportedError, match="is no Python function"):
        nki.jit(print)
    text = "import nki\n@nki.jit\ndef a(x):\n    pass\n@nki.jit\ndef b(x):\n    pass\n"
    with pytest.raises(UnsupportedError, match="the source has 2 such kernels"):
        nki.from_source(text)
    assert repr(nki.from_source(text, "a")) == "<NKI kernel a of <nki>>"
