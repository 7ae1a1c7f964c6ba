"""Choice between two operands, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    DTypeError,
    Linear,
    OpCase,
    Primitive,
    TestRecord,
    dtypes,
    message,
)
from trnx.ops import functions as op
from trnx.ops._factories import (
    ANY,
    NumpyArray,
    check_dtypes,
    elementwise_cost,
    elementwise_shape,
    pad_elementwise,
    vmap_elementwise,
)
from trnx.ops.elementwise import unbroadcast

Array = Any


def _abstract(predicate: Aval, on_true: Aval, on_false: Aval) -> Aval:
    if predicate.dtype != dtypes.bool_:
        raise DTypeError(
            message(f"select needs a bool predicate but got {predicate}", None, "Compare first")
        )
    dtype = check_dtypes("select", (on_true, on_false), ANY)
    shape = elementwise_shape("select", (predicate, on_true, on_false))
    return Aval(shape, dtype, on_true.weak and on_false.weak)


def _reference(predicate: NumpyArray, on_true: NumpyArray, on_false: NumpyArray) -> NumpyArray:
    return np.where(predicate, on_true, on_false)


def _cases(*values: np.dtype[Any]) -> tuple[OpCase, ...]:
    full, none = (3, 4), ()
    shapes = [
        (full, full, full), (none, full, full), (full, none, full), (full, full, none),
        (full, none, none), (none, none, none), ((131, 7),) * 3, ((0, 4),) * 3,
    ]  # fmt: skip
    return tuple(
        OpCase(shape, dtypes=(dtypes.bool_, dtype, dtype)) for shape in shapes for dtype in values
    )


select_p = Primitive(
    "select",
    abstract=_abstract,
    doc="Elements of the second operand where the first (bool) holds, else of the third.",
    reference=_reference,
    tests=TestRecord(
        _cases(*[t for t in ANY if t not in dtypes.FLOAT8]), (dtypes.float64,), grad_order=2
    ),
)
select_p.def_jvp(
    None,
    lambda t, predicate, x, y, *, out: op.spread(op.select(predicate, t, 0.0), out),
    lambda t, predicate, x, y, *, out: op.spread(op.select(predicate, 0.0, t), out),
)


@select_p.def_transpose
def _transpose(
    ct: Array, predicate: Array, on_true: Array, on_false: Array
) -> tuple[None, Array, Array]:
    true_ct = false_ct = None
    if isinstance(on_true, Linear):
        true_ct = unbroadcast(op.select(predicate, ct, 0.0), on_true.aval)
    if isinstance(on_false, Linear):
        false_ct = unbroadcast(op.select(predicate, 0.0, ct), on_false.aval)
    return None, true_ct, false_ct


select_p.def_vmap(vmap_elementwise(select_p))
select_p.def_pad(pad_elementwise(select_p))
select_p.def_cost(elementwise_cost(select_p, 1, False))
