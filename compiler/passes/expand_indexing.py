"""Gathers and scatters of windows as row gathers and row scatters over flat offsets.

Axes of the operand whose start may differ from 0 or that windows do not hold whole are merged into
one; every element of a window along them is a row of its own. What is left are rows that a DMA
moves as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trnx.compiler.passes.expand import Array, as_is, expansion
from trnx.compiler.targets import Target
from trnx.core import Aval, LoweringError, Params, Primitive, message
from trnx.core.dtypes import int32, int64, is_bool, is_integer
from trnx.ops import functions as op
from trnx.ops.gather import inside, last_start


def _rows_abstract(x: Aval, index: Aval, flag: Aval, updates: Aval, *, kind: str) -> Aval:
    return x


SCATTER_ROWS = Primitive(
    "scatter_rows",
    abstract=_rows_abstract,
    doc="x [n, w] with row index[i] set, multiplied or compared by updates[i] where flag[i] is 1.",
    register=False,
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Axes of an operand by what windows do along them.

    Attributes:
        shape: of the operand.
        moving: axes merged into one, batch axes first.
        before, after: axes in front of and behind the merged ones, held whole.
        transposed: whether the operand's axes must be reordered first.
    """

    shape: tuple[int, ...]
    moving: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    transposed: bool

    @property
    def rows(self) -> int:
        """Size of the merged axis."""
        return math.prod(self.shape[a] for a in self.moving)

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of the operand as the row form has them."""
        return (*self.before, *self.moving, *self.after)

    def sizes(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Sizes of some axes."""
        return tuple(self.shape[a] for a in axes)


def _plan(shape: Sequence[Any], axes: Sequence[int], sizes: Sequence[Any], batch: int,
          leading: bool) -> _Plan:  # fmt: skip
    whole = tuple(int(s) for s in shape)
    moving = [
        a
        for a in range(len(whole))
        if a < batch or (a in axes and whole[a] != 1) or sizes[a - batch] != whole[a]
    ]
    first, last = (moving[0], moving[-1] + 1) if moving else (0, 0)
    adjacent = moving == list(range(first, last)) and not (leading and first)
    before = tuple(range(first)) if adjacent else ()
    after = tuple(a for a in range(len(whole)) if a not in moving and a not in before)
    plan = _Plan(whole, tuple(moving), before, after, not adjacent)
    if plan.rows >= 1 << 31:
        raise LoweringError(
            message(
                f"indices into {plan.rows} places do not fit into int32",
                None,
                "Index fewer elements at once",
            )
        )
    return plan


def _offsets(
    plan: _Plan, indices: Sequence[Array], axes: Sequence[int], sizes: Sequence[int], batch: int
) -> tuple[Array, int]:
    """Places on the merged axis, ``[*index shape, *window along moving axes]``, and its rank."""
    places = op.shape_of(indices[0])
    windows = [1 if a < batch else sizes[a - batch] for a in plan.moving]
    full = (*places, *windows)
    rank, total = len(places), None
    stride = plan.rows
    for number, axis in enumerate(plan.moving):
        stride //= max(1, plan.shape[axis])
        parts = []
        if axis < batch:
            parts.append(op.iota(full, axis))
        elif axis in axes:
            index = indices[list(axes).index(axis)]
            parts.append(op.broadcast(index, full, range(rank)))
        if windows[number] > 1:
            parts.append(op.iota(full, rank + number))
        for part in parts:
            share = op.mul(part, stride) if stride != 1 else part
            total = share if total is None else op.add(total, share)
    if total is None:
        total = op.broadcast(op.scalar(0, int32), full, ())
    return total, rank


def _window_order(plan: _Plan, rank: int, batch: int) -> list[int]:
    """Axes of ``[before, index shape, moving windows, after]`` as ``[index shape, window]``."""
    ahead = len(plan.before)
    place: dict[int, int] = {}
    for number, axis in enumerate(plan.before):
        place[axis] = number
    for number, axis in enumerate(plan.moving):
        place[axis] = ahead + rank + number
    for number, axis in enumerate(plan.after):
        place[axis] = ahead + rank + len(plan.moving) + number
    kept = [place[a] for a in range(len(plan.shape)) if a >= batch]
    gone = [place[a] for a in range(batch)]
    return [*range(ahead, ahead + rank), *kept, *gone]


@expansion("gather")
def _choose_gather(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    return _gather


def _gather(x: Array, *indices: Array, axes: Any, sizes: Any, batch: int) -> Array:
    shape = op.shape_of(x)
    plan = _plan(shape, axes, sizes, batch, leading=False)
    indices = tuple(
        op.clamp(op.scalar(0, int32), index, last_start(shape[a], sizes[a - batch]))
        for index, a in zip(indices, axes, strict=True)
    )
    offsets, rank = _offsets(plan, indices, axes, sizes, batch)
    merged = op.reshape(
        op.transpose(x, plan.order), (*plan.sizes(plan.before), plan.rows, *plan.sizes(plan.after))
    )
    rows = as_is("take", merged, offsets, axis=len(plan.before))
    order = _window_order(plan, rank, batch)
    return op.reshape(op.transpose(rows, order), (*op.shape_of(indices[0]), *sizes))


@expansion("scatter")
def _choose_scatter(target: Target, avals: Sequence[Aval], params: Params) -> Any:
    dtype, kind = avals[0].dtype, params["kind"]
    if kind in ("min", "max"):
        if is_bool(dtype):
            return _widened(int32, dtype)
        if is_integer(dtype) and dtype.itemsize == 4 and not target.native_i64:
            return _widened(int64, dtype)  # fp32 does not order 32-bit integers
    if kind == "mul" and is_integer(dtype) and dtype.itemsize <= 2:
        return _widened(int32, dtype)
    return _scatter


def _widened(wide: Any, dtype: Any) -> Any:
    def run(x: Array, updates: Array, *indices: Array, **params: Any) -> Array:
        out = _scatter(op.convert(x, wide), op.convert(updates, wide), *indices, **params)
        return op.convert(out, dtype)

    return run


def _scatter(
    x: Array, updates: Array, *indices: Array, axes: Any, kind: str, batch: int, unique: bool
) -> Array:
    shape, places = op.shape_of(x), op.shape_of(indices[0])
    sizes = [int(s) for s in op.shape_of(updates)[len(places) :]]
    adds = kind == "add"
    plan = _plan(shape, axes, sizes, batch, leading=not adds)
    offsets, rank = _offsets(plan, indices, axes, sizes, batch)
    kept = inside(indices, axes, shape, tuple(sizes), batch)
    kept = op.broadcast(kept, op.shape_of(offsets), range(rank))
    # Updates as [before, index shape, moving windows, after].
    order = _window_order(plan, rank, batch)
    inverse = [order.index(a) for a in range(len(order))]
    rows = op.transpose(op.reshape(updates, (*op.shape_of(updates), *([1] * batch))), inverse)
    before, after = plan.sizes(plan.before), plan.sizes(plan.after)
    operand = op.reshape(op.transpose(x, plan.order), (*before, plan.rows, *after))
    if adds:
        places = op.select(kept, offsets, -1)
        out = as_is("scatter_add", operand, places, rows, axis=len(before))
    else:
        count, width = math.prod(op.shape_of(offsets)), math.prod(after)
        out = SCATTER_ROWS.bind(
            op.reshape(operand, (plan.rows, width)),
            op.reshape(op.select(kept, offsets, 0), (count,)),
            op.reshape(op.convert(kept, int32), (count,)),
            op.reshape(rows, (count, width)),
            kind=kind,
        )
    back = [plan.order.index(a) for a in range(len(shape))]
    return op.transpose(op.reshape(out, plan.sizes(plan.order)), back)
