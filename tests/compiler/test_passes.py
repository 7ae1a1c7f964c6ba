"""Each pass alone: small programs in, golden text or exact properties out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler import harness as h
from trnx.compiler.passes.inline import inline
from trnx.compiler.passes.legalise import legalise
from trnx.compiler.passes.simplify import simplify
from trnx.compiler.pipeline import PASSES, compile_program, lower_text, stages
from trnx.compiler.targets import target
from trnx.core import Program, TraceError, config, primitives
from trnx.core.checking import check
from trnx.core.dtypes import float32, int32
from trnx.ops import functions as op
from trnx.transforms import call

Golden = Callable[..., None]


def names(program: Program) -> list[str]:
    """Primitives of a program in order."""
    return [e.primitive.name for e in program.equations]


SIMPLIFY: list[tuple[str, Callable[..., Any], list[Any], list[str]]] = [
    ("same twice", lambda x: op.add(op.exp(x), op.exp(x)), [((3,), "f32")], ["exp", "add"]),
    ("unused", lambda x: (op.tanh(x), op.exp(x))[0], [((3,), "f32")], ["tanh"]),
    (
        "scalars",
        lambda x: op.mul(x, op.add(np.float32(1.0), np.float32(2.0))),
        [((3,), "f32")],
        ["mul"],
    ),
    ("x * 1", lambda x: op.mul(x, 1.0), [((3,), "f32")], []),
    ("x - 0", lambda x: op.sub(x, 0.0), [((3,), "f32")], []),
    ("x - (-0) may change -0", lambda x: op.sub(x, -0.0), [((3,), "f32")], ["sub"]),
    ("x + 0 may change -0", lambda x: op.add(x, 0.0), [((3,), "f32")], ["add"]),
    ("integer x + 0", lambda x: op.add(x, 0), [((3,), "i32")], []),
    ("--x", lambda x: op.neg(op.neg(x)), [((3,), "f32")], []),
    (
        "reshape of reshape",
        lambda x: op.reshape(op.reshape(x, (6, 4)), (3, 8)),
        [((2, 12), "f32")],
        ["reshape"],
    ),
    ("reshape and back", lambda x: op.reshape(op.reshape(x, (6,)), (2, 3)), [((2, 3), "f32")], []),
    (
        "transpose of transpose",
        lambda x: op.transpose(op.transpose(x, (1, 2, 0)), (2, 0, 1)),
        [((2, 3, 4), "f32")],
        [],
    ),
    (
        "broadcast of broadcast",
        lambda x: op.broadcast(op.broadcast(x, (3, 1), (0,)), (2, 3, 5), (1, 2)),
        [((3,), "f32")],
        ["broadcast"],
    ),
    (
        "cast there and back",
        lambda x: op.convert(op.convert(x, "f32"), "bf16"),
        [((3,), "bf16")],
        [],
    ),
    (
        "cast that loses",
        lambda x: op.convert(op.convert(x, "bf16"), "f32"),
        [((3,), "f32")],
        ["convert", "convert"],
    ),
    (
        "a repeated number is a number",
        lambda x: op.mul(x, op.broadcast(np.float32(2.0), (3, 4), ())),
        [((3, 4), "f32")],
        ["mul"],
    ),
    (
        "reduction of a transpose",
        lambda x: op.reduce_sum(op.transpose(x, (1, 0)), (0,)),
        [((3, 4), "f32")],
        ["reduce_sum"],
    ),
    (
        "product of transposes",
        lambda x, y: op.dot_general(op.transpose(x, (1, 0)), op.transpose(y, (1, 0)), ((1,), (0,))),
        [((3, 4), "f32"), ((5, 3), "f32")],
        ["dot_general"],
    ),
    (
        "transpose of a product",
        lambda x, y: op.transpose(op.dot_general(x, y, ((1,), (0,))), (1, 0)),
        [((3, 4), "f32"), ((4, 5), "f32")],
        ["dot_general"],
    ),
    (
        "view, product, view",
        lambda x, w: op.reshape(op.dot_general(op.reshape(x, (6, 4)), w, ((1,), (0,))), (2, 3, 5)),
        [((2, 3, 4), "f32"), ((4, 5), "f32")],
        ["dot_general"],
    ),
    (
        "known choice",
        lambda x, y: op.select(np.bool_(True), x, y),
        [((3,), "f32"), ((3,), "f32")],
        [],
    ),
]


@pytest.mark.parametrize(
    ("function", "avals", "expected"), [c[1:] for c in SIMPLIFY], ids=[c[0] for c in SIMPLIFY]
)
def test_simplify(function: Callable[..., Any], avals: list[Any], expected: list[str]) -> None:
    """The equations that are left, and the same results bit for bit."""
    program = h.record(function, *avals)
    simple = simplify(program)
    check(simple)
    assert names(simple) == expected
    args = h.draw(1, program)
    for a, b in zip(h.evaluate(program, args), h.evaluate(simple, args), strict=True):
        np.testing.assert_array_equal(a, b)


def test_inline_takes_calls_apart() -> None:
    """A program called twice is there twice, and its variables do not mix."""
    inner = h.record(lambda x: op.mul(op.exp(x), 2.0), ((3,), "f32"))

    def twice(x: Any) -> Any:
        (y,) = call(inner, [x])
        (z,) = call(inner, [y])
        return z

    program = h.record(twice, ((3,), "f32"))
    flat = inline(program)
    check(flat)
    assert names(flat) == ["exp", "mul", "exp", "mul"]
    args = h.draw(2, program)
    np.testing.assert_array_equal(h.evaluate(program, args)[0], h.evaluate(flat, args)[0])


EXPANDED: list[tuple[str, Callable[..., Any], list[Any]]] = [
    ("int32 comparison", op.lt, [((5,), "i32"), ((5,), "i32")]),
    ("int32 against a ramp", lambda x: op.eq(x, op.iota((5,), 0)), [((5,), "i32")]),
    ("int32 maximum", op.max, [((5,), "i32"), ((5,), "i32")]),
    ("int32 row maximum", lambda x: op.reduce_max(x, (1,)), [((3, 5), "i32")]),
    ("int8 sum", op.add, [((5,), "i8"), ((5,), "i8")]),
    ("sum of leading axes", lambda x: op.reduce_sum(x, (0,)), [((3, 5), "f32")]),
    ("argmax", lambda x: op.argmax(x, 1), [((3, 5), "f32")]),
    ("one pick per row", lambda x, i: op.take_along(x, i, 1), [((3, 5), "f32"), ((3, 1), "i32")]),
    ("f64 is f32 here", lambda x: op.mul(x, np.float64(0.1)), [((3,), "f64")]),
    ("integer product", lambda x, y: op.dot_general(x, y, ((1,), (0,))),
     [((2, 3), "i32"), ((3, 4), "i32")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "avals"), [c[1:] for c in EXPANDED], ids=[c[0] for c in EXPANDED]
)
def test_legalise_for_a_neuron_core(
    function: Callable[..., Any], avals: list[Any], golden: Golden
) -> None:
    """The expansion as text; on targets that can do it natively nothing changes but reductions."""
    program = legalise(h.record(function, *avals), target("trn2"))
    check(program)
    golden(str(simplify(program)))


def test_native_targets_keep_integers() -> None:
    """The cpu target compares, adds and divides integers itself."""
    for function in (op.lt, op.max, op.floor_divide, op.remainder, op.shift_right_arithmetic):
        program = h.record(function, ((5,), "i64"), ((5,), "i64"))
        assert names(legalise(program, target("cpu"))) == names(program)


@pytest.mark.parametrize(
    "name", ["floor_divide", "remainder", "lt", "max", "shift_right_arithmetic"]
)
@pytest.mark.parametrize("dtype", ["i8", "u8", "i16", "i32", "u32"])
def test_integer_expansions_are_exact(name: str, dtype: str) -> None:
    """Extremes, neighbours, zero divisors and random pairs against NumPy, all of them."""
    info = np.iinfo({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
    generator = np.random.default_rng(3)
    edge = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, info.max // 2]
    if info.min < 0:
        edge += [-1, -2, -7]
    x = np.concatenate([np.repeat(edge, len(edge)), generator.integers(info.min, info.max, 400)])
    y = np.concatenate([np.tile(edge, len(edge)), generator.integers(info.min, info.max, 400)])
    close = generator.integers(-50, 50, 400)
    y[-400:][:200] = np.clip(x[-400:][:200] + close[:200], info.min, info.max)
    y[-200:] = np.clip(np.abs(close[:200]) + 1, 1, info.max)
    kind = info.dtype
    function = primitives[name].bind
    h.check(function, (x.shape, dtype), (x.shape, dtype), args=[x.astype(kind), y.astype(kind)])


def test_pipeline_is_a_chain_of_forms() -> None:
    """Each pass takes the form the one before gives, from a program to tiles."""
    assert PASSES[0].input_form == "program" and PASSES[-1].output_form == "tiles"
    for before, after in pairwise(PASSES):
        assert before.output_form == after.input_form
    assert stages()[0] == "trace" and len(set(stages())) == len(stages())


def test_every_stage_has_text(golden: Golden) -> None:
    """`lower_text` shows a small program after each pass."""
    program = h.record(h.softmax, ((4, 6), "f32"))
    for stage in ("trace", "fuse", "tile", "check"):
        golden(lower_text(program, stage), stage)
    with pytest.raises(TraceError, match=r"no stage 'tiles'.*Use one of trace, inline"):
        lower_text(program, "tiles")


def test_stages_are_dumped_and_verified(tmp_path: Path) -> None:
    """TRNX_DUMP_IR writes one file per pass; TRNX_CHECK runs every verifier."""
    program = h.record(h.linear, ((4, 6), "f32"), ((6, 5), "f32"), ((5,), "f32"))
    with config.dump_ir(str(tmp_path)), config.check(True):
        compile_program(program, "trn2")
    written = sorted(path.name for path in tmp_path.iterdir())
    ends = [f".{i:02d}.{p.name}.txt" for i, p in enumerate(PASSES)]
    assert len(written) == len(PASSES) and all(map(str.endswith, written, ends))
    assert all(path.read_text().strip() for path in tmp_path.iterdir())


def test_constants_follow_the_inputs() -> None:
    """Captured arrays become constant buffers, in f32 on targets without f64."""
    table = np.arange(6, dtype=np.float64).reshape(2, 3)
    program = h.record(lambda x: op.add(op.convert(x, "f64"), table), ((2, 3), "f32"))
    kinds = [(b.kind, b.dtype) for b in compile_program(program, "trn2").buffers]
    assert kinds == [("input", float32), ("constant", float32), ("output", float32)]
    assert int32 != float32
