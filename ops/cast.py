"""Change of dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnx.core import Aval, DTypeError, Linear, OpCase, Primitive, TestRecord, dtypes, message
from trnx.ops import functions as op
from trnx.ops._factories import (
    ANY,
    NumpyArray,
    elementwise_cost,
    pad_elementwise,
    vmap_elementwise,
)

Array = Any


def _abstract(x: Aval, *, dtype: np.dtype[Any], weak: bool) -> Aval:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        raise DTypeError(
            message(
                f"convert of {x} to {dtypes.short_name(dtype)} would drop the imaginary part",
                None,
                "Take the real part or the absolute value first",
            )
        )
    return Aval(x.shape, dtype, weak)


def _reference(x: NumpyArray, *, dtype: np.dtype[Any], weak: bool) -> NumpyArray:
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if dtypes.is_integer(dtype) and dtypes.is_float(x.dtype):
            low, high = dtypes.integer_range(dtype)
            whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
            # The limits of 64-bit integers are no f64 values, so compare before the cast.
            inside = np.where((whole >= high) | (whole <= low), 0, whole).astype(dtype)
            return np.where(whole >= high, high, np.where(whole <= low, low, inside)).astype(dtype)
        if dtype == dtypes.bool_:
            return np.asarray(x != 0)
        return x.astype(dtype)


def _cases() -> tuple[OpCase, ...]:
    wanted = [t for t in ANY if not dtypes.is_complex(t) and t not in dtypes.FLOAT8]
    cases = [
        OpCase(((3, 5),), {"dtype": to, "weak": False}, ((-300.0, 300.0),), (source,))
        for source in wanted
        for to in wanted
    ]
    cases += [
        OpCase(((3, 5),), {"dtype": to, "weak": False}, ((-4.0, 4.0),), (source,))
        for short in dtypes.FLOAT8
        for source, to in ((short, dtypes.float32), (dtypes.float32, short))
    ]
    cases.append(OpCase(((3, 5),), {"dtype": dtypes.complex64, "weak": False}))
    return tuple(cases)


convert_p = Primitive(
    "convert",
    abstract=_abstract,
    doc="The operand in another dtype: float to integer truncates, saturates and takes NaN to 0; "
    "to bool asks for nonzero; integers wrap.",
    reference=_reference,
    tests=TestRecord(_cases(), (dtypes.float64,), grad_order=1),
)
convert_p.def_linear()


@convert_p.def_transpose
def _transpose(ct: Array, x: Linear, *, dtype: np.dtype[Any], weak: bool) -> tuple[Array]:
    real = not dtypes.is_complex(x.aval.dtype)
    return (op.convert(op.real(ct) if real else ct, x.aval.dtype),)


convert_p.def_vmap(vmap_elementwise(convert_p))
convert_p.def_pad(pad_elementwise(convert_p))
convert_p.def_cost(elementwise_cost(convert_p, 1, False))
