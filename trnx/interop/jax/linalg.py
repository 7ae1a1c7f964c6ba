"""Rules of factorisations, triangular systems and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.core import dtypes
from trnx.interop.jax.control import closed
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import fft, linalg
from trnx.ops import functions as op
from trnx.transforms import custom_jvp, jvp


@rule("cholesky")
def _cholesky(site: Site, a: Value, **_: Any) -> Value:
    return linalg.cholesky(a)


@rule("triangular_solve")
def _triangular_solve(site: Site, a: Value, b: Value, **options: bool) -> Value:
    dtype = site.result.dtype
    if dtype.itemsize < 4:  # LAPACK has no short types: f32 and one rounding
        a, b = op.convert(a, dtypes.float32), op.convert(b, dtypes.float32)
    return op.convert(linalg.triangular_solve(a, b, **options), dtype)


@rule("lu")
def _lu(site: Site, a: Value) -> list[Value]:
    return list(linalg.lu(a))


@rule("qr")
def _qr(
    site: Site, a: Value, *, full_matrices: bool, pivoting: bool = False, **_: Any
) -> list[Value]:
    if pivoting:
        raise site.refuse("with pivoting", "Use lu, or qr without pivoting")
    return list(linalg.qr(a, full_matrices))


@rule("svd")
def _svd(
    site: Site,
    a: Value,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: Any = None,
    **_: Any,
) -> list[Value]:
    smaller = min(site.operands[0].shape[-2:])
    if subset_by_index not in (None, (0, smaller)):
        raise site.refuse("of some singular values", "Take them from the full decomposition")
    return list(linalg.svd(a, full_matrices, compute_uv))


@rule("eigh")
def _eigh(site: Site, a: Value, *, lower: bool, subset_by_index: Any = None, **_: Any) -> Any:
    if subset_by_index not in (None, (0, site.operands[0].shape[-1])):
        raise site.refuse("of some eigenvalues", "Take them from the full decomposition")
    values, vectors = linalg.eigh(a if lower else linalg.conj_transpose(a))
    return [vectors, values]


@rule("custom_linear_solve")
def _custom_linear_solve(
    site: Site, *operands: Value, const_lengths: Any, jaxprs: Any
) -> list[Value]:
    """A·x = b by the user's solver, which JAX does not differentiate: dx solves for db - dA·x."""
    counts = const_lengths.matvec, const_lengths.vecmat, const_lengths.solve
    ends = [sum(counts[: i + 1]) for i in range(3)]
    rest = ends[2] + const_lengths.transpose_solve

    def solve(values: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return site.run(closed(jaxprs.solve), [*values[ends[1] : ends[2]], *right])

    @custom_jvp
    def run(*values: Value) -> list[Value]:
        return solve(values, values[rest:])

    @run.defjvp
    def _derivative(primals: Sequence[Value], tangents: Sequence[Value]) -> Any:
        x = run(*primals)
        moved = [i for i in range(ends[0]) if dtypes.is_inexact(op.dtype_of(primals[i]))]

        def product(*matrix: Value) -> list[Value]:
            given = iter(matrix)
            constants = [next(given) if i in moved else primals[i] for i in range(ends[0])]
            return site.run(closed(jaxprs.matvec), [*constants, *x])

        right = list(tangents[rest:])
        if moved:
            at = tuple(primals[i] for i in moved)
            _, change = jvp(product, at, tuple(tangents[i] for i in moved))
            right = [op.sub(t, d) for t, d in zip(right, change, strict=True)]
        return x, solve(primals, right)

    return list(run(*operands))


_FFT = ("fft", "ifft", "rfft", "irfft")


@rule("fft")
def _fft(site: Site, x: Value, *, fft_type: Any, fft_lengths: Sequence[int]) -> Value:
    return fft.fft(x, _FFT[int(fft_type)], fft_lengths)
