"""Factorisations of matrices and triangular systems, as counted host calls.

A NeuronCore has no instruction for them: the host computes them with LAPACK through NumPy, or with
NumPy array code where that has none. Operands are stacks of matrices ``[..., m, n]`` of f32, f64,
c64 or c128; leading axes are a batch. A matrix for which a factorisation fails (not positive
definite, NaN inside) gives NaN, never an error, as the other matrices of the batch have results.

Derivatives are in `ops/_linalg_rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    OpCase,
    Primitive,
    RuleError,
    ShapeError,
    Size,
    TestRecord,
    dtypes,
    message,
    same_shape,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray, elements, nbytes
from trnx.ops.complex_functions import PART

Array = Any
LAPACK_DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)
_TOLERANCE = {"f32": 2e-5, "f64": 2e-13}


def check_matrix(name: str, x: Aval, square: bool = False) -> None:
    """Raise unless `x` is a stack of (square) matrices of a dtype LAPACK has."""
    if x.dtype not in LAPACK_DTYPES:
        raise DTypeError(
            message(f"{name} of {x}", None, "Cast to float32, float64, complex64 or complex128")
        )
    if x.ndim < 2 or (square and not structurally_equal(x.shape[-1], x.shape[-2])):
        kind = "square matrices [..., n, n]" if square else "matrices [..., m, n]"
        raise ShapeError(message(f"{name} needs {kind} and got {x}", None, "Reshape it"))


def _smaller(shape: Sequence[Size]) -> Size:
    """min(m, n) of a matrix shape."""
    m, n = shape[-2:]
    return m if m <= n else n


def conj_transpose(x: Array) -> Array:
    """Conjugate, last two axes exchanged."""
    return op.conj(transposed(x))


def transposed(x: Array) -> Array:
    """Last two axes exchanged."""
    rank = len(op.shape_of(x))
    return op.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def matmul(x: Array, y: Array) -> Array:
    """Product of matrices of equal batch axes."""
    batch = range(len(op.shape_of(x)) - 2)
    rank = len(batch)
    return op.dot_general(x, y, ((rank + 1,), (rank,)), (batch, batch))


# ---------------------------------------------------------------- declaration
def _each(
    function: Callable[..., Sequence[NumpyArray]], avals: Sequence[Aval], *stacks: NumpyArray
) -> list[NumpyArray]:
    """A function of single matrices over stacks; one that fails gives NaN (or 0 as integers)."""
    batch = stacks[0].shape[:-2]
    outs = [np.full(a.shape, np.nan if dtypes.is_inexact(a.dtype) else 0, a.dtype) for a in avals]
    for index in np.ndindex(*batch):
        matrices = [stack[index] for stack in stacks]
        try:
            results = function(*matrices)
        except np.linalg.LinAlgError:
            continue
        for out, result in zip(outs, results, strict=True):
            out[index] = result
    return outs


def _declare(
    name: str,
    doc: str,
    abstract: Callable[..., Any],
    function: Callable[..., Sequence[NumpyArray]],
    cases: Sequence[OpCase],
    *,
    many: bool = True,
    flops: float = 1.0,
    grad_order: int = 1,
    identity: bool = False,
) -> Primitive:
    """Declare a factorisation of one matrix.

    Args:
        name: as for Primitive.
        doc: as for Primitive.
        abstract: as for Primitive.
        function: NumPy code for one matrix, which gives a sequence of results.
        cases: calls for the table tests.
        many: several results.
        flops: of a matrix of n³ elements, over n³.
        grad_order: see `TestRecord`.
        identity: padding rows and columns may be those of the identity matrix: the factors of the
            true part stay the same.
    """

    def avals_of(*avals: Aval, **params: Any) -> Sequence[Aval]:
        out = abstract(*avals, **params)
        return [out] if isinstance(out, Aval) else out

    def reference(*arrays: NumpyArray, **params: Any) -> Any:
        avals = avals_of(*(Aval(x.shape, x.dtype) for x in arrays), **params)
        outs = _each(lambda *m: function(*m, **params), avals, *arrays)
        return outs if many else outs[0]

    primitive = Primitive(
        name,
        abstract=abstract,
        multiple_results=many,
        doc=doc,
        reference=reference,
        tests=TestRecord(
            cases, (dtypes.float64, dtypes.float32), _TOLERANCE, grad_order, floor=1.0
        ),
        not_needed={"transpose": "it is not linear; reverse mode transposes its tangent"},
    )
    primitive.file = "ops/linalg.py"

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, **params: Any
    ) -> Any:
        (x,), (dim,) = args, dims
        outs = primitive.bind(op.moveaxis(x, dim, 0), **params)
        return (outs, [0] * len(outs)) if many else (outs, 0)

    @primitive.def_pad
    def _pad(ctx: Any, args: Sequence[Array], true_shapes: Any, **params: Any) -> Any:
        (x,), (shape,) = args, true_shapes
        if any(ctx.is_padded(size) for size in shape[-2:]):
            if not identity:
                raise RuleError(
                    message(
                        f"{name} of matrices of a symbolic size has no meaning in a padded buffer",
                        None,
                        "Give the matrices a static size; batch axes may be symbolic",
                    )
                )
            x = with_identity(ctx, x, shape)
        return primitive.bind(x, **params)

    @primitive.def_cost
    def _cost(*avals: Aval, **params: Any) -> Cost:
        (x, *_) = avals
        small = int(_smaller(x.shape))
        return Cost(
            int(flops * elements(x) * small), nbytes(*avals), nbytes(*avals_of(*avals, **params))
        )

    return primitive


def with_identity(ctx: Any, x: Array, shape: Sequence[Size]) -> Array:
    """A padded stack of square matrices whose padding is that of the identity."""
    buffer = op.shape_of(x)
    kept = (*buffer[:-2], *shape[-2:])
    x = ctx.mask(x, kept, 0)
    rows = op.iota(buffer, len(buffer) - 2)
    beyond = op.ge(rows, op.broadcast(ctx.true_size(shape[-1]), buffer, ()))
    diagonal = op.eq(rows, op.iota(buffer, len(buffer) - 1))
    return op.select(op.bitwise_and(beyond, diagonal), op.scalar_like(1, x), x)


def _shapes(*shapes: tuple[int, ...], **params: Any) -> tuple[OpCase, ...]:
    return tuple(OpCase((shape,), params) for shape in shapes)


# ---------------------------------------------------------------- cholesky
def _hermitian(a: NumpyArray) -> NumpyArray:
    """The Hermitian matrix that the lower triangle stands for."""
    lower = np.tril(a, -1)
    return lower + lower.conj().T + np.diag(np.diag(a).real)


def _cholesky_abstract(a: Aval) -> Aval:
    check_matrix("cholesky", a, square=True)
    return a.strong()


cholesky_p = _declare(
    "cholesky",
    "Lower triangular L with L·Lᴴ equal to the Hermitian matrix of which the lower half is read.",
    _cholesky_abstract,
    lambda a: [np.linalg.cholesky(_hermitian(a))],
    # Random matrices of more than one row are not positive definite.
    tuple(OpCase((shape,), {}, ((0.5, 4.0),)) for shape in ((1, 1), (3, 1, 1), (0, 1, 1))),
    many=False,
    flops=1 / 3,
    identity=True,
)


# ---------------------------------------------------------------- lu
def _lu_abstract(a: Aval) -> tuple[Aval, Aval, Aval]:
    check_matrix("lu", a)
    batch = a.shape[:-2]
    return (
        a.strong(),
        Aval((*batch, _smaller(a.shape)), dtypes.int32),
        Aval((*batch, a.shape[-2]), dtypes.int32),
    )


def _lu(a: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
    """Gaussian elimination with the largest pivot of each column."""
    a = a.copy()
    m, n = a.shape
    order = np.arange(m)
    pivots = np.zeros(min(m, n), np.int32)
    with np.errstate(all="ignore"):
        for k in range(min(m, n)):
            # LAPACK compares complex numbers by the sum of the magnitudes of their parts.
            column = a[k:, k]
            pivot = k + int(np.argmax(np.abs(column.real) + np.abs(column.imag)))
            pivots[k] = pivot
            a[[k, pivot]], order[[k, pivot]] = a[[pivot, k]], order[[pivot, k]]
            if a[k, k] != 0:
                a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots, order.astype(np.int32)


lu_p = _declare(
    "lu",
    "L below and U on and above the diagonal of P·A = L·U; the row each step swapped with; P as "
    "the row of A for each row.",
    _lu_abstract,
    _lu,
    _shapes((3, 3), (2, 4, 4), (5, 3), (3, 5), (0, 2, 2)),
    flops=2 / 3,
)


# ---------------------------------------------------------------- qr
def _qr_abstract(a: Aval, *, full_matrices: bool) -> tuple[Aval, Aval]:
    check_matrix("qr", a)
    *batch, m, n = a.shape
    k = m if full_matrices else _smaller(a.shape)
    return Aval((*batch, m, k), a.dtype), Aval((*batch, k, n), a.dtype)


qr_p = _declare(
    "qr",
    "Q with orthonormal columns (all m of them with full_matrices) and upper triangular R of "
    "A = Q·R.",
    _qr_abstract,
    lambda a, *, full_matrices: np.linalg.qr(a, "complete" if full_matrices else "reduced"),
    _shapes((4, 4), (2, 5, 3), (0, 3, 2), full_matrices=False),
    flops=2,
)


# ---------------------------------------------------------------- svd
def _svd_abstract(a: Aval, *, full_matrices: bool, compute_uv: bool) -> tuple[Aval, ...]:
    check_matrix("svd", a)
    *batch, m, n = a.shape
    k = _smaller(a.shape)
    s = Aval((*batch, k), PART.get(a.dtype, a.dtype))
    if not compute_uv:
        return (s,)
    rows, columns = (m, n) if full_matrices else (k, k)
    return s, Aval((*batch, m, rows), a.dtype), Aval((*batch, columns, n), a.dtype)


def _svd(a: NumpyArray, *, full_matrices: bool, compute_uv: bool) -> Sequence[NumpyArray]:
    if not compute_uv:
        return [np.linalg.svd(a, compute_uv=False)]
    u, s, vh = np.linalg.svd(a, full_matrices=full_matrices)
    return s, u, vh


svd_p = _declare(
    "svd",
    "Singular values, largest first; with compute_uv also U and Vᴴ: A = U·diag(s)·Vᴴ.",
    _svd_abstract,
    _svd,
    (
        *_shapes((3, 3), (2, 4, 3), (3, 5), full_matrices=False, compute_uv=True),
        *_shapes((4, 3), full_matrices=False, compute_uv=False),
    ),
    flops=10,
)


# ---------------------------------------------------------------- eigh
def _eigh_abstract(a: Aval) -> tuple[Aval, Aval]:
    check_matrix("eigh", a, square=True)
    return Aval(a.shape[:-1], PART.get(a.dtype, a.dtype)), a.strong()


eigh_p = _declare(
    "eigh",
    "Eigenvalues, smallest first, and eigenvectors in columns, of the Hermitian matrix of which "
    "the lower half is read.",
    _eigh_abstract,
    lambda a: np.linalg.eigh(a, "L"),
    _shapes((3, 3), (2, 4, 4), (0, 2, 2)),
    flops=9,
)


# ---------------------------------------------------------------- triangular systems
def _solve_abstract(
    a: Aval,
    b: Aval,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Aval:
    check_matrix("triangular_solve", a, square=True)
    check_matrix("triangular_solve", b)
    size = b.shape[-2 if left_side else -1]
    if (
        a.dtype != b.dtype
        or not same_shape(a.shape[:-2], b.shape[:-2])
        or not structurally_equal(size, a.shape[-1])
    ):
        raise ShapeError(
            message(
                f"triangular_solve of {a} and {b}",
                None,
                "Give equal dtypes and batch axes, and as many rows (columns from the right) of "
                "the second as the first has",
            )
        )
    return b.strong()


def _substitute(
    a: NumpyArray,
    b: NumpyArray,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> list[NumpyArray]:
    """Substitution row by row, over all right-hand sides at once."""
    a = a.conj() if conjugate_a else a
    if transpose_a:
        a, lower = a.T, not lower
    if not left_side:
        a, b, lower = a.T, b.T, not lower
    x = b.copy()
    rows = range(a.shape[0]) if lower else range(a.shape[0] - 1, -1, -1)
    with np.errstate(all="ignore"):
        for i in rows:
            known = slice(0, i) if lower else slice(i + 1, None)
            x[i] -= a[i, known] @ x[known]
            if not unit_diagonal:
                x[i] /= a[i, i]
    return [x if left_side else x.T]


SOLVE_PLAIN = {
    "left_side": True, "lower": True, "transpose_a": False, "conjugate_a": False,
    "unit_diagonal": False,
}  # fmt: skip


def _solve_reference(a: NumpyArray, b: NumpyArray, **params: Any) -> NumpyArray:
    (out,) = _each(lambda *m: _substitute(*m, **params), [Aval(b.shape, b.dtype)], a, b)
    return out


triangular_solve_p = Primitive(
    "triangular_solve",
    abstract=_solve_abstract,
    doc="X with op(A)·X = B, or X·op(A) = B from the right; A is triangular, its other half is not "
    "read, and op transposes or conjugates.",
    reference=_solve_reference,
    tests=TestRecord(
        tuple(
            OpCase(shapes, {**SOLVE_PLAIN, **params}, ((0.5, 2.0), None))
            for shapes, params in [
                (((3, 3), (3, 2)), {}),
                (((2, 3, 3), (2, 3, 1)), {"lower": False}),
                (((3, 3), (2, 3)), {"left_side": False, "transpose_a": True}),
                (((3, 3), (3, 2)), {"unit_diagonal": True, "conjugate_a": True}),
                (((3, 3), (4, 3)), {"left_side": False, "lower": False}),
            ]
        ),
        (dtypes.float64, dtypes.float32),
        _TOLERANCE,
        grad_order=2,
        floor=1.0,
    ),
)


@triangular_solve_p.def_vmap
def _solve_vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int | None], size: Size, **params: Any
) -> tuple[Array, int]:
    a, b = (ctx.to_front(x, dim, size) for x, dim in zip(args, dims, strict=True))
    return triangular_solve_p.bind(a, b, **params), 0


@triangular_solve_p.def_pad
def _solve_pad(ctx: Any, args: Sequence[Array], true_shapes: Any, **params: Any) -> Array:
    # The padding of A is that of the identity and that of B is 0: their solution is 0.
    (a, b), (a_shape, b_shape) = args, true_shapes
    if ctx.is_padded(a_shape[-1]):
        a = with_identity(ctx, a, a_shape)
        kept = list(op.shape_of(b))
        axis = len(kept) - (2 if params["left_side"] else 1)
        kept[axis] = b_shape[axis]
        b = ctx.mask(b, tuple(kept), 0)
    return triangular_solve_p.bind(a, b, **params)


@triangular_solve_p.def_cost
def _solve_cost(a: Aval, b: Aval, **params: Any) -> Cost:
    return Cost(elements(b) * int(a.shape[-1]), nbytes(a, b), nbytes(b))


# ---------------------------------------------------------------- as functions
def cholesky(a: Array) -> Array:
    """L of L·Lᴴ; NaN for a matrix that is not positive definite."""
    return cholesky_p.bind(a)


def lu(a: Array) -> tuple[Array, Array, Array]:
    """Packed L and U ``[..., m, n]``, pivots ``[..., min(m, n)]``, permutation ``[..., m]``."""
    packed, pivots, permutation = lu_p.bind(a)
    return packed, pivots, permutation


def qr(a: Array, full_matrices: bool = False) -> tuple[Array, Array]:
    """Q and R."""
    q, r = qr_p.bind(a, full_matrices=full_matrices)
    return q, r


def svd(a: Array, full_matrices: bool = True, compute_uv: bool = True) -> tuple[Array, ...]:
    """Singular values, U and Vᴴ; only the values without `compute_uv`."""
    return tuple(svd_p.bind(a, full_matrices=full_matrices, compute_uv=compute_uv))


def eigh(a: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of Hermitian matrices."""
    w, v = eigh_p.bind(a)
    return w, v


def triangular_solve(a: Array, b: Array, **options: bool) -> Array:
    """X of op(A)·X = B; options as in :data:`SOLVE_PLAIN`, which are the defaults."""
    return triangular_solve_p.bind(a, b, **{**SOLVE_PLAIN, **options})
