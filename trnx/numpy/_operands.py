"""What every function does with its operands first: types, promotion, broadcasting, axes.

Operands may be arrays, traced values, NumPy arrays, Python numbers and symbolic sizes. Errors name
the function that the user called, with full shapes and dtypes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from trnx.core import (
    Aval,
    Dim,
    DTypeError,
    IntegerRangeError,
    ShapeError,
    Size,
    aval_of,
    broadcast_sizes,
    dtypes,
    is_array_like,
    message,
    same_shape,
)
from trnx.ops import functions as op
from trnx.runtime import array as runtime

ArrayLike: TypeAlias = Any
Array: TypeAlias = Any
Shape: TypeAlias = tuple[Size, ...]

_NUMBERS = (bool, int, float, complex)
_WEAK_INTEGER = Aval((), dtypes.int32, True)


def is_operand(x: Any) -> bool:
    """True for what can be an operand: array-likes and symbolic sizes."""
    return is_array_like(x) or isinstance(x, Dim)


def type_of(x: ArrayLike) -> Aval:
    """The type of an operand; a Python int (of any size) and a symbolic size are weak integers."""
    return _WEAK_INTEGER if type(x) is int or isinstance(x, Dim) else aval_of(x)


def types_text(operands: Sequence[ArrayLike]) -> str:
    """``f32[2,3] and i32[4]``, for error texts."""
    return " and ".join(str(type_of(x)) for x in operands)


def as_operand(x: ArrayLike) -> Array:
    """`x`, with a symbolic size turned into an int32 scalar."""
    return op.dim_size(x) if isinstance(x, Dim) else x


def cast(x: ArrayLike, dtype: np.dtype[Any], weak: bool = False) -> Array:
    """`x` as an operand of this dtype; a number or a size takes it without an equation."""
    if isinstance(x, Dim):
        return op.dim_size(x, dtype)
    if type(x) in _NUMBERS:
        return op.scalar(x, dtype, weak)
    aval = aval_of(x)
    return x if aval.dtype == dtype else op.convert(x, dtype, weak and aval.weak)


def common_type(name: str, operands: Sequence[ArrayLike]) -> tuple[np.dtype[Any], bool]:
    """The promoted dtype of the operands and whether it is weak.

    Raises:
        DTypeError: there is none; the text names the function.
        IntegerRangeError: a Python int does not fit.
    """
    kinds = [type_of(x) if isinstance(x, Dim) else x for x in operands]
    try:
        return dtypes.result_type(*kinds)
    except IntegerRangeError:
        raise
    except DTypeError:
        raise DTypeError(
            message(
                f"{name} of {types_text(operands)}: these dtypes have no implicit common dtype",
                None,
                "Cast one of them with astype",
            )
        ) from None


def promote(name: str, *operands: ArrayLike, inexact: bool = False) -> list[Array]:
    """The operands in their common dtype.

    Args:
        name: function for error texts.
        operands: array-likes.
        inexact: integers and bools become float32, as division and functions of reals want.
    """
    avals = [type_of(x) for x in operands]
    first = avals[0].dtype
    if (not inexact or dtypes.is_inexact(first)) and all(
        a.dtype == first and not a.weak for a in avals
    ):
        return list(operands)
    dtype, weak = common_type(name, operands)
    if inexact and not dtypes.is_inexact(dtype):
        dtype = dtypes.float32
    return [cast(x, dtype, weak) for x in operands]


def broadcast_shape(name: str, shapes: Sequence[Shape], operands: Sequence[ArrayLike]) -> Shape:
    """The common shape by NumPy's rule.

    Raises:
        ShapeError: names the function, the types of the operands and the axis.
    """
    rank = max(map(len, shapes))
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            common = broadcast_sizes(result[axis], size)
            if common is None:
                raise ShapeError(
                    message(
                        f"{name} of {types_text(operands)}: the shapes do not broadcast, "
                        f"axis {axis - rank} has sizes {result[axis]} and {size}",
                        None,
                        "Make the sizes equal or one of them 1, for example with reshape",
                    )
                )
            result[axis] = common
    return tuple(result)


def spread_to(x: Array, shape: Shape) -> Array:
    """`x` repeated to a shape that it broadcasts to."""
    own = aval_of(x).shape
    if same_shape(own, shape):
        return x
    return op.broadcast(x, shape, range(len(shape) - len(own), len(shape)))


def broadcast(name: str, *operands: Array) -> list[Array]:
    """The operands with shapes that elementwise primitives take: one shape, or no axes."""
    shapes = [type_of(x).shape for x in operands]
    ranked = [shape for shape in shapes if shape]
    if all(same_shape(shape, ranked[0]) for shape in ranked[1:]):
        return list(operands)
    shape = broadcast_shape(name, shapes, operands)
    return [spread_to(x, shape) if own else x for x, own in zip(operands, shapes, strict=True)]


def operands_of(name: str, *operands: ArrayLike, inexact: bool = False) -> list[Array]:
    """:func:`promote` and :func:`broadcast`."""
    if len(operands) == 2 and _are_alike(*operands, inexact=inexact):
        return list(operands)
    return broadcast(name, *promote(name, *operands, inexact=inexact))


def _are_alike(x: ArrayLike, y: ArrayLike, inexact: bool) -> bool:
    """Whether two run-time arrays need neither promotion nor broadcasting: the common case, where
    looking closer would cost as much as a small operation.
    """
    if type(x) is not runtime.Array or type(y) is not runtime.Array or x._type is not y._type:
        return False
    aval = x._type.aval
    return not aval.weak and (not inexact or dtypes.is_inexact(aval.dtype))


def as_float(name: str, x: ArrayLike) -> Array:
    """`x` in an inexact dtype: integers and bools become float32."""
    (x,) = promote(name, x, inexact=True)
    return x


def normal_axis(name: str, axis: Any, aval: Aval, extra: int = 0) -> int:
    """A nonnegative axis.

    Raises:
        ShapeError: out of range.
    """
    try:
        number = operator.index(axis)
    except TypeError:
        raise ShapeError(
            message(f"{name} got axis {axis!r}", None, "Use a Python int as axis")
        ) from None
    rank = aval.ndim + extra
    if not -rank <= number < rank:
        allowed = f"Use an axis from {-rank} to {rank - 1}" if rank else "Give it an axis first"
        raise ShapeError(message(f"{name} of {aval} got axis {number}", None, allowed))
    return number % rank


def normal_axes(name: str, axis: Any, aval: Aval) -> tuple[int, ...]:
    """Sorted nonnegative axes from None (all), an int or a sequence of ints.

    Raises:
        ShapeError: out of range, or an axis is named twice.
    """
    if axis is None:
        return tuple(range(aval.ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = sorted(normal_axis(name, a, aval) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(message(f"{name} of {aval} got axes {axis}", None, "Name each axis once"))
    return tuple(axes)


def normal_shape(name: str, shape: Any) -> Shape:
    """A tuple of sizes from an int, a symbolic size or a sequence of them.

    Raises:
        ShapeError: a negative size, or no integer.
    """
    sizes: list[Size] = []
    for size in (shape,) if isinstance(shape, Dim) or hasattr(shape, "__index__") else shape:
        if isinstance(size, Dim):
            sizes.append(size)
            continue
        try:
            value = operator.index(size)
        except TypeError as error:
            if not hasattr(size, "__index__"):
                raise ShapeError(
                    message(f"{name} got the size {size!r}", None, "Use Python ints as sizes")
                ) from None
            raise error
        if value < 0:
            raise ShapeError(
                message(f"{name} got the negative size {value}", None, "Use sizes of at least 0")
            )
        sizes.append(value)
    return tuple(sizes)
