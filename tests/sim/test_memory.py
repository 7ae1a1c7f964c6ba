"""Byte memories: addresses, overlap, poison, bounds, HBM spaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.programs import compile_kernel, compile_program, rng, run
from trnx.compiler.sim import SimOptions, simulate
from trnx.compiler.sim.memory import Memory, View, byte_runs, poison, runs_overlap
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.ir import Alloc, Buffer, KernelCall, TileProgram
from trnx.core.dtypes import bfloat16, bool_, float32, int32, uint8
from trnx.core.errors import TileError

F = float32


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(1, 4), st.integers(-12, 12)), min_size=0, max_size=3),
    st.sampled_from([1, 2, 4]),
)
def test_runs_cover_exactly_the_bytes(base: int, dims: list[tuple[int, int]], item: int) -> None:
    """The runs of a strided pattern are its byte set."""
    base += 200
    shape, strides = tuple(c for c, _ in dims), tuple(s for _, s in dims)
    expected = set()
    for index in np.ndindex(*shape):
        first = base + sum(i * s for i, s in zip(index, strides, strict=True))
        expected |= set(range(first, first + item))
    starts, length = byte_runs(base, shape, strides, item)
    assert {b for s in starts.tolist() for b in range(s, s + length)} == expected


@given(st.lists(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60), min_size=1))
def test_run_overlap(left: list[int], right: list[int]) -> None:
    """Against sets of bytes."""
    a, b = np.unique(left), np.unique(right)
    bytes_a = {x for s in a.tolist() for x in range(s, s + 3)}
    bytes_b = {x for s in b.tolist() for x in range(s, s + 5)}
    assert runs_overlap((a, 3), (b, 5)) == bool(bytes_a & bytes_b)


def test_uninitialised_elements_are_poison() -> None:
    """NaN for floats, 4 for integers; one written byte of four is not enough."""
    memory = Memory("m", 64)
    view = View(memory, 0, (4,), (4,), F)
    View(memory, 4, (4,), (1,), uint8).write(np.zeros(4, uint8))
    View(memory, 8, (1,), (1,), uint8).write(np.zeros(1, uint8))
    values, missing = view.read()
    assert missing == 3
    assert values[1] == 0 and np.isnan(values[[0, 2, 3]]).all()
    assert View(memory, 32, (2,), (4,), int32).read()[0].tolist() == [4, 4]
    assert poison(bool_) is True and np.isnan(poison(bfloat16))


def _partly_written(b: KernelBuilder) -> None:
    x, y = b.param("x", (64, 8), F), b.param("y", (128, 8), F, "out")
    t = b.sbuf((128, 8), F)
    b.dma_copy(t[:64], x)
    b.tensor_scalar(t, t, 2.0, op0="multiply")
    b.dma_copy(y, t)


def test_uninitialised_read_is_found_once_with_the_line() -> None:
    """Names instruction, count, access and line; the values are NaN."""
    result = run(_partly_written, [np.ones((64, 8), F)], raise_findings=False)
    (finding,) = result.findings
    assert finding.kind == "uninitialised"
    assert "tensor_scalar of kernel 'k' reads 512 elements of t0[128; 1x8]" in finding.text
    assert "test_memory.py" in finding.text and finding.source is not None
    assert np.isnan(result.outputs[0][64:]).all()
    with pytest.raises(TileError, match="reads 512 elements"):
        run(_partly_written, [np.ones((64, 8), F)])
    quiet = run(_partly_written, [np.ones((64, 8), F)], uninitialised=False)
    assert not quiet.findings


def test_a_tile_is_fresh_in_every_iteration() -> None:
    """What the iteration before wrote is forgotten."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (2, 4), F, "out")
        with b.loop("i", 0, 2) as i:
            t = b.sbuf((1, 4), F)
            with b.loop("j", i, 1):
                b.memset(t, 1.0)
            b.dma_copy(y[i : i + 1], t)

    result = run(write, raise_findings=False)
    assert [f.kind for f in result.findings] == ["uninitialised"]
    np.testing.assert_array_equal(result.outputs[0], [[1.0] * 4, [np.nan] * 4])


def test_unwritten_output_is_found() -> None:
    """Half of y is never stored."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (4, 4), F, "out")
        t = b.sbuf((2, 4), F)
        b.memset(t, 1.0)
        b.dma_copy(y[:2], t)

    (finding,) = run(write, raise_findings=False).findings
    assert finding.text == "8 of 16 elements of f32[4, 4] buffer 'y' were never written."


def test_tiles_that_overlap_in_address_overlap_in_data() -> None:
    """Two tiles put at one address by hand share bytes."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (1, 4), uint8, "out")
        f, u = b.sbuf((1, 1), F), b.sbuf((1, 4), uint8)
        b.memset(u, 7)
        b.memset(f, 1.0)
        b.dma_copy(y, u)

    kernel = compile_kernel(write)
    body = tuple(
        Alloc(replace(s.tile, address=(0, 0))) if isinstance(s, Alloc) else s for s in kernel.body
    )
    program = replace(compile_program(write), kernels=(replace(kernel, body=body),))
    got = simulate(program, []).outputs[0]
    np.testing.assert_array_equal(got, np.array([[1.0]], F).view(uint8))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hbm", r"covers elements 96\.\.159 of HBM buffer 'x', which has 128 f32 elements"),
        ("tile", r"covers partitions 0\.\.15 and elements 2\.\.9 of tile t0: sbuf f32\[16,8\]"),
        ("partitions", r"covers partitions 8\.\.23 and elements 0\.\.7 of tile t0"),
        ("negative", r"has a negative count \[-1, 8\]"),
        ("index", r"covers elements 128\.\.135 of HBM buffer 'x'"),
    ],
)
def test_out_of_bounds_raises(kind: str, text: str) -> None:
    """One sentence with access, range, size, line and remedy."""

    def write(b: KernelBuilder) -> None:
        n = b.register_argument("n")
        x, y = b.param("x", (16, 8), F), b.param("y", (16, 8), F, "out")
        t = b.sbuf((16, 8), F)
        b.memset(t, 0.0)
        if kind == "hbm":
            b.dma_copy(t[:8], x[n : n + 8])
        elif kind == "tile":
            b.dma_copy(t.tile.access(16, t.access.spans, offset=n - 10), x)
        elif kind == "partitions":
            b.dma_copy(t.tile.access(16, t.access.spans, start=8), x)
        elif kind == "negative":
            b.dma_copy(t[: n - 13], x[: n - 13])
        else:
            i = b.sbuf((1, 1), int32)
            b.memset(i, 16)
            b.dma_copy(t[:1], x[:1].indexed(i))
        b.dma_copy(y, t)

    with pytest.raises(TileError, match=text) as error:
        run(write, [np.ones((16, 8), F)], registers=[12])
    assert "test_memory.py" in str(error.value)


def test_wrong_inputs() -> None:
    """Count, dtype and shape are checked by name."""
    program = compile_program(_partly_written)
    with pytest.raises(TileError, match=r"takes 1 arrays \(x\), not 0"):
        simulate(program, [])
    with pytest.raises(TileError, match=r"input 'x' is float64\[64, 8\].* takes f32\[64, 8\]"):
        simulate(program, [np.ones((64, 8))])
    with pytest.raises(TileError, match="takes 0 registers"):
        simulate(program, [np.ones((64, 8), F)], [3])


def test_unplaced_and_unscheduled_programs_are_refused() -> None:
    """The texts name the missing pass."""
    b = KernelBuilder("k")
    _partly_written(b)
    bare = b.finish()
    program = replace(compile_program(_partly_written), kernels=(bare,))
    with pytest.raises(TileError, match=r"has no id .*Run schedule"):
        simulate(program, [np.ones((64, 8), F)])
    placed = compile_kernel(_partly_written)
    body = tuple(
        Alloc(replace(s.tile, address=None)) if isinstance(s, Alloc) else s for s in placed.body
    )
    with pytest.raises(TileError, match=r"tile 't0' of kernel 'k' has no address .*Run place"):
        simulate(replace(program, kernels=(replace(placed, body=body),)), [np.ones((64, 8), F)])


def test_capacity_is_usable_sbuf() -> None:
    """A tile put by hand into the reserved top of SBUF is found."""

    def write(b: KernelBuilder) -> None:
        y = b.param("y", (1, 1024), F, "out")
        t = b.sbuf((1, 1024), F)
        b.memset(t, 0.0)
        b.dma_copy(y, t)

    program = compile_program(write)
    kernel = program.kernels[0]
    body = tuple(
        Alloc(replace(s.tile, address=(0, 212_000))) if isinstance(s, Alloc) else s
        for s in kernel.body
    )
    program = replace(program, kernels=(replace(kernel, body=body),))
    (finding,) = simulate(program, []).findings
    assert finding.kind == "capacity"
    assert "ends at byte 216096" in finding.text and "212984 usable bytes" in finding.text


def _copy(b: KernelBuilder) -> None:
    x, y = b.param("x", (8, 8), F), b.param("y", (8, 8), F, "out")
    t = b.sbuf((8, 8), F)
    b.dma_copy(t, x)
    b.tensor_scalar(t, t, 1.0, op0="add")
    b.dma_copy(y, t)


def test_temporaries_share_the_arena_and_outputs_may_alias() -> None:
    """x -> a -> b -> out, a and b at one arena offset, out in the memory of donated x."""
    kernel = compile_kernel(_copy)
    shape = (8, 8)
    buffers = (
        Buffer("x", shape, F, "input"),
        Buffer("a", shape, F, "temp", 64),
        Buffer("b", shape, F, "temp", 64),
        Buffer("out", shape, F, "output", alias="x"),
    )
    calls = tuple(KernelCall(0, pair) for pair in (("x", "a"), ("a", "b"), ("b", "out")))
    program = TileProgram("chain", "trn2", buffers, (kernel,), calls, ("out", "x"), (), 320)
    x = rng().standard_normal(shape).astype(F)
    before = x.copy()
    result = simulate(program, [x])
    np.testing.assert_array_equal(result.outputs[0], ((before + 1) + 1) + 1)
    np.testing.assert_array_equal(result.outputs[1], result.outputs[0])
    np.testing.assert_array_equal(x, before)
    assert not result.findings
    small = replace(program, arena_bytes=300)
    with pytest.raises(TileError, match="temporary 'a' ends at byte 320 of an arena of 300"):
        simulate(small, [x])


def test_reading_a_temporary_nobody_wrote_is_found() -> None:
    """HBM is poisoned too."""
    buffers = (Buffer("a", (8, 8), F, "temp", 0), Buffer("y", (8, 8), F, "output"))
    kernel = compile_kernel(_copy)
    program = TileProgram(
        "p", "trn2", buffers, (kernel,), (KernelCall(0, ("a", "y")),), ("y",), (), 256
    )
    findings = simulate(program, [], options=SimOptions()).findings
    assert "dma_copy of kernel 'k' reads 64 elements of x[0; 8x8, 1x8]" in findings[0].text


def test_strided_input_buffers() -> None:
    """A buffer with strides of its own (a view of foreign memory)."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (4, 6), F, "in", strides=(1, 10))
        y = b.param("y", (4, 6), F, "out")
        t = b.sbuf((4, 6), F)
        b.dma_copy(t, x)
        b.dma_copy(y, t)

    a = rng().standard_normal((4, 6)).astype(F)
    np.testing.assert_array_equal(run(write, [a]).outputs[0], a)


def test_run_time_sizes() -> None:
    """Shapes and strides of params may be registers."""

    def write(b: KernelBuilder) -> None:
        n, m = b.register_argument("n"), b.register_argument("m")
        x, y = b.param("x", (n, m), F), b.param("y", (n, m), F, "out")
        with b.loop("i", 0, n) as i:
            t = b.sbuf((1, 64), F)
            b.dma_copy(t[:, :m], x[i : i + 1])
            b.tensor_scalar(t[:, :m], t[:, :m], 3.0, op0="multiply")
            b.dma_copy(y[i : i + 1], t[:, :m])

    for shape in ((3, 5), (1, 64), (0, 4)):
        a = rng().standard_normal(shape).astype(F)
        np.testing.assert_array_equal(run(write, [a], registers=shape).outputs[0], a * F.type(3))
