"""Gather and scatter-add along one axis.

One rule for indices out of range: a read clamps them to the axis, a write drops them. Derivatives
agree: the cotangent of a clamped read goes to the clamped place, that of a dropped write is 0.
Negative indices are out of range here; `trnx.numpy` counts them from the end first.
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
    dtypes,
    message,
    same_shape,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import ANY, NUMBER, NumpyArray, check_axis, check_dtypes, nbytes

Array = Any
Shape = tuple[Size, ...]
_INT32 = dtypes.int32
_TEST_DTYPES = (dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.int32)


def _check_indices(name: str, indices: Aval) -> None:
    if indices.dtype != _INT32:
        raise DTypeError(
            message(f"{name} needs int32 indices but got {indices}", None, "Cast them")
        )


def _check_nonempty(name: str, x: Aval, axis: int) -> None:
    if structurally_equal(x.shape[axis], 0):
        raise ShapeError(
            message(f"{name} reads from axis {axis} of {x}, which is empty", None, "Test the size")
        )


def _replace(shape: Shape, axis: int, sizes: Shape) -> Shape:
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def _last(size: Size) -> Array:
    """The largest index of an axis, as an int32 scalar."""
    if isinstance(size, int):
        return op.scalar(size - 1, _INT32)
    return op.sub(op.dim_size(size), 1)


def clamped(indices: Array, size: Size) -> Array:
    """Indices held inside an axis."""
    return op.clamp(op.scalar(0, _INT32), indices, _last(size))


def in_range(indices: Array, size: Size) -> Array:
    """Where indices point into an axis."""
    return op.bitwise_and(op.ge(indices, 0), op.le(indices, _last(size)))


def _int_case(*shapes: tuple[int, ...], axis: int, high: int) -> list[OpCase]:
    """Cases whose second operand holds indices, some out of range on both sides."""
    ranges = (None, (-2.0, high + 2.0), None)[: len(shapes)]
    return [
        OpCase(shapes, {"axis": axis}, ranges, (t, _INT32, t)[: len(shapes)]) for t in _TEST_DTYPES
    ]


# ---------------------------------------------------------------- take
def _take_abstract(x: Aval, indices: Aval, *, axis: int) -> Aval:
    _check_indices("take", indices)
    check_dtypes("take", (x,), ANY)
    check_axis("take", x, axis)
    _check_nonempty("take", x, axis)
    return Aval(_replace(x.shape, axis, indices.shape), x.dtype, x.weak)


def _take_reference(x: NumpyArray, indices: NumpyArray, *, axis: int) -> NumpyArray:
    return np.take(x, np.clip(indices, 0, x.shape[axis] - 1), axis)


take_p = Primitive(
    "take",
    abstract=_take_abstract,
    doc="Slices along an axis at int32 indices, clamped; index axes replace the axis.",
    reference=_take_reference,
    tests=TestRecord(
        (
            *_int_case((5, 3), (4,), axis=0, high=5),
            *_int_case((5, 3), (2, 2), axis=1, high=3),
            *_int_case((2, 5, 3), (), axis=1, high=5),
            *_int_case((140, 8), (150,), axis=0, high=140),
            *_int_case((5, 3), (0,), axis=0, high=5),
        ),
        (dtypes.float64,),
        grad_order=1,
    ),
)
take_p.def_jvp(lambda t, x, indices, *, out, axis: op.take(t, indices, axis), None)


@take_p.def_transpose
def _take_transpose(ct: Array, x: Linear, indices: Array, *, axis: int) -> tuple[Array, None]:
    places = clamped(indices, x.aval.shape[axis])
    return op.scatter_add(op.zeros_like(x.aval.strong()), places, ct, axis), None


def _flat_places(indices: Array, size: Size, drop: bool) -> Array:
    """Indices [B, ...] into an axis, as indices into that axis of all B examples laid end to end.

    With `drop` the ones out of range become -1, otherwise they are clamped.
    """
    example = op.mul(op.iota(op.shape_of(indices), 0), op.dim_size(size))
    if drop:
        return op.select(in_range(indices, size), op.add(indices, example), -1)
    return op.add(clamped(indices, size), example)


def _lay_end_to_end(x: Array, axis: int) -> Array:
    """x [B, ..., n, ...] with `axis` of an example moved to the front: [B*n, ...]."""
    x = op.moveaxis(x, axis + 1, 1)
    batch, size, *rest = op.shape_of(x)
    return op.reshape(x, (batch * size, *rest))


@take_p.def_vmap
def _take_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, *, axis: int
) -> tuple[Array, int]:
    (x, indices), (x_dim, index_dim) = args, dims
    if index_dim is None:
        x = op.moveaxis(x, x_dim, 0)  # type: ignore[arg-type]
        return op.take(x, indices, axis + 1), 0
    indices = op.moveaxis(indices, index_dim, 0)
    if x_dim is None:
        return op.take(x, indices, axis), axis
    x = op.moveaxis(x, x_dim, 0)
    places = _flat_places(indices, op.shape_of(x)[axis + 1], drop=False)
    out = op.take(_lay_end_to_end(x, axis), places, 0)
    # [B, *indices, *before, *after] -> [B, *before, *indices, *after]
    count = len(op.shape_of(indices)) - 1
    before = range(1 + count, 1 + count + axis)
    after = range(1 + count + axis, len(op.shape_of(out)))
    return op.transpose(out, (0, *before, *range(1, 1 + count), *after)), 0


@take_p.def_pad
def _take_pad(ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int) -> Array:
    (x, indices), (shape, _) = args, true_shapes
    if ctx.is_padded(shape[axis]):
        last = op.sub(ctx.true_size(shape[axis]), 1)
        indices = op.clamp(op.scalar(0, _INT32), indices, last)
    return op.take(x, indices, axis)


@take_p.def_cost
def _take_cost(x: Aval, indices: Aval, *, axis: int) -> Cost:
    out = _take_abstract(x, indices, axis=axis)
    return Cost(bytes_read=nbytes(out, indices), bytes_written=nbytes(out))


# ---------------------------------------------------------------- scatter_add
def _scatter_add_abstract(x: Aval, indices: Aval, updates: Aval, *, axis: int) -> Aval:
    _check_indices("scatter_add", indices)
    check_dtypes("scatter_add", (x, updates), NUMBER)
    check_axis("scatter_add", x, axis)
    wanted = _replace(x.shape, axis, indices.shape)
    if not same_shape(updates.shape, wanted):
        raise ShapeError(
            message(
                f"scatter_add into {x} at {indices} along axis {axis} got updates {updates}",
                None,
                f"Give updates of shape ({','.join(map(str, wanted))})",
            )
        )
    return Aval(x.shape, x.dtype, x.weak and updates.weak)


def _accumulate(x: NumpyArray, where: Any, updates: NumpyArray) -> NumpyArray:
    """x with updates added at NumPy indices, in f64 for floats, rounded once."""
    wide = np.dtype(np.float64) if dtypes.is_float(x.dtype) else x.dtype
    out = x.astype(wide)
    with np.errstate(all="ignore"):
        np.add.at(out, where, updates.astype(wide))
        return out.astype(x.dtype)


def _scatter_add_reference(
    x: NumpyArray, indices: NumpyArray, updates: NumpyArray, *, axis: int
) -> NumpyArray:
    flat = np.reshape(indices, -1)
    rows = np.moveaxis(updates, range(axis, axis + indices.ndim), range(indices.ndim))
    rows = rows.reshape(flat.size, *(x.shape[:axis] + x.shape[axis + 1 :]))
    kept = (flat >= 0) & (flat < x.shape[axis])
    out = _accumulate(np.moveaxis(x, axis, 0), flat[kept], rows[kept])
    return np.moveaxis(out, 0, axis)


_SUM_TOLERANCE = {"f32": 2e-6, "f64": 4e-15, "bf16": 1.6e-2, "f16": 2e-3}

scatter_add_p = Primitive(
    "scatter_add",
    abstract=_scatter_add_abstract,
    doc="Updates added to slices along an axis at int32 indices; those out of range are dropped.",
    reference=_scatter_add_reference,
    tests=TestRecord(
        (
            *_int_case((5, 3), (4,), (4, 3), axis=0, high=5),
            *_int_case((5, 3), (2, 2), (5, 2, 2), axis=1, high=3),
            *_int_case((2, 5, 3), (), (2, 3), axis=1, high=5),
            *_int_case((140, 8), (150,), (150, 8), axis=0, high=140),
            *_int_case((5, 3), (0,), (0, 3), axis=0, high=5),
        ),
        (dtypes.float64,),
        _SUM_TOLERANCE,
        grad_order=1,
        floor=1.0,
    ),
)
scatter_add_p.def_jvp(
    lambda t, x, indices, updates, *, out, axis: t,
    None,
    lambda t, x, indices, updates, *, out, axis: op.scatter_add(op.zeros_like(x), indices, t, axis),
)


@scatter_add_p.def_transpose
def _scatter_add_transpose(
    ct: Array, x: Array, indices: Array, updates: Array, *, axis: int
) -> tuple[Array, None, Array]:
    updates_ct = None
    if isinstance(updates, Linear):
        size = op.shape_of(ct)[axis]
        read = op.take(ct, indices, axis)
        axes = range(axis, axis + len(op.shape_of(indices)))
        kept = op.broadcast(in_range(indices, size), op.shape_of(read), axes)
        updates_ct = op.select(kept, read, 0)
    return (ct if isinstance(x, Linear) else None), None, updates_ct


@scatter_add_p.def_vmap
def _scatter_add_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, *, axis: int
) -> tuple[Array, int]:
    (x, indices, updates), (x_dim, index_dim, updates_dim) = args, dims
    x = ctx.to_front(x, x_dim, size)
    updates = ctx.to_front(updates, updates_dim, size)
    if index_dim is None:
        return op.scatter_add(x, indices, updates, axis + 1), 0
    indices = op.moveaxis(indices, index_dim, 0)
    shape = op.shape_of(x)
    count = len(op.shape_of(indices)) - 1
    places = _flat_places(indices, shape[axis + 1], drop=True)
    # [B, *before, *indices, *after] -> [B, *indices, *before, *after]
    before, middle = range(1, 1 + axis), range(1 + axis, 1 + axis + count)
    after = range(1 + axis + count, len(op.shape_of(updates)))
    rows = op.transpose(updates, (0, *middle, *before, *after))
    flat = op.scatter_add(_lay_end_to_end(x, axis), places, rows, 0)
    out = op.reshape(flat, (size, shape[axis + 1], *op.shape_of(flat)[1:]))
    return op.moveaxis(out, 1, axis + 1), 0


@scatter_add_p.def_pad
def _scatter_add_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int
) -> Array:
    # Padded indices must not write; one past the true end lands in padding, which is harmless.
    x, indices, updates = args
    indices = ctx.mask(indices, true_shapes[1], -1)
    return op.scatter_add(x, indices, updates, axis)


@scatter_add_p.def_cost
def _scatter_add_cost(x: Aval, indices: Aval, updates: Aval, *, axis: int) -> Cost:
    return Cost(
        flops=nbytes(updates) // updates.dtype.itemsize,
        bytes_read=nbytes(x, indices, updates),
        bytes_written=nbytes(x),
    )


# ---------------------------------------------------------------- take_along, scatter_add_along
def _check_along(name: str, x: Aval, indices: Aval, axis: int) -> None:
    _check_indices(name, indices)
    check_axis(name, x, axis)
    if indices.ndim != x.ndim or not same_shape(
        _replace(x.shape, axis, ()), _replace(indices.shape, axis, ())
    ):
        raise ShapeError(
            message(
                f"{name} of {x} at {indices} along axis {axis}",
                None,
                "All sizes but that of the axis must be equal",
            )
        )


def _take_along_abstract(x: Aval, indices: Aval, *, axis: int) -> Aval:
    _check_along("take_along", x, indices, axis)
    _check_nonempty("take_along", x, axis)
    return Aval(indices.shape, x.dtype, x.weak)


take_along_p = Primitive(
    "take_along",
    abstract=_take_along_abstract,
    doc="One element per int32 index along an axis, clamped; other sizes are equal.",
    reference=lambda x, indices, *, axis: np.take_along_axis(
        x, np.clip(indices, 0, x.shape[axis] - 1), axis
    ),
    tests=TestRecord(
        (
            *_int_case((5,), (4,), axis=0, high=5),
            *_int_case((3, 5), (3, 2), axis=1, high=5),
            *_int_case((3, 5), (1, 5), axis=0, high=3),
            *_int_case((140, 10), (140, 1), axis=1, high=10),
        ),
        (dtypes.float64,),
        grad_order=1,
    ),
)
take_along_p.def_jvp(lambda t, x, indices, *, out, axis: op.take_along(t, indices, axis), None)


@take_along_p.def_transpose
def _take_along_transpose(ct: Array, x: Linear, indices: Array, *, axis: int) -> tuple[Array, None]:
    places = clamped(indices, x.aval.shape[axis])
    return op.scatter_add_along(op.zeros_like(x.aval.strong()), places, ct, axis), None


def _vmap_along(primitive: Primitive) -> Any:
    def rule(
        ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, *, axis: int
    ) -> tuple[Array, int]:
        moved = [ctx.to_front(x, dim, size) for x, dim in zip(args, dims, strict=True)]
        return primitive.bind(*moved, axis=axis + 1), 0

    return rule


take_along_p.def_vmap(_vmap_along(take_along_p))


@take_along_p.def_pad
def _take_along_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int
) -> Array:
    (x, indices), (shape, _) = args, true_shapes
    if ctx.is_padded(shape[axis]):
        last = op.sub(ctx.true_size(shape[axis]), 1)
        indices = op.clamp(op.scalar(0, _INT32), indices, last)
    return op.take_along(x, indices, axis)


@take_along_p.def_cost
def _take_along_cost(x: Aval, indices: Aval, *, axis: int) -> Cost:
    out = _take_along_abstract(x, indices, axis=axis)
    return Cost(bytes_read=nbytes(out, indices), bytes_written=nbytes(out))


def _scatter_add_along_abstract(x: Aval, indices: Aval, updates: Aval, *, axis: int) -> Aval:
    _check_along("scatter_add_along", x, indices, axis)
    check_dtypes("scatter_add_along", (x, updates), NUMBER)
    if not same_shape(updates.shape, indices.shape):
        raise ShapeError(
            message(
                f"scatter_add_along got indices {indices} and updates {updates}",
                None,
                "Give one update per index",
            )
        )
    return Aval(x.shape, x.dtype, x.weak and updates.weak)


def _scatter_add_along_reference(
    x: NumpyArray, indices: NumpyArray, updates: NumpyArray, *, axis: int
) -> NumpyArray:
    where: list[NumpyArray] = [*np.indices(indices.shape)]
    where[axis] = indices
    kept = (indices >= 0) & (indices < x.shape[axis])
    return _accumulate(x, tuple(index[kept] for index in where), updates[kept])


scatter_add_along_p = Primitive(
    "scatter_add_along",
    abstract=_scatter_add_along_abstract,
    doc="One update added per int32 index along an axis; those out of range are dropped.",
    reference=_scatter_add_along_reference,
    tests=TestRecord(
        (
            *_int_case((5,), (4,), (4,), axis=0, high=5),
            *_int_case((3, 5), (3, 2), (3, 2), axis=1, high=5),
            *_int_case((3, 5), (1, 5), (1, 5), axis=0, high=3),
            *_int_case((140, 10), (140, 1), (140, 1), axis=1, high=10),
        ),
        (dtypes.float64,),
        _SUM_TOLERANCE,
        grad_order=1,
        floor=1.0,
    ),
)
scatter_add_along_p.def_jvp(
    lambda t, x, indices, updates, *, out, axis: t,
    None,
    lambda t, x, indices, updates, *, out, axis: op.scatter_add_along(
        op.zeros_like(x), indices, t, axis
    ),
)


@scatter_add_along_p.def_transpose
def _scatter_add_along_transpose(
    ct: Array, x: Array, indices: Array, updates: Array, *, axis: int
) -> tuple[Array, None, Array]:
    updates_ct = None
    if isinstance(updates, Linear):
        read = op.take_along(ct, indices, axis)
        updates_ct = op.select(in_range(indices, op.shape_of(ct)[axis]), read, 0)
    return (ct if isinstance(x, Linear) else None), None, updates_ct


scatter_add_along_p.def_vmap(_vmap_along(scatter_add_along_p))


@scatter_add_along_p.def_pad
def _scatter_add_along_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int
) -> Array:
    x, indices, updates = args
    return op.scatter_add_along(x, ctx.mask(indices, true_shapes[1], -1), updates, axis)


scatter_add_along_p.def_cost(_scatter_add_cost)
