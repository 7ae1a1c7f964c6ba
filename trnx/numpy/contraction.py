"""Products of matrices and tensors; all become `dot_general`.

bf16 and f16 accumulate in f32 and round once to the result's dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from trnx.core import ShapeError, Size, aval_of, dtypes, message, structurally_equal
from trnx.numpy._operands import (
    Array,
    ArrayLike,
    broadcast_shape,
    cast,
    normal_axis,
    promote,
    spread_to,
    type_of,
    types_text,
)
from trnx.ops import functions as op


def _operands(name: str, x: ArrayLike, y: ArrayLike) -> list[Array]:
    operands = promote(name, x, y)
    if aval_of(operands[0]).dtype == dtypes.bool_:
        operands = [cast(x, dtypes.int32) for x in operands]
    return operands


def matmul(x: ArrayLike, y: ArrayLike, preferred_element_type: Any = None) -> Array:
    """Matrix product over the last axis of `x` and the second to last of `y`.

    Leading axes broadcast; vectors count as a row or a column that the result does not keep.

    Args:
        x: ``[..., m, k]`` or ``[k]``.
        y: ``[..., k, n]`` or ``[k]``.
        preferred_element_type: dtype of the result, for example f32 of bf16 operands.

    Raises:
        ShapeError: no axes, or different k.
    """
    a, b = _operands("matmul", x, y)
    left, right = aval_of(a), aval_of(b)
    if not left.ndim or not right.ndim:
        raise ShapeError(
            message(f"matmul of {types_text((x, y))}: an operand has no axes", None, "Use multiply")
        )
    k_left, k_right = left.shape[-1], right.shape[max(right.ndim - 2, 0)]
    if not structurally_equal(k_left, k_right):
        side = "second to last" if right.ndim > 1 else "only"
        raise ShapeError(
            message(
                f"matmul of {types_text((x, y))}: the last axis of the first has size {k_left}, "
                f"the {side} axis of the second has size {k_right}",
                None,
                "Make them equal, for example by transposing an operand",
            )
        )
    contract = ((left.ndim - 1,), (max(right.ndim - 2, 0),))
    if right.ndim <= 2:
        return op.dot_general(a, b, contract, out_dtype=preferred_element_type)
    left_batch, right_batch = left.shape[:-2], right.shape[:-2]
    batch = broadcast_shape("matmul", [left_batch, right_batch], (x, y))
    if left.ndim == 1:
        return op.dot_general(b, a, ((right.ndim - 2,), (0,)), out_dtype=preferred_element_type)
    a = spread_to(a, (*batch, *left.shape[-2:]))
    b = spread_to(b, (*batch, *right.shape[-2:]))
    axes = tuple(range(len(batch)))
    count = len(batch)
    return op.dot_general(
        a, b, ((count + 1,), (count,)), (axes, axes), out_dtype=preferred_element_type
    )


def dot(x: ArrayLike, y: ArrayLike) -> Array:
    """Product of scalars, else sum over the last axis of `x` and the second to last of `y`."""
    left, right = type_of(x), type_of(y)
    if not left.ndim or not right.ndim:
        return op.mul(*promote("dot", x, y))
    return tensordot(x, y, ((left.ndim - 1,), (max(right.ndim - 2, 0),)), name="dot")


def vecdot(x: ArrayLike, y: ArrayLike, axis: int = -1) -> Array:
    """Sum of products along `axis` of operands that broadcast."""
    a, b = _operands("vecdot", x, y)
    common = broadcast_shape("vecdot", [aval_of(a).shape, aval_of(b).shape], (x, y))
    a, b = spread_to(a, common), spread_to(b, common)
    number = normal_axis("vecdot", axis, aval_of(a))
    rest = tuple(i for i in range(len(common)) if i != number)
    return op.dot_general(a, b, ((number,), (number,)), (rest, rest))


def outer(x: ArrayLike, y: ArrayLike) -> Array:
    """Products of every element of `x` with every element of `y`, both flattened."""
    a, b = _operands("outer", x, y)
    a = op.reshape(a, (aval_of(a).size, 1))
    b = op.reshape(b, (1, aval_of(b).size))
    shape = (aval_of(a).shape[0], aval_of(b).shape[1])
    return op.mul(spread_to(a, shape), spread_to(b, shape))


def tensordot(
    x: ArrayLike,
    y: ArrayLike,
    axes: int | Sequence[Any] = 2,
    *,
    name: str = "tensordot",
) -> Array:
    """Sum of products over pairs of axes.

    Args:
        x: left operand.
        y: right operand.
        axes: number of last axes of `x` to pair with as many first axes of `y`, or a pair of axis
            lists.
        name: function for error texts.

    Raises:
        ShapeError: paired axes have different sizes.
    """
    a, b = _operands(name, x, y)
    left, right = aval_of(a), aval_of(b)
    if isinstance(axes, int):
        pairs = (tuple(range(left.ndim - axes, left.ndim)), tuple(range(axes)))
    else:
        first, second = axes
        pairs = (
            tuple(normal_axis(name, i, left) for i in _as_tuple(first)),
            tuple(normal_axis(name, i, right) for i in _as_tuple(second)),
        )
    for i, j in zip(*pairs, strict=True):
        if not structurally_equal(left.shape[i], right.shape[j]):
            raise ShapeError(
                message(
                    f"{name} of {types_text((x, y))} pairs axis {i} of size {left.shape[i]} "
                    f"with axis {j} of size {right.shape[j]}",
                    None,
                    "Paired axes must have equal sizes",
                )
            )
    return op.dot_general(a, b, pairs)


def _as_tuple(axes: Any) -> tuple[int, ...]:
    return tuple(axes) if isinstance(axes, list | tuple) else (operator.index(axes),)


# ---------------------------------------------------------------- einsum
def einsum(subscripts: str, *operands: ArrayLike) -> Array:
    """Sums of products named by letters: ``einsum("bij,bjk->bik", x, y)``.

    Operands are contracted from left to right. Without ``->`` the result has the letters that
    occur once, in alphabetical order. Ellipsis and letters repeated within one operand are refused.

    Raises:
        ShapeError: the letters do not fit the operands.
    """
    labels, result = _parse_subscripts(subscripts, operands)
    sizes: dict[str, Size] = {}
    for text, x in zip(labels, operands, strict=True):
        for letter, size in zip(text, type_of(x).shape, strict=True):
            known = sizes.setdefault(letter, size)
            if not structurally_equal(known, size):
                raise ShapeError(
                    message(
                        f"einsum {subscripts!r} of {types_text(operands)}: {letter} has sizes "
                        f"{known} and {size}",
                        None,
                        "Equal letters need equal sizes",
                    )
                )
    arrays = promote("einsum", *operands)
    current, text = arrays[0], labels[0]
    for position in range(1, len(arrays)):
        later = set("".join(labels[position + 1 :])) | set(result)
        current, text = _contract_pair(current, text, arrays[position], labels[position], later)
    current, text = _sum_out(current, text, set(result))
    return op.transpose(current, [text.index(letter) for letter in result])


def _parse_subscripts(subscripts: str, operands: Sequence[ArrayLike]) -> tuple[list[str], str]:
    compact = subscripts.replace(" ", "")
    inputs, arrow, result = compact.partition("->")
    labels = inputs.split(",")
    letters = "".join(labels)
    if not arrow:
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    bad = (
        len(labels) != len(operands)
        or not all(map(str.isalpha, letters + result))
        or any(len(set(text)) != len(text) for text in [*labels, result])
        or not set(result) <= set(letters)
        or any(len(t) != type_of(x).ndim for t, x in zip(labels, operands, strict=False))
    )
    if bad:
        raise ShapeError(
            message(
                f"einsum {subscripts!r} does not describe operands {types_text(operands)}",
                None,
                "Give one letter per axis, no letter twice in one operand, and no ellipsis",
            )
        )
    return labels, result


def _sum_out(x: Array, text: str, keep: set[str]) -> tuple[Array, str]:
    axes = [i for i, letter in enumerate(text) if letter not in keep]
    kept = "".join(letter for letter in text if letter in keep)
    return op.reduce_sum(x, axes), kept


def _contract_pair(
    x: Array, x_text: str, y: Array, y_text: str, later: set[str]
) -> tuple[Array, str]:
    x, x_text = _sum_out(x, x_text, later | set(y_text))
    y, y_text = _sum_out(y, y_text, later | set(x_text))
    shared = [letter for letter in x_text if letter in y_text]
    summed = [letter for letter in shared if letter not in later]
    batch = [letter for letter in shared if letter in later]
    out = op.dot_general(
        x,
        y,
        ([x_text.index(c) for c in summed], [y_text.index(c) for c in summed]),
        ([x_text.index(c) for c in batch], [y_text.index(c) for c in batch]),
    )
    free = [c for c in x_text if c not in shared] + [c for c in y_text if c not in shared]
    return out, "".join([*batch, *free])
