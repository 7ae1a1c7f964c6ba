"""Discrete Fourier transforms over trailing axes, as counted host calls.

A NeuronCore has no instruction for them; the host computes them with NumPy's pocketfft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    Linear,
    OpCase,
    Primitive,
    RuleError,
    ShapeError,
    Size,
    TestRecord,
    dtypes,
    message,
    structurally_equal,
)
from trnx.ops import functions as op
from trnx.ops._factories import NumpyArray, elements, nbytes
from trnx.ops.complex_functions import PART, WHOLE

Array = Any
KINDS = ("fft", "ifft", "rfft", "irfft")


def _abstract(x: Aval, *, kind: str, lengths: tuple[int, ...]) -> Aval:
    rank = len(lengths)
    if kind not in KINDS:
        raise DTypeError(message(f"fft of kind {kind!r}", None, f"Use one of {', '.join(KINDS)}"))
    real = kind == "rfft"
    if x.dtype not in (WHOLE if real else PART):
        wanted = "float32 or float64" if real else "complex64 or complex128"
        raise DTypeError(message(f"{kind} of {x}", None, f"Cast to {wanted}"))
    if x.ndim < rank or not 1 <= rank <= 3:
        raise ShapeError(message(f"{kind} of {x} over {rank} axes", None, "Use one to three axes"))
    expected = (*lengths[:-1], lengths[-1] // 2 + 1) if kind == "irfft" else lengths
    for size, length in zip(x.shape[x.ndim - rank :], expected, strict=True):
        if not structurally_equal(size, length):
            raise ShapeError(
                message(
                    f"{kind} of {x} with lengths {lengths} needs trailing sizes {expected}",
                    None,
                    "Cut the array or pad it with zeros",
                )
            )
    batch = x.shape[: x.ndim - rank]
    if kind == "rfft":
        return Aval((*batch, *lengths[:-1], lengths[-1] // 2 + 1), WHOLE[x.dtype])
    return Aval((*batch, *lengths), PART[x.dtype] if kind == "irfft" else x.dtype)


def _reference(x: NumpyArray, *, kind: str, lengths: tuple[int, ...]) -> NumpyArray:
    axes = tuple(range(-len(lengths), 0))
    function: Any = {"fft": np.fft.fftn, "ifft": np.fft.ifftn, "rfft": np.fft.rfftn,
                "irfft": np.fft.irfftn}[kind]  # fmt: skip
    out = _abstract(Aval(x.shape, x.dtype), kind=kind, lengths=lengths)
    return np.asarray(function(x, s=lengths, axes=axes)).astype(out.dtype)


_REAL, _WHOLE = (dtypes.float32, dtypes.float64), dtypes.COMPLEXES
_CASES: tuple[tuple[tuple[int, ...], str, tuple[int, ...]], ...] = (
    ((2, 5), "fft", (5,)),
    ((3, 4), "ifft", (3, 4)),
    ((2, 6), "rfft", (6,)),
    ((2, 4), "irfft", (6,)),
    ((4, 3), "irfft", (4, 5)),
)
fft_p = Primitive(
    "fft",
    abstract=_abstract,
    doc="Discrete Fourier transform over the trailing axes: fft, ifft, rfft of real operands, "
    "irfft to real results; inverses divide by the number of elements.",
    reference=_reference,
    tests=TestRecord(
        tuple(
            OpCase((shape,), {"kind": kind, "lengths": lengths}, dtypes=(dtype,))
            for shape, kind, lengths in _CASES
            for dtype in (_REAL if kind == "rfft" else _WHOLE)
        ),
        (),
        {"f32": 2e-6, "c64": 2e-6, "f64": 4e-15, "c128": 4e-15},
        grad_order=1,
        floor=1.0,
    ),
)
fft_p.def_linear()


@fft_p.def_transpose
def _transpose(ct: Array, x: Linear, *, kind: str, lengths: tuple[int, ...]) -> tuple[Array]:
    """fft and ifft are symmetric matrices; rfft is fft of real operands, irfft its inverse."""
    count = int(np.prod(lengths))
    if kind in ("fft", "ifft"):
        return (fft(ct, kind, lengths),)
    rank = len(op.shape_of(ct))
    axis = rank - 1
    if kind == "rfft":
        # The real part of the transform of the cotangent with zeros for the missing frequencies.
        high = [0] * rank
        high[axis] = lengths[-1] - int(op.shape_of(ct)[axis])
        full = op.pad(ct, op.scalar_like(0, ct), [0] * rank, high)
        return (op.real(fft(full, "fft", lengths)),)
    # irfft: every frequency but those that are their own mirror image counts twice.
    half = fft(ct, "rfft", lengths)
    shape = op.shape_of(half)
    index = op.iota(shape, axis)
    alone = op.eq(index, 0)
    if lengths[-1] % 2 == 0:
        alone = op.bitwise_or(alone, op.eq(index, lengths[-1] // 2))
    part = op.dtype_of(ct)
    weight = op.select(alone, op.scalar(1 / count, part), op.scalar(2 / count, part))
    return (op.mul(op.conj(half), op.convert(weight, op.dtype_of(half))),)


@fft_p.def_vmap
def _vmap(
    ctx: Any, args: Sequence[Array], dims: Sequence[int], size: Size, **params: Any
) -> tuple[Array, int]:
    return fft_p.bind(op.moveaxis(args[0], dims[0], 0), **params), 0


@fft_p.def_pad
def _pad(ctx: Any, args: Sequence[Array], true_shapes: Any, **params: Any) -> Array:
    rank = len(params["lengths"])
    if any(ctx.is_padded(size) for size in true_shapes[0][-rank:]):
        raise RuleError(
            message(
                "fft over an axis of a symbolic size has no meaning in a padded buffer",
                None,
                "Give the axis a static size; batch axes may be symbolic",
            )
        )
    return fft_p.bind(args[0], **params)


@fft_p.def_cost
def _cost(x: Aval, *, kind: str, lengths: tuple[int, ...]) -> Cost:
    out = _abstract(x, kind=kind, lengths=lengths)
    count = int(np.prod(lengths))
    depth = max(count, 2).bit_length() - 1
    return Cost(5 * depth * max(elements(x), elements(out)), nbytes(x), nbytes(out))


def fft(x: Array, kind: str, lengths: Sequence[int]) -> Array:
    """The transform of a kind over the last ``len(lengths)`` axes."""
    return fft_p.bind(x, kind=kind, lengths=tuple(lengths))
