"""Reductions over windows as elementwise work on slices.

Each tap of a window is a slice of the padded array, so a small window is one kernel of elementwise
instructions. A larger one goes axis by axis; along an axis a window that does not overlap itself is
a reshape and a reduction, and one that moves by one element is put together from windows of half
its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.passes.expand import expansion
from trnx.compiler.passes.expand_conv import static_counts, static_sizes
from trnx.compiler.targets import Target
from trnx.core import Aval, Params
from trnx.core.dtypes import float32, is_complex, is_float
from trnx.ops import functions as op
from trnx.ops._windows import Sizes, sliced, tap_slices
from trnx.ops.reduce import highest, lowest

Array: TypeAlias = Any
Combine: TypeAlias = Callable[[Array, Array], Array]

MOST_TAPS = 16
"""Taps that one kernel reads: more loads than these cost more than another pass over memory."""

_KINDS: dict[str, tuple[str, Callable[[np.dtype[Any]], Any]]] = {
    "reduce_window_sum": ("add", lambda dtype: 0),
    "reduce_window_max": ("max", lowest),
    "reduce_window_min": ("min", highest),
    "reduce_window_prod": ("mul", lambda dtype: 1),
}


def _enter(name: str) -> None:
    function, identity = _KINDS[name]

    @expansion(name)
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        if is_complex(avals[0].dtype):
            return None  # complex numbers have no tiles
        return lambda x, **given: _windows(name, getattr(op, function), identity, x, **given)


for _name in _KINDS:
    _enter(_name)


def _windows(
    name: str,
    combine: Combine,
    identity: Callable[[np.dtype[Any]], Any],
    x: Array,
    *,
    window: Sizes,
    strides: Sizes,
    padding: Sequence[tuple[int, int]],
    base_dilation: Sizes,
    window_dilation: Sizes,
) -> Array:
    dtype = op.dtype_of(x)
    rank = len(window)
    narrow = is_float(dtype) and dtype.itemsize < 4 and combine in (op.add, op.mul)
    start = identity(dtype)
    low, high = [a for a, _ in padding], [b for _, b in padding]
    x = op.pad(x, start, low, high, [d - 1 for d in base_dilation])
    counts = static_counts(static_sizes(name, x), window, strides, window_dilation)
    if 0 in counts:
        return op.broadcast(dtype.type(start), counts, ())
    if narrow:
        x = op.convert(x, float32)
    if int(np.prod(window)) <= MOST_TAPS:
        x = _combined(combine, tap_slices(x, window, counts, strides, window_dilation))
    else:
        for axis in range(rank):
            x = _along(
                name, combine, x, axis, window[axis], strides[axis], window_dilation[axis],
                counts[axis],
            )  # fmt: skip
    return op.convert(x, dtype) if narrow else x


def _combined(combine: Combine, parts: Sequence[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


def _along(
    name: str,
    combine: Combine,
    x: Array,
    axis: int,
    window: int,
    stride: int,
    dilation: int,
    count: int,
) -> Array:
    """A reduction over windows along one axis."""
    sizes = static_sizes(name, x)
    rank = len(sizes)

    def slice_from(value: Array, first: int, many: int, step: int) -> Array:
        start, stop, steps = [0] * rank, list(op.shape_of(value)), [1] * rank
        start[axis], stop[axis], steps[axis] = first, first + (many - 1) * step + 1, step
        return sliced(value, start, stop, tuple(steps))

    reach = (window - 1) * dilation + 1
    reduction = _REDUCTIONS.get(name)
    if count == 1 and dilation == 1 and reduction is not None and window > 1:
        whole = slice_from(x, 0, window, 1)
        kept = [n for a, n in enumerate(sizes) if a != axis]
        return op.reshape(reduction(whole, (axis,)), (*kept[:axis], 1, *kept[axis:]))
    if window <= MOST_TAPS:
        parts = [slice_from(x, t * dilation, count, stride) for t in range(window)]
        return _combined(combine, parts)
    # Windows of 1, 2, 4, … taps at every place; those of the size's bits beside each other.
    partial, size, done = x, 1, 0
    total: Array = None
    length = sizes[axis]
    while True:
        if window & size:
            places = (count - 1) * stride + 1
            part = slice_from(partial, done * dilation, places, 1)
            part = slice_from(part, 0, count, stride)
            total = part if total is None else combine(total, part)
            done += size
        if done == window:
            break
        length -= size * dilation
        partial = combine(
            slice_from(partial, 0, length, 1), slice_from(partial, size * dilation, length, 1)
        )
        size *= 2
    assert reach <= sizes[axis]
    return total


_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "reduce_window_sum": op.reduce_sum,
    "reduce_window_max": op.reduce_max,
    "reduce_window_min": op.reduce_min,
}
