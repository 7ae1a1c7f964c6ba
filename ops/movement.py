"""Movement: where elements go, without changing them.

Every primitive here is linear; a transpose moves cotangents back. Sizes may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    BoundsError,
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
from trnx.core.dims import evaluate, variables
from trnx.ops import functions as op
from trnx.ops._factories import ANY, NumpyArray, check_axis, check_dtypes, movement_cost

Array = Any
Shape = tuple[Size, ...]

_TEST_DTYPES = (
    dtypes.float64,
    dtypes.float32,
    dtypes.bfloat16,
    dtypes.float16,
    dtypes.int8,
    dtypes.int32,
    dtypes.int64,
    dtypes.bool_,
)


def _record(*cases: OpCase) -> TestRecord:
    return TestRecord(cases, _TEST_DTYPES, grad_order=1)


# ---------------------------------------------------------------- broadcast
def _broadcast_abstract(x: Aval, *, shape: Shape, dims: tuple[int, ...]) -> Aval:
    out = Aval(shape, x.dtype, x.weak)
    if len(dims) != x.ndim or list(dims) != sorted(set(dims)):
        raise ShapeError(
            message(f"broadcast of {x} got dims {dims}", None, "Give one increasing axis per axis")
        )
    for axis, size in zip(dims, x.shape, strict=True):
        check_axis("broadcast", out, axis)
        if not (isinstance(size, int) and size == 1) and not structurally_equal(size, shape[axis]):
            raise ShapeError(
                message(
                    f"broadcast of {x} to {out} with dims {dims} changes size {size} to "
                    f"{shape[axis]}",
                    None,
                    "Only axes of size 1 can be repeated",
                )
            )
    return out


def _broadcast_reference(
    x: NumpyArray, *, shape: tuple[int, ...], dims: tuple[int, ...]
) -> NumpyArray:
    sizes = [1] * len(shape)
    for axis, size in zip(dims, np.shape(x), strict=True):
        sizes[axis] = size
    return np.broadcast_to(np.reshape(x, sizes), shape)


broadcast_p = Primitive(
    "broadcast",
    abstract=_broadcast_abstract,
    doc="Repeats the operand over a larger shape: axis i becomes axis dims[i].",
    reference=_broadcast_reference,
    tests=_record(
        OpCase(((),), {"shape": (3, 4), "dims": ()}),
        OpCase(((4,),), {"shape": (3, 4), "dims": (1,)}),
        OpCase(((3,),), {"shape": (3, 4), "dims": (0,)}),
        OpCase(((3, 1),), {"shape": (3, 4), "dims": (0, 1)}),
        OpCase(((1, 4),), {"shape": (2, 3, 4), "dims": (1, 2)}),
        OpCase(((5, 2),), {"shape": (5, 131, 2), "dims": (0, 2)}),
        OpCase(((0,),), {"shape": (3, 0), "dims": (1,)}),
    ),
)
broadcast_p.def_linear()
broadcast_p.def_cost(movement_cost(broadcast_p))


@broadcast_p.def_transpose
def _broadcast_transpose(
    ct: Array, x: Linear, *, shape: Shape, dims: tuple[int, ...]
) -> tuple[Array]:
    repeated = [
        axis
        for axis, size in zip(dims, x.aval.shape, strict=True)
        if not structurally_equal(size, shape[axis])
    ]
    new = [axis for axis in range(len(shape)) if axis not in dims]
    return (op.reshape(op.reduce_sum(ct, (*new, *repeated)), x.aval.shape),)


@broadcast_p.def_vmap
def _broadcast_vmap(
    ctx: Any,
    args: Sequence[Array],
    vmapped: Sequence[int],
    size: Size,
    *,
    shape: Shape,
    dims: tuple[int, ...],
) -> tuple[Array, int]:
    x = op.moveaxis(args[0], vmapped[0], 0)
    return op.broadcast(x, (size, *shape), (0, *(axis + 1 for axis in dims))), 0


@broadcast_p.def_pad
def _broadcast_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Any, *, shape: Shape, dims: tuple[int, ...]
) -> Array:
    return op.broadcast(args[0], [ctx.padded(size) for size in shape], dims)


# ---------------------------------------------------------------- reshape
def _reshape_abstract(x: Aval, *, shape: Shape) -> Aval:
    out = Aval(shape, x.dtype, x.weak)
    if not structurally_equal(x.size, out.size):
        raise ShapeError(
            message(
                f"reshape of {x} to ({','.join(map(str, shape))}) changes the number of elements "
                f"from {x.size} to {out.size}",
                None,
                "Use a shape with as many elements",
            )
        )
    return out


reshape_p = Primitive(
    "reshape",
    abstract=_reshape_abstract,
    doc="The elements in row-major order under another shape.",
    reference=lambda x, *, shape: np.reshape(x, shape),
    tests=_record(
        OpCase(((3, 4),), {"shape": (12,)}),
        OpCase(((12,),), {"shape": (3, 4)}),
        OpCase(((2, 3, 4),), {"shape": (6, 4)}),
        OpCase(((2, 3, 4),), {"shape": (4, 6)}),
        OpCase(((),), {"shape": (1, 1)}),
        OpCase(((0, 4),), {"shape": (2, 0)}),
        OpCase(((131, 6),), {"shape": (262, 3)}),
    ),
)
reshape_p.def_linear()
reshape_p.def_transpose(lambda ct, x, *, shape: (op.reshape(ct, x.aval.shape),))
reshape_p.def_cost(movement_cost(reshape_p))


@reshape_p.def_vmap
def _reshape_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, shape: Shape
) -> tuple[Array, int]:
    return op.reshape(op.moveaxis(args[0], dims[0], 0), (size, *shape)), 0


def reshape_groups(source: Shape, target: Shape) -> list[tuple[Shape, Shape]]:
    """Split a reshape into the smallest independent ones, from the outermost axes inwards.

    Each pair has equal products: ``(2, 3, n) -> (6, n)`` is ``(2, 3) -> (6,)``, ``(n,) -> (n,)``.
    A size of 1 joins the group in front of it.
    """
    groups: list[tuple[Shape, Shape]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first_i, first_j = i, j
        left: Size = 1
        right: Size = 1
        while True:
            if i < len(source) and (j >= len(target) or _not_larger(left, right)):
                left, i = left * source[i], i + 1
            elif j < len(target):
                right, j = right * target[j], j + 1
            if structurally_equal(left, right) and i > first_i and j > first_j:
                break
            if i == len(source) and j == len(target):
                break
        groups.append((source[first_i:i], target[first_j:j]))
    return groups


def _not_larger(a: Size, b: Size) -> bool:
    """Which side of a reshape group takes the next axis: the smaller one for a small size.

    Sizes are compared with every name at a small value of its own above its least one, where
    neither 0 nor 1 makes different expressions look equal.
    """
    found = {v.name: v for size in (a, b) for v in variables(size)}
    small = {
        name: v.min + 2 + index if v.max is None else min(v.min + 2 + index, v.max)
        for index, (name, v) in enumerate(sorted(found.items()))
    }
    return evaluate(a, small) <= evaluate(b, small)


@reshape_p.def_pad
def _reshape_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, shape: Shape
) -> Array:
    """A padded axis may lead its group of axes; one inside a group has its gaps closed by a gather.

    With the padded axis outermost the padding stays behind the data on both sides, and the padded
    reshape is the reshape of the padded array.
    """
    (x,), (source,) = args, true_shapes
    target = tuple(ctx.padded(size) for size in shape)
    groups = reshape_groups(source, shape)
    if all(_leads(ctx, a) and _leads(ctx, b) for a, b in groups):
        return op.reshape(x, target)
    axis = 0
    for a, b in groups:
        padded_a = tuple(ctx.padded(size) for size in a)
        padded_b = tuple(ctx.padded(size) for size in b)
        now = op.shape_of(x)
        if not (_leads(ctx, a) and _leads(ctx, b)):
            flat = (*now[:axis], _product(padded_a), *now[axis + len(a) :])
            x = op.take(op.reshape(x, flat), _row_major_source(ctx, a, b), axis)
        now = (*now[:axis], *padded_b, *now[axis + len(a) :])
        x = op.reshape(x, now)
        axis += len(b)
    return x


def _leads(ctx: Any, sizes: Shape) -> bool:
    real = [size for size in sizes if not structurally_equal(size, 1)]
    return not any(ctx.is_padded(size) for size in real[1:])


def _product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def _row_major_source(ctx: Any, a: Shape, b: Shape) -> Array:
    """For each element of the padded target group: its place in the flat padded source group."""
    padded = tuple(ctx.padded(size) for size in b)
    true_place: Array = op.scalar(0, dtypes.int32)
    for axis, size in enumerate(b):
        index = op.iota(padded, axis)
        true_place = op.add(op.mul(true_place, ctx.true_size(size)), index)
    place: Array = op.scalar(0, dtypes.int32)
    stride = 1
    for axis in reversed(range(len(a))):
        size = ctx.true_size(a[axis])
        place = op.add(place, op.mul(op.remainder(true_place, size), stride))
        true_place = op.floor_divide(true_place, size)
        stride *= ctx.padded(a[axis])
    return op.reshape(place, (_product(padded),))


# ---------------------------------------------------------------- transpose
def _transpose_abstract(x: Aval, *, permutation: tuple[int, ...]) -> Aval:
    if sorted(permutation) != list(range(x.ndim)):
        raise ShapeError(
            message(f"transpose of {x} got permutation {permutation}", None, "Name every axis once")
        )
    return Aval(tuple(x.shape[axis] for axis in permutation), x.dtype, x.weak)


transpose_p = Primitive(
    "transpose",
    abstract=_transpose_abstract,
    doc="Axes reordered: axis i of the result is axis permutation[i] of the operand.",
    reference=lambda x, *, permutation: np.transpose(x, permutation),
    tests=_record(
        OpCase(((3, 4),), {"permutation": (1, 0)}),
        OpCase(((2, 3, 4),), {"permutation": (2, 0, 1)}),
        OpCase(((2, 3, 4),), {"permutation": (0, 2, 1)}),
        OpCase(((131, 140),), {"permutation": (1, 0)}),
        OpCase(((0, 4),), {"permutation": (1, 0)}),
    ),
)
transpose_p.def_linear()
transpose_p.def_cost(movement_cost(transpose_p))


@transpose_p.def_transpose
def _transpose_transpose(ct: Array, x: Linear, *, permutation: tuple[int, ...]) -> tuple[Array]:
    return (op.transpose(ct, tuple(np.argsort(permutation).tolist())),)


@transpose_p.def_vmap
def _transpose_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int],
    size: Size,
    *,
    permutation: tuple[int, ...],
) -> tuple[Array, int]:
    (dim,) = dims
    return op.transpose(args[0], (dim, *(axis + (axis >= dim) for axis in permutation))), 0


@transpose_p.def_pad
def _transpose_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Any, *, permutation: tuple[int, ...]
) -> Array:
    return op.transpose(args[0], permutation)


# ---------------------------------------------------------------- slice
def slice_size(start: Size, limit: Size, stride: int) -> Size:
    """Number of elements of ``[start:limit:stride]``."""
    return limit - start if stride == 1 else (limit - start + (stride - 1)) // stride


def _slice_abstract(x: Aval, *, start: Shape, limit: Shape, strides: tuple[int, ...]) -> Aval:
    if not len(start) == len(limit) == len(strides) == x.ndim:
        raise ShapeError(
            message(f"slice of {x} got {len(start)} starts", None, "Give one per axis")
        )
    for axis, (low, high, step, size) in enumerate(
        zip(start, limit, strides, x.shape, strict=True)
    ):
        if step < 1 or not (low >= 0 and low <= high and high <= size):
            raise BoundsError(
                message(
                    f"slice [{low}:{high}:{step}] of axis {axis} is out of range for {x}",
                    None,
                    f"Use 0 <= start <= limit <= {size} and a positive step",
                )
            )
    shape = tuple(map(slice_size, start, limit, strides))
    return Aval(shape, x.dtype, x.weak)


def _slice_reference(
    x: NumpyArray, *, start: tuple[int, ...], limit: tuple[int, ...], strides: tuple[int, ...]
) -> NumpyArray:
    return np.asarray(x[tuple(map(slice, start, limit, strides))])


slice_p = Primitive(
    "slice",
    abstract=_slice_abstract,
    doc="x[start:limit:strides] on every axis.",
    reference=_slice_reference,
    tests=_record(
        OpCase(((7,),), {"start": (2,), "limit": (6,), "strides": (1,)}),
        OpCase(((7,),), {"start": (1,), "limit": (7,), "strides": (3,)}),
        OpCase(((5, 8),), {"start": (1, 0), "limit": (4, 8), "strides": (2, 3)}),
        OpCase(((5, 8),), {"start": (2, 3), "limit": (2, 8), "strides": (1, 1)}),
        OpCase(((140, 9),), {"start": (33, 1), "limit": (139, 8), "strides": (1, 1)}),
    ),
)
slice_p.def_linear()
slice_p.def_cost(movement_cost(slice_p))


@slice_p.def_transpose
def _slice_transpose(
    ct: Array, x: Linear, *, start: Shape, limit: Shape, strides: tuple[int, ...]
) -> tuple[Array]:
    # What pad puts after the last element: the cut-off tail, counted in elements of x.
    high = []
    for size, low, top, step in zip(x.aval.shape, start, limit, strides, strict=True):
        count = slice_size(low, top, step)
        last = low + (count - 1) * step + 1
        high.append(size - low if structurally_equal(count, 0) else size - last)
    return (op.pad(ct, 0, start, high, [step - 1 for step in strides]),)


@slice_p.def_vmap
def _slice_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int],
    size: Size,
    *,
    start: Shape,
    limit: Shape,
    strides: tuple[int, ...],
) -> tuple[Array, int]:
    (dim,) = dims
    out = op.slice(
        args[0],
        (*start[:dim], 0, *start[dim:]),
        (*limit[:dim], size, *limit[dim:]),
        (*strides[:dim], 1, *strides[dim:]),
    )
    return out, dim


@slice_p.def_pad
def _slice_pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Any,
    *,
    start: Shape,
    limit: Shape,
    strides: tuple[int, ...],
) -> Array:
    (x,) = args
    for axis, (low, high, step) in enumerate(zip(start, limit, strides, strict=True)):
        count = ctx.padded(slice_size(low, high, step))
        if isinstance(low, int):
            bound = min(op.shape_of(x)[axis], low + count * step)
            x = op.slice_axis(x, low, bound, axis, step)
            short = count - op.shape_of(x)[axis]
            if short:
                none = [0] * len(limit)
                x = op.pad(x, 0, none, [*none[:axis], short, *none[axis + 1 :]])
        else:  # counted from the end: the first element moves with the true size
            places = op.add(op.mul(op.iota((count,), 0), step), ctx.true_size(low))
            x = op.take(x, places, axis)
    return x


# ---------------------------------------------------------------- concatenate
def _concatenate_abstract(*arrays: Aval, axis: int) -> Aval:
    dtype = check_dtypes("concatenate", arrays, ANY)
    first = arrays[0]
    check_axis("concatenate", first, axis)
    total: Size = 0
    for aval in arrays:
        if aval.ndim != first.ndim or not same_shape(_without(aval, axis), _without(first, axis)):
            raise ShapeError(
                message(
                    f"concatenate along axis {axis} got {' and '.join(map(str, arrays))}",
                    None,
                    "All other axes must have equal sizes",
                )
            )
        total = total + aval.shape[axis]
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return Aval(shape, dtype, all(aval.weak for aval in arrays))


def _without(aval: Aval, axis: int) -> Shape:
    return aval.shape[:axis] + aval.shape[axis + 1 :]


concatenate_p = Primitive(
    "concatenate",
    abstract=_concatenate_abstract,
    doc="Operands joined along one axis.",
    reference=lambda *arrays, axis: np.concatenate(arrays, axis),
    tests=_record(
        OpCase(((3,), (4,)), {"axis": 0}),
        OpCase(((3, 2), (3, 5), (3, 1)), {"axis": 1}),
        OpCase(((3, 2), (1, 2)), {"axis": 0}),
        OpCase(((2, 3), (0, 3)), {"axis": 0}),
        OpCase(((33, 4), (100, 4)), {"axis": 0}),
    ),
)
concatenate_p.def_linear()
concatenate_p.def_cost(movement_cost(concatenate_p))


@concatenate_p.def_transpose
def _concatenate_transpose(ct: Array, *arrays: Array, axis: int) -> tuple[Array, ...]:
    cotangents: list[Array] = []
    start: Size = 0
    for x in arrays:
        shape = x.aval.shape if isinstance(x, Linear) else op.shape_of(x)
        end = start + shape[axis]
        linear = isinstance(x, Linear)
        cotangents.append(op.slice_axis(ct, start, end, axis) if linear else None)
        start = end
    return tuple(cotangents)


@concatenate_p.def_vmap
def _concatenate_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, *, axis: int
) -> tuple[Array, int]:
    moved = [ctx.to_front(x, dim, size) for x, dim in zip(args, dims, strict=True)]
    return op.concatenate(moved, axis + 1), 0


@concatenate_p.def_pad
def _concatenate_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axis: int
) -> Array:
    sizes = [shape[axis] for shape in true_shapes]
    if not any(ctx.is_padded(size) for size in sizes[:-1]):
        return op.concatenate(args, axis)  # padding of the last operand stays at the end
    total: Size = 0
    for size in sizes:
        total = total + size
    places = op.iota((ctx.padded(total),), 0)
    out: Array = None
    start: Size = 0
    for x, size in zip(args, sizes, strict=True):
        offset = ctx.true_size(start)
        part = op.take(x, op.sub(places, offset), axis)
        if out is None:
            out = part
        else:
            shape = op.shape_of(part)
            own = op.broadcast(op.ge(places, offset), shape, (axis,))
            out = op.select(own, part, out)
        start = start + size
    return out


# ---------------------------------------------------------------- pad
def _pad_abstract(
    x: Aval,
    value: Aval,
    *,
    low: Shape,
    high: Shape,
    interior: tuple[int, ...],
) -> Aval:
    check_dtypes("pad", (x, value), ANY)
    if value.shape or not len(low) == len(high) == len(interior) == x.ndim:
        raise ShapeError(
            message(
                f"pad of {x} with {value} got {len(low)} low and {len(high)} high widths",
                None,
                "Give one width per axis and a value without axes",
            )
        )
    shape: list[Size] = []
    for size, before, after, between in zip(x.shape, low, high, interior, strict=True):
        if not (before >= 0 and after >= 0 and between >= 0):
            raise ShapeError(
                message(
                    f"pad of {x} got negative widths {low}, {high}, {interior}",
                    None,
                    "Use slice to cut",
                )
            )
        gaps: Size = 0
        if between and not structurally_equal(size, 0):
            gaps = (size - 1) * between
        shape.append(before + size + gaps + after)
    return Aval(tuple(shape), x.dtype, x.weak and value.weak)


def _pad_reference(
    x: NumpyArray,
    value: NumpyArray,
    *,
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
) -> NumpyArray:
    out_aval = _pad_abstract(
        Aval(x.shape, x.dtype), Aval((), x.dtype), low=low, high=high, interior=interior
    )
    out = np.full([int(size) for size in out_aval.shape], value, x.dtype)
    places = (
        slice(before, before + size + max(size - 1, 0) * between, between + 1)
        for before, size, between in zip(low, x.shape, interior, strict=True)
    )
    out[tuple(places)] = x
    return out


pad_p = Primitive(
    "pad",
    abstract=_pad_abstract,
    doc="A value put before, after and between the elements of the first operand, per axis.",
    reference=_pad_reference,
    tests=_record(
        OpCase(((4,), ()), {"low": (2,), "high": (3,), "interior": (0,)}),
        OpCase(((3, 4), ()), {"low": (0, 1), "high": (2, 0), "interior": (1, 2)}),
        OpCase(((0, 4), ()), {"low": (2, 0), "high": (1, 0), "interior": (1, 0)}),
        OpCase(((3, 1), ()), {"low": (0, 1), "high": (130, 0), "interior": (0, 2)}),
    ),
)
pad_p.def_linear()
pad_p.def_cost(movement_cost(pad_p))


@pad_p.def_transpose
def _pad_transpose(
    ct: Array, x: Array, value: Array, *, low: Shape, high: Shape, interior: tuple[int, ...]
) -> tuple[Array, Array]:
    source = x.aval.shape if isinstance(x, Linear) else op.shape_of(x)
    limits = [
        before + size + ((size - 1) * between if not structurally_equal(size, 0) else 0)
        for size, before, between in zip(source, low, interior, strict=True)
    ]
    x_ct = value_ct = None
    inner = op.slice(ct, low, limits, [between + 1 for between in interior])
    if isinstance(x, Linear):
        x_ct = inner
    if isinstance(value, Linear):
        axes = range(len(source))
        value_ct = op.sub(op.reduce_sum(ct, axes), op.reduce_sum(inner, axes))
    return x_ct, value_ct


@pad_p.def_vmap
def _pad_vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    low: Shape,
    high: Shape,
    interior: tuple[int, ...],
) -> tuple[Array, int]:
    (x, value), (x_dim, value_dim) = args, dims
    x = ctx.to_front(x, x_dim, size)
    low, high, interior = (0, *low), (0, *high), (0, *interior)
    if value_dim is None:
        return op.pad(x, value, low, high, interior), 0
    # One value per example: pad with zero, then choose the value where nothing of x went.
    inside = op.pad(op.full(op.shape_of(x), True), False, low, high, interior)
    shape = op.shape_of(inside)
    filled = op.broadcast(value, shape, (0,))
    return op.select(inside, op.pad(x, 0, low, high, interior), filled), 0


@pad_p.def_pad
def _pad_pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[Shape],
    *,
    low: Shape,
    high: Shape,
    interior: tuple[int, ...],
) -> Array:
    x, value = args
    # Padding of the operand becomes the value itself, so the true widths need not be known.
    masked = ctx.mask(x, true_shapes[0], value)
    starts, ends = ([ctx.padded(width) for width in widths] for widths in (low, high))
    out = op.pad(masked, value, starts, ends, interior)
    for axis, width in enumerate(low):
        if not isinstance(width, int):  # the data begin after the true width, not the padded one
            count = op.shape_of(out)[axis]
            shift = op.sub(ctx.padded(width), ctx.true_size(width))
            out = op.take(out, op.add(op.iota((count,), 0), shift), axis)
    return out


# ---------------------------------------------------------------- reverse
def _reverse_abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
    for axis in axes:
        check_axis("reverse", x, axis)
    return x


reverse_p = Primitive(
    "reverse",
    abstract=_reverse_abstract,
    doc="Elements in reverse order along some axes.",
    reference=lambda x, *, axes: np.flip(x, axes),
    tests=_record(
        OpCase(((5,),), {"axes": (0,)}),
        OpCase(((3, 4),), {"axes": (1,)}),
        OpCase(((3, 4),), {"axes": (0, 1)}),
        OpCase(((131, 3),), {"axes": (0,)}),
    ),
)
reverse_p.def_linear()
reverse_p.def_transpose(lambda ct, x, *, axes: (op.reverse(ct, axes),))
reverse_p.def_cost(movement_cost(reverse_p))


@reverse_p.def_vmap
def _reverse_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, *, axes: tuple[int, ...]
) -> tuple[Array, int]:
    (dim,) = dims
    return op.reverse(args[0], [axis + (axis >= dim) for axis in axes]), dim


@reverse_p.def_pad
def _reverse_pad(
    ctx: Any, args: Sequence[Array], true_shapes: Sequence[Shape], *, axes: tuple[int, ...]
) -> Array:
    (x,), (shape,) = args, true_shapes
    x = op.reverse(x, [axis for axis in axes if not ctx.is_padded(shape[axis])])
    for axis in axes:
        if ctx.is_padded(shape[axis]):
            last = op.sub(ctx.true_size(shape[axis]), 1)
            x = op.take(x, op.sub(last, op.iota((op.shape_of(x)[axis],), 0)), axis)
    return x
