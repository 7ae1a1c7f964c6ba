"""Linear algebra that is made of array code."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trnx.core import UnsupportedError, aval_of, message
from trnx.numpy._operands import Array, ArrayLike, as_float, normal_axes
from trnx.numpy._public import publish as _publish
from trnx.numpy.contraction import matmul as matmul
from trnx.numpy.contraction import outer as outer
from trnx.numpy.contraction import tensordot as tensordot
from trnx.numpy.contraction import vecdot as vecdot
from trnx.numpy.manipulation import matrix_transpose as matrix_transpose
from trnx.numpy.reductions import safe_sqrt, with_axes
from trnx.ops import functions as op


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
            magnitudes; inf: largest, -inf: smallest magnitude (of one axis).
        axis: axes to reduce.
        keepdims: keep reduced axes with size 1.

    The gradient of the 2-norm at 0 is 0.

    Raises:
        UnsupportedError: another `ord`, or a matrix norm that needs singular values.
    """
    x = as_float("norm", x)
    aval = aval_of(x)
    axes = normal_axes("norm", axis, aval)
    if ord is None or ord == "fro" or (ord == 2 and len(axes) <= 1):
        out = safe_sqrt(op.reduce_sum(op.mul(x, x), axes))
    elif ord == 1 and len(axes) == 1:
        out = op.reduce_sum(op.abs(x), axes)
    elif ord in (math.inf, -math.inf) and len(axes) == 1:
        function = op.reduce_max if ord == math.inf else op.reduce_min
        out = function(op.abs(x), axes)
    else:
        raise UnsupportedError(
            message(
                f"norm of {aval} over axes {axes} with ord={ord!r}",
                None,
                "Use ord None, 1, 2 or inf on one axis, or 'fro' on two",
            )
        )
    return with_axes(out, aval.shape, axes, keepdims)


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


_publish(globals())
