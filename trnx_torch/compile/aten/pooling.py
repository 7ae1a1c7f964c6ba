"""Pooling and resampling. Windows are strided slices: one per place in the window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

import trnx
import trnx.lax as lax
import trnx.numpy as np
from trnx.core.dtypes import integer_range, is_integer
from trnx_torch.compile.aten.movement import padded
from trnx_torch.compile.aten.registry import lowers

Value = Any


def _each(sizes: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    if isinstance(sizes, int):
        return (sizes,) * axes
    return tuple(sizes) * axes if len(sizes) == 1 else tuple(sizes)


class _Windows:
    """Windows over the last axes of an array.

    Attributes:
        size: windows per axis.
    """

    def __init__(
        self,
        shape: Sequence[int],
        window: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> None:
        self.shape, self.window, self.stride = tuple(shape), tuple(window), tuple(stride)
        self.padding, self.dilation = tuple(padding), tuple(dilation)
        self.size = tuple(
            _count(n, k, s, p, d, ceil_mode)
            for n, k, s, p, d in zip(shape, window, stride, padding, dilation, strict=True)
        )

    def around(self, x: Value, fill: Value) -> Value:
        """``x`` with `fill` around it, so that every window lies inside."""
        config = [(0, 0, 0)] * (x.ndim - len(self.window))
        for n, k, s, p, d, count in zip(
            self.shape, self.window, self.stride, self.padding, self.dilation, self.size,
            strict=True,
        ):  # fmt: skip
            reach = (count - 1) * s + d * (k - 1) + 1
            config.append((p, max(reach - n - p, 0), 0))
        return padded(x, fill, config)

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Per place in the window: where it is, and the slice of the padded array it reads."""
        for place in itertools.product(*map(range, self.window)):
            starts = [k * d for k, d in zip(place, self.dilation, strict=True)]
            yield (
                place,
                tuple(
                    slice(start, start + (count - 1) * step + 1, step)
                    for start, count, step in zip(starts, self.size, self.stride, strict=True)
                ),
            )

    def positions(self, place: Sequence[int], axis: int) -> numpy.ndarray:
        """Index in the array, along one axis, that a place in the window has in each window."""
        start = place[axis] * self.dilation[axis] - self.padding[axis]
        return start + numpy.arange(self.size[axis]) * self.stride[axis]


def _count(n: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """Windows along an axis; with `ceil_mode` one more that begins inside, if one is cut off."""
    room = n + 2 * p - d * (k - 1) - 1
    count = (room + (s - 1 if ceil_mode else 0)) // s + 1
    return count - 1 if ceil_mode and (count - 1) * s >= n + p else count


def _lowest(x: Value) -> Any:
    low = integer_range(x.dtype)[0] if is_integer(x.dtype) else -math.inf
    return np.full((), low, dtype=x.dtype)


@lowers("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(
    x: Value,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = 0,  # type: ignore[assignment]
    dilation: Sequence[int] = 1,  # type: ignore[assignment]
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """The largest of each window and its place in the image; NaN is larger than everything."""
    axes = 2 if isinstance(window, int) else max(len(window), 2)
    size = _each(window, axes)
    windows = _Windows(
        x.shape[-axes:],
        size,
        _each(stride, axes) if stride else size,
        _each(padding, axes),
        _each(dilation, axes),
        ceil_mode,
    )
    wide = windows.around(x, _lowest(x))
    best: Value = None
    place: Value = None
    for taken, cut in windows.taps():
        value = wide[(..., *cut)]
        index = _flat_index(windows, taken)
        if best is None:
            best, place = value, np.broadcast_to(index, value.shape)
            continue
        better = (value > best) | (value != value)
        best, place = np.where(better, value, best), np.where(better, index, place)
    return best, place.astype(np.int64)


def _flat_index(windows: _Windows, place: Sequence[int]) -> Value:
    """Row-major index in the image of one place of every window, as int32."""
    total: Any = 0
    for axis, n in enumerate(windows.shape):
        own = windows.positions(place, axis)
        total = total * n + own.reshape(-1, *(1,) * (len(windows.shape) - 1 - axis))
    return np.asarray(numpy.asarray(total).astype(numpy.int32))


@lowers("max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default")
def _max_pool_backward(
    grad: Value,
    x: Value,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    axes = max(len(window), 2)
    lead = x.shape[: x.ndim - axes]
    wide = np.float32 if x.dtype.itemsize < 4 else x.dtype
    zeros = np.zeros((*lead, math.prod(x.shape[-axes:])), dtype=wide)
    flat = np.reshape(grad.astype(wide), (*lead, -1))
    places = np.reshape(indices.astype(np.int32), (*lead, -1))
    summed = lax.scatter_add_along(zeros, places, flat, len(lead))
    return np.reshape(summed, x.shape).astype(x.dtype)


def _average(
    x: Value,
    axes: int,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = 0,  # type: ignore[assignment]
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    size = _each(window, axes)
    pad = _each(padding, axes)
    windows = _Windows(
        x.shape[-axes:], size, _each(stride, axes) if stride else size, pad, (1,) * axes, ceil_mode
    )
    wide = windows.around(x, np.full((), 0, dtype=x.dtype))
    total: Value = None
    for _, cut in windows.taps():
        value = wide[(..., *cut)]
        total = value if total is None else total + value
    if divisor_override is not None:
        return total / divisor_override
    counts = numpy.ones(())
    for axis in range(axes):
        begin = numpy.arange(windows.size[axis]) * windows.stride[axis] - pad[axis]
        # A window may hang over the padding by `ceil_mode`; that part is never counted.
        end = numpy.minimum(begin + size[axis], x.shape[x.ndim - axes + axis] + pad[axis])
        if not count_include_pad:
            begin = numpy.maximum(begin, 0)
            end = numpy.minimum(end, x.shape[x.ndim - axes + axis])
        counts = counts[..., None] * (end - begin)
    return total / np.asarray(counts.astype(numpy.float32)).astype(x.dtype)


def _pulled(function: Callable[[Value], Value], x: Value, grad: Value) -> Value:
    """The gradient of a linear function of `x`."""
    _, pull = trnx.vjp(function, x)
    return pull(grad)[0]


for _axes, _name in ((1, "avg_pool1d"), (2, "avg_pool2d"), (3, "avg_pool3d")):

    @lowers(f"{_name}.default")
    def _average_pool(x: Value, *args: Any, _axes: int = _axes) -> Value:
        return _average(x, _axes, *args)

    if _axes > 1:

        @lowers(f"{_name}_backward.default")
        def _average_pool_backward(grad: Value, x: Value, *args: Any, _axes: int = _axes) -> Value:
            return _pulled(lambda v: _average(v, _axes, *args), x, grad)


def _adaptive(x: Value, sizes: Sequence[int]) -> Value:
    """Means over windows that share each axis out evenly: a product with a matrix per axis."""
    axes = len(sizes)
    for number, size in enumerate(sizes):
        axis = x.ndim - axes + number
        n = x.shape[axis]
        if n % size == 0:
            split = (*x.shape[:axis], size, n // size, *x.shape[axis + 1 :])
            x = np.mean(np.reshape(x, split), axis=axis + 1)
            continue
        share = numpy.zeros((n, size), numpy.float32)
        for k in range(size):
            begin, end = k * n // size, -(-(k + 1) * n // size)
            share[begin:end, k] = 1 / (end - begin)
        x = _along(x, np.asarray(share).astype(x.dtype), axis)
    return x


def _along(x: Value, matrix: Value, axis: int) -> Value:
    """``matrix`` [n, m] applied to an axis of size n."""
    return np.moveaxis(np.matmul(np.moveaxis(x, axis, -1), matrix), -1, axis)


@lowers("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_pool(x: Value, sizes: Sequence[int]) -> Value:
    return _adaptive(x, sizes)


@lowers("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")
def _adaptive_pool_backward(grad: Value, x: Value) -> Value:
    axes = x.ndim - 2 if x.ndim > 3 else 2
    return _pulled(lambda v: _adaptive(v, grad.shape[-axes:]), x, grad)


def _nearest(x: Value, sizes: Sequence[int], scales: Sequence[float | None]) -> Value:
    for number, size in enumerate(sizes):
        axis = 2 + number
        n = x.shape[axis]
        if size % n == 0 and scales[number] in (None, size / n):
            repeated = np.broadcast_to(
                np.expand_dims(x, axis + 1), (*x.shape[: axis + 1], size // n, *x.shape[axis + 1 :])
            )
            x = np.reshape(repeated, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
            continue
        scale = scales[number]
        step = numpy.float32(n / size if scale is None else 1 / scale)
        source = numpy.minimum((numpy.arange(size) * step).astype(numpy.int32), n - 1)
        x = lax.take(x, np.asarray(source), axis)
    return x


def _scales(given: Sequence[float | None], axes: int) -> list[float | None]:
    return [*given, *[None] * (axes - len(given))][:axes]


@lowers("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _upsample_nearest(x: Value, sizes: Sequence[int], *scales: float | None) -> Value:
    return _nearest(x, sizes, _scales(scales, len(sizes)))


@lowers("upsample_nearest2d.vec", "upsample_nearest1d.vec", "upsample_nearest3d.vec")
def _upsample_nearest_vec(
    x: Value, sizes: Sequence[int] | None, factors: Sequence[float] | None
) -> Value:
    if sizes is None:
        assert factors is not None
        sizes = [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    return _nearest(x, sizes, _scales(factors or (), len(sizes)))


@lowers(
    "upsample_nearest1d_backward.default",
    "upsample_nearest2d_backward.default",
    "upsample_nearest3d_backward.default",
)
def _upsample_nearest_backward(
    grad: Value, sizes: Sequence[int], shape: Sequence[int], *scales: float | None
) -> Value:
    zeros = np.zeros(tuple(shape), dtype=grad.dtype)
    return _pulled(lambda v: _nearest(v, sizes, _scales(scales, len(sizes))), zeros, grad)


def _linear(
    x: Value, sizes: Sequence[int], align_corners: bool, scales: Sequence[float | None]
) -> Value:
    """Linear interpolation along each axis: a product with a matrix of two weights per column."""
    for number, size in enumerate(sizes):
        axis = 2 + number
        n = x.shape[axis]
        target = numpy.arange(size, dtype=numpy.float64)
        if align_corners:
            source = target * ((n - 1) / (size - 1) if size > 1 else 0.0)
        else:
            scale = scales[number]
            step = n / size if scale is None else 1 / scale
            source = numpy.maximum((target + 0.5) * step - 0.5, 0)
        low = numpy.minimum(source.astype(numpy.int64), n - 1)
        high = numpy.minimum(low + 1, n - 1)
        part = source - low
        matrix = numpy.zeros((n, size), numpy.float32)
        columns = numpy.arange(size)
        numpy.add.at(matrix, (low, columns), 1 - part)
        numpy.add.at(matrix, (high, columns), part)
        x = _along(x, np.asarray(matrix).astype(x.dtype), axis)
    return x


@lowers("upsample_bilinear2d.default", "upsample_linear1d.default", "upsample_trilinear3d.default")
def _upsample_linear(
    x: Value, sizes: Sequence[int], align_corners: bool, *scales: float | None
) -> Value:
    return _linear(x, sizes, align_corners, _scales(scales, len(sizes)))


@lowers("upsample_bilinear2d.vec")
def _upsample_linear_vec(
    x: Value,
    sizes: Sequence[int] | None,
    align_corners: bool,
    factors: Sequence[float] | None,
) -> Value:
    if sizes is None:
        assert factors is not None
        sizes = [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)]
    return _linear(x, sizes, align_corners, _scales(factors or (), len(sizes)))


@lowers(
    "upsample_bilinear2d_backward.default",
    "upsample_linear1d_backward.default",
    "upsample_trilinear3d_backward.default",
)
def _upsample_linear_backward(
    grad: Value,
    sizes: Sequence[int],
    shape: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Value:
    zeros = np.zeros(tuple(shape), dtype=grad.dtype)
    return _pulled(
        lambda v: _linear(v, sizes, align_corners, _scales(scales, len(sizes))), zeros, grad
    )
