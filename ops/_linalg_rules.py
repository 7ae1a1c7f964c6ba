"""Derivatives of factorisations: tangents as array code, which reverse mode transposes.

Each follows from differentiating the defining equation (A = L·Lᴴ, P·A = L·U, A = Q·R, A = U·S·Vᴴ,
A·V = V·W), multiplying by inverses until the unknown tangents stand in disjoint parts of one
matrix, and taking those parts. Where values coincide (equal singular or eigenvalues) the vectors
have no derivative, and their shares are set to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import Linear, RuleError, Zero, aval_of, dtypes, message
from trnx.ops import functions as op
from trnx.ops.linalg import (
    cholesky_p,
    conj_transpose,
    eigh_p,
    lu_p,
    matmul,
    qr_p,
    svd_p,
    transposed,
    triangular_solve,
    triangular_solve_p,
)

Array = Any


# ---------------------------------------------------------------- parts of matrices
def _where(x: Array, keep: Any) -> Array:
    """x where ``keep(row, column)`` holds for int32 index arrays, 0 elsewhere."""
    shape = op.shape_of(x)
    rows, columns = (op.iota(shape, len(shape) - back) for back in (2, 1))
    return op.select(keep(rows, columns), x, op.scalar_like(0, x))


def lower_part(x: Array, diagonal: bool = True) -> Array:
    """The lower triangle, with or without the diagonal."""
    return _where(x, op.ge if diagonal else op.gt)


def upper_part(x: Array, diagonal: bool = True) -> Array:
    """The upper triangle, with or without the diagonal."""
    return _where(x, op.le if diagonal else op.lt)


def eye_like(x: Array) -> Array:
    """The identity in the shape of a stack of matrices."""
    one = op.full(op.shape_of(x), op.scalar_like(1, x))
    return _where(one, op.eq)


def half_diagonal(x: Array) -> Array:
    """The lower triangle with half of the diagonal: phi with phi(X) + phi(X)ᴴ = X."""
    half = op.mul(_where(x, op.eq), op.scalar_like(0.5, x))
    return op.add(lower_part(x, diagonal=False), half)


def _from_lower(t: Array) -> Array:
    """The Hermitian tangent that the lower triangle of `t` stands for."""
    strict = lower_part(t, diagonal=False)
    diagonal = _where(t, op.eq)
    if dtypes.is_complex(op.dtype_of(t)):
        diagonal = op.mul(op.add(diagonal, op.conj(diagonal)), op.scalar_like(0.5, t))
    return op.add(op.add(strict, conj_transpose(strict)), diagonal)


def _diagonal(x: Array) -> Array:
    """The diagonal ``[..., n]`` of square matrices."""
    return op.reduce_sum(_where(x, op.eq), (len(op.shape_of(x)) - 1,))


def _across(v: Array, like: Array, axis: int) -> Array:
    """A vector ``[..., n]`` along the rows (-2) or columns (-1) of a matrix shape."""
    shape = op.shape_of(like)
    rank = len(shape)
    return op.broadcast(v, shape, (*range(rank - 2), rank + axis))


def _inverse_or_zero(x: Array) -> Array:
    zero = op.eq(x, op.scalar_like(0, x))
    return op.select(zero, op.scalar_like(0, x), op.div(1.0, op.select(zero, 1.0, x)))


def _as(x: Array, like: Array) -> Array:
    """A real array in the dtype of `like`."""
    return op.convert(x, op.dtype_of(like))


# ---------------------------------------------------------------- cholesky, triangular_solve
def _cholesky_jvp(t: Array, a: Array, *, out: Array) -> Array:
    """dL = L·phi(L⁻¹·dA·L⁻ᴴ)."""
    half = triangular_solve(out, _from_lower(t))
    both = triangular_solve(out, half, left_side=False, transpose_a=True, conjugate_a=True)
    return matmul(out, half_diagonal(both))


cholesky_p.def_jvp(_cholesky_jvp)


def _solve_jvp_a(t: Array, a: Array, b: Array, *, out: Array, **params: Any) -> Array:
    """dX = -op(A)⁻¹·op(dA)·X, with the part of dA that is read."""
    part = lower_part if params["lower"] else upper_part
    t = part(t, diagonal=not params["unit_diagonal"])
    t = op.conj(t) if params["conjugate_a"] else t
    t = transposed(t) if params["transpose_a"] else t
    moved = matmul(t, out) if params["left_side"] else matmul(out, t)
    return op.neg(triangular_solve(a, moved, **params))


def _solve_jvp_b(t: Array, a: Array, b: Array, *, out: Array, **params: Any) -> Array:
    return triangular_solve(a, t, **params)


triangular_solve_p.def_jvp(_solve_jvp_a, _solve_jvp_b)


@triangular_solve_p.def_transpose
def _solve_transpose(ct: Array, a: Array, b: Array, **params: Any) -> tuple[None, Array]:
    assert isinstance(b, Linear)
    flipped = {**params, "transpose_a": not params["transpose_a"]}
    return None, triangular_solve(a, ct, **flipped)


# ---------------------------------------------------------------- lu
@lu_p.def_jvp_all
def _lu_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array]
) -> tuple[list[Array], list[Any]]:
    """L⁻¹·P·dA·U⁻¹ = L⁻¹·dL + dU·U⁻¹: a strictly lower and an upper part."""
    (a,), (t,) = primals, tangents
    outs = lu_p.bind(a)
    packed, pivots, permutation = outs
    shape = op.shape_of(a)
    m, n = int(shape[-2]), int(shape[-1])
    k = min(m, n)
    t = _permuted(t, permutation)
    low = lower_part(_square(packed, m, k), diagonal=False)
    low = op.add(low, eye_like(low))
    high = _square(upper_part(packed), n, k)
    middle = triangular_solve(low, t, unit_diagonal=True)
    middle = triangular_solve(high, middle, left_side=False, lower=False)
    d_low = matmul(low, _wide(lower_part(middle, diagonal=False), m))
    d_high = matmul(_wide(upper_part(middle), n), high)
    tangent = op.add(_cut(d_low, m, n), _cut(d_high, m, n))
    zeros = [Zero(aval_of(x)) for x in (pivots, permutation)]
    return list(outs), [tangent, *zeros]


def _permuted(t: Array, permutation: Array) -> Array:
    """Rows in the order of a permutation ``[..., m]``: an exact product with its matrix."""
    shape = op.shape_of(t)
    square = (*shape[:-1], shape[-2])
    rank = len(shape)
    chosen = op.broadcast(permutation, square, range(rank - 1))
    matrix = op.eq(chosen, op.iota(square, rank - 1))
    return matmul(op.convert(matrix, op.dtype_of(t)), t)


def _square(x: Array, size: int, known: int) -> Array:
    """The first `known` rows and columns of x in a square matrix that goes on as the identity."""
    x = _cut(x, size, size)
    shape = op.shape_of(x)
    rank = len(shape)
    rows, columns = op.iota(shape, rank - 2), op.iota(shape, rank - 1)
    index = op.max(rows, columns)
    inside = op.lt(index, known)
    beside = op.bitwise_or(op.lt(rows, known), op.lt(columns, known))
    keep = op.bitwise_or(inside, op.bitwise_and(beside, op.ne(rows, columns)))
    return op.select(keep, x, eye_like(x))


def _cut(x: Array, rows: int, columns: int) -> Array:
    """x cut or filled with zeros to a matrix shape."""
    shape = op.shape_of(x)
    limits = (*shape[:-2], min(int(shape[-2]), rows), min(int(shape[-1]), columns))
    x = op.slice(x, (0,) * len(shape), limits)
    high = [0] * (len(shape) - 2) + [rows - int(limits[-2]), columns - int(limits[-1])]
    return op.pad(x, op.scalar_like(0, x), [0] * len(shape), high)


def _wide(x: Array, size: int) -> Array:
    return _cut(x, size, size)


# ---------------------------------------------------------------- qr
@qr_p.def_jvp_all
def _qr_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array], *, full_matrices: bool
) -> tuple[list[Array], list[Array]]:
    """C = Qᴴ·dA·R⁻¹ is a skew part plus an upper one; dQ and dR follow."""
    (a,), (t,) = primals, tangents
    q, r = qr_p.bind(a, full_matrices=full_matrices)
    *_, m, n = op.shape_of(a)
    if m < n or (full_matrices and m != n):
        raise RuleError(
            message(
                f"The derivative of qr of {aval_of(a)} with full_matrices={full_matrices} is not "
                "unique",
                None,
                "Use full_matrices=False and matrices with at least as many rows as columns",
            )
        )
    right = triangular_solve(r, t, left_side=False, lower=False)
    c = matmul(conj_transpose(q), right)
    lower = lower_part(c, diagonal=False)
    skew = op.sub(lower, conj_transpose(lower))
    if dtypes.is_complex(op.dtype_of(a)):
        diagonal = _where(c, op.eq)
        own = op.sub(diagonal, op.conj(diagonal))
        skew = op.add(skew, op.mul(own, op.scalar_like(0.5, own)))
    rest = op.sub(c, skew)
    dq = op.add(matmul(q, op.sub(skew, c)), right)
    return [q, r], [dq, matmul(rest, r)]


# ---------------------------------------------------------------- svd, eigh
@svd_p.def_jvp_all
def _svd_jvp(
    ctx: Any,
    primals: Sequence[Array],
    tangents: Sequence[Array],
    *,
    full_matrices: bool,
    compute_uv: bool,
) -> tuple[list[Array], list[Array]]:
    """With P = Uᴴ·dA·V: ds is its diagonal, the rest rotates U and V."""
    (a,), (t,) = primals, tangents
    *_, m, n = op.shape_of(a)
    if compute_uv and full_matrices and m != n:
        raise RuleError(
            message(
                f"The derivative of svd of {aval_of(a)} with full_matrices=True is not unique",
                None,
                "Use full_matrices=False",
            )
        )
    s, u, vh = svd_p.bind(a, full_matrices=False, compute_uv=True)
    v = conj_transpose(vh)
    p = matmul(matmul(conj_transpose(u), t), v)
    ds = op.real(_diagonal(p))
    if not compute_uv:
        return [s], [ds]
    rows, columns = (_as(_across(s, p, axis), p) for axis in (-2, -1))
    # f[i, j] = 1 / (s_j² - s_i²), 0 where they are equal.
    real_rows, real_columns = (_across(s, op.real(p), axis) for axis in (-2, -1))
    gap = op.mul(op.sub(real_columns, real_rows), op.add(real_columns, real_rows))
    f = _as(_inverse_or_zero(gap), p)
    p_h = conj_transpose(p)
    turn_u = op.mul(f, op.add(op.mul(p, columns), op.mul(rows, p_h)))
    turn_v = op.mul(f, op.add(op.mul(rows, p), op.mul(p_h, columns)))
    inverse = _inverse_or_zero(s)
    if dtypes.is_complex(op.dtype_of(a)):
        own = op.mul(op.sub(_where(p, op.eq), _where(p_h, op.eq)), op.scalar_like(0.5, p))
        turn_u = op.add(turn_u, op.mul(own, _as(_across(inverse, op.real(p), -1), p)))
    du, dv = matmul(u, turn_u), matmul(v, turn_v)
    if m > n:
        du = op.add(du, _beyond(u, matmul(t, v), inverse))
    if n > m:
        dv = op.add(dv, _beyond(v, matmul(conj_transpose(t), u), inverse))
    return [s, u, vh], [ds, du, conj_transpose(dv)]


def _beyond(u: Array, moved: Array, inverse: Array) -> Array:
    """(I - U·Uᴴ)·moved/s: the share outside of the space that U spans."""
    outside = op.sub(moved, matmul(u, matmul(conj_transpose(u), moved)))
    return op.mul(outside, _as(_across(inverse, op.real(outside), -1), outside))


@eigh_p.def_jvp_all
def _eigh_jvp(
    ctx: Any, primals: Sequence[Array], tangents: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """With P = Vᴴ·dA·V: dw is its diagonal, dV = V·(P[i, j] / (w_j - w_i))."""
    (a,), (t,) = primals, tangents
    w, v = eigh_p.bind(a)
    p = matmul(matmul(conj_transpose(v), _from_lower(t)), v)
    real = op.real(p)
    gap = op.sub(_across(w, real, -1), _across(w, real, -2))
    turn = op.mul(_as(_inverse_or_zero(gap), p), p)
    return [w, v], [op.real(_diagonal(p)), matmul(v, turn)]
