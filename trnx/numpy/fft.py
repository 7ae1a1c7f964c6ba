"""Discrete Fourier transforms with NumPy's names; each is a counted host call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trnx.core import ShapeError, UnsupportedError, aval_of, dtypes, message
from trnx.numpy._operands import Array, ArrayLike, as_float, cast
from trnx.numpy._operands import normal_axis as _normal_axis
from trnx.numpy._public import publish as _publish
from trnx.ops import fft as _fft
from trnx.ops import functions as op
from trnx.ops.complex_functions import PART, WHOLE

_NORMS: dict[str | None, Callable[[int, bool], float]] = {
    None: lambda count, inverse: 1.0,
    "backward": lambda count, inverse: 1.0,
    "ortho": lambda count, inverse: float(count**0.5 if inverse else count**-0.5),
    "forward": lambda count, inverse: float(count if inverse else 1 / count),
}


def _run(
    name: str,
    kind: str,
    x: ArrayLike,
    lengths: Sequence[int | None],
    axes: Sequence[int],
    norm: str | None,
) -> Array:
    """A transform over axes, cut or filled with zeros to lengths."""
    x = as_float(name, x)
    aval = aval_of(x)
    part = PART.get(aval.dtype, aval.dtype)
    if part.itemsize < 4:
        x, part = op.convert(x, dtypes.float32), np.dtype(np.float32)
    if kind == "rfft" and dtypes.is_complex(aval.dtype):
        raise UnsupportedError(message(f"{name} of {aval}", None, "Use fft for complex arrays"))
    x = cast(x, part if kind == "rfft" else WHOLE[part])
    numbers = [_normal_axis(name, axis, aval) for axis in axes]
    rest = [d for d in range(aval.ndim) if d not in numbers]
    x = op.transpose(x, (*rest, *numbers))
    full = []
    for position, (axis, length) in enumerate(zip(numbers, lengths, strict=True)):
        size = aval.shape[axis]
        if not isinstance(size, int):
            raise UnsupportedError(
                message(f"{name} of {aval} over a symbolic axis", None, "Give it a static size")
            )
        last = position == len(numbers) - 1
        halved = kind == "irfft" and last
        wanted = length if length is not None else 2 * (size - 1) if halved else size
        if wanted < 1:
            raise ShapeError(
                message(f"{name} of {aval} with {wanted} points", None, "Use 1 or more")
            )
        full.append(wanted)
        x = _resized(x, len(rest) + position, wanted // 2 + 1 if halved else wanted)
    if norm not in _NORMS:
        raise UnsupportedError(
            message(f"{name} with norm={norm!r}", None, 'Use "backward", "ortho" or "forward"')
        )
    out = _fft.fft(x, kind, full)
    scale = _NORMS[norm](int(np.prod(full)), kind.startswith("i"))
    if scale != 1.0:
        out = op.mul(out, op.scalar(scale, op.dtype_of(out)))
    order = (*rest, *numbers)
    return op.transpose(out, [order.index(d) for d in range(len(order))])


def _resized(x: Array, axis: int, size: int) -> Array:
    own = int(op.shape_of(x)[axis])
    if own > size:
        return op.slice_axis(x, 0, size, axis)
    high = [0] * len(op.shape_of(x))
    high[axis] = size - own
    return op.pad(x, op.scalar_like(0, x), [0] * len(high), high)


def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The transform along an axis: complex64, or complex128 of 64-bit operands.

    Args:
        a: array; integers are computed in float32.
        n: number of points; the axis is cut or filled with zeros. None: its size.
        axis: the axis.
        norm: "backward" (None) divides the inverse by n, "forward" this, "ortho" both by √n.
    """
    return _run("fft", "fft", a, (n,), (axis,), norm)


def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of :func:`fft`."""
    return _run("ifft", "ifft", a, (n,), (axis,), norm)


def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first n // 2 + 1 values of :func:`fft` of a real array."""
    return _run("rfft", "rfft", a, (n,), (axis,), norm)


def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real array of n values (default 2(m - 1) of m) whose :func:`rfft` is given."""
    return _run("irfft", "irfft", a, (n,), (axis,), norm)


def _several(
    name: str, kind: str, a: ArrayLike, s: Sequence[int] | None, axes: Sequence[int] | None,
    norm: str | None,
) -> Array:  # fmt: skip
    rank = aval_of(a).ndim
    if axes is None:
        axes = range(rank) if s is None else range(rank - len(s), rank)
    lengths: Sequence[int | None] = [None] * len(axes) if s is None else list(s)
    if len(lengths) != len(axes):
        raise ShapeError(message(f"{name} got {len(lengths)} lengths for {len(axes)} axes", None,
                                 "Give one per axis"))  # fmt: skip
    return _run(name, kind, a, lengths, axes, norm)


def fftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """:func:`fft` over one to three axes (all of them by default)."""
    return _several("fftn", "fft", a, s, axes, norm)


def ifftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The inverse of :func:`fftn`."""
    return _several("ifftn", "ifft", a, s, axes, norm)


def rfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """:func:`rfft` along the last of the axes, :func:`fft` along the others."""
    return _several("rfftn", "rfft", a, s, axes, norm)


def irfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """The inverse of :func:`rfftn`."""
    return _several("irfftn", "irfft", a, s, axes, norm)


def fft2(a: ArrayLike, s: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """:func:`fftn` over the last two axes."""
    return _several("fft2", "fft", a, s, (-2, -1), norm)


def ifft2(a: ArrayLike, s: Sequence[int] | None = None, norm: str | None = None) -> Array:
    """The inverse of :func:`fft2`."""
    return _several("ifft2", "ifft", a, s, (-2, -1), norm)


_publish(globals())
