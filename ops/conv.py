"""Convolution: windows of one operand, contracted with the channels and taps of another.

The primitive has one layout: operands ``[batch, channels, *space]`` and ``[out channels, channels
per group, *window]``, result ``[batch, out channels, *space]``. Other layouts are transposes around
it (`trnx.ops.windows.conv_general_dilated`), which the compiler folds into access patterns; groups
of the batch are a reshape. As in every such library the window is not flipped.

Both gradients are convolutions again: that of the operand slides the flipped window over the
cotangent, that of the window slides the cotangent over the operand. bf16 and f16 products are
summed in f32 and rounded once; integers wrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    Dim,
    DTypeError,
    Linear,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    UnsupportedError,
    dtypes,
    message,
    primitives,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    FLOAT,
    INTEGER,
    NumpyArray,
    check_dtypes,
    def_bilinear_jvp,
    elements,
    nbytes,
)
from trnx.ops._windows import (
    Pairs,
    Sizes,
    check_window_params,
    dilated,
    padded_limits,
    strided_windows,
    window_counts,
)

Array = Any
DType = np.dtype[Any]


def _abstract(
    lhs: Aval,
    rhs: Aval,
    *,
    strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    groups: int,
    out_dtype: DType,
) -> Aval:
    dtype = check_dtypes("conv", (lhs, rhs), (*FLOAT, *INTEGER, *dtypes.COMPLEXES))
    if dtypes.is_inexact(dtype) != dtypes.is_inexact(out_dtype) or out_dtype == dtypes.bool_:
        raise DTypeError(
            message(
                f"conv of {lhs} and {rhs} cannot give {dtypes.short_name(out_dtype)}",
                None,
                "Cast the operands first",
            )
        )
    if lhs.ndim != rhs.ndim or lhs.ndim < 2:
        raise ShapeError(
            message(
                f"conv got {lhs} and {rhs}",
                None,
                "Give [batch, channels, *space] and [out channels, channels, *window]",
            )
        )
    check_window_params("conv", lhs.ndim - 2, strides, padding, lhs_dilation, rhs_dilation)
    channels, own = lhs.shape[1], rhs.shape[1]
    divides = not isinstance(rhs.shape[0], int) or (groups > 0 and rhs.shape[0] % groups == 0)
    if groups < 1 or not divides or not structurally_equal(channels, own * groups):
        raise ShapeError(
            message(
                f"conv of {lhs} and {rhs} in {groups} groups: {channels} channels, "
                f"{own} per group, {rhs.shape[0]} out channels",
                None,
                "Channels must be groups times those of the window, and groups divide its first "
                "axis",
            )
        )
    space = window_counts(
        "conv", lhs.shape[2:], rhs.shape[2:], strides, padding, lhs_dilation, rhs_dilation
    )
    return Aval((lhs.shape[0], rhs.shape[0], *space), out_dtype)


def _reference(
    lhs: NumpyArray,
    rhs: NumpyArray,
    *,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    groups: int,
    out_dtype: DType,
) -> NumpyArray:
    # f64 holds sums of f32 products to the last bit; integers wrap in the result type.
    wide = np.dtype(np.float64) if dtypes.is_float(lhs.dtype) else out_dtype
    rank = lhs.ndim - 2
    x = strided_windows(
        lhs.astype(wide), (1, 1, *rhs.shape[2:]), (1, 1, *strides), ((0, 0), (0, 0), *padding),
        (1, 1, *lhs_dilation), (1, 1, *rhs_dilation), 0,
    )  # fmt: skip
    batch, channels = lhs.shape[:2]
    # [batch, channels, *out, 1, 1, *window] with the groups apart
    x = x.reshape(batch, groups, channels // groups, *x.shape[2 : 2 + rank], *rhs.shape[2:])
    w = rhs.astype(wide).reshape(groups, rhs.shape[0] // groups, *rhs.shape[1:])
    out, window = "xyz"[:rank], "ijk"[:rank]
    with np.errstate(all="ignore"):
        y = np.einsum(f"ngc{out}{window},goc{window}->ngo{out}", x, w)
    return y.reshape(batch, rhs.shape[0], *y.shape[3:]).astype(out_dtype)


def _case(
    lhs: tuple[int, ...],
    rhs: tuple[int, ...],
    strides: Any = None,
    padding: Any = None,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    groups: int = 1,
    dtype: DType = dtypes.float32,
    out: DType | None = None,
) -> OpCase:
    rank = len(lhs) - 2
    params = {
        "strides": strides or (1,) * rank,
        "padding": padding or ((0, 0),) * rank,
        "lhs_dilation": lhs_dilation or (1,) * rank,
        "rhs_dilation": rhs_dilation or (1,) * rank,
        "groups": groups,
        "out_dtype": out or dtype,
    }
    limit = 2.0 if math.prod(rhs[1:]) < 100 else 0.5  # long sums would cancel too much to compare
    return OpCase((lhs, rhs), params, ((-limit, limit),) * 2, (dtype, dtype))


def _cases() -> tuple[OpCase, ...]:
    forms: list[dict[str, Any]] = [
        {"lhs": (2, 3, 7), "rhs": (4, 3, 3)},
        {"lhs": (2, 3, 7), "rhs": (4, 3, 3), "strides": (2,), "padding": ((1, 2),)},
        {"lhs": (2, 3, 5, 6), "rhs": (4, 3, 3, 2), "padding": ((1, 1), (0, 1))},
        {"lhs": (1, 4, 6, 5), "rhs": (6, 2, 3, 3), "groups": 2, "padding": ((1, 1), (1, 1))},
        {"lhs": (2, 3, 5, 6), "rhs": (3, 1, 3, 3), "groups": 3, "strides": (2, 1)},
        {"lhs": (2, 3, 5, 6), "rhs": (6, 1, 2, 3), "groups": 3, "padding": ((1, 0), (1, 1))},
        {"lhs": (2, 3, 4, 4), "rhs": (5, 3, 1, 1)},
        {"lhs": (2, 3, 5, 5), "rhs": (5, 3, 1, 1), "strides": (2, 2)},
        {"lhs": (1, 2, 4, 3), "rhs": (3, 2, 3, 2), "lhs_dilation": (2, 3),
         "padding": ((2, 1), (1, 1))},
        {"lhs": (1, 2, 8, 7), "rhs": (3, 2, 3, 2), "rhs_dilation": (2, 3), "strides": (1, 2)},
        {"lhs": (1, 2, 7, 6), "rhs": (3, 2, 2, 2), "padding": ((-1, 1), (2, -2))},
        {"lhs": (1, 2, 3, 4, 3), "rhs": (2, 2, 2, 2, 2), "padding": ((1, 0), (0, 0), (1, 1))},
        {"lhs": (1, 130, 5, 4), "rhs": (131, 130, 3, 3), "padding": ((1, 1), (1, 1))},
        {"lhs": (2, 2, 2), "rhs": (3, 2, 5)},
        {"lhs": (0, 2, 4), "rhs": (3, 2, 2)},
        {"lhs": (2, 0, 4), "rhs": (3, 0, 2)},
        {"lhs": (2, 3), "rhs": (4, 3)},
    ]  # fmt: skip
    small = [f for f in forms if 130 not in f["lhs"]]
    found = [_case(**form, dtype=t) for form in forms for t in (dtypes.float32,)]
    found += [_case(**form, dtype=t) for form in small for t in (dtypes.float64,)]
    brief = [small[i] for i in (1, 3, 5, 8)]
    kinds: list[tuple[DType, DType]] = [
        (t, t) for t in (dtypes.bfloat16, dtypes.float16, dtypes.int32)
    ]
    kinds += [(dtypes.bfloat16, dtypes.float32), (dtypes.int8, dtypes.int32)]
    kinds += [(dtypes.uint8, dtypes.int32), (dtypes.int64, dtypes.int64)]
    found += [_case(**form, dtype=t, out=out) for form in brief for t, out in kinds]
    found.append(_case(**forms[2], dtype=dtypes.complex64))
    return tuple(found)


conv_p = Primitive(
    "conv",
    abstract=_abstract,
    doc="Sums of products of a window with every place of [batch, channels, *space]: strides, "
    "padding, dilation of both, groups of channels.",
    reference=_reference,
    tests=TestRecord(
        _cases(),
        (dtypes.float64,),
        {"f32": 2e-5, "f64": 4e-14, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-5},
        grad_order=2,
        floor=1.0,
    ),
)


def_bilinear_jvp(conv_p)


# ---------------------------------------------------------------- gradients
@conv_p.def_transpose
def _transpose(
    ct: Array,
    lhs: Array,
    rhs: Array,
    *,
    strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    groups: int,
    out_dtype: DType,
) -> tuple[Array, Array]:
    params = (strides, padding, lhs_dilation, rhs_dilation, groups)
    if isinstance(lhs, Linear):
        return _lhs_cotangent(ct, lhs.aval, rhs, *params), None
    return None, _rhs_cotangent(ct, lhs, rhs.aval, *params)


def _lhs_cotangent(
    ct: Array,
    aval: Aval,
    rhs: Array,
    strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    groups: int,
) -> Array:
    """The cotangent, dilated by the strides, under the flipped window with its channels swapped."""
    shape = op.shape_of(rhs)
    out, channels, window = shape[0], shape[1], shape[2:]
    flipped = op.reverse(op.convert(rhs, op.dtype_of(ct)), range(2, len(shape)))
    parts = op.reshape(flipped, (groups, _exact(out, groups), channels, *window))
    swapped = op.reshape(
        op.moveaxis(parts, 2, 1), (groups * channels, _exact(out, groups), *window)
    )
    pairs = []
    for d, (low, _) in enumerate(padding):
        reach = dilated(window[d], rhs_dilation[d])
        before = reach - low - 1
        whole = dilated(aval.shape[2 + d], lhs_dilation[d])
        slid = dilated(op.shape_of(ct)[2 + d], strides[d])
        pairs.append((before, whole + reach - 1 - slid - before))
    return op.conv(
        ct,
        swapped,
        strides=lhs_dilation,
        padding=tuple(pairs),
        lhs_dilation=strides,
        rhs_dilation=rhs_dilation,
        groups=groups,
        out_dtype=aval.dtype,
    )


def _rhs_cotangent(
    ct: Array,
    lhs: Array,
    aval: Aval,
    strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    groups: int,
) -> Array:
    """The cotangent as a window over the operand, channels as batch and batch as channels."""
    shape = op.shape_of(lhs)
    batch, own = shape[0], aval.shape[1]
    parts = op.reshape(op.convert(lhs, op.dtype_of(ct)), (batch, groups, own, *shape[2:]))
    order = (2, 1, 0, *range(3, len(shape) + 1))
    images = op.reshape(op.transpose(parts, order), (own, groups * batch, *shape[2:]))
    windows = op.moveaxis(ct, 1, 0)
    pairs = []
    for d, (low, _) in enumerate(padding):
        reach = dilated(aval.shape[2 + d], rhs_dilation[d])
        slid = dilated(op.shape_of(ct)[2 + d], strides[d])
        pairs.append((low, slid - dilated(shape[2 + d], lhs_dilation[d]) + reach - low - 1))
    product = op.conv(
        images,
        windows,
        strides=rhs_dilation,
        padding=tuple(pairs),
        lhs_dilation=lhs_dilation,
        rhs_dilation=strides,
        groups=groups,
        out_dtype=aval.dtype,
    )
    return op.moveaxis(product, 1, 0)


def _exact(size: Size, divisor: int) -> Size:
    return size if divisor == 1 else size // divisor


# ---------------------------------------------------------------- vmap
@conv_p.def_vmap
def _vmap(
    ctx: Any,
    args: Sequence[Array],
    dims: Sequence[int | None],
    size: Size,
    *,
    groups: int,
    **params: Any,
) -> tuple[Array, int]:
    """Mapped images join the batch, mapped windows the out channels, both together the groups."""
    (lhs, rhs), (lhs_dim, rhs_dim) = args, dims
    if rhs_dim is None:
        assert lhs_dim is not None
        lhs = op.moveaxis(lhs, lhs_dim, 0)
        shape = op.shape_of(lhs)
        merged = op.reshape(lhs, (shape[0] * shape[1], *shape[2:]))
        out = op.conv(merged, rhs, groups=groups, **params)
        return op.reshape(out, (shape[0], shape[1], *op.shape_of(out)[1:])), 0
    rhs = op.moveaxis(rhs, rhs_dim, 0)
    out_channels = op.shape_of(rhs)[1]
    if lhs_dim is None or isinstance(size, Dim):
        if lhs_dim is not None:
            raise UnsupportedError(
                message(
                    f"vmap of conv over images and windows of symbolic size {size}",
                    None,
                    "Map over a static size, or over one of the operands",
                )
            )
        rest = op.shape_of(rhs)[2:]
        per_group = _exact(out_channels, groups)
        apart = op.moveaxis(op.reshape(rhs, (size, groups, per_group, *rest)), 0, 1)
        merged = op.reshape(apart, (groups * size * per_group, *rest))
        out = op.conv(lhs, merged, groups=groups, **params)
        shape = op.shape_of(out)
        out = op.reshape(out, (shape[0], groups, size, per_group, *shape[2:]))
        out = op.moveaxis(out, 2, 0)
        return op.reshape(out, (size, shape[0], out_channels, *shape[2:])), 0
    lhs = op.moveaxis(lhs, lhs_dim, 1)
    shape = op.shape_of(lhs)
    images = op.reshape(lhs, (shape[0], shape[1] * shape[2], *shape[3:]))
    windows = op.reshape(rhs, (size * out_channels, *op.shape_of(rhs)[2:]))
    out = op.conv(images, windows, groups=groups * size, **params)
    return op.reshape(out, (shape[0], size, out_channels, *op.shape_of(out)[2:])), 1


# ---------------------------------------------------------------- pad
@conv_p.def_pad
def _pad(
    ctx: Any,
    args: Sequence[Array],
    true_shapes: Sequence[tuple[Size, ...]],
    *,
    strides: Sizes,
    padding: Pairs,
    lhs_dilation: Sizes,
    rhs_dilation: Sizes,
    groups: int,
    out_dtype: DType,
) -> Array:
    """Channels, space and window are masked with zero: what lies beyond them then adds nothing."""
    (lhs, rhs), (lhs_true, rhs_true) = args, true_shapes
    out_true = window_counts(
        "conv", lhs_true[2:], rhs_true[2:], strides, padding, lhs_dilation, rhs_dilation
    )
    out_shape: tuple[Size, ...] = (lhs_true[0], rhs_true[0], *out_true)
    if groups > 1:
        lhs, lhs_true = _apart(ctx, lhs, lhs_true, 1, groups)
        rhs, rhs_true = _apart(ctx, rhs, rhs_true, 0, groups)
    free = 1 + (groups > 1)  # batch and groups; groups and out channels
    # Neither zero times garbage nor garbage times zero may meet: both sides.
    lhs = ctx.mask(lhs, (*op.shape_of(lhs)[:free], *lhs_true[free:]), 0)
    rhs = ctx.mask(rhs, (*op.shape_of(rhs)[:free], *rhs_true[free:]), 0)
    if groups > 1:
        lhs, rhs = _merged(lhs, 1), _merged(rhs, 0)
    lhs, pairs, dilation = padded_limits(
        ctx, lhs, 0, 2, lhs_true[free + 1 :], op.shape_of(rhs)[2:], out_true, strides, padding,
        lhs_dilation, rhs_dilation,
    )  # fmt: skip
    out = op.conv(
        lhs,
        rhs,
        strides=strides,
        padding=pairs,
        lhs_dilation=dilation,
        rhs_dilation=rhs_dilation,
        groups=groups,
        out_dtype=out_dtype,
    )
    if groups == 1 or not ctx.is_padded(out_shape[1]):
        return out
    shape = op.shape_of(out)
    out = op.reshape(out, (shape[0], groups, shape[1] // groups, *shape[2:]))
    true = (out_shape[0], groups, _exact(out_shape[1], groups), *out_shape[2:])
    return _reshaped(ctx, out, true, out_shape)


def _apart(
    ctx: Any, x: Array, true: tuple[Size, ...], axis: int, groups: int
) -> tuple[Array, tuple[Size, ...]]:
    """Buffer and true shape with the groups on an axis of their own, where sizes are whole."""
    split = (*true[:axis], groups, _exact(true[axis], groups), *true[axis + 1 :])
    return _reshaped(ctx, x, true, split), split


def _merged(x: Array, axis: int) -> Array:
    shape = op.shape_of(x)
    return op.reshape(x, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _reshaped(ctx: Any, x: Array, source: tuple[Size, ...], target: tuple[Size, ...]) -> Array:
    """The reshape of a padded buffer between two symbolic shapes."""
    return primitives["reshape"].rule("pad")(ctx, (x,), (source,), shape=target)


@conv_p.def_cost
def _cost(lhs: Aval, rhs: Aval, **params: Any) -> Cost:
    out = _abstract(lhs, rhs, **params)
    taps = elements(Aval(rhs.shape[1:], rhs.dtype))
    return Cost(
        flops=2 * elements(out) * taps, bytes_read=nbytes(lhs, rhs), bytes_written=nbytes(out)
    )
