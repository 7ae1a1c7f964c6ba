"""Kernels that treat rows along one axis as a whole: cumulative operations and sorts.

The other axes are merged where the strides of every operand allow it; the largest that is left
goes to the partitions, the rest become loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trnx.compiler.kernels.blocks import MATMUL_ROWS, block_loop, known
from trnx.compiler.kernels.emitter import Params
from trnx.compiler.kernels.space import StridedView, dense_view, to_indices
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul, symbols
from trnx.compiler.tile.ir import HbmAccess, Span
from trnx.core import Var


@dataclass(frozen=True, slots=True)
class OuterAxis:
    """An axis that is not the row axis, merged: its size, and its stride in every operand."""

    size: Index
    strides: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows on the partitions at one place of the loops.

    Attributes:
        offsets: first element of the block in every operand.
        steps: elements from one row to the next in every operand.
        rows: rows of the block.
        max_rows: rows of its tiles.
    """

    offsets: tuple[Index, ...]
    steps: tuple[Index, ...]
    rows: Index
    max_rows: int


class Rows:
    """Operands and results of one shape, seen as rows along an axis.

    Args:
        builder: receives declarations and instructions.
        params: HBM parameters of the kernel.
        views: where each operand lies, results last.
        axis: the row axis.
        results: how many of the views are written.
    """

    def __init__(
        self,
        builder: KernelBuilder,
        params: Params,
        views: Sequence[StridedView],
        axis: int,
        results: int = 1,
    ) -> None:
        self.builder = builder
        self.views = views
        self.axis = axis
        shape = views[-1].shape
        self.size = shape[axis]
        self.along = tuple(view.spans[axis].stride for view in views)
        self.others = merged_axes(views, [d for d in range(len(shape)) if d != axis])
        declare_sizes(builder, views)
        inputs = len(views) - results
        self.names = tuple(
            params.declare(
                view.root,
                "in" if number < inputs else "out",
                view.root.aval.dtype,
                to_indices(view.root.aval.shape),
            )
            for number, view in enumerate(views)
        )

    @contextmanager
    def blocks(self, kept: Sequence[OuterAxis] = ()) -> Iterator[Block]:
        """Loop over the outer axes (those of `kept` left out), up to 128 rows at a time."""
        axes = [axis for axis in self.others if axis not in kept]
        partition = max(axes, key=lambda a: min(known(a.size, 1 << 40), MATMUL_ROWS), default=None)
        offsets = [view.offset for view in self.views]
        with ExitStack() as stack:
            for depth, axis in enumerate(a for a in axes if a is not partition):
                index = stack.enter_context(self.builder.loop(f"i{depth}", 0, axis.size))
                offsets = [
                    add(o, mul(index, s)) for o, s in zip(offsets, axis.strides, strict=True)
                ]
            rows: Index = 1
            max_rows = 1
            steps: tuple[Index, ...] = (0,) * len(self.views)
            if partition is not None:
                start, rows = stack.enter_context(
                    block_loop(self.builder, "i", partition.size, MATMUL_ROWS)
                )
                max_rows, steps = (
                    min(MATMUL_ROWS, known(partition.size, MATMUL_ROWS)),
                    partition.strides,
                )
                offsets = [add(o, mul(start, s)) for o, s in zip(offsets, steps, strict=True)]
            yield Block(tuple(offsets), steps, rows, max_rows)

    def access(
        self, number: int, block: Block, start: Index, count: Index, reverse: bool = False
    ) -> HbmAccess:
        """Elements ``start`` to ``start + count`` of the block's rows in operand `number`.

        With `reverse` both count from the end of the row.
        """
        along = self.along[number]
        offset = block.offsets[number]
        if reverse:
            offset = add(offset, mul(add(self.size, -1), along))
            along = mul(along, -1)
        spans = (Span(block.steps[number], block.rows), Span(along, count))
        return HbmAccess(self.names[number], add(offset, mul(start, along)), spans)


def merged_axes(views: Sequence[StridedView], dims: Sequence[int]) -> list[OuterAxis]:
    """Neighbouring dimensions as one wherever every view allows it; those of size 1 vanish."""
    found: list[OuterAxis] = []
    for d in dims:
        size = views[-1].spans[d].count
        strides = tuple(view.spans[d].stride for view in views)
        if size == 1:
            continue
        if found and all(
            outer == mul(inner, size)
            for outer, inner in zip(found[-1].strides, strides, strict=True)
        ):
            found[-1] = OuterAxis(mul(found[-1].size, size), strides)
        else:
            found.append(OuterAxis(size, strides))
    return found


def declare_sizes(builder: KernelBuilder, views: Sequence[StridedView]) -> None:
    """Declare the run-time integers in sizes, strides and offsets as register arguments."""
    needed: set[str] = set()
    for view in views:
        needed |= symbols(view.offset)
        for span in view.spans:
            needed |= symbols(span.stride) | symbols(span.count)
    for register in sorted(needed):
        builder.register_argument(register)


def result_view(views: Mapping[Var, StridedView], result: Var) -> StridedView:
    """Where a result goes: a layout the caller gave, else dense."""
    return views[result] if result in views else dense_view(result)
