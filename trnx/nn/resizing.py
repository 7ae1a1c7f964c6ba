"""Resizing of the axes of space by the nearest element or by linear interpolation."""

from __future__ import annotations

from collections.abc import Sequence

from trnx.core import Dim, ShapeError, UnsupportedError, aval_of, message
from trnx.nn._space import per_axis
from trnx.nn.activations import in_f32
from trnx.numpy._operands import Array, ArrayLike, as_float, as_operand
from trnx.ops import functions as op

METHODS = ("nearest", "linear")


def resize(
    x: ArrayLike,
    size: int | Sequence[int],
    method: str = "nearest",
    align_corners: bool = False,
) -> Array:
    """x with other sizes of its axes of space, as in `torch.nn.functional.interpolate`.

    Args:
        x: ``[batch, channels, *space]``.
        size: new sizes of space, a number or one per axis.
        method: ``"nearest"`` takes element ``⌊i·old/new⌋``; ``"linear"`` interpolates between the
            two nearest along every axis (bilinear for two). Neither filters when it shrinks.
        align_corners: first and last elements keep their places (linear only).

    Returns:
        ``[batch, channels, *size]``; floats for ``"linear"``.

    Raises:
        ShapeError: another method, or sizes that do not fit.
        UnsupportedError: an axis of symbolic size.
    """
    if method not in METHODS:
        raise ShapeError(
            message(f"resize got method {method!r}", None, f"Use {' or '.join(METHODS)}")
        )
    x = as_float("resize", x) if method == "linear" else as_operand(x)
    rank = aval_of(x).ndim - 2
    if rank < 1:
        raise ShapeError(message(f"resize of {aval_of(x)}", None, "Give [batch, channels, *space]"))
    sizes = per_axis("resize", "size", size, rank)

    def along_all(value: Array) -> Array:
        for d, new in enumerate(sizes):
            old = aval_of(value).shape[2 + d]
            if isinstance(old, Dim):
                raise UnsupportedError(
                    message(f"resize of an axis of size {old}", None, "Give it a static size")
                )
            if method == "nearest":
                value = _nearest(value, 2 + d, old, new)
            else:
                value = _linear(value, 2 + d, old, new, align_corners)
        return value

    return in_f32(along_all, x) if method == "linear" else along_all(x)


def _nearest(x: Array, axis: int, old: int, new: int) -> Array:
    if new == old:
        return x
    shape = aval_of(x).shape
    if new % old == 0:  # every element several times: a repeat, which moves nothing
        whole = (*shape[: axis + 1], new // old, *shape[axis + 1 :])
        dims = [a for a in range(len(whole)) if a != axis + 1]
        return op.reshape(op.broadcast(x, whole, dims), (*shape[:axis], new, *shape[axis + 1 :]))
    if old % new == 0:
        return op.slice_axis(x, 0, (new - 1) * (old // new) + 1, axis, old // new)
    place = op.floor_divide(op.mul(op.iota((new,), 0), old), new)
    return op.take(x, place, axis)


def _linear(x: Array, axis: int, old: int, new: int, align_corners: bool) -> Array:
    if new == old:
        return x
    # The place of element i is (i·up + lead) / down, a fraction of whole numbers: exact.
    if align_corners:
        up, lead, down = (old - 1, 0, new - 1) if new > 1 else (0, 0, 1)
    else:
        up, lead, down = 2 * old, old - new, 2 * new
    number = op.add(op.mul(op.iota((new,), 0), up), lead)
    number = op.max(op.min(number, (old - 1) * down), 0)
    low = op.floor_divide(number, down)
    rest = op.sub(number, op.mul(low, down))
    dtype = aval_of(x).dtype
    share = op.div(op.convert(rest, dtype), op.scalar_like(float(down), x))
    first = op.take(x, low, axis)
    second = op.take(x, op.min(op.add(low, 1), old - 1), axis)
    share = op.broadcast(share, aval_of(first).shape, (axis,))
    return op.add(first, op.mul(op.sub(second, first), share))
