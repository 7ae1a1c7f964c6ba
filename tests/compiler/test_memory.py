"""The memory plan: reuse by liveness, donation, nothing shared that must not be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler import harness as h
from trnx.compiler.passes.memory import ALIGNMENT, CallUse, plan_memory
from trnx.compiler.pipeline import compile_program
from trnx.compiler.tile.ir import Buffer
from trnx.core.dtypes import float32
from trnx.ops import functions as op


def chain(length: int) -> object:
    """x through alternating products, which never fuse."""

    def function(x, w):  # type: ignore[no-untyped-def]
        for _ in range(length):
            x = op.dot_general(x, w, ((1,), (0,)))
        return x

    return function


def test_a_chain_needs_two_temporaries_at_a_time() -> None:
    program = h.record(chain(6), ((64, 64), "f32"), ((64, 64), "f32"))  # type: ignore[arg-type]
    tiles = compile_program(program, "trn2")
    assert sum(b.kind == "temp" for b in tiles.buffers) == 5
    assert tiles.arena_bytes == 2 * 64 * 64 * 4
    h.check(chain(6), ((64, 64), "f32"), ((64, 64), "f32"), tolerance=1e-3)  # type: ignore[arg-type]


def test_donated_parameters_are_updated_in_place() -> None:
    """AdamW writes p, m and v where the old ones lie: each element is read once, before."""
    avals = [((640, 128), "f32")] * 4
    tiles = compile_program(h.record(h.adamw, *avals), "trn2", donated=(0, 2, 3))
    aliases = {b.name: b.alias for b in tiles.buffers if b.kind == "output"}
    assert set(aliases.values()) == {"in0", "in2", "in3"}
    h.check(h.adamw, *avals, donated=(0, 2, 3))


def test_donation_waits_for_the_last_reader() -> None:
    """x is read after exp(x) is written, so its memory is not taken for it."""

    def function(x, w):  # type: ignore[no-untyped-def]
        y = op.exp(x)
        return y, op.dot_general(y, op.dot_general(x, w, ((1,), (0,))), ((1,), (0,)))

    program = h.record(function, ((32, 32), "f32"), ((32, 32), "f32"))
    tiles = compile_program(program, "trn2", donated=(0,))
    aliases = {b.name: b.alias for b in tiles.buffers if b.kind == "output"}
    assert aliases["out0"] is None
    h.check(function, ((32, 32), "f32"), ((32, 32), "f32"), donated=(0,), tolerance=1e-3)


def test_a_transposed_reader_is_not_updated_in_place() -> None:
    """x + x^T reads elements other blocks have written."""

    def function(x):  # type: ignore[no-untyped-def]
        return op.add(x, op.transpose(x, (1, 0)))

    tiles = compile_program(h.record(function, ((300, 300), "f32")), "trn2", donated=(0,))
    assert all(b.alias is None for b in tiles.buffers)
    h.check(function, ((300, 300), "f32"), donated=(0,))


def test_a_returned_input_is_never_taken_over() -> None:
    tiles = compile_program(
        h.record(lambda x: (x, op.exp(x)), ((32,), "f32")), "trn2", donated=(0,)
    )
    assert all(b.alias is None for b in tiles.buffers)


LIVES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 4), st.integers(1, 300)), min_size=1, max_size=12
)


@given(LIVES)
def test_live_temporaries_never_overlap(lives: list[tuple[int, int, int]]) -> None:
    """Random live ranges and sizes: whoever lives at one time lies apart, aligned, in the arena."""
    buffers = [Buffer(f"t{i}", (size,), float32, "temp") for i, (_, _, size) in enumerate(lives)]
    last = max(first + length for first, length, _ in lives)
    uses = [
        CallUse(
            tuple(f"t{i}" for i, (f, length, _) in enumerate(lives) if f <= at <= f + length), ()
        )
        for at in range(last + 1)
    ]
    planned, arena = plan_memory(buffers, uses, (), set())
    spans = []
    for buffer, (first, length, size) in zip(planned, lives, strict=True):
        assert buffer.offset is not None and buffer.offset % ALIGNMENT == 0
        assert buffer.offset + 4 * size <= arena
        spans.append((buffer.offset, buffer.offset + 4 * size, first, first + length))
    for i, (a, b, f, g) in enumerate(spans):
        for c, d, p, q in spans[:i]:
            assert b <= c or d <= a or g < p or q < f
    assert replace(planned[0]).name == "t0"
    assert np.dtype(planned[0].dtype) == float32
