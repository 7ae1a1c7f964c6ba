"""Slices whose place is known at run time only.

Starts are int32 scalars, one per axis. A start that would let the slice leave the array is clamped,
on read and on write, so a slice always lies inside; that is JAX's rule for these two operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    Linear,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    Zero,
    dtypes,
    message,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import ANY, NumpyArray, check_dtypes, nbytes

Array = Any
Shape = tuple[Size, ...]
_INT32 = dtypes.int32
_TEST_DTYPES = (dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.bool_)


def _check_starts(name: str, x: Aval, starts: Sequence[Aval], sizes: Shape) -> None:
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        raise ShapeError(
            message(
                f"{name} of {x} got {len(starts)} starts and {len(sizes)} sizes",
                None,
                "Give one per axis",
            )
        )
    for start in starts:
        if start.shape or start.dtype != _INT32:
            raise DTypeError(
                message(f"{name} got the start {start}", None, "Starts are int32 scalars")
            )
    for axis, (size, whole) in enumerate(zip(sizes, x.shape, strict=True)):
        if isinstance(size, int) and isinstance(whole, int) and not 0 <= size <= whole:
            raise ShapeError(
                message(
                    f"{name} takes {size} elements along axis {axis} of {x}",
                    None,
                    f"Use a size from 0 to {whole}",
                )
            )


def limited(start: Array, whole: Size, size: Size) -> Array:
    """A start clamped so that `size` elements from it lie inside an axis of `whole`."""
    return op.clamp(op.scalar(0, _INT32), start, op.dim_size(whole - size))


def _places(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    found = []
    for start, whole, size in zip(starts, shape, sizes, strict=True):
        low = min(max(int(start), 0), whole - size)
        found.append(slice(low, low + size))
    return tuple(found)


def _cases(*cases: tuple[tuple[int, ...], tuple[int, ...]], update: bool) -> tuple[OpCase, ...]:
    made = []
    for shape, sizes in cases:
        leading = (shape, sizes) if update else (shape,)
        params: dict[str, Any] = {} if update else {"sizes": sizes}
        count = len(leading)
        ranges = (*([None] * count), *((-2.0, size + 1.0) for size in shape))
        for dtype in _TEST_DTYPES:
            types = (*([dtype] * count), *([_INT32] * len(shape)))
            shapes = (*leading, *([()] * len(shape)))
            made.append(OpCase(shapes, params, ranges, types))
    return tuple(made)


_SHAPES = (
    ((7,), (3,)),
    ((5, 8), (2, 8)),
    ((5, 8), (5, 1)),
    ((2, 140, 3), (1, 131, 2)),
    ((5, 3), (0, 2)),
)


# ---------------------------------------------------------------- dynamic_slice
def _slice_abstract(x: Aval, *starts: Aval, sizes: Shape) -> Aval:
    check_dtypes("dynamic_slice", (x,), ANY)
    _check_starts("dynamic_slice", x, starts, sizes)
    return Aval(sizes, x.dtype, x.weak)


dynamic_slice_p = Primitive(
    "dynamic_slice",
    abstract=_slice_abstract,
    doc="A slice of static sizes from int32 starts, which are clamped so that it lies inside.",
    reference=lambda x, *starts, sizes: np.asarray(x[_places(starts, x.shape, sizes)]),
    tests=TestRecord(_cases(*_SHAPES, update=False), (dtypes.float64,), grad_order=1),
)
dynamic_slice_p.def_jvp(lambda t, x, *starts, out, sizes: op.dynamic_slice(t, starts, sizes), None)


@dynamic_slice_p.def_transpose
def _slice_transpose(ct: Array, x: Linear, *starts: Array, sizes: Shape) -> tuple[Array, ...]:
    zeros = op.zeros_like(x.aval.strong())
    return op.dynamic_update_slice(zeros, ct, starts), *([None] * len(starts))


def _gathered(
    starts: Sequence[Array], shape: Shape, sizes: Shape
) -> tuple[list[Array], tuple[int, ...]]:
    """Clamped starts of the axes where there is a choice, and these axes."""
    axes = tuple(
        a
        for a, (whole, size) in enumerate(zip(shape, sizes, strict=True))
        if not structurally_equal(whole, size)
    )
    return [limited(starts[a], shape[a], sizes[a]) for a in axes], axes


@dynamic_slice_p.def_vmap
def _slice_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, *, sizes: Shape
) -> tuple[Array, int]:
    (x, *starts), (x_dim, *start_dims) = args, dims
    if all(dim is None for dim in start_dims):
        x = op.moveaxis(x, x_dim, 0)  # type: ignore[arg-type]
        zero = op.scalar(0, _INT32)
        return op.dynamic_slice(x, [zero, *starts], (size, *sizes)), 0
    starts = [ctx.to_front(s, d, size) for s, d in zip(starts, start_dims, strict=True)]
    shape = list(op.shape_of(x))
    if x_dim is not None:
        x = op.moveaxis(x, x_dim, 0)
        del shape[x_dim]
    places, axes = _gathered(starts, tuple(shape), sizes)
    batch = 0 if x_dim is None else 1
    if not places:  # the slice is everything
        return (x, 0) if batch else (op.expand(x, 0, size), 0)
    return op.gather(x, places, [a + batch for a in axes], sizes, batch), 0


@dynamic_slice_p.def_pad
def _slice_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, sizes: Shape
) -> Array:
    x, *starts = args
    shape = true_shapes[0]
    low = [
        op.clamp(op.scalar(0, _INT32), start, ctx.true_size(whole - size))
        for start, whole, size in zip(starts, shape, sizes, strict=True)
    ]
    cut = list(op.shape_of(x))
    for axis, size in enumerate(sizes):
        if isinstance(size, int):
            cut[axis] = size
    first = [
        s if isinstance(n, int) else op.scalar(0, _INT32) for s, n in zip(low, sizes, strict=True)
    ]
    out = op.dynamic_slice(x, first, cut)
    for axis, size in enumerate(sizes):
        if not isinstance(size, int):  # a slice of padded size may reach beyond the buffer
            places = op.add(op.iota((ctx.padded(size),), 0), low[axis])
            out = op.take(out, places, axis)
    return out


@dynamic_slice_p.def_cost
def _slice_cost(x: Aval, *starts: Aval, sizes: Shape) -> Cost:
    out = Aval(sizes, x.dtype)
    return Cost(bytes_read=nbytes(out, *starts), bytes_written=nbytes(out))


# ---------------------------------------------------------------- dynamic_update_slice
def _update_abstract(x: Aval, update: Aval, *starts: Aval) -> Aval:
    check_dtypes("dynamic_update_slice", (x, update), ANY)
    _check_starts("dynamic_update_slice", x, starts, update.shape)
    return Aval(x.shape, x.dtype, x.weak and update.weak)


def _update_reference(x: NumpyArray, update: NumpyArray, *starts: NumpyArray) -> NumpyArray:
    out = x.copy()
    out[_places(starts, x.shape, update.shape)] = update
    return out


dynamic_update_slice_p = Primitive(
    "dynamic_update_slice",
    abstract=_update_abstract,
    doc="x with a slice from int32 starts replaced; starts are clamped so that it lies inside.",
    reference=_update_reference,
    tests=TestRecord(_cases(*_SHAPES, update=True), (dtypes.float64,), grad_order=1),
)


def instantiated(tangent: Array) -> Array:
    """A tangent as an array."""
    return op.zeros_like(tangent.aval) if isinstance(tangent, Zero) else tangent


@dynamic_update_slice_p.def_jvp_all
def _update_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    x, update, *starts = primals
    out = op.dynamic_update_slice(x, update, starts)
    x_t, update_t = map(instantiated, tangents[:2])
    return [out], [op.dynamic_update_slice(x_t, update_t, starts)]


@dynamic_update_slice_p.def_transpose
def _update_transpose(ct: Array, x: Array, update: Array, *starts: Array) -> tuple[Array, ...]:
    shape = update.aval.shape if isinstance(update, Linear) else op.shape_of(update)
    x_ct = update_ct = None
    if isinstance(x, Linear):
        zeros = op.broadcast(op.scalar(0, op.dtype_of(ct)), shape, ())
        x_ct = op.dynamic_update_slice(ct, zeros, starts)
    if isinstance(update, Linear):
        update_ct = op.dynamic_slice(ct, starts, shape)
    return x_ct, update_ct, *([None] * len(starts))


@dynamic_update_slice_p.def_vmap
def _update_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size
) -> tuple[Array, int]:
    (x, update, *starts), (x_dim, update_dim, *start_dims) = args, dims
    x, update = ctx.to_front(x, x_dim, size), ctx.to_front(update, update_dim, size)
    if all(dim is None for dim in start_dims):
        zero = op.scalar(0, _INT32)
        return op.dynamic_update_slice(x, update, [zero, *starts]), 0
    starts = [ctx.to_front(s, d, size) for s, d in zip(starts, start_dims, strict=True)]
    places, axes = _gathered(starts, op.shape_of(x)[1:], op.shape_of(update)[1:])
    if not places:
        return update, 0
    return op.scatter(x, places, update, [a + 1 for a in axes], "set", 1, unique=True), 0


@dynamic_update_slice_p.def_pad
def _update_pad(ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape]) -> Array:
    x, update, *starts = args
    shape, sizes = true_shapes[:2]
    low = [
        op.clamp(op.scalar(0, _INT32), start, ctx.true_size(whole - size))
        for start, whole, size in zip(starts, shape, sizes, strict=True)
    ]
    if any(isinstance(size, int) and size == 0 for size in sizes):
        return x
    if not any(map(ctx.is_padded, sizes)):
        return op.dynamic_update_slice(x, update, low)
    # The padding of the update must not be written: choose element by element.
    own = op.shape_of(x)
    inside: Any = None
    for axis, size in enumerate(sizes):
        place = op.sub(op.iota((own[axis],), 0), low[axis])
        here = op.bitwise_and(op.ge(place, 0), op.lt(place, ctx.true_size(size)))
        here = op.broadcast(here, own, (axis,))
        inside = here if inside is None else op.bitwise_and(inside, here)
        update = op.take(update, place, axis)
    return op.select(inside, update, x)


@dynamic_update_slice_p.def_cost
def _update_cost(x: Aval, update: Aval, *starts: Aval) -> Cost:
    return Cost(bytes_read=nbytes(x, update, *starts), bytes_written=nbytes(x))
