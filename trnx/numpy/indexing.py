"""Indexing: ``x[...]``, `take` and `take_along_axis`; `updates` has ``x.at[...]``.

A static index out of range raises. A dynamic one (an array) counts from the end when negative and
is then clamped to the axis on reading, dropped on writing; the gradient agrees.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import (
    BoundsError,
    Dim,
    DTypeError,
    ShapeError,
    Size,
    Tracer,
    UnsupportedError,
    aval_of,
    dtypes,
    is_array_like,
    message,
    structurally_equal,
)
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_operand,
    broadcast_shape,
    cast,
    normal_axis,
    spread_to,
    type_of,
)
from trnx.ops import functions as op
from trnx.runtime.array import Array as RuntimeArray

_NEWAXIS = None


@dataclass(slots=True)
class _Axis:
    """What an index does to one axis of the array.

    `array` is a dynamic or array index; else ``[start:limit:stride]`` of the axis, reversed when
    `reverse`, and dropped afterwards when `drop`.
    """

    start: Size
    limit: Size
    stride: int = 1
    reverse: bool = False
    drop: bool = False
    array: Any = None


@dataclass(slots=True)
class _Index:
    """A normalised index: one entry per axis, and where new axes go among them."""

    axes: list[_Axis]
    new_axes: list[int]  # number of array axes in front of each new axis


def getitem(x: Array, index: Any) -> Array:
    """``x[index]``: ints, slices, None, ``...``, integer arrays, bool arrays of known values.

    Raises:
        BoundsError: a static int out of range, or too many indices.
        DTypeError: a float array as index, or a traced bool array, whose count nobody knows.
    """
    aval = aval_of(x)
    parsed = _parse(aval.shape, index)
    out = _basic(x, parsed)
    arrays = [i for i, axis in enumerate(parsed.axes) if axis.array is not None]
    if arrays:
        out = _advanced(out, parsed, arrays)
    return _new_axes(out, parsed, arrays)


# ---------------------------------------------------------------- parsing
def _parse(shape: tuple[Size, ...], index: Any) -> _Index:
    items = _without_masks(list(index) if isinstance(index, tuple) else [index], shape)
    used = sum(item is not _NEWAXIS and item is not Ellipsis for item in items)
    if used > len(shape) or builtins.sum(item is Ellipsis for item in items) > 1:
        raise BoundsError(
            message(
                f"An array with {len(shape)} axes got {used} indices",
                None,
                "Use at most one index per axis and one ellipsis",
            )
        )
    if not any(item is Ellipsis for item in items):
        items.append(Ellipsis)
    axes: list[_Axis] = []
    new_axes: list[int] = []
    for item in items:
        if item is _NEWAXIS:
            new_axes.append(len(axes))
        elif item is Ellipsis:
            for size in shape[len(axes) : len(axes) + len(shape) - used]:
                axes.append(_Axis(0, size))
        else:
            axes.append(_parse_one(item, shape[len(axes)], len(axes)))
    return _Index(axes, new_axes)


def is_mask(item: Any) -> bool:
    """Whether an index is a bool array with axes."""
    if isinstance(item, list):
        item = np.asarray(item)
    if not isinstance(item, Tracer | RuntimeArray | np.ndarray):
        return False
    aval = aval_of(item)
    return dtypes.is_bool(aval.dtype) and aval.ndim > 0


def is_traced(item: Any) -> bool:
    """Whether nobody knows the values of an index yet."""
    return isinstance(item, Tracer)


def _without_masks(items: list[Any], shape: tuple[Size, ...]) -> list[Any]:
    """Bool arrays of known values as the places where they hold, one index array per axis.

    Raises:
        BoundsError: a mask's sizes are not those of the axes it stands for.
    """
    if not any(map(is_mask, items)):
        return items
    found: list[Any] = []
    for item in items:
        if not is_mask(item):
            found.append(item)
            continue
        if isinstance(item, Tracer):
            raise _not_an_index(item)
        mask = np.asarray(item)
        if not any(other is Ellipsis for other in found):
            start = builtins.sum(other is not _NEWAXIS for other in found)
            own = shape[start : start + mask.ndim]
            if len(own) != mask.ndim or any(
                isinstance(size, int) and size != n for size, n in zip(own, mask.shape, strict=True)
            ):
                raise BoundsError(
                    message(
                        f"A bool index of shape {mask.shape} stands for axes of sizes {own}",
                        None,
                        "Give the mask the sizes of these axes",
                    )
                )
        found += [place.astype(np.int32) for place in np.nonzero(mask)]
    return found


def _parse_one(item: Any, size: Size, axis: int) -> _Axis:
    if isinstance(item, builtins.slice):
        return _parse_slice(item, size, axis)
    if isinstance(item, Tracer | RuntimeArray):
        return _Axis(0, size, array=_dynamic(item, size))
    if isinstance(item, list | np.ndarray):
        return _Axis(0, size, array=_static_array(np.asarray(item), size, axis))
    if isinstance(item, bool | np.bool_):
        raise _not_an_index(item)
    if isinstance(item, Dim):
        start = _from_end(item, size)
        return _Axis(start, start + 1, drop=True)
    try:
        number = operator.index(item)
    except TypeError:
        raise _not_an_index(item) from None
    start = _checked(number, size, axis)
    return _Axis(start, start + 1, drop=True)


def _not_an_index(item: Any) -> DTypeError:
    what = str(aval_of(item)) if is_array_like(item) else type(item).__name__
    return DTypeError(
        message(
            f"{what} cannot be an index",
            None,
            "Use ints, slices, None, ... or integer arrays; choose by a bool mask with where",
        )
    )


def _checked(number: int, size: Size, axis: int) -> Size:
    if isinstance(size, int) and not -size <= number < size:
        raise BoundsError(
            message(
                f"Index {number} is out of range for axis {axis} of size {size}",
                None,
                f"Use an index from {-size} to {size - 1}" if size else "The axis is empty",
            )
        )
    place = _from_end(number, size)
    if not (place >= 0 and place < size):
        raise BoundsError(
            message(
                f"Index {number} may be out of range for axis {axis}", None, "Raise its minimum"
            )
        )
    return place


def _from_end(number: Size, size: Size) -> Size:
    return number + size if isinstance(number, int) and number < 0 else number


def _bound(value: Any, size: Size, default: Size) -> Size:
    """A slice bound held inside [0, size]; a bound past a static end is cut, as in Python."""
    if value is None:
        return default
    number = value if isinstance(value, Dim) else operator.index(value)
    place = _from_end(number, size)
    if isinstance(place, int) and isinstance(size, int):
        return min(max(place, 0), size)
    return place


def _parse_slice(item: builtins.slice, size: Size, axis: int) -> _Axis:
    for part in (item.start, item.stop, item.step):
        if isinstance(part, Tracer):
            raise UnsupportedError(
                message(
                    f"A slice of axis {axis} has the traced bound {aval_of(part)}, so its size is "
                    "unknown",
                    None,
                    "Use static bounds, or take with an index array of static size",
                )
            )
    step = 1 if item.step is None else operator.index(item.step)
    if step == 0:
        raise BoundsError(message("A slice has step 0", None, "Use another step"))
    if step > 0:
        start, limit = _bound(item.start, size, 0), _bound(item.stop, size, size)
        if isinstance(start, int) and isinstance(limit, int) and limit < start:
            limit = start
        return _Axis(start, limit, step)
    # Backwards: the elements first, first + step, … above the stop, taken forwards and reversed.
    if not isinstance(size, int):
        if item.start is None and item.stop is None and step == -1:
            return _Axis(0, size, reverse=True)
        raise UnsupportedError(
            message(f"A backward slice of the symbolic axis {axis}", None, "Use flip and a slice")
        )
    first, stop, _ = item.indices(size)
    count = max(0, (first - stop + (-step) - 1) // -step)
    if count == 0:
        return _Axis(0, 0)
    last = first + (count - 1) * step
    return _Axis(last, first + 1, -step, reverse=True)


def _integers(array: Any) -> Array:
    aval = type_of(array)
    if not dtypes.is_integer(aval.dtype):
        raise _not_an_index(array)
    return array


def _static_array(item: np.ndarray[Any, Any], size: Size, axis: int) -> Array:
    if item.size == 0 and item.dtype == np.float64:
        item = item.astype(np.int32)
    _integers(item)
    if isinstance(size, int) and item.size:
        for extreme in (int(item.min()), int(item.max())):
            _checked(extreme, size, axis)
        return np.where(item < 0, item + size, item).astype(np.int32)
    return _dynamic(item.astype(np.int32), size)


def narrowed(item: ArrayLike) -> Array:
    """Integers as int32; what int32 cannot hold becomes its nearest end, so stays out of range."""
    index = _integers(item)
    dtype = type_of(index).dtype
    if dtypes.is_unsigned_integer(dtype) or dtype.itemsize > 4:
        index = op.min(index, min(dtypes.integer_range(dtype)[1], 2**31 - 1))
        if not dtypes.is_unsigned_integer(dtype):
            index = op.max(index, -(2**31))
    return cast(index, dtypes.int32)


def _dynamic(item: Any, size: Size) -> Array:
    """int32 indices, with negative ones counted from the end."""
    index = narrowed(item)
    if dtypes.is_unsigned_integer(type_of(item).dtype):
        return index
    return op.select(op.lt(index, 0), op.add(index, op.dim_size(size)), index)


# ---------------------------------------------------------------- reading
def _basic(x: Array, parsed: _Index) -> Array:
    """Slices, reversals and dropped axes; axes with an index array stay whole."""
    shape = aval_of(x).shape
    whole = all(
        axis.stride == 1
        and structurally_equal(axis.start, 0)
        and structurally_equal(axis.limit, size)
        for axis, size in zip(parsed.axes, shape, strict=True)
    )
    if not whole:
        x = op.slice(
            x,
            [axis.start for axis in parsed.axes],
            [axis.limit for axis in parsed.axes],
            [axis.stride for axis in parsed.axes],
        )
    x = op.reverse(x, [i for i, axis in enumerate(parsed.axes) if axis.reverse])
    if any(axis.drop for axis in parsed.axes):
        sizes = aval_of(x).shape
        x = op.reshape(x, [s for s, axis in zip(sizes, parsed.axes, strict=True) if not axis.drop])
    return x


def _advanced(x: Array, parsed: _Index, arrays: list[int]) -> Array:
    """Index arrays: the axes they index become one, which `take` reads."""
    indices = [parsed.axes[i].array for i in arrays]
    places = [i - sum(axis.drop for axis in parsed.axes[:i]) for i in arrays]
    if len(arrays) == 1:
        at = places[0] if _adjacent(parsed, arrays) else 0
        return op.take(op.moveaxis(x, places[0], at), indices[0], at)
    common = broadcast_shape("index", [aval_of(i).shape for i in indices], indices)
    shape = aval_of(x).shape
    at = places[0] if _adjacent(parsed, arrays) else 0
    order = [i for i in range(len(shape)) if i not in places]
    order[at:at] = places
    x = op.transpose(x, order)
    sizes = [shape[i] for i in places]
    flat = _flat_index(indices, sizes, common, clamp=True)
    total: Size = 1
    for size in sizes:
        total = total * size
    now = aval_of(x).shape
    x = op.reshape(x, (*now[:at], total, *now[at + len(places) :]))
    return op.take(x, flat, at)


def _adjacent(parsed: _Index, arrays: list[int]) -> bool:
    """NumPy's rule: index arrays side by side keep their place, others move to the front.

    A static int counts as an index array.
    """
    chosen = [i for i, axis in enumerate(parsed.axes) if i in arrays or axis.drop]
    new_inside = any(chosen[0] < at <= chosen[-1] for at in parsed.new_axes)
    return not new_inside and chosen == list(range(chosen[0], chosen[-1] + 1))


def _flat_index(
    indices: Sequence[Array], sizes: Sequence[Size], common: tuple[Size, ...], clamp: bool
) -> Array:
    """One index into the row-major product of several axes; out of range: clamped, or -1."""
    flat: Array = None
    valid: Array = None
    for index, size in zip(indices, sizes, strict=True):
        last = op.sub(op.dim_size(size), 1) if isinstance(size, Dim) else np.int32(size - 1)
        index = spread_to(index, common)
        if clamp:
            index = op.clamp(np.int32(0), index, last)
        else:
            inside = op.bitwise_and(op.ge(index, 0), op.le(index, last))
            valid = inside if valid is None else op.bitwise_and(valid, inside)
        flat = index if flat is None else op.add(op.mul(flat, op.dim_size(size)), index)
    return flat if valid is None else op.select(valid, flat, -1)


def _new_axes(x: Array, parsed: _Index, arrays: list[int]) -> Array:
    if not parsed.new_axes:
        return x
    if len(arrays) > 1 or (arrays and not _adjacent(parsed, arrays)):
        raise UnsupportedError(
            message("None together with several index arrays", None, "Index twice")
        )
    # Number of axes of the result in front of each new one.
    shape = list(aval_of(x).shape)
    lengths = [
        0 if axis.drop else aval_of(axis.array).ndim if axis.array is not None else 1
        for axis in parsed.axes
    ]
    for at in reversed(parsed.new_axes):
        shape.insert(sum(lengths[:at]), 1)
    return op.reshape(x, shape)


# ---------------------------------------------------------------- functions
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Slices of `x` along `axis` (None: of the flattened array) at integer `indices`.

    Raises:
        BoundsError: a static index out of range; dynamic ones are clamped.
    """
    x = as_operand(x)
    if axis is None:
        x, axis = op.reshape(x, (aval_of(x).size,)), 0
    aval = aval_of(x)
    number = normal_axis("take", axis, aval)
    return op.take(x, _indices(indices, aval.shape[number], number), number)


def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int) -> Array:
    """``x[..., indices[..., j, ...], ...]`` along `axis`; the other axes broadcast."""
    x = as_operand(x)
    aval, index_type = aval_of(x), type_of(indices)
    number = normal_axis("take_along_axis", axis, aval)
    if index_type.ndim != aval.ndim:
        raise ShapeError(
            message(f"take_along_axis of {aval} at {index_type}", None, "Use as many axes in both")
        )
    index = _indices(indices, aval.shape[number], number)
    own = [*aval.shape[:number], 1, *aval.shape[number + 1 :]]
    other = [*index_type.shape[:number], 1, *index_type.shape[number + 1 :]]
    common = broadcast_shape("take_along_axis", [tuple(own), tuple(other)], (x, indices))
    x = spread_to(x, (*common[:number], aval.shape[number], *common[number + 1 :]))
    index = spread_to(index, (*common[:number], index_type.shape[number], *common[number + 1 :]))
    return op.take_along(x, index, number)


def _indices(indices: ArrayLike, size: Size, axis: int) -> Array:
    if isinstance(indices, Tracer | RuntimeArray):
        return _dynamic(indices, size)
    return _static_array(np.asarray(indices), size, axis)
