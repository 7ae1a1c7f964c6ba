"""Functions with loops and branches, written once for trnx and for JAX.

Each takes a :class:`Library` and gives a function of one f32 array ``[3]`` that returns an array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy
import numpy as np

import trnx
import trnx.lax
import trnx.numpy

W = np.cos(np.arange(9.0, dtype=np.float32)).reshape(3, 3)
XS = np.sin(np.arange(12.0, dtype=np.float32)).reshape(4, 3)


@dataclass(frozen=True)
class Library:
    """The names a function needs."""

    top: Any
    np: Any
    lax: Any


TRNX = Library(trnx, trnx.numpy, trnx.lax)
JAX = Library(jax, jax.numpy, jax.lax)
Function = Callable[[Any], Any]


def rnn(lib: Library) -> Function:
    """Matrix steps; the weights depend on the argument, the loop's inputs do not."""

    def f(x: Any) -> Any:
        w = lib.np.asarray(W) * x

        def step(h: Any, row: Any) -> Any:
            after = lib.np.tanh(w @ h + row)
            return after, after * h

        h, ys = lib.lax.scan(step, x, lib.np.asarray(XS))
        return h * h + ys.sum(0)

    return f


def backwards(lib: Library) -> Function:
    """Differentiated inputs, run from the end, with results that are not read."""

    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            total, count = carry
            return (total * 0.5 + lib.np.sin(row), count + 1), {"y": total * row, "n": count}

        (total, _), ys = lib.lax.scan(
            step, (lib.np.zeros_like(x), 0), lib.np.asarray(XS) * x, reverse=True
        )
        return total + ys["y"].sum(0)

    return f


def swapping(lib: Library) -> Function:
    """A tangent that reaches one carry after the other; a carry without any; no xs."""

    def f(x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            a, b, c, k = carry
            return (b, c, lib.np.sin(a) + c * 0.5, k * 2), None

        zero = lib.np.zeros_like(x)
        (a, b, c, k), _ = lib.lax.scan(step, (x, zero, zero, 1), None, length=5)
        return a * b + c * k

    return f


def invariant(lib: Library) -> Function:
    """Residuals that are the same in every step, and a carry that comes back unchanged."""

    def f(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            h, kept = carry
            return (h * lib.np.exp(lib.np.sin(x)) * 0.3 + kept * row, kept), lib.np.cos(kept)

        (h, kept), ys = lib.lax.scan(step, (x, x * 2.0), lib.np.asarray(XS))
        return h + kept + ys[1]

    return f


def nested(lib: Library) -> Function:
    """A scan in a scan, and a jitted function in the inner one."""

    def f(x: Any) -> Any:
        inner_step = lib.top.jit(lambda c, y: lib.np.sin(c) * y + x)

        def outer(h: Any, row: Any) -> Any:
            g, _ = lib.lax.scan(lambda c, y: (inner_step(c, y), None), h, lib.np.asarray(XS[:2]))
            return g * row, g

        h, ys = lib.lax.scan(outer, x, lib.np.asarray(XS))
        return h + ys[2]

    return f


def branches(lib: Library) -> Function:
    """Two branches with different work; one side does not depend on the argument at all."""

    def f(x: Any) -> Any:
        kept = lib.np.exp(x)
        first = lib.lax.cond(
            x.sum() > 0.4, lambda v: (lib.np.sin(v) * kept, v), lambda v: (v * v, kept), x
        )
        second = lib.lax.cond(
            x[0] > 0.0, lambda v: v * 3.0, lambda v: lib.np.ones_like(v), first[0] + first[1]
        )
        return second

    return f


def switches(lib: Library) -> Function:
    """Three branches in a loop, chosen by its counter."""

    def f(x: Any) -> Any:
        cases = [lambda v: lib.np.sin(v), lambda v: v * x, lambda v: lib.np.cos(v) + x]
        return lib.lax.fori_loop(0, 5, lambda i, v: lib.lax.switch(i % 4, cases, v), x)

    return f


def loop_in_branch(lib: Library) -> Function:
    """A scan in one of the branches."""

    def f(x: Any) -> Any:
        def looped(v: Any) -> Any:
            return lib.lax.scan(lambda c, r: (lib.np.sin(c) + r * x, None), v, lib.np.asarray(XS))[
                0
            ]

        return lib.lax.cond(x[1] > 0.2, looped, lambda v: v * v, x * 2.0)

    return f


def mapped(lib: Library) -> Function:
    """lax.map over rows that depend on the argument."""

    def f(x: Any) -> Any:
        return lib.lax.map(lambda row: (row * x).sum() * x, lib.np.asarray(XS) + x).sum(0)

    return f


def checkpointed(lib: Library) -> Function:
    """A loop whose step is recomputed in reverse mode."""

    def f(x: Any) -> Any:
        step = lib.top.checkpoint(lambda h, row: (lib.np.tanh(h * x + row), h * row))
        h, ys = lib.lax.scan(step, x, lib.np.asarray(XS))
        return h + ys.sum(0)

    return f


def custom(lib: Library) -> Function:
    """A function with a forward rule of its own, in a loop and in a branch."""

    def f(x: Any) -> Any:
        @lib.top.custom_jvp
        def g(a: Any, b: Any) -> Any:
            return lib.np.sin(a) * b

        @g.defjvp
        def g_jvp(primals: Any, tangents: Any) -> Any:
            (a, b), (t, u) = primals, tangents
            return g(a, b), lib.np.cos(a) * t * b + lib.np.sin(a) * u

        h = lib.lax.fori_loop(0, 3, lambda i, v: g(v, x) + x, x)
        return lib.lax.cond(h[0] > 0.25, lambda v: g(v, v), lambda v: v, h)

    return f


def while_counted(lib: Library) -> Function:
    """A while_loop that ends by a value; forward mode only."""

    def f(x: Any) -> Any:
        def body(carry: Any) -> Any:
            n, v = carry
            return n + 1, v * 1.5 + lib.np.sin(x)

        return lib.lax.while_loop(lambda c: (c[1].sum() < 30.0) & (c[0] < 20), body, (0, x))[1]

    return f


def fori_dynamic(lib: Library) -> Function:
    """A fori_loop whose end is an array: a while_loop."""

    def f(x: Any) -> Any:
        end = lib.np.asarray(4) + (x[0] > 0.25)
        return lib.lax.fori_loop(1, end, lambda i, v: lib.np.sin(v) * x + v, x)

    return f


REVERSIBLE = {
    f.__name__: f
    for f in (
        rnn, backwards, swapping, invariant, nested, branches, switches, loop_in_branch, mapped,
        checkpointed, custom,
    )
}  # fmt: skip
FORWARD_ONLY = {f.__name__: f for f in (while_counted, fori_dynamic)}
FUNCTIONS = {**REVERSIBLE, **FORWARD_ONLY}
