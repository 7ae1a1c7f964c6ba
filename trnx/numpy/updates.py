"""Functional updates: ``x.at[index]`` and what can be done at the index.

Indices are those of ``x[index]``. A write out of range is dropped unless ``mode="clip"``; of
several writes to one element by `set`, the last in row-major order of the indices stays.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    DTypeError,
    ShapeError,
    Size,
    UnsupportedError,
    aval_of,
    dtypes,
    message,
    structurally_equal,
)
from trnx.numpy import indexing
from trnx.numpy._operands import Array, ArrayLike, broadcast_shape, cast, spread_to, type_of
from trnx.ops import functions as op

_MODES = ("drop", "fill", "clip", "promise_in_bounds")


class IndexUpdate:
    """``x.at``: copies of an array with some elements changed."""

    __slots__ = ("_x",)

    def __init__(self, x: Array) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> IndexedUpdate:
        return IndexedUpdate(self._x, index)


class IndexedUpdate:
    """``x.at[index]``: what to do with these elements.

    `mode` says what happens to index arrays out of range: "drop" (default; also "fill" and
    "promise_in_bounds") leaves their elements alone, "clip" moves them to the nearest end.
    `unique_indices` promises that no element is named twice, which makes derivatives cheaper;
    `indices_are_sorted` changes nothing.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Array, index: Any) -> None:
        self._x = x
        self._index = index

    def get(
        self,
        *,
        mode: str | None = None,
        fill_value: ArrayLike | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Array:
        """``x[index]``; with ``mode="fill"`` or "drop" elements out of range are `fill_value`.

        The fill value is NaN for floats, the smallest signed or largest unsigned integer, True for
        bools, unless given. Otherwise indices are clamped to the axis.
        """
        if _checked_mode(mode) not in ("fill", "drop") or mode is None:
            return indexing.getitem(self._x, self._index)
        out = indexing.getitem(self._x, self._index)
        place = _Place(self._x, self._index, None)
        if place.inside is None:
            return out
        aval = aval_of(self._x)
        fill = _default_fill(aval.dtype) if fill_value is None else fill_value
        shape = aval_of(out).shape
        rank = aval_of(place.inside).ndim
        kept = op.broadcast(place.inside, shape, range(place.at, place.at + rank))
        return op.select(kept, out, cast(fill, aval.dtype))

    def set(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with `values`, which broadcast, at the index."""
        return self._update("set", values, lambda old, new: new, **options)

    def add(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with `values` added at the index; repeated indices add up."""
        return self._update("add", values, op.add, **options)

    def subtract(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with `values` subtracted at the index; repeated indices add up."""
        return self._update("add", op.neg(cast(values, type_of(values).dtype)), op.add, **options)

    def multiply(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with the elements at the index multiplied by `values`."""
        return self._update("mul", values, op.mul, **options)

    def mul(self, values: ArrayLike, **options: Any) -> Array:
        """:meth:`multiply`."""
        return self.multiply(values, **options)

    def divide(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with the elements at the index divided by `values`."""
        aval = aval_of(self._x)
        ones = op.full(aval.shape, 1, aval.dtype)
        return op.div(self._x, IndexedUpdate(ones, self._index).multiply(values, **options))

    def power(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x with the elements at the index raised to `values`."""
        aval = aval_of(self._x)
        ones = op.full(aval.shape, 1, aval.dtype)
        return op.pow(self._x, IndexedUpdate(ones, self._index).multiply(values, **options))

    def max(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x where the elements at the index are at least `values`."""
        return self._update("max", values, op.max, **options)

    def min(self, values: ArrayLike, **options: Any) -> Array:
        """A copy of x where the elements at the index are at most `values`."""
        return self._update("min", values, op.min, **options)

    def apply(self, function: Callable[[Array], Array], **options: Any) -> Array:
        """A copy of x with `function` applied once to each element at the index."""
        return self.set(function(indexing.getitem(self._x, self._index)), **options)

    def _update(
        self,
        kind: str,
        values: ArrayLike,
        combine: Callable[[Array, Array], Array],
        *,
        mode: str | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Array:
        mode = _checked_mode(mode)
        if indexing.is_mask(self._index):
            return self._masked(values, combine)
        parsed = indexing._parse(aval_of(self._x).shape, self._index)
        if all(axis.array is None for axis in parsed.axes):
            inside, spread = self._placed(parsed, values)
            if kind == "add":
                return op.add(self._x, spread)
            return op.select(inside, combine(self._x, spread), self._x)
        place = _Place(self._x, self._index, mode)
        aval = aval_of(self._x)
        update = place.arranged(storable(values, aval), values)
        unique = unique_indices or all(aval_of(i).ndim == 0 for i in place.indices)
        if place.is_plain and kind == "add":  # one axis: the lowering that keeps the layout
            (axis,), rank = place.axes, len(place.shape)
            shape = list(op.shape_of(update))  # [*index, *before, 1, *after]
            del shape[rank + axis]
            before, after = range(rank, rank + axis), range(rank + axis, len(shape))
            moved = op.transpose(op.reshape(update, shape), (*before, *range(rank), *after))
            return op.scatter_add(self._x, place.indices[0], moved, axis)
        return op.scatter(self._x, place.indices, update, place.axes, kind, 0, unique)

    def _masked(self, values: ArrayLike, combine: Callable[[Array, Array], Array]) -> Array:
        """An update where a bool array holds: values are repeated, so their count is no matter.

        Raises:
            ShapeError: the mask does not fit, or there is a value per chosen element.
        """
        mask = np.asarray(self._index) if isinstance(self._index, list) else self._index
        aval, own = aval_of(self._x), aval_of(mask)
        rest = aval.shape[own.ndim :]
        given = type_of(values)
        fits = own.ndim <= aval.ndim and all(
            map(structurally_equal, own.shape, aval.shape[: own.ndim])
        )
        if not fits or given.ndim > len(rest):
            known = not indexing.is_traced(mask)
            if fits and known:
                places = tuple(p.astype(np.int32) for p in np.nonzero(np.asarray(mask)))
                update = IndexedUpdate(self._x, places)
                return update._update(_KIND_OF[combine], values, combine)
            raise ShapeError(
                message(
                    f"at[...] of {aval} with the mask {own} got values {given}",
                    None,
                    "Give a mask of the leading sizes and values that repeat, or use where",
                )
            )
        spread = spread_to(storable(values, aval), aval.shape)
        kept = op.broadcast(mask, aval.shape, range(own.ndim))
        return op.select(kept, combine(self._x, spread), self._x)

    def _placed(self, parsed: indexing._Index, values: ArrayLike) -> tuple[Array, Array]:
        """(where the index points, the values at their places and zeros elsewhere)."""
        aval = aval_of(self._x)
        values = storable(values, aval)
        counts = [slice_count(axis.start, axis.limit, axis.stride) for axis in parsed.axes]
        region = [c for c, axis in zip(counts, parsed.axes, strict=True) if not axis.drop]
        with_new = list(region)
        kept = [not axis.drop for axis in parsed.axes]
        for at in reversed(parsed.new_axes):
            with_new.insert(builtins.sum(kept[:at]), 1)
        target = tuple(with_new)
        shape = broadcast_shape("at[...]", [type_of(values).shape, target], (values, self._x))
        if len(shape) != len(target) or not all(map(structurally_equal, shape, target)):
            raise ShapeError(
                message(
                    f"Values {type_of(values)} do not fit into the indexed part "
                    f"({','.join(map(str, target))}) of {aval}",
                    None,
                    "Use values that broadcast to it",
                )
            )
        update = op.reshape(spread_to(values, target), counts)
        update = op.reverse(update, [i for i, axis in enumerate(parsed.axes) if axis.reverse])
        low = [axis.start for axis in parsed.axes]
        interior = [axis.stride - 1 for axis in parsed.axes]
        high: list[Size] = []
        for axis, count, size in zip(parsed.axes, counts, aval.shape, strict=True):
            end: Size = axis.start
            if not structurally_equal(count, 0):
                end = axis.start + (count - 1) * axis.stride + 1
            high.append(size - end)
        inside = op.pad(op.full(counts, True), False, low, high, interior)
        return inside, op.pad(update, 0, low, high, interior)


_KIND_OF: dict[Any, str] = {op.add: "add", op.mul: "mul", op.max: "max", op.min: "min"}


class _Place:
    """An index with arrays as windows: index arrays, their axes, and how values are arranged.

    Args:
        x: the array.
        index: what stands between the brackets.
        mode: "clip" moves indices inside.

    Attributes:
        indices: int32 arrays of one shape.
        axes: the axis each is for.
        inside: where the given index arrays point into x, of their common shape.
        at: position of the common axes in ``x[index]``.
    """

    def __init__(self, x: Array, index: Any, mode: str | None) -> None:
        aval = aval_of(x)
        self.parsed = parsed = indexing._parse(aval.shape, index)
        if parsed.new_axes:
            raise UnsupportedError(
                message("at[...] with None and index arrays", None, "Leave out None")
            )
        arrays = [i for i, axis in enumerate(parsed.axes) if axis.array is not None]
        given = [parsed.axes[i].array for i in arrays]
        common = (
            broadcast_shape("at[...]", [aval_of(i).shape for i in given], given) if given else ()
        )
        self.common = common
        self.inside: Array = None
        spread: dict[int, Array] = {}
        for i, item in zip(arrays, given, strict=True):
            last = op.sub(op.dim_size(aval.shape[i]), 1)
            item = spread_to(item, common)
            here = op.bitwise_and(op.ge(item, 0), op.le(item, last))
            self.inside = here if self.inside is None else op.bitwise_and(self.inside, here)
            spread[i] = op.clamp(np.int32(0), item, last) if mode == "clip" else item
        counts = [slice_count(axis.start, axis.limit, axis.stride) for axis in parsed.axes]
        # Slices that cut are indexed element by element, on axes behind those of the arrays.
        cut = [
            i
            for i, (axis, size) in enumerate(zip(parsed.axes, aval.shape, strict=True))
            if axis.array is None
            and not axis.drop
            and not (structurally_equal(counts[i], size) and axis.stride == 1)
        ]
        self.shape = (*common, *(counts[i] for i in cut))
        self.indices: list[Array] = []
        self.axes: list[int] = []
        self.sizes: list[Size] = []
        for i, axis in enumerate(parsed.axes):
            if axis.array is not None:
                made = op.broadcast(spread[i], self.shape, range(len(common)))
            elif axis.drop:
                made = op.full(self.shape, op.dim_size(axis.start))
            elif i in cut:
                made = op.iota(self.shape, len(common) + cut.index(i))
                made = op.add(op.mul(made, axis.stride), op.dim_size(axis.start))
            else:
                self.sizes.append(aval.shape[i])
                continue
            self.sizes.append(1)
            self.indices.append(made)
            self.axes.append(i)
        self._counts = counts
        self._cut = cut
        self.at = 0
        if arrays and indexing._adjacent(parsed, arrays):
            self.at = builtins.sum(not axis.drop for axis in parsed.axes[: arrays[0]])
        self.is_plain = len(arrays) == 1 and not cut and self.axes == arrays

    def arranged(self, values: Array, shown: ArrayLike) -> Array:
        """Values, broadcast to the shape of ``x[index]``, as ``[*index shape, *window]``."""
        parsed = self.parsed
        kept = [i for i, a in enumerate(parsed.axes) if a.array is None and not a.drop]
        before = [i for i in kept if _position(parsed, i) < self.at]
        after = [i for i in kept if i not in before]
        target: list[Size] = [
            *(self._counts[i] for i in before), *self.common, *(self._counts[i] for i in after)
        ]  # fmt: skip
        wanted = tuple(target)
        shape = broadcast_shape("at[...]", [type_of(shown).shape, wanted], (shown, values))
        if len(shape) != len(wanted) or not all(map(structurally_equal, shape, wanted)):
            raise ShapeError(
                message(
                    f"Values {type_of(shown)} do not fit into the indexed part "
                    f"({','.join(map(str, wanted))})",
                    None,
                    "Use values that broadcast to it",
                )
            )
        values = op.reshape(spread_to(values, wanted), target)
        order = {i: n for n, i in enumerate(before)}
        ahead = len(before) + len(self.common)
        order |= {i: ahead + n for n, i in enumerate(after)}
        backwards = [order[i] for i in kept if parsed.axes[i].reverse]
        values = op.reverse(values, backwards)
        whole = [i for i in kept if i not in self._cut]
        values = op.transpose(
            values,
            [
                *range(len(before), ahead),
                *(order[i] for i in self._cut),
                *(order[i] for i in whole),
            ],
        )
        return op.reshape(values, (*self.shape, *self.sizes))


def _position(parsed: indexing._Index, axis: int) -> int:
    """Position of a kept axis among kept axes in front of the first index array; else past all."""
    arrays = [i for i, a in enumerate(parsed.axes) if a.array is not None]
    if arrays and axis > arrays[0]:
        return len(parsed.axes)
    return builtins.sum(not a.drop for a in parsed.axes[:axis])


def _checked_mode(mode: str | None) -> str | None:
    if mode is not None and mode not in _MODES:
        raise ValueError(
            message(f"mode={mode!r} is unknown", None, f"Use one of {', '.join(_MODES)}")
        )
    return mode


def _default_fill(dtype: np.dtype[Any]) -> Any:
    if dtypes.is_inexact(dtype):
        return float("nan")
    if dtypes.is_bool(dtype):
        return True
    low, high = dtypes.integer_range(dtype)
    return high if dtypes.is_unsigned_integer(dtype) else low


def storable(values: ArrayLike, aval: Aval) -> Array:
    """`values` in the dtype of the array they go into.

    Raises:
        DTypeError: they are of a higher kind (floats into integers), so that something would go.
    """
    own = type_of(values)
    if _kind(own.dtype) > _kind(aval.dtype):
        raise DTypeError(
            message(
                f"Values {own} do not go into {aval} without loss",
                None,
                f"Cast the values to {dtypes.short_name(aval.dtype)}, or the array, with astype",
            )
        )
    return cast(values, aval.dtype)


def _kind(dtype: np.dtype[Any]) -> int:
    kinds = (dtypes.is_bool, dtypes.is_integer, dtypes.is_float, dtypes.is_complex)
    return [test(dtype) for test in kinds].index(True)


def slice_count(start: Size, limit: Size, stride: int) -> Size:
    """Number of elements of ``[start:limit:stride]``."""
    return limit - start if stride == 1 else (limit - start + stride - 1) // stride
