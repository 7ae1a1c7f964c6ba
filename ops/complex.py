"""Complex numbers: made of two real ones and taken apart again.

Arithmetic and functions of complex operands belong to the same primitives as the real ones; the
compiler writes them in terms of these three, so that a complex value is a pair of tiles.

Derivatives are those of holomorphic functions where there is one; reverse mode pairs a cotangent
with a tangent by Re(ct · t), without conjugation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnx.core import Aval, Linear, Primitive
from trnx.core.dtypes import float32, float64
from trnx.ops import functions as op
from trnx.ops._factories import COMPLEX, NumpyArray, binary, unary
from trnx.ops.complex_functions import PART as PART
from trnx.ops.complex_functions import WHOLE as WHOLE
from trnx.ops.elementwise import unbroadcast

Array = Any


def _change_result(primitive: Primitive, results: dict[np.dtype[Any], np.dtype[Any]]) -> None:
    """Let the dtype of the result follow from that of the operands."""
    elementwise = primitive.abstract

    def abstract(*avals: Aval, **params: Any) -> Aval:
        out = elementwise(*avals, **params)
        assert isinstance(out, Aval)
        return Aval(out.shape, results[out.dtype], out.weak)

    primitive.abstract = abstract


def _make(x: NumpyArray, y: NumpyArray) -> NumpyArray:
    """Parts as they are: x + 1j·y would lose signs of zero and spread NaN."""
    x, y = np.broadcast_arrays(x, y)
    out = np.empty(x.shape, WHOLE[x.dtype])
    out.real, out.imag = x, y
    return out


complex_p = binary(
    "complex",
    "A complex number from its real and its imaginary part.",
    accepts=(float32, float64),
    reference=_make,
    grad_order=2,
    linear=True,
)
_change_result(complex_p, WHOLE)
complex_p.def_jvp(
    lambda t, x, y, *, out: op.make_complex(op.spread(t, out), _zero_part(out)),
    lambda t, x, y, *, out: op.make_complex(_zero_part(out), op.spread(t, out)),
)


def _zero_part(z: Array) -> Array:
    return op.zeros_like(op.real(z))


@complex_p.def_transpose
def _complex_transpose(ct: Array, x: Array, y: Array) -> tuple[Array, Array]:
    return (
        unbroadcast(op.real(ct), x.aval) if isinstance(x, Linear) else None,
        unbroadcast(op.neg(op.imag(ct)), y.aval) if isinstance(y, Linear) else None,
    )


real_p = unary(
    "real",
    "The real part of a complex number.",
    accepts=COMPLEX,
    reference=lambda x: np.array(np.asarray(x).real),
    grad_order=2,
    linear=True,
)
_change_result(real_p, PART)
real_p.def_linear()
real_p.def_transpose(lambda ct, x: (op.make_complex(ct, op.zeros_like(ct)),))

imag_p = unary(
    "imag",
    "The imaginary part of a complex number.",
    accepts=COMPLEX,
    reference=lambda x: np.array(np.asarray(x).imag),
    grad_order=2,
    linear=True,
)
_change_result(imag_p, PART)
imag_p.def_linear()
imag_p.def_transpose(lambda ct, x: (op.make_complex(op.zeros_like(ct), op.neg(ct)),))
