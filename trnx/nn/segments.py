"""Sums of rows by group number."""

from __future__ import annotations

from trnx.core import ShapeError, Size, aval_of, message, same_shape
from trnx.numpy._operands import Array, ArrayLike, as_operand, normal_shape, type_of
from trnx.numpy.indexing import narrowed
from trnx.ops import functions as op


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: Size) -> Array:
    """Row i of the result is the sum of the rows of `data` whose id is i.

    Args:
        data: ``[..ids, ...]``.
        segment_ids: integers; their shape leads the shape of `data`. Rows with an id outside
            0..num_segments-1 count nowhere, and their gradient is 0.
        num_segments: rows of the result.

    Raises:
        ShapeError: the ids do not lead the data.
        DTypeError: ids that are no integers.
    """
    data = as_operand(data)
    aval, ids = aval_of(data), type_of(segment_ids)
    if not same_shape(aval.shape[: ids.ndim], ids.shape):
        raise ShapeError(
            message(
                f"segment_sum of {aval} with ids {ids}",
                None,
                "Give one id per row: the ids have the leading axes of the data",
            )
        )
    (rows,) = normal_shape("segment_sum", num_segments)
    start = op.full((rows, *aval.shape[ids.ndim :]), op.scalar(0, aval.dtype))
    return op.scatter_add(start, narrowed(segment_ids), data, 0)
