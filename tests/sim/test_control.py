"""Control flow: loops, registers, while, predicates, host calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import Array, compile_program, rng, run
from trnx.compiler.sim import SimOptions, simulate
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import maximum, minimum
from trnx.compiler.tile.ir import Buffer, HostCall, KernelCall, RegisterValue, TileProgram
from trnx.core.dtypes import float32, int32
from trnx.core.errors import TileError

F = float32


def test_triangular_loops() -> None:
    """Inner bounds may use outer indices; y[i, j] is filled for j <= i."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (5, 5), F, "out")
        z = b.sbuf((5, 5), F)
        b.memset(z, 0.0)
        b.dma_copy(y, z)
        with b.loop("i", 0, 5) as i, b.loop("j", 0, i + 1) as j:
            t = b.sbuf((1, 1), F)
            b.memset(t, 1.0)
            b.dma_copy(y[i : i + 1, j : j + 1], t)

    np.testing.assert_array_equal(run(write).outputs[0], np.tri(5))


def test_step_and_non_linear_indices() -> None:
    """A loop with a step; offsets with min, max, //, % and products."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (12,), int32, "out")
        z = b.sbuf((1, 12), int32)
        b.memset(z, -1)
        b.dma_copy(y[None], z)
        with b.loop("i", 1, 12, step=3) as i:
            place = minimum(maximum(i * i % 12, i // 2), 11)
            t = b.sbuf((1, 1), int32)
            b.iota(t, pattern=((1, 1),), offset=i * 10)
            b.dma_copy(y[None, place : place + 1], t)

    expected = np.full(12, -1)
    for i in range(1, 12, 3):
        expected[min(max(i * i % 12, i // 2), 11)] = i * 10
    np.testing.assert_array_equal(run(write).outputs[0], expected)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loop_with_loaded_bound(trips: int) -> None:
    """A device loop runs as often as the value in memory says."""

    def write(b: KernelBuilder) -> None:
        n, y = b.param("n", (1,), int32), b.param("y", (1, 4), F, "out")
        t = b.sbuf((1, 4), F)
        b.memset(t, 1.0)
        count = b.load_register(n)
        with b.loop("i", 0, count):
            b.tensor_scalar(t, t, 2.0, op0="multiply")
        b.dma_copy(y, t)

    got = run(write, [np.array([trips], int32)]).outputs[0]
    np.testing.assert_array_equal(got, np.full((1, 4), 2.0**trips))


def _collatz(b: KernelBuilder) -> None:
    """Halve while the register, reloaded by the body, is not zero."""
    n, y = b.param("n", (1, 1), int32), b.param("y", (1, 1), int32, "out")
    value, count = b.sbuf((1, 1), int32), b.sbuf((1, 1), int32)
    b.dma_copy(value, n)
    b.memset(count, 0)
    more = b.load_register(value)
    with b.while_loop(more):
        b.tensor_scalar(value, value, 1, op0="right_shift")
        b.tensor_scalar(count, count, 1, op0="add", engine="gpsimd")
        b.load_register(value, into=more)
    b.dma_copy(y, count)


@pytest.mark.parametrize(("start", "steps"), [(0, 0), (1, 1), (1000, 10)])
def test_while(start: int, steps: int) -> None:
    """Counts the bits of a number."""
    assert run(_collatz, [np.array([[start]], int32)]).outputs[0][0, 0] == steps


def test_endless_while_is_stopped() -> None:
    """A negative number never becomes zero here."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (1, 1), F, "out")
        r = b.register("r", 1)
        t = b.sbuf((1, 1), F)
        with b.while_loop(r):
            b.memset(t, 0.0)
        b.dma_copy(y, t)

    with pytest.raises(TileError, match="while r of kernel 'k' ran 10 times"):
        run(write, max_while=10)


def test_registers_as_operands_offsets_and_moves() -> None:
    """A register adds as a number, moves, and picks a row."""

    def write(b: KernelBuilder) -> None:
        n = b.register_argument("n")
        x, y = b.param("x", (8, 4), F), b.param("y", (1, 4), F, "out")
        r = b.register("row", n * 2)
        b.move_register(r, r + 1)
        t = b.sbuf((1, 4), F)
        b.dma_copy(t, x[r : r + 1])
        b.tensor_scalar(t, t, RegisterValue(r), op0="add")
        b.dma_copy(y, t)

    x = rng().standard_normal((8, 4)).astype(F)
    got = run(write, [x], registers=[3]).outputs[0]
    np.testing.assert_array_equal(got[0], x[7] + F.type(7))


@pytest.mark.parametrize(
    ("relation", "sums"), [(">", 3), (">=", 3), ("==", 1), ("!=", 3), ("<", 1), ("<=", 1)]
)
def test_accumulate_predicates(relation: str, sums: int) -> None:
    """``k relation bound`` decides whether a matmul adds to PSUM or overwrites it."""
    bound = {">": 0, ">=": 1, "==": 3, "!=": 0, "<": 0, "<=": -1}[relation]

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (4, 4), F, "out")
        ones, p, o = b.sbuf((8, 4), F), b.psum((4, 4), F), b.sbuf((4, 4), F)
        b.memset(ones, 1.0)
        with b.loop("k", 0, 3) as k:
            b.nc_matmul(p, ones, ones, accumulate=predicate(k, relation, bound))
        b.tensor_copy(o, p)
        b.dma_copy(y, o)

    np.testing.assert_array_equal(run(write).outputs[0], np.full((4, 4), 8.0 * sums))


def test_accumulate_into_unwritten_psum_is_found() -> None:
    """The first matmul must overwrite."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (4, 4), F, "out")
        ones, p, o = b.sbuf((8, 4), F), b.psum((4, 4), F), b.sbuf((4, 4), F)
        b.memset(ones, 1.0)
        b.nc_matmul(p, ones, ones, accumulate=True)
        b.tensor_copy(o, p)
        b.dma_copy(y, o)

    (finding,) = run(write, raise_findings=False).findings
    assert "nc_matmul of kernel 'k' reads 16 elements of p0" in finding.text


def test_zero_rows_do_nothing() -> None:
    """A tail of no rows is no instruction."""

    def write(b: KernelBuilder) -> None:
        n = b.register_argument("n")
        x, y = b.param("x", (128, 4), F), b.param("y", (128, 4), F, "out")
        t = b.sbuf((128, 4), F)
        b.dma_copy(t, x)
        b.dma_copy(y, t)
        b.dma_copy(y[:n], t[:n], engine="scalar")

    x = rng().standard_normal((128, 4)).astype(F)
    result = run(write, [x], registers=[0])
    assert len(result.timeline.events) == 2


def test_host_call() -> None:
    """A counted fallback runs a named function between kernels."""

    def copy(b: KernelBuilder) -> None:
        x, y = b.param("x", (4, 4), F), b.param("y", (4, 4), F, "out")
        t = b.sbuf((4, 4), F)
        b.dma_copy(t, x)
        b.dma_copy(y, t)

    kernel = compile_program(copy).kernels[0]
    shape = (4, 4)
    buffers = (
        Buffer("x", shape, F, "input"),
        Buffer("a", shape, F, "temp", 0),
        Buffer("y", shape, F, "output"),
    )
    call = HostCall("flip", ("a",), ("y",), (("axis", 1),))
    program = TileProgram(
        "p", "trn2", buffers, (kernel,), (KernelCall(0, ("x", "a")), call), ("y",), (), 64
    )

    def flip(arrays: Sequence[Array], attrs: Mapping[str, Any]) -> list[Array]:
        return [np.flip(arrays[0], int(attrs["axis"]))]

    x = rng().standard_normal(shape).astype(F)
    result = simulate(program, [x], options=SimOptions(host_functions={"flip": flip}))
    np.testing.assert_array_equal(result.outputs[0], x[:, ::-1])
    assert result.cost.host_calls == ("flip",)
    with pytest.raises(TileError, match="host function 'flip' is not known"):
        simulate(program, [x])
    wrong = replace(program, calls=(program.calls[0], replace(call, function="bad")))
    bad = SimOptions(host_functions={"bad": lambda arrays, attrs: [arrays[0][:2]]})
    with pytest.raises(TileError, match=r"gave float32\[2, 4\] for 'y', which is f32\[4, 4\]"):
        simulate(wrong, [x], options=bad)
