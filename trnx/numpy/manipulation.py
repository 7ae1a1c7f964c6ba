"""Shapes: reshape, move axes, join, split, repeat, pad."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Dim,
    ShapeError,
    Size,
    Tracer,
    aval_of,
    dtypes,
    message,
    same_shape,
    structurally_equal,
)
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_operand,
    broadcast_shape,
    cast,
    normal_axes,
    normal_axis,
    normal_shape,
    promote,
    spread_to,
    type_of,
)
from trnx.ops import functions as op
from trnx.runtime.array import Array as RuntimeArray


def shape(x: ArrayLike) -> tuple[Size, ...]:
    """Sizes of the axes."""
    return type_of(x).shape


def ndim(x: ArrayLike) -> int:
    """Number of axes."""
    return type_of(x).ndim


def size(x: ArrayLike) -> Size:
    """Number of elements."""
    return type_of(x).size


def reshape(x: ArrayLike, shape: Any, *rest: Any) -> Array:
    """The elements of `x` in row-major order under another shape; one size may be -1.

    Raises:
        ShapeError: the number of elements differs.
    """
    x = as_operand(x)
    aval = aval_of(x)
    given = (
        (shape, *rest) if rest or isinstance(shape, Dim) or hasattr(shape, "__index__") else shape
    )
    unknown = [i for i, s in enumerate(given) if not isinstance(s, Dim) and operator.index(s) == -1]
    if len(unknown) > 1:
        raise ShapeError(
            message(f"reshape of {aval} to {tuple(given)}", None, "Only one size can be -1")
        )
    known = normal_shape("reshape", [1 if i in unknown else s for i, s in enumerate(given)])
    if unknown:
        product = Aval(known, aval.dtype).size
        fits = not structurally_equal(product, 0) and structurally_equal(aval.size % product, 0)
        if not fits:
            raise _reshape_error(aval, given)
        known = (*known[: unknown[0]], aval.size // product, *known[unknown[0] + 1 :])
    if not structurally_equal(Aval(known, aval.dtype).size, aval.size):
        raise _reshape_error(aval, given)
    return op.reshape(x, known)


def _reshape_error(aval: Aval, given: Sequence[Any]) -> ShapeError:
    text = ",".join(map(str, given))
    return ShapeError(
        message(
            f"reshape of {aval}, which has {aval.size} elements, to ({text})",
            None,
            "Use a shape with as many elements",
        )
    )


def ravel(x: ArrayLike) -> Array:
    """`x` with one axis."""
    return op.reshape(as_operand(x), (type_of(x).size,))


def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Axes in another order: axis i of the result is ``axes[i]`` of `x` (None: reversed)."""
    x = as_operand(x)
    aval = aval_of(x)
    if axes is None:
        return op.transpose(x, range(aval.ndim - 1, -1, -1))
    order = [normal_axis("transpose", axis, aval) for axis in axes]
    if sorted(order) != list(range(aval.ndim)):
        raise ShapeError(
            message(f"transpose of {aval} got axes {tuple(axes)}", None, "Name every axis once")
        )
    return op.transpose(x, order)


permute_dims = transpose


def matrix_transpose(x: ArrayLike) -> Array:
    """The last two axes exchanged."""
    return swapaxes(x, -1, -2)


def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Array:
    """Two axes exchanged."""
    aval = type_of(x)
    a, b = normal_axis("swapaxes", axis1, aval), normal_axis("swapaxes", axis2, aval)
    order = list(range(aval.ndim))
    order[a], order[b] = b, a
    return op.transpose(x, order)


def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Axes moved from `source` to `destination`; the others keep their order."""
    aval = type_of(x)
    sources = [source] if isinstance(source, int) else list(source)
    destinations = [destination] if isinstance(destination, int) else list(destination)
    if len(sources) != len(destinations):
        raise ShapeError(
            message(
                f"moveaxis from {source} to {destination}", None, "Name as many axes on both sides"
            )
        )
    origin = [normal_axis("moveaxis", a, aval) for a in sources]
    target = [normal_axis("moveaxis", a, aval) for a in destinations]
    order = [a for a in range(aval.ndim) if a not in origin]
    for to, a in sorted(zip(target, origin, strict=True)):
        order.insert(to, a)
    if len(order) != aval.ndim:
        raise ShapeError(message(f"moveaxis of {aval} from {source}", None, "Name each axis once"))
    return op.transpose(x, order)


def squeeze(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """`x` without axes of size 1: all of them, or those in `axis`.

    Raises:
        ShapeError: an axis in `axis` has another size.
    """
    aval = type_of(x)
    if axis is None:
        axes = tuple(i for i, s in enumerate(aval.shape) if isinstance(s, int) and s == 1)
    else:
        axes = normal_axes("squeeze", axis, aval)
    for a in axes:
        if not structurally_equal(aval.shape[a], 1):
            raise ShapeError(
                message(
                    f"squeeze of {aval} along axis {a}, whose size is {aval.shape[a]}",
                    None,
                    "Only axes of size 1 can go",
                )
            )
    return op.reshape(as_operand(x), [s for i, s in enumerate(aval.shape) if i not in axes])


def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """`x` with new axes of size 1 at the places `axis` of the result."""
    aval = type_of(x)
    given = [axis] if isinstance(axis, int) else list(axis)
    places = {normal_axis("expand_dims", a, aval, len(given)) for a in given}
    if len(places) != len(given):
        raise ShapeError(message(f"expand_dims at {axis}", None, "Name each axis once"))
    sizes = iter(aval.shape)
    rank = aval.ndim + len(given)
    return op.reshape(as_operand(x), [1 if i in places else next(sizes) for i in range(rank)])


def broadcast_to(x: ArrayLike, shape: Any) -> Array:
    """`x` repeated to `shape`.

    Raises:
        ShapeError: `x` does not broadcast to it.
    """
    sizes = normal_shape("broadcast_to", shape)
    own = type_of(x).shape
    if len(own) > len(sizes) or not same_shape(
        broadcast_shape("broadcast_to", [own, sizes], [x]), sizes
    ):
        raise ShapeError(
            message(
                f"broadcast_to of {type_of(x)} to ({','.join(map(str, sizes))})",
                None,
                "Only axes of size 1 and new leading axes are repeated",
            )
        )
    return spread_to(as_operand(x), sizes)


def broadcast_arrays(*arrays: ArrayLike) -> list[Array]:
    """The arrays repeated to their common shape."""
    common = broadcast_shape("broadcast_arrays", [type_of(x).shape for x in arrays], arrays)
    return [spread_to(as_operand(x), common) for x in arrays]


def _joined(name: str, arrays: Any) -> list[Array]:
    if isinstance(arrays, list | tuple):
        parts = list(arrays)
    else:  # an array: its rows
        parts = list(unstack(arrays))
    if not parts:
        raise ShapeError(message(f"{name} of no arrays", None, "Pass at least one"))
    return promote(name, *parts)


def concatenate(arrays: Any, axis: int | None = 0) -> Array:
    """Arrays joined along an existing axis (None: flattened first).

    Raises:
        ShapeError: other axes differ, or an array has no axes.
    """
    parts = _joined("concatenate", arrays)
    if axis is None:
        return op.concatenate([ravel(p) for p in parts], 0)
    first = aval_of(parts[0])
    number = normal_axis("concatenate", axis, first)
    for part in parts[1:]:
        other = aval_of(part)
        fits = other.ndim == first.ndim and same_shape(
            _dropped(other.shape, number), _dropped(first.shape, number)
        )
        if not fits:
            raise ShapeError(
                message(
                    f"concatenate of {' and '.join(str(aval_of(p)) for p in parts)} "
                    f"along axis {number}",
                    None,
                    "All other axes must have equal sizes",
                )
            )
    return op.concatenate(parts, number)


concat = concatenate


def _dropped(sizes: tuple[Size, ...], axis: int) -> tuple[Size, ...]:
    return sizes[:axis] + sizes[axis + 1 :]


def stack(arrays: Any, axis: int = 0) -> Array:
    """Arrays of one shape joined along a new axis.

    Raises:
        ShapeError: the shapes differ.
    """
    parts = _joined("stack", arrays)
    first = aval_of(parts[0])
    for part in parts[1:]:
        if not same_shape(aval_of(part).shape, first.shape):
            raise ShapeError(
                message(
                    f"stack of {' and '.join(str(aval_of(p)) for p in parts)}",
                    None,
                    "All arrays must have one shape",
                )
            )
    number = normal_axis("stack", axis, first, 1)
    return op.concatenate([op.expand(p, number) for p in parts], number)


def _at_least(x: ArrayLike, rank: int) -> Array:
    own = type_of(x).shape
    return op.reshape(as_operand(x), (1,) * (rank - len(own)) + own) if len(own) < rank else x


def atleast_1d(x: ArrayLike) -> Array:
    """`x` with at least one axis."""
    return _at_least(x, 1)


def atleast_2d(x: ArrayLike) -> Array:
    """`x` with at least two axes; new ones come first."""
    return _at_least(x, 2)


def hstack(arrays: Any) -> Array:
    """Arrays joined along the second axis, vectors along the first."""
    parts = [_at_least(p, 1) for p in arrays]
    return concatenate(parts, 0 if ndim(parts[0]) == 1 else 1)


def vstack(arrays: Any) -> Array:
    """Arrays joined along the first axis, vectors as rows."""
    return concatenate([_at_least(p, 2) for p in arrays], 0)


def split(x: ArrayLike, indices_or_sections: int | Sequence[Size], axis: int = 0) -> list[Array]:
    """`x` cut along `axis`: into equal parts (an int), or before each index (a sequence).

    Raises:
        ShapeError: the axis does not divide into that many parts.
    """
    aval = type_of(x)
    number = normal_axis("split", axis, aval)
    total = aval.shape[number]
    if isinstance(indices_or_sections, list | tuple | np.ndarray):
        cuts = [0, *indices_or_sections, total]
    else:
        if isinstance(total, Dim):
            raise ShapeError(
                message(f"split of {aval} along the symbolic axis {number}", None, "Give indices")
            )
        parts = operator.index(indices_or_sections)  # type: ignore[arg-type]
        if parts < 1 or total % parts:
            raise ShapeError(
                message(
                    f"split of {aval} along axis {number} into {parts} equal parts",
                    None,
                    "Use a divisor of the size, or give indices",
                )
            )
        cuts = list(range(0, total + 1, total // parts)) if total else [0] * (parts + 1)
    return [op.slice_axis(x, low, high, number) for low, high in itertools.pairwise(cuts)]


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """The slices of `x` along `axis`, without it."""
    number = normal_axis("unstack", axis, type_of(x))
    parts = split(x, int(type_of(x).shape[number]), number)
    return tuple(squeeze(part, number) for part in parts)


def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Elements in reverse order along `axis` (None: all axes)."""
    return op.reverse(as_operand(x), normal_axes("flip", axis, type_of(x)))


def roll(
    x: ArrayLike, shift: ArrayLike | Sequence[int], axis: int | Sequence[int] | None = None
) -> Array:
    """Elements moved by `shift` along `axis`, those that leave come in again; None: flattened.

    A sequence of axes takes a shift for all, or one for each. A shift may be traced.
    """
    aval = type_of(x)
    if axis is None:
        return op.reshape(roll(ravel(x), shift, 0), aval.shape)
    if not isinstance(axis, int):
        shifts = list(shift) if isinstance(shift, Sequence) else [shift] * len(axis)
        for one, along in zip(shifts, axis, strict=True):
            x = roll(x, one, along)
        return as_operand(x)
    number = normal_axis("roll", axis, aval)
    total = aval.shape[number]
    if isinstance(shift, Tracer | RuntimeArray):
        place = op.sub(op.iota((total,), 0), op.convert(shift, dtypes.int32))
        return op.take(as_operand(x), op.remainder(place, op.dim_size(total)), number)
    assert not isinstance(shift, Sequence)
    cut: Size = -operator.index(shift)
    if isinstance(total, Dim):  # the bounds must show that the shift is shorter than the axis
        cut = cut if shift <= 0 else total - shift
    else:
        cut = cut % total if total else 0
    if structurally_equal(cut, 0):
        return as_operand(x)
    parts = [op.slice_axis(x, cut, total, number), op.slice_axis(x, 0, cut, number)]
    return op.concatenate(parts, number)


def repeat(x: ArrayLike, repeats: int, axis: int | None = None) -> Array:
    """Each element `repeats` times in a row along `axis` (None: of the flattened array)."""
    if axis is None:
        return repeat(ravel(x), repeats, 0)
    aval = type_of(x)
    number = normal_axis("repeat", axis, aval)
    spread = op.expand(as_operand(x), number + 1, operator.index(repeats))
    sizes = list(aval.shape)
    sizes[number] = sizes[number] * repeats
    return op.reshape(spread, sizes)


def tile(x: ArrayLike, reps: int | Sequence[int]) -> Array:
    """The whole array repeated ``reps[i]`` times along axis i; the last entry is the last axis."""
    counts = [reps] if isinstance(reps, int) else list(reps)
    x = _at_least(as_operand(x), len(counts))
    own = aval_of(x).shape
    counts = [1] * (len(own) - len(counts)) + counts
    shape: list[Size] = []
    for count, s in zip(counts, own, strict=True):
        shape += [count, s]
    spread = op.broadcast(x, shape, range(1, 2 * len(own), 2))
    return op.reshape(spread, [c * s for c, s in zip(counts, own, strict=True)])


def pad(x: ArrayLike, pad_width: Any, constant_values: ArrayLike = 0) -> Array:
    """A constant put around `x`.

    Args:
        x: array.
        pad_width: ``(before, after)`` per axis, one such pair for all, or one int for all sides.
        constant_values: a scalar.
    """
    aval = type_of(x)
    widths = np.broadcast_to(np.asarray(pad_width, dtype=int), (aval.ndim, 2)).tolist()
    low, high = [w[0] for w in widths], [w[1] for w in widths]
    return op.pad(as_operand(x), cast(constant_values, aval.dtype), low, high)


def meshgrid(*arrays: ArrayLike, indexing: str = "xy") -> list[Array]:
    """Coordinate arrays of a grid; ``"xy"`` exchanges the first two axes, ``"ij"`` does not."""
    if indexing not in ("xy", "ij"):
        raise ValueError(message(f"meshgrid got indexing={indexing!r}", None, "Use 'xy' or 'ij'"))
    swapped = indexing == "xy" and len(arrays) > 1
    order = [1, 0, *range(2, len(arrays))] if swapped else list(range(len(arrays)))
    sizes = [type_of(arrays[i]).size for i in order]
    return [op.broadcast(ravel(x), sizes, (order.index(i),)) for i, x in enumerate(arrays)]
