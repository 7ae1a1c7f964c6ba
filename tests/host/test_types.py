"""Conversions between dtypes are those of the simulator, bit for bit, on every kind of CPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cpus import CPUS
from tests.host.native import run_native
from trnx.compiler.host.cpu import Cpu
from trnx.compiler.sim.cast import through_fp32, transfer
from trnx.compiler.tile.build import KernelBuilder, single_kernel_program
from trnx.core.dtypes import (
    FLOATS,
    SIGNED,
    UNSIGNED,
    bool_,
    float64,
    short_name,
)

DTYPES = (bool_, *SIGNED, *UNSIGNED, *FLOATS)


def _samples(dtype: np.dtype) -> np.ndarray:
    """Random bit patterns, small numbers and the special values of ``dtype``."""
    rng = np.random.default_rng(5)
    if dtype == bool_:
        return rng.integers(0, 2, 200).astype(bool_)
    raw = rng.integers(0, 256, 400 * dtype.itemsize, np.uint8).view(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 127.5, 255.5, 464.0, 464.1, 248.0]
    special += [65519.9, 65520.0, 61440.0, 61439.0, 3e9, -3e9, 1e19, -1e19, 1e-40, 2.0**-24]
    special += [2.0**-25, 3 * 2.0**-26, 2.0**-10, 2.0**-17]
    if dtype.kind in "iu":
        whole = [v for v in special if np.iinfo(dtype).min <= v <= np.iinfo(dtype).max]
        return np.concatenate([raw, np.array(whole).astype(dtype)])
    with np.errstate(over="ignore", invalid="ignore"):
        extra = np.array([*special, np.inf, -np.inf, np.nan]).astype(dtype)
    return np.concatenate([raw, extra])


def _convert(values: np.ndarray, op: str, cpu: Cpu | None) -> list[np.ndarray]:
    """``values`` as every dtype, by one kernel."""
    count = values.size
    b = KernelBuilder("convert", "cpu")
    x = b.param("x", (1, count), values.dtype, "in")
    outs = [b.param(f"y{i}", (1, count), dtype, "out") for i, dtype in enumerate(DTYPES)]
    source = b.sbuf((1, count), values.dtype)
    b.dma_copy(source, x)
    for out, dtype in zip(outs, DTYPES, strict=True):
        tile = b.sbuf((1, count), dtype)
        if op == "dma_copy":
            b.dma_copy(tile, x)
        else:
            b.tensor_copy(tile, source)
        b.dma_copy(out, tile)
    program = single_kernel_program(b.finish(), "trn2")
    outputs = run_native(program, [values.reshape(1, count)], cpu=cpu)
    return [o.reshape(-1) for o in outputs]


def _same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == np.ascontiguousarray(want).view(bits)
    if got.dtype.kind not in "iub":
        with np.errstate(invalid="ignore"):
            same |= np.isnan(got.astype(float64)) & np.isnan(want.astype(float64))
    return same


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("op", ["dma_copy", "tensor_copy"])
@pytest.mark.parametrize("source", DTYPES, ids=short_name)
def test_conversions(source: np.dtype, op: str, cpu: str) -> None:
    """From one dtype to all, through a DMA (exact between integers) and an engine (fp32)."""
    values = _samples(source)
    for target, got in zip(DTYPES, _convert(values, op, CPUS[cpu]), strict=True):
        # Copies of 64-bit integers are an extension, exact on every target.
        wide = any(d.kind in "iu" and d.itemsize == 8 for d in (source, target))
        rule = transfer if op == "dma_copy" or wide else through_fp32
        with np.errstate(all="ignore"):
            want = rule(values, target)
        same = _same(got, want)
        at = int(np.argmin(same))
        assert same.all(), (short_name(target), values[at], got[at], want[at])
