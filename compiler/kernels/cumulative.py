"""Cumulative operations: running sums, products, extrema and recurrences along an axis.

Along a contiguous axis a row lies on the free dimension and `tensor_tensor_scan` runs over it, up
to `ROW_BLOCK` elements at a time with the last one carried on. Along another axis the running
values of a block of rows are one tile, to which the next slice of the operand is applied.

fp32 cannot count 32-bit integers exactly, so on NeuronCores their sums and products along a
contiguous axis double in reach: each step applies the tile to itself, shifted by 1, 2, 4, …
elements, exactly on GpSimd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.compiler.kernels.blocks import block_loop, chunks, flat_width, known
from trnx.compiler.kernels.elementwise import is_native
from trnx.compiler.kernels.emitter import Emitter, Number, Params
from trnx.compiler.kernels.reduction import accumulator_dtype, identity_of
from trnx.compiler.kernels.registry import Kind, declare
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.rows import Block, OuterAxis, Rows, result_view
from trnx.compiler.kernels.space import StridedView
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.ir import HbmAccess, Span
from trnx.compiler.tile.views import TileView
from trnx.core import Equation, Literal, Source, Var
from trnx.core.dtypes import is_float, is_integer

ROW_BLOCK = 2048
"""Elements of a row in SBUF at one time."""

INNER_BLOCK = 2048
"""Elements per partition of a running tile."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an operation combines: ``r = (factor op0 r) op1 term`` from `initial`.

    Attributes:
        op0: ALU operator on the factor and the running value.
        op1: ALU operator on that and the term.
        factor: position of the operand that is the factor, or a number.
        term: likewise.
        single: the one operator that does the same as both on the only operand; "" without.
    """

    op0: str
    op1: str
    factor: int | float
    term: int | float
    single: str = ""


RECIPES: dict[str, Recipe] = {
    "cumsum": Recipe("multiply", "add", 1.0, 0, "add"),
    "cumprod": Recipe("multiply", "multiply", 0, 1.0, "multiply"),
    "cummax": Recipe("maximum", "maximum", 0, 0, "maximum"),
    "cummin": Recipe("minimum", "minimum", 0, 0, "minimum"),
    "linear_recurrence": Recipe("multiply", "add", 0, 1),
    "maximum_in_runs": Recipe("multiply", "maximum", 0, 1),
}
"""Primitives -> how they combine. Floats are numbers, ints positions of operands."""

declare(Kind.CUMULATIVE, *RECIPES)


def initial_of(name: str, dtype: np.dtype[Any]) -> Number:
    """The running value before the first element."""
    if name in ("cummax", "cummin"):
        return identity_of(name.replace("cum", "reduce_"), dtype)
    one = name == "cumprod"
    return float(one) if is_float(dtype) else int(one)


def lower_cumulative(
    equation: Equation, views: Mapping[Var, StridedView], target: Target, source: Source | None
) -> LoweredKernel:
    """One kernel for a cumulative operation."""
    name, axis = equation.primitive.name, equation.params["axis"]
    result = equation.outputs[0]
    builder = KernelBuilder(name, target.name, source=source)
    params = Params(builder, {})
    operands = [a for a in equation.inputs if isinstance(a, Var)]
    rows = Rows(builder, params, [*(views[a] for a in operands), result_view(views, result)], axis)
    positions: list[int | Number] = []
    for atom in equation.inputs:
        number = isinstance(atom, Literal)
        positions.append(float(atom.value.item()) if number else operands.index(atom))  # type: ignore[union-attr, arg-type]
    lowering = _Cumulative(rows, name, positions, result, target, equation.params["reverse"])
    lowering.emit()
    return LoweredKernel(builder.finish(), params.variables)


class _Cumulative:
    """The two ways to run along an axis."""

    def __init__(
        self,
        rows: Rows,
        name: str,
        operands: list[int | Number],
        result: Var,
        target: Target,
        reverse: bool,
    ) -> None:
        self.rows = rows
        self.builder = rows.builder
        self.recipe = RECIPES[name]
        self.operands = operands
        self.dtype = result.aval.dtype
        self.state = accumulator_dtype(self.dtype)
        self.initial = initial_of(name, self.dtype)
        self.reverse = reverse
        self.out = len(rows.views) - 1
        short = is_integer(self.dtype) and self.dtype.itemsize < 8
        arithmetic = self.recipe.single in ("add", "multiply")
        self.doubles = short and arithmetic and not is_native(target)

    def emit(self) -> None:
        """Rows on the free dimension when the result is contiguous along the axis."""
        if self.rows.along[-1] == 1 or not self.rows.others:
            with self.rows.blocks() as block:
                self._rows(block)
            return
        self._slices()

    def _part(self, slot: int | float) -> int | Number:
        """What stands in a slot of the recipe: number of a view, or a number as float."""
        return slot if isinstance(slot, float) else self.operands[slot]

    def _load(
        self, part: int | Number, block: Block, start: Index, count: Index, most: int
    ) -> TileView:
        """Elements of an operand, or a repeated number, as ``[rows, count]``."""
        b = self.builder
        if isinstance(part, float):
            column = b.sbuf((block.max_rows, 1), self.state)
            b.memset(column, part if is_float(self.state) else int(part))
            return column[: block.rows].broadcast(1, count) if count != 1 else column[: block.rows]
        assert isinstance(part, int)
        tile = b.sbuf((block.max_rows, most), self.rows.views[part].root.aval.dtype)
        view = Emitter.cut(tile, (block.rows, count))
        b.dma_copy(view, self.rows.access(part, block, start, count, self.reverse))
        return view

    # Rows -----------------------------------------------------------------------------------

    def _rows(self, block: Block) -> None:
        b, size = self.builder, self.rows.size
        whole = isinstance(size, int) and size <= ROW_BLOCK
        carry: TileView | None = None
        if not whole:
            carry = b.sbuf((block.max_rows, 1), self.state)[: block.rows]
            b.memset(carry, self.initial)
        for start, count, most in chunks(b, "j", size, ROW_BLOCK):
            done = self._doubled if self.doubles else self._scanned
            out = done(block, start, count, most, carry)
            if carry is not None:
                last = out[:, add(count, -1) : count]
                b.tensor_copy(carry, last)
            b.dma_copy(self.rows.access(self.out, block, start, count, self.reverse), out)

    def _scanned(
        self, block: Block, start: Index, count: Index, most: int, carry: TileView | None
    ) -> TileView:
        recipe = self.recipe
        factor = self._load(self._part(recipe.factor), block, start, count, most)
        same = recipe.factor == recipe.term and isinstance(recipe.term, int)
        term = factor if same else self._load(self._part(recipe.term), block, start, count, most)
        tile = self.builder.sbuf((block.max_rows, most), self.state)
        out = Emitter.cut(tile, (block.rows, count))
        initial = self.initial if carry is None else carry
        self.builder.tensor_tensor_scan(out, factor, term, initial, op0=recipe.op0, op1=recipe.op1)
        return out

    def _doubled(
        self, block: Block, start: Index, count: Index, most: int, carry: TileView | None
    ) -> TileView:
        """Prefixes of 1, 2, 4, … elements; elements past `count` only see those before them."""
        b, op = self.builder, self.recipe.single
        (part,) = self.operands
        assert isinstance(part, int)
        now = b.sbuf((block.max_rows, most), self.dtype)
        if count != most:
            b.memset(now, self.initial)
        now = now[: block.rows]
        b.dma_copy(now[:, :count], self.rows.access(part, block, start, count, self.reverse))
        reach = 1
        while reach < most:
            following = b.sbuf((block.max_rows, most), self.dtype)[: block.rows]
            b.tensor_copy(following[:, :reach], now[:, :reach])
            b.tensor_tensor(following[:, reach:], now[:, reach:], now[:, : most - reach], op=op)
            now, reach = following, 2 * reach
        if carry is not None:
            total = b.sbuf((block.max_rows, most), self.dtype)[: block.rows]
            b.tensor_tensor(total, now, carry.broadcast(1, most) if most > 1 else carry, op=op)
            now = total
        return now[:, :count]

    # Slices ---------------------------------------------------------------------------------

    def _slices(self) -> None:
        """A tile of running values per block of the other axes; the row axis is the inner loop."""
        inner = min(self.rows.others, key=lambda a: known(a.strides[-1], 1 << 40))
        if len(self.rows.others) > 1:
            with self.rows.blocks(kept=[inner]) as block:
                for first, count, most in chunks(self.builder, "j", inner.size, INNER_BLOCK):
                    self._running(block, inner, first, count, most)
            return
        size = inner.size
        width = flat_width(size, INNER_BLOCK) if isinstance(size, int) else INNER_BLOCK
        if isinstance(size, int) and size >= 2 * width:
            steps = tuple(mul(s, width) for s in inner.strides)
            with block_loop(self.builder, "i", size // width, 128) as (first, rows):
                offsets = tuple(
                    add(view.offset, mul(first, step))
                    for view, step in zip(self.rows.views, steps, strict=True)
                )
                most_rows = min(128, size // width)
                self._running(Block(offsets, steps, rows, most_rows), inner, 0, width, width)
            done, rest = size - size % width, size % width
            if rest:
                self._running(self._single(), inner, done, rest, rest)
            return
        for first, count, most in chunks(self.builder, "j", size, INNER_BLOCK):
            self._running(self._single(), inner, first, count, most)

    def _single(self) -> Block:
        views = self.rows.views
        return Block(tuple(view.offset for view in views), (0,) * len(views), 1, 1)

    def _running(
        self, block: Block, inner: OuterAxis, first: Index, count: Index, most: int
    ) -> None:
        b, recipe = self.builder, self.recipe
        state = b.sbuf((block.max_rows, most), self.state)
        b.memset(state, self.initial)
        running = Emitter.cut(state, (block.rows, count))

        def access(number: int, step: Index) -> HbmAccess:
            along = self.rows.along[number]
            offset = add(block.offsets[number], mul(first, inner.strides[number]))
            place = add(add(self.rows.size, -1), mul(step, -1)) if self.reverse else step
            spans = (Span(block.steps[number], block.rows), Span(inner.strides[number], count))
            return HbmAccess(self.rows.names[number], add(offset, mul(place, along)), spans)

        def slice_of(slot: int | float, step: Index) -> TileView | Number:
            part = self._part(slot)
            if isinstance(part, float):
                return part
            assert isinstance(part, int)
            tile = b.sbuf((block.max_rows, most), self.rows.views[part].root.aval.dtype)
            view = Emitter.cut(tile, (block.rows, count))
            b.dma_copy(view, access(part, step))
            return view

        def apply(value: TileView | Number, op: str) -> None:
            if isinstance(value, TileView):
                b.tensor_tensor(running, running, value, op=op)
            else:
                b.tensor_scalar(running, running, value, op0=op)

        with b.loop("k", 0, self.rows.size) as step:
            if recipe.single:
                apply(slice_of(0, step), recipe.single)
            else:
                apply(slice_of(recipe.factor, step), recipe.op0)
                apply(slice_of(recipe.term, step), recipe.op1)
            b.dma_copy(access(self.out, step), running)
