"""The text form prints and parses to an equal program."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given

from tests.conftest import Golden
from tests.sim.random_programs import RandomCase, random_case
from tests.tile import kernels
from trnx.compiler.tile.build import KernelBuilder, single_kernel_program
from trnx.compiler.tile.expr import floordiv, maximum, minimum, mod, symbol
from trnx.compiler.tile.ir import Buffer, HostCall, KernelCall, Predicate, TileProgram
from trnx.compiler.tile.parse import parse_kernel, parse_program
from trnx.compiler.tile.text import kernel_text, program_text
from trnx.core.dtypes import float32, int32, int64
from trnx.core.errors import ParseError


@pytest.mark.parametrize("name", kernels.ALL)
def test_kernels_round_trip(name: str, golden: Golden) -> None:
    """Hand-written kernels, scheduled, print as committed and parse to equal programs."""
    made = kernels.program(kernels.ALL[name]())
    text = program_text(made)
    golden(text)
    assert parse_program(text) == made
    assert parse_kernel(kernel_text(made.kernels[0])) == made.kernels[0]
    with_lines = program_text(made, sources=True)
    assert "# model.py:" in with_lines
    assert parse_program(with_lines) == made


@given(random_case())
def test_random_programs_round_trip(case: RandomCase) -> None:
    """Random programs of every instruction parse to equal programs, scheduled or not."""
    assert parse_program(program_text(case.program)) == case.program


def whole_vocabulary() -> TileProgram:
    """What the hand-written kernels do not use: run-time sizes, host calls, odd names."""
    b = KernelBuilder("generic")
    n, s = b.register_argument("n"), b.register_argument("s")
    x = b.param("x", (n, 4), float32, "in", strides=(s, 1))
    y = b.param("y", (n, 4), float32, "out")
    with b.loop("i", 0, floordiv(n + 127, 128), parallel=True) as i, b.loop("j", 0, 4, 2) as j:
        rows = minimum(128, n - i * 128)
        t = b.sbuf((128, 4), float32)
        b.dma_copy(t[:rows], x[i * 128 : i * 128 + rows])
        b.tensor_scalar(t[:rows], t[:rows], mod(n, 7) + maximum(i, 3) * j, op0="add")
        b.tensor_scalar(t[:rows], t[:rows], math.inf, op0="add", op1="minimum", operand1=math.nan)
        b.memset(t[:, 0:1], -0.0)
        b.iota(t[:rows], pattern=[[n, 4]], offset=i * n - 1)
        b.dma_copy(y[i * 128 : i * 128 + rows], t[:rows])
    kernel = b.finish()
    buffers = (
        Buffer("0", (symbol("n"), 4), float32, "input", strides=(symbol("s"), 1)),
        Buffer("w", (3,), int64, "constant"),
        Buffer("tmp", (5, 4), float32, "temp", offset=64),
        Buffer("y", (symbol("n"), 4), float32, "output", alias="0"),
    )
    host = HostCall(
        "sort rows",
        ("0", "w"),
        ("tmp",),
        (
            ("axis", -1),
            ("stable", True),
            ("mode", 'a"b'),
            ("none", None),
            ("sizes", (1, (symbol("n") + 1, 2.5))),  # type: ignore[arg-type]
            ("when", Predicate(symbol("n"), ">=", 2)),
        ),
    )
    calls = (KernelCall(0, ("0", "y"), (symbol("n") * 2, 4)), host)
    return TileProgram(
        "a program", "cpu", buffers, (kernel,), calls, ("y", "0"), ("n", "s"), arena_bytes=256
    )


def test_whole_vocabulary_round_trips(golden: Golden) -> None:
    """Run-time sizes, host calls with attributes, quoted names, infinities, aliases, offsets."""
    made = whole_vocabulary()
    text = program_text(made)
    golden(text)
    assert parse_program(text) == made


def test_equal_text_means_equal_program() -> None:
    """Anything that differs between two programs shows in the text."""
    made = kernels.program(kernels.softmax())
    other = replace(made, kernels=(replace(made.kernels[0], name="other"),))
    assert program_text(made) != program_text(other)
    assert parse_program(program_text(other)) == other != made


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("dma_copy t0", "dma_cpy t0", "'dma_cpy' is no instruction (at p:7)"),
        ("f32[128,512] x2", "f99[128,512] x2", "'f99' is no dtype (at p:6)"),
        ("in range(0, 8)", "in range(0 8)", "expected ',', found '8' (at p:5)"),
        ("= sbuf f32[128,512]", "= dram f32[128,512]", "'dram' is no memory of a tile (at p:6)"),
        ("return y", "return y;", "expected ',', found ';'"),
        ("  return y\n}", "  return y\n} extra", "'extra' after the end"),
        ("@sync", "@sync $", "character '$' has no meaning (at p:7)"),
        ("negate=true", "negate=yes", "expected int, found 'yes' (at p:9)"),
    ],
)
def test_parse_errors_name_the_line(old: str, new: str, expected: str) -> None:
    """A wrong text is one ParseError with cause, line and remedy."""
    text = program_text(single_kernel_program(kernels.finish(kernels.softmax()), "trn2"))
    assert old in text
    with pytest.raises(ParseError) as caught:
        parse_program(text.replace(old, new, 1), "p")
    assert expected in str(caught.value)
    assert str(caught.value).endswith("Write the form program_text() prints.")


def test_bool_and_int_immediates_keep_their_kind() -> None:
    """1, 1.0 and true stay what they are."""
    b = KernelBuilder("k")
    t = b.sbuf((1, 4), int32)
    for value in (1, 1.0, True):
        b.tensor_scalar(t, t, value, op0="add")
    again = parse_kernel(kernel_text(b.finish()))
    kinds = [type(s.ins[1]) for s in again.body[1:]]  # type: ignore[union-attr]
    assert kinds == [int, float, bool]
