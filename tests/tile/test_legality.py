"""Each constraint fails once, with its number, the instruction, the shapes, the line, a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from tests.sim.random_programs import RandomCase, random_case
from tests.tile import kernels
from trnx.compiler.tile.build import KernelBuilder, predicate, single_kernel_program
from trnx.compiler.tile.constraints import CONSTRAINTS, render_markdown
from trnx.compiler.tile.expr import minimum, symbol
from trnx.compiler.tile.ir import (
    Alloc,
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    KernelCall,
    Predicate,
    RegisterMove,
    Span,
    Tile,
    TileAccess,
    TileProgram,
)
from trnx.compiler.tile.legality import check_kernel, check_program
from trnx.core.dtypes import bfloat16, float8_e4m3fn, float32, float64, int32, uint8
from trnx.core.errors import TileError

Write = Callable[[KernelBuilder], None]


def built(write: Write) -> Kernel:
    """A kernel with parameters x (in) and y (out), both f32[256,64], that ``write`` fills."""
    b = KernelBuilder("k", source=kernels.line(1))
    b.param("x", (256, 64), float32, "in")
    b.param("y", (256, 64), float32, "out")
    with b.at(kernels.line(7)):
        write(b)
    return b.finish()


def x_access(rows: int, offset: int = 0) -> HbmAccess:
    """Rows of x."""
    return HbmAccess("x", offset, (Span(64, rows), Span(1, 64)))


def _scope(b: KernelBuilder) -> None:
    with b.loop("i", 0, 2):
        t = b.sbuf((4, 4), float32)
    b.memset(t, 0.0)


def _unset_register(b: KernelBuilder) -> None:
    t = b.sbuf((4, 64), float32)
    b.dma_copy(t, HbmAccess("x", 64 * symbol("r"), (Span(64, 4), Span(1, 64))))


def _tall(b: KernelBuilder) -> None:
    b.sbuf((200, 4), float32)


def _outside_tile(b: KernelBuilder) -> None:
    t = b.sbuf((64, 8), float32)
    with b.loop("i", 0, 3) as i:
        b.memset(TileAccess(t.tile.name, 0, 64, 4 * i, (Span(1, 4),)), 0.0)


def _outside_partitions(b: KernelBuilder) -> None:
    t = b.sbuf((64, 8), float32)
    b.memset(TileAccess(t.tile.name, 32, 64, 0, (Span(1, 8),)), 0.0)


def _outside_hbm(b: KernelBuilder) -> None:
    t = b.sbuf((128, 64), float32)
    with b.loop("i", 0, 3) as i:
        b.dma_copy(t, HbmAccess("x", 128 * 64 * i, (Span(64, 128), Span(1, 64))))


def _shapes(b: KernelBuilder) -> None:
    t, u = b.sbuf((8, 64), float32), b.sbuf((8, 32), float32)
    b.tensor_tensor(t, t, u, op="add")


def _row_scalar(b: KernelBuilder) -> None:
    t = b.sbuf((8, 64), float32)
    b.tensor_scalar(t, t, t[:, 0:2], op0="add")


def _five_dims(b: KernelBuilder) -> None:
    t = b.sbuf((8, 2, 2, 2, 2, 2), float32)
    b.memset(t, 0.0)


def _stride(b: KernelBuilder) -> None:
    t = b.sbuf((8, 40000), float32)
    b.memset(TileAccess(t.tile.name, 0, 8, 0, (Span(39999, 2),)), 0.0)


def _gpsimd_psum(b: KernelBuilder) -> None:
    p = b.psum((8, 8), float32)
    b.memset(p, 0.0, engine="gpsimd")


def _dma_psum(b: KernelBuilder) -> None:
    p = b.psum((4, 64), float32)
    b.dma_copy(p, x_access(4))


def _matmul_sbuf(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.nc_matmul(t, t, t, accumulate=False)


def _engine(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.activation(t, t, op="exp", engine="vector")


def _operator_engine(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.tensor_tensor(t, t, t, op="maximum", engine="gpsimd")


def _scalar_engine(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.tensor_scalar(t, t, 1.0, op0="subtract", engine="scalar")


def _exact_pair(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), int32)
    b.tensor_scalar(t, t, 3, op0="multiply", op1="add", operand1=1)


def _exact_narrow(b: KernelBuilder) -> None:
    t, u = b.sbuf((8, 8), int32), b.sbuf((8, 8), uint8)
    b.tensor_tensor(t, t, u, op="add")


def _both_psum(b: KernelBuilder) -> None:
    p, q = b.psum((8, 8), float32), b.psum((8, 8), float32)
    t = b.sbuf((8, 8), float32)
    b.tensor_tensor(t, p, q, op="add")


def _f64(b: KernelBuilder) -> None:
    b.sbuf((8, 8), float64)


def _bitvec_float(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.tensor_tensor(t, t, t, op="bitwise_and")


def _scalar_dtype(b: KernelBuilder) -> None:
    t, s = b.sbuf((8, 8), float32), b.sbuf((8, 1), bfloat16)
    b.tensor_scalar(t, t, s, op0="add")


def _mixed_matmul(b: KernelBuilder) -> None:
    p = b.psum((8, 8), float32)
    b.nc_matmul(p, b.sbuf((8, 8), float32), b.sbuf((8, 8), bfloat16), accumulate=False)


def _ocp_fp8(b: KernelBuilder) -> None:
    b.sbuf((8, 8), float8_e4m3fn)


def _no_divide(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.tensor_tensor(t, t, t, op="divide", engine="vector")


def _no_function(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.activation(t, t, op="cosh")


def _compare_reduces(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.tensor_reduce(t[:, 0:1], t, op="less")


def _mixed_classes(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), int32)
    b.tensor_scalar(t, t, 3, op0="add", op1="bitwise_and", operand1=1, engine="vector")


def _deep_matmul(b: KernelBuilder) -> None:
    p = b.psum((128, 1024), float32)
    a, w = b.sbuf((128, 128), float32), b.sbuf((128, 1024), float32)
    b.nc_matmul(p, a, w, accumulate=False)


def _matmul_shapes(b: KernelBuilder) -> None:
    p = b.psum((64, 32), float32)
    a, w = b.sbuf((128, 32), float32), b.sbuf((128, 32), float32)
    b.nc_matmul(p, a, w, accumulate=False)


def _crossing_bank(b: KernelBuilder) -> None:
    p = b.psum((64, 1024), float32)
    a, w = b.sbuf((128, 64), float32), b.sbuf((128, 512), float32)
    b.nc_matmul(p[:, 256:768], a, w, accumulate=False)


def _transpose_size(b: KernelBuilder) -> None:
    t, u = b.sbuf((64, 64), float32), b.sbuf((64, 64), float32)
    b.nc_transpose(t, u, engine="vector")


def _transpose_shape(b: KernelBuilder) -> None:
    p, t = b.psum((64, 32), float32), b.sbuf((64, 32), float32)
    b.nc_transpose(p, t)


def _partition_start(b: KernelBuilder) -> None:
    t = b.sbuf((128, 8), float32)
    b.memset(t[16:32], 0.0)


def _write_input(b: KernelBuilder) -> None:
    t = b.sbuf((4, 64), float32)
    b.memset(t, 0.0)
    b.dma_copy(x_access(4), t)


def _predicate_symbol(b: KernelBuilder) -> None:
    p, t = b.psum((8, 8), float32), b.sbuf((8, 8), float32)
    b.nc_matmul(p, t, t, accumulate=Predicate(symbol("k"), ">", 0))


def _inner_axis(b: KernelBuilder) -> None:
    t = b.sbuf((8, 4, 4), float32)
    b.tensor_reduce(t[:, 0], t, op="add", axis=(1,))


def _reduce_result(b: KernelBuilder) -> None:
    t = b.sbuf((8, 4, 4), float32)
    b.tensor_reduce(t[:, 0, 0:1], t, op="add", axis=(2,))


def _lonely_reduce(b: KernelBuilder) -> None:
    t = b.sbuf((8, 4), float32)
    b.activation(t, t, op="exp", reduce_op="add")


def _index_dtype(b: KernelBuilder) -> None:
    t, i = b.sbuf((8, 64), float32), b.sbuf((8, 1), float32)
    access = HbmAccess("x", 0, (Span(64, 8), Span(1, 64)), i.access)
    b.dma_copy(t, access)


def _index_queue(b: KernelBuilder) -> None:
    t, i = b.sbuf((8, 64), float32), b.sbuf((8, 1), int32)
    access = HbmAccess("x", 0, (Span(64, 8), Span(1, 64)), i.access)
    b.dma_copy(t, access, engine="sync")


def _memset_accumulator(b: KernelBuilder) -> None:
    p, t = b.psum((8, 8), float32), b.sbuf((8, 8), float32)
    b.memset(p, 0.0)
    with b.loop("k", 0, 4) as k:
        b.nc_matmul(p, t, t, accumulate=predicate(k, ">", 0))


def _pattern(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), int32)
    b.iota(t, pattern=[[1, 4]])


def _few_values(b: KernelBuilder) -> None:
    t = b.sbuf((8, 8), float32)
    b.max8(t, t[:, 0:4])


def _parallel(b: KernelBuilder) -> None:
    t = b.sbuf((8, 64), float32)
    with b.loop("i", 0, 2, parallel=True):
        b.memset(t, 0.0)
        b.dma_copy(HbmAccess("y", 0, (Span(64, 8), Span(1, 64))), t)


VIOLATIONS: dict[str, tuple[str, Write, str]] = {
    "scope": ("T1", _scope, "tile 't0' is not in scope"),
    "unset register": ("T1", _unset_register, "'r' in an operand of dma_copy is not set"),
    "tall tile": ("T2", _tall, "tile t0 f32[200,4] in sbuf has 200 partitions"),
    "free range": (
        "T3",
        _outside_tile,
        "elements 0 to 11 of a partition leave t0 f32[64,8] in sbuf",
    ),
    "partition range": ("T3", _outside_partitions, "64 partitions from 32 leave t0 f32[64,8]"),
    "hbm range": ("T4", _outside_hbm, "elements 0 to 24,575 leave parameter 'x' of 16384 elements"),
    "shapes": ("T5", _shapes, "dst and data2 have shapes [8, 64] and [8, 32]"),
    "row scalar": ("T5", _row_scalar, "'operand0' is [8, 2], not [8, 1]"),
    "free dimensions": ("T6", _five_dims, "an access has 5 free dimensions"),
    "stride": ("T6", _stride, "an access has stride 39,999"),
    "gpsimd and psum": ("T7", _gpsimd_psum, "GpSimd does not reach PSUM, where 'dst' is"),
    "dma and psum": ("T7", _dma_psum, "'dst' is in psum, not in hbm or sbuf"),
    "matmul to sbuf": ("T7", _matmul_sbuf, "'dst' is in sbuf, not in psum"),
    "engine": ("T8", _engine, "activation on vector: it runs on scalar only"),
    "operator's engine": ("T8", _operator_engine, "operator 'maximum' does not run on gpsimd"),
    "scalar engine": ("T8", _scalar_engine, "operators subtract do not run on the scalar engine"),
    "exact operators": ("T8", _exact_pair, "exact 32-bit integers take one operator at a time"),
    "both in psum": ("T9", _both_psum, "both tile inputs are in PSUM ([8, 8] of t0 f32[8,8] in"),
    "f64": ("T10", _f64, "trn2 holds no t0 f64[8,8] in sbuf"),
    "exact and narrow": ("T10", _exact_narrow, "exact 32-bit integers do not mix with u8"),
    "bitvec of floats": ("T10", _bitvec_float, "a bitvec operator has a f32 operand"),
    "scalar dtype": ("T10", _scalar_dtype, "'operand0' is bf16, not f32"),
    "mixed matmul": ("T10", _mixed_matmul, "f32 and bf16 do not mix in a matmul"),
    "ocp fp8": ("T10", _ocp_fp8, "trn2 holds no t0 f8e4m3fn[8,8] in sbuf"),
    "divide": ("T11", _no_divide, "operator 'divide' does not exist on trn2"),
    "function": ("T11", _no_function, "'cosh' is no activation function"),
    "reduction": ("T11", _compare_reduces, "'less' does not reduce"),
    "classes": ("T11", _mixed_classes, "it mixes bitvec and arithmetic: add, bitwise_and"),
    "matmul size": ("T12", _deep_matmul, "N is 1,024, more than 512"),
    "matmul shapes": ("T12", _matmul_shapes, "dst has 64 rows where stationary has 32 columns"),
    "bank": ("T13", _crossing_bank, "dst bytes 1,024 to 3,068 cross a bank of 2,048 B"),
    "transpose size": ("T14", _transpose_size, "a side of 64 is more than 32"),
    "transpose shape": ("T14", _transpose_shape, "dst is [64, 32] for data [64, 32]"),
    "partition start": ("T16", _partition_start, "16 partitions start at partition 16"),
    "role": ("T17", _write_input, "parameter 'x' is only read"),
    "predicate": ("T18", _predicate_symbol, "'k' in accumulate = k > 0 is no index of its loops"),
    "reduced axis": ("T19", _inner_axis, "axis [1] does not end the 3 dimensions of data"),
    "reduced shape": ("T19", _reduce_result, "dst is [8, 1], not [8, 4]"),
    "reduce_op alone": ("T19", _lonely_reduce, "reduce_op and reduce_res come together"),
    "index dtype": ("T20", _index_dtype, "the index tile is f32"),
    "index queue": ("T20", _index_queue, "only GpSimd builds the descriptors"),
    "parallel": ("T21", _parallel, "loop 'i' is marked parallel, but its iterations may share"),
    "accumulator": (
        "T22",
        _memset_accumulator,
        "memset writes PSUM tile 'p0', into which a matmul",
    ),
    "pattern": ("T24", _pattern, "its pattern counts 4 of 8 elements"),
    "top 8": ("T24", _few_values, "it reads 4 to 4 values per partition"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_violation(name: str) -> None:
    """The constraint's number, what is wrong, kernel, line and remedy."""
    number, write, expected = VIOLATIONS[name]
    with pytest.raises(TileError) as caught:
        check_kernel(built(write), "trn2")
    text = str(caught.value)
    assert text.startswith(f"{number}: ") and expected in text, text
    assert "in kernel 'k' (at model.py:" in text
    assert text.endswith(".") and text.count("\n") == 0
    assert number in CONSTRAINTS


def test_message_shows_everything() -> None:
    """One message in full."""
    with pytest.raises(TileError) as caught:
        check_kernel(built(_both_psum), "trn2")
    assert str(caught.value) == (
        "T9: tensor_tensor on vector: both tile inputs are in PSUM ([8, 8] of t0 f32[8,8] in "
        "sbuf, [8, 8] of p0 f32[8,8] in psum, [8, 8] of p1 f32[8,8] in psum) in kernel 'k' "
        "(at model.py:7 (forward)). Copy one of them to SBUF with tensor_copy."
    )


def test_every_constraint_is_tested() -> None:
    """Each number fails in some test of this file."""
    elsewhere = {"T15", "T23"}
    assert {number for number, _, _ in VIOLATIONS.values()} | elsewhere == set(CONSTRAINTS)
    assert all(c.number == number and c.rule and c.remedy for number, c in CONSTRAINTS.items())


def test_the_page_is_written_from_the_table() -> None:
    """docs/legality.md is `python -m trnx.compiler.tile.constraints`."""
    page = Path(__file__).parents[2] / "docs" / "legality.md"
    assert page.read_text(encoding="utf-8") == render_markdown()


@pytest.mark.parametrize(
    "name", ["free dimensions", "both in psum", "f64", "divide", "partition start", "accumulator"]
)
def test_hardware_rules_do_not_bind_cpu(name: str) -> None:
    """The cpu target has no partition starts, ports or missing operators."""
    check_kernel(built(VIOLATIONS[name][1]), "cpu")


@pytest.mark.parametrize("name", kernels.ALL)
@pytest.mark.parametrize("target", ["trn2", "trn3", "cpu"])
def test_sample_kernels_are_legal(name: str, target: str) -> None:
    """The hand-written kernels pass on each target."""
    kernels.program(kernels.ALL[name](), target)


@given(random_case())
def test_random_programs_are_legal(case: RandomCase) -> None:
    """So do random programs."""
    check_program(case.program)


def test_memory_is_checked() -> None:
    """T15: addresses beyond the end, and tiles alive together at one address."""
    kernel = kernels.finish(kernels.softmax())

    def moved(name: str, address: tuple[int, int]) -> Kernel:
        loop = kernel.body[0]
        assert isinstance(loop, For)
        body = tuple(
            Alloc(replace(s.tile, address=address))
            if isinstance(s, Alloc) and s.tile.name == name
            else s
            for s in loop.body
        )
        return replace(kernel, body=(replace(loop, body=body),))

    with pytest.raises(TileError, match=r"T15: t0 ends at byte 214,096 of SBUF, which has 212,984"):
        check_kernel(moved("t0", (0, 210_000)), "trn2")
    with pytest.raises(TileError, match="T15: t2 and t1 are alive at the same time"):
        check_kernel(moved("t2", (0, 4096)), "trn2")
    with pytest.raises(TileError, match="T2: t1 ends beyond the last partition"):
        check_kernel(moved("t1", (32, 150_000)), "cpu")


def test_run_time_sizes() -> None:
    """With run-time sizes only what is surely outside is refused; tiles must be proved."""

    def generic(overrun: int, bounded: bool) -> Kernel:
        b = KernelBuilder("g", source=kernels.line(1))
        n = b.register_argument("n")
        x = b.param("x", (n,), float32, "in")
        t = b.sbuf((1, 128), float32)
        with b.at(kernels.line(2)), b.loop("i", 0, (n + 127) // 128) as i:
            count = minimum(128, n - i * 128) if bounded else n
            access = HbmAccess("x", i * 128 + overrun * n, (Span(128, 1), Span(1, count)))
            b.dma_copy(TileAccess(t.tile.name, 0, 1, 0, (Span(1, count),)), access)
        assert x.shape == (n,)
        return b.finish()

    check_kernel(generic(0, True), "cpu")
    with pytest.raises(TileError, match=r"T3: .*leave t0"):
        check_kernel(generic(0, False), "cpu")


def raw(*body: Instruction | Alloc | For | RegisterMove) -> Kernel:
    """A kernel of hand-made statements."""
    return Kernel("raw", (), tuple(body), source=kernels.line(3))


def test_structure() -> None:
    """Duplicate names, unknown instructions, missing operands, dangling edges."""
    tile = Alloc(Tile("t", "sbuf", (4, 4), float32))
    access = TileAccess("t", 0, 4, 0, (Span(1, 4),))
    memset = Instruction("memset", (access,), (0.0,), engine="vector", source=kernels.line(4))
    cases = [
        (raw(tile, tile), "T1: name 't' is declared twice"),
        (raw(tile, replace(memset, op="fill")), "T8: fill on vector: there is no instruction"),
        (raw(tile, replace(memset, ins=())), "T5: memset on vector: it has 0 sources, not 1"),
        (raw(tile, replace(memset, ins=(None,))), "operand 'value' is missing"),
        (raw(tile, replace(memset, outs=())), "it has 0 destinations"),
        (raw(tile, replace(memset, attrs=(("x", 1),))), "it has no attribute 'x'"),
        (raw(tile, replace(memset, id=0, deps=(7,))), "it waits for #7, which does not exist"),
        (raw(tile, replace(memset, id=0), replace(memset, id=0)), "id #0 is used twice"),
        (raw(For("i", 0, symbol("n"), ())), "'n' in the bound of loop 'i' is not set before"),
        (raw(For("i", 0, 4, (), step=0)), "loop 'i' has step 0"),
        (raw(RegisterMove("r", symbol("q"))), "'q' in the value of register 'r' is not set"),
        (raw(Alloc(Tile("t", "dram", (4, 4), float32))), "tile 't' is in memory 'dram'"),
        (raw(Alloc(Tile("t", "sbuf", (4, 4), float32, copies=0))), "tile 't' has 0 copies"),
    ]
    for kernel, expected in cases:
        with pytest.raises(TileError) as caught:
            check_kernel(kernel, "trn2")
        assert expected in str(caught.value)


def test_calls() -> None:
    """T23: what a program binds."""
    base = single_kernel_program(kernels.finish(kernels.softmax()), "trn2")
    check_program(base)
    temp = Buffer("tmp", (64,), float32, "temp", 64)
    narrow = replace(base.buffers[0], dtype=bfloat16)
    constant = replace(base.buffers[1], kind="constant")
    call = base.calls[0]
    assert isinstance(call, KernelCall)
    cases: list[tuple[TileProgram, str]] = [
        (replace(base, outputs=("z",)), "output 'z' is no buffer"),
        (replace(base, calls=(KernelCall(1, ()),)), "a call names kernel 1 of 1"),
        (replace(base, calls=(KernelCall(0, ("x",)),)), "takes 2 buffers, not 1"),
        (replace(base, calls=(KernelCall(0, ("x", "z")),)), "gets 'z', which is no buffer"),
        (replace(base, calls=(replace(call, registers=(1,)),)), "takes 0 registers, not 1"),
        (replace(base, buffers=(narrow, base.buffers[1])), "is bound to parameter 'x'"),
        (replace(base, buffers=(base.buffers[0], constant)), "writes constant 'y'"),
        (replace(base, buffers=(*base.buffers, temp)), "ends at byte 320 of an arena of 0"),
        (replace(base, buffers=base.buffers * 2), "two buffers have one name"),
        (
            replace(base, buffers=(*base.buffers, Buffer("o", (4,), float32, "scratch"))),
            "buffer 'o' has kind 'scratch'",
        ),
        (
            replace(base, buffers=(*base.buffers, Buffer("o", (4,), float32, "output", alias="q"))),
            "buffer 'o' reuses 'q'",
        ),
        (replace(base, calls=(HostCall("f", ("q",), ()),)), "host call 'f' uses 'q'"),
    ]
    for program, expected in cases:
        with pytest.raises(TileError) as caught:
            check_program(program)
        assert str(caught.value).startswith("T23: ") and expected in str(caught.value)
