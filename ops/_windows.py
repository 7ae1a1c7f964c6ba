"""Windows that slide over the last axes of an array: sizes, padding, NumPy meaning.

Shared by convolution and reductions over windows. Per axis there are a window size, a stride, a
pair of padding widths (negative ones cut), and dilations of the array (its elements move apart)
and of the window (its taps move apart).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.core import Dim, ShapeError, Size, message, primitives, structurally_equal
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray

Array = Any
Sizes: TypeAlias = tuple[int, ...]
Pairs: TypeAlias = tuple[tuple[Size, Size], ...]


def dilated(size: Size, dilation: int) -> Size:
    """Elements that `size` elements span when they are `dilation` apart."""
    if dilation == 1 or structurally_equal(size, 0):
        return size
    return (size - 1) * dilation + 1


def check_window_params(
    name: str,
    rank: int,
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> None:
    """Raise ShapeError unless there is one of each per axis and strides and dilations are >= 1."""
    for what, values in (
        ("strides", strides),
        ("padding", padding),
        ("dilation", base_dilation),
        ("window dilation", window_dilation),
    ):
        if len(values) != rank:
            raise ShapeError(
                message(
                    f"{name} over {rank} axes got {what} {values}",
                    None,
                    "Give one entry per axis that windows slide over",
                )
            )
    for what, values in (
        ("strides", strides),
        ("dilation", base_dilation),
        ("window dilation", window_dilation),
    ):
        if any(value < 1 for value in values):
            raise ShapeError(message(f"{name} got {what} {values}", None, "Use numbers from 1 up"))


def window_counts(
    name: str,
    sizes: Sequence[Size],
    windows: Sequence[Size],
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> tuple[Size, ...]:
    """How many places a window has along each axis; 0 where the axis is shorter than it.

    Raises:
        ShapeError: padding cuts away more than there is.
        DimError: it cannot be decided whether a symbolic size leaves room for the window.
    """
    found: list[Size] = []
    for d, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        whole = dilated(size, base_dilation[d]) + padding[d][0] + padding[d][1]
        if isinstance(whole, int) and whole < 0:
            raise ShapeError(
                message(
                    f"{name} with padding {padding[d]} cuts an axis of size {size} away",
                    None,
                    "Cut less",
                )
            )
        room = whole - dilated(window, window_dilation[d])
        # Rounding down makes this right without a clamp down to one stride too little.
        fits = room + strides[d] >= 0
        count = room if strides[d] == 1 else room // strides[d]
        found.append(count + 1 if fits else 0)
    return tuple(found)


def padded_limits(
    ctx: Any,
    x: Array,
    fill: Array,
    first: int,
    true_sizes: Sequence[Size],
    windows: Sequence[Size],
    true_counts: Sequence[Size],
    strides: Sizes,
    padding: Pairs,
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> tuple[Array, tuple[tuple[int, int], ...], Sizes]:
    """Padding for a buffer such that windows of it have the padded number of places.

    Args:
        ctx: the context of a pad rule.
        x: the buffer, masked with `fill` beyond its true sizes.
        fill: what padding is made of.
        first: the first of the axes that windows slide over.
        true_sizes: symbolic sizes of those axes.
        windows: sizes of the window's buffer.
        true_counts: symbolic number of places.
        strides: between places.
        padding: true widths, possibly symbolic.
        base_dilation: of the array.
        window_dilation: of the window.

    Returns:
        The buffer, static padding for it, and the dilation it still needs: symbolic widths in front
        are put in already, between dilated elements.
    """
    pairs: list[tuple[int, int]] = []
    dilation = list(base_dilation)
    for d, (low, high) in enumerate(padding):
        axis = first + d
        symbolic = any(isinstance(v, Dim) for v in (true_sizes[d], low, high, true_counts[d]))
        before = low
        if isinstance(low, Dim):
            x = _pad_in_front(ctx, x, fill, axis, true_sizes[d], low, dilation[d])
            before, dilation[d] = 0, 1
        if not symbolic:
            pairs.append((_static(before), _static(high)))
            continue
        count = ctx.padded(true_counts[d])
        reach = dilated(windows[d], window_dilation[d])
        need = (count - 1) * strides[d] + reach if count else reach - 1
        whole = dilated(op.shape_of(x)[axis], dilation[d])
        pairs.append((_static(before), _static(need - before - whole)))
    return x, tuple(pairs), tuple(dilation)


def _static(size: Size) -> int:
    assert isinstance(size, int)
    return size


def _pad_in_front(
    ctx: Any, x: Array, fill: Array, axis: int, true_size: Size, low: Size, dilation: int
) -> Array:
    """The buffer behind a symbolic number of `fill`, which `pad` knows how to put there."""
    none: list[Size] = [0] * len(op.shape_of(x))
    widths, interior, shape = list(none), [0] * len(none), list(op.shape_of(x))
    widths[axis], interior[axis], shape[axis] = low, dilation - 1, true_size
    return primitives["pad"].rule("pad")(
        ctx,
        (x, op.scalar_like(fill, x)),
        (tuple(shape), ()),
        low=tuple(widths),
        high=tuple(none),
        interior=tuple(interior),
    )


def sliced(x: Array, start: Sequence[Size], stop: Sequence[Size], strides: Sizes) -> Array:
    """x cut along its last axes; x itself when nothing is cut."""
    kept = op.shape_of(x)[: len(op.shape_of(x)) - len(start)]
    whole = tuple(stop) == op.shape_of(x)[len(kept) :]
    if whole and not any(start) and all(s == 1 for s in strides):
        return x
    zeros, ones = [0] * len(kept), [1] * len(kept)
    return op.slice(x, (*zeros, *start), (*kept, *stop), (*ones, *strides))


def tap_slices(
    x: Array, window: Sizes, counts: Sequence[Size], strides: Sizes, dilation: Sizes
) -> list[Array]:
    """For each tap of a window over the last axes, in row-major order: x at all its places.

    Args:
        x: padded and dilated already.
        window: sizes of the window.
        counts: number of places.
        strides: between places.
        dilation: between taps.
    """
    empty = [structurally_equal(n, 0) for n in counts]
    reach = [
        0 if none else (n - 1) * s + 1 for n, s, none in zip(counts, strides, empty, strict=True)
    ]
    found = []
    for tap in itertools.product(*map(range, window)):
        start = [0 if none else t * d for t, d, none in zip(tap, dilation, empty, strict=True)]
        stop = [a + length for a, length in zip(start, reach, strict=True)]
        found.append(sliced(x, start, stop, strides))
    return found


# ---------------------------------------------------------------- NumPy meaning
def strided_windows(
    x: NumpyArray,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
    fill: Any,
) -> NumpyArray:
    """A view ``[*places, *window]`` of x, padded with `fill`: one entry per axis of x in each."""
    spread = [dilated(n, d) for n, d in zip(x.shape, base_dilation, strict=True)]
    whole = np.full(spread, fill, x.dtype)
    whole[tuple(slice(None, None, d) for d in base_dilation)] = x
    for axis, (low, high) in enumerate(padding):
        cut = slice(max(0, -low), max(0, whole.shape[axis] - max(0, -high)))
        whole = whole[(slice(None),) * axis + (cut,)]
    widths = [(max(0, low), max(0, high)) for low, high in padding]
    whole = np.pad(whole, widths, constant_values=fill) if widths else whole
    counts = window_counts(
        "windows", whole.shape, window, tuple(strides), ((0, 0),) * whole.ndim,
        (1,) * whole.ndim, tuple(window_dilation),
    )  # fmt: skip
    if 0 in counts or 0 in window:
        return np.zeros((*counts, *window), x.dtype)
    steps = whole.strides
    return np.lib.stride_tricks.as_strided(
        whole,
        (*counts, *window),  # type: ignore[arg-type]
        (
            *(a * s for a, s in zip(steps, strides, strict=True)),
            *(a * s for a, s in zip(steps, window_dilation, strict=True)),
        ),
        writeable=False,
    )
