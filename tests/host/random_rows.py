"""Hypothesis strategy for kernels that stress row groups: views, reductions, overwrites.

All values are small integers held in fp32 and every operation on them is exact, so host and
simulator must agree bit for bit, whatever order the host chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sim.programs import compile_kernel
from trnx.compiler.tile.build import KernelBuilder, single_kernel_program
from trnx.compiler.tile.ir import TileProgram
from trnx.compiler.tile.views import TileView
from trnx.core.dtypes import float32, int32, uint8

Draw = Callable[[st.SearchStrategy[Any]], Any]
LIMIT = 64.0


@dataclass
class _Rows:
    """Writes one kernel over tiles of [rows, outer, inner]."""

    draw: Draw
    b: KernelBuilder
    rows: int
    outer: int
    inner: int
    full: list[TileView] = field(default_factory=list)
    narrow: list[TileView] = field(default_factory=list)
    single: list[TileView] = field(default_factory=list)

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.draw(st.sampled_from(choices))

    def coin(self) -> bool:
        """True or false."""
        return self.draw(st.booleans())

    def range_of(self, size: int) -> slice:
        """A sub-range, often the whole."""
        if self.coin():
            return slice(0, size)
        low = self.draw(st.integers(0, size - 1))
        return slice(low, self.draw(st.integers(low + 1, size)))

    def window(self, ranges: tuple[slice, slice]) -> TileView:
        """A view of a tile over ``ranges``: of a full tile, or a broadcast one."""
        outer, inner = ranges
        kind = self.pick("full", "full", "full", "narrow", "single")
        count = (outer.stop - outer.start, inner.stop - inner.start)
        if kind == "narrow" and self.narrow:
            return self.pick(*self.narrow)[:, outer, 0:1].broadcast(2, count[1])
        if kind == "single" and self.single:
            view = self.pick(*self.single)[:, None]
            return view.broadcast(1, count[0]).broadcast(2, count[1])
        return self.pick(*self.full)[:, outer, inner]

    def target(self) -> tuple[TileView, TileView, tuple[slice, slice]]:
        """(tile, view to write, its ranges): a new tile or part of an old one."""
        if self.coin() or not self.full:
            tile = self.b.sbuf((self.rows, self.outer, self.inner), float32)
            ranges = (slice(0, self.outer), slice(0, self.inner))
            self.full.append(tile)
            return tile, tile, ranges
        tile = self.pick(*self.full)
        ranges = (self.range_of(self.outer), self.range_of(self.inner))
        return tile, tile[:, ranges[0], ranges[1]], ranges

    def clamp(self, view: TileView) -> None:
        """Keep values exact."""
        self.b.tensor_scalar(view, view, LIMIT, -LIMIT, op0="minimum", op1="maximum")

    def step(self) -> None:
        """One more instruction."""
        kinds = ("tensor", "tensor", "scalar", "reduce", "activation", "select", "affine", "copy")
        kind = self.pick(*kinds)
        before = len(self.full)
        if kind == "reduce":
            self.reduce()
            return
        _, view, ranges = self.target()
        fresh = len(self.full) > before
        known = self.full[:before] if fresh else self.full
        saved, self.full = self.full, known
        first, second = self.window(ranges), self.window(ranges)
        self.full = saved
        if kind == "tensor":
            op = self.pick("add", "subtract", "maximum", "minimum")
            self.b.tensor_tensor(view, first, second, op=op)
        elif kind == "scalar":
            operand = self.pick(2.0, -1.0, *self.single)
            self.b.tensor_scalar(view, first, operand, op0=self.pick("add", "subtract", "maximum"))
        elif kind == "activation":
            total = self.b.sbuf((self.rows, 1), float32)
            self.b.activation(
                view, first, op=self.pick("relu", "abs"), reduce_res=total, reduce_op="add"
            )
            self.b.tensor_scalar(total, total, LIMIT, op0="minimum")
            self.single.append(total)
        elif kind == "select":
            shape = (self.rows, *(r.stop - r.start for r in ranges))
            mask = self.b.sbuf(shape, self.pick(uint8, int32))
            self.b.tensor_tensor(mask, first, second, op=self.pick("greater", "equal"))
            self.b.tensor_copy(view, first)
            self.b.tensor_copy_predicated(view, second, mask, reverse_pred=self.coin())
        elif kind == "affine":
            counts = [r.stop - r.start for r in ranges]
            pattern = ((self.pick(-2, 1, 3), counts[0]), (self.pick(-1, 1, 2), counts[1]))
            self.b.affine_select(
                view, first, 5.0, pattern=pattern, channel_multiplier=-1, cmp_op="less_equal"
            )
        else:
            self.b.tensor_copy(view, first)
        self.clamp(view)

    def reduce(self) -> None:
        """A reduction over the inner or over both free axes."""
        source = self.pick(*self.full)
        op = self.pick("add", "maximum", "minimum")
        negate = self.coin()
        if self.coin():
            result = self.b.sbuf((self.rows, self.outer), float32)
            self.b.tensor_reduce(result, source, op=op, axis=(2,), negate=negate)
            self.clamp(result)
            self.narrow.append(result.reshape(self.rows, self.outer, 1))
        else:
            result = self.b.sbuf((self.rows, 1), float32)
            self.b.tensor_reduce(result, source, op=op, axis=(1, 2), negate=negate)
            self.clamp(result)
            self.single.append(result)


@st.composite
def random_rows(draw: Draw) -> tuple[TileProgram, list[NDArray[Any]]]:
    """A program of one kernel, and its inputs."""
    rows = draw(st.sampled_from((1, 2, 5, 20)))
    outer, inner = draw(st.integers(1, 6)), draw(st.sampled_from((1, 2, 7, 16, 17, 33, 80)))
    shape = (rows, outer, inner)
    seed = draw(st.integers(0, 2**32 - 1))
    inputs: list[NDArray[Any]] = []

    def write(b: KernelBuilder) -> None:
        state = _Rows(draw, b, rows, outer, inner)
        for i in range(draw(st.integers(1, 3))):
            x = b.param(f"x{i}", shape, float32, "in")
            inputs.append(np.random.default_rng(seed + i).integers(-8, 9, shape).astype(float32))
            tile = b.sbuf(shape, float32)
            b.dma_copy(tile, x)
            state.full.append(tile)
        for _ in range(draw(st.integers(1, 12))):
            state.step()
        results = draw(st.lists(st.sampled_from(state.full), min_size=1, max_size=3, unique_by=id))
        for i, tile in enumerate(results):
            b.dma_copy(b.param(f"y{i}", shape, float32, "out"), tile)
        for i, tile in enumerate(state.single[-2:]):
            b.dma_copy(b.param(f"s{i}", (rows, 1), float32, "out"), tile)

    kernel = compile_kernel(write)
    return single_kernel_program(kernel, "trn2"), inputs
