"""Random programs through the whole pipeline: fusion must never change what is computed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler import harness as h
from trnx.compiler.pipeline import compile_program
from trnx.compiler.targets import target
from trnx.core import Program, config
from trnx.ops import functions as op

UNARY = (op.exp, op.tanh, op.neg, lambda x: op.mul(x, x), lambda x: op.sub(1.0, x), op.logistic)
BINARY = (op.add, op.sub, op.mul, op.max, op.min)
SIZES = (1, 2, 3, 4, 6, 12, 130)
SMALL = replace(target("trn2"), sbuf_usable_bytes=6000, working_set_bytes=3000)
"""A NeuronCore with so little SBUF that rows are chunked and operands of products streamed."""


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)


class Builder:
    """Draws one operation at a time over the values made so far."""

    def __init__(self, data: st.DataObject, values: list[Any]) -> None:
        self.data = data
        self.values = values

    def pick(self) -> Any:
        return self.data.draw(st.sampled_from(self.values))

    def number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def add(self, value: Any) -> None:
        if math.prod(_shape(value)) <= 40000:
            self.values.append(value)

    def step(self) -> None:
        kinds = (
            self.unary, self.binary, self.binary, self.broadcast, self.transpose, self.reshape,
            self.slice, self.reduce, self.reduce, self.dot, self.dot, self.select, self.join,
            self.softmax, self.take,
        )  # fmt: skip
        kinds[self.number(0, len(kinds) - 1)]()

    def unary(self) -> None:
        x = self.pick()
        self.add(op.tanh(UNARY[self.number(0, len(UNARY) - 1)](op.min(op.max(x, -4.0), 4.0))))

    def binary(self) -> None:
        x = self.pick()
        same = [v for v in self.values if _shape(v) == _shape(x) or not _shape(v)]
        y = self.data.draw(st.sampled_from(same))
        self.add(BINARY[self.number(0, len(BINARY) - 1)](x, y))

    def broadcast(self) -> None:
        x = self.pick()
        if len(_shape(x)) < 3:
            at = self.number(0, len(_shape(x)))
            self.add(op.expand(x, at, self.data.draw(st.sampled_from(SIZES))))

    def transpose(self) -> None:
        x = self.pick()
        self.add(op.transpose(x, self.data.draw(st.permutations(range(len(_shape(x)))))))

    def reshape(self) -> None:
        x = self.pick()
        size = math.prod(_shape(x))
        divisors = [d for d in (1, 2, 3, 4, 6, 12) if size % d == 0]
        first = self.data.draw(st.sampled_from(divisors))
        self.add(op.reshape(x, (first, size // first) if self.number(0, 1) else (size,)))

    def slice(self) -> None:
        x = self.pick()
        start = [self.number(0, n - 1) for n in _shape(x)]
        limit = [self.number(a + 1, n) for a, n in zip(start, _shape(x), strict=True)]
        self.add(op.slice(x, start, limit, [self.number(1, 2) for _ in start]))

    def reduce(self) -> None:
        x = self.pick()
        rank = len(_shape(x))
        if rank:
            axes = [a for a in range(rank) if self.number(0, 1)] or [rank - 1]
            kind = (op.reduce_max, op.reduce_min, op.reduce_sum)[self.number(0, 2)]
            scale = 1.0 / math.prod(_shape(x)[a] for a in axes) if kind is op.reduce_sum else 1.0
            self.add(op.mul(kind(x, axes), scale))

    def dot(self) -> None:
        x, y = self.pick(), self.pick()
        pairs = [(i, j) for i, n in enumerate(_shape(x)) for j, m in enumerate(_shape(y)) if n == m]
        if pairs:
            i, j = self.data.draw(st.sampled_from(pairs))
            rank = len(_shape(x)) + len(_shape(y)) - 2
            size = math.prod(_shape(x)) * math.prod(_shape(y)) // _shape(x)[i] ** 2
            if rank <= 3 and size <= 40000:
                self.add(op.mul(op.dot_general(x, y, ((i,), (j,))), 1.0 / _shape(x)[i]))

    def select(self) -> None:
        x = self.pick()
        same = [v for v in self.values if _shape(v) == _shape(x)]
        y = self.data.draw(st.sampled_from(same))
        self.add(op.select(op.gt(x, y), x, op.mul(y, 0.5)))

    def join(self) -> None:
        x = self.pick()
        if _shape(x):
            axis = self.number(0, len(_shape(x)) - 1)
            same = [
                v
                for v in self.values
                if len(_shape(v)) == len(_shape(x))
                and all(a == b or i == axis
                        for i, (a, b) in enumerate(zip(_shape(v), _shape(x), strict=True)))
            ]  # fmt: skip
            self.add(op.concatenate([x, self.data.draw(st.sampled_from(same))], axis))

    def softmax(self) -> None:
        x = self.pick()
        if _shape(x):
            self.add(h.softmax(x))

    def take(self) -> None:
        x = self.pick()
        if _shape(x):
            axis = self.number(0, len(_shape(x)) - 1)
            index = op.convert(op.mul(op.iota((3,), 0, "f32"), 0.7), "i32")
            self.add(op.take(x, index, axis))


def random_program(data: st.DataObject) -> Program:
    """A program over two inputs whose outputs are its last values."""
    shapes = [
        tuple(data.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))) for _ in range(2)
    ]

    def function(*args: Any) -> Any:
        builder = Builder(data, list(args))
        for _ in range(builder.number(2, 12)):
            builder.step()
        return builder.values[2:][-builder.number(1, 4) :] or [op.tanh(args[0])]

    return h.record(function, *((shape, "f32") for shape in shapes))


@given(st.data())
def test_random_program(data: st.DataObject) -> None:
    """Equal to the NumPy meaning on each target; every pass verified; no race, no poison."""
    program = random_program(data)
    args = h.draw(data.draw(st.integers(0, 3)), program)
    wanted = h.evaluate(program, args)
    for row in (target("trn2"), target("cpu"), SMALL):
        with config.check(True):
            tiles = compile_program(program, row)
        for got, expected in zip(h.run(tiles, args), wanted, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, 1e-3, 1e-4)
