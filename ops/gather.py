"""General gather and scatter: windows at places that arrays of indices give.

`gather` reads a window of static sizes at every place, `scatter` writes or combines one. There is
one int32 index array per indexed axis; other axes start at 0. The first `batch` axes of operand,
index arrays and windows belong together, example by example.

Indices out of range: a read moves its window inside, a write drops its window. Windows are written
in row-major order of the index arrays, so of several writes to one element the last one stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DimError,
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
    same_shape,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import ANY, BOOL, NUMBER, REAL, NumpyArray, check_dtypes, nbytes
from trnx.ops.dynamic import instantiated

Array = Any
Shape = tuple[Size, ...]
_INT32 = dtypes.int32

KINDS = ("set", "add", "mul", "min", "max")
"""What `scatter` does with an update and the element it meets."""


def _check_indices(name: str, x: Aval, indices: Sequence[Aval], axes: Shape, batch: int) -> Shape:
    """The common shape of the index arrays."""
    if not indices or len(axes) != len(indices):
        raise ShapeError(
            message(
                f"{name} of {x} got {len(indices)} index arrays for axes {axes}",
                None,
                "Give one int32 array per axis",
            )
        )
    if len(set(axes)) != len(axes) or any(not batch <= a < x.ndim for a in axes):
        raise ShapeError(
            message(
                f"{name} of {x} got axes {axes} and {batch} batch axes",
                None,
                f"Name axes from {batch} to {x.ndim - 1} once",
            )
        )
    first = indices[0]
    for index in indices:
        if index.dtype != _INT32:
            raise DTypeError(message(f"{name} got the index {index}", None, "Cast it to int32"))
        if not same_shape(index.shape, first.shape) or not same_shape(
            index.shape[:batch], x.shape[:batch]
        ):
            raise ShapeError(
                message(
                    f"{name} of {x} got indices {' and '.join(map(str, indices))}",
                    None,
                    f"Give arrays of one shape that begins with the {batch} batch sizes",
                )
            )
    return first.shape


def _check_sizes(name: str, x: Aval, sizes: Shape, batch: int) -> None:
    if len(sizes) != x.ndim - batch:
        raise ShapeError(
            message(f"{name} of {x} got window sizes {sizes}", None, "Give one per axis")
        )
    for axis, (size, whole) in enumerate(zip(sizes, x.shape[batch:], strict=True), batch):
        if isinstance(size, int) and isinstance(whole, int) and not 0 <= size <= whole:
            raise ShapeError(
                message(
                    f"{name} takes {size} elements along axis {axis} of {x}",
                    None,
                    f"Use a size from 0 to {whole}",
                )
            )


def last_start(whole: Size, size: Size) -> Array:
    """The largest start of a window in an axis, as an int32 scalar."""
    return op.dim_size(whole - size)


def inside(
    indices: Sequence[Array], axes: Sequence[int], shape: Shape, sizes: Shape, batch: int
) -> Array:
    """Where whole windows lie in the operand."""
    found: Any = None
    for index, axis in zip(indices, axes, strict=True):
        last = last_start(shape[axis], sizes[axis - batch])
        here = op.bitwise_and(op.ge(index, 0), op.le(index, last))
        found = here if found is None else op.bitwise_and(found, here)
    return found


def _spread(flags: Array, windows: Array) -> Array:
    """A flag per window as a flag per element of the windows."""
    return op.broadcast(flags, op.shape_of(windows), range(len(op.shape_of(flags))))


def _windows(
    shape: tuple[int, ...],
    indices: Sequence[NumpyArray],
    axes: Sequence[int],
    sizes: Sequence[int],
    batch: int,
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Position among the index arrays and unclamped start per axis, in row-major order."""
    for place in itertools.product(*map(range, indices[0].shape)):
        starts = [0] * len(sizes)
        for index, axis in zip(indices, axes, strict=True):
            starts[axis - batch] = int(index[place])
        yield place, starts


# ---------------------------------------------------------------- gather
def _gather_abstract(
    x: Aval, *indices: Aval, axes: tuple[int, ...], sizes: Shape, batch: int
) -> Aval:
    check_dtypes("gather", (x,), ANY)
    shape = _check_indices("gather", x, indices, axes, batch)
    _check_sizes("gather", x, sizes, batch)
    return Aval((*shape, *sizes), x.dtype, x.weak)


def _gather_reference(
    x: NumpyArray,
    *indices: NumpyArray,
    axes: tuple[int, ...],
    sizes: tuple[int, ...],
    batch: int,
) -> NumpyArray:
    out = np.empty((*indices[0].shape, *sizes), x.dtype)
    for place, starts in _windows(x.shape, indices, axes, sizes, batch):
        spans = tuple(
            slice(low := min(max(start, 0), whole - size), low + size)
            for start, whole, size in zip(starts, x.shape[batch:], sizes, strict=True)
        )
        where: tuple[Any, ...] = (*place[:batch], *spans)
        out[place] = x[where]
    return out


_Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
_LAYOUTS: tuple[_Layout, ...] = (  # operand, index shape, axes, window, batch
    ((5, 3), (4,), (0,), (1, 3), 0),
    ((5, 3), (2, 2), (0, 1), (1, 1), 0),
    ((5, 7), (3,), (1, 0), (2, 3), 0),
    ((4, 3, 6), (5,), (1,), (4, 1, 2), 0),
    ((2, 6, 3), (2, 4), (1,), (1, 3), 1),
    ((3, 5, 4), (3,), (2, 1), (2, 2), 1),
    ((140, 2), (150,), (0,), (1, 2), 0),
    ((6,), (), (0,), (2,), 0),
    ((5, 3), (0,), (0,), (1, 3), 0),
)
_GATHER_DTYPES = (dtypes.float64, dtypes.float32, dtypes.bfloat16, dtypes.int64, dtypes.bool_)


def _gather_cases() -> Iterator[OpCase]:
    for shape, places, axes, sizes, batch in _LAYOUTS:
        for dtype in _GATHER_DTYPES:
            yield OpCase(
                (shape, *([places] * len(axes))),
                {"axes": axes, "sizes": sizes, "batch": batch},
                (None, *((-2.0, shape[a] + 1.0) for a in axes)),
                (dtype, *([_INT32] * len(axes))),
            )


gather_p = Primitive(
    "gather",
    abstract=_gather_abstract,
    doc="Windows of static sizes at int32 indices of some axes, moved inside where they leave.",
    reference=_gather_reference,
    tests=TestRecord(tuple(_gather_cases()), (dtypes.float64,), grad_order=1),
)
gather_p.def_jvp(
    lambda t, x, *indices, out, axes, sizes, batch: op.gather(t, indices, axes, sizes, batch), None
)


@gather_p.def_transpose
def _gather_transpose(
    ct: Array, x: Linear, *indices: Array, axes: tuple[int, ...], sizes: Shape, batch: int
) -> tuple[Array, ...]:
    shape = x.aval.shape
    moved = [
        op.clamp(op.scalar(0, _INT32), index, last_start(shape[axis], sizes[axis - batch]))
        for index, axis in zip(indices, axes, strict=True)
    ]
    zeros = op.zeros_like(x.aval.strong())
    return op.scatter(zeros, moved, ct, axes, "add", batch), *([None] * len(indices))


@gather_p.def_vmap
def _gather_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    axes: tuple[int, ...],
    sizes: Shape,
    batch: int,
) -> tuple[Array, int]:
    (x, *indices), (x_dim, *index_dims) = args, dims
    if all(dim is None for dim in index_dims):
        # The mapped axis of the operand is one more axis that windows hold whole.
        x = op.moveaxis(x, x_dim, batch)  # type: ignore[arg-type]
        moved = [axis + 1 for axis in axes]
        return op.gather(x, indices, moved, (size, *sizes), batch), len(op.shape_of(indices[0]))
    indices = [ctx.to_front(i, d, size) for i, d in zip(indices, index_dims, strict=True)]
    if x_dim is None and batch == 0:
        return op.gather(x, indices, axes, sizes, 0), 0
    x = ctx.to_front(x, x_dim, size)
    return op.gather(x, indices, [axis + 1 for axis in axes], sizes, batch + 1), 0


@gather_p.def_pad
def _gather_pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[Shape],
    *,
    axes: tuple[int, ...],
    sizes: Shape,
    batch: int,
) -> Array:
    (x, *indices), shape = args, true_shapes[0]
    for number, axis in enumerate(axes):
        size = sizes[axis - batch]
        if not isinstance(size, int) and not structurally_equal(size, shape[axis]):
            raise DimError(
                message(
                    f"gather takes windows of {size} of {shape[axis]} elements along axis {axis}",
                    None,
                    "Use windows of a static size, or index every element",
                )
            )
        last = ctx.true_size(shape[axis] - size)
        indices[number] = op.clamp(op.scalar(0, _INT32), indices[number], last)
    return op.gather(x, indices, axes, [ctx.padded(size) for size in sizes], batch)


@gather_p.def_cost
def _gather_cost(x: Aval, *indices: Aval, axes: tuple[int, ...], sizes: Shape, batch: int) -> Cost:
    out = Aval((*indices[0].shape, *sizes), x.dtype)
    return Cost(bytes_read=nbytes(out, *indices), bytes_written=nbytes(out))


# ---------------------------------------------------------------- scatter
def _scatter_abstract(
    x: Aval,
    updates: Aval,
    *indices: Aval,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> Aval:
    accepted = {"set": ANY, "add": NUMBER, "mul": NUMBER}.get(kind, REAL + BOOL)
    if kind not in KINDS:
        raise ShapeError(message(f"scatter of kind {kind!r}", None, f"Use {', '.join(KINDS)}"))
    check_dtypes(f"scatter ({kind})", (x, updates), accepted)
    shape = _check_indices("scatter", x, indices, axes, batch)
    rank = len(shape)
    if updates.ndim != rank + x.ndim - batch or not same_shape(updates.shape[:rank], shape):
        raise ShapeError(
            message(
                f"scatter into {x} at indices {indices[0]} got updates {updates}",
                None,
                "Their shape is that of the indices, then the window's",
            )
        )
    _check_sizes("scatter", x, updates.shape[rank:], batch)
    return Aval(x.shape, x.dtype, x.weak and updates.weak)


_COMBINE: dict[str, Any] = {
    "set": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def _scatter_reference(
    x: NumpyArray,
    updates: NumpyArray,
    *indices: NumpyArray,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> NumpyArray:
    sizes = updates.shape[indices[0].ndim :]
    wide = np.dtype(np.float64) if kind != "set" and dtypes.is_float(x.dtype) else x.dtype
    out, values = x.astype(wide), updates.astype(wide)
    for place, starts in _windows(x.shape, indices, axes, sizes, batch):
        bounds = zip(starts, x.shape[batch:], sizes, strict=True)
        if any(not 0 <= start <= whole - size for start, whole, size in bounds):
            continue
        spans = tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))
        where: tuple[Any, ...] = (*place[:batch], *spans)
        target = out[where]
        with np.errstate(all="ignore"):
            target[...] = _COMBINE[kind](target, values[place])
    with np.errstate(all="ignore"):
        return np.asarray(out.astype(x.dtype))


def _scatter_cases() -> Iterator[OpCase]:
    for number, (shape, places, axes, sizes, batch) in enumerate(_LAYOUTS):
        for kind in KINDS if number in (0, 1, 2, 4) else KINDS[:2]:
            types: list[Any] = [dtypes.float64]
            if number < 2:
                types += [
                    dtypes.float32,
                    dtypes.int32,
                    dtypes.bool_ if kind == "set" else dtypes.int8,
                ]
            elif kind in ("set", "add"):
                types += [dtypes.bfloat16 if number % 2 else dtypes.float32]
            for dtype in types:
                yield OpCase(
                    (shape, (*places, *sizes), *([places] * len(axes))),
                    {"axes": axes, "kind": kind, "batch": batch, "unique": False},
                    (None, (0.5, 1.5) if kind == "mul" else None,
                     *((-2.0, shape[a] + 1.0) for a in axes)),
                    (dtype, dtype, *([_INT32] * len(axes))),
                )  # fmt: skip


scatter_p = Primitive(
    "scatter",
    abstract=_scatter_abstract,
    doc="Windows set, added, multiplied or compared at int32 indices; leaving ones are dropped.",
    reference=_scatter_reference,
    tests=TestRecord(
        tuple(_scatter_cases()),
        (dtypes.float64,),
        {"f32": 2e-6, "f64": 1e-14, "bf16": 3.2e-2, "f16": 4e-3},
        grad_order=1,
        floor=1.0,
    ),
)


def _sizes_of(updates: Array, indices: Sequence[Array]) -> Shape:
    shape = updates.aval.shape if isinstance(updates, Linear) else op.shape_of(updates)
    return shape[len(op.shape_of(indices[0])) :]


@scatter_p.def_jvp_all
def _scatter_jvp(
    ctx: Any,
    primals: Sequence[Array],
    tangents: Sequence[Array],
    *,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> tuple[list[Array], list[Array]]:
    x, updates, *indices = primals
    x_t, updates_t = tangents[:2]
    out = op.scatter(x, indices, updates, axes, kind, batch, unique)

    def added(base: Array, values: Array) -> Array:
        return op.scatter(base, indices, values, axes, "add", batch, unique)

    if kind == "set":
        x_t, updates_t = instantiated(x_t), instantiated(updates_t)
        return [out], [op.scatter(x_t, indices, updates_t, axes, kind, batch, unique)]
    if kind == "add":
        return [out], [instantiated(x_t) if isinstance(updates_t, Zero)
                       else added(instantiated(x_t), updates_t)]  # fmt: skip
    rule = _product_tangent if kind == "mul" else _extremum_tangent
    sizes = _sizes_of(updates, indices)

    def read(values: Array) -> Array:
        return op.gather(values, indices, axes, sizes, batch)

    def written(base: Array, values: Array) -> Array:
        return op.scatter(base, indices, values, axes, kind, batch, unique)

    total = rule(x, updates, instantiated(x_t), instantiated(updates_t), out, added, read, written)
    return [out], [total]


def _product_tangent(
    x: Array, updates: Array, x_t: Array, updates_t: Array, out: Array, added: Any, read: Any,
    written: Any,
) -> Array:  # fmt: skip
    """Each factor's tangent times the product of all others, which zeros do not disturb."""
    zero = op.eq(updates, 0)
    plain = op.select(zero, 1, updates)
    zeros = read(added(op.zeros_like(x), op.convert(zero, op.dtype_of(x))))
    product = read(written(x, plain))
    own = op.div(product, plain)
    only = op.select(op.eq(zeros, 1), product, 0)
    others = op.select(zero, only, op.select(op.eq(zeros, 0), own, 0))
    ones = op.broadcast(op.scalar(1, op.dtype_of(x)), op.shape_of(x), ())
    return added(op.mul(x_t, written(ones, updates)), op.mul(others, updates_t))


def _extremum_tangent(
    x: Array, updates: Array, x_t: Array, updates_t: Array, out: Array, added: Any, read: Any,
    written: Any,
) -> Array:  # fmt: skip
    """The mean of the tangents of all that equal the result."""
    dtype = op.dtype_of(x)
    kept, hit = op.eq(x, out), op.eq(updates, read(out))
    count = added(op.convert(kept, dtype), op.convert(hit, dtype))
    total = added(op.select(kept, x_t, 0), op.select(hit, updates_t, 0))
    return op.div(total, op.max(count, 1))


@scatter_p.def_transpose
def _scatter_transpose(
    ct: Array,
    x: Array,
    updates: Array,
    *indices: Array,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> tuple[Array, ...]:
    shape, sizes = op.shape_of(ct), _sizes_of(updates, indices)
    x_ct = updates_ct = None
    if isinstance(x, Linear):
        x_ct = ct
        if kind == "set":
            none = op.broadcast(
                op.scalar(0, op.dtype_of(ct)), (*op.shape_of(indices[0]), *sizes), ()
            )
            x_ct = op.scatter(ct, indices, none, axes, kind, batch, unique)
    if isinstance(updates, Linear):
        read = op.gather(ct, indices, axes, sizes, batch)
        kept = _spread(inside(indices, axes, shape, sizes, batch), read)
        if kind == "set" and not unique:
            kept = op.bitwise_and(kept, _stays(indices, axes, shape, sizes, batch))
        updates_ct = op.select(kept, read, 0)
    return x_ct, updates_ct, *([None] * len(indices))


def _stays(
    indices: Sequence[Array], axes: tuple[int, ...], shape: Shape, sizes: Shape, batch: int
) -> Array:
    """Which elements of the windows are still there when all windows are written."""
    windows = (*op.shape_of(indices[0]), *sizes)
    total: Size = 1
    for size in windows:
        total = total * size
    names = op.reshape(op.iota((total,), 0), windows)
    nobody = op.broadcast(op.scalar(-1, _INT32), shape, ())
    written = op.scatter(nobody, indices, names, axes, "set", batch)
    return op.eq(op.gather(written, indices, axes, sizes, batch), names)


@scatter_p.def_vmap
def _scatter_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> tuple[Array, int]:
    (x, updates, *indices), (x_dim, updates_dim, *index_dims) = args, dims
    moved = [axis + 1 for axis in axes]
    x, updates = ctx.to_front(x, x_dim, size), ctx.to_front(updates, updates_dim, size)
    if all(dim is None for dim in index_dims):
        # The mapped axis is one more axis that windows hold whole.
        rank = len(op.shape_of(indices[0]))
        x, updates = op.moveaxis(x, 0, batch), op.moveaxis(updates, 0, rank)
        return op.scatter(x, indices, updates, moved, kind, batch, unique), batch
    indices = [ctx.to_front(i, d, size) for i, d in zip(indices, index_dims, strict=True)]
    return op.scatter(x, indices, updates, moved, kind, batch + 1, unique), 0


@scatter_p.def_pad
def _scatter_pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[Shape],
    *,
    axes: tuple[int, ...],
    kind: str,
    batch: int,
    unique: bool,
) -> Array:
    """Padded indices and windows that leave the true size are dropped.

    A window of padded size that does not fill its axis would write its padding: its elements
    become windows of their own.
    """
    (x, updates, *indices), (shape, update_shape, places, *_) = args, true_shapes
    sizes = update_shape[len(places) :]
    axes_now = list(axes)
    kept: Any = None
    for index, axis in zip(indices, axes, strict=True):
        last = ctx.true_size(shape[axis] - sizes[axis - batch])
        here = op.bitwise_and(op.ge(index, 0), op.le(index, last))
        kept = here if kept is None else op.bitwise_and(kept, here)
    kept = ctx.mask(kept, (*op.shape_of(kept)[:batch], *places[batch:]), False)
    for axis, (whole, size) in enumerate(zip(shape[batch:], sizes, strict=True), batch):
        if isinstance(size, int) or structurally_equal(size, whole):
            continue
        rank = len(op.shape_of(kept))
        wide = (*op.shape_of(kept), ctx.padded(size))
        step = op.iota(wide, rank)
        kept = op.bitwise_and(
            op.broadcast(kept, wide, range(rank)), op.lt(step, ctx.true_size(size))
        )
        indices = [op.broadcast(index, wide, range(rank)) for index in indices]
        if axis in axes_now:
            number = axes_now.index(axis)
            indices[number] = op.add(indices[number], step)
        else:
            axes_now.append(axis)
            indices.append(step)
        updates = op.expand(
            op.moveaxis(updates, rank + axis - batch, rank), rank + 1 + axis - batch
        )
    indices[0] = op.select(kept, indices[0], -1)
    return op.scatter(x, indices, updates, axes_now, kind, batch, unique)


@scatter_p.def_cost
def _scatter_cost(
    x: Aval, updates: Aval, *indices: Aval, axes: tuple[int, ...], kind: str, batch: int,
    unique: bool,
) -> Cost:  # fmt: skip
    work = 0 if kind == "set" else nbytes(updates) // updates.dtype.itemsize
    return Cost(work, nbytes(x, updates, *indices), nbytes(x))
