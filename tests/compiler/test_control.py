"""Loops and branches as kernels: shape of the code, and results on simulator and host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import trnx
from tests.compiler.harness import draw, evaluate, run
from tests.host.native import run_native
from trnx import lax, nn
from trnx import numpy as tnp
from trnx.compiler.nki.emit import program_source
from trnx.compiler.pipeline import compile_program
from trnx.compiler.sim.estimate import estimate
from trnx.compiler.tile.ir import (
    For,
    HbmAccess,
    HostCall,
    Instruction,
    KernelCall,
    RegisterLoad,
    Statement,
    TileProgram,
    While,
    walk,
)
from trnx.core import Program, UnsupportedError
from trnx.core.dtypes import as_dtype

Array = Any
Kinds = Sequence[tuple[Sequence[int], str]]
TARGETS = ("trn2", "cpu")


def program_of(function: Callable[..., Any], *kinds: tuple[Sequence[int], str]) -> Program:
    """The program of a function over arrays of ``(shape, dtype)``."""
    return trnx.make_ir(function)(*(np.zeros(s, as_dtype(d)) for s, d in kinds))


def compiled(
    function: Callable[..., Any], *kinds: tuple[Sequence[int], str], target: str = "trn2"
) -> TileProgram:
    """Its tile program."""
    return compile_program(program_of(function, *kinds), target)


def loops(program: TileProgram, kind: type[Statement] = For) -> list[Any]:
    """Outermost loops of a kind in the program's kernels."""
    return [s for k in program.kernels for s in k.body if isinstance(s, kind)]


def transfers(body: Sequence[Statement]) -> list[Instruction]:
    return [s for s in walk(tuple(body)) if isinstance(s, Instruction) and s.op == "dma_copy"]


# Shape of the code ------------------------------------------------------------------------------
def rnn(w: Array, h: Array, xs: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = tnp.tanh(h @ w + x)
        return h, h * 2.0

    return lax.scan(step, h, xs)


RNN = (((16, 16), "f32"), ((8, 16), "f32"), ((6, 8, 16), "f32"))


def test_a_scan_is_one_kernel_with_one_loop() -> None:
    """Weights are loaded once, the carry stays on chip, one row of xs and ys moves per step."""
    program = compiled(rnn, *RNN)
    assert len(program.calls) == 1 and isinstance(program.calls[0], KernelCall)
    (loop,) = loops(program)
    assert (loop.low, loop.high) == (0, 6)
    inside = transfers(loop.body)
    reads = [i.ins[0] for i in inside if isinstance(i.ins[0], HbmAccess)]
    writes = [i.outs[0] for i in inside if isinstance(i.outs[0], HbmAccess)]
    assert [str(a.offset) for a in (*reads, *writes)] == [f"128*{loop.index}"] * 2
    weights = [i for i in transfers(program.kernels[0].body) if i not in inside]
    assert any(i.ins[0].shape == (16, 16) for i in weights if isinstance(i.ins[0], HbmAccess))


def test_an_lstm_keeps_its_carries_in_place() -> None:
    def lstm(w: Array, u: Array, h: Array, xs: Array) -> Array:
        def step(carry: Array, x: Array) -> Array:
            h, c = carry
            i, f, g, o = tnp.split(x @ w + h @ u, 4, 1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * tnp.tanh(g)
            return (nn.sigmoid(o) * tnp.tanh(c), c), c

        return lax.scan(step, (h, h), xs)

    kinds = (((8, 64), "f32"), ((16, 64), "f32"), ((4, 16), "f32"), ((5, 4, 8), "f32"))
    program = compiled(lstm, *kinds)
    copies = [
        i
        for i in transfers(loops(program)[0].body)
        if isinstance(i.ins[0], HbmAccess) and i.ins[0].shape == (1, 64)
    ]
    assert not copies, "no carry is copied back"


def test_a_carry_that_is_too_large_stays_in_memory() -> None:
    """256 rows are more than SBUF has partitions."""
    program = compiled(
        lambda x: lax.fori_loop(0, 4, lambda i, v: tnp.sin(v.sum(1, keepdims=True)) + v, x),
        ((256, 40), "f32"),
    )
    assert len(transfers(loops(program)[0].body)) >= 2


def test_compiling_does_not_grow_with_the_number_of_steps() -> None:
    few, many = (compiled(rnn, RNN[0], RNN[1], ((steps, 8, 16), "f32")) for steps in (6, 60_000))
    count = [sum(1 for k in p.kernels for _ in walk(k.body)) for p in (few, many)]
    assert count[0] == count[1]
    assert estimate(many).total_us > 5_000 * estimate(few).total_us


def test_while_and_cond_use_registers() -> None:
    program = compiled(
        lambda x: lax.while_loop(lambda v: v.sum() < 9.0, lambda v: v * 1.5, x), ((3,), "f32")
    )
    (loop,) = loops(program, While)
    assert isinstance(loop.body[-1], RegisterLoad) and loop.body[-1].register == loop.condition

    def switched(i: Array, x: Array) -> Array:
        return lax.switch(i, [tnp.sin, tnp.cos, lambda v: v], x)

    program = compiled(switched, ((), "i32"), ((3,), "f32"))
    branches = loops(program)
    registers = {s.register for k in program.kernels for s in k.body if isinstance(s, RegisterLoad)}
    assert [b.low for b in branches] == [0, 0, 0] and {str(b.high) for b in branches} == registers


def test_a_counter_is_the_index_of_the_loop() -> None:
    """The loop reads it from no memory."""
    program = compiled(
        lambda x: lax.fori_loop(2, 9, lambda i, v: v * 0.5 + i.astype("f32"), x), ((3, 4), "f32")
    )
    (loop,) = loops(program)
    assert not transfers(loop.body)
    ramps = [s for s in walk(loop.body) if isinstance(s, Instruction) and s.op == "iota"]
    assert [str(s.attr("offset")) for s in ramps] == [f"{loop.index} + 2"]


def test_what_has_no_kernel_is_one_counted_host_call() -> None:
    """64-bit products have no kernel on a NeuronCore, so a loop around one has none either."""

    def f(x: Array) -> Array:
        return lax.scan(lambda c, _: (c @ c, None), x, None, 3)[0]

    program = compiled(f, ((3, 3), "i64"))
    assert [c.function for c in program.calls if isinstance(c, HostCall)] == ["scan"]


def test_updates_at_the_index_are_made_in_place() -> None:
    """One row in, one row out, on chip: the table is copied once, in front of the loop."""

    def f(x: Array) -> Array:
        return lax.fori_loop(0, 50, lambda i, v: v.at[i].add(v[49 - i] * 2.0), x)

    program = compiled(f, ((50, 8), "f32"))
    (loop,) = loops(program)
    moved = [s.outs[0].shape for s in walk(loop.body) if isinstance(s, Instruction)]
    assert moved and all(np.prod([int(str(n)) for n in shape]) == 8 for shape in moved)
    assert not any(isinstance(s, RegisterLoad) for s in walk(loop.body))


def test_a_loop_that_counts_to_a_limit_is_a_for() -> None:
    program = compiled(up_to, ((), "i32"), ((3,), "f32"))
    assert not loops(program, While)
    (loop,) = loops(program)
    assert str(loop.high) == "trips"


def test_a_known_branch_is_no_branch() -> None:
    program = compiled(
        lambda x: lax.cond(True, tnp.sin, tnp.cos, lax.switch(7, [tnp.cos, tnp.exp], x)),
        ((3,), "f32"),
    )
    assert not loops(program) and len(program.calls) == 1


# Results ----------------------------------------------------------------------------------------
def permuted(a: Array, b: Array, xs: Array) -> Any:
    """Carries that swap, one that is the row, one that is a number; ys of old values."""

    def step(carry: Array, x: Array) -> Any:
        a, b, last, flag = carry
        return (b, a + x, x, tnp.zeros_like(flag)), (a, last, x, flag)

    return lax.scan(step, (a, b, a * 0.0, a + 1.0), xs)


def views(w: Array, x: Array, xs: Array) -> Any:
    """Operands that are slices, transposes and repetitions of arrays in memory."""

    def step(h: Array, row: Array) -> Any:
        return tnp.tanh(w[1:, ::2].T @ h + row), h

    return lax.scan(step, x[::2], xs[:, ::2].T)


def integers(n: Array, xs: Array) -> Any:
    """Wrapping integers, flags, and small integers as carries."""

    def step(carry: Array, x: Array) -> Any:
        n, flag, small = carry
        n = n * 31 + x
        return (n, (n > 0) ^ flag, small + x.astype("i8")), (flag, small)

    return lax.scan(step, (n, n > 0, n.astype("i8")), xs, reverse=True)


def nested(w: Array, x: Array, xs: Array) -> Any:
    """Loops in loops in branches, with counters that are read at every depth."""

    def outer(h: Array, row: Array) -> Any:
        def inner(i: Array, v: Array) -> Array:
            return lax.cond(
                i % 2 == 0, lambda u: tnp.sin(u @ w + row), lambda u: u * i.astype("f32"), v
            )

        h = lax.fori_loop(0, 3, inner, h)
        grown = lax.while_loop(lambda v: v.sum() < 8.0, lambda v: v + 1.0, tnp.abs(h))
        return h, grown

    return lax.scan(outer, x, xs)


def counters(x: Array) -> Any:
    """Counters up and down, with steps, read as numbers and given back."""

    def step(carry: Array, _: None) -> Any:
        up, down, total = carry
        total = total + up.astype("f32") * x - down.astype("f32")
        return (up + 3, down - 2, total), (up, down)

    return lax.scan(step, (1, 10, x * 0.0), None, 5, reverse=True)


def no_steps(x: Array, xs: Array) -> Any:
    return lax.scan(lambda c, r: (c + r, c), x, xs[:0])


def one_step(x: Array, xs: Array) -> Any:
    return lax.scan(lambda c, r: (c + r, c), x, xs[:1])


def never(x: Array) -> Any:
    return lax.while_loop(lambda v: v.sum() > 1e9, lambda v: v + 1.0, x)


def taken_apart(x: Array) -> Any:
    """A map whose results do not depend on each other."""
    return lax.map(lambda row: tnp.exp(row - row.max()), x)


def many_blocks(w: Array, x: Array, xs: Array) -> Any:
    """A carry of several blocks of rows and columns, which cannot be replaced in place."""
    return lax.scan(lambda h, row: (tnp.tanh(h @ w + row), None), x, xs)[0]


def wide_counter(n: Array, x: Array) -> Any:
    """64-bit integers as carries."""
    return lax.scan(lambda c, _: ((c[0] * 3 + 1, c[1] + 1.0), c[0]), (n, x), None, 4)


def indexed(x: Array, xs: Array) -> Any:
    """Rows read and written at expressions of the counter, inside and beyond the array."""

    def body(i: Array, carry: Any) -> Any:
        table, total = carry
        row = xs[i] + xs[5 - i] * table[i // 2]
        return table.at[i].add(row).at[2].set(row), total + xs[i + 2]

    return lax.fori_loop(0, 6, body, (xs, x))


def counting_rows(x: Array, xs: Array) -> Any:
    """A row of the inputs that is the number of the step, from the end."""

    def step(c: Array, rows: Any) -> Any:
        number, row = rows
        return c + row * number.astype("f32"), (number, xs[number])

    return lax.scan(step, x, (tnp.arange(6), xs), reverse=True)


def up_to(n: Array, x: Array) -> Any:
    """A number of steps that is only known at run time."""
    return lax.fori_loop(3, n, lambda i, v: v * 0.5 + i.astype("f32"), x)


def reused(w: Array, x: Array, xs: Array) -> Any:
    """A carry that every step gives back, which is a constant."""
    return lax.scan(lambda c, r: ((c[0], tnp.tanh(r @ c[0] + c[1])), c[1]), (w, x), xs)


CASES: dict[str, tuple[Callable[..., Any], Kinds]] = {
    "rnn": (rnn, RNN),
    "permuted": (permuted, (((3, 5), "f32"), ((3, 5), "f32"), ((4, 3, 5), "f32"))),
    "views": (views, (((5, 8), "f32"), ((8,), "f32"), ((4, 12), "f32"))),
    "integers": (integers, (((7,), "i32"), ((5, 7), "i32"))),
    "nested": (nested, (((4, 4), "f32"), ((2, 4), "f32"), ((3, 2, 4), "f32"))),
    "counters": (counters, (((3,), "f32"),)),
    "no steps": (no_steps, (((3,), "f32"), ((4, 3), "f32"))),
    "one step": (one_step, (((3,), "f32"), ((4, 3), "f32"))),
    "never": (never, (((3,), "f32"),)),
    "map": (taken_apart, (((6, 9), "f32"),)),
    "many blocks": (
        many_blocks,
        (((600, 600), "f32"), ((150, 600), "f32"), ((2, 150, 600), "f32")),
    ),
    "indexed": (indexed, (((3,), "f32"), ((6, 3), "f32"))),
    "counting rows": (counting_rows, (((3,), "f32"), ((6, 3), "f32"))),
    "up to": (up_to, (((), "i32"), ((3,), "f32"))),
    "reused": (reused, (((5, 5), "f32"), ((2, 5), "f32"), ((4, 2, 5), "f32"))),
    "64 bits": (wide_counter, (((5,), "i64"), ((5,), "f32"))),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, target: str) -> None:
    """Simulator, with every check on, and host agree with the reference."""
    function, kinds = CASES[name]
    program = program_of(function, *kinds)
    tiles = compile_program(program, target)
    assert not any(isinstance(c, HostCall) for c in tiles.calls)
    args = [a * np.asarray(0.3, a.dtype) if a.dtype.kind == "f" else a for a in draw(0, program)]
    wanted = evaluate(program, args)
    for results in (run(tiles, args), run_native(tiles, args)):
        for got, want in zip(results, wanted, strict=True):
            assert got.shape == want.shape
            if want.dtype.kind in "biu":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, 2e-4, 2e-4)


@pytest.mark.parametrize("index", [-7, 0, 1, 2, 99])
def test_branches_are_clamped(index: int) -> None:
    """Operands may be passed on by all branches, by one, or by none."""

    def f(i: Array, x: Array, y: Array) -> Any:
        branches = [
            lambda a, b: (a, a + b, tnp.ones_like(a)),
            lambda a, b: (a, b, a * b),
            lambda a, b: (a, b * 2.0, b),
        ]
        return lax.switch(i, branches, x, y)

    program = program_of(f, ((), "i32"), ((3,), "f32"), ((3,), "f32"))
    tiles = compile_program(program, "trn2")
    args = [np.int32(index), *draw(1, program)[1:]]
    for results in (run(tiles, args), run_native(tiles, args)):
        for got, want in zip(results, evaluate(program, args), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [-3, 0, 1, 4, 5, 100])
def test_a_bounded_scan_stops_at_its_count(count: int, reverse: bool) -> None:
    """Rows of the results from the count on are zero; a counter ends at the count."""
    from trnx.ops import scan as scan_op

    body = program_of(
        lambda i, c, r: (i + 2, c + r * i.astype("f32"), c * r),
        ((), "i32"), ((3,), "f32"), ((3,), "f32"),
    )  # fmt: skip

    def f(n: Array, c: Array, xs: Array) -> Any:
        first = np.int32(7)
        return scan_op.bind([n], [], [first, c], [xs], body=body, length=5, reverse=reverse)

    program = program_of(f, ((), "i32"), ((3,), "f32"), ((5, 3), "f32"))
    tiles = compile_program(program, "trn2")
    args = [np.int32(count), *draw(2, program)[1:]]
    wanted = evaluate(program, args)
    for results in (run(tiles, args), run_native(tiles, args)):
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_gradients_run_natively() -> None:
    """Reverse mode of a scan is two loops and products over all steps; nothing falls back."""

    def loss(w: Array, h: Array, xs: Array) -> Array:
        h, ys = rnn(w, h, xs)
        return (ys * ys).sum() + h.sum()

    program = program_of(trnx.value_and_grad(loss, (0, 1, 2)), *RNN)
    tiles = compile_program(program, "trn2")
    assert not any(isinstance(c, HostCall) for c in tiles.calls)
    assert sum(k.name.startswith("scan") for k in tiles.kernels) == 2
    args = [a * np.float32(0.3) for a in draw(3, program)]
    wanted = evaluate(program, args)
    for results in (run(tiles, args), run_native(tiles, args)):
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-4)


# Memory of checkpoints --------------------------------------------------------------------------
@pytest.mark.parametrize("layers", [4, 8])
def test_checkpoints_save_planned_memory(layers: int) -> None:
    """Without them the arena grows by all residuals of a layer, with them by its input."""
    size = 64
    matrix = size * size * 4

    def layer(w: Array, x: Array) -> Array:
        return nn.gelu(tnp.tanh(x @ w) * 1.5 + tnp.sin(x)) @ w + x

    def loss(wrapped: Callable[..., Any]) -> Callable[..., Array]:
        def run(ws: Array, x: Array) -> Array:
            for w in ws:
                x = wrapped(w, x)
            return (x * x).sum()

        return run

    kinds = [np.zeros((size, size), np.float32)] * (layers + 1)
    arena, results = [], []
    for wrapped in (layer, trnx.checkpoint(layer)):
        program = trnx.make_ir(trnx.grad(loss(wrapped)))(kinds[1:], kinds[0])
        tiles = compile_program(program, "trn2")
        arena.append(tiles.arena_bytes // matrix)
        args = [a * np.float32(0.1) for a in draw(4, program)]
        results.append(run_native(tiles, args))
    assert arena[0] >= 5 * layers
    assert arena[1] <= layers + 8
    for plain, saved in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, saved)


# NKI source -------------------------------------------------------------------------------------
def test_source_of_a_loop_is_a_python_loop() -> None:
    text = program_source(compiled(rnn, *RNN))
    assert "for step in range(6):" in text and "src=x2[step, 0:8, 0:16]" in text


def test_source_refuses_64_bit_carries_by_name() -> None:
    with pytest.raises(UnsupportedError, match="64-bit integer"):
        program_source(compiled(wide_counter, ((5,), "i64"), ((5,), "f32")))
