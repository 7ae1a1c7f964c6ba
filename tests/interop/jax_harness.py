"""JAX's own test harnesses of its primitives, run through `from_jax` and compared with JAX.

A harness is a function of arrays that binds a primitive, with a maker of arguments. It runs on
`neuron`, or on `cpu` where 64-bit floats are asked for, and has to agree with JAX to the tolerance
that JAX's tests use for the dtype. 64-bit types are on in JAX, so every dtype takes part.
"""

from __future__ import annotations

import re
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src import core as jax_core
from jax._src import public_test_util

import trnx
from trnx.core import dtypes
from trnx.interop.jax import from_jax

PASSED, FAILED, OUT, SKIPPED = "passed", "failed", "out of scope", "not implemented by JAX"

OUT_OF_SCOPE = {
    "approx_top_k": "approximate by definition: results of two implementations differ",
    "bessel_i0e": "special function trnx does not have",
    "bessel_i1e": "special function trnx does not have",
    "digamma": "special function trnx does not have",
    "eig": "unsymmetric eigenvalues: trnx has the symmetric case, eigh",
    "igamma": "special function trnx does not have",
    "igammac": "special function trnx does not have",
    "lgamma": "special function trnx does not have",
    "nextafter": "steps through the bits of a float, which trnx does not have",
    "random_gamma": "draws by rejection, with special functions trnx does not have",
    "regularized_incomplete_beta": "special function trnx does not have",
    "rng_bit_generator": "the bits are those of one backend of XLA, not defined by JAX",
    "tridiagonal_solve": "solver trnx does not have",
}
"""JAX primitive -> why `from_jax` does not mean to support it. Everything else is in scope."""

TOLERANCE = {
    # The value JAX's own tests of the harnesses use.
    ("conv_general_dilated", "float32"): 1e-4,
    # The value of JAX's tests of transforms; sums of thousands of terms cancel to small ones.
    ("fft", "float32"): 1e-4,
    ("fft", "complex64"): 1e-4,
    # JAX adds in the short type, trnx in f32: the difference is JAX's rounding.
    ("cumsum", "float16"): 4e-3,
    ("cumsum", "bfloat16"): 4e-2,
}
"""(group, dtype) -> bound where the default of the dtype is not it."""

FACTORS = {"cholesky", "eigh", "qr", "svd", "triangular_solve"}
"""Groups whose factors are not unique or in part undefined: their products are compared."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one harness.

    Attributes:
        status: PASSED, FAILED, OUT or SKIPPED.
        reason: one line; empty for PASSED.
    """

    status: str
    reason: str = ""


@cache
def harnesses() -> dict[str, Any]:
    """Every harness by its full name, in JAX's order; `jax_enable_x64` has to be on.

    The harnesses come into being when their module is imported, and only for dtypes JAX has then.
    """
    from jax._src.internal_test_util import test_harnesses

    assert jax.config.jax_enable_x64
    found: dict[str, Any] = {}
    for harness in test_harnesses.all_harnesses:
        name = harness.fullname
        while name in found:
            name += "_again"
        found[name] = harness
    return found


def arguments(name: str) -> list[Any]:
    """The arguments of a harness: the same in every run."""
    seed = zlib.crc32(name.encode())
    args = harnesses()[name].dyn_args_maker(np.random.RandomState(seed))
    return [np.asarray(x) if not _is_key(x) else x for x in args]


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended)


def primitives_of(jaxpr: Any) -> Iterator[str]:
    """Names of the primitives of a jaxpr and its bodies."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for body in jax_core.jaxprs_in_params(equation.params):
            yield from primitives_of(body)


def run(name: str) -> Outcome:
    """Run one harness. Errors become outcomes; only a crash of the process escapes."""
    harness = harnesses()[name]
    if not harness.filter("cpu"):
        return Outcome(SKIPPED, "; ".join(x.description for x in harness.jax_unimplemented))
    args = arguments(name)
    jaxpr = jax.make_jaxpr(harness.dyn_fun)(*args).jaxpr
    for primitive in primitives_of(jaxpr):
        if primitive in OUT_OF_SCOPE:
            return Outcome(OUT, f"{primitive}: {OUT_OF_SCOPE[primitive]}")
    results = jax.tree.leaves(jax.eval_shape(harness.dyn_fun, *args))
    types = [x.dtype for x in (*args, *results) if not _is_key(x)]
    for dtype in types:
        if dtype not in dtypes.ALL_DTYPES:
            return Outcome(OUT, f"{dtype}: a dtype trnx does not have")
    wide = any(dtype in (np.float64, np.complex128) for dtype in types)
    try:
        with trnx.use_device("cpu" if wide else "neuron"):
            given = [_data(x) if _is_key(x) else x for x in args]
            found = jax.tree.leaves(from_jax(harness.dyn_fun)(*given))
        got = [np.asarray(x) for x in found]
        expected = [_data(x) for x in jax.tree.leaves(jax.jit(harness.dyn_fun)(*args))]
        _compare(harness, args, got, expected)
    except Exception as error:  # the outcome is the error
        return Outcome(FAILED, _reason(error))
    return Outcome(PASSED)


def _data(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(jax.random.key_data(x) if _is_key(x) else x)


def _reason(error: Exception) -> str:
    """The error in one line without addresses."""
    text = " ".join(str(error).split())
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r" \(at [^)]*\)( \([^)]*\))?\)?", "", text)
    if not text:
        text = traceback.format_exception_only(error)[-1].strip()
    return f"{type(error).__name__}: {text[:200]}"


# ---------------------------------------------------------------- comparison
def _compare(
    harness: Any, args: Sequence[Any], got: Sequence[Any], expected: Sequence[Any]
) -> None:
    assert len(got) == len(expected), f"{len(got)} results for {len(expected)}"
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == y.dtype, f"dtype {x.dtype} for {y.dtype}"
        assert x.shape == y.shape, f"shape {x.shape} for {y.shape}"
    if harness.group_name in FACTORS and not np.any(~np.isfinite(np.asarray(args[0]))):
        _compare_factors(harness, args, got, expected)
        return
    for x, y in zip(got, expected, strict=True):
        close(x, y, _tolerance(harness, y.dtype))


def _tolerance(harness: Any, dtype: np.dtype[Any]) -> float:
    default = public_test_util.default_tolerance()[dtype]
    return TOLERANCE.get((harness.group_name, dtype.name), default)


def close(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], bound: float) -> None:
    """Raise AssertionError with the worst place unless |x - y| <= bound (1 + |y|).

    NaN equals NaN, infinities equal themselves; bound 0 asks for equality.
    """
    if bound == 0 or not x.size:
        different = np.flatnonzero((x != y).reshape(-1))
        assert not different.size, (
            f"{different.size} of {x.size} differ, first {x.reshape(-1)[different[0]]} for "
            f"{y.reshape(-1)[different[0]]}"
        )
        return
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    a, b = x.astype(wide).reshape(-1), y.astype(wide).reshape(-1)
    with np.errstate(all="ignore"):
        error = np.abs(a - b) / (1 + np.abs(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{int((error > bound).sum())} of {x.size} off, worst {x.reshape(-1)[worst]} for "
        f"{y.reshape(-1)[worst]}: error {error[worst]:.2g} over {bound:.1g}"
    )


def _compare_factors(
    harness: Any, args: Sequence[Any], got: Sequence[Any], expected: Sequence[Any]
) -> None:
    """Factors multiply to the operand and are orthonormal; values are those of JAX."""
    x = np.asarray(args[0])
    bound = 50 * public_test_util.default_tolerance()[x.dtype] * max(x.shape[-2:], default=1)
    scale = max(1.0, float(np.abs(x).max(initial=0)))
    group = harness.group_name
    if group == "cholesky":
        # The primitive leaves the upper half undefined; JAX's function cuts it off.
        close(np.tril(got[0]) / scale, np.tril(expected[0]) / scale, bound)
        return
    if group == "triangular_solve":
        # Solutions of badly conditioned systems differ; each solves its system.
        options = jax.make_jaxpr(harness.dyn_fun)(*args).jaxpr.eqns[0].params
        solution = got[0].astype(np.result_type(x.dtype, np.float32))
        a = np.tril(x) if options["lower"] else np.triu(x)
        if options["unit_diagonal"]:
            eye = np.eye(a.shape[-1], dtype=bool)
            a = np.where(eye, np.ones((), a.dtype), a)
        a = a.conj() if options["conjugate_a"] else a
        a = np.swapaxes(a, -1, -2) if options["transpose_a"] else a
        a = a.astype(solution.dtype)
        back = a @ solution if options["left_side"] else solution @ a
        size = scale * max(1.0, float(np.abs(solution).max(initial=0)))
        close(back / size, np.asarray(args[1]).astype(back.dtype) / size, bound)
        return
    if group == "eigh":
        w, v = sorted(got, key=lambda part: part.ndim)
        close(w / scale, min(expected, key=lambda part: part.ndim) / scale, bound)
        half = np.tril(x) if harness.params["lower"] else np.swapaxes(np.triu(x), -1, -2).conj()
        strict = np.tril(half, -1)
        whole = strict + np.swapaxes(strict, -1, -2).conj() + half.real * np.eye(x.shape[-1])
        rebuilt = (v * w[..., None, :]) @ np.swapaxes(v, -1, -2).conj()
        close(rebuilt / scale, whole.astype(x.dtype) / scale, bound)
        return
    if len(got) == 1:
        close(got[0] / scale, expected[0] / scale, bound)
        return
    if group == "qr":
        q, r = got
        close(q @ r / scale, x / scale, bound)
        _orthonormal(q, bound)
        close(np.abs(r) / scale, np.abs(expected[1]) / scale, bound)
        return
    s, u, v = got
    close(s / scale, expected[0] / scale, bound)
    count = s.shape[-1]
    close((u[..., :count] * s[..., None, :]) @ v[..., :count, :] / scale, x / scale, bound)
    _orthonormal(u, bound)
    _orthonormal(np.swapaxes(v, -1, -2), bound)


def _orthonormal(q: np.ndarray[Any, Any], bound: float) -> None:
    eye = np.eye(q.shape[-1], dtype=q.dtype)
    close(np.swapaxes(q.conj(), -1, -2) @ q, np.broadcast_to(eye, (*q.shape[:-2], *eye.shape)),
          bound)  # fmt: skip
