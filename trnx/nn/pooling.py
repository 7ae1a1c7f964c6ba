"""Pooling: maxima and means over windows of the axes of space, in the layout of `torch.nn`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Dim, ShapeError, UnsupportedError, aval_of, message, primitives
from trnx.nn._space import per_axis
from trnx.nn.activations import in_f32
from trnx.numpy._operands import Array, ArrayLike, as_float, as_operand
from trnx.ops import functions as op
from trnx.ops.windows import reduce_window

Space = int | Sequence[int]


def _rank(name: str, x: Array) -> int:
    rank = aval_of(x).ndim - 2
    if rank < 1:
        raise ShapeError(
            message(f"{name} of {aval_of(x)}", None, "Give x [batch, channels, *space]")
        )
    return rank


def _pairs(
    name: str, x: Array, window: tuple[int, ...], strides: tuple[int, ...], cut: tuple[int, ...],
    apart: tuple[int, ...], ceil_mode: bool,
) -> list[tuple[Any, Any]]:  # fmt: skip
    """Padding per axis; with `ceil_mode` the end grows so that a last window is not left out."""
    pairs: list[tuple[Any, Any]] = []
    for size, k, s, p, d in zip(aval_of(x).shape[2:], window, strides, cut, apart, strict=True):
        reach = (k - 1) * d + 1
        if p > k // 2:
            raise ShapeError(
                message(
                    f"{name} with window {k} got padding {p}", None, "Pad by half a window at most"
                )
            )
        more = 0
        if ceil_mode:
            if isinstance(size, Dim):
                raise UnsupportedError(
                    message(
                        f"{name} with ceil_mode over an axis of size {size}",
                        None,
                        "Give the axis a static size",
                    )
                )
            places = -(-(size + 2 * p - reach) // s) + 1
            if (places - 1) * s >= size + p:
                places -= 1  # a window that would begin in the padding at the end
            more = max(0, (places - 1) * s + reach - size - 2 * p)
        pairs.append((p, p + more))
    return pairs


def max_pool(
    x: ArrayLike,
    window: Space,
    stride: Space | None = None,
    padding: Space = 0,
    dilation: Space = 1,
    ceil_mode: bool = False,
) -> Array:
    """Maxima over windows; padding never wins and NaN does.

    Args:
        x: ``[batch, channels, *space]``.
        window: size of the window, a number or one per axis of space.
        stride: elements between places; the window's size by default.
        padding: elements on both sides, at most half a window.
        dilation: elements between taps.
        ceil_mode: keep a last window that reaches beyond the end.

    Raises:
        ShapeError: numbers of axes or sizes do not fit.
    """
    x = as_operand(x)
    rank = _rank("max_pool", x)
    size = per_axis("max_pool", "window", window, rank)
    strides = size if stride is None else per_axis("max_pool", "stride", stride, rank)
    cut = per_axis("max_pool", "padding", padding, rank, least=0)
    apart = per_axis("max_pool", "dilation", dilation, rank)
    pairs = _pairs("max_pool", x, size, strides, cut, apart, ceil_mode)
    return primitives["reduce_window_max"].bind(
        x,
        window=(1, 1, *size),
        strides=(1, 1, *strides),
        padding=((0, 0), (0, 0), *pairs),
        base_dilation=(1,) * (rank + 2),
        window_dilation=(1, 1, *apart),
    )


def avg_pool(
    x: ArrayLike,
    window: Space,
    stride: Space | None = None,
    padding: Space = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """Means over windows.

    Args:
        x: ``[batch, channels, *space]``.
        window: size of the window, a number or one per axis of space.
        stride: elements between places; the window's size by default.
        padding: zeros on both sides, at most half a window.
        ceil_mode: keep a last window that reaches beyond the end; what lies beyond the padding is
            not counted.
        count_include_pad: count the padding's zeros as elements.

    Raises:
        ShapeError: numbers of axes or sizes do not fit.
    """
    x = as_float("avg_pool", x)
    rank = _rank("avg_pool", x)
    size = per_axis("avg_pool", "window", window, rank)
    strides = size if stride is None else per_axis("avg_pool", "stride", stride, rank)
    cut = per_axis("avg_pool", "padding", padding, rank, least=0)
    ones = (1,) * rank
    pairs = _pairs("avg_pool", x, size, strides, cut, ones, ceil_mode)

    def total(values: Array, padding: Sequence[tuple[Any, Any]]) -> Array:
        return reduce_window(
            values, 0, "add", (1, 1, *size), (1, 1, *strides), ((0, 0), (0, 0), *padding)
        )

    sums = total(x, pairs)
    plain = all(pair == (p, p) for pair, p in zip(pairs, cut, strict=True))
    if plain and (count_include_pad or not any(cut)):
        count = 1
        for k in size:
            count *= k
        return op.mul(sums, 1.0 / count)
    shape = (1, 1, *aval_of(x).shape[2:])
    counted = op.full(shape, 1.0, aval_of(x).dtype)
    if count_include_pad:
        own = [0, 0, *cut]
        counted = op.pad(counted, 1.0, own, own)
        pairs = [(0, high - p) for (_, high), p in zip(pairs, cut, strict=True)]
    counts = total(counted, pairs)
    whole = aval_of(sums).shape
    return op.div(sums, op.broadcast(counts, whole, range(rank + 2)))


def _adaptive(
    name: str, x: Array, output_size: Space, reduce: Callable[[Array, tuple[int, ...]], Array]
) -> Array:
    """One reduction per cell of a grid that cuts each axis as evenly as it goes.

    Cell i of n over a size s goes from ⌊i·s/n⌋ to ⌈(i+1)·s/n⌉, as in torch. Where n divides s, the
    axis is a grid by a reshape.
    """
    rank = _rank(name, x)
    counts = per_axis(name, "output_size", output_size, rank)
    for d, count in enumerate(counts):
        axis, size = 2 + d, aval_of(x).shape[2 + d]
        if isinstance(size, Dim) and count != 1:
            raise UnsupportedError(
                message(
                    f"{name} to {count} cells along an axis of size {size}",
                    None,
                    "Give the axis a static size, or one cell",
                )
            )
        shape = aval_of(x).shape
        if count == 1 or (isinstance(size, int) and size % count == 0):
            cell = size if count == 1 else size // count
            grid = op.reshape(x, (*shape[:axis], count, cell, *shape[axis + 1 :]))
            x = reduce(grid, (axis + 1,))
            continue
        assert isinstance(size, int)
        cells = []
        for i in range(count):
            low, high = i * size // count, -(-(i + 1) * size // count)
            part = reduce(op.slice_axis(x, low, high, axis), (axis,))
            cells.append(op.expand(part, axis))
        x = op.concatenate(cells, axis)
    return x


def adaptive_avg_pool(x: ArrayLike, output_size: Space) -> Array:
    """Means over a grid of `output_size` cells that covers the axes of space.

    Args:
        x: ``[batch, channels, *space]``.
        output_size: cells, a number or one per axis.

    Raises:
        ShapeError: numbers of axes do not fit.
        UnsupportedError: several cells along an axis of symbolic size.
    """

    def mean(values: Array, axes: tuple[int, ...]) -> Array:
        (axis,) = axes
        size = op.dim_size(aval_of(values).shape[axis], aval_of(values).dtype)
        return op.div(op.reduce_sum(values, axes), size)

    name = "adaptive_avg_pool"
    return in_f32(lambda v: _adaptive(name, v, output_size, mean), as_float(name, x))


def adaptive_max_pool(x: ArrayLike, output_size: Space) -> Array:
    """Maxima over a grid of `output_size` cells; see :func:`adaptive_avg_pool`."""
    return _adaptive("adaptive_max_pool", as_operand(x), output_size, op.reduce_max)
