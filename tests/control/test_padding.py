"""Loops, branches and checkpoints of symbolic sizes: runs in buffers full of garbage are exact.

Sizes of loops count too: a scan in a bucket runs as often as the true length says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from tests.ops.padding import garbage
from trnx import lax
from trnx import numpy as tnp
from trnx.core import Aval, Program, check, dim, dtypes, evaluate, reference_program, trace_program
from trnx.transforms import pad_program, specialise

N, M = dim("n", min=0, max=8), dim("m", min=1, max=8)
F64 = dtypes.float64


def rows(x: Any, w: Any) -> list[Any]:
    """A scan over a padded axis, with a padded carry, in both directions."""
    h, ys = lax.scan(lambda c, r: (tnp.tanh(c + r), c.sum() + r), w, x)
    g, _ = lax.scan(lambda c, r: (c * 0.5 + r, None), w, ys, reverse=True)
    return [h, ys, g]


def steps(x: Any, w: Any) -> list[Any]:
    """A number of steps that is a size, and a while_loop that compares with it."""
    total = lax.fori_loop(0, x.shape[0], lambda i, v: v + w * i, w)
    count = lax.while_loop(lambda i: i < x.shape[0] * 2, lambda i: i + 3, 0)
    return [total, count, lax.while_loop(lambda v: v.sum() < 3.0, lambda v: v + 0.5, w)]


def choices(x: Any, w: Any) -> list[Any]:
    """Branches that reduce padded values, one of which uses a size as a value."""
    picked = lax.cond(w.sum() > 0, lambda: x.sum(0), lambda: w * x.shape[0])
    index = (w.max() * 10).astype("i32")
    parts = lax.switch(index, [lambda v: v.mean(), lambda v: v.max(), lambda v: v[-1]], w)
    return [picked, parts]


def derivatives(x: Any, w: Any) -> list[Any]:
    """Reverse mode of a scan over a padded axis, and of a checkpointed step."""

    def loss(x: Any, w: Any) -> Any:
        step = trnx.checkpoint(lambda c, r: (tnp.sin(c * r) + c, c * c))
        c, ys = lax.scan(step, w, x)
        return (c * c).sum() + ys.sum()

    return list(trnx.grad(loss, (0, 1))(x, w))


def weights(x: Any, w: Any) -> list[Any]:
    """Gradients of constants of a loop, which are summed after it over padded steps and rows."""

    def loss(m: Any, b: Any) -> Any:
        h, ys = lax.scan(lambda c, r: (tnp.tanh(m @ c + r + b), c * b), w, x)
        return (h * h).sum() + ys.sum()

    return list(trnx.grad(loss, (0, 1))(w[:, None] * w, w * 0.5))


def examples(x: Any, w: Any) -> list[Any]:
    """vmap over a padded axis: every example stops at its own time and takes its own branch."""

    def one(r: Any) -> Any:
        grown = lax.while_loop(lambda v: v.sum() < 9.0, lambda v: v * 1.5 + 1.0, r)
        return lax.cond(r[0] > 0, lambda: grown + w, lambda: r * w)

    return [trnx.vmap(one)(x)]


def ruled(x: Any, w: Any) -> list[Any]:
    """A function with a derivative of its own on padded values."""

    @trnx.custom_jvp
    def f(v: Any) -> Any:
        return v - v.mean()

    f.defjvp(lambda p, t: (f(*p), t[0] - t[0].mean()))
    return [f(w), trnx.jit(f)(x)]


FUNCTIONS: list[Callable[..., list[Any]]] = [
    rows, steps, choices, derivatives, weights, examples, ruled,
]  # fmt: skip


def traced(function: Callable[..., list[Any]], last: Any = M) -> Program:
    return trace_program(function, [Aval((N, last), F64), Aval((last,), F64)], function.__name__)


def run_padded(program: Program, operands: list[np.ndarray], sizes: dict[str, int]) -> list[Any]:
    """Results of the padded program within their true shapes."""
    padded = pad_program(program, {"n": 8, "m": 8})
    check(padded.program)
    buffers = []
    for value, aval in zip(operands, padded.program.in_avals, strict=False):
        buffer = np.full([int(s) for s in aval.shape], garbage(value.dtype), value.dtype)
        buffer[tuple(map(slice, value.shape))] = value
        buffers.append(buffer)
    names = [np.int32(sizes[name]) for name in padded.size_names]
    with np.errstate(all="ignore"):
        outs = reference_program(padded.program, [*buffers, *names])
    return [
        out[tuple(slice(evaluate(size, sizes)) for size in shape)]
        for out, shape in zip(outs, padded.true_out_shapes, strict=True)
    ]


@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 3), (3, 1), (5, 8), (8, 5)])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_padded_is_exact(function: Callable[..., list[Any]], n: int, m: int) -> None:
    program = traced(function)
    rng = np.random.default_rng([n, m])
    operands = [rng.uniform(-1, 1, (n, m)), rng.uniform(-0.5, 1, m)]
    sizes = {"n": n, "m": m}
    want = reference_program(specialise(program, sizes), operands)
    found = run_padded(program, operands, sizes)
    for got, expected in zip(found, want, strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_a_padded_loop_stops_at_the_true_length() -> None:
    """The body runs n times, not as often as the bucket holds."""
    program = traced(rows)
    padded = pad_program(program, {"n": 8, "m": 8}).program
    loops = [e for e in padded.equations if e.primitive.name == "scan"]
    assert [(e.params["bounded"], e.params["length"]) for e in loops] == [(True, 8)] * 2
    calls: list[int] = []
    original = trnx.core.primitives["tanh"].reference
    assert original is not None

    def counting(x: Any) -> Any:
        calls.append(1)
        return original(x)

    trnx.core.primitives["tanh"].reference = counting
    try:
        run_padded(program, [np.ones((3, 2)), np.ones(2)], {"n": 3, "m": 2})
    finally:
        trnx.core.primitives["tanh"].reference = original
    assert len(calls) == 3


def test_static_loop_over_padded_values_is_not_bounded() -> None:
    def run(x: Any, w: Any) -> list[Any]:
        return [lax.scan(lambda c, _: (c + w, c.sum()), w, None, length=3)[1]]

    padded = pad_program(traced(run), {"n": 8, "m": 8}).program
    (loop,) = [e for e in padded.equations if e.primitive.name == "scan"]
    assert loop.params["bounded"] is False
    assert loop.params["length"] == 3
