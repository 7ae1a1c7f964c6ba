"""Linear algebra: products and norms as array code, factorisations as counted host calls.

Matrices are the last two axes, the axes before them a batch. Integers are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trnx.core import ShapeError, Size, UnsupportedError, aval_of, dtypes, message
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    as_float,
    broadcast_shape,
    normal_axes,
    promote,
    spread_to,
)
from trnx.numpy._public import publish as _publish
from trnx.numpy.contraction import matmul as matmul
from trnx.numpy.contraction import outer as outer
from trnx.numpy.contraction import tensordot as tensordot
from trnx.numpy.contraction import vecdot as vecdot
from trnx.numpy.manipulation import matrix_transpose as matrix_transpose
from trnx.numpy.reductions import safe_sqrt, with_axes
from trnx.ops import functions as op
from trnx.ops import linalg as _factor


def norm(
    x: ArrayLike,
    ord: float | str | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Array:
    """Norm over `axis` (None: all elements as one vector).

    Args:
        x: array; integers are computed in float32.
        ord: None, 2 or "fro": square root of the sum of squares (of one or two axes); 1: sum of
            magnitudes; inf: largest, -inf: smallest magnitude (of one axis). Of two axes: 2, -2,
            "nuc": largest, smallest and sum of singular values; 1, -1, inf, -inf: largest and
            smallest sum of magnitudes over columns or rows.
        axis: axes to reduce.
        keepdims: keep reduced axes with size 1.

    The gradient of the 2-norm at 0 is 0.

    Raises:
        UnsupportedError: another `ord`.
    """
    x = as_float("norm", x)
    aval = aval_of(x)
    axes = normal_axes("norm", axis, aval)
    if ord is None or ord == "fro" or (ord == 2 and len(axes) <= 1):
        out = safe_sqrt(op.reduce_sum(_squares(x), axes))
    elif ord == 1 and len(axes) == 1:
        out = op.reduce_sum(op.abs(x), axes)
    elif ord in (math.inf, -math.inf) and len(axes) == 1:
        function = op.reduce_max if ord == math.inf else op.reduce_min
        out = function(op.abs(x), axes)
    elif len(axes) == 2 and ord in (1, -1, 2, -2, math.inf, -math.inf, "nuc"):
        out = _matrix_norm(x, ord, axes)
    else:
        raise UnsupportedError(
            message(
                f"norm of {aval} over axes {axes} with ord={ord!r}",
                None,
                "Use ord None, 1, 2 or inf, or 'fro' or 'nuc' on two axes",
            )
        )
    return with_axes(out, aval.shape, axes, keepdims)


def _squares(x: Array) -> Array:
    """|x|² per element, a real number."""
    if not dtypes.is_complex(op.dtype_of(x)):
        return op.mul(x, x)
    a, b = op.real(x), op.imag(x)
    return op.add(op.mul(a, a), op.mul(b, b))


def vector_norm(
    x: ArrayLike,
    ord: float = 2,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Array:
    """The norm of vectors along `axis`; several axes count as one vector."""
    axes = normal_axes("vector_norm", axis, aval_of(x))
    if ord == 2:
        return norm(x, None, axes, keepdims)
    return norm(x, ord, axes, keepdims)


# ---------------------------------------------------------------- factorisations
class QRResult(NamedTuple):
    """Factors of :func:`qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Factors of :func:`svd`."""

    U: Array
    S: Array
    Vh: Array


class EighResult(NamedTuple):
    """Result of :func:`eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class SlogdetResult(NamedTuple):
    """Result of :func:`slogdet`."""

    sign: Array
    logabsdet: Array


def _matrices(name: str, x: ArrayLike, square: bool = False) -> Array:
    x = as_float(name, x)
    aval = aval_of(x)
    if aval.dtype.itemsize < 4:
        x = op.convert(x, dtypes.float32)
    _factor.check_matrix(name, aval_of(x), square)
    return x


def cholesky(x: ArrayLike, *, upper: bool = False) -> Array:
    """L with ``L @ L.mH == x``; the lower half of x is read, NaN tells it is not positive definite.

    With `upper` the result is ``L.mH``.
    """
    factor = _factor.cholesky(_matrices("cholesky", x, square=True))
    return _factor.conj_transpose(factor) if upper else factor


def qr(x: ArrayLike, mode: str = "reduced") -> QRResult:
    """Q with orthonormal columns (all of them in mode "complete") and upper triangular R."""
    if mode not in ("reduced", "complete"):
        raise UnsupportedError(
            message(f"qr with mode={mode!r}", None, 'Use "reduced" or "complete"')
        )
    return QRResult(*_factor.qr(_matrices("qr", x), mode == "complete"))


def svd(x: ArrayLike, full_matrices: bool = True) -> SVDResult:
    """U, singular values (largest first) and Vᴴ; ``full_matrices=False`` can be differentiated."""
    s, u, vh = _factor.svd(_matrices("svd", x), full_matrices)
    return SVDResult(u, s, vh)


def svdvals(x: ArrayLike) -> Array:
    """Singular values, largest first."""
    (s,) = _factor.svd(_matrices("svdvals", x), False, False)
    return s


def eigh(x: ArrayLike) -> EighResult:
    """Eigenvalues, smallest first, and eigenvectors of Hermitian matrices: of their lower half."""
    return EighResult(*_factor.eigh(_matrices("eigh", x, square=True)))


def eigvalsh(x: ArrayLike) -> Array:
    """Eigenvalues of Hermitian matrices, smallest first."""
    return eigh(x).eigenvalues


# ---------------------------------------------------------------- systems, determinants
def _batched(name: str, a: Array, b: Array) -> tuple[Array, Array]:
    """Two stacks of matrices with one batch."""
    shapes = [aval_of(x).shape for x in (a, b)]
    batch = broadcast_shape(name, [shape[:-2] for shape in shapes], (a, b))
    spread = [spread_to(x, (*batch, *s[-2:])) for x, s in zip((a, b), shapes, strict=True)]
    return spread[0], spread[1]


def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """x with ``a @ x == b``; `b` is one vector ``[n]`` or matrices ``[..., n, k]``.

    A singular matrix gives infinities or NaN.
    """
    a, b = promote("solve", a, b, inexact=True)
    a = _matrices("solve", a, square=True)
    b = op.convert(b, op.dtype_of(a))
    vector = aval_of(b).ndim == 1
    b = op.expand(b, 1) if vector else b
    if aval_of(a).shape[-1] != aval_of(b).shape[-2]:
        raise ShapeError(
            message(f"solve of {aval_of(a)} and {aval_of(b)}", None, "Give as many rows to both")
        )
    packed, _, permutation = _factor.lu(a)
    packed, b = _batched("solve", packed, b)
    rows = aval_of(b).shape[:-1]
    order = op.expand(spread_to(permutation, rows), len(rows), aval_of(b).shape[-1])
    b = op.take_along(b, order, len(rows) - 1)
    half = _factor.triangular_solve(packed, b, unit_diagonal=True)
    x = _factor.triangular_solve(packed, half, lower=False)
    return op.reshape(x, aval_of(x).shape[:-1]) if vector else x


def _identity(a: Array) -> Array:
    shape = aval_of(a).shape
    rank = len(shape)
    same = op.eq(op.iota(shape, rank - 2), op.iota(shape, rank - 1))
    return op.convert(same, op.dtype_of(a))


def inv(a: ArrayLike) -> Array:
    """The inverse of square matrices."""
    a = _matrices("inv", a, square=True)
    return solve(a, _identity(a))


def _lu_diagonal(a: Array) -> tuple[Array, Array]:
    """The diagonal of U, and the sign of the permutation in the dtype of `a`."""
    packed, pivots, _ = _factor.lu(a)
    rank = len(aval_of(a).shape)
    identity = op.ne(_identity(a), op.scalar_like(0, a))
    diagonal = op.reduce_sum(op.select(identity, packed, op.scalar_like(0, packed)), (rank - 1,))
    swapped = op.ne(pivots, op.iota(aval_of(pivots).shape, rank - 2))
    count = op.reduce_sum(op.convert(swapped, dtypes.int32), (rank - 2,))
    odd = op.eq(op.bitwise_and(count, 1), 1)
    one = op.scalar(1, op.dtype_of(a))
    return diagonal, op.select(odd, op.scalar(-1, op.dtype_of(a)), one)


def _product(x: Array) -> Array:
    """The product along the last axis, by halves."""
    axis = len(aval_of(x).shape) - 1
    size = int(aval_of(x).shape[axis])
    if size == 0:
        return op.full(aval_of(x).shape[:-1], op.scalar_like(1, x))
    while size > 1:
        half = size // 2
        pairs = op.mul(op.slice_axis(x, 0, half, axis), op.slice_axis(x, half, 2 * half, axis))
        x = (
            op.concatenate([pairs, op.slice_axis(x, 2 * half, size, axis)], axis)
            if size % 2
            else pairs
        )
        size = half + size % 2
    return op.reshape(x, aval_of(x).shape[:-1])


def det(a: ArrayLike) -> Array:
    """The determinant; its gradient needs a regular matrix."""
    diagonal, sign = _lu_diagonal(_matrices("det", a, square=True))
    return op.mul(_product(diagonal), sign)


def slogdet(a: ArrayLike) -> SlogdetResult:
    """Sign (of magnitude 1 for complex matrices) and log of the magnitude of the determinant."""
    diagonal, sign = _lu_diagonal(_matrices("slogdet", a, square=True))
    axis = len(aval_of(diagonal).shape) - 1
    size = op.reduce_sum(op.log(op.abs(diagonal)), (axis,))
    return SlogdetResult(op.mul(_product(op.sign(diagonal)), sign), size)


def matrix_power(a: ArrayLike, n: int) -> Array:
    """``a`` times itself n times; negative powers are those of the inverse."""
    a = _matrices("matrix_power", a, square=True)
    if n < 0:
        a, n = inv(a), -n
    out: Array | None = None
    while n:
        if n & 1:
            out = a if out is None else _factor.matmul(out, a)
        n >>= 1
        a = _factor.matmul(a, a) if n else a
    return _identity(a) if out is None else out


# ---------------------------------------------------------------- by singular values
def _cutoff(s: Array, tolerance: ArrayLike | None, shape: Sequence[Size]) -> Array:
    """The largest singular value times a tolerance, ``[..., 1]``."""
    largest = op.slice_axis(s, 0, 1, len(aval_of(s).shape) - 1)
    if tolerance is None:
        tolerance = max(int(size) for size in shape[-2:]) * float(np.finfo(op.dtype_of(s)).eps)
    return op.mul(largest, op.scalar_like(tolerance, s))


def pinv(a: ArrayLike, rtol: float | None = None) -> Array:
    """The pseudo-inverse; singular values up to `rtol` times the largest count as 0."""
    a = _matrices("pinv", a)
    u, s, vh = svd(a, full_matrices=False)
    kept = op.gt(s, spread_to(_cutoff(s, rtol, aval_of(a).shape), aval_of(s).shape))
    inverse = op.select(kept, op.div(1.0, op.select(kept, s, 1.0)), 0.0)
    scaled = op.mul(_factor.conj_transpose(vh), _columns(inverse, vh))
    return _factor.matmul(scaled, _factor.conj_transpose(u))


def _columns(v: Array, like: Array) -> Array:
    """A vector per column of the conjugate transpose of `like`, in its dtype."""
    *batch, k, n = aval_of(like).shape
    spread = op.broadcast(v, (*batch, n, k), (*range(len(batch)), len(batch) + 1))
    return op.convert(spread, op.dtype_of(like))


def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None) -> tuple[Array, ...]:
    """The x of least norm that minimises ``norm(b - a @ x)``.

    Args:
        a: one matrix ``[m, n]``.
        b: ``[m]`` or ``[m, k]``.
        rcond: see `rtol` of :func:`pinv`.

    Returns:
        x, the sums of squared residuals ``[k]``, the rank (int32) and the singular values.
    """
    a, b = promote("lstsq", a, b, inexact=True)
    a = _matrices("lstsq", a)
    if aval_of(a).ndim != 2 or aval_of(b).ndim not in (1, 2):
        raise ShapeError(message(f"lstsq of {aval_of(a)} and {aval_of(b)}", None, "Use one matrix"))
    b = op.convert(b, op.dtype_of(a))
    columns = op.expand(b, 1) if aval_of(b).ndim == 1 else b
    x = _factor.matmul(pinv(a, rcond), columns)
    rest = op.abs(op.sub(columns, _factor.matmul(a, x)))
    s = svdvals(a)
    above = op.gt(s, spread_to(_cutoff(s, rcond, aval_of(a).shape), aval_of(s).shape))
    rank = op.reduce_sum(op.convert(above, dtypes.int32), (0,))
    solution = op.reshape(x, aval_of(x).shape[:1]) if aval_of(b).ndim == 1 else x
    return solution, op.reduce_sum(op.mul(rest, rest), (0,)), rank, s


def matrix_rank(a: ArrayLike, rtol: float | None = None) -> Array:
    """How many singular values are above `rtol` times the largest, as int32."""
    a = _matrices("matrix_rank", a)
    s = svdvals(a)
    above = op.gt(s, spread_to(_cutoff(s, rtol, aval_of(a).shape), aval_of(s).shape))
    return op.reduce_sum(op.convert(above, dtypes.int32), (len(aval_of(s).shape) - 1,))


def _matrix_norm(x: Array, ord: float | str, axes: tuple[int, ...]) -> Array:
    """Norms of matrices: 2, -2 and "nuc" by singular values, 1 and inf by sums."""
    rank = len(aval_of(x).shape)
    x = op.transpose(x, (*(d for d in range(rank) if d not in axes), *axes))
    if ord in (2, -2, "nuc"):
        s = svdvals(x)
        last = (len(aval_of(s).shape) - 1,)
        if ord == "nuc":
            return op.reduce_sum(s, last)
        return op.reduce_max(s, last) if ord == 2 else op.reduce_min(s, last)
    sums = op.reduce_sum(op.abs(x), (rank - 2 if ord in (1, -1) else rank - 1,))
    reduce = op.reduce_max if ord in (1, math.inf) else op.reduce_min
    return reduce(sums, (rank - 2,))


_publish(globals())
