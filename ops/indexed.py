"""`jax.lax` names and arguments for slices, gathers, scatters, sorts and running reductions."""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import Aval, ShapeError, Size, aval_of, dtypes, message
from trnx.ops import functions as op
from trnx.ops.gather import inside

Array = Any
_INT32 = dtypes.int32


class GatherScatterMode(enum.Enum):
    """What happens to windows out of range."""

    CLIP = "clip"
    FILL_OR_DROP = "fill"
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(value: str | GatherScatterMode | None) -> GatherScatterMode:
        """The mode of a name ("drop" is "fill"); None is "fill".

        Raises:
            ValueError: there is no such mode.
        """
        if isinstance(value, GatherScatterMode):
            return value
        if value is None or value == "drop":
            return GatherScatterMode.FILL_OR_DROP
        try:
            return GatherScatterMode(value)
        except ValueError:
            raise ValueError(
                message(f"mode={value!r} is unknown", None, "Use clip, fill or promise_in_bounds")
            ) from None


@dataclass(frozen=True, slots=True)
class GatherDimensionNumbers:
    """Which axes are what in :func:`gather`; the fields are JAX's."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScatterDimensionNumbers:
    """Which axes are what in :func:`scatter`; the fields are JAX's."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


def _axis(name: str, x: Array, axis: int) -> int:
    rank = aval_of(x).ndim
    number = operator.index(axis)
    if not -rank <= number < rank:
        raise ShapeError(
            message(f"{name} of {aval_of(x)} got axis {axis}", None, f"Use {-rank} to {rank - 1}")
        )
    return number % rank


def _start(value: Array) -> Array:
    """A start as an int32 scalar."""
    if isinstance(value, int):
        return op.scalar(min(max(value, -(2**31)), 2**31 - 1), _INT32)
    dtype = aval_of(value).dtype
    if dtypes.is_unsigned_integer(dtype) or dtype.itemsize > 4:
        value = op.min(value, min(dtypes.integer_range(dtype)[1], 2**31 - 1))
        if not dtypes.is_unsigned_integer(dtype):
            value = op.max(value, -(2**31))
    return op.convert(value, _INT32)


def _starts(x: Array, starts: Any) -> list[Array]:
    """One int32 start per axis, from a sequence or an array; negative ones count from the end."""
    if not isinstance(starts, Sequence):
        count = aval_of(starts).shape[0]
        starts = [op.reshape(op.slice_axis(starts, i, i + 1, 0), ()) for i in range(int(count))]
    found = []
    for value, size in zip(starts, op.shape_of(x), strict=True):
        start = _start(value)
        if isinstance(value, int) and value >= 0:
            found.append(start)
        elif isinstance(value, int) and isinstance(size, int):
            found.append(op.scalar(max(value + size, -1), _INT32))
        else:
            behind = op.add(start, op.dim_size(size))
            found.append(op.select(op.lt(start, 0), behind, start))
    return found


# ---------------------------------------------------------------- slices
def dynamic_slice(operand: Array, start_indices: Any, slice_sizes: Sequence[Size]) -> Array:
    """`slice_sizes` elements per axis from traced starts, which are clamped so that all lie inside.

    Negative starts count from the end.
    """
    return op.dynamic_slice(operand, _starts(operand, start_indices), slice_sizes)


def dynamic_update_slice(operand: Array, update: Array, start_indices: Any) -> Array:
    """`operand` with `update` put at traced starts, clamped so that all of it lies inside."""
    return op.dynamic_update_slice(operand, update, _starts(operand, start_indices))


def dynamic_slice_in_dim(
    operand: Array, start_index: Array, slice_size: Size, axis: int = 0
) -> Array:
    """:func:`dynamic_slice` along one axis."""
    number = _axis("dynamic_slice_in_dim", operand, axis)
    sizes = list(op.shape_of(operand))
    sizes[number] = slice_size
    starts: list[Any] = [0] * len(sizes)
    starts[number] = start_index
    return dynamic_slice(operand, starts, sizes)


def dynamic_index_in_dim(
    operand: Array, index: Array, axis: int = 0, keepdims: bool = True
) -> Array:
    """One element of an axis at a traced place."""
    out = dynamic_slice_in_dim(operand, index, 1, axis)
    if keepdims:
        return out
    number = _axis("dynamic_index_in_dim", operand, axis)
    shape = op.shape_of(out)
    return op.reshape(out, (*shape[:number], *shape[number + 1 :]))


def dynamic_update_slice_in_dim(
    operand: Array, update: Array, start_index: Array, axis: int
) -> Array:
    """:func:`dynamic_update_slice` along one axis."""
    starts: list[Any] = [0] * aval_of(operand).ndim
    starts[_axis("dynamic_update_slice_in_dim", operand, axis)] = start_index
    return dynamic_update_slice(operand, update, starts)


def dynamic_update_index_in_dim(operand: Array, update: Array, index: Array, axis: int) -> Array:
    """One element of an axis replaced at a traced place; `update` may lack the axis."""
    number = _axis("dynamic_update_index_in_dim", operand, axis)
    if aval_of(update).ndim != aval_of(operand).ndim:
        update = op.expand(update, number)
    return dynamic_update_slice_in_dim(operand, update, index, number)


def slice_in_dim(
    operand: Array, start_index: Size | None, limit_index: Size | None, stride: int = 1,
    axis: int = 0,
) -> Array:  # fmt: skip
    """``operand[start:limit:stride]`` along one axis, bounds static."""
    number = _axis("slice_in_dim", operand, axis)
    size = op.shape_of(operand)[number]

    def bound(value: Size | None, default: Size) -> Size:
        if value is None:
            return default
        return value + size if isinstance(value, int) and value < 0 else value

    return op.slice_axis(operand, bound(start_index, 0), bound(limit_index, size), number, stride)


def index_in_dim(operand: Array, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """One element of an axis at a static place."""
    number = _axis("index_in_dim", operand, axis)
    size = op.shape_of(operand)[number]
    place = index + size if index < 0 else index
    out = op.slice_axis(operand, place, place + 1, number)
    shape = op.shape_of(out)
    return out if keepdims else op.reshape(out, (*shape[:number], *shape[number + 1 :]))


# ---------------------------------------------------------------- gather
def _components(indices: Array, count: int) -> list[Array]:
    """The last axis of an index array as `count` int32 arrays."""
    shape = op.shape_of(indices)
    if not shape or shape[-1] != count:
        raise ShapeError(
            message(
                f"Indices {aval_of(indices)} have no last axis of {count} components",
                None,
                "Give one component per indexed axis of the operand",
            )
        )
    last = len(shape) - 1
    parts = [op.slice_axis(indices, k, k + 1, last) for k in range(count)]
    return [_start(op.reshape(part, shape[:-1])) for part in parts]


def _batch_first(
    operand: Array, components: list[Array], own: Sequence[int], theirs: Sequence[int]
) -> tuple[Array, list[Array], list[int], list[int]]:
    """Batch axes of both in front; the orders in which their axes are now."""
    order = [*own, *(a for a in range(aval_of(operand).ndim) if a not in own)]
    rank = aval_of(components[0]).ndim if components else 0
    index_order = [*theirs, *(a for a in range(rank) if a not in theirs)]
    moved = [op.transpose(c, index_order) for c in components]
    return op.transpose(operand, order), moved, order, index_order


def gather(
    operand: Array,
    start_indices: Array,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Array:
    """Windows of `operand` at `start_indices`, whose last axis holds a component per indexed axis.

    Args:
        operand: what is read.
        start_indices: integers, ``[..., components]``.
        dimension_numbers: which axes are what.
        slice_sizes: size of the windows per axis of the operand.
        unique_indices: changes nothing.
        indices_are_sorted: changes nothing.
        mode: "fill" (default): windows that leave the operand are `fill_value`; "clip" moves them
            inside; "promise_in_bounds" is "clip".
        fill_value: NaN, the smallest signed or largest unsigned integer, or True, unless given.
    """
    numbers, how = dimension_numbers, GatherScatterMode.from_any(mode)
    components = _components(start_indices, len(numbers.start_index_map))
    batch = len(numbers.operand_batching_dims)
    x, indices, order, index_order = _batch_first(
        operand, components, numbers.operand_batching_dims, numbers.start_indices_batching_dims
    )
    axes = [order.index(a) for a in numbers.start_index_map]
    sizes = [slice_sizes[a] for a in order[batch:]]
    out = op.gather(x, indices, axes, sizes, batch)
    if how is GatherScatterMode.FILL_OR_DROP:
        kept = inside(indices, axes, op.shape_of(x), tuple(sizes), batch)
        shape = op.shape_of(out)
        kept = op.broadcast(kept, shape, range(len(op.shape_of(kept))))
        fill = _default_fill(op.dtype_of(x)) if fill_value is None else fill_value
        out = op.select(kept, out, op.scalar(fill, op.dtype_of(x)))
    # Drop collapsed axes, put the index axes back in their order, then interleave.
    rank = len(index_order)
    shape = op.shape_of(out)
    windows = [a for a in order[batch:] if a not in numbers.collapsed_slice_dims]
    kept_sizes = [slice_sizes[a] for a in windows]
    out = op.reshape(out, (*shape[:rank], *kept_sizes))
    inverse = [index_order.index(a) for a in range(rank)]
    by_axis = sorted(range(len(windows)), key=lambda n: windows[n])
    out = op.transpose(out, [*inverse, *(rank + n for n in by_axis)])
    total = rank + len(windows)
    places = [a for a in range(total) if a not in numbers.offset_dims]
    target = {p: n for n, p in enumerate(places)}
    target |= {p: rank + n for n, p in enumerate(numbers.offset_dims)}
    return op.transpose(out, [target[p] for p in range(total)])


def _default_fill(dtype: np.dtype[Any]) -> Any:
    if dtypes.is_inexact(dtype):
        return math.nan
    if dtypes.is_bool(dtype):
        return True
    low, high = dtypes.integer_range(dtype)
    return high if dtypes.is_unsigned_integer(dtype) else low


# ---------------------------------------------------------------- scatter
def _scatter(
    kind: str,
    operand: Array,
    scatter_indices: Array,
    updates: Array,
    dimension_numbers: ScatterDimensionNumbers,
    unique: bool,
    mode: str | GatherScatterMode | None,
) -> Array:
    numbers, how = dimension_numbers, GatherScatterMode.from_any(mode)
    components = _components(scatter_indices, len(numbers.scatter_dims_to_operand_dims))
    batch = len(numbers.operand_batching_dims)
    x, indices, order, index_order = _batch_first(
        operand, components, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    )
    axes = [order.index(a) for a in numbers.scatter_dims_to_operand_dims]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [a for a in range(len(order)) if a not in gone]
    # Updates as [index axes, window axes in the operand's order].
    total = aval_of(updates).ndim
    places = [a for a in range(total) if a not in numbers.update_window_dims]
    of_window = dict(zip(windows, numbers.update_window_dims, strict=True))
    moved = op.transpose(
        updates,
        [
            *(places[a] for a in index_order),
            *(of_window[a] for a in order[batch:] if a in of_window),
        ],
    )
    shape = op.shape_of(updates)
    sizes = tuple(shape[of_window[a]] if a in of_window else 1 for a in order[batch:])
    moved = op.reshape(moved, (*(shape[places[a]] for a in index_order), *sizes))
    if how is GatherScatterMode.CLIP:
        whole = op.shape_of(x)
        indices = [
            op.clamp(op.scalar(0, _INT32), i, op.dim_size(whole[a] - sizes[a - batch]))
            for i, a in zip(indices, axes, strict=True)
        ]
    out = op.scatter(x, indices, moved, axes, kind, batch, unique)
    return op.transpose(out, [order.index(a) for a in range(len(order))])


def _along(kind: str, operand: Array, indices: Array, updates: Array, axis: int) -> Array:
    """The one-axis form, in which the axes of the indices take the place of the axis."""
    if kind == "add":
        return op.scatter_add(operand, indices, updates, axis)
    rank = aval_of(indices).ndim
    before, after = range(axis), range(axis + rank, aval_of(updates).ndim)
    moved = op.transpose(updates, [*range(axis, axis + rank), *before, *after])
    return op.scatter(operand, (indices,), op.expand(moved, rank + axis), (axis,), kind)


def _scatter_face(kind: str, verb: str) -> Callable[..., Array]:
    def face(
        operand: Array,
        scatter_indices: Array,
        updates: Array,
        dimension_numbers: ScatterDimensionNumbers | int,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Array:
        if isinstance(dimension_numbers, int):
            return _along(kind, operand, scatter_indices, updates, dimension_numbers)
        return _scatter(
            kind, operand, scatter_indices, updates, dimension_numbers, unique_indices, mode
        )

    face.__name__ = face.__qualname__ = "scatter" if kind == "set" else f"scatter_{kind}"
    face.__doc__ = (
        f"`operand` with windows {verb} `updates` at `scatter_indices` ``[..., components]``.\n\n"
        'Windows that leave the operand are dropped; ``mode="clip"`` moves them inside. An axis\n'
        "instead of dimension numbers: `updates` are shaped as ``take(operand, indices, axis)``."
    )
    return face


scatter = _scatter_face("set", "replaced by")
scatter_add = _scatter_face("add", "increased by")
scatter_mul = _scatter_face("mul", "multiplied by")
scatter_min = _scatter_face("min", "lowered to")
scatter_max = _scatter_face("max", "raised to")


# ---------------------------------------------------------------- sorts, running reductions
def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """Sort along an axis by the first `num_keys` operands; a tuple gives a tuple."""
    single = not isinstance(operand, tuple | list)
    operands = (operand,) if single else tuple(operand)
    results = op.sort(operands, _axis("sort", operands[0], dimension), num_keys)
    return results[0] if single else tuple(results)


def sort_key_val(
    keys: Array, values: Array, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Keys in order, and the values in the order of their keys."""
    first, second = op.sort((keys, values), _axis("sort_key_val", keys, dimension))
    return first, second


def top_k(operand: Array, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """The k largest elements along an axis, largest first, and their int32 places."""
    return op.top_k(operand, k, _axis("top_k", operand, axis))


def _running(name: str, verb: str) -> Callable[..., Array]:
    def face(operand: Array, axis: int = 0, reverse: bool = False) -> Array:
        result: Array = getattr(op, name)(operand, _axis(name, operand, axis), reverse)
        return result

    face.__name__ = face.__qualname__ = name
    face.__doc__ = f"Running {verb} along `axis`; from the end with `reverse`."
    return face


cumsum = _running("cumsum", "sum")
cumprod = _running("cumprod", "product")
cummax = _running("cummax", "maximum")
cummin = _running("cummin", "minimum")
cumlogsumexp = _running("cumlogsumexp", "log of the sum of exponentials")


def index_take(src: Array, idxs: Sequence[Array], axes: Sequence[int]) -> Array:
    """Slices of `src` at places along several axes, which become the first; places wrap around."""
    aval: Aval = aval_of(src)
    sizes = [1 if a in axes else size for a, size in enumerate(aval.shape)]
    places = [
        op.remainder(_start(i), op.dim_size(aval.shape[a])) for i, a in zip(idxs, axes, strict=True)
    ]
    out = op.gather(src, places, list(axes), sizes)
    kept = [size for a, size in enumerate(aval.shape) if a not in axes]
    return op.reshape(out, (*op.shape_of(idxs[0]), *kept))
