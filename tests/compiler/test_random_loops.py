"""Random loops: bodies of products, reductions, slices and branches, nested and permuted.

Simulator with every check on, native code and the NumPy meaning agree; some are differentiated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
from tests.compiler.harness import draw, evaluate, run
from tests.host.native import run_native
from trnx import lax
from trnx import numpy as tnp
from trnx.compiler.pipeline import compile_program
from trnx.compiler.tile.ir import HostCall

Array = Any
ROWS, COLUMNS = 3, 4


class Maker:
    """Draws array functions of ``[ROWS, COLUMNS]`` values from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def step(self, values: list[Array], w: Array, index: Array | None, depth: int) -> Array:
        """One more value from those there are."""
        pick = self.random.choice
        x, y = pick(values), pick(values)
        choices: list[Callable[[], Array]] = [
            lambda: tnp.tanh(x + y),
            lambda: x * y * 0.5,
            lambda: tnp.tanh(x @ w),
            lambda: x - x.mean(1, keepdims=True),
            lambda: x * tnp.exp(-tnp.abs(y)).sum(0),
            lambda: tnp.flip(x, 0) + y[:, ::-1],
            lambda: tnp.concatenate([x[1:], y[:1]], 0),
            lambda: tnp.where(x > y, x, y * 0.5),
        ]
        if index is not None:
            choices += [
                lambda: x + index.astype("f32") * 0.1,
                lambda: x + y[index % ROWS],
                lambda: x.at[index % ROWS].add(y[0]),
            ]
        if depth:
            choices += 2 * [lambda: self.loop(values, w, depth - 1), lambda: self.branch(x, y, w)]
        return pick(choices)()

    def branch(self, x: Array, y: Array, w: Array) -> Array:
        left, right = self.random.random(), self.random.random()
        return lax.cond(
            x.sum() > y.sum(), lambda a, b: tnp.tanh(a @ w) * left + b, lambda a, b: b * right, x, y
        )

    def loop(self, values: list[Array], w: Array, depth: int) -> Array:
        """A loop over two to three carries with results per step."""
        count = self.random.randint(2, 3)
        init = tuple(self.random.choice(values) for _ in range(count))
        length = self.random.choice((1, 2, 3, 5))
        xs = tnp.stack([self.random.choice(values) * (k + 1) * 0.3 for k in range(length)])
        order = list(range(count))
        self.random.shuffle(order)
        body_seed, steps = self.random.random(), self.random.randint(1, 4)
        kind = self.random.choice(("scan", "reverse", "fori", "while"))

        def work(carry: Any, row: Array | None, index: Array | None) -> tuple[Any, Array]:
            self.random.seed(body_seed)
            known = [*carry, *([row] if row is not None else []), values[0]]
            for _ in range(steps):
                known.append(self.step(known, w, index, depth))
            new = [tnp.clip(v, -3.0, 3.0) for v in known[-count:]]
            kept = self.random.random() < 0.3
            after = [carry[0] if kept and k == 0 else new[k] for k in order]
            return tuple(after), known[self.random.randrange(len(known))]

        if kind in ("scan", "reverse"):

            def scanned(carry: Any, inputs: Any) -> Any:
                number, row = inputs
                return work(carry, row, number)

            last, ys = lax.scan(scanned, init, (tnp.arange(length), xs), reverse=kind == "reverse")
            out = sum(last) + ys.sum(0)
        elif kind == "fori":
            last = lax.fori_loop(1, length, lambda i, c: work(c, xs[i], i)[0], init)
            out = sum(last)
        else:

            def more(carry: Any) -> Array:
                return carry[0] < length

            def body(carry: Any) -> Any:
                return carry[0] + 1, *work(carry[1:], None, carry[0])[0]

            last = lax.while_loop(more, body, (np.int32(0), *init))
            out = sum(last[1:])
        self.random.seed(body_seed + 1)
        return tnp.clip(out, -3.0, 3.0)

    def function(self) -> Callable[..., Any]:
        state = self.random.getstate()

        def f(w: Array, x: Array, y: Array) -> Any:
            self.random.setstate(state)
            return self.loop([x, y, x * 0.5 + y], w * 0.5, 1)

        return f


def check(seed: int, target: str, differentiate: bool) -> None:
    f = Maker(seed).function()
    if differentiate:
        f = trnx.grad(lambda w, x, y, g=f: (g(w, x, y) ** 2).sum(), (0, 1))
    shapes = ((COLUMNS, COLUMNS), (ROWS, COLUMNS), (ROWS, COLUMNS))
    try:
        program = trnx.make_ir(f)(*(np.zeros(s, np.float32) for s in shapes))
    except NotImplementedError:
        assert differentiate, "only reverse mode of a while_loop has no rule"
        return
    tiles = compile_program(program, target)
    assert not any(isinstance(call, HostCall) for call in tiles.calls)
    args = draw(seed, program)
    wanted = evaluate(program, args)
    for results in (run(tiles, args), run_native(tiles, args)):
        for got, want in zip(results, wanted, strict=True):
            scale = max(1.0, float(np.abs(want).max(initial=0.0)))
            np.testing.assert_allclose(got / scale, want / scale, 0, 2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed: int) -> None:
    check(seed, ("trn2", "cpu")[seed % 2], seed % 3 == 0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 220))
def test_many_random_loops(seed: int) -> None:
    check(seed, ("trn2", "cpu")[seed % 2], seed % 3 == 0)
